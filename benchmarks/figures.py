"""Every figure, in groups that can be run alone; each group asks the workers, reports, and holds
what the engine promises against what was measured.

A bar whose figure is not in the run (a peer is not installed) is not judged.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace

from benchmarks import footprint, throughput
from benchmarks.bodies import RECORD_BYTES
from benchmarks.program import fresh
from benchmarks.report import FLOOR, OURS, Bar
from benchmarks.session import Session
from benchmarks.stopwatch import Found, Sample

_ENOUGH_AFTER_DRAIN = 1_000_000
"""Bytes: below this, disk use after a drain is back to nothing."""
_WITHOUT_KEY = "without key and headers"
_HAND_WRITTEN = "rocksdict"
_FLAT = 0.85
"""The share of its rate at the smallest backlog that a get keeps at every other, to be flat."""
_BACKLOGS = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1M": 1_000_000}
_ROUNDS_OF_ONE_PROCESS = 7
_THREADS = 16
_SYNCS = ("syncs_per_publish", "syncs_per_get", "syncs_per_ack")
_WRITTEN = {"bytes_written_per_publish": "bytes", "write_calls_per_publish": "calls"}


def publish(session: Session) -> None:
    """Single publishes a second; kill-safe on return."""
    count = session.count(200_000)
    session.rate("publish", throughput.publish, session.names(), count=count)
    session.report.hold_ratio("publish", FLOOR, 3)
    session.report.hold_ratio("publish", _HAND_WRITTEN, 7)


def keyed(session: Session) -> None:
    """Single publishes with a key and two headers a second, and the same bodies without."""
    count = session.count(100_000)
    found = session.ours(throughput.publish_keyed, _ROUNDS_OF_ONE_PROCESS, count=count)
    both = zip(found["keyed"], found["plain"], strict=True)
    rounds = [{OURS: one[OURS], _WITHOUT_KEY: other[OURS]} for one, other in both]
    session.report.add("publish_keyed", rounds)
    session.report.hold_ratio("publish_keyed", _WITHOUT_KEY, 0.5)


def large(session: Session) -> None:
    """Messages of 8 and of 64 KiB: microseconds of a publish, and of a get with its ack; the floor
    is one plain write of as many bytes."""
    who = session.names(lambda kind: kind.name in (OURS, FLOOR))
    for kibibytes, whole in ((8, 4_000), (64, 1_000)):
        given = {"count": session.count(whole), "kibibytes": kibibytes, "pause": True}
        found = session.interleave(throughput.large, who, _ROUNDS_OF_ONE_PROCESS, **given)
        for name in ("publish", "get_ack"):
            times = [
                {one: replace(sample, value=1e6 / sample.value) for one, sample in round_.items()}
                for round_ in found[name]
            ]
            session.report.add(f"{name}_{kibibytes}KiB", times, unit="us", better="low")
    for figure, limit in (("publish_8KiB", 2.5), ("get_ack_8KiB", 2), ("publish_64KiB", 1.5)):
        bar = f"{figure} / a plain write of it"
        session.report.hold_ratio(figure, FLOOR, limit, bar, most=True)


def get_ack(session: Session) -> None:
    """Single gets with acks a second, at each backlog; and what a backlog costs."""
    report = session.report
    backlogs = dict(list(_BACKLOGS.items())[: 2 if session.quick else None])
    for called, backlog in backlogs.items():
        who = [name for name, kind in session.contenders.items() if kind.max_backlog >= backlog]
        figure, count = f"get_ack_{called}", session.count(100_000)
        session.rate(figure, throughput.get_ack, who, backlog=backlog, count=count)
        report.hold_ratio(figure, FLOOR, 3)
        report.hold_ratio(figure, _HAND_WRITTEN, 10)
    # The figures above are taken minutes apart: too far for one to be held against another.
    ratios = session.ours(
        throughput.get_ack_backlogs,
        _ROUNDS_OF_ONE_PROCESS,
        backlogs=backlogs,
        count=session.count(50_000),
        seconds=session.seconds,
    )
    names = {f"get_ack_{called}_over_1k": rounds for called, rounds in ratios.items()}
    for figure, rounds in names.items():
        report.add(figure, rounds, unit="times")
    flat = min((found.median for found in map(report.find, names) if found), default=None)
    bar = "get_ack: slowest backlog / smallest backlog"
    report.judge(Bar.at_least(bar, flat, _FLAT))


def publish_many(session: Session) -> None:
    """Messages a second published in batches."""
    who = session.names(lambda kind: kind.batch_publish)
    given = {"count": session.count(1_000_000), "durability": "os"}
    session.rate("publish_many", throughput.publish_many, who, **given)
    session.report.hold_ratio("publish_many", FLOOR, 0.2, "publish_many / one bulk write")
    session.report.hold_ratio("publish_many", _HAND_WRITTEN, 2)


def get_many(session: Session) -> None:
    """Messages a second taken and acknowledged in batches, every body read."""
    who = session.names(lambda kind: kind.batch_get or kind.name == FLOOR)
    figure = "get_many_ack_many"
    session.rate(figure, throughput.get_many, who, backlog=session.count(200_000))
    session.report.hold_ratio(figure, FLOOR, 1, f"{figure} / floor of single writes")
    session.report.hold_ratio(figure, _HAND_WRITTEN, 1.5)


def fsync(session: Session) -> None:
    """The same with everything on disk on return; and threads that share a sync."""
    who = session.names(lambda kind: kind.fsync)
    given = {"single": session.count(2_000), "callers": _THREADS, "each": session.count(500)}
    found = session.interleave(throughput.publish_threads, who, **given)
    session.add("publish_fsync", found["one"])
    session.add(f"publish_fsync_{_THREADS}_threads", found["together"])
    ratios = [
        {name: Sample(many[name].value / single[name].value) for name in many}
        for single, many in zip(found["one"], found["together"], strict=True)
    ]
    session.add("fsync_threads_over_one", ratios, unit="times")
    who = session.names(lambda kind: kind.fsync and kind.batch_publish)
    batches = {"count": session.count(500_000), "durability": "fsync"}
    session.rate("publish_many_fsync", throughput.publish_many, who, **batches)
    who = session.names(lambda kind: kind.fsync and kind.acks)
    session.rate("ack_fsync", throughput.ack_fsync, who, count=session.count(2_000))
    session.report.hold_least("fsync: 16 threads / one", "fsync_threads_over_one", 8)
    session.report.hold_least("fsync: batches", "publish_many_fsync", 1e6, "msg/s")
    session.report.hold_ratio("publish_many_fsync", _HAND_WRITTEN, 1.5)


def syncs(session: Session) -> None:
    """The engine's syncs for each publish, get and ack; bytes and calls that write a publish."""
    report = session.report
    for durability, count, figures in (
        ("fsync", 100, dict.fromkeys(_SYNCS, "syncs")),
        ("os", session.count(20_000), _WRITTEN),
    ):
        found = session.ours(footprint.counted, 1, count=count, durability=durability)
        for name, unit in figures.items():
            session.add(name, found[name], unit=unit, better="low")
    for phase, expected in (("publish", 1.0), ("get", 0.0), ("ack", 1.0)):
        value = report.value(f"syncs_per_{phase}")
        # One sync too few breaks a promise as much as one too many.
        holds = None if value is None else abs(value - expected) <= 0.01
        report.judge(Bar(f"syncs per {phase}", value, "", f"= {expected:g}", holds))
    written = report.value("bytes_written_per_publish")
    records = None if written is None else written / RECORD_BYTES
    report.judge(Bar.at_most("bytes written per publish / record", records, 1.1))


def at_rest(session: Session) -> None:
    """Bytes of all files for each message after a close, and of pages dirtied until then."""
    who = session.names(lambda kind: kind.name != FLOOR)
    found = session.interleave(footprint.at_rest, who, 1, count=session.count(100_000))
    for name in ("bytes_at_rest", "bytes_allocated_at_rest", "bytes_dirtied_by_batches"):
        session.add(name, found[name], unit="bytes", better="low")
    session.report.hold_most("bytes at rest per message", "bytes_at_rest", RECORD_BYTES)


def drain(session: Session) -> None:
    """Disk use after all messages came and went, nothing called."""
    who = session.names(lambda kind: kind.name != FLOOR)
    limit = _ENOUGH_AFTER_DRAIN
    given = {"count": session.count(50_000), "enough": limit, "seconds": 5 * session.seconds}
    found = session.interleave(footprint.drain, who, 1, **given)
    notes = {
        who: f"after {took.value:.2g} s; {took.count:,} messages"
        for round_ in found["seconds"]
        for who, took in round_.items()
    }
    session.add("disk_after_drain", found["bytes"], unit="bytes", better="low", notes=notes)
    session.report.hold_most("disk after a drain", "disk_after_drain", limit, "bytes")


def million(session: Session) -> None:
    """A backlog of a million: its memory; opening it after a close, and after a SIGKILL."""
    report, count = session.report, session.count(1_000_000)
    who = session.names(lambda kind: kind.name != FLOOR and kind.max_backlog >= 1_000_000)
    for figure, kill in (("open_clean", False), ("open_killed", True)):
        found = Found()
        with fresh(session.directory) as stores:
            safe = [name for name in who if not kill or session.contenders[name].kill_safe]
            built = session.alone(footprint.million, safe, count=count, stores=stores, kill=kill)
            if built and not kill:
                memory = {name: samples["memory"] for name, samples in built.items()}
                session.add("memory_per_million", [memory], unit="MB", better="low")
            for _ in range(session.rounds):
                with fresh(session.directory) as copies:
                    # Opening changes a store. cp keeps holes, of which some are made.
                    subprocess.run(["cp", "-a", f"{stores}/.", str(copies)], check=True)
                    built = session.alone(footprint.reopen, built, count=count, stores=copies)
                for name, samples in built.items():
                    for key, sample in samples.items():
                        found.note(key, name, sample)
        for name, unit in (("ms", "ms"), ("memory", "MB"), ("cpu", "CPU s"), ("first_get", "ms")):
            session.add(f"{figure}_{name}", found[name], unit=unit, better="low")
    report.hold_most("open after a close", "open_clean_ms", 20, "ms")
    report.hold_most("memory of open after a close", "open_clean_memory", 5, "MB")
    report.hold_most("open after SIGKILL", "open_killed_cpu", 0.25, "CPU s")


def memory(session: Session) -> None:
    """Memory of a backlog of 100 million messages, calculated from two smaller ones."""
    found = session.ours(footprint.backlog_memory, 1, count=session.count(1_000_000))
    figure, notes = "memory_per_100_million", {OURS: "calculated"}
    session.add(figure, found["megabytes"], unit="MB", better="low", notes=notes)
    session.report.hold_most("memory of a backlog of 100 million", figure, 25, "MB")


GROUPS: dict[str, Callable[[Session], None]] = {
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
