"""Check one queue's directory: journal, segments, their checksums, seq_ids, settings, name."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from time import sleep

import numpy as np

from journal import format as journal_format
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.block_sums import check_room, check_sums, without_room
from journal.errors import StorageError, StoreError
from journal.findings import Cause, Finding, Kind
from journal.format import DELIVER
from journal.fs.files import FileSystem, read_optional
from qindex.format import layout
from qindex.format.entries import decode_any
from qindex.format.headers import DUE_FILE, KEYS_FILE
from qindex.format.notes import RECORD_SIZE as NOTE_SIZE
from qindex.format.notes import read_notes
from qindex.format.rabbitmq.queue_index_v2 import file_name as index_file
from qindex.format.segment import file_name, file_number
from qindex.format.seq_ids import (
    CHECK_START,
    FILE_SIZE,
    INCARNATION_SLOT,
    SLOT_SIZE,
    pack_slot,
    sound_slots,
)
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.format.settings import unpack_settings
from qindex.index.pair_scan import WRONG_SIZE, ZERO_SIZE, Depth
from qindex.queue.notes.delivery_counts import FILE_NAME as DELIVERIES
from qindex.queue.notes.delivery_counts import RECORD_SIZE, unpack_count
from qindex.recovery.columns import Entries, take_rows
from qindex.tools.ids_check import QueueIds
from qindex.view.queue_view import QueueView
from qindex.view.rabbitmq_vhost import QueueDirectory
from qindex.view.reader import StoreReader, lacks_its_name

_SETTLE = 0.01
_ENOUGH = 8
"""Zeros at the end of a journal that were there before anything was appended."""
_MAX_READ = 4096
"""Bytes of a seq file that are looked at: it has far fewer."""
_NO_INCARNATION = "readers that go on where they were take the queue for a new one"


@dataclass(slots=True)
class CheckedQueue:
    """The results of one queue's check that the check of the whole store needs.

    ``unacked``: entries not acknowledged, by segment. ``next_seen``: one above the highest seq_id
    that was met. ``same_run``: no power was lost since the queue was written to. ``entries``,
    ``bytes``: not acknowledged, and of their bodies; ``persistent_entries``, ``persistent_bytes``
    those of persistent messages. ``stored``: entries whose messages are in the message store, by
    file, without its bytes. ``readable``: the system let us read the journal.
    """

    queue: QueueDirectory
    unacked: dict[int, int] = field(default_factory=dict)
    next_seen: int = 0
    same_run: bool = False
    entries: int = 0
    bytes: int = 0
    persistent_entries: int = 0
    persistent_bytes: int = 0
    stored: list[Entries] = field(default_factory=list)
    readable: bool = True

    def count(self, batch: Entries, pending: Collection[int] = ()) -> None:
        """Take the entries of a batch in. ``pending``: seq_ids of transactions without a commit,
        whose messages are not there for a reader."""
        there = ~np.isin(batch.seqs, list(pending)) if pending else slice(None)
        self.entries += len(batch.seqs[there])
        self.bytes += int(batch.sizes[there].sum())
        self.persistent_entries += int(batch.persistent.sum())
        self.persistent_bytes += int(batch.sizes[batch.persistent].sum())
        bare = batch.embedded == 0
        if not bare.any():
            return
        mine = take_rows(batch, bare)
        self.stored.append(replace(mine, data=b"", persistent=mine.persistent & ~mine.dropped))


def check_queue(
    fs: FileSystem,
    reader: StoreReader,
    checked: CheckedQueue,
    *,
    in_use: bool,
    closed: bool = False,
) -> Iterator[Finding]:
    """Check the queue directory ``checked.queue`` of the store that ``reader`` reads, and fill
    ``checked``. ``closed``: the store was closed in order, so no crash can have cut anything short.

    Beside a writer nothing that comes of its work is found; a queue that is deleted meanwhile has
    no findings. Memory: the journal, one segment file at a time, 80 bytes for each entry whose
    message is in the message store. Raises :class:`qindex.recovery.point_in_time.BusyError`.
    """
    directory = reader.path_of(checked.queue)
    ours = reader.marker is not None
    try:
        identity = _identity(fs, directory)
        view = reader.pin(checked.queue, Depth.DECODE)
        checked.same_run = view.pinned.given_out.below is not None
        yield from _check_entries(view, checked, of_node=not ours)
        yield from _judged(view, checked.same_run)
        if view.rules.vouched:
            yield from _check_sum_files(fs, directory)
        if ours:
            yield from _check_gaps(view, directory)
            busy = reader.may_be_written
            yield from _check_seq_file(fs, directory, checked, identity, busy, closed=closed)
            yield from _check_small_files(fs, directory, checked.same_run)
        yield from _check_name(fs, directory, ours=ours)
    except FileNotFoundError:
        return  # deleted meanwhile
    except (OSError, StorageError) as error:
        checked.readable = False
        what, lost = f"the queue can't be read: {error}", "its messages are not to be had"
        yield Finding(directory, 0, 0, Cause.DAMAGE, what, lost, Kind.UNREADABLE)
    if not in_use and reader.vhost is not None:
        yield from _check_terms(reader, checked)


def _judged(view: QueueView, same_run: bool) -> Iterator[Finding]:
    """Yield the findings of a view. Where no power was lost since the queue was written to, a block
    without its checksum is damage, and a journal that ends inside a record was cut: the death of
    its process leaves the file as long as it was, with zeros at its end."""
    pinned = view.pinned
    for finding in view.findings:
        at_end = finding.offset + finding.length == pinned.journal_size
        torn = finding.kind is Kind.TORN and finding.path == pinned.journal_path
        cut = torn and at_end and any(pinned.reading.data[-_ENOUGH:])
        if same_run and (cut or finding.kind is Kind.CHECKSUM):
            yield replace(finding, cause=Cause.DAMAGE)
        else:
            yield finding


def _check_entries(view: QueueView, checked: CheckedQueue, *, of_node: bool) -> Iterator[Finding]:
    ids = QueueIds()
    for number in view.numbers:
        for batch in view.alive(number):
            checked.unacked[number] = checked.unacked.get(number, 0) + len(batch.seqs)
            checked.count(batch, view.rules.pending)
            ids.take(batch)
            for finding in _check_sizes(batch):
                # Where a sector of the journal was lost, no checksum of RabbitMQ's record tells.
                crash = batch.location == "journal" and not checked.same_run and not of_node
                yield replace(finding, cause=Cause.CRASH) if crash else finding
    yield from ids.findings()
    checked.next_seen = view.image.seen


def _check_sizes(batch: Entries) -> Iterator[Finding]:
    """Hold the sizes of the entries that embed a RabbitMQ record, which no checksum covers,
    against their bodies."""
    if batch.version2:
        return  # the view has done that
    for at, record in batch.foreign_records():
        try:
            size = len(decode_any(record, batch.ids[at].tobytes()).body)
        except StoreError:
            continue  # was found to be no record already
        if size != int(batch.sizes[at]):
            yield size_finding(batch, at, size)


def size_finding(batch: Entries, at: int, size: int) -> Finding:
    """Entry ``at`` of a batch states another size than its body has."""
    stated, offset = int(batch.sizes[at]), int(batch.offsets[at])
    what = f"seq_id {int(batch.seqs[at])} has a size of {stated}, its body has {size} bytes"
    lost, kind = WRONG_SIZE if stated or not batch.version2 else ZERO_SIZE
    return Finding(batch.path, offset, journal_format.PAYLOAD_SIZE, Cause.DAMAGE, what, lost, kind)


def _check_sum_files(fs: FileSystem, directory: str) -> Iterator[Finding]:
    """Check the sum file of each index file. A file's sums are read before the file: they are
    written after their bytes, and removed before the file goes."""
    for name in sorted(fs.listdir(directory)):
        of = name.removesuffix(SUMS_SUFFIX)
        is_journal = of == journal_format.FILE_NAME
        if of == name or not (is_journal or file_number(of) is not None):
            continue
        path = os.path.join(directory, of)
        try:
            sums = read_optional(fs, path + SUMS_SUFFIX)
            data = read_optional(fs, path)
            now = read_optional(fs, path + SUMS_SUFFIX)
        except OSError as error:
            what, lost = f"can't be read: {error.strerror or error}", "nothing is lost"
            own, cause = path + SUMS_SUFFIX, Cause.DAMAGE
            yield Finding(own, 0, 0, cause, what, lost, Kind.UNREADABLE)
            continue
        if sums is not None and now is not None and is_journal:
            if sums == now:
                yield from check_room(path, sums)
            sums, now = without_room(sums), without_room(now)
        if sums is None or now is None or data is None or not now.startswith(sums):
            continue  # the file was emptied or deleted
        for finding in check_sums(path, data, sums):
            if finding.path == path:
                continue  # the image tells what the file lacks, where no crash explains it
            if finding.offset + finding.length < len(sums) or len(now) == len(sums):
                yield finding  # else it was being written


def _check_gaps(view: QueueView, directory: str) -> Iterator[Finding]:
    """An engine gives each publish the next seq_id and empties its journal from the front, so the
    seq_ids of a journal follow one another; a break in them was reported, or cut out."""
    walk = view.pinned.reading.walk
    if view.pinned.reading.findings:
        return
    publishes = walk.kinds < DELIVER
    seqs, offsets = walk.seqs[publishes], walk.offsets[publishes]
    for at in np.flatnonzero(np.diff(seqs) > 1).tolist():
        what = f"seq_id {int(seqs[at + 1])} follows {int(seqs[at])}"
        path = os.path.join(directory, journal_format.FILE_NAME)
        missing = int(seqs[at + 1] - seqs[at]) - 1
        lost = f"{missing} messages are lost"
        yield Finding(path, int(offsets[at + 1]), 0, Cause.DAMAGE, what, lost, Kind.GAP)


def _check_seq_file(
    fs: FileSystem,
    directory: str,
    checked: CheckedQueue,
    identity: object,
    busy: Callable[[], bool],
    *,
    closed: bool,
) -> Iterator[Finding]:
    """``identity``: of the queue, before anything of it was read."""
    path = os.path.join(directory, SEQ_FILE_NAME)
    data = read_optional(fs, path, _MAX_READ)
    lost = "seq_ids might be given out twice"
    if data is None:
        # Of a queue that was deleted meanwhile, and perhaps made anew, nothing is missing.
        if checked.next_seen and _identity(fs, directory) == identity:
            what = "the queue has messages, and no file that keeps its seq_ids"
            yield Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.MISSING_FILE)
        return
    whole = closed and checked.same_run
    findings = list(check_slots(path, data, whole))
    if findings:
        if busy():
            sleep(_SETTLE)  # a slot may have been on its way
        data = read_optional(fs, path, _MAX_READ) or b""
        findings = list(check_slots(path, data, whole))
    yield from findings
    if len(data) % SLOT_SIZE or len(data) > FILE_SIZE:
        at = len(data) // SLOT_SIZE * SLOT_SIZE
        what = f"{len(data)} bytes are not slots of {SLOT_SIZE}"
        # A slot that is appended may be cut short, also after a clean close where the power went:
        # a floor is never synced.
        whole = whole or len(data) > FILE_SIZE
        cause = Cause.DAMAGE if whole else Cause.CRASH
        risk = _NO_INCARNATION if at == INCARNATION_SLOT * SLOT_SIZE else lost
        yield Finding(path, at, len(data) - at, cause, what, risk, Kind.TORN)
    reserved = max((slot.reserved for slot in sound_slots(data)), default=0)
    if checked.next_seen > reserved:
        what = f"seq_ids are reserved below {reserved}; {checked.next_seen - 1} was given out"
        yield Finding(path, 0, len(data), Cause.DAMAGE, what, lost, Kind.SEQ_RANGE)


def _identity(fs: FileSystem, directory: str) -> object:
    """Tell a queue from a namesake that was made after its deletion, by the name file, which is
    written once. ``None``: it has none."""
    try:
        status = fs.stat(os.path.join(directory, layout.QUEUE_NAME))
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def check_slots(path: str, data: bytes, whole: bool) -> Iterator[Finding]:
    """Check the slots of a seq file, whose bytes are ``data``; ``whole``: the store was closed in
    order, and no power was lost since."""
    for at in range(0, len(data) - SLOT_SIZE + 1, SLOT_SIZE):
        slot = data[at : at + SLOT_SIZE]
        if not any(slot):
            continue  # never written
        sound = [pack_slot(one) for one in sound_slots(slot)]
        if not sound:
            # It may have been on its way when the process died, or the power went.
            cause = Cause.DAMAGE if whole else Cause.CRASH
            what = f"the checksum of slot {at // SLOT_SIZE} does not hold"
            lost, kind = "the other slots count", Kind.CHECKSUM
            if at == INCARNATION_SLOT * SLOT_SIZE:
                lost = _NO_INCARNATION
            yield Finding(path, at, SLOT_SIZE, cause, what, lost, kind)
        elif sound[0] != slot:
            rel = next(i for i in range(SLOT_SIZE) if sound[0][i] != slot[i])
            # A slot that was cut short may differ from a whole one by one bit of its checksum.
            cause = Cause.CRASH if rel >= CHECK_START and not whole else Cause.DAMAGE
            what, lost = "one flipped bit", "put right by its checksum: none lost"
            yield Finding(path, at + rel, 1, cause, what, lost, Kind.CORRECTED)


def _check_small_files(fs: FileSystem, directory: str, same_run: bool) -> Iterator[Finding]:
    path = os.path.join(directory, layout.SETTINGS)
    data = read_optional(fs, path)
    if data is not None:
        try:
            unpack_settings(data)
        except ValueError as error:
            what, lost = f"the settings of the queue: {error}", "the queue can't be opened"
            yield Finding(path, 0, len(data), Cause.DAMAGE, what, lost, Kind.CHECKSUM)
    yield from _check_deliveries(fs, os.path.join(directory, DELIVERIES), same_run)
    lost = "a message that was given back with a delay may be due at once"
    yield from _check_notes(fs, os.path.join(directory, DUE_FILE), same_run, lost)
    lost = "the window of a unique key may end early"
    yield from _check_notes(fs, os.path.join(directory, KEYS_FILE), same_run, lost)


def _check_name(fs: FileSystem, directory: str, *, ours: bool) -> Iterator[Finding]:
    if lacks_its_name(fs, directory):
        path = os.path.join(directory, layout.QUEUE_NAME)
        # A node makes the file anew, and does not read it.
        cause = Cause.DAMAGE if ours else Cause.CRASH
        what, lost = "the queue's name is missing", "its directory's name is a hash of it"
        yield Finding(path, 0, 0, cause, what, lost, Kind.MISSING_FILE)


def _check_deliveries(fs: FileSystem, path: str, same_run: bool) -> Iterator[Finding]:
    lost = "a message may be delivered more often than its queue's delivery_limit says"
    try:
        data = read_optional(fs, path) or b""
    except OSError as error:
        what = f"can't be read: {error.strerror or error}"
        yield Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.UNREADABLE)
        return
    whole = len(data) - len(data) % RECORD_SIZE
    for at in range(0, whole, RECORD_SIZE):
        if unpack_count(data[at : at + RECORD_SIZE]) is None:
            # The last one may have been cut short, or be on its way. The file is never synced, so a
            # loss of power may have taken any.
            last = at + RECORD_SIZE >= len(data)
            cause = Cause.DAMAGE if same_run and not last else Cause.CRASH
            what = "there is no count of deliveries here"
            yield Finding(path, at, RECORD_SIZE, cause, what, lost, Kind.CHECKSUM)
            return
    if whole < len(data):
        what = "a count of deliveries that is cut off"
        yield Finding(path, whole, len(data) - whole, Cause.CRASH, what, lost, Kind.TORN)


def _check_notes(fs: FileSystem, path: str, same_run: bool, lost: str) -> Iterator[Finding]:
    try:
        data = read_optional(fs, path) or b""
    except OSError as error:
        what = f"can't be read: {error.strerror or error}"
        yield Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.UNREADABLE)
        return
    # Only queues with durability="fsync" sync the file, so a loss of power may have taken any.
    cause = Cause.DAMAGE if same_run else Cause.CRASH
    for at in read_notes(data).damaged:
        what = "a record that is not whole"
        yield Finding(path, at, NOTE_SIZE, cause, what, lost, Kind.CHECKSUM)


def _check_terms(reader: StoreReader, checked: CheckedQueue) -> Iterator[Finding]:
    """Hold the counts that a node wrote down when it stopped in order against the files."""
    assert reader.vhost is not None
    terms = reader.vhost.terms.get(checked.queue.directory)
    if terms is None:
        return
    directory = reader.path_of(checked.queue)
    lost = "the node believes its own count"
    version2 = terms.segments_v2 is not None
    segments = terms.segments if terms.segments_v2 is None else terms.segments_v2
    name_of = index_file if version2 else file_name
    for number in sorted(segments.keys() | checked.unacked.keys()):
        stated, found = segments.get(number, 0), checked.unacked.get(number, 0)
        if stated != found:
            path = os.path.join(directory, name_of(number))
            what = f"{found} entries are not acknowledged; {stated} were at the clean stop"
            yield Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.COUNT)
    for what, stated, found in (
        ("persistent messages", terms.persistent_count, checked.persistent_entries),
        ("bytes of persistent messages", terms.persistent_bytes, checked.persistent_bytes),
    ):
        if stated != found:
            what = f"{found} {what}; there were {stated} at the clean stop"
            yield Finding(directory, 0, 0, Cause.DAMAGE, what, lost, Kind.COUNT)
    if checked.next_seen > terms.next_seq_id:
        what = f"seq_id {checked.next_seen - 1} is there; {terms.next_seq_id} was to be the next"
        yield Finding(directory, 0, 0, Cause.DAMAGE, what, lost, Kind.SEQ_RANGE)
