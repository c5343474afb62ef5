"""The tasks that measure what a store costs besides time: syncs, bytes, memory, opening."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import time
import tracemalloc
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.contender import RECORD_BYTES, Contender
from benchmarks.ours import Ours
from benchmarks.tasks import Task, dirtied_bytes, disk_use, resident_bytes, settle
from benchmarks.throughput import build

__all__ = [
    "MARK",
    "AtRest",
    "BacklogMemory",
    "CountedPhases",
    "Drain",
    "Million",
    "Open",
    "Phases",
    "Written",
]

MARK = "/qindex-benchmark-phase-"
"""A path that does not exist: asking for it leaves a mark between phases in a system call trace."""

_DRAIN_BATCH = 1_000


class AtRest(Task):
    """Bytes of all files for each of ``count`` messages, after a close; and the bytes of pages
    that were made dirty on the way there, flushes and compaction included."""

    def __init__(self, kind: type[Contender], directory: Path, count: int) -> None:
        super().__init__(kind, directory)
        self.count = count

    def measure(self) -> dict[str, Any]:
        path = self.fresh()
        contender = self.open(path)
        before = dirtied_bytes()
        build(contender, Bodies(), self.count)
        contender.close()
        after = dirtied_bytes()
        at_rest, allocated = disk_use(path)
        shutil.rmtree(path)
        samples = {
            "at_rest": {"value": at_rest / self.count, "count": self.count},
            "allocated": {"value": allocated / self.count, "count": self.count},
        }
        if before is not None and after is not None:
            samples["dirtied"] = {"value": (after - before) / self.count, "count": self.count}
        return samples


class Drain(Task):
    """Disk use after ``count`` messages came and went, with no call made since; after
    ``seconds``, or as soon as it is below ``enough`` bytes."""

    def __init__(
        self, kind: type[Contender], directory: Path, count: int, enough: int, seconds: float
    ) -> None:
        super().__init__(kind, directory)
        self.count = count
        self.enough = enough
        self.seconds = seconds

    def measure(self) -> dict[str, Any]:
        path = self.fresh()
        contender = self.open(path)
        build(contender, Bodies(), self.count)
        expected = Bodies()
        left = self.count
        while left:
            size = min(left, _DRAIN_BATCH)
            expected.check(contender.get_ack_many(size))
            left -= size
        start = time.monotonic()
        while True:
            allocated = disk_use(path)[1]
            waited = time.monotonic() - start
            if allocated < self.enough or waited >= self.seconds:
                break
            time.sleep(0.05)
        self.discard(contender, path)
        return {
            "bytes": {"value": allocated, "count": self.count},
            "seconds": {"value": waited, "count": self.count},
        }


class Phases(Task):
    """Publish, get and ack ``count`` messages singly, with a mark before each phase and after
    the last, for a system call trace to be read by."""

    def __init__(self, kind: type[Contender], directory: Path, count: int, durability: str) -> None:
        super().__init__(kind, directory)
        self.count = count
        self.durability = durability

    def measure(self) -> dict[str, Any]:
        with self.fresh_store(self.durability) as contender:
            bodies = Bodies()
            contender.publish_each(contender.records(bodies.take(10)))
            contender.ack_each(contender.get_each(10))
            records = contender.records(bodies.take(self.count))
            _mark("publish")
            contender.publish_each(records)
            _mark("get")
            deliveries = contender.get_each(self.count)
            _mark("ack")
            contender.ack_each(deliveries)
            _mark("end")
        return {}


def _mark(phase: str) -> None:
    os.access(MARK + phase, os.F_OK)


class CountedPhases(Task):
    """The syncs of each phase of :class:`Phases`, of a store that takes a file system object."""

    def __init__(self, kind: type[Contender], directory: Path, count: int) -> None:
        super().__init__(kind, directory)
        self.count = count

    def measure(self) -> dict[str, Any]:
        # Imported here: it needs the engine's ground floor, and peers are measured without it.
        from benchmarks.counting import CountingFileSystem

        path = self.fresh()
        fs = CountingFileSystem()
        contender = self.kind(path, "fsync", fs=fs)  # type: ignore[call-arg]
        bodies = Bodies()
        contender.publish_each(bodies.take(10))
        contender.ack_each(contender.get_each(10))
        marks = [fs.syncs]
        contender.publish_each(bodies.take(self.count))
        marks.append(fs.syncs)
        deliveries = contender.get_each(self.count)
        marks.append(fs.syncs)
        contender.ack_each(deliveries)
        marks.append(fs.syncs)
        self.discard(contender, path)
        return {
            phase: {"value": (marks[i + 1] - marks[i]) / self.count, "count": self.count}
            for i, phase in enumerate(("publish", "get", "ack"))
        }


class Written(Task):
    """Bytes handed to the kernel for each publish, of a store that takes a file system object.

    What is stored into memory-mapped files is counted by what they hold past nothing but zeros;
    the rest by the calls that write. No flush falls into ``count`` messages.
    """

    def __init__(self, kind: type[Contender], directory: Path, count: int) -> None:
        super().__init__(kind, directory)
        self.count = count

    def measure(self) -> dict[str, Any]:
        # Imported here: it needs the engine's ground floor, and peers are measured without it.
        from benchmarks.counting import CountingFileSystem

        path = self.fresh()
        fs = CountingFileSystem()
        contender = self.kind(path, "os", fs=fs)  # type: ignore[call-arg]
        bodies = Bodies()
        contender.publish_each(bodies.take(10))
        records = bodies.take(self.count)
        written, mapped, calls = fs.written, fs.mapped_bytes(), fs.write_calls
        contender.publish_each(records)
        total = fs.written - written + fs.mapped_bytes() - mapped
        calls = fs.write_calls - calls
        self.discard(contender, path)
        return {
            "bytes": {"value": total / self.count, "count": self.count},
            "records": {"value": total / self.count / RECORD_BYTES, "count": self.count},
            "calls": {"value": calls / self.count, "count": self.count},
        }


class BacklogMemory(Task):
    """Memory, in MB, of a backlog of 100 million messages: what Python handed out (tracemalloc) at
    a backlog of ``count``, and from there on by its growth to ``2 * count``."""

    def __init__(self, kind: type[Contender], directory: Path, count: int) -> None:
        super().__init__(kind, directory)
        self.count = count

    def measure(self) -> dict[str, Any]:
        # The first use of a library loads it: not a part of a backlog.
        with self.fresh_store() as warm:
            build(warm, Bodies(), 20_000)
            warm.get()
        tracemalloc.start()
        before = self._traced()
        with self.fresh_store() as contender:
            assert isinstance(contender, Ours)
            sizes = []
            for _ in range(2):
                build(contender, Bodies(), self.count)
                contender.get()
                # The journal holds more or less, as it happens, and so does the memory for it.
                contender.flush()
                sizes.append(self._traced() - before)
            tracemalloc.stop()
        each = (sizes[1] - sizes[0]) / self.count
        return {"megabytes": {"value": (sizes[0] + each * (100_000_000 - self.count)) / 1e6}}

    def _traced(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


class Million(Task):
    """Publish ``count`` messages in batches, and see what memory they take.

    Then close, or die by SIGKILL: the directory is what :class:`Open` opens.
    """

    def __init__(
        self, kind: type[Contender], directory: Path, count: int, store: str, kill: bool
    ) -> None:
        super().__init__(kind, directory)
        self.count = count
        self.store = Path(store)
        self.kill = kill

    def measure(self) -> dict[str, Any]:
        self.store.mkdir(parents=True)
        contender = self.open(self.store)
        bodies = Bodies()
        build(contender, bodies, min(1_000, self.count // 10))
        gc.collect()
        before = resident_bytes()
        cpu = time.process_time()
        build(contender, bodies, self.count - min(1_000, self.count // 10))
        cpu = time.process_time() - cpu
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        settle()
        gc.collect()
        growth = resident_bytes() - before
        contender.close()
        return {"memory": {"value": growth, "count": self.count, "cpu_us": cpu / self.count * 1e6}}


class Open(Task):
    """Open a store that another process left behind, and get its first message."""

    def __init__(self, kind: type[Contender], directory: Path, store: str, count: int) -> None:
        super().__init__(kind, directory)
        self.store = Path(store)
        self.count = count

    def measure(self) -> dict[str, Any]:
        # The first use of a library loads it: not a part of opening.
        with self.fresh_store():
            pass
        gc.collect()
        memory, cpu, wall = resident_bytes(), time.process_time(), time.perf_counter()
        contender = self.open(self.store)
        wall = time.perf_counter() - wall
        opened_cpu = time.process_time() - cpu
        growth = resident_bytes() - memory
        first = time.perf_counter()
        delivery = contender.get()
        first = time.perf_counter() - first
        all_cpu = time.process_time() - cpu
        Bodies().check([contender.body(delivery)])
        if hasattr(contender, "__len__"):
            held = len(contender)
            if held not in (self.count, self.count - 1):  # the delivered one may count or not
                raise RuntimeError(f"{held} of {self.count} messages after opening")
        contender.close()
        return {
            "open_ms": {"value": wall * 1e3},
            "open_cpu_s": {"value": opened_cpu},
            "open_and_get_cpu_s": {"value": all_cpu},
            "first_get_ms": {"value": first * 1e3},
            "memory": {"value": growth},
        }
