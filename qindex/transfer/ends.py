"""The two ends of a move, where the store is open in this process, and where a server has it.

A queue with a ``delivery_limit`` gives a message up that came back too often. A broker that can't
be reached says nothing about a message. So a delivery taken for it does not count towards the
limit, also after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from qindex.client.calls import sent_ahead
from qindex.client.link import ANY
from qindex.client.shared_queue import SharedQueue
from qindex.format.envelope import Moved, in_frame
from qindex.queue import restoring
from qindex.queue.delivery import Delivery
from qindex.queue.plain_queue import Queue
from qindex.server import protocol as wire

EitherQueue: TypeAlias = Queue | SharedQueue


def restore(queue: EitherQueue, moved: Sequence[Moved]) -> None:
    """Append messages; see :func:`qindex.queue.restoring.restore`."""
    if isinstance(queue, SharedQueue):
        restore_shared(queue, None, moved)
        return
    for _ in restoring.restore(queue, moved):
        pass


def restore_shared(queue: SharedQueue, ticket: bytes | None, moved: Sequence[Moved]) -> None:
    """Append messages through a server, which notes by the ticket that it has done so."""
    parts: list[list[Any]] = [[]]
    size = 0
    for one in moved:
        if size > wire.PART:
            parts.append([])
            size = 0
        parts[-1].append(in_frame(one))
        size += len(one.message.body)
    requests, before = sent_ahead(parts)
    queue._home.call_together(queue, [*requests, (ANY, wire.RESTORE, ticket, parts[-1], before)])


def ticket_for(queue: SharedQueue, priority: int, count: int) -> tuple[bytes, int]:
    """Return a ticket for ``count`` messages of a priority, and the seq_id that comes next."""
    ticket, first = queue._call(ANY, wire.TICKET, priority, count)
    return ticket, first


def restored(queue: SharedQueue, ticket: bytes) -> int | None:
    """Return how many messages of a ticket were published. None: the server does not know."""
    there: int | None = queue._call(ANY, wire.RESTORE, ticket, None)[0]
    return there


def take_uncounted(queue: EitherQueue, most: int) -> list[Delivery]:
    """Take up to ``most`` messages, without waiting for one. Raises as ``get_many``.

    What a server gave counts as delivered if this process dies.
    """
    held = list(queue.get_many(most))
    if isinstance(queue, Queue):
        queue._settler.forgive(held)
    return held


def give_back_uncounted(queue: EitherQueue, deliveries: Iterable[Delivery]) -> None:
    """Requeue the deliveries that are not settled, each at its place."""
    if isinstance(queue, Queue):
        queue._settler.take_back_uncounted(deliveries)
        return
    held = [one for one in deliveries if one._queue is not None and not one.settled]
    for owner, group in groupby(held, lambda one: one._queue):
        assert owner is not None
        owner.take_back_uncounted(list(group))


def most_bytes(queue: EitherQueue) -> int:
    """Return how large a body may be."""
    if isinstance(queue, Queue):
        return queue._parts.state.options.max_message_bytes
    most: int = queue._home.there["max_message_bytes"]
    return most
