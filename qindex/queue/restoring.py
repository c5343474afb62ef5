"""Publish messages as they were elsewhere: their timestamps, expiry, and as delivered before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from journal.errors import StoreError
from qindex.format.envelope import Moved
from qindex.format.headers import due_of
from qindex.format.rabbitmq.bridge import RabbitProperties, encode_rabbitmq
from qindex.queue.notes.delays import now_us
from qindex.queue.parts import QueueParts
from qindex.queue.plain_queue import Queue
from qindex.queue.prepared_message import Notes, Prepared
from qindex.queue.producing import Producer


def restore(queue: Queue, moved: Sequence[Moved]) -> Iterator[int]:
    """Append messages, in order; those of a priority queue to the levels of their priorities.
    Yields how many are there, after each append.

    Each keeps its timestamp (0: none), its expiry, and whether it was delivered before. A
    message that a RabbitMQ node wrote is written as the node wrote it. Transient ones are kept as
    persistent: with the engine's end they would be gone. Raises as
    :meth:`qindex.Queue.publish`; then a first part of them may be published."""
    done = 0
    for level, group in groupby(moved, lambda one: queue._parts.level_for(one.message)):
        its_own = list(group)
        for count in restore_level(level, its_own):
            yield done + count
        done += len(its_own)


def restore_level(level: QueueParts, moved: Sequence[Moved]) -> Iterator[int]:
    """Append messages to a queue or to one level of a priority queue, as :func:`restore`."""
    producer = level.producer
    done = 0
    for expiry, group in groupby(moved, lambda one: one.expiry):
        its_own = list(group)
        items = [_prepared(producer, one) for one in its_own]
        marks = _Marks(level, its_own)
        producer.store_and_append(items, expiry, True, held=[], notes=marks)
        done += len(items)
        yield done
        if marks.error is not None:
            raise marks.error


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


class _Marks(Notes):
    """Delay the messages of an append that are not due yet, and mark those that were delivered
    before, before anybody else sees them.

    ``error``: that failed, and the messages are there all the same.
    """

    def __init__(self, level: QueueParts, moved: Sequence[Moved]) -> None:
        self._state = level.state
        self._moved = moved
        self._first = 0
        self._dues: list[tuple[int, int]] = []
        self.error: StoreError | None = None

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        self._first = first
        now = now_us()
        for at, one in enumerate(self._moved):
            due = 0 if one.redelivered else due_of(one.message.headers)
            if due > now:
                self._dues.append((first + at, due))
        if self._dues:
            self._state.delays()

    def after(self) -> None:
        for seq, due in self._dues:
            self._state.delays().hold(seq, due)
        try:
            self.mark(self._first)
        except StoreError as error:
            self.error = error

    def mark(self, first: int) -> None:
        """Mark them, published from ``first`` on. The queue's lock is held."""
        seqs = [first + at for at, one in enumerate(self._moved) if one.redelivered]
        if seqs:
            self._state.index.note_delivered(np.array(seqs, np.int64))


def mark_delivered(level: QueueParts, first: int, moved: Sequence[Moved]) -> None:
    """Mark the messages published from ``first`` on that were delivered before."""
    with level.state.lock, level.state:
        _Marks(level, moved).mark(first)
