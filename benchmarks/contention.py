"""Many threads on one engine or store, and what a flush does to the slowest calls.

    python -m benchmarks.contention [--messages 200000] [--rounds 9] [--dir DIR] [--json FILE]

prints one JSON line for each figure and each bar on standard output (or into FILE), and tables on
standard error.

* ``threads``: messages a second that are published, delivered and acknowledged, one call each: by
  one thread that publishes all and then takes all, and by four that publish beside four that
  consume, on one queue and on eight. The bar is the share of the one thread's rate. The same of
  messages of 8 KiB, a twentieth of them, which are in the message store; and of a rocketstore with
  four queues: puts of one message, gets of up to 32 with every body read.
* ``tails``: how long slow publishes take, in microseconds, while one thread publishes to a queue as
  fast as it can, and the flush of each 65,536 entries goes on beside it; and the same of an
  ``os.write`` of as many bytes (the floor: what the machine alone does to a call).
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np

import qindex
import rocketstore
from benchmarks.bodies import Bodies
from benchmarks.peers import Floor
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS, Report, Round, Sample
from benchmarks.stopwatch import Stopwatch, threads
from qindex.compare.contender import Fifo
from qindex.compare.designs import QueueIndexDesign

SIDES = 4
"""Threads that publish, and as many that consume."""
SHARE_OF_ONE_QUEUE = 0.9
SHARE = 0.7
TAIL_US = 20_000
ONE = "one thread"
_TAILS = 20
"""A tail is measured over so many times the messages of a rate."""
_AT_ONCE = 10_000
_SLOW = 99.9
_LARGE = 8 << 10


def queues(report: Report, root: Path, messages: int, rounds: int) -> None:
    """The rates of one thread and of eight, in turn."""
    small, large = Bodies().take(messages), _large_bodies(messages)
    for bodies, count in ((small, 1), (small, 8), (large, 1), (large, 8)):
        name = f"{SIDES} + {SIDES} threads, {count} queue{'s' if count > 1 else ''}"
        name += ", 8 KiB" * (bodies is large)
        one, many = partial(_run, count, _one_thread), partial(_run, count, _many_threads)
        _in_turn(report, name, root, bodies, rounds, one, many)
        share = SHARE_OF_ONE_QUEUE if bodies is small and count == 1 else SHARE
        report.hold_ratio(name, ONE, share)


def _large_bodies(messages: int) -> list[bytes]:
    few = [os.urandom(_LARGE) for _ in range(64)]
    share = 2 * SIDES * SIDES
    return list(islice(cycle(few), messages // (20 * share) * share))


def stores(report: Report, root: Path, messages: int, rounds: int) -> None:
    """The same of a rocketstore."""
    name = f"rocketstore: {SIDES} + {SIDES} threads"
    one, many = partial(_run_store, _one_puts_and_gets), partial(_run_store, _many_put_and_get)
    _in_turn(report, name, root, Bodies().take(messages), rounds, one, many)


Run = Callable[[Path, list[bytes]], Sample]


def _in_turn(
    report: Report, name: str, root: Path, bodies: list[bytes], rounds: int, one: Run, many: Run
) -> None:
    found: list[Round] = [{} for _ in range(rounds)]
    for samples in found:
        for who, run in ((ONE, one), (OURS, many)):
            gc.collect()
            with fresh(root) as path:
                samples[who] = run(path, bodies)
    report.add(name, found)


def _run(queues: int, work: Callable[..., int], path: Path, bodies: list[bytes]) -> Sample:
    watch = Stopwatch()
    with qindex.open(path) as engine:
        count = work([engine.queue(f"q{number}") for number in range(queues)], bodies, watch)
        left = sum(map(len, (engine.queue(name) for name in engine.queue_names())))
    return _rate(watch, count, len(bodies), left)


def _run_store(work: Callable[..., int], path: Path, bodies: list[bytes]) -> Sample:
    watch = Stopwatch()
    with rocketstore.open(path) as store:
        count = work(store, bodies, watch)
    return _rate(watch, count, len(bodies))


def _rate(watch: Stopwatch, count: int, expected: int, left: int = 0) -> Sample:
    if count != expected or left:
        raise RuntimeError(f"{count} of {expected} messages came, {left} are left")
    return watch.rate(count)


def _one_thread(queues: list[Any], bodies: list[bytes], watch: Stopwatch) -> int:
    taken = 0
    share = len(bodies) // len(queues)
    with watch.running():
        for number, queue in enumerate(queues):
            for body in bodies[number * share : (number + 1) * share]:
                queue.publish(body)
        for queue in queues:
            while (delivery := queue.get(timeout=0)) is not None:
                queue.ack(delivery)
                taken += 1
    return taken


def _many_threads(queues: list[Any], bodies: list[bytes], watch: Stopwatch) -> int:
    """Each publisher has its share of the messages for its queues; each consumer takes from its
    queues until all is published and they are empty."""
    taken = [0] * SIDES
    share = len(bodies) // SIDES
    all_published = threading.Event()

    def publish(number: int) -> None:
        mine = queues[number::SIDES] or queues
        for at, body in enumerate(bodies[number * share : (number + 1) * share]):
            mine[at % len(mine)].publish(body)

    def consume(number: int) -> None:
        mine = queues[number::SIDES] or queues
        while True:
            ending = all_published.is_set()
            got = sum(map(_take_some, mine))
            taken[number] += got
            if not got and ending:
                return
            if not got and (delivery := mine[0].get(timeout=0.005)) is not None:
                mine[0].ack(delivery)
                taken[number] += 1

    _side_by_side(publish, consume, all_published, watch)
    return sum(taken)


def _side_by_side(
    publish: Callable[[int], None],
    consume: Callable[[int], None],
    all_published: threading.Event,
    watch: Stopwatch,
) -> None:
    with watch.running(), threads(consume, SIDES):
        try:
            with threads(publish, SIDES):
                pass  # they are waited for
        finally:
            all_published.set()


def _take_some(queue: Any) -> int:
    """Take and ack up to a hundred messages; gives their number."""
    for number in range(100):
        delivery = queue.get(timeout=0)
        if delivery is None:
            return number
        queue.ack(delivery)
    return 100


def _one_puts_and_gets(store: rocketstore.Store, bodies: list[bytes], watch: Stopwatch) -> int:
    with watch.running():
        for number in range(SIDES):
            _put_all(store, bodies, number)
        return sum(_get_some(store, number, 0) for number in range(SIDES))


def _many_put_and_get(store: rocketstore.Store, bodies: list[bytes], watch: Stopwatch) -> int:
    taken = [0] * SIDES
    all_put = threading.Event()

    def consume(number: int) -> None:
        while True:
            ending = all_put.is_set()
            got = _get_some(store, number, taken[number])
            taken[number] += got
            if not got:
                if ending:
                    return
                sleep(0.001)

    _side_by_side(partial(_put_all, store, bodies), consume, all_put, watch)
    return sum(taken)


def _put_all(store: rocketstore.Store, bodies: list[bytes], number: int) -> None:
    for body in bodies[number::SIDES]:
        store.put("bench", body, queue_id=number)


def _get_some(store: rocketstore.Store, queue_id: int, at: int) -> int:
    """Get what there is in a queue from an ordinal on; gives the number of messages."""
    taken = 0
    while bodies := store.get("bench", queue_id, at + taken, 32).bodies:
        taken += len(bodies)
    return taken


def tails(report: Report, root: Path, messages: int, rounds: int) -> None:
    """The latencies of single publishes."""
    found: list[Round] = [{} for _ in range(rounds)]
    for samples in found:
        for kind in (QueueIndexDesign, Floor):
            with fresh(root) as path:
                contender = kind(path, "os")
                samples[kind.name] = _slow_publish(contender, messages)
                if isinstance(contender, QueueIndexDesign) and not contender.queue.stats().flushes:
                    raise RuntimeError(f"no flush in {messages} messages: nothing was measured")
                contender.close()
    figure = f"publish, p{_SLOW:g}"
    report.add(figure, found, unit="us", better="low")
    report.hold_most(f"{figure}, while flushing", figure, TAIL_US, "us")


def _slow_publish(contender: Fifo, messages: int) -> Sample:
    """The time, in microseconds, that one publish in a thousand takes longer than."""
    took = np.empty(messages, np.int64)
    bodies, publish = Bodies(), contender.publish
    for done in range(0, messages, _AT_ONCE):
        some = contender.records(bodies.take(min(_AT_ONCE, messages - done)))
        times = [perf_counter_ns()]
        for body in some:
            publish(body)
            times.append(perf_counter_ns())
        took[done : done + len(some)] = np.diff(times)
    return Sample(float(np.percentile(took, _SLOW)) / 1e3, count=messages)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    parser = common_parser("contention", __doc__, rounds=9)
    parser.add_argument("--messages", type=int, default=200_000, help="of a rate; tails take 20x")
    options = parse_common(parser, arguments)
    if options.messages < 640 or options.messages % (8 * SIDES):
        parser.error(f"--messages must be a multiple of {8 * SIDES}, and at least 640")
    with reporting(options) as (report, root):
        queues(report, root, options.messages, options.rounds)
        stores(report, root, options.messages, options.rounds)
        tails(report, root, options.messages * _TAILS, min(options.rounds, 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
