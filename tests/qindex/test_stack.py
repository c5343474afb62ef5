"""A call that finds no room on the stack raises RecursionError; the engine goes on.

Each call is made at every depth below the recursion limit at which it fails, from the first on: no
lock is left behind, and what the call had begun is done or not done.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import qindex
from tests.waiting import WAIT

LARGE = bytes(20_000)
Call = Callable[[qindex.Engine, qindex.Queue], object]


def take(_engine: qindex.Engine, queue: qindex.Queue) -> None:
    delivery = queue.get(0)
    assert delivery is not None
    delivery.ack()


CALLS: dict[str, Call] = {
    "publish": lambda _engine, queue: queue.publish(b"x"),
    "publish with a key": lambda _engine, queue: queue.publish(b"x", key="k"),
    "publish to the message store": lambda _engine, queue: queue.publish(LARGE),
    "publish, confirmed": lambda _engine, queue: queue.publish(b"x", confirm=True),
    "publish_many": lambda _engine, queue: queue.publish_many([b"x", b"y"]),
    "publish_to": lambda engine, _queue: engine.publish_to(["q", "other"], LARGE),
    "get and ack": take,
    "get_many and ack_many": lambda _engine, queue: queue.ack_many(queue.get_many(2)),
    "flush": lambda _engine, queue: queue.flush(),
    "sync": lambda engine, _queue: engine.sync(),
    "stats": lambda engine, _queue: engine.stats(),
}


def at_depth(left: int, call: Callable[[], object]) -> bool:
    """Make a call with so many frames left; false when they did not do."""

    def down(more: int) -> bool:
        if more > 0:
            return down(more - 1)
        call()
        return True

    here = len(_frames())
    try:
        return down(sys.getrecursionlimit() - here - left)
    except (RecursionError, ctypes.ArgumentError):  # so ctypes tells of it
        return False
    except qindex.UsageError as error:
        # msgpack tells alike of headers that are nested too deep.
        if not isinstance(error.__cause__, RecursionError):
            raise
        return False


def _frames() -> list[object]:
    frame, found = sys._getframe(1), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("name", CALLS)
def test_no_room_on_the_stack(tmp_path: Path, name: str) -> None:
    call = CALLS[name]
    engine = qindex.open(tmp_path, background=False, max_journal_entries=100_000)
    queue = engine.queue("q")
    engine.queue("other")
    failed = 0
    for left in range(2, 90):
        if engine.stats().writes_refused is not None:
            # It was cut short where files were being exchanged: the next open judges.
            _close(engine)
            engine = qindex.open(tmp_path, background=False, max_journal_entries=100_000)
            queue = engine.queue("q")
            engine.queue("other")
        queue.publish_many([b"for the one that takes"] * 2)
        done = at_depth(left, partial(call, engine, queue))
        failed += not done
        other = threading.Thread(target=engine.stats, daemon=True)  # takes each queue's lock
        other.start()
        other.join(WAIT)
        assert not other.is_alive(), f"a lock was left behind with {left} frames"
        if done and left > 60:
            break
    assert failed
    _close(engine)
    with qindex.open(tmp_path) as again:
        assert not [one for one in again.findings if one.cause is qindex.Cause.DAMAGE]
        for one in again.queue_names():
            again.queue(one).ack_many(again.queue(one).get_many(10_000))
    assert not qindex.verify(tmp_path).findings


def _close(engine: qindex.Engine) -> None:
    try:
        engine.close()
    except qindex.StoreError:
        assert engine.closed
