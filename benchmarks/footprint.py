"""The tasks that measure what a store costs besides time: syncs, bytes, memory, opening."""

from __future__ import annotations

import gc
import os
import signal
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

from benchmarks.bodies import Bodies
from benchmarks.peers import CONTENDERS
from benchmarks.stopwatch import Round, Sample
from benchmarks.tasks import build, fresh_store, resident_bytes, settle
from journal.fs.files import PathLike, ReadBuffer, RealFileSystem
from qindex.compare.designs import QueueIndexDesign
from qindex.compare.tasks import disk_use, kernel_counters

_DRAIN_BATCH = 1_000


def at_rest(who: str, directory: str, count: int) -> Round:
    """Bytes of all files for each of ``count`` messages, after a close; and the bytes of pages
    that were made dirty on the way there, flushes and compaction included. A slow peer has a
    fifth of the messages."""
    path = Path(directory, "at-rest")
    path.mkdir()
    contender = CONTENDERS[who](path, "os")
    count //= 5 if contender.linear else 1
    before = kernel_counters()
    build(contender, Bodies(), count)
    contender.close()
    after = kernel_counters()
    sizes = dict(zip(("bytes_at_rest", "bytes_allocated_at_rest"), disk_use(path), strict=True))
    if after:
        sizes["bytes_dirtied_by_batches"] = after["write_bytes"] - before["write_bytes"]
    return {name: Sample(size / count, count=count) for name, size in sizes.items()}


def drain(who: str, directory: str, count: int, enough: int, seconds: float) -> Round:
    """Disk use after ``count`` messages (of a slow peer: a sixteenth) came and went, with no call
    made since; after ``seconds``, or as soon as it is below ``enough`` bytes."""
    with fresh_store(who, directory) as contender:
        count //= 16 if contender.linear else 1
        build(contender, Bodies(), count)
        expected = Bodies()
        for done in range(0, count, _DRAIN_BATCH):
            expected.check(contender.get_ack_many(min(_DRAIN_BATCH, count - done)))
        start = time.monotonic()
        while True:
            allocated = disk_use(Path(directory))[1]
            waited = time.monotonic() - start
            if allocated < enough or waited >= seconds:
                break
            time.sleep(0.05)
    return {"bytes": Sample(allocated, count=count), "seconds": Sample(waited, count=count)}


class _Counting(RealFileSystem):
    """Counts what the engine writes and syncs, at its own file seam. Takes no lock."""

    def __init__(self) -> None:
        self.written = 0
        self.write_calls = 0
        self.syncs = 0

    def write(self, fd: int, data: ReadBuffer, /) -> int:  # type: ignore[override]
        self.write_calls += 1
        self.written += (done := os.write(fd, data))
        return done

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:  # type: ignore[override]
        self.write_calls += 1
        self.written += (done := os.pwrite(fd, data, offset))
        return done

    def fdatasync(self, fd: int, /) -> None:  # type: ignore[override]
        self.syncs += 1
        os.fdatasync(fd)

    def fsync(self, fd: int, /) -> None:  # type: ignore[override]
        self.syncs += 1
        os.fsync(fd)

    def sync_dir(self, path: PathLike, /) -> None:  # type: ignore[override]
        self.syncs += 1
        RealFileSystem.sync_dir(path)


def counted(who: str, directory: str, count: int, durability: str) -> Round:
    """Publish, get and ack ``count`` messages singly, through a file system that counts: for each
    operation its syncs, the bytes handed to the kernel, and the calls that wrote.

    What is stored into the journal's maps is counted by what they hold past nothing but zeros;
    the rest by the calls that write. No flush falls into ``count`` messages.
    """
    fs = _Counting()
    seen: list[tuple[int, ...]] = []

    def look() -> None:
        mapped = [path.read_bytes().rstrip(b"\0") for path in Path(directory).rglob("journal.*")]
        seen.append((fs.syncs, fs.written + sum(map(len, mapped)), fs.write_calls))

    with fresh_store(who, directory, durability, fs=fs) as contender:
        bodies = Bodies()
        contender.publish_each(bodies.take(10))
        contender.ack_each(contender.get_each(10))
        sent = bodies.take(count)
        look()
        contender.publish_each(sent)
        look()
        taken = contender.get_each(count)
        look()
        contender.ack_each(taken)
        look()
    return {
        f"{what}_per_{phase}": Sample((last - first) / count, count=count)
        for phase, (before, after) in zip(("publish", "get", "ack"), pairwise(seen), strict=True)
        for what, first, last in zip(
            ("syncs", "bytes_written", "write_calls"), before, after, strict=True
        )
    }


def backlog_memory(who: str, directory: str, count: int) -> Round:
    """Memory, in MB, of a backlog of 100 million messages: what Python handed out (tracemalloc) at
    a backlog of ``count``, and from there on by its growth to ``2 * count``."""
    # The first use of a library loads it: not a part of a backlog.
    with fresh_store(who, directory) as warm:
        build(warm, Bodies(), 20_000)
        warm.take()
    tracemalloc.start()
    sizes = [_traced()]
    with fresh_store(who, directory) as contender:
        assert isinstance(contender, QueueIndexDesign)
        for _ in range(2):
            build(contender, Bodies(), count)
            contender.take()
            # The journal holds more or less, as it happens, and so does the memory for it.
            contender.queue.flush()
            sizes.append(_traced())
    tracemalloc.stop()
    before, one, two = sizes
    growth = (two - one) / count * (100_000_000 - count)
    return {"megabytes": Sample((one - before + growth) / 1e6)}


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def million(who: str, directory: str, count: int, stores: str, kill: bool) -> Round:
    """Publish ``count`` messages in batches, and see what memory they take.

    Then close, or die by SIGKILL: the directory is what :func:`reopen` opens.
    """
    path = Path(stores, who)
    path.mkdir()
    contender = CONTENDERS[who](path, "os")
    bodies = Bodies()
    first = min(1_000, count // 10)
    build(contender, bodies, first)
    gc.collect()
    before, cpu = resident_bytes(), time.process_time()
    build(contender, bodies, count - first)
    cpu = time.process_time() - cpu
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    settle()
    gc.collect()
    growth = resident_bytes() - before
    contender.close()
    return {"memory": Sample(growth / count, cpu / count * 1e6, count)}


def reopen(who: str, directory: str, stores: str, count: int) -> Round:
    """Open a store that another process left behind, and get its first message."""
    # The first use of a library loads it: not a part of opening.
    with fresh_store(who, directory):
        pass
    gc.collect()
    memory, cpu, wall = resident_bytes(), time.process_time(), time.perf_counter()
    contender = CONTENDERS[who](Path(stores, who), "os")
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
        if held not in (count, count - 1):  # the delivered one may count or not
            raise RuntimeError(f"{held} of {count} messages after opening")
    contender.close()
    return {
        "ms": Sample(wall * 1e3),
        "open_cpu": Sample(opened_cpu),
        "cpu": Sample(all_cpu),
        "first_get": Sample(first * 1e3),
        "memory": Sample(growth / 1e6),
    }
