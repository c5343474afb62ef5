"""Fillers: records in place of damaged bytes that were set aside, so that every reader can go on.

A hole becomes records of a rolled-back transaction: RocketMQ (and this package) step over such a
record by its size, and put it into no ConsumeQueue and no IndexFile. Its body is zeros with the
right checksum, its topic ``SET_ASIDE`` (shorter where the hole is small), its store time that of
the next sound record. In a hole that reaches the end of its file a short one and a blank record
do; where only a blank record stood, a blank record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from rocketstore.format.commitlog_format import (
    BLANK_SIZE,
    FIXED_SIZE,
    ROLLBACK,
    TRANSACTION_MASK,
    blank_record,
    encode_record,
)
from rocketstore.log.scan import Records

FILLER_TOPIC = b"SET_ASIDE"
_MOST = 1 << 20
"""A node reads a whole record into memory: large holes get several."""
_SHORT = FIXED_SIZE + len(FILLER_TOPIC)
_NO_HOST = bytes(8)


def can_fill(start: int, end: int, file_end: int) -> bool:
    """Return whether a hole is long enough for a filler."""
    return end - start >= (BLANK_SIZE if end == file_end else FIXED_SIZE)


def fill_records(
    start: int, end: int, file_end: int, store_timestamp: int
) -> Iterator[tuple[int, bytes]]:
    """Offsets and bytes that make a hole of one file readable; all are physical offsets.

    Bytes that they do not cover (after a blank record) may stay as they are.
    """
    if end == file_end:
        size = min(end - start - BLANK_SIZE, _SHORT)
        if size >= FIXED_SIZE:
            yield start, _filler(start, size, store_timestamp)
            start += size
        yield start, blank_record(end - start)
        return
    while start < end:
        size = end - start
        if size > _MOST:
            size = min(_MOST, size - FIXED_SIZE)
        yield start, _filler(start, size, store_timestamp)
        start += size


def _filler(offset: int, size: int, store_timestamp: int) -> bytes:
    topic = FILLER_TOPIC[: size - FIXED_SIZE]
    return encode_record(
        topic=topic,
        body=bytes(size - FIXED_SIZE - len(topic)),
        properties=b"",
        queue_id=0,
        queue_offset=0,
        offset=offset,
        flag=0,
        sys_flag=ROLLBACK,
        born_timestamp=store_timestamp,
        born_host=_NO_HOST,
        store_timestamp=store_timestamp,
        store_host=_NO_HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


def is_filler(topic: bytes, sys_flag: int, size: int) -> bool:
    """Whether a record with this topic, sysFlag and size fills a hole."""
    return (
        sys_flag & TRANSACTION_MASK == ROLLBACK
        and topic == FILLER_TOPIC[: max(size - FIXED_SIZE, 0)]
    )


class Fillers:
    """The fillers that a walk over the log has come by.

    A queue that lost messages has a gap in its ordinals there. RocketMQ closes gaps up, and every
    committed offset after it then means another message. Here the lost message's place is taken
    by the next one of its queue, which is delivered twice, and no other moves.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []

    def see(self, records: Records, start: int) -> None:
        """Take note of the fillers among the records of the file that begins at ``start``."""
        rolled_back = records.sys_flags & TRANSACTION_MASK == ROLLBACK
        if not rolled_back.any():
            return
        topics = records.topics()
        for number in rolled_back.nonzero()[0].tolist():
            if is_filler(topics[number], ROLLBACK, int(records.sizes[number])):
                self._offsets.append(start + int(records.positions[number]))

    def place(
        self, queue_offsets: list[int], offsets: list[int], next_unit: int, after: int
    ) -> list[int]:
        """Return which messages take the units of a queue from number ``next_unit`` on. This is
        the real store's rule for ordinals out of order (lower ones are left out, gaps closed up),
        except that a gap with a filler in it is filled with the message after it.

        ``after`` is the physical offset of the queue's message before these (-1 if none).
        """
        keep: list[int] = []
        for number, queue_offset in enumerate(queue_offsets):
            if queue_offset and queue_offset < next_unit:
                continue
            gap = queue_offset - next_unit
            if 0 < gap <= self.most_lost(after, offsets[number]):
                keep += [number] * gap
                next_unit += gap
            keep.append(number)
            next_unit += 1
            after = offsets[number]
        return keep

    def most_lost(self, after: int, before: int) -> int:
        """The most messages that can have stood in holes between two physical offsets."""
        number = bisect_left(self._offsets, after)
        if number == len(self._offsets) or self._offsets[number] >= before:
            return 0
        return (before - max(after, 0)) // FIXED_SIZE
