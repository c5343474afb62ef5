"""Every figure, in groups that can be run alone; each group asks the workers, reports, and holds
what the engine promises against what was measured.

A bar whose figure is not in the run (a peer is not installed) is not judged.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import footprint, throughput
from benchmarks.bodies import RECORD_BYTES
from benchmarks.report import FLOOR, OURS, Bar, Found, Round, Sample
from benchmarks.session import Session, Task
from benchmarks.sizes import Sizes

_ENOUGH_AFTER_DRAIN = 1_000_000
"""Bytes: below this, disk use after a drain is back to nothing."""
_WITHOUT_KEY = "without key and headers"
_HAND_WRITTEN = "rocksdict"
_FLAT = 0.85
"""The share of its rate at the smallest backlog that a get keeps at every other, to be flat."""
_ROUNDS_OF_ONE_PROCESS = 7
_SYNCS = ("syncs_per_publish", "syncs_per_get", "syncs_per_ack")
_WRITTEN = {"bytes_written_per_publish": "bytes", "write_calls_per_publish": "calls"}


def _called(backlog: int) -> str:
    """A backlog as figures name it: ``10k``."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if backlog >= size:
            return f"{backlog // size}{letter}"
    return str(backlog)


def publish(session: Session, sizes: Sizes) -> None:
    """Single publishes a second; kill-safe on return."""
    given = {"count": sizes.publish, "seconds": sizes.seconds}
    _rate(session, "publish", throughput.publish, session.contenders, given)
    session.report.hold_ratio("publish", FLOOR, 3)
    session.report.hold_ratio("publish", _HAND_WRITTEN, 7)


def keyed(session: Session, sizes: Sizes) -> None:
    """Single publishes with a key and two headers a second, and the same bodies without."""
    result = _ours(session, "publish_keyed", throughput.publish_keyed, count=sizes.publish // 2)
    both = zip(result.get("keyed", []), result.get("plain", []), strict=True)
    rounds = [{OURS: one[OURS], _WITHOUT_KEY: other[OURS]} for one, other in both]
    session.report.add("publish_keyed", rounds)
    session.report.hold_ratio("publish_keyed", _WITHOUT_KEY, 0.5)


def large(session: Session, sizes: Sizes) -> None:
    """Messages of 8 and of 64 KiB: microseconds of a publish, and of a get with its ack; the floor
    is one plain write of as many bytes."""
    who = session.names(lambda kind: kind.name in (OURS, FLOOR))
    for kibibytes, count in ((8, sizes.large), (64, sizes.large // 4)):
        given = {"count": count, "kibibytes": kibibytes, "pause": True}
        parameters = dict.fromkeys(who, given)
        figure = f"{kibibytes}KiB"
        result = session.interleave(figure, throughput.large, parameters, _ROUNDS_OF_ONE_PROCESS)
        for name in ("publish", "get_ack"):
            times = [
                {one: replace(sample, value=1e6 / sample.value) for one, sample in round_.items()}
                for round_ in result.get(name, ())
            ]
            session.report.add(f"{name}_{figure}", times, unit="us", better="low")
    for figure, limit in (("publish_8KiB", 2.5), ("get_ack_8KiB", 2), ("publish_64KiB", 1.5)):
        bar = f"{figure} / a plain write of it"
        session.report.hold_ratio(figure, FLOOR, limit, bar, most=True)


def get_ack(session: Session, sizes: Sizes) -> None:
    """Single gets with acks a second, at each backlog; and what a backlog costs."""
    report = session.report
    for backlog in sizes.backlogs:
        given = {"backlog": backlog, "count": sizes.get_ack, "seconds": sizes.seconds}
        figure = f"get_ack_{_called(backlog)}"
        who = [name for name, kind in session.contenders.items() if kind.max_backlog >= backlog]
        _rate(session, figure, throughput.get_ack, who, given)
        report.hold_ratio(figure, FLOOR, 3)
        report.hold_ratio(figure, _HAND_WRITTEN, 10)
    # The figures above are taken minutes apart: too far for one to be held against another.
    ratios = _ours(
        session,
        "get_ack at each backlog",
        throughput.get_ack_backlogs,
        backlogs=sizes.backlogs,
        count=sizes.get_ack_backlogs,
        seconds=sizes.seconds,
    )
    names = {f"get_ack_{_called(int(other))}_over_1k": rounds for other, rounds in ratios.items()}
    for figure, rounds in names.items():
        report.add(figure, rounds, unit="times")
    flat = min((found.median for found in map(report.find, names) if found), default=None)
    bar = "get_ack: slowest backlog / smallest backlog"
    report.judge(Bar.at_least(bar, flat, _FLAT))


def publish_many(session: Session, sizes: Sizes) -> None:
    """Messages a second published in batches."""
    who = session.names(lambda kind: kind.batch_publish)
    _rate(session, "publish_many", throughput.publish_many, who, _batches(sizes, "os"))
    session.report.hold_ratio("publish_many", FLOOR, 0.2, "publish_many / one bulk write")
    session.report.hold_ratio("publish_many", _HAND_WRITTEN, 2)


def get_many(session: Session, sizes: Sizes) -> None:
    """Messages a second taken and acknowledged in batches, every body read."""
    given = {"batch": sizes.get_batch, "backlog": sizes.get_many, "seconds": sizes.seconds}
    who = session.names(lambda kind: kind.batch_get or kind.name == FLOOR)
    figure = "get_many_ack_many"
    _rate(session, figure, throughput.get_many, who, given)
    session.report.hold_ratio(figure, FLOOR, 1, f"{figure} / floor of single writes")
    session.report.hold_ratio(figure, _HAND_WRITTEN, 1.5)


def fsync(session: Session, sizes: Sizes) -> None:
    """The same with everything on disk on return; and threads that share a sync."""
    # Nobody waits for a peer that takes a millisecond for each.
    parameters = {
        name: {
            "single": sizes.fsync // share,
            "callers": sizes.fsync_threads,
            "each": sizes.fsync_each // share,
        }
        for name in session.names(lambda kind: kind.fsync)
        for share in (1 if name in (OURS, FLOOR) else 2,)
    }
    result = session.interleave("publish_fsync", throughput.publish_threads, parameters)
    one, together = result.get("one", []), result.get("together", [])
    session.add("publish_fsync", one)
    session.add(f"publish_fsync_{sizes.fsync_threads}_threads", together)
    ratios = [
        {name: Sample(many[name].value / single[name].value) for name in many}
        for single, many in zip(one, together, strict=True)
    ]
    session.add("fsync_threads_over_one", ratios, unit="times")
    who = session.names(lambda kind: kind.fsync and kind.batch_publish)
    batches = _batches(sizes, "fsync")
    _rate(session, "publish_many_fsync", throughput.publish_many, who, batches)
    who = session.names(lambda kind: kind.fsync and kind.acks)
    acks = {"count": sizes.fsync, "seconds": sizes.seconds}
    _rate(session, "ack_fsync", throughput.ack_fsync, who, acks)
    session.report.hold_least("fsync: 16 threads / one", "fsync_threads_over_one", 8)
    session.report.hold_least("fsync: batches", "publish_many_fsync", 1e6, "msg/s")
    session.report.hold_ratio("publish_many_fsync", _HAND_WRITTEN, 1.5)


def _batches(sizes: Sizes, durability: str) -> dict[str, Any]:
    count = sizes.publish_many if durability == "os" else sizes.fsync_many
    return {
        "batch": sizes.batch,
        "count": count,
        "seconds": sizes.seconds,
        "durability": durability,
    }


def syncs(session: Session, sizes: Sizes) -> None:
    """The engine's syncs for each publish, get and ack; bytes and calls that write a publish."""
    for durability, count, figures in (
        ("fsync", sizes.phases_fsync, dict.fromkeys(_SYNCS, "syncs")),
        ("os", sizes.written, _WRITTEN),
    ):
        given = {"count": count, "durability": durability}
        result = _ours(session, "syncs", footprint.counted, 1, **given)
        for name, unit in figures.items() if result else ():
            _once(session, name, result[name][0], unit)
    report = session.report
    for phase, expected in (("publish", 1.0), ("get", 0.0), ("ack", 1.0)):
        value = report.value(f"syncs_per_{phase}")
        # One sync too few breaks a promise as much as one too many.
        holds = None if value is None else abs(value - expected) <= 0.01
        report.judge(Bar(f"syncs per {phase}", value, "", f"= {expected:g}", holds))
    written = report.value("bytes_written_per_publish")
    records = None if written is None else written / RECORD_BYTES
    report.judge(Bar.at_most("bytes written per publish / record", records, 1.1))


def at_rest(session: Session, sizes: Sizes) -> None:
    """Bytes of all files for each message after a close, and of pages dirtied until then."""
    parameters = {
        who: {"count": sizes.slow_at_rest if kind.linear else sizes.at_rest}
        for who, kind in session.contenders.items()
        if kind.name != FLOOR
    }
    result = session.interleave("bytes_at_rest", footprint.at_rest, parameters, rounds=1)
    for name, figure in (
        ("at_rest", "bytes_at_rest"),
        ("allocated", "bytes_allocated_at_rest"),
        ("dirtied", "bytes_dirtied_by_batches"),
    ):
        if name in result:
            _once(session, figure, result[name][0], "bytes")
    session.report.hold_most("bytes at rest per message", "bytes_at_rest", RECORD_BYTES)


def drain(session: Session, sizes: Sizes) -> None:
    """Disk use after all messages came and went, nothing called."""
    parameters = {
        who: {
            "count": sizes.slow_drain if kind.linear else sizes.drain,
            "enough": _ENOUGH_AFTER_DRAIN,
            "seconds": sizes.drain_seconds,
        }
        for who, kind in session.contenders.items()
        if kind.name != FLOOR
    }
    result = session.interleave("disk_after_drain", footprint.drain, parameters, rounds=1)
    if result:
        notes = {
            who: f"after {result['seconds'][0][who].value:.2g} s; {sample.count:,} messages"
            for who, sample in result["bytes"][0].items()
        }
        _once(session, "disk_after_drain", result["bytes"][0], "bytes", notes=notes)
    limit = _ENOUGH_AFTER_DRAIN
    session.report.hold_most("disk after a drain", "disk_after_drain", limit, "bytes")


def million(session: Session, sizes: Sizes) -> None:
    """A backlog of a million: its memory; opening it after a close, and after a SIGKILL."""
    report = session.report
    who = session.names(lambda kind: kind.name != FLOOR and kind.max_backlog >= 1_000_000)
    for figure, kill in (("open_clean", False), ("open_killed", True)):
        stores = session.fresh()
        safe = [name for name in who if not kill or session.contenders[name].kill_safe]
        given = {
            name: {"count": sizes.million, "store": stores / name, "kill": kill} for name in safe
        }
        built = session.alone("million", footprint.million, given)
        if built and not kill:
            memory = {name: samples["memory"] for name, samples in built.items()}
            _once(session, "memory_per_million", memory, "MB")
        found = _open_rounds(session, sizes, stores, list(built))
        for name, unit in (("ms", "ms"), ("memory", "MB"), ("cpu", "CPU s"), ("first_get", "ms")):
            session.add(f"{figure}_{name}", found[name], unit=unit, better="low")
        shutil.rmtree(stores, ignore_errors=True)
    report.hold_most("open after a close", "open_clean_ms", 20, "ms")
    report.hold_most("memory of open after a close", "open_clean_memory", 5, "MB")
    report.hold_most("open after SIGKILL", "open_killed_cpu", 0.25, "CPU s")


def _open_rounds(session: Session, sizes: Sizes, stores: Path, names: list[str]) -> Found:
    """Open a copy of each store in a new process, in rounds: opening and getting change it."""
    found = Found()
    for _ in range(session.rounds):
        copies = session.fresh()
        for name in names:
            # cp keeps holes, which a store that maps a large sparse file is made of.
            subprocess.run(["cp", "-a", str(stores / name), str(copies)], check=True)
        given = {name: {"store": copies / name, "count": sizes.million} for name in names}
        opened = session.alone("open", footprint.reopen, given)
        for who, samples in opened.items():
            for key, sample in samples.items():
                found.note(key, who, sample)
        names = list(opened)
        shutil.rmtree(copies, ignore_errors=True)
    return found


def memory(session: Session, sizes: Sizes) -> None:
    """Memory of a backlog of 100 million messages, calculated from two smaller ones."""
    result = _ours(session, "memory", footprint.backlog_memory, 1, count=sizes.million)
    if result:
        notes = {OURS: "calculated"}
        _once(session, "memory_per_100_million", result["megabytes"][0], "MB", notes=notes)
    name = "memory of a backlog of 100 million"
    session.report.hold_most(name, "memory_per_100_million", 25, "MB")


def _rate(
    session: Session,
    figure: str,
    task: Task,
    who: Iterable[str],
    given: Mapping[str, Any],
) -> None:
    result = session.interleave(figure, task, dict.fromkeys(who, given))
    for rounds in result.values():
        session.add(figure, rounds)


def _ours(
    session: Session, what: str, task: Task, rounds: int = _ROUNDS_OF_ONE_PROCESS, **given: Any
) -> dict[str, list[Round]]:
    """Measure the engine alone, if it takes part."""
    who = {OURS: given} if OURS in session.contenders else {}
    return session.interleave(what, task, who, rounds)


def _once(session: Session, figure: str, values: Round, unit: str, **options: Any) -> None:
    """Report what does not vary from round to round."""
    session.add(figure, [values], unit=unit, better="low", **options)


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
