"""Beside RabbitMQ's own index and message store modules in the Erlang VM, on the same work.

    python -m benchmarks.rabbitmq [--messages 100000] [--entries 1000000] [--rounds 3]
                                  [--dir DIR] [--json FILE]

prints one JSON line for each figure and each bar on standard output (or into FILE), and tables on
standard error. It needs Debian's ``rabbitmq-server`` 3.10, and ends with status 2 and the reason
where that is not installed.

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
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import qindex
from benchmarks.bodies import Bodies
from benchmarks.erlang_vm import ErlangError, ErlangVM, node_paths
from benchmarks.footprint import million, reopen
from benchmarks.msgstore import ids, make_records, open_store
from benchmarks.program import common_parser, console, fresh, parse_common, reporting
from benchmarks.report import OURS, Found, Report, Sample
from benchmarks.session import measure_once
from benchmarks.stopwatch import Stopwatch
from qindex.compare.child import ChildError

RABBITMQ = "rabbitmq"
BATCH = 1000
BODY_BYTES = 100
STORED_BYTES = 64 * 1024
STORED = 1000
SINGLE = 3.0
BATCHES = 10.0
RECOVERY = 0.2


def _publish_deliver(queue: Any, bodies: list[bytes], watch: Stopwatch) -> None:
    """Publish one, get one."""
    publish, get = queue.publish, queue.get
    taken: list[Any] = []
    keep = taken.append
    with watch.running():
        for body in bodies:
            publish(body)
            keep(get(timeout=0))
    assert [each.body for each in taken] == bodies


def _publish_deliver_ack(queue: Any, bodies: list[bytes], watch: Stopwatch) -> None:
    """Publish one, get one, ack it."""
    publish, get, ack = queue.publish, queue.get, queue.ack
    with watch.running():
        for body in bodies:
            publish(body)
            ack(get(timeout=0))
    assert not len(queue)


def _ack(queue: Any, bodies: list[bytes], watch: Stopwatch) -> None:
    """Ack what was delivered before, one by one."""
    queue.publish_many(bodies)
    taken = queue.get_many(len(bodies))
    ack = queue.ack
    with watch.running():
        for delivery in taken:
            ack(delivery)


def _publish_deliver_batches(queue: Any, bodies: list[bytes], watch: Stopwatch) -> None:
    """Publish a thousand, get a thousand."""
    taken = []
    with watch.running():
        for at in range(0, len(bodies), BATCH):
            queue.publish_many(bodies[at : at + BATCH])
            taken.append(queue.get_many(BATCH))
    assert [each.body for batch in taken for each in batch] == bodies


def _publish_deliver_ack_batches(queue: Any, bodies: list[bytes], watch: Stopwatch) -> None:
    """Publish a thousand, get a thousand, ack them."""
    with watch.running():
        for at in range(0, len(bodies), BATCH):
            queue.publish_many(bodies[at : at + BATCH])
            queue.ack_many(queue.get_many(BATCH))
    assert not len(queue)


def _ack_batches(queue: Any, bodies: list[bytes], watch: Stopwatch) -> None:
    """Ack what was delivered before, a thousand at a time."""
    queue.publish_many(bodies)
    taken = queue.get_many(len(bodies))
    batches = [taken[at : at + BATCH] for at in range(0, len(taken), BATCH)]
    with watch.running():
        for batch in batches:
            queue.ack_many(batch)


_RATES = {
    "publish_deliver": (_publish_deliver, _publish_deliver_batches),
    "publish_deliver_ack": (_publish_deliver_ack, _publish_deliver_ack_batches),
    "ack": (_ack, _ack_batches),
}
"""What is done with a new queue: in single calls, and in batches."""


def rates(report: Report, root: Path, vm: ErlangVM, messages: int, rounds: int) -> None:
    """Publish, deliver and ack: single calls and batches of either side, in turn."""
    bodies = Bodies().take(messages)

    def ours(work: Callable[[Any, list[bytes], Stopwatch], None]) -> Sample:
        watch = Stopwatch()
        with fresh(root) as path, qindex.open(path) as engine:
            work(engine.queue("bench"), bodies, watch)
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
        for name, (single, batches) in _RATES.items():
            rate, together = theirs[name].sample(messages), f"{name}, batches"
            found.note(name, RABBITMQ, rate)
            found.note(name, OURS, ours(single))
            found.note(together, RABBITMQ, rate)
            found.note(together, OURS, ours(batches))
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
            found.note("recovery", OURS, _ours_recovers(path, entries))
            found.note("recovery", RABBITMQ, _theirs(path, code, entries))
    report.add_all(found, unit="s", better="low", comparable=[RABBITMQ])
    report.hold_ratio("recovery", RABBITMQ, RECOVERY, most=True)


def _ours_recovers(path: Path, entries: int) -> Sample:
    with suppress(ChildError):
        measure_once(million, OURS, path / "fill", count=entries, stores=path, kill=True)
    os.sync()  # the opening is not to pay for the pages of the filling
    found = measure_once(reopen, OURS, path / "open", count=entries, stores=path)
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
            ours = _our_store(path / "ours")
        for name, sample in ours.items():
            found.note(name, RABBITMQ, theirs[name].sample(STORED))
            found.note(name, OURS, sample)
    report.add_all(found, comparable=[RABBITMQ])


def _our_store(path: Path) -> dict[str, Sample]:
    path.mkdir(parents=True)
    messages = list(zip(ids(STORED), islice(cycle(make_records(STORED)), STORED), strict=True))
    write, read, remove = Stopwatch(), Stopwatch(), Stopwatch()
    with open_store(path) as messages_store:
        with write.running():
            for msg_id, body in messages:
                messages_store.write(msg_id, body)
        with read.running():
            found = [messages_store.read(msg_id) for msg_id, _ in messages]
        assert found == [body for _, body in messages]
        with remove.running():
            for msg_id, _ in messages:
                messages_store.remove((msg_id,))
    watches = {"store_write": write, "store_read": read, "store_remove": remove}
    return {name: watch.rate(STORED) for name, watch in watches.items()}


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
