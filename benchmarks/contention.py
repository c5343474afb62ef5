"""Many threads on one engine or store, and what a flush does to the slowest calls.

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
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np

import qindex
import rocketstore
from benchmarks.bodies import Bodies, large_bodies
from benchmarks.peers import Floor
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import OURS, Report
from benchmarks.stopwatch import Found, Sample
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
_Opened = Callable[[Path], AbstractContextManager[Any]]
_Work = Callable[[Any, list[bytes]], int]


def rates(report: Report, root: Path, messages: int, rounds: int) -> None:
    """The rates of one thread and of eight, in turn: of queues, and of a rocketstore."""
    share = 2 * SIDES * SIDES
    small = Bodies().take(messages)
    large = large_bodies(_LARGE, messages // (20 * share) * share)
    sides, found = f"{SIDES} + {SIDES} threads", Found()
    cases: dict[str, tuple[_Opened, _Work, _Work, list[bytes]]] = {}
    for bodies, what in ((small, ""), (large, ", 8 KiB")):
        for count, queues in ((1, "1 queue"), (2 * SIDES, f"{2 * SIDES} queues")):
            name = f"{sides}, {queues}{what}"
            cases[name] = partial(_opened, count), _one_thread, _many_threads, bodies
    name = f"rocketstore: {sides}"
    cases[name] = rocketstore.open, _one_puts_and_gets, _many_put_and_get, small
    for name, (opened, one, many, bodies) in cases.items():
        for who, work in ((ONE, one), (OURS, many)) * rounds:
            gc.collect()
            with fresh(root) as path, opened(path) as store:
                with found.rate(name, who, len(bodies)):
                    count = work(store, bodies)
                if count != len(bodies):
                    raise RuntimeError(f"{count} of {len(bodies)} messages came")
    report.add_all(found)
    for name in list(cases)[:-1]:  # the rocketstore has no bar
        least = SHARE_OF_ONE_QUEUE if name.endswith("1 queue") else SHARE
        report.hold_ratio(name, ONE, least)


@contextmanager
def _opened(count: int, path: Path) -> Iterator[list[qindex.Queue]]:
    with qindex.open(path) as engine:
        queues = [engine.queue(f"q{number}") for number in range(count)]
        yield queues
        if any(map(len, queues)):
            raise RuntimeError("messages are left")


def _one_thread(queues: list[Any], bodies: list[bytes]) -> int:
    taken = 0
    share = len(bodies) // len(queues)
    for number, queue in enumerate(queues):
        for body in bodies[number * share : (number + 1) * share]:
            queue.publish(body)
    for queue in queues:
        while (delivery := queue.get(timeout=0)) is not None:
            queue.ack(delivery)
            taken += 1
    return taken


def _side_by_side(
    publish: Callable[[int], object], take: Callable[[int], int], wait: Callable[[int], int]
) -> int:
    """Publishers beside consumers, which take until all is published and nothing is there; gives
    the messages that they took. ``wait`` is what a consumer does that finds nothing."""
    all_published = threading.Event()

    def consume(number: int) -> int:
        taken = 0
        while True:
            ending = all_published.is_set()
            got = take(number)
            if not got and ending:
                return taken
            taken += got or wait(number)

    with ThreadPoolExecutor(2 * SIDES) as pool:
        taken = [pool.submit(consume, number) for number in range(SIDES)]
        try:
            list(pool.map(publish, range(SIDES)))
        finally:
            all_published.set()
    return sum(each.result() for each in taken)


def _many_threads(queues: list[Any], bodies: list[bytes]) -> int:
    """Each publisher has its share of the messages for its queues, which a consumer has, too."""
    all_mine = [queues[number::SIDES] or queues for number in range(SIDES)]
    share = len(bodies) // SIDES

    def publish(number: int) -> None:
        mine = all_mine[number]
        for at, body in enumerate(bodies[number * share : (number + 1) * share]):
            mine[at % len(mine)].publish(body)

    def take(number: int) -> int:
        return sum(map(_take_some, all_mine[number]))

    return _side_by_side(publish, take, lambda number: _take_some(all_mine[number][0], 0.005, 1))


def _take_some(queue: Any, timeout: float = 0, most: int = 100) -> int:
    """Take and ack messages; gives their number."""
    for number in range(most):
        delivery = queue.get(timeout=timeout)
        if delivery is None:
            return number
        queue.ack(delivery)
    return most


def _one_puts_and_gets(store: rocketstore.Store, bodies: list[bytes]) -> int:
    for number in range(SIDES):
        _put_all(store, bodies, number)
    return sum(_get_some(store, number, 0) for number in range(SIDES))


def _many_put_and_get(store: rocketstore.Store, bodies: list[bytes]) -> int:
    taken = [0] * SIDES

    def take(number: int) -> int:
        got = _get_some(store, number, taken[number])
        taken[number] += got
        return got

    def wait(number: int) -> int:
        sleep(0.001)
        return 0

    return _side_by_side(partial(_put_all, store, bodies), take, wait)


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
    found, figure = Found(), f"publish, p{_SLOW:g}"
    for _ in range(rounds):
        for kind in (QueueIndexDesign, Floor):
            with fresh(root) as path:
                contender = kind(path, "os")
                found.note(figure, kind.name, _slow_publish(contender, messages))
                if isinstance(contender, QueueIndexDesign) and not contender.queue.stats().flushes:
                    raise RuntimeError(f"no flush in {messages} messages: nothing was measured")
                contender.close()
    report.add_all(found, unit="us", better="low")
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
        rates(report, root, options.messages, options.rounds)
        tails(report, root, options.messages * _TAILS, min(options.rounds, 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
