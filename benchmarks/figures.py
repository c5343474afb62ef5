"""Every figure, in groups that can be run alone; each group asks the workers and reports."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import footprint, throughput, trace
from benchmarks.report import FLOOR, OURS, Round, Rounds, Sample
from benchmarks.session import Session, measure_once
from benchmarks.sizes import Sizes
from benchmarks.tasks import Task
from qindex.compare.child import ChildEndedError, ChildError

ENOUGH_AFTER_DRAIN = 1_000_000
"""Bytes: below this, disk use after a drain is back to nothing."""

_MEGABYTE = 1e6
_ROUNDS_OF_ONE_PROCESS = 7
WITHOUT_KEY = "without key and headers"


def backlog_figure(backlog: int) -> str:
    """Name the figure of single gets with acks at this backlog: ``get_ack_10k``."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if backlog >= size:
            return f"get_ack_{backlog // size}{letter}"
    return f"get_ack_{backlog}"


def over_smallest(backlog: int, sizes: Sizes) -> str:
    """Name the figure of a backlog in relation to the smallest one: ``get_ack_10k_over_1k``."""
    smallest = backlog_figure(sizes.backlogs[0]).removeprefix("get_ack_")
    return f"{backlog_figure(backlog)}_over_{smallest}"


def publish(session: Session, sizes: Sizes) -> None:
    """Single publishes a second; kill-safe on return."""
    parameters = {"count": sizes.publish, "seconds": sizes.seconds}
    _rate(session, "publish", throughput.Publish, session.names(lambda kind: True), parameters)


def keyed(session: Session, sizes: Sizes) -> None:
    """Single publishes with a key and two headers a second, and the same bodies without."""
    if OURS in session.contenders:
        given = {OURS: {"count": sizes.publish // 2}}
        result = session.interleave(
            "publish_keyed", throughput.PublishKeyed, given, _ROUNDS_OF_ONE_PROCESS
        )
        both = zip(result.get("keyed", []), result.get("plain", []), strict=True)
        rounds = [{OURS: one[OURS], WITHOUT_KEY: other[OURS]} for one, other in both]
        session.report.add("publish_keyed", rounds)


def large(session: Session, sizes: Sizes) -> None:
    """Messages of 8 KiB: microseconds of a publish, and of a get with its ack; the floor is one
    plain write of as many bytes."""
    who = session.names(lambda kind: kind.name in (OURS, FLOOR))
    given = {name: {"count": sizes.large} for name in who}
    result = session.interleave("8KiB", throughput.Large, given, _ROUNDS_OF_ONE_PROCESS)
    for name, rounds in result.items():
        session.report.add(f"{name}_8KiB", rounds, unit="us", better="low")


def get_ack(session: Session, sizes: Sizes) -> None:
    """Single gets with acks a second, at each backlog; and what a backlog costs."""
    for backlog in sizes.backlogs:
        parameters = {"backlog": backlog, "count": sizes.get_ack, "seconds": sizes.seconds}
        who = [name for name, kind in session.contenders.items() if kind.max_backlog >= backlog]
        _rate(session, backlog_figure(backlog), throughput.GetAck, who, parameters)
    # The figures above are taken minutes apart: too far for one to be held against another.
    if OURS in session.contenders:
        bounds = {"count": sizes.get_ack_backlogs, "seconds": sizes.seconds}
        ratios = session.interleave(
            "get_ack at each backlog",
            throughput.GetAckBacklogs,
            {OURS: {"backlogs": sizes.backlogs, "bounds": bounds}},
            _ROUNDS_OF_ONE_PROCESS,
        )
        for other, rounds in ratios.items():
            session.report.add(over_smallest(int(other), sizes), rounds, unit="times")


def publish_many(session: Session, sizes: Sizes) -> None:
    """Messages a second published in batches."""
    parameters = {
        "batch": sizes.batch,
        "count": sizes.publish_many,
        "seconds": sizes.seconds,
        "durability": "os",
    }
    who = session.names(lambda kind: kind.batch_publish)
    _rate(session, "publish_many", throughput.PublishMany, who, parameters)


def get_many(session: Session, sizes: Sizes) -> None:
    """Messages a second taken and acknowledged in batches, every body read."""
    parameters = {"batch": sizes.get_batch, "backlog": sizes.get_many, "seconds": sizes.seconds}
    who = session.names(lambda kind: kind.batch_get or kind.name == FLOOR)
    _rate(session, "get_many_ack_many", throughput.GetMany, who, parameters)


def fsync(session: Session, sizes: Sizes) -> None:
    """The same with everything on disk on return; and threads that share a sync."""
    who = session.names(lambda kind: kind.fsync)
    comparable = session.comparable()
    notes = session.notes()
    # Nobody waits for a peer that takes a millisecond for each.
    parameters = {
        name: {
            "single": sizes.fsync // share,
            "threads": sizes.fsync_threads,
            "each": sizes.fsync_each // share,
        }
        for name in who
        for share in (1 if name in (OURS, FLOOR) else 2,)
    }
    result = session.interleave("publish_fsync", throughput.PublishThreads, parameters)
    one, together = result.get("one", []), result.get("together", [])
    add = session.report.add
    add("publish_fsync", one, comparable=comparable, notes=notes)
    add(
        f"publish_fsync_{sizes.fsync_threads}_threads", together, comparable=comparable, notes=notes
    )
    ratios = [
        {name: Sample(many[name].value / single[name].value) for name in many}
        for single, many in zip(one, together, strict=True)
    ]
    add("fsync_threads_over_one", ratios, unit="times", comparable=comparable, notes=notes)
    batches = {
        "batch": sizes.batch,
        "count": sizes.fsync_many,
        "seconds": sizes.seconds,
        "durability": "fsync",
    }
    batching = session.names(lambda kind: kind.fsync and kind.batch_publish)
    _rate(session, "publish_many_fsync", throughput.PublishMany, batching, batches)
    acking = session.names(lambda kind: kind.fsync and kind.acks)
    acks = {"count": sizes.fsync, "seconds": sizes.seconds}
    _rate(session, "ack_fsync", throughput.AckFsync, acking, acks)


def syncs(session: Session, sizes: Sizes) -> None:
    """Syncs for each publish, get and ack, and bytes written for each publish."""
    synced: dict[str, Round] = {"publish": {}, "get": {}, "ack": {}}
    written: Round = {}
    notes = dict.fromkeys(session.contenders, "strace")
    for who, kind in session.contenders.items():
        if kind.fsync:
            for phase, seen in _traced(session, who, "fsync", sizes.phases_fsync).items():
                if phase in synced:
                    each = seen.syncs / sizes.phases_fsync
                    synced[phase][who] = Sample(each, count=sizes.phases_fsync)
        if who != OURS:
            seen_os = _traced(session, who, "os", sizes.phases_os).get("publish")
            # Nothing seen is not nothing written: lmdb-queue stores into a mapped file.
            if seen_os is not None and seen_os.writes:
                each = seen_os.written / sizes.phases_os
                written[who] = Sample(each, count=sizes.phases_os)
    calls: Round = {}
    if OURS in session.contenders:
        if OURS not in synced["publish"]:
            counted = _counted(session, "fsync", sizes.phases_fsync)
            for phase in synced:
                synced[phase] |= counted.get(f"{phase} syncs", {})
            notes[OURS] = "counted in the engine's file system"
        own = _counted(session, "os", sizes.written)
        written |= own.get("publish bytes", {})
        calls = own.get("publish calls", {})
    for phase, round_ in synced.items():
        if round_:
            _once(session, f"syncs_per_{phase}", round_, "syncs", notes)
    if written:
        through = {**notes, OURS: "written + mapped"}
        _once(session, "bytes_written_per_publish", written, "bytes", through)
    if calls:
        _once(session, "write_calls_per_publish", calls, "calls", {})


def at_rest(session: Session, sizes: Sizes) -> None:
    """Bytes of all files for each message after a close, and of pages dirtied until then."""
    parameters = {
        who: {"count": sizes.slow_at_rest if kind.linear else sizes.at_rest}
        for who, kind in session.contenders.items()
        if kind.name != FLOOR
    }
    result = session.interleave("bytes_at_rest", footprint.AtRest, parameters, rounds=1)
    if result:
        _once(session, "bytes_at_rest", result["at_rest"][0], "bytes", session.notes())
        _once(session, "bytes_allocated_at_rest", result["allocated"][0], "bytes", {})
    if "dirtied" in result:
        _once(session, "bytes_dirtied_by_batches", result["dirtied"][0], "bytes", {})


def drain(session: Session, sizes: Sizes) -> None:
    """Disk use after all messages came and went, nothing called."""
    parameters = {
        who: {
            "count": sizes.slow_drain if kind.linear else sizes.drain,
            "enough": ENOUGH_AFTER_DRAIN,
            "seconds": sizes.drain_seconds,
        }
        for who, kind in session.contenders.items()
        if kind.name != FLOOR
    }
    result = session.interleave("disk_after_drain", footprint.Drain, parameters, rounds=1)
    if result:
        notes = {
            who: f"after {result['seconds'][0][who].value:.2g} s; {sample.count:,} messages"
            for who, sample in result["bytes"][0].items()
        }
        _once(session, "disk_after_drain", result["bytes"][0], "bytes", notes)


def million(session: Session, sizes: Sizes) -> None:
    """A backlog of a million: its memory; opening it after a close, and after a SIGKILL."""
    who = session.names(lambda kind: kind.name != FLOOR and kind.max_backlog >= 1_000_000)
    stores = session.fresh()
    clean = _build_million(session, sizes, who, stores, kill=False)
    memory: Round = {
        name: Sample(sample.value / sample.count * 1e6 / _MEGABYTE, sample.cpu_us, sample.count)
        for name, sample in clean.items()
    }
    if memory:
        _once(session, "memory_per_million", memory, "MB", session.notes())
    opened = _open_rounds(session, sizes, {name: stores / name for name in clean})
    _report_open(session, opened, "open_clean")
    shutil.rmtree(stores, ignore_errors=True)
    stores = session.fresh()
    safe = [name for name in who if session.contenders[name].kill_safe]
    killed = _build_million(session, sizes, safe, stores, kill=True)
    opened = _open_rounds(session, sizes, {name: stores / name for name in killed})
    _report_open(session, opened, "open_killed")
    shutil.rmtree(stores, ignore_errors=True)


def memory(session: Session, sizes: Sizes) -> None:
    """Memory of a backlog of 100 million messages, calculated from two smaller ones."""
    if OURS in session.contenders:
        given = {OURS: {"count": sizes.million}}
        result = session.interleave("memory", footprint.BacklogMemory, given, rounds=1)
        if result:
            rounds = result["megabytes"][0]
            _once(session, "memory_per_100_million", rounds, "MB", {OURS: "calculated"})


def _build_million(
    session: Session, sizes: Sizes, names: list[str], stores: Path, kill: bool
) -> Round:
    built: Round = {}
    for who in names:
        parameters = {"count": sizes.million, "store": str(stores / who), "kill": kill}
        try:
            found = measure_once(who, session.fresh(), footprint.Million, parameters)
            built[who] = found["memory"]
        except ChildError as error:
            if kill and isinstance(error, ChildEndedError) and error.status == -signal.SIGKILL:
                built[who] = Sample(0.0, count=sizes.million)
            else:
                session.fail(who, "million", error)
    return built


def _open_rounds(
    session: Session, sizes: Sizes, stores: Mapping[str, Path]
) -> dict[str, list[Round]]:
    """Open a copy of each store in a new process, in rounds: opening and getting change it."""
    result: dict[str, list[Round]] = {}
    broken: set[str] = set()
    for number in range(session.rounds):
        for who, store in stores.items():
            if who in broken:
                continue
            directory = session.fresh()
            opened = directory / "copy"
            # cp keeps holes, which a store that maps a large sparse file is made of.
            subprocess.run(["cp", "-a", str(store), str(opened)], check=True)
            parameters = {"store": opened, "count": sizes.million}
            try:
                for key, sample in measure_once(who, directory, footprint.Open, parameters).items():
                    rounds = result.setdefault(key, [{} for _ in range(session.rounds)])
                    rounds[number][who] = sample
            except ChildError as error:
                session.fail(who, "open", error)
                broken.add(who)
            shutil.rmtree(directory, ignore_errors=True)
    return result


def _report_open(session: Session, opened: Mapping[str, Rounds], figure: str) -> None:
    if not opened:
        return
    comparable, notes = session.comparable(), session.notes()
    for key, name, unit, scale in (
        ("open_ms", "ms", "ms", 1.0),
        ("memory", "memory", "MB", 1 / _MEGABYTE),
        ("open_and_get_cpu_s", "cpu", "CPU s", 1.0),
        ("first_get_ms", "first_get", "ms", 1.0),
    ):
        rounds = [
            {who: Sample(sample.value * scale) for who, sample in round_.items()}
            for round_ in opened[key]
        ]
        session.report.add(
            f"{figure}_{name}",
            rounds,
            unit=unit,
            better="low",
            comparable=comparable,
            notes=notes,
        )


def _rate(
    session: Session,
    figure: str,
    task: type[Task],
    who: list[str],
    parameters: Mapping[str, Any],
) -> None:
    result = session.interleave(figure, task, dict.fromkeys(who, parameters))
    for rounds in result.values():
        session.report.add(figure, rounds, comparable=session.comparable(), notes=session.notes())


def _once(
    session: Session, figure: str, values: Round, unit: str, notes: Mapping[str, str]
) -> None:
    """Report what does not vary from round to round."""
    session.report.add(
        figure,
        [values],
        unit=unit,
        better="low",
        comparable=session.comparable(),
        notes=notes,
    )


def _counted(session: Session, durability: str, count: int) -> dict[str, Round]:
    """What the engine's own file system object counts, by phase and by what is counted."""
    parameters = {OURS: {"count": count, "durability": durability}}
    result = session.interleave("syncs", footprint.Counted, parameters, rounds=1)
    return {name: rounds[0] for name, rounds in result.items()}


def _traced(session: Session, who: str, durability: str, count: int) -> dict[str, trace.Phase]:
    """Run the phases under a tracer; nothing where there is none or where it may not trace."""
    directory = session.fresh()
    output = directory / "trace"
    prefix = trace.command(output)
    if prefix is None:
        return {}
    parameters = {"count": count, "durability": durability}
    try:
        measure_once(who, directory / "store", footprint.Phases, parameters, prefix)
    except ChildError as error:
        session.fail(who, "syncs", error)
        return {}
    with output.open() as lines:
        phases = trace.read(lines)
    shutil.rmtree(directory, ignore_errors=True)
    return phases


GROUPS: dict[str, Callable[[Session, Sizes], None]] = {
    "publish": publish,
    "keyed": keyed,
    "get_ack": get_ack,
    "publish_many": publish_many,
    "get_many": get_many,
    "large": large,
    "fsync": fsync,
    "syncs": syncs,
    "at_rest": at_rest,
    "drain": drain,
    "million": million,
    "memory": memory,
}
