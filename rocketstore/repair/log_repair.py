"""Repair damage in the middle of the log (``repair=True``): only the damaged span goes.

The next sound record has its own offset in its header, and a body that has its checksum. The
span before it is copied to ``quarantine/``, and then overwritten by fillers (see
:mod:`rocketstore.log.filler_format`), so that this package and a RocketMQ node read on after it.
Until the fillers are whole the span is as unreadable as before: a crash here is met again, and
repaired again, at the next open.
"""

from __future__ import annotations

from functools import partial

from journal.errors import DamageError
from journal.findings import Cause, Finding
from rocketstore.format.commitlog_format import FIXED_SIZE
from rocketstore.log.filler_format import can_fill, fill_records
from rocketstore.log.mapped_files import MappedFile, holds_data
from rocketstore.log.walk import LogWalk, find_survivor, is_cut_short
from rocketstore.parts import Parts
from rocketstore.repair.quarantine import save_span


class LogRepair:
    """Asked by a walk what to do where no record is.

    ``survivor`` is the offset of the sound record after the place where the walk ended, if the log
    is to be cut there: a crash explains what lies before it (``explained``), or nothing fits in.
    """

    def __init__(self, parts: Parts, *, explained: bool) -> None:
        self._parts = parts
        self.explained: bool = explained
        self.survivor: int | None = None

    def __call__(self, walk: LogWalk) -> int | None:
        """Where the walk goes on; ``None`` ends it.

        Raises :class:`DamageError` when sound records follow, no crash explains that, and the
        store was not opened with ``repair=True``; :class:`StorageError`.
        """
        commitlog = self._parts.commitlog
        start = walk.end
        file = commitlog.files.find(start)
        if file is None:
            return None
        survivor = find_survivor(commitlog, start, returned=True)
        if survivor is None:
            return None
        if is_cut_short(commitlog, start) and not self._is_in_a_queue(start):
            self.explained = True
            self.survivor = survivor
            return None
        what = f"there is no record here, but sound ones follow from offset {survivor} on"
        if not self._parts.options.repair:
            if not self.explained:
                where = start - file.start
                raise DamageError(file.path, where, what + " (open with repair=True)")
            self.survivor = survivor
            return None
        end = self._end_of_hole(file, start, survivor)
        if end is None:
            self.survivor = survivor
            return None
        self._fill(file, start, end, commitlog.store_time(survivor, FIXED_SIZE), what)
        return start

    def bad_body(self, file: MappedFile, start: int, end: int, store_timestamp: int) -> bool:
        """Return whether a record whose frame is sound and whose body is not was set aside: with
        ``repair=True`` it is, because a RocketMQ node would end the log there."""
        if not self._parts.options.repair:
            return False
        what = "a record's body does not match its checksum"
        self._fill(file, start, end, store_timestamp, what)
        return True

    def _end_of_hole(self, file: MappedFile, start: int, survivor: int) -> int | None:
        """Where a filler has to end: the survivor, or its file's end; ``None`` if none fits."""
        commitlog = self._parts.commitlog
        file_end = file.start + file.size
        while survivor < file_end and not can_fill(start, survivor, file_end):
            following = find_survivor(commitlog, survivor + 1, returned=True)
            if following is None:
                return None
            survivor = following
        end = min(survivor, file_end)
        return end if can_fill(start, end, file_end) else None

    def _is_in_a_queue(self, start: int) -> bool:
        """Return whether a queue names a record from ``start`` on, which was dispatched after its
        append returned."""
        for queue in self._parts.queues.values():
            if queue.starts:
                units = queue.file_units(queue.starts[-1])
                if ((units["size"] > 0) & (units["offset"] >= start)).any():
                    return True
        return False

    def _holds_data(self, file: MappedFile, start: int, end: int) -> bool:
        files = self._parts.commitlog.files
        read = partial(files.read, file)
        behind = end - file.start
        ranges = files.data_ranges(file, start - file.start)
        return any(holds_data(read, first, min(stop, behind)) for first, stop in ranges)

    def _fill(self, file: MappedFile, start: int, end: int, store_time: int, what: str) -> None:
        parts = self._parts
        consequence = "it held nothing but zeros; the log goes on after it"
        if self._holds_data(file, start, end):
            where = save_span(parts.fs, parts.paths, parts.commitlog, start, end)
            consequence = f"quarantined in {where}; the log goes on after it"
        view = parts.commitlog.files.mapped(file)
        file_end = file.start + file.size
        for offset, data in fill_records(start, end, file_end, store_time):
            at = offset - file.start
            parts.fs.fallocate(file.fd, at, len(data))
            view[at : at + len(data)] = data
        file.dirty = True
        parts.finding(
            Finding(
                file.path,
                start - file.start,
                end - start,
                Cause.DAMAGE,
                what,
                consequence,
            )
        )
