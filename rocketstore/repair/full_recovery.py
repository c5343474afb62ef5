"""Recovery that loses nothing: queues and index are held against the log, and made to agree.

The log is the truth. Each of its records says which queue it is in, at which place, under which
keys; so the units of every queue and the entries of every index file follow from it. The log is
read from where :mod:`rocketstore.log.dispatch_note` vouches for both, or from its first record when
nothing does; each queue is compared and overwritten where it differs, and index files are kept up
to the first entry that differs and built anew from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError
from journal.findings import Cause, Finding, Kind
from rocketstore.format.consumequeue_format import MAX_UNIT, UNIT_SIZE, build_units, count_valid
from rocketstore.format.index_format import IndexHeader
from rocketstore.log.dispatch import DispatchBatch, QueueKey, from_records
from rocketstore.log.dispatch_note import DispatchNote
from rocketstore.log.filler_format import Fillers
from rocketstore.log.scan import Records, Stop
from rocketstore.log.walk import LogWalk
from rocketstore.parts import Parts
from rocketstore.queues.consumequeue import ConsumeQueue
from rocketstore.repair.index_rebuild import IndexCheck
from rocketstore.repair.log_repair import LogRepair
from rocketstore.repair.quarantine import save_span
from rocketstore.repair.recovery import cut_log


@dataclass(slots=True)
class Rebuilt:
    """The work of a recovery."""

    end: int = 0
    walked_from: int = 0
    last: tuple[int, int] = (0, 0)
    last_store_time: int = 0
    queues_changed: set[QueueKey] = field(default_factory=set)
    index_from: str = ""
    """Name of the first index file that was built anew, or empty."""


def recover_full(parts: Parts, note: DispatchNote | None, *, crashed: bool) -> Rebuilt:
    """Find the log's end, cut what a crash tore there, and make queues and index agree with it.

    With ``repair`` the whole log is read, and damaged spans in it are quarantined.

    Raises :class:`DamageError` when sound records are after something that no crash explains,
    and :class:`StorageError`.
    """
    known = None
    if note is not None and not parts.options.repair and _still_true(parts, note):
        known = note
    first = max(parts.commitlog.min_offset, 0)
    result = Rebuilt(walked_from=known.offset if known is not None else first)
    if known is not None:
        result.last = known.last[:2]
    log_repair = LogRepair(parts, explained=crashed and _boot_changed(parts, note))
    walk = LogWalk(
        parts.commitlog,
        result.walked_from,
        placed=True,
        strict=known is not None,
        keep_bad_bodies=True,
        on_damage=log_repair,
    )
    queues = QueueRepairs(parts, known)
    index = IndexCheck(parts, known, crashed=crashed)
    for base, records in walk:
        batch = from_records(records, base)
        queues.put(batch, records, base)
        index.put(batch)
        if len(batch):
            parts.checkpoint.logical = int(batch.store_times[-1])
    result.end = walk.end
    if walk.last[1]:
        result.last = walk.last
        result.last_store_time = walk.last_store_time
    if note is not None and result.end < note.offset:
        _ends_early(parts, result.end, note)
    _end_of_log(parts, walk, log_repair)
    result.queues_changed = queues.finish(result.end)
    result.index_from = index.finish(result.end)
    return result


def _boot_changed(parts: Parts, note: DispatchNote | None) -> bool:
    boot = parts.fs.boot_id().decode(errors="replace")
    return note is None or not boot or note.boot != boot


def _still_true(parts: Parts, note: DispatchNote) -> bool:
    """Return whether the note still describes files and log."""
    commitlog = parts.commitlog
    if note.sizes_only:
        return False
    if not commitlog.files.files:
        return note.offset == 0 and not parts.queues and not parts.index.files
    if not max(commitlog.min_offset, 0) <= note.offset <= commitlog.max_offset:
        return False
    offset, size, crc = note.last
    if size and offset >= commitlog.min_offset:
        data = commitlog.read(offset, size)
        if data is None or crc32(data) != crc:
            return False
    return _queues_hold(parts, note) and _index_holds(parts, note)


def _queues_hold(parts: Parts, note: DispatchNote) -> bool:
    minimum = max(parts.commitlog.min_offset, 0)
    for key, (min_position, max_unit) in note.queues.items():
        if max_unit == 0:
            continue
        queue = parts.queues.get(key)
        if queue is None or not queue.starts or not is_contiguous(queue):
            return False
        end = max_unit * UNIT_SIZE
        if queue.starts[-1] + queue.file_size < end:
            return False
        if queue.starts[0] > min_position:
            # Files go from the front only when the log has lost the messages they point to.
            units = queue.units(queue.starts[0] // UNIT_SIZE, queue.starts[0] // UNIT_SIZE + 1)
            if len(units) == 0 or int(units["offset"][0]) > minimum:
                return False
        queue.wrote = max(queue.wrote, end)
        last = queue.units(max_unit - 1, max_unit)
        if len(last) != 1 or int(last["size"][0]) <= 0:
            return False
    return True


def is_contiguous(queue: ConsumeQueue) -> bool:
    """Return whether no file of a queue is missing between others."""
    starts, size = queue.starts, queue.file_size
    return all(right == left + size for left, right in pairwise(starts))


def _index_holds(parts: Parts, note: DispatchNote) -> bool:
    files = {file.name: file for file in parts.index.files}
    minimum = max(parts.commitlog.min_offset, 0)
    present = [row for row in note.index if row[0] in files]
    for row in note.index:
        if row[0] not in files and row[4] >= minimum:
            return False
    for number, row in enumerate(present):
        header = files[row[0]].header
        if header != IndexHeader(*row[1:]) and (number < len(present) - 1 or header.count < row[6]):
            return False
    return True


class QueueRepair:
    """Hold one queue against the units it should have, in order, and write where it differs.

    ``next_unit`` is the place of the next unit; ``None`` until the first one is known. ``last`` is
    the physical offset of the queue's message before it, -1 if this walk has not met any.
    ``from_zero``: the log still has its first byte, so each queue's first ordinal was 0.
    ``dry``: nothing is written. ``busy``: the queue may lag the log. ``bad_unit``: the first unit
    that differs, -1 if none does. ``gaps`` (if ``dry``): messages whose ordinals do not follow
    on those before, for no hole that was filled: offset, ordinal, and the ordinal before.
    """

    __slots__ = (
        "_busy",
        "_dry",
        "_fillers",
        "_from_zero",
        "_ordinal",
        "bad_unit",
        "changed",
        "gaps",
        "last",
        "next_unit",
        "queue",
    )

    def __init__(
        self,
        queue: ConsumeQueue,
        next_unit: int | None,
        fillers: Fillers,
        *,
        from_zero: bool,
        dry: bool = False,
        busy: bool = False,
    ) -> None:
        self.queue: ConsumeQueue = queue
        self.next_unit = next_unit
        self.last: int = -1
        self._fillers = fillers
        self._from_zero = from_zero
        self._dry = dry
        self._busy = busy
        self._ordinal: int | None = None
        self.gaps: list[tuple[int, int, int]] = []
        self.bad_unit: int = -1
        self.changed: bool = False
        if not dry and queue.starts and not is_contiguous(queue):
            queue.destroy()
            self.changed = True

    def put(
        self,
        queue_offsets: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int64],
    ) -> None:
        """The queue's next units in log order."""
        queue = self.queue
        first = int(queue_offsets[0])
        if not 0 <= first <= MAX_UNIT:
            first = 0  # damage: no queue is that long
        if self.next_unit is None:
            lost = first <= self._fillers.most_lost(-1, int(offsets[0]))
            self._start(0 if lost and self._from_zero else first)
        assert self.next_unit is not None
        if self._dry:
            self._find_gaps(queue_offsets, offsets)
        if first != self.next_unit or not bool((np.diff(queue_offsets) == 1).all()):
            keep = self._fillers.place(
                queue_offsets.tolist(), offsets.tolist(), self.next_unit, self.last
            )
            offsets, sizes, codes = offsets[keep], sizes[keep], codes[keep]
        count = len(offsets)
        if count == 0:
            return
        wanted = build_units(offsets, sizes, codes, count)
        have = queue.units(self.next_unit, self.next_unit + count).tobytes()
        if have != (wanted[: len(have)] if self._busy else wanted):
            self._differs(self.next_unit, have, wanted)
        self.next_unit += count
        self.last = int(offsets[-1])
        if not self._dry:
            queue.max_physical = int(offsets[-1] + sizes[-1])

    def _find_gaps(
        self, queue_offsets: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
    ) -> None:
        before = int(queue_offsets[0]) - 1 if self._ordinal is None else self._ordinal
        steps = np.diff(queue_offsets, prepend=before)
        for row in np.flatnonzero(steps > 1).tolist():
            after = int(offsets[row - 1]) if row else self.last
            offset, ordinal, step = int(offsets[row]), int(queue_offsets[row]), int(steps[row])
            if step - 1 > self._fillers.most_lost(after, offset):
                self.gaps.append((offset, ordinal, ordinal - step))
        self._ordinal = int(queue_offsets[-1])

    def _differs(self, first: int, have: bytes, wanted: bytes) -> None:
        if self.bad_unit < 0:
            at = 0
            while have[at : at + UNIT_SIZE] == wanted[at : at + UNIT_SIZE]:
                at += UNIT_SIZE
            self.bad_unit = first + at // UNIT_SIZE
        if not self._dry:
            self.queue.overwrite(first, wanted)
            self.changed = True

    def _start(self, first: int) -> None:
        queue = self.queue
        position = first * UNIT_SIZE
        self.next_unit = first
        if self._dry:
            return
        if queue.starts and not queue.starts[0] <= position <= queue.wrote:
            queue.destroy()
            self.changed = True
        if not queue.starts and first:
            queue.begin(position)
            self.changed = True

    def finish(self, log_end: int, min_offset: int) -> None:
        """Drop everything after the last unit."""
        queue = self.queue
        if self.next_unit is None:
            self.next_unit = _expired_units(queue, min(min_offset, log_end))
        if queue.cut(self.next_unit * UNIT_SIZE):
            self.changed = True
        if queue.max_physical < 0 and queue.max_offset:
            # No unit of it was read, because our note vouched for all of them.
            for unit in queue.units(queue.max_offset - 1, queue.max_offset):
                queue.max_physical = int(unit["offset"]) + int(unit["size"])


def _expired_units(queue: ConsumeQueue, min_offset: int) -> int:
    """Where a queue ends none of whose messages is in the log any more: its units stay, so that
    no ordinal is given twice."""
    end = queue.starts[0] // UNIT_SIZE if queue.starts else 0
    for start in queue.starts:
        units = queue.file_units(start)
        valid = count_valid(units)
        below = units["offset"][:valid] < min_offset
        kept = valid if below.all() else int(below.argmin())
        end = start // UNIT_SIZE + kept
        if kept < len(units):
            break
    return end


class QueueRepairs:
    """All queues of a store, each held against the log as it is walked. ``dry``: nothing is
    written. ``busy``: they may lag the log. ``each``: the queues that the walk has met so far."""

    def __init__(
        self, parts: Parts, known: DispatchNote | None, *, dry: bool = False, busy: bool = False
    ) -> None:
        self._parts = parts
        self._fillers = Fillers()
        self._dry = dry
        self._busy = busy
        self.each: dict[QueueKey, QueueRepair] = {}
        if known is not None:
            for key in parts.queues:
                bounds = known.queues.get(key)
                self._add(key, bounds[1] if bounds else None)

    def _add(self, key: QueueKey, next_unit: int | None) -> QueueRepair:
        from_zero = self._parts.commitlog.min_offset <= 0
        queue = self._parts.queue(*key)
        repair = QueueRepair(
            queue, next_unit, self._fillers, from_zero=from_zero, dry=self._dry, busy=self._busy
        )
        self.each[key] = repair
        return repair

    def put(self, batch: DispatchBatch, records: Records, base: int) -> None:
        """The log's next messages: the ``records`` of the file that begins at ``base``."""
        self._fillers.see(records, base)
        for key, chosen in batch.by_queue():
            repair = self.each.get(key) or self._add(key, None)
            repair.put(*batch.units(chosen))

    def settle(self, end: int) -> None:
        """Drop the units of the queues after ``end``, where the log ends."""
        parts = self._parts
        minimum = max(parts.commitlog.min_offset, 0)
        for key in parts.queues:
            if key not in self.each:
                self._add(key, None)
        for repair in self.each.values():
            repair.finish(end, minimum)
            repair.queue.correct_min(minimum)

    def finish(self, end: int) -> set[QueueKey]:
        """Settle the queues; report and return the queues that differed."""
        self.settle(end)
        for repair in self.each.values():
            if repair.changed:
                self._parts.finding(
                    Finding(
                        repair.queue.directory,
                        0,
                        0,
                        Cause.CRASH,
                        "the consume queue did not agree with the commit log",
                        "rebuilt",
                        Kind.MISMATCH,
                    )
                )
        return {key for key, repair in self.each.items() if repair.changed}


def _ends_early(parts: Parts, end: int, note: DispatchNote) -> None:
    """Report a log that ends before an offset that was on disk.

    Raises :class:`DamageError`, unless ``repair``, when its last message is lost. A broker that
    went on in a file we had closed with a blank record leaves only an earlier end.
    """
    what = f"the log ends at offset {end}, and was on disk up to {note.offset}"
    if note.last[1] and end <= note.last[0] and not parts.options.repair:
        raise DamageError(parts.paths.commitlog, end, f"{what} (open with repair=True)")
    consequence = "the messages from there on are gone"
    parts.finding(
        Finding(parts.paths.commitlog, end, 0, Cause.DAMAGE, what, consequence, Kind.TORN)
    )


def _end_of_log(parts: Parts, walk: LogWalk, log_repair: LogRepair) -> None:
    """Cut the log where its records end. Sound records after that are copied to quarantine: they
    were never promised, or the hole before them is too small to be filled."""
    commitlog = parts.commitlog
    end = walk.end
    for offset in walk.bad_bodies:
        parts.finding(
            Finding(
                parts.paths.commitlog,
                offset,
                0,
                Cause.DAMAGE,
                "a record's body does not match its checksum",
                "reading this body raises an error; the messages after it are not affected",
                Kind.CHECKSUM,
            )
        )
    file = commitlog.files.find(end)
    if log_repair.survivor is not None and file is not None:
        length = commitlog.files.max_offset - end
        where = save_span(parts.fs, parts.paths, commitlog, end, end + length)
        parts.finding(
            Finding(
                file.path,
                end - file.start,
                length,
                Cause.CRASH if log_repair.explained else Cause.DAMAGE,
                "there is no record here, but sound ones follow from offset "
                f"{log_repair.survivor} on",
                f"the log was cut here; its rest is quarantined in {where}",
            )
        )
    cut_log(parts, end)
    file = commitlog.files.find(end)
    if file is not None and walk.stop is Stop.BAD:
        # Old bytes after the end could line up with new records one day and be taken for some.
        file.zero_from(end - file.start)
