"""One message for several queues: stored once, and in all of them or in none."""

from __future__ import annotations

from collections.abc import Sequence

from qindex.format.message import Message
from qindex.queue.prepared_message import Prepared
from qindex.queue.producing import Producer


def publish_to_all(
    queues: Sequence[Producer],
    message: Message,
    ttl: float | None,
    persistent: bool,
    confirm: bool,
    *,
    waits: bool = True,
) -> list[int]:
    """Publish one message to several queues of an engine; see :meth:`Engine.publish_to`."""
    for queue in queues:
        queue.state.check_sync(confirm)
    first = queues[0]
    first.check_message(message)
    expiries = [queue.expiry(ttl) for queue in queues]
    item = first.prepared(message, persistent, len(queues))
    held: list[list[Prepared]] = []
    seqs: list[int] = []
    stored: list[bytes] = []
    try:
        for queue in queues:
            held.append(queue.room.ask([item]))
        # A reference for each queue. A queue that has its entry is taken off the list.
        stored += first.store_records([item], len(queues)) * len(queues)
        for queue, expiry, one in zip(queues, expiries, held, strict=True):
            seq = _append(queue, item, message, expiry, persistent, one, waits)
            seqs.append(queue.state.base + seq)
            del stored[:1]
    except BaseException as error:
        first.give_up(stored, error)
        raise
    finally:
        for queue, one in zip(queues, held, strict=False):
            queue.room.give_back(one)
    for queue in queues:
        queue.room.keep_within(waits)
    if waits and (confirm or first.state.sync_each):
        for queue in queues:
            queue.state.sync_all()
    return seqs


def _append(
    queue: Producer,
    item: Prepared,
    message: Message,
    expiry: int,
    persistent: bool,
    held: list[Prepared],
    waits: bool,
) -> int:
    state = queue.state
    if item.stored is None or not persistent or state.limits is not None:
        return queue.append_entries([item], expiry, persistent, held=held, waits=waits).start
    is_plain = (
        state.options.record_format == "qindex"
        and message.key is None
        and not (expiry or message.headers or message.properties)
    )
    stamp = message.timestamp if is_plain else 0
    return queue.append_stored(item.msg_id, message.body, expiry, stamp, waits)
