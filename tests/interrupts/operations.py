"""The calls that are interrupted, each on a queue that is prepared for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import journal.journal
import qindex

__all__ = ["OPERATIONS", "OPTIONS", "Case", "Operation"]

OPTIONS: dict[str, Any] = {
    "background": False,
    "segment_entry_count": 16,
    "max_journal_entries": 30,
    "embed_below": 512,
}
"""A flush is due soon, and is made by the call that comes upon it."""

LARGE = b"L" * 900


@dataclass(slots=True)
class Case:
    """``call``: what is interrupted. ``live``: bodies that must be in the queue whatever happens;
    ``new``: bodies it publishes, in order, any number of the first of which may be there;
    ``gone``: bodies that may be gone, or with nobody until the next open."""

    call: Callable[[], object]
    live: Sequence[bytes]
    new: Sequence[bytes] = ()
    gone: Sequence[bytes] = ()


Operation = Callable[[qindex.Engine, qindex.Queue], Case]


def _fill(queue: qindex.Queue, count: int, *, large: bool = False) -> list[bytes]:
    bodies = [b"m%04d" % at + LARGE * (large and at % 3 == 0) for at in range(count)]
    for body in bodies:
        queue.publish(body)
    return bodies


def _one(queue: qindex.Queue) -> qindex.Delivery:
    delivery = queue.get(timeout=0)
    assert delivery is not None
    return delivery


def publish(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    return Case(lambda: queue.publish(b"new"), live, [b"new"])


def publish_to_one_who_keeps_up(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    for body in (b"a", b"b", b"c"):
        queue.publish(body)
        _one(queue).ack()
    queue.publish(b"d")
    return Case(lambda: queue.publish(b"new"), [b"d"], [b"new"])


def publish_into_the_next_segment(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 16)
    return Case(lambda: queue.publish(b"new"), live, [b"new"])


def publish_when_a_flush_is_due(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 30)
    return Case(lambda: queue.publish(b"new"), live, [b"new"])


def publish_with_key(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    return Case(lambda: queue.publish(b"new", key="k", headers={"a": 1}), live, [b"new"])


def publish_large(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5, large=True)
    return Case(lambda: queue.publish(LARGE), live, [LARGE])


def publish_large_to_one_who_keeps_up(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    for body in (b"a", b"b", b"c"):
        queue.publish(body + LARGE)
        _one(queue).ack()
    queue.publish(b"d" + LARGE)
    return Case(lambda: queue.publish(LARGE), [b"d" + LARGE], [LARGE])


def publish_large_to_two(engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5, large=True)
    engine.queue("r")
    return Case(lambda: engine.publish_to(["r", "q"], LARGE), live, [LARGE])


def publish_many(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live, new = _fill(queue, 5), [b"a", b"b", b"c"]
    return Case(lambda: queue.publish_many(new), live, new)


def publish_many_in_one_write(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live, new = _fill(queue, 5), [b"%04d" % at * 40 for at in range(6)]
    usual = journal.journal._BULK

    def call() -> None:
        journal.journal._BULK = 512
        try:
            queue.publish_many(new)
        finally:
            journal.journal._BULK = usual

    return Case(call, live, new)


def publish_many_over_segments(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live, new = _fill(queue, 5), [b"n%d" % at for at in range(40)]
    return Case(lambda: queue.publish_many(new), live, new)


def get(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    return Case(lambda: queue.get(timeout=0), live[1:], gone=live[:1])


def get_what_was_read_ahead(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    _one(queue).ack()
    return Case(lambda: queue.get(timeout=0), live[2:], gone=live[1:2])


def get_from_a_segment(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 20)
    queue.flush()
    return Case(lambda: queue.get(timeout=0), live[1:], gone=live[:1])


def get_what_was_given_back(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    _one(queue).nack()
    return Case(lambda: queue.get(timeout=0), live[1:], gone=live[:1])


def get_large(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5, large=True)
    return Case(lambda: queue.get(timeout=0), live[1:], gone=live[:1])


def get_many(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 20, large=True)
    return Case(lambda: queue.get_many(18), live[18:], gone=live[:18])


def ack(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    return Case(_one(queue).ack, live[1:], gone=live[:1])


def ack_large(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5, large=True)
    return Case(_one(queue).ack, live[1:], gone=live[:1])


def ack_when_a_flush_is_due(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 20, large=True)
    deliveries = list(queue.get_many(8))

    def call() -> None:
        for delivery in deliveries:
            delivery.ack()

    return Case(call, live[8:], gone=live[:8])


def ack_twice(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    """The second one fails: its lock is given back by another way."""
    live = _fill(queue, 5)
    delivery = _one(queue)
    delivery.ack()

    def call() -> None:
        with suppress(qindex.UsageError):
            queue.ack(delivery)

    return Case(call, live[1:])


def ack_many(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 20, large=True)
    batch = queue.get_many(7)
    return Case(lambda: queue.ack_many(batch), live[7:], gone=live[:7])


def nack(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    return Case(_one(queue).nack, live[1:], gone=live[:1])


def purge(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 20, large=True)
    queue.flush()
    queue.publish(b"last")
    return Case(queue.purge, [], gone=[*live, b"last"])


def peek(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 5)
    return Case(lambda: queue.peek(3), live)


def sync(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    return Case(queue.sync, _fill(queue, 3))


def flush(_engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 20, large=True)
    queue.ack_many(queue.get_many(3))
    return Case(queue.flush, live[3:])


def make_a_queue(engine: qindex.Engine, queue: qindex.Queue) -> Case:
    live = _fill(queue, 3)
    return Case(lambda: engine.queue("other"), live)


def close(engine: qindex.Engine, queue: qindex.Queue) -> Case:
    return Case(engine.close, _fill(queue, 20, large=True))


OPERATIONS: list[Operation] = [
    publish,
    publish_to_one_who_keeps_up,
    publish_into_the_next_segment,
    publish_when_a_flush_is_due,
    publish_with_key,
    publish_large,
    publish_large_to_one_who_keeps_up,
    publish_large_to_two,
    publish_many,
    publish_many_in_one_write,
    publish_many_over_segments,
    get,
    get_what_was_read_ahead,
    get_from_a_segment,
    get_what_was_given_back,
    get_large,
    get_many,
    ack,
    ack_large,
    ack_when_a_flush_is_due,
    ack_twice,
    ack_many,
    nack,
    purge,
    peek,
    sync,
    flush,
    make_a_queue,
    close,
]
