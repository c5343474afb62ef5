"""One task on one contender, in a process of its own: none pays for another's memory or threads.

``python -m qindex.compare.child`` reads one JSON object, the task, and answers with one line:
``{"result": ...}`` or ``{"error": ...}``. When its input ends, the one who asked is gone, and it
ends too.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from journal.errors import StoreError
from qindex.compare.designs import Contender
from qindex.compare.load import Bodies, Run
from qindex.compare.peers import CONTENDERS
from qindex.compare.workload import Workload, make_workload

_SAMPLE_SECONDS = 0.05
_SETTLE_SECONDS = 1.0
_FILL_BATCH = 500
_LOOKUP_SECONDS = 2.0
_PARENT_GONE = 3


def load(kind: type[Contender], directory: Path, workload: Workload) -> dict[str, Any]:
    """Full speed, in ``directory/full``; then paced, in ``directory/paced``.

    ``io``: growth of the kernel's counters for this process from open to after close, in bytes.
    ``samples``: seconds, published, delivered, bytes on disk.
    """
    full = _fresh(directory / "full")
    before = _kernel_counters()
    resting = _memory()
    contender = kind(full, workload)
    run = Run(contender, workload, paced=False)
    samples: list[tuple[float, int, int, int]] = []
    peak: list[int] = [resting]
    start = time.perf_counter()

    def sample(published: int, delivered: int) -> None:
        samples.append((time.perf_counter() - start, published, delivered, disk_bytes(full)))
        peak.append(_memory())

    result = run.run(sample, _SAMPLE_SECONDS)
    contender.close()
    after = _kernel_counters()
    samples.append((time.perf_counter() - start, *samples[-1][1:3], disk_bytes(full)))
    result["samples"] = samples
    result["memory_bytes"] = max(peak) - resting
    result["disk_peak_bytes"] = max(one[3] for one in samples)
    result["disk_after_bytes"] = _settled_disk(kind, full, workload)
    result["io"] = {name: after[name] - before[name] for name in after}
    shutil.rmtree(full)
    paced = kind(_fresh(directory / "paced"), workload)
    timed = Run(paced, workload, paced=True).run(lambda _published, _delivered: None, 0.05)
    paced.close()
    return result | {name: timed[name] for name in ("publish_us", "delivery_us")}


def _settled_disk(kind: type[Contender], directory: Path, workload: Workload) -> int:
    """Bytes on disk after the store was opened again, left alone and closed."""
    contender = kind(directory, workload) if kind.kill_safe else None
    if contender is not None:
        time.sleep(min(_SETTLE_SECONDS, workload.seconds))
        contender.close()
    return disk_bytes(directory)


def fill(
    kind: type[Contender], directory: Path, workload: Workload, count: int, tell: Callable[[], None]
) -> None:
    """Publish a backlog, say so, and wait to be killed."""
    contender = kind(_fresh(directory), workload)
    _publish_all(contender, workload, count)
    tell()
    signal.pause()


def reopen(kind: type[Contender], directory: Path, workload: Workload) -> dict[str, Any]:
    """Open what a killed process left, and take the first message: seconds by the clock, and
    seconds of CPU."""
    # A library's loading at its first use is no part of recovery.
    small = _fresh(directory.with_name(directory.name + ".small"))
    kind(small, workload).close()
    wall, cpu = time.perf_counter(), time.process_time()
    contender = kind(directory, workload)
    first = contender.receiver(0, 0, 0).take(1, 1.0)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    Bodies(workload, 7).check(first[0])
    contender.close()
    return {"seconds": wall, "cpu_seconds": cpu}


def lookup(
    kind: type[Contender], directory: Path, workload: Workload, count: int
) -> dict[str, Any]:
    """Microseconds of lookups by key in a store of ``count`` messages; ``None`` if it has none."""
    contender = kind(_fresh(directory), workload)
    _publish_all(contender, workload, count)
    chance, took = random.Random(3), []
    end = time.perf_counter() + _LOOKUP_SECONDS
    try:
        for _ in range(workload.lookups):
            number = chance.randrange(count)
            start = time.perf_counter()
            body = contender.find(number // _FILL_BATCH % workload.queues, f"k{number}")
            took.append((time.perf_counter() - start) * 1e6)
            if body is None or int.from_bytes(body[8:16], "little") != number:
                raise StoreError(f"the lookup of k{number} gave another message, or none")
            if time.perf_counter() > end:
                break
    except NotImplementedError:
        return {"lookup_us": None}
    finally:
        contender.close()
    took.sort()
    return {"lookup_us": took[len(took) // 2], "lookups": len(took)}


def _publish_all(contender: Contender, workload: Workload, count: int) -> None:
    bodies = Bodies(workload, 7)
    for start in range(0, count, _FILL_BATCH):
        numbers = range(start, min(start + _FILL_BATCH, count))
        keys = [f"k{one}" for one in numbers] if workload.lookups else []
        queue = start // _FILL_BATCH % workload.queues
        contender.publish(queue, [bodies.make(one, 0) for one in numbers], keys)


def _fresh(directory: Path) -> Path:
    directory.mkdir()
    return directory


def disk_bytes(directory: Path) -> int:
    """Bytes of the blocks that all files below a directory take."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # deleted by the store since the listing
    return total


def _kernel_counters() -> dict[str, int]:
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


def _end_with_parent() -> None:
    """End when the other side of standard input is gone: the answer would have no reader."""
    sys.stdin.buffer.read()
    os._exit(_PARENT_GONE)


def main() -> None:
    """Do the task that standard input gives."""
    # The terminal sends Ctrl-C to all its processes; it is the parent that ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not get between

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    kind = CONTENDERS[request["contender"]]
    directory, workload = Path(request["directory"]), make_workload(request["workload"])
    try:
        if request["task"] == "load":
            answer({"result": load(kind, directory, workload)})
        elif request["task"] == "fill":
            count = request["count"]
            fill(kind, directory, workload, count, lambda: answer({"result": None}))
        elif request["task"] == "lookup":
            answer({"result": lookup(kind, directory, workload, request["count"])})
        else:
            answer({"result": reopen(kind, directory, workload)})
    except (StoreError, OSError) as error:
        answer({"error": str(error)})
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})
    # Threads of a contender that failed may still wait for something.
    os._exit(0)


if __name__ == "__main__":
    main()
