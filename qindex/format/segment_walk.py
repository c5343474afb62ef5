"""Read a segment file: walk its records, and stop where they stop making sense.

As :mod:`journal.replay` does for journals: columns instead of objects, runs of publish records of
one length taken at once, and no verdict on what is damaged (:mod:`qindex.index.segment_scan` gives
it).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from journal.files import ReadBuffer
from journal.format import DELIVER, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT
from journal.replay import Ending, RecordColumns, Walk
from qindex.format.segment import (
    NEXT_STEP,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD,
    PUBLISH_HEAD_SIZE,
    REL_MASK,
    STEP_SIZE,
)

__all__ = ["walk_segment"]


U16 = npt.NDArray[np.uint16]

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

    Stops at the first incomplete record (``TORN``), at zero bytes (``ZEROS``: prefix 00 is no
    record), and at a rel outside of the segment or a record longer than ``max_embedded``
    (``LIMIT``). Never raises on any bytes. O(records), less for runs of equal length.
    """
    view = memoryview(data)[:stop]
    columns = RecordColumns(np.uint16)
    unpack_head = PUBLISH_HEAD.unpack_from
    position = start
    same_length = 0
    previous_length = 0
    ending = Ending.END
    while position < stop:
        if len(columns) >= max_records:
            ending = Ending.PAUSE
            break
        left = stop - position
        if left < STEP_SIZE:
            ending = Ending.TORN
            break
        head = view[position] << 8 | view[position + 1]
        if head & PUBLISH:
            if left < PUBLISH_HEAD_SIZE:
                ending = Ending.TORN
                break
            embedded = unpack_head(view, position)[4]
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
        if head & REL_MASK >= entry_count:
            ending = Ending.LIMIT
            break
        columns.put(head, position, length)
        position += length
        same_length = same_length + 1 if length == previous_length else 0
        previous_length = length
        if same_length >= _RUN_PROBE:
            # Those that told of it are a part of it: most files are one run, and nothing is joined.
            columns.take_back(_RUN_PROBE + 1)
            position -= (_RUN_PROBE + 1) * length
            run = _run(view, position, length, head, entry_count)
            columns.put_run(run, position, length)
            position += len(run) * length
            same_length = previous_length = 0
    heads, offsets, lengths = columns.finish()
    kinds = (~heads >> _KIND_SHIFT).astype(np.uint8)
    seqs = np.add(heads & REL_MASK, first_seq, dtype=np.int64)
    return Walk(kinds, seqs, offsets, lengths, position, ending)


def _run(view: memoryview, position: int, length: int, head: int, entry_count: int) -> U16:
    """Give the heads of the records from ``position`` on, one at least, that have this length and
    the type of ``head``."""
    room = (len(view) - position) // length
    run = np.ndarray((room,), ">u2", view, position, (length,)).astype(np.uint16)
    types = PUBLISH | NEXT_STEP if length == STEP_SIZE else PUBLISH
    good = run & types == head & types
    if entry_count <= REL_MASK:
        good &= run & REL_MASK < entry_count
    if length != STEP_SIZE:
        at = position + PUBLISH_HEAD_SIZE - 4
        embedded = np.ndarray((room,), ">u4", view, at, (length,))
        good &= embedded == length - PUBLISH_HEAD_SIZE
    return run if good.all() else run[: int(good.argmin())]
