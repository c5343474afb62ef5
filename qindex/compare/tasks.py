"""The tasks of a comparison: each runs on one contender, in a child process of its own."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

from journal.errors import StoreError
from qindex.compare.contender import Contender, Store
from qindex.compare.load import Bodies, Run
from qindex.compare.peers import CONTENDERS
from qindex.compare.workload import Workload, make_workload

_SAMPLE_SECONDS = 0.05
_SETTLE_SECONDS = 1.0
_FILL_BATCH = 500
_LOOKUP_SECONDS = 2.0
_filled: list[Store] = []
"""Stores that wait to be killed."""


def load(contender: str, directory: str, workload: dict[str, Any]) -> dict[str, Any]:
    """Full speed, in ``directory/full``; then paced, in ``directory/paced``.

    ``io``: growth of the kernel's counters for this process from open to after close, in bytes.
    ``samples``: seconds, published, delivered, bytes on disk.
    """
    kind, given, place = CONTENDERS[contender], make_workload(workload), Path(directory)
    full = _fresh(place / "full")
    before = kernel_counters()
    resting = _memory()
    store = kind.store(full, given)
    run = Run(store, given, paced=False)
    samples: list[tuple[float, int, int, int]] = []
    peak: list[int] = [resting]
    start = time.perf_counter()

    def sample(published: int, delivered: int) -> None:
        samples.append((time.perf_counter() - start, published, delivered, disk_use(full)[1]))
        peak.append(_memory())

    result = run.run(sample, _SAMPLE_SECONDS)
    store.close()
    after = kernel_counters()
    samples.append((time.perf_counter() - start, *samples[-1][1:3], disk_use(full)[1]))
    result["samples"] = samples
    result["memory_bytes"] = max(peak) - resting
    result["disk_peak_bytes"] = max(one[3] for one in samples)
    result["disk_after_bytes"] = _settled_disk(kind, full, given)
    result["io"] = {name: after[name] - before[name] for name in after}
    shutil.rmtree(full)
    paced = kind.store(_fresh(place / "paced"), given)
    timed = Run(paced, given, paced=True).run(lambda _published, _delivered: None, 0.05)
    paced.close()
    return result | {name: timed[name] for name in ("publish_us", "delivery_us")}


def _settled_disk(kind: type[Contender], directory: Path, workload: Workload) -> int:
    """Bytes on disk after the store was opened again, left alone and closed."""
    if kind.kill_safe:
        store = kind.store(directory, workload)
        time.sleep(min(_SETTLE_SECONDS, workload.seconds))
        store.close()
    return disk_use(directory)[1]


def fill(contender: str, directory: str, workload: dict[str, Any], count: int) -> None:
    """Publish a backlog, for a process that is killed then."""
    given = make_workload(workload)
    store = CONTENDERS[contender].store(_fresh(Path(directory)), given)
    _publish_all(store, given, count)
    _filled.append(store)


def reopen(contender: str, directory: str, workload: dict[str, Any]) -> dict[str, Any]:
    """Open what a killed process left, and take the first message: seconds by the clock, and
    seconds of CPU."""
    kind, given = CONTENDERS[contender], make_workload(workload)
    # A library's loading at its first use is not part of recovery.
    kind.store(_fresh(Path(f"{directory}.small")), given).close()
    wall, cpu = time.perf_counter(), time.process_time()
    store = kind.store(Path(directory), given)
    first = store.receiver(0, 0, 0).take(1, 1.0)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    Bodies(given, 7).check(first[0])
    store.close()
    return {"seconds": wall, "cpu_seconds": cpu}


def lookup(contender: str, directory: str, workload: dict[str, Any], count: int) -> dict[str, Any]:
    """Microseconds of lookups by key in a store of ``count`` messages; ``None`` if it has none."""
    given = make_workload(workload)
    store = CONTENDERS[contender].store(_fresh(Path(directory)), given)
    _publish_all(store, given, count)
    chance, took = random.Random(3), []
    end = time.perf_counter() + _LOOKUP_SECONDS
    try:
        for _ in range(given.lookups):
            number = chance.randrange(count)
            start = time.perf_counter()
            body = store.find(number // _FILL_BATCH % given.queues, f"k{number}")
            took.append((time.perf_counter() - start) * 1e6)
            if body is None or int.from_bytes(body[8:16], "little") != number:
                raise StoreError(f"the lookup of k{number} gave another message, or none")
            if time.perf_counter() > end:
                break
    except NotImplementedError:
        return {"lookup_us": None}
    finally:
        store.close()
    took.sort()
    return {"lookup_us": took[len(took) // 2], "lookups": len(took)}


def _publish_all(store: Store, workload: Workload, count: int) -> None:
    bodies = Bodies(workload, 7)
    for start in range(0, count, _FILL_BATCH):
        numbers = range(start, min(start + _FILL_BATCH, count))
        keys = [f"k{one}" for one in numbers] if workload.lookups else []
        queue = start // _FILL_BATCH % workload.queues
        store.publish(queue, [bodies.make(one, 0) for one in numbers], keys)


def _fresh(directory: Path) -> Path:
    directory.mkdir()
    return directory


def disk_use(path: Path) -> tuple[int, int]:
    """Return (bytes at rest, bytes of allocated blocks) of all files below ``path``.

    At rest a file counts with its length, or with its blocks where it has holes.
    """
    at_rest = allocated = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue  # deleted by the store since the listing
            blocks = status.st_blocks * 512
            at_rest += min(status.st_size, blocks)
            allocated += blocks
    return at_rest, allocated


def kernel_counters() -> dict[str, int]:
    """``wchar``: bytes handed to write calls; ``write_bytes``: bytes of file pages made dirty, by
    a write or through a map alike. Nothing where the kernel does not tell."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    wanted = (line.split(": ") for line in lines)
    return {name: int(value) for name, value in wanted if name in ("wchar", "write_bytes")}


def _memory() -> int:
    """Anonymous resident memory in bytes: the process's own, without mapped files."""
    resident, shared = Path("/proc/self/statm").read_bytes().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
