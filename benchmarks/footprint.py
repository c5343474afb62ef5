"""The tasks that measure what a store costs besides time: syncs, bytes, memory, opening."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.bodies import Bodies
from benchmarks.counting import CountingFileSystem
from benchmarks.report import Round, Sample
from benchmarks.tasks import Task, build, resident_bytes, settle
from qindex.compare.contender import Fifo
from qindex.compare.designs import QueueIndexDesign
from qindex.compare.tasks import disk_use, kernel_counters

MARK = "/qindex-benchmark-phase-"
"""A path that does not exist: asking for it leaves a mark between phases in a system call trace."""

_DRAIN_BATCH = 1_000


@dataclass
class AtRest(Task):
    """Bytes of all files for each of ``count`` messages, after a close; and the bytes of pages
    that were made dirty on the way there, flushes and compaction included."""

    count: int

    def measure(self) -> Round:
        path = self.fresh()
        contender = self.kind(path, "os")
        before = kernel_counters()
        build(contender, Bodies(), self.count)
        contender.close()
        after = kernel_counters()
        at_rest, allocated = disk_use(path)
        shutil.rmtree(path)
        sizes = {"at_rest": at_rest, "allocated": allocated}
        if after:
            sizes["dirtied"] = after["write_bytes"] - before["write_bytes"]
        return {name: Sample(size / self.count, count=self.count) for name, size in sizes.items()}


@dataclass
class Drain(Task):
    """Disk use after ``count`` messages came and went, with no call made since; after
    ``seconds``, or as soon as it is below ``enough`` bytes."""

    count: int
    enough: int
    seconds: float

    def measure(self) -> Round:
        with self.fresh_store() as contender:
            build(contender, Bodies(), self.count)
            expected = Bodies()
            for done in range(0, self.count, _DRAIN_BATCH):
                size = min(_DRAIN_BATCH, self.count - done)
                expected.check(contender.get_ack_many(size))
            start = time.monotonic()
            while True:
                allocated = disk_use(self.directory)[1]
                waited = time.monotonic() - start
                if allocated < self.enough or waited >= self.seconds:
                    break
                time.sleep(0.05)
        return {
            "bytes": Sample(allocated, count=self.count),
            "seconds": Sample(waited, count=self.count),
        }


def _phases(contender: Fifo, count: int, mark: Callable[[str], None]) -> None:
    """Publish, get and ack ``count`` messages singly; each phase begins with its mark."""
    bodies = Bodies()
    contender.publish_each(contender.records(bodies.take(10)))
    contender.ack_each(contender.get_each(10))
    records = contender.records(bodies.take(count))
    mark("publish")
    contender.publish_each(records)
    mark("get")
    taken = contender.get_each(count)
    mark("ack")
    contender.ack_each(taken)
    mark("end")


@dataclass
class Phases(Task):
    """The phases with a mark between them, for a system call trace to be read by."""

    count: int
    durability: str

    def measure(self) -> Round:
        with self.fresh_store(self.durability) as contender:
            _phases(contender, self.count, lambda phase: _leave(MARK + phase))
        return {}


def _leave(mark: str) -> None:
    os.access(mark, os.F_OK)


@dataclass
class Counted(Task):
    """The same, counted by the store's own file system object: for each operation of a phase its
    syncs, the bytes handed to the kernel, and the calls that wrote.

    What is stored into memory-mapped files is counted by what they hold past nothing but zeros;
    the rest by the calls that write. No flush falls into ``count`` messages.
    """

    count: int
    durability: str

    def measure(self) -> Round:
        fs = CountingFileSystem()
        seen: list[tuple[str, int, int, int]] = []
        with self.fresh_store(self.durability, fs=fs) as contender:
            _phases(
                contender,
                self.count,
                lambda phase: seen.append(
                    (phase, fs.syncs, fs.written + fs.mapped_bytes(), fs.write_calls)
                ),
            )
        result = {}
        for (phase, *before), (_, *after) in pairwise(seen):
            for name, first, last in zip(("syncs", "bytes", "calls"), before, after, strict=True):
                each = (last - first) / self.count
                result[f"{phase} {name}"] = Sample(each, count=self.count)
        return result


@dataclass
class BacklogMemory(Task):
    """Memory, in MB, of a backlog of 100 million messages: what Python handed out (tracemalloc) at
    a backlog of ``count``, and from there on by its growth to ``2 * count``."""

    count: int

    def measure(self) -> Round:
        # The first use of a library loads it: not a part of a backlog.
        with self.fresh_store() as warm:
            build(warm, Bodies(), 20_000)
            warm.take()
        tracemalloc.start()
        before = self._traced()
        with self.fresh_store() as contender:
            assert isinstance(contender, QueueIndexDesign)
            sizes = []
            for _ in range(2):
                build(contender, Bodies(), self.count)
                contender.take()
                # The journal holds more or less, as it happens, and so does the memory for it.
                contender.queue.flush()
                sizes.append(self._traced() - before)
            tracemalloc.stop()
        each = (sizes[1] - sizes[0]) / self.count
        return {"megabytes": Sample((sizes[0] + each * (100_000_000 - self.count)) / 1e6)}

    def _traced(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


@dataclass
class Million(Task):
    """Publish ``count`` messages in batches, and see what memory they take.

    Then close, or die by SIGKILL: the directory is what :class:`Open` opens.
    """

    count: int
    store: str
    kill: bool

    def measure(self) -> Round:
        path = Path(self.store)
        path.mkdir(parents=True)
        contender = self.kind(path, "os")
        bodies = Bodies()
        first = min(1_000, self.count // 10)
        build(contender, bodies, first)
        gc.collect()
        before = resident_bytes()
        cpu = time.process_time()
        build(contender, bodies, self.count - first)
        cpu = time.process_time() - cpu
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        settle()
        gc.collect()
        growth = resident_bytes() - before
        contender.close()
        return {"memory": Sample(growth, cpu / self.count * 1e6, self.count)}


@dataclass
class Open(Task):
    """Open a store that another process left behind, and get its first message."""

    store: str
    count: int

    def measure(self) -> Round:
        # The first use of a library loads it: not a part of opening.
        with self.fresh_store():
            pass
        gc.collect()
        memory, cpu, wall = resident_bytes(), time.process_time(), time.perf_counter()
        contender = self.kind(Path(self.store), "os")
        wall = time.perf_counter() - wall
        opened_cpu = time.process_time() - cpu
        growth = resident_bytes() - memory
        first = time.perf_counter()
        taken = contender.take()
        first = time.perf_counter() - first
        all_cpu = time.process_time() - cpu
        assert taken is not None
        Bodies().check([taken[1]])
        if isinstance(contender, QueueIndexDesign):
            held = len(contender.queue)
            if held not in (self.count, self.count - 1):  # the delivered one may count or not
                raise RuntimeError(f"{held} of {self.count} messages after opening")
        contender.close()
        return {
            "open_ms": Sample(wall * 1e3),
            "open_cpu_s": Sample(opened_cpu),
            "open_and_get_cpu_s": Sample(all_cpu),
            "first_get_ms": Sample(first * 1e3),
            "memory": Sample(growth),
        }
