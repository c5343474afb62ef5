"""Read a journal: walk its records, stop where the format says, and tell how it ended.

The walk gives columns (numpy arrays), one entry a record, so that a million entries are handled
without a million objects. Long runs of records of one length (a batch of equal messages, a batch
of acks) are recognised and taken at once.

Nothing is verified here: the owner of the records knows what a sound one looks like, finds the
damage, and goes on after it.
"""

from __future__ import annotations

import enum
import sys
from array import array
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from journal.format import ACTION_SIZE, DELIVER, PUBLISH_HEAD_SIZE, SEQ_MASK, TYPE_SHIFT
from journal.fs.files import ReadBuffer
from journal.memory import read_words
from journal.memory.arrays import I64, U8

_ZERO_HEAD = bytes(PUBLISH_HEAD_SIZE)
_EMBEDDED = PUBLISH_HEAD_SIZE - 4
_FIRST_STEP = DELIVER << TYPE_SHIFT
_RUN_PROBE = 32
_PROBED = _RUN_PROBE + 1
_FIRST_LOOK = 256
_LONGEST_LOOK = 1 << 14  # the arrays made of this many records stay in the processor's cache
_NO_KINDS = np.empty(0, np.uint8)
_NO_NUMBERS = np.empty(0, np.int64)


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
    the offset after the last whole record, ``ending`` why the walk stopped there.
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
        """Return the chosen records; ``end`` and ``ending`` stay."""
        if not isinstance(chosen, slice) and chosen.dtype == np.bool_ and chosen.all():
            return self
        return Walk(
            self.kinds[chosen],
            self.seqs[chosen],
            self.offsets[chosen],
            self.lengths[chosen],
            self.end,
            self.ending,
        )


class RecordColumns:
    """The columns of a walk while it goes on.

    ``kinds``, ``seqs``, ``offsets``, ``lengths``: of single records, arrays of type ``B`` and ``q``
    that :func:`journal.memory.read_words.put_record` appends to. Runs of records are put beside
    them as they are."""

    __slots__ = ("_parts", "kinds", "lengths", "offsets", "seqs")

    def __init__(self) -> None:
        self._parts: list[tuple[U8, I64, I64, I64]] = []
        self._begin()

    def _begin(self) -> None:
        self.kinds: array[int] = array("B")
        self.seqs: array[int] = array("q")
        self.offsets: array[int] = array("q")
        self.lengths: array[int] = array("q")

    def take_back(self, count: int) -> None:
        """Forget the last ``count`` records, all of which were single ones."""
        del self.kinds[-count:], self.seqs[-count:], self.offsets[-count:], self.lengths[-count:]

    def put_run(self, kinds: U8, seqs: I64, offset: int, length: int) -> None:
        """Add a run of records of one length; the first is at ``offset``. Single ones go into
        new arrays from here on."""
        self._put_singles()
        count = len(seqs)
        offsets = np.arange(offset, offset + count * length, length, dtype=np.int64)
        self._parts.append((kinds, seqs, offsets, np.full(count, length, np.int64)))

    def _put_singles(self) -> None:
        if self.kinds:
            kinds, seqs = np.frombuffer(self.kinds, np.uint8), np.frombuffer(self.seqs, np.int64)
            offsets = np.frombuffer(self.offsets, np.int64)
            lengths = np.frombuffer(self.lengths, np.int64)
            self._parts.append((kinds, seqs, offsets, lengths))
            self._begin()

    def finish(self, end: int, ending: Ending) -> Walk:
        """Return the records; the last one ends at ``end``."""
        self._put_singles()
        if len(self._parts) == 1:
            return Walk(*self._parts[0], end, ending)
        if not self._parts:
            return Walk(_NO_KINDS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, end, ending)
        kinds, seqs, offsets, lengths = map(np.concatenate, zip(*self._parts, strict=True))
        return Walk(kinds, seqs, offsets, lengths, end, ending)


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
    (no queue has published it, so these bytes are not a record). Never raises on any bytes.
    O(records); runs of equal length cost no interpreter time per record.
    """
    whole = memoryview(data)[:stop]
    return _walk(whole, whole, start, seq_limit, max_records)


def _walk(
    view: memoryview, whole: memoryview, start: int, seq_limit: int, max_records: int
) -> Walk:
    """Walk the records of ``view``, which is ``whole``: compiled, its bytes."""
    size = len(view)
    columns = RecordColumns()
    kinds, seqs = columns.kinds, columns.seqs
    offsets, lengths = columns.offsets, columns.lengths
    position = start
    found = 0
    same_length = 0
    previous_length = 0
    ending = Ending.END
    while position < size:
        if found >= max_records:
            ending = Ending.PAUSE
            break
        left = size - position
        if left < ACTION_SIZE:
            ending = Ending.TORN
            break
        word = read_words.u64(view, position)
        if word >= _FIRST_STEP:
            length = ACTION_SIZE
        else:
            if left < PUBLISH_HEAD_SIZE:
                ending = Ending.TORN
                break
            length = PUBLISH_HEAD_SIZE + read_words.u32(view, position + _EMBEDDED)
            if word == 0 and whole[position : position + PUBLISH_HEAD_SIZE] == _ZERO_HEAD:
                ending = Ending.ZEROS
                break
            if length > left:
                ending = Ending.TORN
                break
        kind, seq = word >> TYPE_SHIFT, word & SEQ_MASK
        if seq > seq_limit:
            ending = Ending.LIMIT
            break
        read_words.put_record(kinds, seqs, offsets, lengths, kind, seq, position, length)
        found += 1
        position += length
        same_length = same_length + 1 if length == previous_length else 0
        previous_length = length
        if same_length >= _RUN_PROBE:
            same_length = 0
            count = _run_length(whole, position, length, kind, seq + 1, seq_limit)
            if count:
                first, run_at = seq + 1, position
                told = array("q", range(first - _PROBED, first))
                if seqs[-_PROBED:] == told and kinds[-_PROBED:] == _PROBED * kinds[-1:]:
                    # The runs that told of it are a part of it: most journals are few runs, and
                    # nothing is joined.
                    columns.take_back(_PROBED)
                    first -= _PROBED
                    run_at -= _PROBED * length
                run = np.arange(first, seq + 1 + count, dtype=np.int64)
                columns.put_run(np.full(len(run), kind, np.uint8), run, run_at, length)
                kinds, seqs = columns.kinds, columns.seqs
                offsets, lengths = columns.offsets, columns.lengths
                found += count
                position += count * length
    return columns.finish(position, ending)


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
        look = min(8 * look, _LONGEST_LOOK)
    return count


def join_walks(walks: list[Walk]) -> Walk:
    """Put walks of one file, in order, after one another; the last one's ending counts.

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
