"""Read a segment file: walk its records, and stop where they stop making sense.

As :mod:`journal.replay` does for journals: columns instead of objects, runs of publish records of
one length taken at once, and no verdict on damage (:mod:`qindex.index.segment_scan` gives it).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from journal.format import DELIVER, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT
from journal.fs.files import ReadBuffer
from journal.memory import read_words
from journal.replay import Ending, RecordColumns, Walk
from qindex.format.segment import (
    NEXT_STEP,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD_SIZE,
    REL_MASK,
    STEP_SIZE,
)

U16 = npt.NDArray[np.uint16]

_EMBEDDED = PUBLISH_HEAD_SIZE - 4
_RUN_PROBE = 16

_KIND_SHIFT = 14
"""The two top bits of a head, each the other way round, are the kind."""
assert ~PUBLISH >> _KIND_SHIFT & 3 == PUBLISH_TRANSIENT
assert ~(PUBLISH | PERSISTENT) >> _KIND_SHIFT & 3 == PUBLISH_PERSISTENT
assert ~NEXT_STEP >> _KIND_SHIFT & 3 == DELIVER


def walk_segment(
    data: ReadBuffer,
    start: int,
    stop: int,
    *,
    first_seq: int,
    entry_count: int,
    max_embedded: int,
    max_records: int,
) -> Walk:
    """Walk at most about ``max_records`` records of ``data`` from ``start`` to ``stop``.

    ``first_seq``: the seq_id of rel 0. A next-step record is given as of kind ``DELIVER``; which
    step it is, its place among the others of its seq_id tells.

    Stops at the first incomplete record (``TORN``), at zero bytes (``ZEROS``: no record has prefix
    00), and at a rel outside of the segment or a record longer than ``max_embedded``
    (``LIMIT``). Never raises on any bytes. O(records), less for runs of equal length.
    """
    whole = memoryview(data)[:stop]
    return _walk(whole, whole, start, stop, first_seq, entry_count, max_embedded, max_records)


def _walk(
    view: memoryview,
    whole: memoryview,
    start: int,
    stop: int,
    first_seq: int,
    entry_count: int,
    max_embedded: int,
    max_records: int,
) -> Walk:
    """Walk the records of ``view``, which is ``whole``: compiled, its bytes."""
    columns = RecordColumns()
    kinds, seqs = columns.kinds, columns.seqs
    offsets, lengths = columns.offsets, columns.lengths
    position = start
    found = 0
    same_length = 0
    previous_length = 0
    ending = Ending.END
    while position < stop:
        if found >= max_records:
            ending = Ending.PAUSE
            break
        left = stop - position
        if left < STEP_SIZE:
            ending = Ending.TORN
            break
        head = read_words.u16(view, position)
        if head & PUBLISH:
            if left < PUBLISH_HEAD_SIZE:
                ending = Ending.TORN
                break
            embedded = read_words.u32(view, position + _EMBEDDED)
            if embedded > max_embedded:
                ending = Ending.LIMIT
                break
            length = PUBLISH_HEAD_SIZE + embedded
            if length > left:
                ending = Ending.TORN
                break
        elif head & NEXT_STEP:
            length = STEP_SIZE
        else:
            ending = Ending.ZEROS
            break
        rel = head & REL_MASK
        if rel >= entry_count:
            ending = Ending.LIMIT
            break
        kind = ~head >> _KIND_SHIFT & 3
        seq = first_seq + rel
        read_words.put_record(kinds, seqs, offsets, lengths, kind, seq, position, length)
        found += 1
        position += length
        same_length = same_length + 1 if length == previous_length else 0
        previous_length = length
        if same_length >= _RUN_PROBE:
            # Those that told of it are a part of it: most files are one run, and nothing is joined.
            columns.take_back(_RUN_PROBE + 1)
            position -= (_RUN_PROBE + 1) * length
            run = _run(whole, position, length, head, entry_count)
            run_kinds = (~run >> _KIND_SHIFT).astype(np.uint8)
            run_seqs = np.add(run & REL_MASK, first_seq, dtype=np.int64)
            columns.put_run(run_kinds, run_seqs, position, length)
            kinds, seqs = columns.kinds, columns.seqs
            offsets, lengths = columns.offsets, columns.lengths
            found += len(run) - _RUN_PROBE - 1
            position += len(run) * length
            same_length = previous_length = 0
    return columns.finish(position, ending)


def _run(view: memoryview, position: int, length: int, head: int, entry_count: int) -> U16:
    """Return the heads of the records from ``position`` on, one at least, that have this length and
    the type of ``head``."""
    room = (len(view) - position) // length
    run = np.ndarray((room,), ">u2", view, position, (length,)).astype(np.uint16)
    types = PUBLISH | NEXT_STEP if length == STEP_SIZE else PUBLISH
    good = run & types == head & types
    if entry_count <= REL_MASK:
        good &= run & REL_MASK < entry_count
    if length != STEP_SIZE:
        at = position + _EMBEDDED
        embedded = np.ndarray((room,), ">u4", view, at, (length,))
        good &= embedded == length - PUBLISH_HEAD_SIZE
    return run if good.all() else run[: int(good.argmin())]
