"""Recovery, from the files of a store to its state. It reads from top to bottom:

1. *The snapshot* of a clean close: where the files are those it was written of, it says all.
2. *Read*, for each queue, its image (:mod:`qindex.recovery.queue_image`): journal and segments, and
   from both what state each entry is in. Damage is found and judged. Nothing is written.
3. *Reconcile*: the entries of all queues are the references of the message store, which is
   recovered with them; entries whose message is gone are dropped.
4. *Rewrite* what must be: damaged bytes are set aside, sound files take the place of damaged ones,
   what the journal holds is appended to the segments, and the journal is removed: the commit
   point.

A crash at any step leaves a directory that the next recovery reads the same way: until the last
step the journal still says all it said. Damage has modules of its own:
:mod:`qindex.format.resynchronise` reads a damaged file, and :mod:`qindex.recovery.damage`
handles the damage.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from journal import format as journal_format
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.errors import ClosedError, StorageError, storage_errors
from journal.findings import Finding, Kind
from journal.fs.files import FileSystem, is_zeros, sync_file, unlink_if_there
from journal.locks.flag import Flag
from journal.poison import Poison, is_passing
from msgstore.errors import StaleSnapshotError
from qindex.format import layout
from qindex.format.resynchronise import Data
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.index import segment_file
from qindex.index.flush import FlushPlan, write_plan
from qindex.index.messages import Messages, has_message_store
from qindex.index.segment import Segment, Segments, count_held
from qindex.index.segment_file import (
    plan_segment,
    remove_sums,
    scan_file,
    segment_files,
    segment_path,
)
from qindex.index.segment_scan import SegmentScan, empty_scan, read_healed
from qindex.index.seq_ids import SeqFile
from qindex.options import Options
from qindex.recovery.columns import Source
from qindex.recovery.damage import judge, report, set_aside, without_message
from qindex.recovery.delivery_rules import DirectoryRules
from qindex.recovery.point_in_time import UNKNOWN, GivenOut, at_rest
from qindex.recovery.queue_directory import remove_queue_directory
from qindex.recovery.queue_image import QueueImage, SegmentImage
from qindex.recovery.snapshot import (
    RestingQueue,
    files_agree,
    missing_bytes,
    read_snapshot,
    remove_snapshot,
)
from qindex.recovery.store_directory import forget_node, refuse_pairs, was_with_a_node

_log = logging.getLogger("qindex.recovery")

_JOURNAL_SUMS = journal_format.FILE_NAME + SUMS_SUFFIX
_UNFINISHED = (".new", ".tmp", _JOURNAL_SUMS)
"""Ends of names that do not outlive a recovery."""


# -- the store ------------------------------------------------------------------------------------


@dataclass(slots=True)
class RecoveredStore:
    """An open store: its queues by directory name, its messages, what recovery met."""

    queues: dict[str, RestingQueue]
    messages: Messages
    findings: list[Finding] = field(default_factory=list)


class StoreRecovery:
    """Opens the queues and the message store of one directory.

    ``before_reclaim``: makes the acks of all queues durable; the message store calls it before it
    deletes messages.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        entry_count: int,
        options: Options,
        poison: Poison,
        before_reclaim: Callable[[], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._queues_directory = os.path.join(directory, layout.QUEUES)
        self._entry_count = entry_count
        self._options = options
        self._poison = poison
        self._sync_indexes = before_reclaim
        self._done = Flag()
        self._failed = False
        self._half_made: set[str] = set()

    def open(self) -> RecoveredStore:
        """Open all; the snapshot is removed before anything changes.

        Raises :class:`DamageError`, :class:`StorageError`, :class:`OSError`.
        """
        try:
            snapshot = read_snapshot(self._fs, self._directory, self._queues_directory)
            # All directories are looked into before anything is changed: a queue in RabbitMQ's
            # version 2 is refused. A node takes messages and adds others, and leaves the snapshot.
            if snapshot is None or self._with_a_node:
                queue_files = list(self._queue_files())
                self._begin()
                recovered = self._recover(queue_files, [])
                if self._with_a_node:
                    forget_node(self._fs, self._directory)
                return recovered
            queues, message_store = snapshot
            agrees = self._agrees(queues, message_store)
            missing = [] if agrees else missing_bytes(self._fs, queues.values())
            if not agrees and not self._options.repair:
                # The snapshot says which messages are lost, also to a later open that repairs. So
                # it must not be removed if this open raises.
                for name, names in self._queue_files():
                    self._load(os.path.join(self._queues_directory, name), names)
            self._begin()
            if agrees:
                try:
                    return RecoveredStore(queues, self._messages(Counter(), message_store))
                except StaleSnapshotError as error:
                    _log.warning("%s: %s", self._directory, error)
            return self._recover(self._queue_files(), missing)
        except BaseException:
            self._failed = True
            raise
        finally:
            self._done.set()

    @cached_property
    def _with_a_node(self) -> bool:
        return was_with_a_node(self._fs, self._directory)

    def _queue_files(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the directory of each queue, and the names in it, but for queues whose making or
        deletion a crash cut short. Raises :class:`UsageError` for one in RabbitMQ's version 2."""
        fs = self._fs
        unfinished = {layout.QUEUE_NAME + ".tmp"}
        for name in sorted(fs.listdir(self._queues_directory)):
            path = os.path.join(self._queues_directory, name)
            names = [] if name.endswith(layout.DELETED_SUFFIX) else fs.listdir(path)
            if unfinished.issuperset(names):
                self._half_made.add(path)
            else:
                refuse_pairs(path, names)
                yield name, names

    def _begin(self) -> None:
        """Remove the snapshot, then the queues that are not whole."""
        remove_snapshot(self._fs, self._directory)
        for path in sorted(self._half_made):
            remove_queue_directory(self._fs, path)

    def _agrees(self, queues: dict[str, RestingQueue], message_store: bytes | None) -> bool:
        """Return whether the snapshot is of these files."""
        fs = self._fs
        # A store that came from elsewhere: its content must not pass for garbage.
        known = message_store is not None or not has_message_store(fs, self._directory)
        there = 0
        for name, names in self._queue_files():
            there += 1
            known = known and name in queues and files_agree(fs, queues[name], names)
            if known:
                queues[name].has_settings = layout.SETTINGS in names
        return known and there == len(queues)

    def _recover(
        self, queue_files: Iterable[tuple[str, list[str]]], findings: list[Finding]
    ) -> RecoveredStore:
        """Recover all queues and the message store from the files. ``findings``: met before."""
        references: Counter[bytes] = Counter()
        waiting: list[tuple[str, LoadedQueue, SeqFile]] = []
        queues: dict[str, RestingQueue] = {}
        power_lost = False
        # Acks that made a stored message garbage are durable, once and for all, before it goes.
        may_leave = not has_message_store(self._fs, self._directory)
        for name, names in queue_files:
            path = os.path.join(self._queues_directory, name)
            loaded, seq_file = self._load(path, names)
            power_lost |= seq_file.power_lost
            if loaded.stored:
                references.update(msg_id for _, msg_id in loaded.stored)
                waiting.append((name, loaded, seq_file))
            else:
                queues[name] = _rewrite(self._fs, loaded, seq_file, (), may_leave=may_leave)
                findings += loaded.findings
        messages = self._messages(references, None, power_lost)
        try:
            for name, loaded, seq_file in waiting:
                queues[name] = _rewrite(self._fs, loaded, seq_file, messages.missing)
                findings += loaded.findings
        except BaseException:
            self._failed = True
            self._done.set()  # or the compaction thread, which close() joins, would wait for ever
            messages.close()
            raise
        return RecoveredStore(queues, messages, findings + messages.findings)

    def _messages(
        self, references: Counter[bytes], snapshot: bytes | None, power_lost: bool = False
    ) -> Messages:
        return Messages(
            self._fs,
            self._directory,
            self._options,
            self._poison,
            references=references,
            snapshot=snapshot,
            verify=power_lost,
            before_reclaim=self._before_reclaim,
        )

    def _before_reclaim(self) -> None:
        """Let the message store delete nothing before the indexes are recovered: the acks that
        made messages garbage are durable from then on."""
        self._done.wait()
        if self._failed:
            raise ClosedError(f"{self._directory}: could not be opened")
        self._sync_indexes()

    def recover_one(self, path: str) -> tuple[RestingQueue, list[Finding]]:
        """Recover one queue of an open store, whose references are counted already."""
        loaded, seq_file = self._load(path, self._fs.listdir(path))
        return _rewrite(self._fs, loaded, seq_file, ()), loaded.findings

    def resume(self, resting: RestingQueue) -> tuple[RestingQueue, list[Finding]]:
        """Return the state of a queue whose journal is not empty, and the findings in it.

        A journal whose checksums hold, or whose records do, stays. A damaged queue is recovered:
        its damaged bytes are set aside. Raises :class:`StorageError`.
        """
        path = os.path.join(resting.directory, journal_format.FILE_NAME)
        findings: list[Finding] = []
        with storage_errors(path, "the journal can't be read"):
            healed = read_healed(self._fs, path, findings)
        if not findings and healed.sound == resting.journal and is_zeros(healed.data, healed.sound):
            if healed.end == resting.journal and not healed.torn:
                resting.sums = healed.stop
            return resting, []
        names = self._fs.listdir(resting.directory)
        whole = len(healed.data) >= resting.journal and not (healed.fixed or healed.broken)
        if whole and not findings and _JOURNAL_SUMS in names:
            # No block is wrong, and the sums are of another length: they are damaged themselves.
            names.remove(_JOURNAL_SUMS)
        loaded, seq_file = self._load(resting.directory, names, repair=True)
        if not loaded.findings and loaded.journal_size == resting.journal:
            return resting, []
        return _rewrite(self._fs, loaded, seq_file, ()), loaded.findings

    def load_one(self, path: str) -> LoadedQueue:
        """Load one queue; nothing is changed."""
        return self._load(path, self._fs.listdir(path))[0]

    def _load(
        self, path: str, names: list[str], *, repair: bool = False
    ) -> tuple[LoadedQueue, SeqFile]:
        """Read a queue, whose directory has these names in it, and judge the findings; nothing is
        changed.

        Raises :class:`DamageError` for what no crash leaves, unless ``repair``, or the options, say
        so, and :class:`StorageError`.
        """
        seq_path = os.path.join(path, SEQ_FILE_NAME)
        is_there = SEQ_FILE_NAME in names
        seq_file = SeqFile(self._fs, seq_path, self._poison, is_there=is_there)
        with storage_errors(path, "the queue can't be read"):
            loaded = load_queue(
                self._fs,
                path,
                self._entry_count,
                names,
                GivenOut.of(seq_file),
                with_a_node=self._with_a_node,
            )
        judge(loaded.findings, repair=repair or self._options.repair)
        return loaded, seq_file


# -- read a queue: nothing is written -------------------------------------------------------------


@dataclass(slots=True)
class LoadedQueue:
    """A queue as its files have it.

    ``names``: of its files. ``journal_size``: bytes of the journal that say something.
    ``segments``: by number; those that the journal touches are loaded and dirty, others know
    their counts only. ``seen``: one above the highest seq_id met. ``transient``: seq_ids of
    messages published as transient and not acknowledged. ``unacked``: messages held. ``fresh``:
    the publish records that the journal alone has, by segment; they are in the bytes ``journal``.
    ``repaired``: what the files of damaged segments (by number) should hold; the states and
    offsets of those are of these bytes. ``stored``: seq_id and message id of each entry whose
    message is in the persistent message store.
    """

    directory: str
    entry_count: int
    names: Sequence[str]
    segments: Segments = field(default_factory=Segments)
    journal: Data = b""
    fresh: dict[int, Source] = field(default_factory=dict)
    journal_size: int = 0
    seen: int = 0
    transient: set[int] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    repaired: dict[int, SegmentScan] = field(default_factory=dict)
    stored: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def unacked(self) -> int:
        """Messages published and not acknowledged."""
        return sum(segment.unacked for segment in self.segments.values())

    def acknowledge(self, fs: FileSystem, seq_id: int) -> None:
        """Mark an entry as acknowledged. Raises :class:`OSError`."""
        segment = self.segments[seq_id // self.entry_count]
        if not segment.loaded:
            scan = scan_file(fs, self.directory, segment.number, self.entry_count)
            segment.load(scan.filed)
        segment.acknowledge(seq_id)


def load_queue(
    fs: FileSystem,
    directory: str,
    entry_count: int,
    names: Sequence[str],
    given_out: GivenOut = UNKNOWN,
    *,
    with_a_node: bool = False,
) -> LoadedQueue:
    """Read all of a queue's directory, which has these ``names`` in it.

    ``with_a_node``: a RabbitMQ node may have changed the files, which writes no checksums. Raises
    :class:`OSError`. Damage is not an error here: see ``findings``. Memory: one segment file at a
    time, and the journal.
    """
    rules = DirectoryRules(entry_count, vouched=not with_a_node)
    pinned = at_rest(fs, directory, names, given_out, vouched=rules.vouched)
    reading = pinned.reading
    loaded = LoadedQueue(
        directory, entry_count, names, journal=reading.data, journal_size=reading.walk.end
    )
    image = QueueImage(fs, directory, rules, pinned=pinned, busy=None)
    for number in image.numbers:
        part = image.segment(number)
        assert part is not None
        _take(loaded, number, part)
    loaded.seen = image.seen
    loaded.findings = image.findings
    return loaded


def _take(loaded: LoadedQueue, number: int, part: SegmentImage) -> None:
    """Take in a segment. If the journal changes nothing in it, only its counts are kept."""
    count, scan = loaded.entry_count, part.scan
    if scan is None:
        scan = empty_scan(number, count)
    elif scan.findings:
        scan = segment_file.repaired(loaded.directory, number, scan)
        loaded.repaired[number] = scan
    states = bytearray(part.states)
    held = count_held(states)
    if states != scan.filed or (scan.size and not held):
        segment = Segment(number, count)
        segment.file_size = scan.size
        segment.load(scan.filed)
        np.copyto(np.frombuffer(segment.states, np.uint8), part.states)
    elif held:
        segment = Segment.unloaded(number, count, held, scan.size)
    else:
        return
    loaded.segments[number] = segment
    loaded.fresh.update((number, one) for one in part.sources if one.location == "journal")
    transient = set(part.transient())
    loaded.transient |= transient
    loaded.stored += (one for one in part.stored() if one[0] not in transient)


# -- rewrite what must be -------------------------------------------------------------------------


def _rewrite(
    fs: FileSystem,
    loaded: LoadedQueue,
    seq_file: SeqFile,
    missing: Container[bytes],
    *,
    may_leave: bool = False,
) -> RestingQueue:
    """Make the queue's files whole: damaged bytes are set aside in quarantine files, the rest is
    kept. Entries whose message is ``missing`` from the message store are dropped, and reported.

    ``may_leave``: a journal that says nothing may stay. Raises :class:`StorageError` when the
    system refuses; nothing is lost by that. All is durable on return, but for the zeros of a
    journal that stays.
    """
    directory = loaded.directory
    with storage_errors(directory, "the queue can't be recovered"):
        if loaded.findings:
            set_aside(fs, loaded.findings)
        for path in {one.path for one in loaded.findings if one.kind is Kind.MISSING_FILE}:
            remove_sums(fs, path)
        for number, scan in loaded.repaired.items():
            segment_file.rewrite(fs, loaded.directory, number, scan)
        _drop_missing(fs, loaded, missing)
        _drop_transient(fs, loaded)
        next_seq = _next_seq(loaded, seq_file)
        if seq_file.same_run:
            _give_out(seq_file, next_seq)
        try:
            segments = _flush(fs, loaded, next_seq)
        except StorageError as error:
            as_filed = _as_filed(fs, loaded) if _may_serve(loaded, seq_file, error) else None
            if as_filed is None:
                raise
            _log.warning("%s: is served from its journal: %s", directory, error)
            # The message store deletes messages because of the acks in it. They must last.
            _sync_journal(fs, loaded)
            _remove_unfinished(fs, directory, loaded.names)
            has_settings = layout.SETTINGS in loaded.names
            return RestingQueue(
                directory,
                next_seq,
                as_filed,
                has_settings=has_settings,
                journal=loaded.journal_size,
                held=loaded.unacked,
            )
        known = seq_file.same_run or seq_file.unused
        left = may_leave and known and _may_leave_journal(loaded)
        if not left:
            remove_journal(fs, directory, loaded.names)
        if next_seq and not seq_file.same_run:
            # Not before: it says that all writes since the power was lost are there, and the
            # journal was written earlier. Until here the old reservation holds.
            _give_out(seq_file, next_seq)
    return RestingQueue(directory, next_seq, segments, left, layout.SETTINGS in loaded.names)


def _may_serve(loaded: LoadedQueue, seq_file: SeqFile, error: StorageError) -> bool:
    """Return whether the queue can be used as its journal and files are, if the disk has no room to
    move the journal's entries: recovery had nothing else to change."""
    unchanged = not (loaded.findings or loaded.transient)
    return unchanged and seq_file.same_run and is_passing(error)


def _as_filed(fs: FileSystem, loaded: LoadedQueue) -> dict[int, tuple[int, int]] | None:
    """Return what the files of the segments say, after a flush that failed; ``None`` where one does
    not end where it did."""
    found = {}
    for number in segment_files(fs.listdir(loaded.directory)):
        scan = scan_file(fs, loaded.directory, number, loaded.entry_count)
        if scan.findings:
            return None
        found[number] = scan.unacked, scan.size
    return found


def _drop_missing(fs: FileSystem, loaded: LoadedQueue, missing: Container[bytes]) -> None:
    for seq, msg_id in loaded.stored:
        if msg_id in missing:
            loaded.acknowledge(fs, seq)
            path = segment_path(loaded.directory, seq // loaded.entry_count)
            finding = without_message(path, seq, msg_id)
            loaded.findings.append(finding)
            report(finding)


def _drop_transient(fs: FileSystem, loaded: LoadedQueue) -> None:
    for seq in loaded.transient:
        loaded.acknowledge(fs, seq)


def _next_seq(loaded: LoadedQueue, seq_file: SeqFile) -> int:
    next_seq = seq_file.next_after_crash(loaded.seen)
    if any(finding.is_loss for finding in loaded.findings):
        # The damaged places may have held the latest seq_ids.
        next_seq = max(next_seq, seq_file.reserved)
    return next_seq


def _give_out(seq_file: SeqFile, next_seq: int) -> None:
    """Note that all seq_ids below ``next_seq`` are given out."""
    if next_seq >= seq_file.reserved:
        seq_file.reserve(next_seq)
    seq_file.raise_floor(next_seq)


def _flush(fs: FileSystem, loaded: LoadedQueue, next_seq: int) -> dict[int, tuple[int, int]]:
    """Append what the journal holds to the segments; return the entries not acknowledged and the
    bytes of each segment that is left."""
    plans = []
    for number, segment in loaded.segments.items():
        if segment.dirty:
            offsets = np.full(loaded.entry_count, -1, np.int64)
            if number in loaded.fresh:
                entries = loaded.fresh[number]
                offsets[entries.seqs - segment.base] = entries.offsets
            plans.append(plan_segment(segment, 0, offsets))
    if plans:
        plan = FlushPlan(loaded.directory, loaded.journal, 0, 0, next_seq, plans)
        write_plan(fs, plan)
    segments = {
        number: (segment.unacked, segment.file_size) for number, segment in loaded.segments.items()
    }
    for written in plans:
        segments[written.number] = (written.unacked, written.file_size)
    return {number: counts for number, counts in segments.items() if counts[0]}


def _sync_journal(fs: FileSystem, loaded: LoadedQueue) -> None:
    """Make the journal durable, before the segments that it is merged with change."""
    if loaded.journal_size:
        sync_file(fs, os.path.join(loaded.directory, journal_format.FILE_NAME))
        fs.sync_dir(loaded.directory)


def _may_leave_journal(loaded: LoadedQueue) -> bool:
    """Return whether the journal says nothing that could be applied twice: zeros alone, and nothing
    beside it that an exchange of files left. Most queues of a store are so when it is killed."""
    names = loaded.names
    if loaded.journal_size or loaded.findings or journal_format.FILE_NAME not in names:
        return False
    return not any(name.endswith(_UNFINISHED) for name in names)


def _remove_unfinished(fs: FileSystem, directory: str, names: Sequence[str]) -> None:
    for name in names:
        if name.endswith(_UNFINISHED):
            unlink_if_there(fs, os.path.join(directory, name))


def remove_journal(fs: FileSystem, directory: str, names: Sequence[str]) -> None:
    """Remove the journal of a queue, whose directory has these ``names`` in it: the commit point,
    from here on the segments alone say what the queue holds. Durable on return. Raises
    :class:`OSError`."""
    _remove_unfinished(fs, directory, names)
    if journal_format.FILE_NAME in names:
        fs.unlink(os.path.join(directory, journal_format.FILE_NAME))
        # A flush may have replaced the journal's file. The old file must not come back either,
        # once its entries, which are in the segments now, have gone from there.
        fs.sync_dir(directory)
