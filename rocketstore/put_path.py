"""What single puts share: a route for each queue, and the way of puts that give rare fields.

:meth:`rocketstore.Store.put` itself is written for the usual message, one of a thousand like it:
whatever is the same for the next message of its queue is kept here, ready as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypedDict

from journal.call_lock import refuse_twice
from journal.errors import UsageError
from rocketstore.commitlog_format import (
    COMMIT,
    HEADERS,
    MESSAGE_MAGIC,
    TRANSACTION_MASK,
    body_crc,
    encode_topic,
    host_bytes,
    with_host_bits,
)
from rocketstore.compose import compose
from rocketstore.cut_short import WholeOrNothing
from rocketstore.delay import deliver_time
from rocketstore.dispatch import QueueKey
from rocketstore.message import PutResult
from rocketstore.properties import WAIT

if TYPE_CHECKING:
    from rocketstore.putter import Putter

__all__ = ["STAMP_SIZE", "PutFields", "Route", "pack_head", "pack_stamp", "put_general"]

_INT_MAX = 0x7FFFFFFF
_LEADS_MAX = 256
_TWO_INTS = struct.Struct(">ii").pack

pack_head = struct.Struct(">iiI8sqq48si").pack
"""A record's first 88 bytes when both hosts are IPv4: size, magic, CRC, :attr:`Route.start`,
ordinal, offset, a *stamp* (:data:`pack_stamp`), length of the body. Fewer and longer fields than
:data:`HEADERS` has: a pack costs by the field."""

_STAMP = struct.Struct(">iq8sq8siq")
pack_stamp = _STAMP.pack
"""What the usual messages of a millisecond share: sysFlag, born timestamp and host, store timestamp
and host, reconsume times, prepared transaction offset."""
STAMP_SIZE = _STAMP.size
assert struct.calcsize(f">iiI8sqq{STAMP_SIZE}si") == HEADERS[0].size


class PutFields(TypedDict, total=False):
    """The fields of a put that few messages have; see :meth:`rocketstore.Store.put`."""

    properties: Mapping[str, str] | bytes | None
    delay: int | None
    flag: int
    sys_flag: int
    born_timestamp: int | None
    born_host: str | bytes | tuple[str, int] | None
    store_host: str | bytes | tuple[str, int] | None
    reconsume_times: int
    prepared_transaction_offset: int
    wait: bool


class Route:
    """One topic and queue as a put sees it (``key`` is both): ``ordinal`` is the number of the next
    message there.

    ``start`` are the bytes of queue id and flag (0), ``field`` is the topic as a record has it,
    ``plain`` that field and the length of no properties, ``leads`` what :meth:`lead` has given, by
    length. Raises :class:`UsageError` for what can't be a topic or a queue id.
    """

    __slots__ = ("field", "key", "leads", "ordinal", "plain", "queue_id", "start", "topic")

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
        self.topic = topic
        self.queue_id = queue_id
        self.key: QueueKey = (topic, queue_id)
        self.ordinal = ordinal
        self.start = _TWO_INTS(queue_id, 0)
        self.field = bytes((len(data),)) + data
        self.plain = self.field + b"\0\0"
        self.leads: dict[int, bytes] = {}

    def lead(self, length: int) -> bytes:
        """The topic's field and the two bytes that say how long the properties are."""
        found = self.leads.get(length)
        if found is None:
            if len(self.leads) >= _LEADS_MAX:
                self.leads.clear()
            found = self.leads[length] = self.field + length.to_bytes(2, "big")
        return found


NOWHERE = Route("".join(("no", "where")), 0, 0)
"""Where a store's last put went before the first: no caller's topic is the same object."""


def put_general(
    store: Putter,
    topic: str,
    body: bytes,
    queue_id: int,
    tags: str | None,
    keys: str | Iterable[str] | None,
    unique_key: str | None,
    *,
    properties: Mapping[str, str] | bytes | None = None,
    delay: int | None = None,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int | None = None,
    born_host: str | bytes | tuple[str, int] | None = None,
    store_host: str | bytes | tuple[str, int] | None = None,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    wait: bool = True,
    held: bool = False,
) -> PutResult:
    """:meth:`rocketstore.Store.put` of a message with any field. ``held``: the caller has the
    store's lock."""
    if not isinstance(body, bytes):
        raise UsageError(f"body is {type(body).__name__}: bytes are right")
    topic, queue_id, data, found, level = compose(
        topic, queue_id, properties, tags, keys, unique_key, delay, sys_flag
    )
    stored_by = store._store_host if store_host is None else host_bytes(store_host)
    born_by = stored_by if born_host is None else host_bytes(born_host)
    sys_flag = with_host_bits(sys_flag, born_by, stored_by)
    header = HEADERS[(sys_flag >> 4) & 3]
    transaction = sys_flag & TRANSACTION_MASK
    synced = wait and store._fsync and found.get(WAIT) != "false"
    if synced and store._group.is_mine():
        refuse_twice()  # a handler in the middle of a sync: before anything is put
    with nullcontext() if held else store._lock, WholeOrNothing(store):
        store._check_writable()
        route = store._route(topic, queue_id)
        tail = route.lead(len(data)) + data
        size = header.size + len(body) + len(tail)
        at = store._make_room(size)
        now = store._now()
        # Messages of a transaction that is open or undone stand in no queue.
        counted = transaction in (0, COMMIT)
        ordinal = route.ordinal if counted else 0
        offset = store._commitlog.base + at
        fields = (
            size, MESSAGE_MAGIC, body_crc(body), queue_id, flag, ordinal, offset, sys_flag,
            now if born_timestamp is None else born_timestamp, born_by, now, stored_by,
            reconsume_times, prepared_transaction_offset, len(body),
        )  # fmt: skip
        try:
            head = header.pack(*fields)
        except struct.error as error:
            raise UsageError(f"a field does not fit into the record: {error}") from error
        store._commitlog.write(head + body + tail)
        route.ordinal += counted
        store._pending.note(offset, route, deliver_time(level, now) if level else 0)
    if synced:
        store._group.commit()
    return PutResult(offset, size, queue_id, ordinal, now, stored_by)
