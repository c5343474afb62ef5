"""Workloads with a signal's handler, or a finalizer, that makes a call of its own at any one point.

What it calls is done, or refused before it has changed anything; and nobody waits for himself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.schedules.engine_workloads import _with_garbage
from tests.schedules.registry import workload
from tests.schedules.scheduler import Run
from tests.schedules.world import LARGE, SMALL, World


def _world(run: Run, size: int = SMALL, handled: int = SMALL, **options: Any) -> World:
    w = World(run, **options)
    w.publish(size)
    w.publish(size)
    w.handle = lambda: w.publish(handled)
    return w


def _alone(run: Run, call: Callable[[World], object], handled: int, **options: Any) -> None:
    w = _world(run, LARGE, handled, **options)
    w.race(caller=lambda: call(w))
    w.end()


@workload(interrupts="caller")
def handler_in_close(run: Run) -> None:
    _alone(run, lambda w: w.engine.close(), LARGE)


@workload(interrupts="caller")
def handler_in_flush(run: Run) -> None:
    _alone(run, lambda w: w.engine.flush(), LARGE, durability="fsync")


@workload(interrupts="caller")
def handler_in_sync(run: Run) -> None:
    _alone(run, lambda w: w.engine.sync(), LARGE)


@workload(interrupts="caller")
def handler_in_ack(run: Run) -> None:
    _alone(run, lambda w: w.take_one(0), LARGE, durability="fsync")


@workload(interrupts="caller")
def handler_in_publish(run: Run) -> None:
    _alone(run, lambda w: w.publish(LARGE), LARGE, durability="fsync")


@workload(interrupts="caller")
def handler_in_compact(run: Run) -> None:
    def compact(w: World) -> None:
        w.take_one(0)
        w.engine.compact()

    _alone(run, compact, LARGE, store_file_bytes=6_000)


@workload(interrupts="caller")
def handler_closes_in_publish(run: Run) -> None:
    w = _world(run, durability="fsync")
    w.handle = w.close
    w.race(caller=lambda: w.publish(LARGE))
    w.end()


@workload(interrupts="caller")
def handler_closes_in_close(run: Run) -> None:
    w = _world(run)
    w.handle = w.close
    w.race(caller=w.close)
    w.end()


@workload(interrupts="publisher")
def handler_fsync_flush(run: Run) -> None:
    w = _world(run, durability="fsync")
    w.race(publisher=w.publish, flusher=w.queue.flush)
    w.end()


@workload(interrupts="publisher")
def handler_confirm_flush(run: Run) -> None:
    w = _world(run)
    w.race(publisher=lambda: w.publish(confirm=True), flusher=w.queue.flush)
    w.end()


@workload(interrupts="publisher")
def handler_stored_compact(run: Run) -> None:
    w = _with_garbage(run)
    w.handle = lambda: w.publish(LARGE)
    w.race(publisher=lambda: w.publish(LARGE, confirm=True), compacter=w.engine.compact)
    w.end()


@workload(interrupts="one")
def handler_fsync_two(run: Run) -> None:
    w = _world(run, durability="fsync")
    w.race(one=w.publish, other=w.publish)
    w.end()


@workload(interrupts="acker")
def handler_ack_flush(run: Run) -> None:
    w = _world(run, durability="fsync")
    one = w.got(1)
    w.race(acker=lambda: w.ack(*one), flusher=w.queue.flush)
    w.end()


@workload(interrupts="publisher")
def handler_small_in_stored_ack(run: Run) -> None:
    """It holds the message store's locks; who has the queue's lock wants them."""
    w = _world(run, LARGE, SMALL)
    one = w.got(1)
    w.race(publisher=lambda: w.publish(LARGE), acker=lambda: w.ack(*one))
    w.end()


@workload(interrupts="publisher")
def handler_compacts_in_fsync(run: Run) -> None:
    """It waits for a compaction that waits for the sync that it is in."""
    w = _with_garbage(run)
    w.handle = lambda: w.guard(w.engine.compact)
    w.race(publisher=lambda: w.publish(confirm=True), compacter=w.engine.compact)
    w.end()


@workload(interrupts="one other")
def handler_other_queue(run: Run) -> None:
    """Two threads, each in the middle of a call on the queue that the other's handler wants."""
    w = _world(run)
    other = w.engine.queue("b")

    def both() -> None:
        w.publish()
        w.publish(queue=other)

    w.handle = both
    w.race(one=w.publish, other=lambda: w.publish(queue=other))
    w.end()


@workload(interrupts="publisher")
def handler_asks_engine(run: Run) -> None:
    """It wants the engine's lock, whose holder wants the queue's."""
    w = _world(run)
    w.handle = lambda: w.guard(w.engine.stats)
    w.race(publisher=w.publish, looker=w.engine.stats)
    w.end()


@workload(interrupts="one")
def handler_rejects(run: Run) -> None:
    w = World(run, {"dead_letter": "dead"}, durability="fsync")
    for _ in range(2):
        w.publish()
    one, other = w.got(2)
    w.handle = lambda: w.guard(lambda: other.reject())
    w.race(one=lambda: one.reject())
    w.end()


@workload(interrupts="one", nightly=True)
def handler_rejects_beside(run: Run) -> None:
    w = World(run, {"dead_letter": "dead"}, durability="fsync")
    for _ in range(3):
        w.publish()
    one, other, third = w.got(3)
    w.handle = lambda: w.guard(lambda: third.reject())
    w.race(one=lambda: one.reject(), other=lambda: other.reject())
    w.end()
