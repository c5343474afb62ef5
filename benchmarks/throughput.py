"""The tasks that measure rates: publish, get and ack, batches, and the same with fsync."""

from __future__ import annotations

import gc
import random
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.peers import Floor
from benchmarks.report import Round, Sample
from benchmarks.stopwatch import Stopwatch
from benchmarks.tasks import Task, build, settle
from qindex.compare.contender import Fifo
from qindex.compare.designs import QueueIndexDesign

_WARM_UP = 200
_TURN = 5_000
"""Messages after which two that take turns in one process change."""
_LARGE = 8 << 10


@dataclass
class Publish(Task):
    """Single publishes into a fresh store, until ``count`` or ``seconds`` are reached."""

    count: int
    seconds: float

    def measure(self) -> Round:
        with self.fresh_store() as contender:
            bodies, watch = Bodies(), Stopwatch()
            contender.publish_each(contender.records(bodies.take(min(_WARM_UP, self.count))))
            gc.collect()
            for size in watch.chunks(self.count, self.seconds, 64, 16_384):
                chunk = contender.records(bodies.take(size))
                with watch.running(size):
                    contender.publish_each(chunk)
        return {"publish": watch.rate()}


@dataclass
class PublishKeyed(Task):
    """``count`` single publishes with a key and two headers, and as many without, in turns."""

    count: int

    def measure(self) -> Round:
        with self.fresh_store() as contender:
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
            for _ in range(0, self.count, _TURN):
                for watch, loop in loops:
                    chunk = bodies.take(_TURN)
                    with watch.running():
                        loop(chunk)
        return {"keyed": keyed.rate(self.count), "plain": plain.rate(self.count)}


@dataclass
class Large(Task):
    """Microseconds of a publish of 8 KiB, and of its get with ack, one by one; ``count`` each."""

    count: int

    def measure(self) -> Round:
        with self.fresh_store() as contender:
            few = [random.Random(number).randbytes(_LARGE) for number in range(64)]
            bodies = list(islice(cycle(few), self.count))
            contender.publish_each(bodies[:64])
            contender.get_ack_each(64)
            publish, get_ack = Stopwatch(), Stopwatch()
            gc.collect()
            with publish.running():
                contender.publish_each(bodies)
            result = {"publish": publish.microseconds(self.count)}
            if not isinstance(contender, Floor):
                settle()
                with get_ack.running():
                    delivered = contender.get_ack_each(self.count)
                if delivered != bodies:
                    raise RuntimeError("a message is not the one that was published")
                result["get_ack"] = get_ack.microseconds(self.count)
        return result


@dataclass
class PublishThreads(Task):
    """One thread, then ``threads`` at once, publish with fsync; each ``count`` messages."""

    single: int
    threads: int
    each: int

    def measure(self) -> Round:
        with self.fresh_store("fsync") as contender:
            bodies = Bodies()
            contender.publish_each(contender.records(bodies.take(20)))
            alone = contender.records(bodies.take(self.single))
            one = Stopwatch()
            gc.collect()
            with one.running():
                contender.publish_each(alone)
            result = {"one": one.rate(self.single)}
            if self.kind.threads:
                result["together"] = self._together(contender, bodies)
        return result

    def _together(self, contender: Fifo, bodies: Bodies) -> Sample:
        start = threading.Barrier(self.threads + 1)
        errors: list[BaseException] = []

        def publish(records: list[bytes]) -> None:
            start.wait()
            try:
                contender.publish_each(records)
            except BaseException as error:
                errors.append(error)

        workers = [
            threading.Thread(target=publish, args=(contender.records(bodies.take(self.each)),))
            for _ in range(self.threads)
        ]
        for worker in workers:
            worker.start()
        watch = Stopwatch()
        with watch.running():
            start.wait()
            for worker in workers:
                worker.join()
        if errors:
            raise errors[0]
        return watch.rate(self.threads * self.each)


@dataclass
class PublishMany(Task):
    """Batches of ``batch`` messages into a fresh store. The floor makes one write of each."""

    batch: int
    count: int
    seconds: float
    durability: str

    def measure(self) -> Round:
        with self.fresh_store(self.durability) as contender:
            bodies, watch = Bodies(), Stopwatch()
            contender.publish_many(contender.records(bodies.take(_WARM_UP)))
            gc.collect()
            for size in watch.chunks(self.count, self.seconds, self.batch, self.batch):
                batch = contender.records(bodies.take(size))
                if isinstance(contender, Floor):
                    # Joining the records is no part of the bound.
                    data = b"".join(batch)
                    with watch.running(size):
                        contender.publish(data)
                else:
                    with watch.running(size):
                        contender.publish_many(batch)
        return {"publish_many": watch.rate()}


@dataclass
class GetAck(Task):
    """Single gets with acks at a backlog that is kept at its size by refills (untimed)."""

    backlog: int
    count: int
    seconds: float

    def prepare(self) -> None:
        self._path = self.fresh()
        self._contender = self.kind(self._path, "os")
        self._published = Bodies()
        self._expected = Bodies()
        # The floor keeps nothing: a backlog means nothing to it.
        self._empty = isinstance(self._contender, Floor)
        if not self._empty:
            build(self._contender, self._published, self.backlog)

    def measure(self) -> Round:
        contender, watch = self._contender, Stopwatch()
        settle()
        gc.collect()
        first = 16 if self.kind.linear else 512
        largest = max(first, min(self.backlog // 2, 5_000))
        for size in watch.chunks(self.count, self.seconds, first, largest):
            with watch.running(size):
                delivered = contender.get_ack_each(size)
            if not self._empty:
                self._expected.check(delivered)
                build(contender, self._published, size)
        return {"get_ack": watch.rate()}

    def finish(self) -> None:
        self._contender.close()
        shutil.rmtree(self._path)


@dataclass
class GetAckBacklogs(Task):
    """The same at several backlogs, one right after the other: what a backlog costs. Gives the
    rate at each, under its size, in relation to that at the first."""

    backlogs: list[int]
    bounds: dict[str, Any]

    def prepare(self) -> None:
        self._tasks = {
            each: GetAck(self.kind, self.directory, each, **self.bounds) for each in self.backlogs
        }
        for task in self._tasks.values():
            task.prepare()

    def measure(self) -> Round:
        rates = {backlog: task.measure()["get_ack"].value for backlog, task in self._tasks.items()}
        first, *others = rates
        return {str(other): Sample(rates[other] / rates[first]) for other in others}

    def finish(self) -> None:
        for task in self._tasks.values():
            task.finish()


@dataclass
class GetMany(Task):
    """``get_many`` and ``ack_many``, ``batch`` at a time, every body read, until drained.

    The floor is the loop of single writes, as the bar has it.
    """

    batch: int
    backlog: int
    seconds: float

    def measure(self) -> Round:
        with self.fresh_store() as contender:
            is_floor = isinstance(contender, Floor)
            if not is_floor:
                build(contender, Bodies(), self.backlog)
            expected, watch = Bodies(), Stopwatch()
            settle()
            gc.collect()
            for size in watch.chunks(self.backlog, self.seconds, self.batch, self.batch):
                with watch.running(size):
                    delivered = contender.get_ack_many(size)
                if not is_floor:
                    expected.check(delivered)
        return {"get_many": watch.rate()}


@dataclass
class AckFsync(Task):
    """Single acks with fsync; the gets before them are not timed."""

    count: int
    seconds: float

    def measure(self) -> Round:
        with self.fresh_store("fsync") as contender:
            build(contender, Bodies(), self.count)
            watch = Stopwatch()
            gc.collect()
            for size in watch.chunks(self.count, self.seconds, 16, 256):
                taken = contender.get_each(size)
                with watch.running(size):
                    contender.ack_each(taken)
        return {"ack": watch.rate()}
