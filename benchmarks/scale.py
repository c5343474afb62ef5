"""Many queues, and one deep queue: CPU, memory and file handles of each step of their life.

``python -m benchmarks.scale [--queues N] [--messages M] [--deep D] [--dir DIR] [--json FILE]``:
``N`` queues with ``M`` messages of 100 bytes each, then one queue with ``D`` messages. Each step
runs in a process of its own, so that its memory is its own and ``kill -9`` is a real one. CPU is
user and system time of the process, background threads included; memory is resident memory at the
end of the step less that of the process before it opened the store, but for ``traced``: what Python
itself has handed out (tracemalloc). Printed are JSON lines and a table, and whether the bars hold.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

import qindex
from benchmarks.children import module_command
from benchmarks.measure import Bar, human
from benchmarks.tasks import disk_use, resident_bytes

__all__ = ["main"]

_BODY = b"x" * 100
_SETTLE_SECONDS = 900
_BATCH = 10_000
_BARS = (
    ("open, closed cleanly", "cpu_s", 2.0, "s"),
    ("rest", "traced_per_queue", 8192.0, "B"),
    ("rest", "resident_per_queue", 8192.0, "B"),
    ("in turn", "handles", 512.0, ""),
    ("consume", "handles", 512.0, ""),
)


@dataclass(slots=True)
class _Step:
    """The cost of one step: from its making on."""

    memory: int = field(default_factory=resident_bytes)
    cpu: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.perf_counter)
    handles: int = 0

    def count_handles(self) -> None:
        """Take the number of descriptors that are open now, if it is the highest so far."""
        self.handles = max(self.handles, len(os.listdir("/proc/self/fd")))

    def figures(self, operations: int = 0) -> dict[str, float]:
        """Give the figures; ``operations``: how many of them took the CPU."""
        cpu = time.process_time() - self.cpu
        self.count_handles()
        figures = {
            "cpu_s": cpu,
            "wall_s": time.perf_counter() - self.wall,
            "resident_mb": (resident_bytes() - self.memory) / 1e6,
            "handles": self.handles,
            "threads": threading.active_count(),
        }
        if operations:
            figures["cpu_us_each"] = cpu / operations * 1e6
        return figures


@dataclass(frozen=True, slots=True)
class _Given:
    """The store of a step: ``count`` queues with ``depth`` messages each; the engine's options
    ``most_open`` (max_open_files) and ``idle`` (flush_idle, seconds)."""

    store: str
    count: int
    depth: int
    most_open: int
    idle: float

    def open(self) -> qindex.Engine:
        return qindex.open(self.store, flush_idle=self.idle, max_open_files=self.most_open)

    def names(self) -> Iterator[str]:
        for number in range(self.count):
            yield f"queue {number}"


@contextlib.contextmanager
def _opened(given: _Given) -> Iterator[tuple[qindex.Engine, _Step]]:
    """Open the store for a step that leaves it closed; opening and closing are none of it."""
    with given.open() as engine:
        yield engine, _Step()


def _settle(engine: qindex.Engine) -> None:
    """Wait until all queues are at rest: the engine's background thread sees to it."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while engine._roster.awake():
        if time.monotonic() > deadline:
            raise RuntimeError(f"queues are still awake after {_SETTLE_SECONDS} s")
        time.sleep(0.05)
    gc.collect()


# -- steps on many queues --------------------------------------------------------------------------


def _create(given: _Given) -> dict[str, float]:
    with _opened(given) as (engine, step):
        for number, name in enumerate(given.names()):
            engine.queue(name)
            if not number % 50:
                step.count_handles()
        return step.figures(given.count)


def _publish(given: _Given) -> dict[str, float]:
    with _opened(given) as (engine, step):
        for number, name in enumerate(given.names()):
            engine.queue(name).publish_many([_BODY] * given.depth)
            if not number % 50:
                step.count_handles()
        return step.figures(given.count)


def _in_turn(given: _Given) -> dict[str, float]:
    """One message to each queue, then take one from each, in turn: each visit wakes a queue."""
    with _opened(given) as (engine, step):
        queues = [engine.queue(name) for name in given.names()]
        for number, queue in enumerate(queues):
            queue.publish(_BODY)
            if not number % 50:
                step.count_handles()
        for number, queue in enumerate(queues):
            delivery = queue.get(timeout=0)
            assert delivery is not None
            queue.ack(delivery)
            if not number % 50:
                step.count_handles()
        return step.figures(2 * given.count)


def _rest(given: _Given) -> dict[str, float]:
    """Memory and handles of queues that were used, and are idle since."""
    _warm_up()
    with given.open() as engine:
        _settle(engine)
        step = _Step()
        tracemalloc.start()
        queues = [engine.queue(name) for name in given.names()]
        for queue in queues:
            queue.publish(_BODY)
        _settle(engine)
        traced = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        figures = step.figures()
    figures["traced_per_queue"] = traced / given.count
    return figures


def _rest_resident(given: _Given) -> dict[str, float]:
    """The same without tracemalloc, whose own memory would be counted. A few hundred queues are
    used first: what as many queues as may be awake take once is no cost of each idle one."""
    _warm_up()
    with given.open() as engine:
        names = list(given.names())
        first, others = names[: len(names) // 5][:500], names[len(names) // 5 :]
        kept = [_used(engine.queue(name)) for name in first]
        _settle(engine)
        step = _Step()
        kept += [_used(engine.queue(name)) for name in others]
        _settle(engine)
        idle = _Step()
        time.sleep(5 * given.idle)
        cpu = time.process_time() - idle.cpu
        figures = step.figures()
    figures["resident_per_queue"] = figures["resident_mb"] * 1e6 / len(others)
    figures["idle_cpu_percent"] = cpu / (5 * given.idle) * 100
    return figures


def _used(queue: qindex.Queue) -> qindex.Queue:
    """Take a message and acknowledge it."""
    delivery = queue.get(timeout=0)
    assert delivery is not None
    queue.ack(delivery)
    return queue


def _open(given: _Given) -> dict[str, float]:
    _warm_up()
    gc.collect()
    step = _Step()
    engine = given.open()
    figures = step.figures()
    held = sum(len(engine.queue(name)) for name in _some(given))
    figures["messages_of_some"] = held
    figures["look_cpu_us"] = (time.process_time() - step.cpu - figures["cpu_s"]) * 1e6 / 100
    engine.close()
    return figures


def _some(given: _Given) -> list[str]:
    names = list(given.names())
    return names[:: max(1, len(names) // 100)][:100]


def _close(given: _Given) -> dict[str, float]:
    engine = given.open()
    for name in given.names():
        engine.queue(name).publish(_BODY)
    _settle(engine)
    step = _Step()
    engine.close()
    return step.figures(given.count)


def _consume(given: _Given) -> dict[str, float]:
    taken = 0
    with _opened(given) as (engine, step):
        for number, name in enumerate(given.names()):
            queue = engine.queue(name)
            batch = queue.get_many(given.depth)
            taken += len(batch)
            queue.ack_many(batch)
            if not number % 50:
                step.count_handles()
        figures = step.figures(given.count)
    figures["messages"] = taken
    return figures


def _kill(given: _Given) -> dict[str, float]:
    """Publish to each queue once more, and die."""
    engine = given.open()
    for name in given.names():
        engine.queue(name).publish(_BODY)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


# -- steps on one deep queue -----------------------------------------------------------------------


def _deep_publish(given: _Given) -> dict[str, float]:
    with _opened(given) as (engine, step):
        queue = engine.queue("deep")
        batch = [_BODY] * _BATCH
        for _ in range(given.depth // _BATCH):
            queue.publish_many(batch)
        return step.figures(given.depth)


def _deep_open(given: _Given) -> dict[str, float]:
    _warm_up()
    gc.collect()
    step = _Step()
    with given.open() as engine:
        figures = step.figures()
        queue = engine.queue("deep")
        figures["messages"] = len(queue)
        first = queue.peek()
        assert first[0].body == _BODY
        figures["open_and_peek_cpu_s"] = time.process_time() - step.cpu
    return figures


def _deep_kill(given: _Given) -> dict[str, float]:
    engine = given.open()
    engine.queue("deep").publish_many([_BODY] * _BATCH)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _deep_consume(given: _Given) -> dict[str, float]:
    with _opened(given) as (engine, step):
        queue = engine.queue("deep")
        taken = 0
        while batch := queue.get_many(1000):
            taken += len(batch)
            queue.ack_many(batch)
        figures = step.figures(taken)
    figures["messages"] = taken
    return figures


def _warm_up() -> None:
    """Use the engine once: the first use of a library loads it."""
    with tempfile.TemporaryDirectory() as directory, qindex.open(directory) as engine:
        queue = engine.queue("q")
        queue.publish(_BODY)
        queue.flush()
        queue.peek()


_QUEUES: dict[str, Callable[[_Given], dict[str, float]]] = {
    "create": _create,
    "publish": _publish,
    "open, closed cleanly": _open,
    "in turn": _in_turn,
    "rest": _rest,
    "rest, resident": _rest_resident,
    "close": _close,
    "kill": _kill,
    "open, killed": _open,
    "consume": _consume,
}
_DEEP: dict[str, Callable[[_Given], dict[str, float]]] = {
    "deep: publish": _deep_publish,
    "deep: open, closed cleanly": _deep_open,
    "deep: kill": _deep_kill,
    "deep: open, killed": _deep_open,
    "deep: consume": _deep_consume,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives 0 when all bars that were measured hold, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queues", type=int, default=10_000, help="how many queues; 0: none")
    parser.add_argument("--messages", type=int, default=100, help="in each of them")
    parser.add_argument("--deep", type=int, default=10_000_000, help="in one queue; 0: none")
    parser.add_argument("--open-files", type=int, default=512, help="max_open_files of the engine")
    parser.add_argument("--idle", type=float, default=1.0, help="flush_idle of the engine")
    parser.add_argument("--dir", type=Path, help="where the stores are made")
    parser.add_argument("--json", type=Path, help="write the JSON lines here, too")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.step:
        steps = _QUEUES | _DEEP
        work = _Given(str(given.dir), given.queues, given.messages, given.open_files, given.idle)
        print(json.dumps(steps[given.step](work)))
        return 0
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        results: dict[str, dict[str, float]] = {}
        for name, figures in _run_all(given, Path(directory)):
            results[name] = figures
            print(json.dumps({"step": name, **figures}), flush=True)
    bars = [
        Bar.at_most(f"{step}: {figure}", value, limit, unit)
        for step, figure, limit, unit in _BARS
        if (value := _value(results, step, figure)) is not None
    ]
    judged = [json.dumps(bar.to_json()) for bar in bars]
    print("\n".join(judged))
    _print_tables(results, bars)
    if given.json is not None:
        lines = [json.dumps({"step": name, **figures}) for name, figures in results.items()]
        given.json.write_text("".join(line + "\n" for line in lines + judged))
    return 0 if all(bar.holds for bar in bars) else 1


def _value(results: dict[str, dict[str, float]], step: str, figure: str) -> float | None:
    if figure == "resident_per_queue":
        step = "rest, resident"
    return results.get(step, {}).get(figure)


def _run_all(given: argparse.Namespace, directory: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Run each step in a process of its own; gives its figures."""
    if given.queues:
        for name in _QUEUES:
            yield name, _run(name, directory / "many", given.queues, given.messages, given)
    if given.deep:
        for name in _DEEP:
            yield name, _run(name, directory / "deep", 1, given.deep, given)


def _run(
    name: str, store: Path, count: int, depth: int, given: argparse.Namespace
) -> dict[str, float]:
    words = ["--step", name, "--dir", os.path.abspath(store)]
    words += ["--queues", str(count), "--messages", str(depth)]
    words += ["--open-files", str(given.open_files), "--idle", str(given.idle)]
    done = subprocess.run(
        module_command("scale", *words), cwd="/", stdout=subprocess.PIPE, text=True, check=False
    )
    if name.endswith("kill"):
        if done.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{name}: ended with {done.returncode}, and was to be killed")
        return {}
    if done.returncode:
        raise RuntimeError(f"{name}: ended with {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)
    if name.endswith("publish"):
        at_rest, allocated = disk_use(store)
        figures["disk_per_message"] = at_rest / (count * depth)
        figures["allocated_per_queue"] = allocated / count
    return figures


def _print_tables(results: dict[str, dict[str, float]], bars: list[Bar]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    common = ("cpu_s", "wall_s", "cpu_us_each", "resident_mb", "handles", "threads")
    table = Table(title="scale", header_style="bold")
    table.add_column("step", no_wrap=True)
    for heading in common:
        table.add_column(heading.replace("_", " "), justify="right")
    table.add_column("more")
    for name, figures in results.items():
        if figures:
            more = [f"{key} {human(figures[key])}" for key in figures if key not in common]
            table.add_row(name, *(human(figures.get(key)) for key in common), ", ".join(more))
    console.print(table)
    for bar in bars:
        verdict = "holds" if bar.holds else "DOES NOT HOLD"
        console.print(f"{bar.bar} {human(bar.value)} {bar.unit} {bar.limit}: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
