"""The head of a record in the log, for the dispatch: the store has put it a moment ago, and knows
where it is. (:func:`rocketstore.log.scan.read_heads` reads many, in columns.)"""

from __future__ import annotations

import mmap

from journal.errors import DamageError
from rocketstore.format import words
from rocketstore.format.commitlog_format import (
    BODY_LENGTH_AT,
    HEADERS,
    MESSAGE_MAGIC,
    V6_BORN,
)
from rocketstore.format.message import OTHER_HOSTS

_SHORTEST, _LENGTH_AT = HEADERS[0].size, BODY_LENGTH_AT[0]


class Head:
    """Of one record: its size, ordinal, sysFlag, store timestamp (ms), and the place in the file
    where its properties begin."""

    __slots__ = ("properties_at", "queue_offset", "size", "store_timestamp", "sys_flag")

    properties_at: int
    queue_offset: int
    size: int
    store_timestamp: int
    sys_flag: int

    def read(self, data: bytes | mmap.mmap, at: int, end: int, base: int) -> None:
        """Take over the record from ``at`` to ``end`` in a file that begins at physical offset
        ``base``. Raises :class:`DamageError` when it is not there."""
        if end - at < _SHORTEST:
            raise changed(base + at)
        self.size = words.int32_in(data, at)
        self.sys_flag = words.int32_in(data, at + 36)
        length_at = _LENGTH_AT
        stored_at = 56
        if self.sys_flag & OTHER_HOSTS:
            length_at = BODY_LENGTH_AT[(self.sys_flag >> 4) & 3]
            stored_at = 68 if self.sys_flag & V6_BORN else 56
            if end - at < length_at + 4:
                raise changed(base + at)
        topic_at = at + length_at + 4 + words.int32_in(data, at + length_at)
        if (
            words.int32_in(data, at + 4) != MESSAGE_MAGIC
            or words.int64_in(data, at + 28) != base + at
            or self.size != end - at
            or not at < topic_at < end
        ):
            raise changed(base + at)
        self.properties_at = topic_at + data[topic_at] + 3
        if self.properties_at > end:
            raise changed(base + at)
        self.queue_offset = words.int64_in(data, at + 20)
        self.store_timestamp = words.int64_in(data, at + stored_at)


def changed(offset: int) -> DamageError:
    """Return the error for a record that is not where it was put any more."""
    return DamageError("commitlog", offset, "the record was changed after it had been put")
