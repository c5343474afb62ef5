"""Beside RabbitMQ's own index and message store modules in the Erlang VM, on the same work.

It needs Debian's ``rabbitmq-server`` 3.10, and ends with status 2 and the reason where that is not
installed.

Messages are of 100 bytes and persistent, and both sides have them before the clock starts. A
single call is one publish, one deliver (``get``, and the body is there) or one ack; a batch is a
thousand. The module of RabbitMQ has no batches of publishes, so ours are held against its single
calls; what it does with a thousand delivers and acks in one list stands beside it. ``recovery`` is
the opening of a queue that a kill left, in a new process: RabbitMQ's walk for the reference
counts and the recovery of its index. ``store`` figures are 64 KiB messages in the shared message
store, without the index. Both sides do it in the page cache, as they do by default.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import qindex
from benchmarks.bodies import BODY_BYTES, Bodies
from benchmarks.erlang_vm import ErlangError, ErlangVM, node_paths
from benchmarks.footprint import million, reopen
from benchmarks.large_messages import BODY_BYTES as STORED_BYTES
from benchmarks.msgstore import ids, make_records, open_store
from benchmarks.program import common_parser, console, fresh, parse_common, reporting
from benchmarks.report import OURS, Report
from benchmarks.session import Session
from benchmarks.stopwatch import Found, Sample, Stopwatch
from qindex.compare.designs import QueueIndexDesign

RABBITMQ = "rabbitmq"
BATCH = 1000
STORED = 1000
SINGLE = 3.0
BATCHES = 10.0
RECOVERY = 0.2


class _Calls(NamedTuple):
    """The calls on a new queue, single or a thousand messages at a time, and what is published."""

    parts: Sequence[Any]
    publish: Callable[[Any], object]
    get: Callable[[], Any]
    ack: Callable[[Any], object]


def _calls(queue: Any, bodies: list[bytes], batched: bool) -> _Calls:
    if not batched:
        return _Calls(bodies, queue.publish, queue.get, queue.ack)
    parts = [bodies[at : at + BATCH] for at in range(0, len(bodies), BATCH)]
    return _Calls(parts, queue.publish_many, partial(queue.get_many, BATCH), queue.ack_many)


def _publish_deliver(calls: _Calls, watch: Stopwatch) -> None:
    """Publish, and get it."""
    parts, publish, get, _ = calls
    taken = []
    with watch.running():
        for part in parts:
            publish(part)
            taken.append(get())
    delivered = [
        each.body if isinstance(part, bytes) else each.bodies
        for part, each in zip(parts, taken, strict=True)
    ]
    assert delivered == parts


def _publish_deliver_ack(calls: _Calls, watch: Stopwatch) -> None:
    """Publish, get it, and ack it."""
    parts, publish, get, ack = calls
    with watch.running():
        for part in parts:
            publish(part)
            ack(get())


def _ack(calls: _Calls, watch: Stopwatch) -> None:
    """Ack what was delivered before."""
    parts, publish, get, ack = calls
    for part in parts:
        publish(part)
    taken = [get() for _ in parts]
    with watch.running():
        for each in taken:
            ack(each)


_RATES = {
    "publish_deliver": _publish_deliver,
    "publish_deliver_ack": _publish_deliver_ack,
    "ack": _ack,
}
"""What is done with a new queue, in single calls and in batches."""


def rates(report: Report, root: Path, vm: ErlangVM, messages: int, rounds: int) -> None:
    """Publish, deliver and ack: single calls and batches of either side, in turn."""
    bodies = Bodies().take(messages)

    def ours(work: Callable[[_Calls, Stopwatch], None], *, batched: bool) -> Sample:
        watch = Stopwatch()
        with fresh(root) as path, qindex.open(path) as engine:
            work(_calls(engine.queue("bench"), bodies, batched), watch)
        return watch.rate(messages)

    gc.collect()
    gc.freeze()
    found = Found()
    vm.figures("rates", "warm", messages, BODY_BYTES)
    for number in range(rounds):
        os.sync()
        theirs = vm.figures("rates", f"single-{number}", messages, BODY_BYTES)
        lists = vm.figures("batches", f"lists-{number}", messages, BODY_BYTES, BATCH)
        os.sync()
        for name, work in _RATES.items():
            rate, together = theirs[name].sample(messages), f"{name}, batches"
            found.note(name, RABBITMQ, rate)
            found.note(name, OURS, ours(work, batched=False))
            found.note(together, RABBITMQ, rate)
            found.note(together, OURS, ours(work, batched=True))
            if name in lists:
                found.note(together, f"{RABBITMQ}, in lists", lists[name].sample(messages))
    report.add_all(found, comparable=[RABBITMQ])
    for name in found:
        report.hold_ratio(name, RABBITMQ, BATCHES if name.endswith("batches") else SINGLE)


def recovery(report: Report, root: Path, code: list[Path], entries: int, rounds: int) -> None:
    """Open what a kill left, in a new process each time."""
    found = Found()
    for _ in range(rounds):
        with fresh(root) as path:
            found.note("recovery", OURS, _ours_recovers(path, entries, report))
            found.note("recovery", RABBITMQ, _theirs(path, code, entries))
    report.add_all(found, unit="s", better="low", comparable=[RABBITMQ])
    report.hold_ratio("recovery", RABBITMQ, RECOVERY, most=True)


def _ours_recovers(path: Path, entries: int, report: Report) -> Sample:
    session = Session({OURS: QueueIndexDesign}, path, 1, report)
    session.alone(million, [OURS], count=entries, stores=path, kill=True)
    os.sync()  # the opening is not to pay for the pages of the filling
    found = session.alone(reopen, [OURS], count=entries, stores=path)[OURS]
    cpu = found["open_cpu"].value * 1e6 / entries
    return Sample(found["ms"].value / 1e3, cpu, entries)


def _theirs(path: Path, code: list[Path], entries: int) -> Sample:
    with ErlangVM(path / RABBITMQ, code) as vm:
        vm.figures("fill", "bench", entries, BODY_BYTES)
        vm.kill()
    os.sync()
    with ErlangVM(path / RABBITMQ, code) as vm:
        figures = vm.figures("recover", "bench")
    if figures["entries"].wall != entries:
        raise ErlangError(f"{figures['entries'].wall} of {entries} entries were recovered")
    walk, recover = figures["walk"], figures["recover"]
    return Sample((walk.wall + recover.wall) / 1e6, (walk.cpu + recover.cpu) / entries, entries)


def store(report: Report, root: Path, vm: ErlangVM, rounds: int) -> None:
    """Write, read and remove large messages in the shared store alone."""
    found = Found()
    for _ in range(rounds):
        os.sync()
        with fresh(root) as path:
            theirs = vm.figures("store", path / "theirs", STORED, STORED_BYTES)
            os.sync()
            _our_store(found, path / "ours")
        for name in list(found):
            found.note(name, RABBITMQ, theirs[name].sample(STORED))
    report.add_all(found, comparable=[RABBITMQ])


def _our_store(found: Found, path: Path) -> None:
    path.mkdir(parents=True)
    messages = list(zip(ids(STORED), islice(cycle(make_records(STORED)), STORED), strict=True))
    with open_store(path) as messages_store:
        with found.rate("store_write", OURS, STORED):
            for msg_id, body in messages:
                messages_store.write(msg_id, body)
        with found.rate("store_read", OURS, STORED):
            read = [messages_store.read(msg_id) for msg_id, _ in messages]
        assert read == [body for _, body in messages]
        with found.rate("store_remove", OURS, STORED):
            for msg_id, _ in messages:
                messages_store.remove((msg_id,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    parser = common_parser("rabbitmq", __doc__, rounds=3)
    parser.add_argument("--messages", type=int, default=100_000, help="of a rate")
    parser.add_argument("--entries", type=int, default=1_000_000, help="of the killed queue")
    options = parse_common(parser, arguments)
    version, code, reason = node_paths()
    if reason:
        console().print(f"nothing to compare with: {reason}", markup=False)
        return 2
    with reporting(options) as (report, root):
        report.say(f"beside the modules of RabbitMQ {version} in the Erlang VM")
        with ErlangVM(root / "vm", code) as vm:
            rates(report, root, vm, options.messages, options.rounds)
            store(report, root, vm, options.rounds)
        recovery(report, root, code, options.entries, 1 + options.rounds // 3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
