"""The tasks that measure rates: publish, get and ack, batches, and the same with fsync."""

from __future__ import annotations

import gc
import random
import threading
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.contender import Contender, Floor
from benchmarks.ours import Ours
from benchmarks.stopwatch import Stopwatch
from benchmarks.tasks import Task, growing_chunks, settle

__all__ = [
    "AckFsync",
    "GetAck",
    "GetAckBacklogs",
    "GetMany",
    "Large",
    "Publish",
    "PublishKeyed",
    "PublishMany",
    "PublishThreads",
]

_BUILD_BATCH = 10_000
_WARM_UP = 200
_TURN = 5_000
"""Messages after which two that take turns in one process change."""
_LARGE = 8 << 10


def build(contender: Contender, bodies: Bodies, count: int) -> None:
    """Put ``count`` messages into the queue, in batches. Untimed."""
    while count:
        size = min(count, _BUILD_BATCH)
        contender.publish_many(contender.records(bodies.take(size)))
        count -= size


class Publish(Task):
    """Single publishes into a fresh store, until ``count`` or ``seconds`` are reached."""

    def __init__(
        self, kind: type[Contender], directory: Path, count: int, seconds: float, durability: str
    ) -> None:
        super().__init__(kind, directory)
        self.count = count
        self.seconds = seconds
        self.durability = durability

    def measure(self) -> dict[str, Any]:
        with self.fresh_store(self.durability) as contender:
            bodies = Bodies()
            contender.publish_each(contender.records(bodies.take(min(_WARM_UP, self.count))))
            watch, done = Stopwatch(), 0
            gc.collect()
            # With fsync a chunk is small: a slow disk must not make one chunk last for seconds.
            largest = 256 if self.durability == "fsync" else 16_384
            for size in growing_chunks(64, largest):
                size = min(size, self.count - done)
                chunk = contender.records(bodies.take(size))
                with watch.running():
                    contender.publish_each(chunk)
                done += size
                if done >= self.count or watch.wall >= self.seconds:
                    break
        return {"publish": watch.rate(done)}


class PublishKeyed(Task):
    """``count`` single publishes with a key and two headers, and as many without, in turns."""

    def __init__(self, kind: type[Contender], directory: Path, count: int) -> None:
        super().__init__(kind, directory)
        self.count = count

    def measure(self) -> dict[str, Any]:
        with self.fresh_store() as contender:
            assert isinstance(contender, Ours)
            bodies = Bodies()
            keyed, plain = Stopwatch(), Stopwatch()
            loops = ((plain, contender.publish_each), (keyed, contender.publish_each_keyed))
            for _, publish in loops:
                publish(bodies.take(_WARM_UP))
            gc.collect()
            for _ in range(0, self.count, _TURN):
                for watch, publish in loops:
                    chunk = bodies.take(_TURN)
                    with watch.running():
                        publish(chunk)
        return {"keyed": keyed.rate(self.count), "plain": plain.rate(self.count)}


class Large(Task):
    """Microseconds of a publish of 8 KiB, and of its get with ack, one by one; ``count`` each."""

    def __init__(self, kind: type[Contender], directory: Path, count: int) -> None:
        super().__init__(kind, directory)
        self.count = count

    def measure(self) -> dict[str, Any]:
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


class PublishThreads(Task):
    """One thread, then ``threads`` at once, publish with fsync; each ``count`` messages."""

    def __init__(
        self,
        kind: type[Contender],
        directory: Path,
        single: int,
        threads: int,
        each: int,
    ) -> None:
        super().__init__(kind, directory)
        self.single = single
        self.threads = threads
        self.each = each

    def measure(self) -> dict[str, Any]:
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

    def _together(self, contender: Contender, bodies: Bodies) -> dict[str, Any]:
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


class PublishMany(Task):
    """Batches of ``batch`` messages into a fresh store. The floor makes one write of each."""

    def __init__(
        self,
        kind: type[Contender],
        directory: Path,
        batch: int,
        count: int,
        seconds: float,
        durability: str,
    ) -> None:
        super().__init__(kind, directory)
        self.batch = batch
        self.count = count
        self.seconds = seconds
        self.durability = durability

    def measure(self) -> dict[str, Any]:
        with self.fresh_store(self.durability) as contender:
            bodies = Bodies()
            contender.publish_many(contender.records(bodies.take(_WARM_UP)))
            watch, done = Stopwatch(), 0
            gc.collect()
            while done < self.count and watch.wall < self.seconds:
                batch = contender.records(bodies.take(self.batch))
                if isinstance(contender, Floor):
                    data = contender.join(batch)
                    with watch.running():
                        contender.publish_bulk(data)
                else:
                    with watch.running():
                        contender.publish_many(batch)
                done += self.batch
        return {"publish_many": watch.rate(done)}


class GetAck(Task):
    """Single gets with acks at a backlog that is kept at its size by refills (untimed)."""

    def __init__(
        self, kind: type[Contender], directory: Path, backlog: int, count: int, seconds: float
    ) -> None:
        super().__init__(kind, directory)
        self.backlog = backlog
        self.count = count
        self.seconds = seconds

    def prepare(self) -> dict[str, Any]:
        self._path = self.fresh()
        self._contender = self.open(self._path)
        self._published = Bodies()
        self._expected = Bodies()
        # The floor keeps nothing: a backlog means nothing to it.
        self._empty = isinstance(self._contender, Floor)
        if not self._empty:
            build(self._contender, self._published, self.backlog)
        return {}

    def measure(self) -> dict[str, Any]:
        contender = self._contender
        settle()
        watch, done = Stopwatch(), 0
        gc.collect()
        first = 16 if self.kind.linear else 512
        for size in growing_chunks(first, max(first, min(self.backlog // 2, 5_000))):
            size = min(size, self.count - done)
            with watch.running():
                delivered = contender.get_ack_each(size)
            if not self._empty:
                self._expected.check(delivered)
                build(contender, self._published, size)
            done += size
            if done >= self.count or watch.wall >= self.seconds:
                break
        return {"get_ack": watch.rate(done)}

    def finish(self) -> dict[str, Any]:
        self.discard(self._contender, self._path)
        return {}


class GetAckBacklogs(Task):
    """The same at several backlogs, one right after the other: what a backlog costs. Gives the
    rate at each, under its size, in relation to that at the first."""

    def __init__(
        self, kind: type[Contender], directory: Path, backlogs: list[int], **bounds: Any
    ) -> None:
        super().__init__(kind, directory)
        self._tasks = {each: GetAck(kind, directory, each, **bounds) for each in backlogs}

    def prepare(self) -> dict[str, Any]:
        for task in self._tasks.values():
            task.prepare()
        return {}

    def measure(self) -> dict[str, Any]:
        rates = {
            backlog: task.measure()["get_ack"]["value"] for backlog, task in self._tasks.items()
        }
        first, *others = rates
        return {str(other): {"value": rates[other] / rates[first]} for other in others}

    def finish(self) -> dict[str, Any]:
        for task in self._tasks.values():
            task.finish()
        return {}


class GetMany(Task):
    """``get_many`` and ``ack_many``, ``batch`` at a time, every body read, until drained.

    The floor is the loop of single writes, as the bar has it.
    """

    def __init__(
        self, kind: type[Contender], directory: Path, batch: int, backlog: int, seconds: float
    ) -> None:
        super().__init__(kind, directory)
        self.batch = batch
        self.backlog = backlog
        self.seconds = seconds

    def measure(self) -> dict[str, Any]:
        with self.fresh_store() as contender:
            is_floor = isinstance(contender, Floor)
            if not is_floor:
                build(contender, Bodies(), self.backlog)
            expected = Bodies()
            settle()
            watch, done = Stopwatch(), 0
            gc.collect()
            while done < self.backlog and watch.wall < self.seconds:
                with watch.running():
                    delivered = contender.get_ack_many(self.batch)
                if not is_floor:
                    expected.check(delivered)
                done += self.batch
        return {"get_many": watch.rate(done)}


class AckFsync(Task):
    """Single acks with fsync; the gets before them are not timed."""

    def __init__(self, kind: type[Contender], directory: Path, count: int, seconds: float) -> None:
        super().__init__(kind, directory)
        self.count = count
        self.seconds = seconds

    def measure(self) -> dict[str, Any]:
        with self.fresh_store("fsync") as contender:
            build(contender, Bodies(), self.count)
            watch, done = Stopwatch(), 0
            gc.collect()
            for size in growing_chunks(16, 256):
                size = min(size, self.count - done)
                deliveries = contender.get_each(size)
                with watch.running():
                    contender.ack_each(deliveries)
                done += size
                if done >= self.count or watch.wall >= self.seconds:
                    break
        return {"ack": watch.rate(done)}
