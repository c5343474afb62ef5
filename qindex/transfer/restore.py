"""The two ends of a move: publish messages as they were, with their expiry, timestamps, and as
delivered before; and take them from a queue so that it does not count.

A queue with a ``delivery_limit`` gives a message up that came back too often. A broker that can't
be reached says nothing about a message, so what is taken for it counts as if it had not been, also
after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

from qindex.format.rabbitmq.bridge import RabbitProperties, encode_rabbitmq
from qindex.queue.delivery import Delivery
from qindex.queue.parts import QueueParts
from qindex.queue.prepared_message import Prepared
from qindex.queue.producing import Producer
from qindex.queue.queue import Queue
from qindex.transfer.moved import Moved


def restore(queue: Queue, moved: Sequence[Moved]) -> None:
    """Append messages, in order; those of a priority queue to the levels of their priorities.

    Each keeps its timestamp (0: none), its expiry, and whether it was delivered before. One that
    a RabbitMQ node wrote is written as the node wrote it. Transient ones are kept as persistent:
    with the engine's end they would be gone. Raises as :meth:`qindex.queue.queue.Queue.publish`;
    then a first part of them may be published.
    """
    for level, group in groupby(moved, lambda one: queue._parts.level_for(one.message)):
        restore_level(level, list(group))


def restore_level(level: QueueParts, moved: Sequence[Moved]) -> None:
    """Append messages, in order, to a queue or to one level of a priority queue."""
    producer = level.producer
    first = level.state.index.next_seq
    for expiry, group in groupby(moved, lambda one: one.expiry):
        items = [_prepared(producer, one) for one in group]
        producer.store_and_append(items, expiry, True, held=[])
    mark_delivered(level, first, moved)


def _prepared(producer: Producer, moved: Moved) -> Prepared:
    message = moved.message
    producer.check_message(message, any_depth=True)
    if not isinstance(message.properties, RabbitProperties):
        return producer.prepared(message, True)
    state = producer.state
    assert state.messages is not None
    size = len(message.body)
    msg_id = state.messages.new_id(size)
    vhost = message.properties.source.vhost
    record = encode_rabbitmq(message, vhost, msg_id, moved.persistent)
    if len(record) < state.options.embed_below:
        return Prepared(msg_id, size, record, None, sealed=True)
    return Prepared(msg_id, size, b"", record, sealed=True)


def mark_delivered(level: QueueParts, first: int, moved: Sequence[Moved]) -> None:
    """Note of those that were delivered before, published from ``first`` on, that they were."""
    seqs = np.array([first + at for at, one in enumerate(moved) if one.redelivered], np.int64)
    if len(seqs):
        with level.state.lock, level.state as state:
            state.index.note_delivered(seqs)


def take_uncounted(queue: Queue, most: int) -> list[Delivery]:
    """Take up to ``most`` messages, without waiting for one. Raises as ``get_many``."""
    held = list(queue.get_many(most))
    queue._settler.forgive(held)
    return held


def give_back_uncounted(queue: Queue, deliveries: Iterable[Delivery]) -> None:
    """Give back those of these that are not settled, each to its place."""
    queue._settler.take_back_uncounted(deliveries)
