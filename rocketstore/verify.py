"""Check a whole store without changing it: every record, every unit, every entry.

No lock is held: a writer can open the store at any time. A store that no process has open for
writing is checked to its end, and queues and index must agree with all of its log. Beside a writer
one moment is checked: first the ends of index and queues are looked up, then that of the log, which
they follow. So all that they had then must agree with the log, and bytes that the writer adds later
are not read. A finding beside a writer is looked for again, and counts only if it is found both
times.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from time import sleep
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from journal.errors import StorageError, UsageError, storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.beneath import beneath, leave, open_to_others
from journal.fs.files import (
    FileSystem,
    PathLike,
    checked_path,
    is_there,
    read_optional,
    special,
)
from journal.memory.arrays import I64
from journal.threads import check_unpatched
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.format.commitlog_format import file_name
from rocketstore.format.consumequeue_format import UNIT_SIZE
from rocketstore.layout import Layout, Paths, look
from rocketstore.lock import is_open
from rocketstore.log.dispatch import QueueKey, from_records
from rocketstore.log.dispatch_note import DispatchNote, load_note
from rocketstore.log.log_end import log_end
from rocketstore.log.scan import Records, Stop
from rocketstore.log.walk import LogWalk, SkipDamage
from rocketstore.options import Options
from rocketstore.parts import Parts, build_parts
from rocketstore.queues.consumequeue import ConsumeQueue
from rocketstore.repair.config_check import check_config
from rocketstore.repair.directory_repair import taken_away
from rocketstore.repair.full_recovery import QueueRepair, QueueRepairs, is_contiguous
from rocketstore.repair.index_rebuild import IndexCheck

_LOOKS: Final = 12
"""Looks at a store beside a writer, of which two must find the same."""
_PAUSE: Final = 0.05
"""Seconds between them."""
_ODD_MS: Final = 24 * 3_600_000
"""A store time this far from those before and after it does not come of a clock that was set."""


@dataclass(slots=True)
class Report:
    """The findings of a store, and how many records, units and index entries were looked at."""

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    units: int = 0
    index_entries: int = 0


def verify(path: PathLike, **options: Any) -> list[Finding]:
    """Return all findings of a store directory. O(bytes of the log).

    Options are those of :func:`rocketstore.open`. Raises :class:`NotAStoreError`,
    :class:`StorageError` and :class:`UsageError`.
    """
    return check_store(path, **options).findings


def check_store(path: PathLike, **options: Any) -> Report:
    """As :func:`verify`, with the numbers of things that were looked at."""
    path = checked_path(path)
    try:
        chosen = Options(**{**options, "read_only": True})
    except TypeError as error:
        raise UsageError(str(error)) from error
    check_unpatched()
    chosen = replace(chosen, fs=beneath(chosen.fs, path, hold=True))
    try:
        with storage_errors(path, "can't be verified"):
            return _settled(chosen, Paths(path))
    finally:
        leave(chosen.fs)


def findings_of(options: Options, paths: Paths) -> list[Finding]:
    """Return the findings of a store that is open for reading only with these options, without
    notes on who can read it. Raises :class:`StorageError`."""
    with storage_errors(paths.root, "can't be verified"):
        found = _settled(options, paths).findings
    return [one for one in found if one.kind is not Kind.OPEN_TO_OTHERS]


def _settled(options: Options, paths: Paths) -> Report:
    """Check the store until the findings are not the trace of a writer at work."""
    fs = options.fs
    before: list[Finding] | None = None
    for left in reversed(range(_LOOKS)):
        busy = is_open(fs, paths.lock)
        try:
            report = _look(options, paths, busy=busy)
        except StorageError as error:
            expired = isinstance(error.__cause__, FileNotFoundError)
            if not left or not expired or not (busy or is_open(fs, paths.lock)):
                raise
        else:
            if before is not None:
                report.findings = [one for one in report.findings if one in before]
            at_rest = not busy and not is_open(fs, paths.lock)
            if at_rest or not report.findings or report.findings == before:
                break
            before = report.findings
        sleep(_PAUSE)
    return report


def _look(options: Options, paths: Paths, *, busy: bool) -> Report:
    """Check the store as it is now. ``busy``: a process may be writing."""
    fs = options.fs
    look(fs, paths, options)  # raises where there is no store
    note = load_note(fs, paths.dispatch_note)
    checkpoint = Checkpoint.parse(read_optional(fs, paths.checkpoint))
    layout = look(fs, paths, options, note.sizes if note is not None else None)
    whole = replace(layout, commitlog=layout.readable)
    parts = build_parts(options, paths, whole, checkpoint)
    try:
        findings = [*_special_files(fs, paths.root), *open_to_others(fs, paths.root)]
        findings += _strangers(paths, layout)
        findings += taken_away(options, paths, layout, note, checkpoint)
        findings += check_config(fs, paths)
        check = _Check(parts, note, busy=busy, whole=not layout.lost() and not layout.short)
        findings += check.run()
        entries = sum(file.header.count - 1 for file in parts.index.files)
        units = sum(map(_units_in, parts.queues.values()))
        return Report(findings, check.records, units, entries)
    finally:
        parts.close()


def _units_in(queue: ConsumeQueue) -> int:
    return queue.max_offset - queue.starts[0] // UNIT_SIZE if queue.starts else 0


def _special_files(fs: FileSystem, directory: str) -> Iterator[Finding]:
    """Find names, anywhere below, that are neither a file nor a directory."""
    for name in sorted(fs.listdir(directory)):
        inner = os.path.join(directory, name)
        try:
            mode = fs.stat(inner).st_mode
            odd = special(mode)
            if odd is not None:
                what = Kind.FOREIGN_FILE
                yield Finding(inner, 0, 0, Cause.DAMAGE, odd, "it is not read", what)
            elif stat.S_ISDIR(mode):
                yield from _special_files(fs, inner)
        except FileNotFoundError:
            continue  # deleted meanwhile


def _strangers(paths: Paths, layout: Layout) -> Iterator[Finding]:
    """Find files of wrong length or name, and files of the log that are missing."""
    for one in layout.strangers:
        kind = Kind.TORN if one.is_short else Kind.FOREIGN_FILE
        lost = "not used"
        if one.start in layout.short and one.path.startswith(paths.commitlog):
            lost = "the content after its end is lost"
        yield Finding(one.path, 0, 0, Cause.DAMAGE, one.what, lost, kind)
    size = layout.commitlog_file_size
    for left, right in itertools.pairwise(layout.readable):
        count = (right - left) // size - 1
        if not count:
            continue
        what = "this file of the commit log is missing"
        if count > 1:
            what = f"{count} files of the commit log from this one on are missing"
        path = os.path.join(paths.commitlog, file_name(left + size))
        lost = "its messages are lost"
        yield Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.MISSING_FILE)


class _Check:
    """The check of log, queues and index.

    Queues and index follow from the log: while the log has holes (it is not ``whole``), they are
    not held against it. ``note`` says which bytes were on disk at the last checkpoint: a difference
    there is damage, for no crash leaves it.
    """

    def __init__(self, parts: Parts, note: DispatchNote | None, *, busy: bool, whole: bool) -> None:
        self._parts = parts
        self._note = note
        self._whole = whole
        self.records = 0
        self._incomplete: dict[QueueKey, int] = {}
        for key, queue in parts.queues.items():
            if is_contiguous(queue):
                queue.recover()
                continue
            pairs = itertools.pairwise(queue.starts)
            ends = (
                left + queue.file_size for left, right in pairs if right != left + queue.file_size
            )
            self._incomplete[key] = next(ends)
            queue.load([])  # it is not compared
        self._limit = log_end(parts.commitlog) if busy else None
        self._queues = QueueRepairs(parts, None, dry=True, busy=busy)
        self._index = IndexCheck(parts, None, crashed=False, dry=True, busy=busy)
        self._times = np.empty(0, np.int64)
        self._offsets = np.empty(0, np.int64)

    def run(self) -> Iterator[Finding]:
        """Yield the findings of the log, then those of queues and index."""
        yield from self._missing_units()
        at: int | None = max(self._parts.commitlog.min_offset, 0)
        while at is not None:
            walk = yield from self._walk(at)
            at = self._after_gap(walk)
        if not self._whole:
            return
        note = self._note
        if note is not None and note.last[1] and walk.end <= note.last[0]:
            what = f"the log ends here, and was on disk up to offset {note.offset}"
            yield self._damage(walk.end, what, Kind.TORN)
        for key, repair in sorted(self._queues.each.items()):
            if key not in self._incomplete:
                yield from self._of_queue(repair)
        problem = self._index.problem()
        if problem is not None:
            yield self._of_index(problem)

    # -- the log ---------------------------------------------------------------------------------

    def _walk(self, at: int) -> Generator[Finding, None, LogWalk]:
        """Check the log from an offset to its end, or to a file that is missing."""
        commitlog = self._parts.commitlog
        holes = SkipDamage(commitlog)
        walk = LogWalk(commitlog, at, keep_bad_bodies=True, limit=self._limit, on_damage=holes)
        for base, records in walk:
            self.records += len(records)
            yield from self._check_places(records, base)
            yield from self._odd_times(records, base)
            batch = from_records(records, base)
            if self._whole:
                self._queues.put(batch, records, base)
                if self._parts.options.index:
                    self._index.put(batch)
        for offset in walk.bad_bodies:
            yield self._damage(offset, "the body does not match its checksum", Kind.CHECKSUM)
        if walk.stop is Stop.BAD and holes.skipped:
            # The last one is where the log ends.
            yield from self._torn_end(holes.skipped.pop())
        for offset in holes.skipped:
            yield self._damage(offset, "there is no record here, but sound ones follow")
        self._whole = self._whole and not holes.skipped
        return walk

    def _after_gap(self, walk: LogWalk) -> int | None:
        """Return where the log goes on after missing files."""
        files = self._parts.commitlog.files.files
        if walk.stop is Stop.BAD or (self._limit is not None and walk.end >= self._limit):
            return None
        return next((start for start in files if start > walk.end), None)

    def _check_places(self, records: Records, base: int) -> Iterator[Finding]:
        moved = np.flatnonzero(records.offsets != records.positions + base)
        if len(moved):
            at = base + int(records.positions[moved[0]])
            yield self._damage(at, "a record says that it is elsewhere")

    def _odd_times(self, records: Records, base: int) -> Iterator[Finding]:
        """Find store times that are far from those before and after, which agree."""
        times = np.concatenate([self._times, records.store_times])
        offsets: I64 = np.concatenate([self._offsets, records.positions + base])
        self._times, self._offsets = times[-2:], offsets[-2:]
        if len(times) < 3:
            return
        before, here, after = times[:-2], times[1:-1], times[2:]
        odd: npt.NDArray[np.bool_] = np.abs(after - before) < _ODD_MS
        odd &= (np.abs(here - before) > _ODD_MS) & (np.abs(here - after) > _ODD_MS)
        for row in np.flatnonzero(odd).tolist():
            what = f"the store time {int(here[row])} is far from those around it"
            yield self._damage(int(offsets[row + 1]), what)

    def _torn_end(self, end: int) -> Iterator[Finding]:
        files = self._parts.commitlog.files
        file = files.find(end)
        if file is None or not files.read(file, end - file.start, 16).strip(b"\0"):
            return
        what = "a torn record at the log's end"
        lost = "open for writing removes it; it was never acknowledged as durable"
        yield Finding(file.path, end - file.start, 0, Cause.CRASH, what, lost, Kind.TORN)

    def _damage(self, offset: int, what: str, kind: Kind = Kind.RECORD) -> Finding:
        file = self._parts.commitlog.files.find(offset)
        path = file.path if file is not None else self._parts.paths.commitlog
        start = file.start if file is not None else 0
        return Finding(path, offset - start, 0, Cause.DAMAGE, what, kind=kind)

    # -- queues and index ------------------------------------------------------------------------

    def _missing_units(self) -> Iterator[Finding]:
        for key, start in sorted(self._incomplete.items()):
            cause, lost = self._judged(start < self._durable_units(key) * UNIT_SIZE)
            what = "this file of the queue is missing"
            path = self._parts.queue(*key).path(start)
            yield Finding(path, 0, 0, cause, what, lost, Kind.MISSING_FILE)

    def _of_queue(self, repair: QueueRepair) -> Iterator[Finding]:
        queue, unit, end = repair.queue, repair.bad_unit, repair.next_unit
        for offset, ordinal, before in repair.gaps:
            name = f"{queue.topic}/{queue.queue_id}"
            what = f"queue offset {ordinal} of {name} follows on {before}"
            yield replace(self._damage(offset, what, Kind.GAP), consequence="messages are missing")
        if unit < 0 and end is not None and queue.max_offset > end:
            unit = end
        if unit < 0:
            return
        position = unit * UNIT_SIZE
        start = position - position % queue.file_size
        path = queue.path(start) if start in queue.starts else queue.directory
        cause, lost = self._judged(unit < self._durable_units((queue.topic, queue.queue_id)))
        what = f"unit {unit} does not agree with the log"
        yield Finding(path, position - start, UNIT_SIZE, cause, what, lost, Kind.MISMATCH)

    def _durable_units(self, key: QueueKey) -> int:
        return self._note.queues.get(key, (0, 0))[1] if self._note is not None else 0

    def _of_index(self, problem: Finding) -> Finding:
        """Judge a problem of the index. After a crash the newest file may be newer than its
        header."""
        names = [row[0] for row in self._note.index] if self._note is not None else []
        if is_there(self._parts.fs, self._parts.paths.abort):
            names = names[:-1]
        if os.path.basename(problem.path) not in names:
            return problem
        lost = "queries may miss messages; rebuild-index repairs it"
        return replace(problem, cause=Cause.DAMAGE, consequence=lost)

    @staticmethod
    def _judged(durable: bool) -> tuple[Cause, str]:
        """Return the cause of a problem of a queue, and its consequence."""
        if durable:
            lost = "consumers get another message, or none; rebuild-index repairs it"
            return Cause.DAMAGE, lost
        return Cause.CRASH, "open for writing rebuilds it"
