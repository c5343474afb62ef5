"""Read a journal: walk its records, stop where the format says, and tell how it ended.

The walk gives columns (numpy arrays), one entry a record, so that a million entries are handled
without a million objects. Long runs of records of one length (a batch of equal messages, a batch
of acks) are recognised and taken at once.

Nothing is verified here: the owner of the records knows what a sound one looks like, finds what is
damaged, and goes on behind it.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from journal.files import ReadBuffer
from journal.format import (
    ACTION_SIZE,
    ACTION_WORD,
    DELIVER,
    PUBLISH_HEAD,
    PUBLISH_HEAD_SIZE,
    SEQ_MASK,
    TYPE_SHIFT,
)

__all__ = ["Ending", "RecordColumns", "Walk", "join_walks", "walk_journal"]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_Head = TypeVar("_Head", np.uint16, np.uint64)

_ZERO_HEAD = bytes(PUBLISH_HEAD_SIZE)
_RUN_PROBE = 32
_FIRST_LOOK = 256


class Ending(enum.Enum):
    """Why a walk stopped."""

    END = "end of file"
    TORN = "incomplete record"
    ZEROS = "zero-filled tail"
    LIMIT = "seq_id or length out of range"
    PAUSE = "as many records as were asked for"


@dataclass(slots=True)
class Walk:
    """The records of a journal in order, as columns of equal length.

    ``kinds``: the two type bits. ``seqs``: seq_ids. ``offsets``, ``lengths``: bytes. ``end`` is
    the offset behind the last whole record, ``ending`` why the walk stopped there.
    """

    kinds: U8
    seqs: I64
    offsets: I64
    lengths: I64
    end: int
    ending: Ending

    def __len__(self) -> int:
        return len(self.kinds)

    def take(self, chosen: npt.NDArray[np.bool_] | I64 | slice) -> Walk:
        """Give the chosen records; ``end`` and ``ending`` stay."""
        return Walk(
            self.kinds[chosen],
            self.seqs[chosen],
            self.offsets[chosen],
            self.lengths[chosen],
            self.end,
            self.ending,
        )


class RecordColumns(Generic[_Head]):
    """The columns of a walk: head (its first bytes as a number, of type ``head``), offset and
    length of each record; single ones in lists, runs of records as arrays."""

    __slots__ = ("_head", "_heads", "_length", "_lengths", "_offsets", "_parts")

    def __init__(self, head: type[_Head]) -> None:
        self._head: type[_Head] = head
        self._heads: list[int] = []
        self._offsets: list[int] = []
        self._lengths: list[int] = []
        self._parts: list[tuple[npt.NDArray[_Head], I64, I64]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, head: int, offset: int, length: int) -> None:
        """Add one record."""
        self._heads.append(head)
        self._offsets.append(offset)
        self._lengths.append(length)
        self._length += 1

    def take_back(self, count: int) -> None:
        """Forget the last ``count`` records, all of which were added one by one."""
        del self._heads[-count:], self._offsets[-count:], self._lengths[-count:]
        self._length -= count

    def put_run(self, heads: npt.NDArray[_Head], offset: int, length: int) -> None:
        """Add a run of records of one length; the first stands at ``offset``."""
        self._put_singles()
        count = len(heads)
        offsets = np.arange(offset, offset + count * length, length, dtype=np.int64)
        self._parts.append((heads, offsets, np.full(count, length, np.int64)))
        self._length += count

    def _put_singles(self) -> None:
        if self._heads:
            heads = np.array(self._heads, self._head)
            offsets, lengths = np.array(self._offsets, np.int64), np.array(self._lengths, np.int64)
            self._parts.append((heads, offsets, lengths))
            self._heads, self._offsets, self._lengths = [], [], []

    def finish(self) -> tuple[npt.NDArray[_Head], I64, I64]:
        """Give heads, offsets and lengths of all records."""
        self._put_singles()
        if not self._parts:
            return np.empty(0, self._head), np.empty(0, np.int64), np.empty(0, np.int64)
        if len(self._parts) == 1:
            return self._parts[0]
        heads, offsets, lengths = zip(*self._parts, strict=True)
        return np.concatenate(heads), np.concatenate(offsets), np.concatenate(lengths)


def walk_journal(
    data: ReadBuffer,
    start: int = 0,
    stop: int | None = None,
    *,
    seq_limit: int = SEQ_MASK,
    max_records: int = sys.maxsize,
) -> Walk:
    """Walk the records of ``data`` from offset ``start`` up to ``stop`` (default: its end), about
    ``max_records`` of them at most.

    Stops at the first incomplete record, at 40 zero bytes, and at a seq_id above ``seq_limit``
    (no queue has published it, so these bytes are no record). Never raises on any bytes.
    O(records); runs of equal length cost no interpreter time per record.
    """
    view = memoryview(data)[:stop]
    size = len(view)
    columns = RecordColumns(np.uint64)
    unpack_word = ACTION_WORD.unpack_from
    unpack_head = PUBLISH_HEAD.unpack_from
    position = start
    same_length = 0
    previous_length = 0
    ending = Ending.END
    while position < size:
        if len(columns) >= max_records:
            ending = Ending.PAUSE
            break
        left = size - position
        if left < ACTION_SIZE:
            ending = Ending.TORN
            break
        (word,) = unpack_word(view, position)
        kind = word >> TYPE_SHIFT
        seq = word & SEQ_MASK
        if kind >= DELIVER:
            length = ACTION_SIZE
        else:
            if left < PUBLISH_HEAD_SIZE:
                ending = Ending.TORN
                break
            length = PUBLISH_HEAD_SIZE + unpack_head(view, position)[4]
            if word == 0 and view[position : position + PUBLISH_HEAD_SIZE] == _ZERO_HEAD:
                ending = Ending.ZEROS
                break
            if length > left:
                ending = Ending.TORN
                break
        if seq > seq_limit:
            ending = Ending.LIMIT
            break
        columns.put(word, position, length)
        position += length
        same_length = same_length + 1 if length == previous_length else 0
        previous_length = length
        if same_length >= _RUN_PROBE:
            same_length = 0
            count = _run_length(view, position, length, kind, seq + 1, seq_limit)
            if count:
                words = np.arange(word + 1, word + 1 + count, dtype=np.uint64)
                columns.put_run(words, position, length)
                position += count * length
    words, offsets, lengths = columns.finish()
    kinds = (words >> np.uint64(TYPE_SHIFT)).astype(np.uint8)
    seqs = (words & np.uint64(SEQ_MASK)).astype(np.int64)
    return Walk(kinds, seqs, offsets, lengths, position, ending)


def _run_length(
    view: memoryview, position: int, length: int, kind: int, seq: int, seq_limit: int
) -> int:
    """Count the records from ``position`` on that all have this length and kind and whose
    seq_ids rise by one from ``seq``. O(records of the run): a busy queue's journal is full of short
    ones, so the rest of it is not looked at for each."""
    most = min((len(view) - position) // length, seq_limit - seq + 1)
    count = 0
    look = _FIRST_LOOK
    while count < most:
        room = min(look, most - count)
        at = position + count * length
        first = kind << TYPE_SHIFT | seq + count
        words = np.ndarray((room,), ">u8", view, at, (length,))
        good = words == np.arange(first, first + room, dtype=np.uint64)
        if kind < DELIVER:
            embedded = np.ndarray((room,), ">u4", view, at + PUBLISH_HEAD_SIZE - 4, (length,))
            good &= embedded == length - PUBLISH_HEAD_SIZE
        if not good.all():
            return count + int(good.argmin())
        count += room
        look *= 8
    return count


def join_walks(walks: list[Walk]) -> Walk:
    """Put walks of one file, in order, behind one another; the last one's ending counts.

    O(records), O(walks) where one of them has them all.
    """
    last = walks[-1]
    filled = [walk for walk in walks if len(walk)] or [last]
    if len(filled) == 1:
        (only,) = filled
        return only if only is last else replace(only, end=last.end, ending=last.ending)
    return Walk(
        np.concatenate([walk.kinds for walk in filled]),
        np.concatenate([walk.seqs for walk in filled]),
        np.concatenate([walk.offsets for walk in filled]),
        np.concatenate([walk.lengths for walk in filled]),
        last.end,
        last.ending,
    )
