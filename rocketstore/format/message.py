"""A stored message: the bytes of its record, and its fields when they are asked for."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError
from journal.memory.crc import crc32
from rocketstore.format.commitlog_format import (
    BODY_LENGTH_AT,
    FIXED_SIZE,
    HEADERS,
    MESSAGE_MAGIC,
    format_host,
    message_id,
)
from rocketstore.format.properties import KEYS, TAGS, UNIQ_KEY, decode_properties

_CHECK = struct.Struct(">ii20xq").unpack_from
_INT = struct.Struct(">i").unpack_from
BODY_AT = HEADERS[0].size
_FRAME = struct.Struct(">4xii16xq3xB44xi").unpack_from
"""Magic, CRC, physical offset, the low byte of sysFlag, and length of the body of a record with
two IPv4 hosts."""
OTHER_HOSTS = 48
"""Bits of sysFlag: hosts of IPv6, so that the body is elsewhere."""
_SHORT = struct.Struct(">h").unpack_from


class PutResult(NamedTuple):
    """Where a message was stored: physical offset, bytes of its record, its queue and ordinal
    there, and the time it was stored (ms)."""

    offset: int
    size: int
    queue_id: int
    queue_offset: int
    store_timestamp: int
    store_host: bytes

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id."""
        return message_id(self.store_host, self.offset)


class BatchResult(Sequence[PutResult]):
    """The result of :meth:`Store.put_many`: a :class:`PutResult` for each message, made when asked
    for."""

    __slots__ = ("_offsets", "_sizes", "queue_id", "queue_offset", "store_host", "store_timestamp")

    def __init__(
        self,
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        queue_id: int,
        queue_offset: int,
        store_timestamp: int,
        store_host: bytes,
    ) -> None:
        self._offsets = offsets
        self._sizes = sizes
        self.queue_id: int = queue_id
        self.queue_offset: int = queue_offset
        self.store_timestamp: int = store_timestamp
        self.store_host: bytes = store_host

    @property
    def offsets(self) -> list[int]:
        """Physical offsets of the messages."""
        offsets: list[int] = self._offsets.tolist()
        return offsets

    @property
    def sizes(self) -> list[int]:
        """Bytes of their records."""
        sizes: list[int] = self._sizes.tolist()
        return sizes

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if number < 0:
            number += len(self)
        return PutResult(
            int(self._offsets[number]),
            int(self._sizes[number]),
            self.queue_id,
            self.queue_offset + number,
            self.store_timestamp,
            self.store_host,
        )


class StoredMessage(NamedTuple):
    """One record and its physical offset. Fields are decoded when read; the body's checksum is
    checked then.

    A damaged body raises :class:`journal.errors.DamageError` when it is read, so that the other
    messages of the same call can still be used. (A tuple, because nothing is made faster.)
    """

    raw: bytes
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return len(self.raw)

    def _damage(self, what: str) -> DamageError:
        return DamageError("commitlog", self.offset, what)

    def check(self) -> None:
        """Raise :class:`DamageError` unless the record's frame and body are sound."""
        raw = self.raw
        if len(raw) < FIXED_SIZE:
            raise self._damage("the record is too short for its header")
        size, magic, offset = _CHECK(raw)
        if magic != MESSAGE_MAGIC or size != len(raw) or offset != self.offset:
            raise self._damage("there is no record of this offset and size here")
        self._check_lengths()
        _ = self.body

    def _check_lengths(self) -> None:
        raw, size = self.raw, len(self.raw)
        fields = self.fields
        end = HEADERS[(fields[7] >> 4) & 3].size + fields[14]
        topic_end = end + 1 + raw[end] if fields[14] >= 0 and end < size else size
        if topic_end + 2 > size or topic_end + 2 + _SHORT(raw, topic_end)[0] != size:
            raise self._damage("the record's lengths disagree")

    @property
    def fields(self) -> tuple[Any, ...]:
        """The header's fields in their order on disk, hosts as bytes."""
        try:
            return HEADERS[(self.raw[39] >> 4) & 3].unpack_from(self.raw)
        except (struct.error, IndexError) as error:
            raise self._damage("the record is too short for its header") from error

    @property
    def body(self) -> bytes:
        """The body, its CRC checked. Raises :class:`DamageError`."""
        raw = self.raw
        try:
            magic, crc, offset, flags, length = _FRAME(raw)
            at = BODY_AT
            if flags & OTHER_HOSTS:
                at = BODY_LENGTH_AT[(raw[39] >> 4) & 3] + 4
                length = _INT(raw, at - 4)[0]
        except struct.error as error:
            raise self._damage("the record is too short for its header") from error
        if magic != MESSAGE_MAGIC or offset != self.offset:
            # A damaged consume queue can point anywhere: also to zeros, which are an empty body.
            raise self._damage("there is no record of this offset here")
        if not length:
            # The rest of a header that was cut off also reads as an empty body.
            self._check_lengths()
        body = raw[at : at + length]
        if len(body) != length or (crc32(body) ^ crc) & 0x7FFFFFFF:
            raise self._damage("the body does not match its checksum")
        return body

    @property
    def topic(self) -> str:
        """The topic."""
        at = self._topic_at()
        return self.raw[at + 1 : at + 1 + self.raw[at]].decode(errors="replace")

    def _topic_at(self) -> int:
        raw = self.raw
        if len(raw) < FIXED_SIZE:
            raise self._damage("the record is too short for its header")
        at = BODY_LENGTH_AT[(raw[39] >> 4) & 3] + 4
        length: int = _INT(raw, at - 4)[0] if at <= len(raw) else -1
        at += length
        if length < 0 or at >= len(raw):
            raise self._damage("the body's length is wrong")
        return at

    @property
    def properties_bytes(self) -> bytes:
        """The properties as they are stored."""
        at = self._topic_at()
        return self.raw[at + 3 + self.raw[at] :]

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        return decode_properties(self.properties_bytes)

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The elements of the KEYS property."""
        return [key for key in self.properties.get(KEYS, "").split(" ") if key]

    @property
    def unique_key(self) -> str | None:
        """The UNIQ_KEY property."""
        return self.properties.get(UNIQ_KEY)

    @property
    def body_crc(self) -> int:
        """The stored CRC of the body."""
        return int(self.fields[2])

    @property
    def queue_id(self) -> int:
        """Queue within the topic."""
        return int(self.fields[3])

    @property
    def flag(self) -> int:
        """The sender's own number."""
        return int(self.fields[4])

    @property
    def queue_offset(self) -> int:
        """Ordinal within its queue."""
        return int(self.fields[5])

    @property
    def sys_flag(self) -> int:
        """Bits for compression, transaction state and kind of host."""
        return int(self.fields[7])

    @property
    def born_timestamp(self) -> int:
        """When it was made (ms)."""
        return int(self.fields[8])

    @property
    def born_host(self) -> str:
        """The host that made it, ``"ip:port"``."""
        return format_host(self.fields[9])

    @property
    def store_timestamp(self) -> int:
        """When it was stored (ms)."""
        return int(self.fields[10])

    @property
    def store_host(self) -> str:
        """The host that stored it, ``"ip:port"``."""
        return format_host(self.fields[11])

    @property
    def reconsume_times(self) -> int:
        """The number of times that it was sent back."""
        return int(self.fields[12])

    @property
    def prepared_transaction_offset(self) -> int:
        """Offset of the prepared message that this one commits or rolls back."""
        return int(self.fields[13])

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id."""
        return message_id(self.fields[11], self.offset)

    def has_key(self, key: str) -> bool:
        """Return whether ``key`` is the unique key or one of the keys.

        Args:
            key: The key.
        """
        properties = self.properties
        return properties.get(UNIQ_KEY) == key or key in properties.get(KEYS, "").split(" ")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the body, ready for JSON."""
        return {
            "offset": self.offset,
            "size": self.size,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "message_id": self.message_id,
            "flag": self.flag,
            "sys_flag": self.sys_flag,
            "born_timestamp": self.born_timestamp,
            "born_host": self.born_host,
            "store_timestamp": self.store_timestamp,
            "store_host": self.store_host,
            "reconsume_times": self.reconsume_times,
            "prepared_transaction_offset": self.prepared_transaction_offset,
            "properties": self.properties,
        }

    def __repr__(self) -> str:
        return f"<StoredMessage offset={self.offset} size={self.size}>"
