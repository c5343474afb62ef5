"""Tells cheaply that nothing was done to a queue since it was looked at: for ``qindex top``.

A publish is a store into a mapped file, which changes neither the file's size nor, before it is
written back, its times. So the journal is asked: does it start with the record it started with, and
is nothing behind its last one? A record stands in a queue's journal once in its life, so one that
was emptied and filled again starts differently; and before it is emptied its entries are appended
to the segment files, which only grow. Messages that leave no trace in either (published,
acknowledged and dropped by one flush) raise the floor in ``qindex.seq``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import time_ns

from journal import format as journal_format
from journal.files import FileSystem, opened, pread_all
from qindex.format.segment import file_name, file_number
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.index.segment_form import SegmentForm
from qindex.view.point_in_time import Pinned

SeqMark = tuple[int, int, int]

_HEAD = journal_format.PUBLISH_HEAD_SIZE
_FRESH = 100_000_000
"""Nanoseconds: a file that was written so short a while ago may change again within one tick of the
clock that its time is taken from."""


def seq_mark(fs: FileSystem, directory: str) -> SeqMark | None:
    """Take inode, time and size of the queue's ``qindex.seq``; zeros where there is none, and
    ``None`` where it was written just now. Raises :class:`OSError`."""
    try:
        stat = fs.stat(os.path.join(directory, SEQ_FILE_NAME))
    except FileNotFoundError:
        return 0, 0, 0
    if abs(time_ns() - stat.st_mtime_ns) < _FRESH:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


@dataclass(frozen=True, slots=True)
class Stillness:
    """A queue as it was pinned. ``segments``: inode and size of the files, by number; ``start``:
    the first bytes of the journal, ``end``: where its records end, ``size``: of the file; ``mark``
    was taken before."""

    segments: dict[int, tuple[int, int]]
    start: bytes
    end: int
    size: int
    mark: SeqMark

    @classmethod
    def of(cls, pinned: Pinned, mark: SeqMark | None, form: SegmentForm) -> Stillness | None:
        """Note a queue, or give ``None`` for one that was written just now, or is damaged, or whose
        segments are overwritten in place."""
        reading = pinned.reading
        if mark is None or reading.findings or pinned.pairs or not form.rereads:
            return None
        segments = {one.number: (one.inode, one.size) for one in pinned.segments.values()}
        end = reading.walk.end
        start = bytes(reading.data[: min(_HEAD, end)])
        return cls(segments, start, end, pinned.journal_size, mark)

    def holds(self, fs: FileSystem, directory: str) -> bool:
        """Tell whether the queue is as it was; when in doubt, it is not. One system call for each
        segment file, and seven more."""
        try:
            return (
                self._same_journal(fs, os.path.join(directory, journal_format.FILE_NAME))
                and self._same_segments(fs, directory)
                and seq_mark(fs, directory) == self.mark
            )
        except OSError:
            return False

    def _same_journal(self, fs: FileSystem, path: str) -> bool:
        try:
            with opened(fs, path) as fd:
                return (
                    fs.fstat(fd).st_size == self.size
                    and pread_all(fs, fd, len(self.start), 0) == self.start
                    and not any(pread_all(fs, fd, _HEAD, self.end))
                )
        except FileNotFoundError:
            return not self.size

    def _same_segments(self, fs: FileSystem, directory: str) -> bool:
        numbers = {file_number(name) for name in fs.listdir(directory)} - {None}
        if numbers != self.segments.keys():
            return False
        stats = (
            (fs.stat(os.path.join(directory, file_name(number))), known)
            for number, known in self.segments.items()
        )
        return all((stat.st_ino, stat.st_size) == known for stat, known in stats)
