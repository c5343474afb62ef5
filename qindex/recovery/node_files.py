"""Tell apart what a RabbitMQ node can leave in a queue's files of version 1, and what it can't.

A node makes ``.queue_name`` and ``journal.jif`` together. It appends to the journal, and a flush
appends the same entries to the segments, syncs those, and only then empties the journal. So a
crash can cut a file short, or leave zeros at its end (a loss of power), like this:

===============  ==================================  ==============================================
file             a crash can leave                   damage
===============  ==================================  ==============================================
``journal.jif``  a cut record or zeros at its end    no file; zeros or half a record in the middle
``K.idx``        the same, or an empty file, while   the same with nothing of the segment in the
                 the journal has entries of it       journal
both             one publish, the same in both       two messages under one seq_id
===============  ==================================  ==============================================

Whatever is cut or zero may have held messages that were confirmed: nothing tells. So it counts as
lost, also where a crash explains it (:mod:`qindex.tools.saved`). Gaps between seq_ids are normal.
Those of transient messages are never written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from journal.findings import Cause, Finding, Kind
from journal.format import ACTION_SIZE
from journal.fs.files import FileSystem, is_there, is_zeros, read_optional
from journal.replay import Walk
from qindex.format import layout
from qindex.format.rabbitmq.names import names_version_2
from qindex.format.segment import STEP_SIZE, file_name
from qindex.index.segment_scan import SegmentScan
from qindex.recovery.columns import entry_heads
from qindex.recovery.point_in_time import Pinned

_LOST = "its entries are lost"


def journal_findings(fs: FileSystem, pinned: Pinned) -> Iterator[Finding]:
    """Find that a node's journal is missing, or ends in zeros. Raises :class:`OSError`."""
    path, size, end = pinned.journal_path, pinned.journal_size, pinned.reading.walk.end
    if not size and not pinned.pairs and not is_there(fs, path):
        name = read_optional(fs, os.path.join(pinned.directory, layout.QUEUE_NAME))
        if name is not None and not names_version_2(name):
            # A node that is killed while it makes the directory leaves the name alone.
            cause = Cause.DAMAGE if pinned.segments else Cause.CRASH
            what = "the journal is missing"
            yield Finding(path, 0, 0, cause, what, _LOST, Kind.MISSING_FILE)
    elif end < size and is_zeros(pinned.reading.data, end):
        what, lost = "zeros at the end", "entries that were here are lost"
        yield Finding(path, end, size - end, Cause.CRASH, what, lost, Kind.ZEROS)


def empty_segment(path: str, *, flushing: bool) -> Finding:
    """Describe an empty segment file. ``flushing``: a flush may have been making it."""
    cause = Cause.CRASH if flushing else Cause.DAMAGE
    return Finding(path, 0, 0, cause, "the file is empty", _LOST, Kind.TORN)


def other_messages(pinned: Pinned, twice: Walk, scan: SegmentScan, number: int) -> list[Finding]:
    """Find publishes of the journal whose seq_id has another message in segment ``number``.
    ``twice``: those that the segment, read in ``scan``, has too."""
    rows = np.searchsorted(scan.entries.seqs, twice.seqs)
    here = entry_heads(pinned.reading.data, twice.offsets + ACTION_SIZE)["id"].tolist()
    there = entry_heads(scan.data, scan.entries.offsets[rows] + STEP_SIZE)["id"].tolist()
    found = []
    for at, (mine, other) in enumerate(zip(here, there, strict=True)):
        if mine == other:
            continue
        what = f"seq_id {int(twice.seqs[at])} is message {mine.hex()} here"
        what += f" and {other.hex()} in {file_name(number)}"
        offset, length = int(twice.offsets[at]), int(twice.lengths[at])
        lost, kind = "this one is lost", Kind.DUPLICATE_SEQ_ID
        found.append(Finding(pinned.journal_path, offset, length, Cause.DAMAGE, what, lost, kind))
    return found
