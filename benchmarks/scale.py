"""Many queues, and one deep queue: CPU, memory and file handles of each step of their life.

The queues have ``--messages`` messages of 100 bytes each, the deep one ``--deep``. Each step runs
in a process of its own, so that its memory is its own and ``kill -9`` is a real one. CPU is user
and system time of the process, background threads included; memory is resident memory at the end of
the step less that of the process before it opened the store, but for ``traced``: what Python itself
has handed out (tracemalloc).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import qindex
from benchmarks.program import child, common_parser, parse_common, reporting
from benchmarks.report import Report
from benchmarks.tasks import resident_bytes
from qindex.compare.child import ChildError

_BODY = b"x" * 100
_SETTLE_SECONDS = 900
_BATCH = 10_000
_TAKEN = 1_000
_LOOKED_AT = 100
_BARS = (
    ("open, closed cleanly: cpu", 2.0, "s"),
    ("rest: traced_per_queue", 8192.0, "B"),
    ("rest, resident: resident_per_queue", 8192.0, "B"),
    ("in turn: handles", 512.0, ""),
    ("consume: handles", 512.0, ""),
)
_UNITS = {
    "cpu": "s",
    "cpu_each": "us",
    "resident": "MB",
    "traced_per_queue": "B",
    "resident_per_queue": "B",
}
Figures = dict[str, float]


@dataclass(frozen=True)
class Given:
    """The store of a step: ``count`` queues with ``depth`` messages each; the engine's options
    ``most_open`` (max_open_files) and ``idle`` (flush_idle, seconds)."""

    store: str
    count: int
    depth: int
    most_open: int = 512
    idle: float = 1.0

    def open(self) -> qindex.Engine:
        return qindex.open(self.store, flush_idle=self.idle, max_open_files=self.most_open)

    def names(self) -> list[str]:
        return [f"queue {number}" for number in range(self.count)]


@dataclass(slots=True)
class _Step:
    """The cost of one step: from its making on."""

    memory: int = field(default_factory=resident_bytes)
    cpu: float = field(default_factory=time.process_time)
    handles: int = 0

    def visit(self, engine: qindex.Engine, names: Sequence[str]) -> Iterator[qindex.Queue]:
        """Each queue; on the way the highest number of open descriptors is noted."""
        for number, name in enumerate(names):
            yield engine.queue(name)
            if not number % 50:
                self._count_handles()

    def _count_handles(self) -> None:
        self.handles = max(self.handles, len(os.listdir("/proc/self/fd")))

    def figures(self, operations: int = 0) -> Figures:
        """The figures; ``operations``: how many of them took the CPU."""
        cpu = time.process_time() - self.cpu
        self._count_handles()
        figures = {
            "cpu": cpu,
            "resident": (resident_bytes() - self.memory) / 1e6,
            "handles": self.handles,
            "threads": threading.active_count(),
        }
        if operations:
            figures["cpu_each"] = cpu / operations * 1e6
        return figures


def _settle(engine: qindex.Engine) -> None:
    """Wait until all queues are at rest: the engine's background thread sees to it."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while engine._roster.awake():
        if time.monotonic() > deadline:
            raise RuntimeError(f"queues are still awake after {_SETTLE_SECONDS} s")
        time.sleep(0.05)
    gc.collect()


def _take(queue: qindex.Queue) -> None:
    """Take a message and acknowledge it."""
    delivery = queue.get(timeout=0)
    assert delivery is not None
    queue.ack(delivery)


def _used(queue: qindex.Queue) -> qindex.Queue:
    queue.publish(_BODY)
    _take(queue)
    return queue


def _create(given: Given) -> Figures:
    with given.open() as engine:
        step = _Step()
        for _ in step.visit(engine, given.names()):
            pass
        return step.figures(given.count)


def _publish(given: Given) -> Figures:
    with given.open() as engine:
        step = _Step()
        for queue in step.visit(engine, given.names()):
            for done in range(0, given.depth, _BATCH):
                queue.publish_many([_BODY] * min(_BATCH, given.depth - done))
        return step.figures(given.count * given.depth)


def _in_turn(given: Given) -> Figures:
    """One message to each queue, then take one from each, in turn: each visit wakes a queue."""
    with given.open() as engine:
        step = _Step()
        for queue in step.visit(engine, given.names()):
            queue.publish(_BODY)
        for queue in step.visit(engine, given.names()):
            _take(queue)
        return step.figures(2 * given.count)


def _rest(given: Given, traced: bool = True) -> Figures:
    """Memory and handles of queues that were used, and are idle since.

    Not ``traced``: without tracemalloc, whose own memory would be counted. A few hundred are used
    first: what as many queues as may be awake take once is no cost of each idle one.
    """
    _warm_up()
    with given.open() as engine:
        names = given.names()
        first, others = names[: len(names) // 5][:500], names[len(names) // 5 :]
        kept = [_used(engine.queue(name)) for name in first]
        _settle(engine)
        step = _Step()
        if traced:
            tracemalloc.start()
        kept += [_used(engine.queue(name)) for name in others]
        _settle(engine)
        figures = step.figures()
        if not traced:
            return figures | {"resident_per_queue": figures["resident"] * 1e6 / len(others)}
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return figures | {"traced_per_queue": held / len(others)}


def _open(given: Given) -> Figures:
    """Open, then look at some of the queues."""
    _warm_up()
    gc.collect()
    step = _Step()
    with given.open() as engine:
        figures = step.figures()
        names = given.names()[:: max(1, given.count // _LOOKED_AT)][:_LOOKED_AT]
        queues = [engine.queue(name) for name in names]
        figures["messages_of_some"] = sum(map(len, queues))
        assert all(one.body == _BODY for queue in queues for one in queue.peek())
    return figures


def _kill(given: Given) -> Figures:
    """Publish ten thousand more, or one more to each queue, and die."""
    engine = given.open()
    for name in given.names():
        engine.queue(name).publish_many([_BODY] * max(1, _BATCH // given.count))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _consume(given: Given) -> Figures:
    taken = 0
    with given.open() as engine:
        step = _Step()
        for queue in step.visit(engine, given.names()):
            while batch := queue.get_many(_TAKEN):
                taken += len(batch)
                queue.ack_many(batch)
        return step.figures(taken) | {"messages": taken}


def _warm_up() -> None:
    """Use the engine once: the first use of a library loads it."""
    with tempfile.TemporaryDirectory() as directory, qindex.open(directory) as engine:
        queue = engine.queue("q")
        queue.publish(_BODY)
        queue.flush()
        queue.peek()


STEPS: dict[str, Callable[[Given], Figures]] = {
    "create": _create,
    "publish": _publish,
    "open, closed cleanly": _open,
    "in turn": _in_turn,
    "rest": _rest,
    "rest, resident": partial(_rest, traced=False),
    "kill": _kill,
    "open, killed": _open,
    "consume": _consume,
}
_DEEP = ("publish", "open, closed cleanly", "kill", "open, killed", "consume")
"""The steps that a single queue has, too."""


def run_step(name: str, **given: str | float) -> Figures:
    """Do one step in this process."""
    return STEPS[name](Given(**given))  # type: ignore[arg-type]


def _run(report: Report, prefix: str, steps: Sequence[str], given: Given) -> None:
    """Run steps, each in a process of its own."""
    for name in steps:
        with child() as worker:
            try:
                figures = worker.call(run_step, name=name, **asdict(given))
            except ChildError as error:
                if name != "kill" or error.status != -signal.SIGKILL:
                    raise
                continue
        for figure, value in figures.items():
            report.add_one(f"{prefix}{name}: {figure}", value, _UNITS.get(figure, ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 0 when all bars that were measured hold, else 1."""
    parser = common_parser("scale", __doc__)
    parser.add_argument("--queues", type=int, default=10_000, help="how many queues; 0: none")
    parser.add_argument("--messages", type=int, default=100, help="in each of them")
    parser.add_argument("--deep", type=int, default=10_000_000, help="in one queue; 0: none")
    options = parse_common(parser, arguments)
    with reporting(options) as (report, directory):
        if options.queues:
            many = Given(str(directory / "many"), options.queues, options.messages)
            _run(report, "", list(STEPS), many)
        if options.deep:
            _run(report, "deep: ", _DEEP, Given(str(directory / "deep"), 1, options.deep))
        for figure, limit, unit in _BARS:
            if report.find(figure) is not None:
                report.hold_most(figure, figure, limit, unit)
    return 0 if all(bar.holds for bar in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
