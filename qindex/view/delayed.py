"""The delayed messages of a queue, as its files tell."""

from __future__ import annotations

import os
from time import time_ns

import numpy as np

from journal.fs.files import FileSystem, read_optional
from journal.memory.arrays import Bools
from qindex.format.headers import DUE_FILE, due_of
from qindex.format.notes import read_notes
from qindex.recovery.columns import Columns
from qindex.view.queue_view import QueueView


class Delayed:
    """Counts the delayed messages of one queue directory, segment by segment.

    ``count``: messages that are not due yet, by the wall clock. ``next_due``: when the first of
    them is, in microseconds since 1970 UTC, or None.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """Read the file of due times, if there is one. Raises :class:`OSError`."""
        data = read_optional(fs, os.path.join(directory, DUE_FILE))
        self._found = None if data is None else read_notes(data)
        self._now = time_ns() // 1000
        self.count: int = 0
        self.next_due: int | None = None

    def add(self, view: QueueView, columns: Columns, there: Bools) -> None:
        """Count the delayed ones among these entries; ``there`` tells which of them count."""
        found = self._found
        if found is None:
            return
        seqs = columns.seqs[there]
        dues = np.zeros(len(seqs), np.int64)
        if len(found.seq_ids):
            at = np.minimum(np.searchsorted(found.seq_ids, seqs), len(found.seq_ids) - 1)
            known = found.seq_ids[at] == seqs
            dues[known] = found.values[at[known]]
        # The writer notes due times at a flush and at its close, so these are in the messages.
        unnoted = np.flatnonzero(there)[(dues == 0) & (seqs >= found.noted)]
        waiting = dues[dues > self._now].tolist()
        for row in view.rows_of(columns, unnoted) if len(unnoted) else ():
            due = due_of(row.headers)
            if due > self._now:
                waiting.append(due)
        self.count += len(waiting)
        if waiting:
            first = min(waiting)
            self.next_due = first if self.next_due is None else min(self.next_due, first)
