"""The image of one queue: the content of its files, and their damage.

Every reader of a queue that is not open in this process uses the image. Recovery makes it true on
disk, a view renders it, verify lists its findings, and repair, salvage and convert copy its
entries. The image keeps the journal in memory and reads one segment at a time.

Callers differ in two ways:

* *The store's lock.* The holder of the lock finds the files at rest. All other readers read the
  files of one moment (:mod:`qindex.recovery.point_in_time`). The image then reports nothing that a
  writer's later work explains.
* *The depth.* Recovery and views trust the checksums of blocks. Verify checks every record.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from journal.findings import Cause, Finding, Kind
from journal.format import (
    ACTION_SIZE,
    DELIVER,
    MAX_SEQ_ID,
    PAYLOAD_SIZE,
    PUBLISH_HEAD_SIZE,
    PUBLISH_TRANSIENT,
)
from journal.fs.files import FileSystem
from journal.memory.arrays import U8, Bools
from journal.replay import Walk
from qindex.format.rabbitmq.queue_index_v2 import file_name as index_file
from qindex.format.resynchronise import Elsewhere
from qindex.format.segment import STEP_SIZE
from qindex.index.merge import JournalRecords
from qindex.index.pair_scan import Depth, Pair, PinnedPair, entry_count_of, read_pair
from qindex.index.segment import ABSENT, DELIVERED, PUBLISHED, segment_numbers
from qindex.index.segment_file import scan_file, segment_path
from qindex.index.segment_scan import SegmentScan
from qindex.recovery.columns import Source, pair_source, source_of, take_rows
from qindex.recovery.delivery_rules import DirectoryRules
from qindex.recovery.early_steps import ahead_findings, ahead_of_publishes
from qindex.recovery.node_files import empty_segment, journal_findings, other_messages
from qindex.recovery.point_in_time import Pinned, has_moved_on, pin_queue, read_segment


@dataclass(slots=True)
class SegmentImage:
    """One segment, journal and files together.

    ``base``: the first seq_id. ``states``: a state for each entry (:mod:`qindex.index.segment`).
    ``sources``: the files that hold its entries, each entry once. ``scan``: its file of version 1,
    or ``None`` if there is no such file or it can't be read.
    """

    base: int
    states: U8
    sources: list[Source]
    scan: SegmentScan | None = None

    @property
    def alive(self) -> Bools:
        """Return which entries are published and not acknowledged. Shape of ``states``."""
        alive: Bools = (self.states == PUBLISHED) | (self.states == DELIVERED)
        return alive

    def transient(self) -> list[int]:
        """Return the seq_ids of the transient entries that are alive."""
        found: list[int] = []
        for source in self.sources:
            if (source.kinds == PUBLISH_TRANSIENT).any():
                seqs = source.seqs[source.kinds == PUBLISH_TRANSIENT]
                found += seqs[self.alive[seqs - self.base]].tolist()
        return found

    def stored(self) -> list[tuple[int, bytes]]:
        """Return seq_id and message id of the entries that are alive and embed no message."""
        found: list[tuple[int, bytes]] = []
        for source in self.sources:
            rows = np.flatnonzero(source.lengths == source.head_size + PAYLOAD_SIZE)
            if len(rows):
                rows = rows[self.alive[source.seqs[rows] - self.base]]
                ids: npt.NDArray[np.void] = source.heads_of(rows)["id"]
                found += zip(source.seqs[rows].tolist(), ids.tolist(), strict=True)
        return found


class QueueImage:
    """The image of the queue in ``directory``, which has these ``rules``.

    ``pinned``: the moment to show; by default the present one. ``only`` returns whether the segment
    of a number is wanted; the image ignores the others. ``busy`` returns whether a writer may be at
    work. ``None`` means that the caller holds the store's lock and has pinned the queue with
    :func:`qindex.recovery.point_in_time.at_rest`. ``depth``: see the module's text.

    ``numbers``: the segments, ascending. ``entry_count``: entries in each. ``seen``: one above the
    highest seq_id met so far. ``unnamed``: entries met so far that have no slot
    (:mod:`qindex.index.pair_scan`). Raises as :func:`pin_queue`.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        rules: DirectoryRules,
        *,
        depth: Depth = Depth.READ,
        pinned: Pinned | None = None,
        only: Callable[[int], bool] | None = None,
        busy: Callable[[], bool] | None,
    ) -> None:
        self._fs = fs
        self._busy = busy
        self._found: dict[Finding, None] = {}
        self._last: tuple[int, SegmentImage | None] | None = None
        self._trust_sums = depth < Depth.DECODE
        self.rules = rules
        self.depth = depth
        self.unnamed: int = 0
        if pinned is None:
            assert busy is not None
            pinned = pin_queue(
                fs, directory, rules, trust_sums=self._trust_sums, only=only, busy=busy
            )
        self.pinned: Pinned = pinned
        """The moment that is shown. Another process can show it again."""
        walk = pinned.reading.walk
        # A flush that was cut short may leave a torn entry in a segment; the journal has it whole.
        self._elsewhere: Elsewhere | None = None
        if pinned.given_out.limit < MAX_SEQ_ID and len(walk):
            self._elsewhere = Elsewhere.of(walk, PUBLISH_HEAD_SIZE)
        self.seen: int = 0
        self._leave_out_early_steps()
        self._find(pinned.reading.findings)
        walk = pinned.reading.walk
        # Where the journal has records of a segment, a loss of power may have cut a flush short
        # that was changing the file. The journal still holds what that flush was writing.
        self._touched = segment_numbers(walk.seqs, rules.entry_count)
        # A deliver or ack counts too: its seq_id was given out, even if its segment is gone.
        self.seen = max(self.seen, int(walk.seqs.max()) + 1 if len(walk) else 0)
        self.records: JournalRecords = JournalRecords(pinned.journal_path, walk)
        publishes = walk.kinds < DELIVER
        if rules.of_node:
            self._find(list(journal_findings(fs, pinned)))
            if len(self.records.entries) < np.count_nonzero(publishes):
                self._find_repeats(walk.take(publishes))
        self._version1 = numbers = sorted({*pinned.segments, *self._touched})
        self.entry_count: int = rules.entry_count
        if pinned.pairs:
            self.entry_count = entry_count_of(pinned.pairs)
            older = {
                base // self.entry_count
                for number in numbers
                for base in range(
                    number * rules.entry_count, (number + 1) * rules.entry_count, self.entry_count
                )
            }
            numbers = sorted({*pinned.pairs, *older})
        self.numbers: list[int] = numbers if only is None else list(filter(only, numbers))

    @property
    def findings(self) -> list[Finding]:
        """Return the findings so far, each once. They are complete when all segments were read."""
        return list(self._found)

    def _find(self, findings: list[Finding]) -> None:
        self._found.update(dict.fromkeys(findings))

    def _leave_out_early_steps(self) -> None:
        """Leave out delivers and acks of messages that were not published by then
        (:mod:`qindex.recovery.early_steps`)."""
        reading, below = self.pinned.reading, self.pinned.given_out.below
        path = self.pinned.journal_path
        if below is None or any(
            one.cause is Cause.DAMAGE and one.path == path for one in reading.findings
        ):
            return  # their publishes may be the damaged records
        ahead = ahead_of_publishes(reading.walk, below)
        if ahead.any():
            # A node that had the queue for a while knows of no other file than its segments.
            for number in sorted(self.pinned.segments, reverse=True):
                with suppress(OSError):  # the reader of that segment gets the error
                    self._scan(number)
                if self.seen:
                    break
            ahead = ahead_of_publishes(reading.walk, max(below, self.seen))
            reading.findings += ahead_findings(path, reading.walk, ahead)
            reading.walk = reading.walk.take(~ahead)

    def _find_repeats(self, walk: Walk) -> None:
        kept = set(self.records.entries.offsets.tolist())
        again = [at for at, offset in enumerate(walk.offsets.tolist()) if offset not in kept]
        self._find(_repeats(self.pinned.journal_path, walk, again))

    # -- one segment ----------------------------------------------------------------------------

    def segment(self, number: int, depth: Depth | None = None) -> SegmentImage | None:
        """Read segment ``number``, or return ``None`` if its file was deleted. ``depth`` replaces
        the depth of the image for the messages of a queue of version 2."""
        if not self.pinned.pairs:
            return self._segment1(number)
        pinned = self.pinned.pairs.get(number)
        if pinned is None or (self.rules.journalled_pairs and not any(pinned.head)):
            # A flush of ours was cut short that made the index or deleted it.
            states = np.zeros(self.entry_count, np.uint8)
            part = SegmentImage(number * self.entry_count, states, [])
        else:
            pair = self._read_pair(pinned, self.depth if depth is None else depth)
            if pair is None:
                return None
            part = SegmentImage(pair.base, np.zeros(pair.count, np.uint8), [pair_source(pair)])
            part.states[pair.rows] = PUBLISHED
            if len(pair.rows):
                self.seen = max(self.seen, int(pair.seqs[-1]) + 1)
        if self.rules.journalled_pairs:
            self._add_journal(part)
        else:
            self._add_version1(part)
        return part

    def _segment1(self, number: int) -> SegmentImage | None:
        count = self.rules.entry_count
        path = segment_path(self.pinned.directory, number)
        scan = None
        readable = True
        if number in self.pinned.segments:
            try:
                scan = self._scan(number)
            except OSError as error:
                if self._busy is None:
                    raise
                self._find_unreadable(path, self.pinned.segments[number].size, error)
                readable = False
            else:
                if scan is None:
                    return None  # all its entries, also those in the journal, were acknowledged
        part = SegmentImage(number * count, np.zeros(count, np.uint8), [], scan)
        if scan is not None:
            part.states = np.frombuffer(bytearray(scan.filed), np.uint8)
            part.sources.append(source_of(path, scan.data, "segment", STEP_SIZE, scan.entries))
        if number in self._touched:
            twice = self._add_journal(part, doubted=readable)
            if self.rules.of_node and scan is not None and len(twice):
                self._find(other_messages(self.pinned, twice, scan, number))
        return part

    def _scan(self, number: int) -> SegmentScan | None:
        """Scan a segment file, or return ``None`` if it was deleted. Raises :class:`OSError`."""
        fs, directory, pinned = self._fs, self.pinned.directory, self.pinned.segments[number]
        lost = self.pinned.given_out.power_lost
        data = None
        if self._busy is not None:
            data = read_segment(fs, directory, pinned)
            if data is None:
                return None
        scan = scan_file(
            fs,
            directory,
            number,
            self.rules.entry_count,
            data=data,
            trust_sums=self._trust_sums,
            elsewhere=self._elsewhere,
            power_lost=lost,
            at_rest=self.rules.vouched and not (lost and number in self._touched),
            synced=self.rules.of_node and number not in self._touched,
        )
        if self.rules.of_node and not scan.size:
            path = segment_path(directory, number)
            scan.findings.append(empty_segment(path, flushing=number in self._touched))
        if not self._trust_sums:
            scan.findings += _overtaken(segment_path(directory, number), scan.walk)
        found = scan.findings
        if self._busy is None or not (
            found and has_moved_on(fs, directory, pinned, found, self._busy)
        ):
            self._find(found)
        if len(scan.entries):
            self.seen = max(self.seen, int(scan.entries.seqs[-1]) + 1)
        return scan

    def _add_journal(self, segment: SegmentImage, *, doubted: bool = True) -> Walk:
        """Merge the journal into a segment, add the entries that it alone has, and return its
        publish records of the others. ``doubted``: steps that do not fit are findings."""
        merged = self.records.merge_into(segment.states, segment.base)
        if doubted:
            self._find(merged.findings)
        if merged.fresh.any():
            path, data = self.pinned.journal_path, self.pinned.reading.data
            fresh = merged.entries.take(merged.fresh)
            segment.sources.append(source_of(path, data, "journal", ACTION_SIZE, fresh))
        return merged.entries.take(~merged.fresh)

    def _find_unreadable(self, path: str, size: int, error: OSError) -> None:
        what = f"can't be read: {error.strerror or error}"
        lost, kind = "its messages are not shown", Kind.UNREADABLE
        self._find([Finding(path, 0, size, Cause.DAMAGE, what, lost, kind)])

    # -- version 2 ------------------------------------------------------------------------------

    def _read_pair(self, pinned: PinnedPair, depth: Depth) -> Pair | None:
        directory = self.pinned.directory
        ours = self.rules.journalled_pairs
        walk = self.pinned.reading.walk
        try:
            pair = read_pair(
                self._fs,
                directory,
                pinned,
                self.entry_count,
                depth,
                clean=self.rules.clean,
                # A flush that was cut short may have left anything in the slots of the entries that
                # the journal publishes or acknowledges.
                ignored=walk.seqs[walk.kinds != DELIVER] if ours else None,
                rescue=not (self._trust_sums or ours),
            )
        except OSError as error:
            path = os.path.join(directory, index_file(pinned.number))
            self._find_unreadable(path, max(pinned.size, 0), error)
            return None
        self._find(pair.findings)
        self.unnamed += pair.unnamed
        return pair

    def _add_version1(self, segment: SegmentImage) -> None:
        """Add what the files of version 1 hold of a segment, where a node was stopped in the
        middle of converting them: entries that version 2 does not have yet."""
        own, states, base = self.rules.entry_count, segment.states, segment.base
        first, last = base // own, (base + len(states) - 1) // own
        for number in self._version1:
            if not first <= number <= last:
                continue
            if self._last is None or self._last[0] != number:
                self._last = (number, self._segment1(number))
            older = self._last[1]
            for source in older.sources if older is not None else ():
                rels = source.seqs - base
                rows = np.flatnonzero((rels >= 0) & (rels < len(states)))
                rows = rows[states[rels[rows]] == ABSENT]
                if older is not None and len(rows):
                    states[rels[rows]] = older.states[source.seqs[rows] - older.base]
                    segment.sources.append(take_rows(source, rows))


def _overtaken(path: str, walk: Walk) -> list[Finding]:
    """Find the publish records of a segment file that another one of their seq_id follows."""
    publishes = np.flatnonzero(walk.kinds < DELIVER)
    seqs = walk.seqs[publishes]
    last = np.zeros(len(seqs), np.bool_)
    last[len(seqs) - 1 - np.unique(seqs[::-1], return_index=True)[1]] = True
    return _repeats(path, walk, publishes[~last].tolist())


def _repeats(path: str, walk: Walk, rows: list[int]) -> list[Finding]:
    found = []
    for at in rows:
        what = f"seq_id {int(walk.seqs[at])} is published once more after this"
        offset, length = int(walk.offsets[at]), int(walk.lengths[at])
        lost, kind = "the last one counts", Kind.DUPLICATE_SEQ_ID
        found.append(Finding(path, offset, length, Cause.DAMAGE, what, lost, kind))
    return found
