"""One message for several queues: stored once, and in all of them or in none."""

from __future__ import annotations

from collections.abc import Sequence

from journal.errors import StoreError
from qindex.format.message import Message
from qindex.queue.limits import ask_for_room, give_room_back, keep_within
from qindex.queue.prepared_message import Prepared
from qindex.queue.producing import Publisher
from qindex.queue.publish_stored import append_stored

__all__ = ["publish_to_all"]


def publish_to_all(
    queues: Sequence[Publisher],
    message: Message,
    ttl: float | None,
    persistent: bool,
    confirm: bool,
    timeout: float | None,
) -> list[int]:
    """Publish one message to several queues of an engine; see :meth:`Engine.publish_to`."""
    first = queues[0]
    first._check_message(message)
    expiries = [queue._expiry(ttl) for queue in queues]
    item = first._prepared(message, persistent)
    roomy: list[Publisher] = []
    seqs: list[int] = []
    try:
        for queue in queues:
            if queue._limits is not None:
                ask_for_room(queue, [item], timeout)
                roomy.append(queue)
        stored = first._store_records([item], len(queues), persistent)
        try:
            for queue, expiry in zip(queues, expiries, strict=True):
                seqs.append(_append(queue, item, message, expiry, persistent))
        except StoreError:
            first._release(stored * (len(queues) - len(seqs)))
            raise
    except BaseException as error:
        # What was stored may have one entry more or fewer, and room may be taken or given back.
        if item.stored is not None or roomy:
            first._cut_short(error)
        for queue in roomy:
            if queue not in queues[: len(seqs)]:
                give_room_back(queue, [item])
        raise
    for queue in queues:
        keep_within(queue)
    if confirm or first._sync_each:
        for queue in queues:
            queue._sync_each_all()
    return seqs


def _append(
    queue: Publisher, item: Prepared, message: Message, expiry: int, persistent: bool
) -> int:
    if item.stored is None or not persistent or queue._limits is not None:
        return queue._append_entries([item], expiry, persistent, reserved=True).start
    is_plain = (
        queue._options.record_format == "qindex"
        and message.key is None
        and not (expiry or message.headers or message.properties)
    )
    stamp = message.timestamp if is_plain else 0
    return append_stored(queue, item.msg_id, message.body, expiry, stamp)
