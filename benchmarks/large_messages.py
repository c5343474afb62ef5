"""Messages of 64 KiB through the engine: speed beside its peers, space, latency, steady load.

The groups of :mod:`benchmarks.msgstore` that measure the whole engine, not the store alone.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import qindex
from benchmarks import throughput
from benchmarks.bodies import large_bodies
from benchmarks.peers import LARGE
from benchmarks.program import fresh, installed
from benchmarks.report import OURS, Bar, Report
from benchmarks.session import Session
from benchmarks.stopwatch import Found, Sample, Stopwatch
from msgstore.format import FRAME
from qindex.compare.tasks import disk_use

BODY_BYTES = 64 << 10
FILE_BYTES = 16 << 20
_RECORD_BYTES = BODY_BYTES + 28
_BACKLOG_BYTES = 64 << 20
_REOPENED = 1_000_000
_QUEUES = 20
_PACE = 0.0005
_WINDOW = 100


def beside_peers(report: Report, root: Path, options: Namespace) -> None:
    """Publish, then get and acknowledge one by one, in queues of their own."""
    there = installed(LARGE.values(), report)
    session = Session(there, root, options.rounds, report)
    given = {"count": options.count, "kibibytes": BODY_BYTES >> 10}
    measured = session.interleave(throughput.large, there, **given)
    peers = [name for name in there if name != OURS]
    for name, rounds in measured.items():
        report.add(f"engine_{name}_64KiB", rounds, comparable=peers)
    for peer in peers:
        report.hold_ratio("engine_publish_get_ack_64KiB", peer, 3)


def space_and_latency(report: Report, root: Path, options: Namespace) -> None:
    """1 GiB to two queues, a random nine in ten acknowledged, compacted; and what a second thread
    that publishes and consumes notices of the compaction of 128 MiB at a time."""
    bodies = large_bodies(BODY_BYTES, 64)
    count = options.space_megabytes * (1 << 20) // BODY_BYTES
    with fresh(root) as path, qindex.open(path, background=False) as engine:
        _publish(engine, bodies, count)
        _acknowledge(engine, 0.9)
        engine.compact()
        stats = engine.stats().message_store
        assert stats is not None
        # Before there is a second thread: what it leaves in the file that is written to, which is
        # never compacted, depends on how far it comes.
        size = _disk(path) / stats.live
        quiet = _beside(engine, bodies, lambda: time.sleep(options.seconds))
        loud: list[float] = []
        compactions: list[Any] = []
        spent = 0.0
        while spent < options.seconds / 2:
            _publish(engine, bodies, 2048)
            _acknowledge(engine, 0.7)
            started = time.perf_counter()
            loud += _beside(engine, bodies, lambda: compactions.append(engine.compact()))
            spent += time.perf_counter() - started
    report.add_one("engine_disk_after_90%_acked", size, "x live")
    copied = sum(each.bytes_copied for each in compactions)
    notes = {
        "quiet": f"{len(quiet)} publishes",
        "compacting": f"{len(loud)} publishes, {copied >> 20} MiB copied in {spent:.1f} s",
    }
    p99 = {"quiet": Sample(_p99(quiet) * 1e6), "compacting": Sample(_p99(loud) * 1e6)}
    report.add("engine_publish_p99", [p99], unit="us", better="low", notes=notes)
    report.judge(Bar.at_most("engine: disk after 90 % acked / live", size, 1.6))
    report.judge(Bar.at_most("engine: p99 compacting / quiet", _p99(loud) / _p99(quiet), 3.0))


def _publish(engine: qindex.Engine, bodies: list[bytes], count: int) -> None:
    for number in range(count):
        engine.publish_to(["one", "two"], bodies[number % len(bodies)])


def _acknowledge(engine: qindex.Engine, share: float) -> None:
    """Acknowledge this share of the messages, the same in both queues; give the rest back."""
    for name in ("one", "two"):
        chance = random.Random(2)
        queue = engine.queue(name)
        for delivery in queue.consume(prefetch=1 << 30, timeout=0):
            if chance.random() < share:
                delivery.ack()
    # What is left stays with this consumer.


def _beside(engine: qindex.Engine, bodies: list[bytes], work: Callable[[], object]) -> list[float]:
    """Latencies, in seconds, of publishing in a second thread while ``work`` runs."""
    latencies: list[float] = []
    stop = threading.Event()
    queue = engine.queue("beside")

    def publish() -> None:
        while not stop.is_set():
            started = time.perf_counter()
            queue.publish(bodies[len(latencies) % len(bodies)])
            latencies.append(time.perf_counter() - started)
            if len(queue) > _WINDOW:
                queue.ack(queue.get())
            time.sleep(_PACE)

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        try:
            work()
        finally:
            stop.set()
    publishing.result()
    return latencies


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def steady_load(report: Report, root: Path, options: Namespace) -> None:
    """Publish and acknowledge at full speed, in random order, with a backlog: the high water of
    the disk."""
    bodies = large_bodies(BODY_BYTES, 64)
    chance = random.Random(3)
    held: list[qindex.Delivery] = []
    worst = ratio = float("-inf")
    published = 0
    with fresh(root) as path, qindex.open(path, store_file_bytes=FILE_BYTES) as engine:
        queue = engine.queue("q")
        started = time.perf_counter()
        while time.perf_counter() - started < options.steady_seconds:
            for body in bodies[:32]:
                queue.publish(body)
                delivery = queue.get(0)
                assert delivery is not None
                held.append(delivery)
                if len(held) * BODY_BYTES > _BACKLOG_BYTES:
                    at = chance.randrange(len(held))
                    held[at], held[-1] = held[-1], held[at]
                    held.pop().ack()
            published += 32
            live = len(held) * (_RECORD_BYTES + FRAME)
            disk = _disk(path)
            worst = max(worst, disk - 2 * FILE_BYTES - 2.2 * live)
            if len(held) * BODY_BYTES >= _BACKLOG_BYTES:
                ratio = max(ratio, disk / live)
        elapsed = time.perf_counter() - started
        stats = engine.stats().message_store
        assert stats is not None
        held.clear()
    note = (
        f"publishers waited {stats.stalled_seconds:.1f} of {elapsed:.0f} s; "
        f"at most {ratio:.2f} x live on disk"
    )
    rate = published * BODY_BYTES / elapsed / 1e9
    report.add_one("engine_steady_load", rate, "GB/s", "high", note)
    bar = "engine, steady: disk - 2.2 x live - 2 files"
    report.judge(Bar.at_most(bar, worst / 1e6, 0.0, "MB"))


def _disk(path: Path) -> int:
    """Bytes in the files of the message store."""
    return disk_use(path / "msg_store_persistent")[0]


def reopening(report: Report, root: Path, options: Namespace) -> None:
    """A million messages of the message store over twenty queues: opening after a clean close."""
    each = _REOPENED // _QUEUES
    found = Found()
    with fresh(root) as path:
        with qindex.open(path, embed_below=0) as engine:
            for number in range(_QUEUES):
                queue = engine.queue(f"queue {number}")
                for _ in range(0, each, 5000):
                    queue.publish_many([b"x"] * 5000)
        for _ in range(options.rounds):
            gc.collect()
            watch = Stopwatch()
            with watch.running():
                engine = qindex.open(path, embed_below=0)
                queues = [engine.queue(f"queue {number}") for number in range(_QUEUES)]
            if sum(map(len, queues)) != _REOPENED:
                raise RuntimeError("messages are missing")
            found.note("engine_reopen_1M", OURS, Sample(watch.cpu))
            engine.close()
    report.add_all(found, unit="CPU s", better="low")
    bar = "engine: reopening 1M messages in 20 queues"
    report.hold_most(bar, "engine_reopen_1M", 0.3, "CPU s")


ENGINE_GROUPS: dict[str, Callable[[Report, Path, Namespace], None]] = {
    "engine_peers": beside_peers,
    "engine_space": space_and_latency,
    "engine_steady": steady_load,
    "engine_reopen": reopening,
}
