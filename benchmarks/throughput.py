"""The tasks that measure rates: publish, get and ack, batches, and the same with fsync."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from benchmarks.bodies import Bodies, large_bodies
from benchmarks.peers import CONTENDERS, Floor
from benchmarks.stopwatch import Round, Sample, Stopwatch
from benchmarks.tasks import build, fresh_store, settle
from qindex.compare.contender import Fifo
from qindex.compare.designs import QueueIndexDesign

_WARM_UP = 200
_COMPARED = 256
"""Large messages that are taken before they are compared."""
_PUBLISHED = 10_000
_TAKEN = 1_000
_TURN = 5_000
"""Messages after which two that take turns in one process change."""


def publish(who: str, directory: str, count: int, seconds: float) -> Round:
    """Single publishes into a fresh store, until ``count`` or ``seconds`` are reached."""
    with fresh_store(who, directory) as contender:
        bodies, watch = Bodies(), Stopwatch()
        contender.publish_each(contender.records(bodies.take(min(_WARM_UP, count))))
        gc.collect()
        for size in watch.chunks(count, seconds, 64, 16_384):
            chunk = contender.records(bodies.take(size))
            with watch.running(size):
                contender.publish_each(chunk)
    return {"publish": watch.rate()}


def publish_keyed(who: str, directory: str, count: int) -> Round:
    """``count`` single publishes with a key and two headers, and as many without, in turns."""
    with fresh_store(who, directory) as contender:
        assert isinstance(contender, QueueIndexDesign)
        publish = contender.queue.publish
        headers = {"kind": "new", "attempt": 1}

        def publish_keyed(bodies: Sequence[bytes]) -> None:
            for body in bodies:
                publish(body, key="orders.new", headers=headers)

        bodies = Bodies()
        keyed, plain = Stopwatch(), Stopwatch()
        loops = ((plain, contender.publish_each), (keyed, publish_keyed))
        for _, loop in loops:
            loop(bodies.take(_WARM_UP))
        gc.collect()
        for _ in range(0, count, _TURN):
            for watch, loop in loops:
                chunk = bodies.take(_TURN)
                with watch.running():
                    loop(chunk)
    return {"keyed": keyed.rate(count), "plain": plain.rate(count)}


def large(who: str, directory: str, count: int, kibibytes: int, *, pause: bool = False) -> Round:
    """Single publishes of so many KiB, then gets with acks; and both together. With ``pause``
    what a publish leaves to the background is done before the gets, and is in no figure. The
    floor's plain write is held against either."""
    with fresh_store(who, directory) as contender:
        bodies = large_bodies(kibibytes << 10, count)
        contender.publish_each(bodies[:64])
        contender.get_ack_each(len(bodies[:64]))
        publish, get_ack, both = Stopwatch(), Stopwatch(), Stopwatch()
        gc.collect()
        with both.running(), publish.running(count):
            contender.publish_each(bodies)
        if isinstance(contender, Floor):
            return dict.fromkeys(("publish", "get_ack"), publish.rate())
        if pause:
            settle()
        # In parts, so that what is compared does not fill the memory.
        for first in range(0, count, _COMPARED):
            sent = bodies[first : first + _COMPARED]
            with both.running(), get_ack.running(len(sent)):
                delivered = contender.get_ack_each(len(sent))
            if delivered != sent:
                raise RuntimeError("a message is not the one that was published")
    watches = {"publish": publish, "get_ack": get_ack, "publish_get_ack": both}
    return {name: watch.rate(count) for name, watch in watches.items()}


def publish_threads(who: str, directory: str, single: int, callers: int, each: int) -> Round:
    """One thread publishes ``single`` messages with fsync, then ``callers`` threads ``each``."""
    with fresh_store(who, directory, "fsync") as contender:
        if not isinstance(contender, Floor | QueueIndexDesign):
            # Nobody waits for a peer that takes a millisecond for each.
            single, each = single // 2, each // 2
        bodies, one = Bodies(), Stopwatch()
        contender.publish_each(contender.records(bodies.take(20)))
        alone = contender.records(bodies.take(single))
        gc.collect()
        with one.running(single):
            contender.publish_each(alone)
        result = {"one": one.rate()}
        if contender.threads:
            shares = [contender.records(bodies.take(each)) for _ in range(callers)]
            together = Stopwatch()
            with together.running(callers * each), ThreadPoolExecutor(callers) as pool:
                list(pool.map(contender.publish_each, shares))
            result["together"] = together.rate()
    return result


def publish_many(who: str, directory: str, count: int, seconds: float, durability: str) -> Round:
    """Batches of 10,000 messages into a fresh store. The floor makes one write of each."""
    with fresh_store(who, directory, durability) as contender:
        bodies, watch = Bodies(), Stopwatch()
        contender.publish_many(contender.records(bodies.take(_WARM_UP)))
        gc.collect()
        for size in watch.chunks(count, seconds, _PUBLISHED, _PUBLISHED):
            records = contender.records(bodies.take(size))
            if isinstance(contender, Floor):
                # Joining the records is no part of the bound.
                data = b"".join(records)
                with watch.running(size):
                    contender.publish(data)
            else:
                with watch.running(size):
                    contender.publish_many(records)
    return {"publish_many": watch.rate()}


@cache
def _backlog(who: str, directory: str, backlog: int) -> tuple[Fifo, Bodies, Bodies]:
    """A store with a backlog, which stays for the next round; what is published next, and what is
    expected next."""
    contender = CONTENDERS[who](Path(tempfile.mkdtemp(dir=directory)), "os")
    published = Bodies()
    # The floor keeps nothing: a backlog means nothing to it.
    if not isinstance(contender, Floor):
        build(contender, published, backlog)
    return contender, published, Bodies()


def get_ack(who: str, directory: str, backlog: int, count: int, seconds: float) -> Round:
    """Single gets with acks at a backlog that is kept at its size by refills (untimed)."""
    contender, published, expected = _backlog(who, directory, backlog)
    watch = Stopwatch()
    settle()
    gc.collect()
    first = 16 if contender.linear else 512
    for size in watch.chunks(count, seconds, first, max(first, min(backlog // 2, 5_000))):
        with watch.running(size):
            delivered = contender.get_ack_each(size)
        if not isinstance(contender, Floor):
            expected.check(delivered)
            build(contender, published, size)
    return {"get_ack": watch.rate()}


def get_ack_backlogs(
    who: str, directory: str, backlogs: dict[str, int], count: int, seconds: float
) -> Round:
    """The same at several backlogs, one right after the other: what a backlog costs. Gives the
    rate at each, under its name, in relation to that at the first."""
    for backlog in backlogs.values():
        _backlog(who, directory, backlog)
    rates = {
        name: get_ack(who, directory, backlog, count, seconds)["get_ack"].value
        for name, backlog in backlogs.items()
    }
    first, *others = rates
    return {other: Sample(rates[other] / rates[first]) for other in others}


def get_many(who: str, directory: str, backlog: int, seconds: float) -> Round:
    """``get_many`` and ``ack_many``, 1,000 at a time, every body read, until drained.

    The floor is the loop of single writes, as the bar has it.
    """
    with fresh_store(who, directory) as contender:
        is_floor = isinstance(contender, Floor)
        if not is_floor:
            build(contender, Bodies(), backlog)
        expected, watch = Bodies(), Stopwatch()
        settle()
        gc.collect()
        for size in watch.chunks(backlog, seconds, _TAKEN, _TAKEN):
            with watch.running(size):
                delivered = contender.get_ack_many(size)
            if not is_floor:
                expected.check(delivered)
    return {"get_many": watch.rate()}


def ack_fsync(who: str, directory: str, count: int, seconds: float) -> Round:
    """Single acks with fsync; the gets before them are not timed."""
    with fresh_store(who, directory, "fsync") as contender:
        build(contender, Bodies(), count)
        watch = Stopwatch()
        gc.collect()
        for size in watch.chunks(count, seconds, 16, 256):
            taken = contender.get_each(size)
            with watch.running(size):
                contender.ack_each(taken)
    return {"ack": watch.rate()}
