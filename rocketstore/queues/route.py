"""The route of a queue: all that is the same for its next message, ready as bytes."""

from __future__ import annotations

import struct

from journal.errors import UsageError
from rocketstore.format.commitlog_format import encode_topic
from rocketstore.log.dispatch import QueueKey

_INT_MAX = 0x7FFFFFFF
_TWO_INTS = struct.Struct(">ii").pack


class Route:
    """One topic and queue as a put sees it (``key`` is both): ``ordinal`` is the number of the next
    message there.

    ``start`` are the bytes of queue id and flag (0), ``field`` is the topic as a record has it,
    after its length. Raises :class:`UsageError` if they can't be a topic and a queue id.
    """

    __slots__ = ("field", "key", "ordinal", "queue_id", "start", "topic")

    def __init__(self, topic: str, queue_id: int, ordinal: int) -> None:
        if not isinstance(topic, str):
            raise UsageError(f"topic is {type(topic).__name__}: a text is right")
        if queue_id < 0:
            raise UsageError(f"queue id {queue_id}: it must not be negative")
        if queue_id > _INT_MAX:
            raise UsageError(
                f"queue id {queue_id} does not fit into the record: the limit is {_INT_MAX}"
            )
        data = encode_topic(topic)
        self.topic: str = topic
        self.queue_id: int = queue_id
        self.key: QueueKey = (topic, queue_id)
        self.ordinal: int = ordinal
        self.start: bytes = _TWO_INTS(queue_id, 0)
        self.field: bytes = bytes((len(data),)) + data


NOWHERE = Route("".join(("no", "where")), 0, 0)
"""Where a store's last put went before the first: no caller's topic is the same object."""
