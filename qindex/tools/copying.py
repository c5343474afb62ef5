"""Copy the sound parts of a store into a new one: the work that repair and salvage share.

In this order: verify the source, which finds all that is wrong; copy the sound records of the
message store that entries name; copy each queue, without entries whose message is nowhere; set
damaged bytes aside in ``quarantine/``. Memory: as verify, one segment file at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from journal import format as journal_format
from journal.errors import DamageError, StoreError, UsageError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import (
    FileSystem,
    created,
    data_ranges,
    make_dirs,
    opened,
    pread_all,
    read_optional,
    replace_file,
    write_all,
)
from journal.memory.arrays import I64
from journal.poison import Poison
from msgstore import MessageStore
from msgstore.format import MAX_RECORD
from msgstore.scan import read_record
from qindex.format import layout
from qindex.format.entries import decode_any
from qindex.format.rabbitmq.bridge import basic_message, encode_rabbitmq
from qindex.format.rabbitmq.names import (
    MAX_PRIORITY,
    QueueNameError,
    directory_name,
    format_queue_name,
    parse_queue_name,
)
from qindex.format.rabbitmq.queue_index_v2 import (
    DEFAULT_ENTRY_COUNT,
    ENTRY_SIZE,
    HEADER_SIZE,
    parse_header,
)
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as INDEX_SUFFIX
from qindex.format.rabbitmq.queue_index_v2 import file_name as index_file
from qindex.format.rabbitmq.queue_store_v2 import SUFFIX as STORE_SUFFIX
from qindex.format.rabbitmq.queue_store_v2 import file_name as pair_store_file
from qindex.format.rabbitmq.vhost_config import format_vhost_config
from qindex.format.segment import file_number
from qindex.format.stored_id import vouches
from qindex.index.messages import PERSISTENT_DIRECTORY, check_record
from qindex.index.pair_scan import Depth, entry_count_of
from qindex.index.quarantine import DIRECTORY as QUARANTINE
from qindex.recovery.columns import Entries, take_rows
from qindex.tools.pair_writer import PairWriter
from qindex.tools.queue_check import CheckedQueue
from qindex.tools.queue_writer import QueueWriter
from qindex.tools.saved import SavedQueue, SaveReport
from qindex.tools.store_check import StoreCheck, is_in, pack_ids
from qindex.tools.verify import Figures, StoreVerification
from qindex.view.rabbitmq_vhost import VHOST_FILE, QueueDirectory, raw_name
from qindex.view.reader import StoreReader

_log = logging.getLogger("qindex.tools")

_BATCH_BYTES = 4 << 20
_PIECE = 1 << 20
_LONGEST_NAME_FILE = 1 << 10
_TERM = 0x83


def for_salvage(path: str, offset: int, what: str) -> DamageError:
    """Return the error for damage that must not be copied as it is."""
    return DamageError(path, offset, f"{what} (salvage copies the sound messages)")


def new_message_store(fs: FileSystem, target: str, **options: Any) -> MessageStore:
    """Open the persistent message store of a new store. The caller syncs and closes it."""
    return MessageStore.open(
        os.path.join(target, PERSISTENT_DIRECTORY),
        references={},
        snapshot=None,
        check=check_record,
        poison=Poison(),
        fs=fs,
        background=False,
        **options,
    )


@dataclass
class StoreCopy:
    """The copy of the store that ``reader`` reads into the directory ``target``, which is there.
    The new files of queues are not synced: see :func:`qindex.tools.staging.sync_tree`.

    ``entry_count``: entries a segment of the new store. ``names``: queue names to try for
    directories that have lost theirs. ``report`` is filled; after :meth:`check` ``checked`` and
    ``messages`` are the checks of queues and message store. ``moved``: seq_ids to leave out,
    ascending, by queue directory, because a move or a transaction acknowledges them; ``undone``:
    those that a move or a transaction has published without a commit. ``version``: of the new
    queue files; ``pair_entries``: entries a segment of version 2. ``basic_for``: records
    become those that a node before 3.13 reads, of this virtual host. ``progress`` is called with
    the messages that were copied and those there are. Raises :class:`StoreError` when the source
    changes meanwhile, :class:`OSError`.
    """

    fs: FileSystem
    reader: StoreReader
    target: str
    report: SaveReport
    names: Iterable[str] = ()
    sums: bool = True
    version: int = 1
    basic_for: bytes | None = None
    progress: Callable[[int, int], None] | None = None
    checked: list[CheckedQueue] = field(default_factory=list)
    messages: StoreCheck = field(init=False)
    moved: dict[str, I64] = field(default_factory=dict)
    undone: dict[str, I64] = field(default_factory=dict)
    _kept_pairs: dict[str, int] = field(default_factory=dict)
    _sizes: list[tuple[npt.NDArray[np.bytes_], I64]] = field(default_factory=list)
    _doubles: dict[str, list[int]] = field(default_factory=dict)
    _done: int = 0
    _missing: npt.NDArray[np.bytes_] = field(default_factory=lambda: np.empty(0, "S16"))
    _unnamed: Entries | None = None

    @property
    def entry_count(self) -> int:
        """Entries a segment, in both stores."""
        vhost, marker = self.reader.vhost, self.reader.marker
        if vhost is not None:
            return vhost.entry_count
        assert marker is not None
        return marker.entry_count

    @cached_property
    def pair_entries(self) -> int:
        """As the source has it, or else a node's default."""
        for checked in self.checked:
            pairs = self.reader.pin(checked.queue).pinned.pairs if checked.readable else {}
            if pairs:
                return entry_count_of(pairs)
        return DEFAULT_ENTRY_COUNT

    def check(self) -> None:
        """Verify the source."""
        check = StoreVerification(self.fs, self.reader, Figures(), for_copy=True)
        for finding in check.findings():
            self.report.findings.append(finding)
            if finding.kind is Kind.DUPLICATE_MSG_ID:
                self._doubles.setdefault(finding.path, []).append(finding.offset)
        self.checked = check.checked
        assert check.messages is not None
        self._missing = np.array(sorted(check.messages.missing), "S16")
        self.messages = check.messages

    # -- messages -------------------------------------------------------------------------------

    def copy_messages(self) -> None:
        """Copy the records that entries name."""
        store: MessageStore | None = None
        batch: list[tuple[bytes, bytes, int]] = []
        size = 0
        try:
            for item in self._records():
                if store is None:
                    store = new_message_store(self.fs, self.target, max_message_bytes=MAX_RECORD)
                batch.append(item)
                size += len(item[1])
                if size >= _BATCH_BYTES:
                    store.write_many(batch)
                    batch, size = [], 0
            if store is not None:
                store.write_many(batch)
                store.sync()
        finally:
            if store is not None:
                store.close()

    def _records(self) -> Iterator[tuple[bytes, bytes, int]]:
        doubted = self._doubted()
        for file, rows, counts in self.messages.chosen():
            if not len(rows):
                continue
            sizes = file.bodies[rows]
            asked = (sizes < 0) & is_in(file.ids[rows], doubted)
            with opened(self.fs, file.path) as fd:
                for at, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
                    msg_id = bytes(file.ids[row]).ljust(16, b"\0")
                    offset, total = int(file.offsets[row]), int(file.totals[row])
                    record = read_record(self.fs, fd, offset, total)
                    if record is None or not file.is_as_it_was(row, record):
                        raise StoreError(f"{file.path}: was changed while it was read")
                    if asked[at]:
                        sizes[at] = len(decode_any(record, msg_id).body)
                    if self.basic_for is not None:
                        record = _basic_record(record, msg_id, self.basic_for)
                    self.report.stored_messages += 1
                    self.report.stored_bytes += len(record)
                    yield msg_id, record, count
            told = np.flatnonzero(sizes >= 0)
            self._sizes.append((file.ids[rows[told]], sizes[told]))

    def _doubted(self) -> npt.NDArray[np.bytes_]:
        """Return the ids that do not vouch for the sizes of their entries, ascending."""
        entries = self.messages.entries
        found = [pack_ids(one.ids[~vouches(one.ids, one.sizes)]) for one in entries]
        return np.unique(np.concatenate([*found, np.empty(0, "S16")]))

    # -- queues ---------------------------------------------------------------------------------

    def copy_pairs(self, checked: CheckedQueue) -> None:
        """Copy a queue's files of version 2 as they are, up to the last whole entry, so that
        :meth:`copy_queue` adds to them what the files of version 1 have. None where a queue has no
        such files. Raises :class:`DamageError` where they have to be written anew instead."""
        pairs = self.reader.pin(checked.queue).pinned.pairs
        source = self.reader.path_of(checked.queue)
        if not pairs:
            return
        for finding in self.report.findings:
            if finding.cause is Cause.DAMAGE and os.path.dirname(finding.path) == source:
                raise for_salvage(finding.path, finding.offset, finding.what)
        count = entry_count_of(pairs)
        path = os.path.join(self.target, layout.QUEUES, checked.queue.directory)
        make_dirs(self.fs, path)
        for pair in pairs.values():
            if pair.size < HEADER_SIZE:
                continue
            name = index_file(pair.number)
            if parse_header(pair.head, pair.number).entry_count != count:
                what = f"not {count} entries, as other segments have"
                raise for_salvage(os.path.join(source, name), 0, what)
            whole = pair.size - (pair.size - HEADER_SIZE) % ENTRY_SIZE
            self._copy_file(os.path.join(source, name), os.path.join(path, name), whole)
            if pair.store_size >= 0:
                name = pair_store_file(pair.number)
                self._copy_file(
                    os.path.join(source, name), os.path.join(path, name), pair.store_size
                )
        self._kept_pairs[checked.queue.directory] = count

    def _copy_file(self, source: str, target: str, size: int) -> None:
        with opened(self.fs, source) as fd:
            pieces = (
                pread_all(self.fs, fd, min(_PIECE, size - at), at) for at in range(0, size, _PIECE)
            )
            self._write_pieces(target, pieces)

    def copy_queue(
        self, checked: CheckedQueue, directory: str, name: bytes | None, saved: SavedQueue
    ) -> None:
        """Copy the entries of a queue into queue directory ``directory`` of the new store, under
        their own seq_ids."""
        writer = self._writer(directory, name)
        if not checked.readable:
            return
        view = self.reader.pin(checked.queue, Depth.DECODE)
        for batch in view.all_alive():
            self._advance(len(batch.seqs))
            kept = self._kept(batch, saved)
            kept = self._not_moved(kept, checked.queue.directory, saved)
            if not len(kept.seqs):
                continue
            sizes = self._true_sizes(kept)
            if not (kept.version2 and directory in self._kept_pairs):
                basic = kept if self.basic_for is None else _basic(kept, self.basic_for)
                writer.add(basic, kept.seqs, sizes)
            saved.messages += len(kept.seqs)
            saved.bytes += int(sizes.sum())
            saved.redelivered += int(kept.delivered.sum())
            saved.expiring += int((kept.expiry != 0).sum())
        saved.unnamed += view.image.unnamed
        saved.lost += self._lost_in_pairs(checked)

    def _lost_in_pairs(self, checked: CheckedQueue) -> int:
        """Count the entries of version 2 whose message should be in ``K.qs``, and is not sound
        there; the view does not give them."""
        path = self.reader.path_of(checked.queue)
        return sum(
            one.offset >= HEADER_SIZE and self.report.loses(one)
            for one in self.report.findings
            if one.path.endswith(STORE_SUFFIX)
            and os.path.dirname(one.path) == path
            and one.kind is not Kind.MESSAGE_WITHOUT_ENTRY
        )

    def take_unnamed(self) -> bool:
        """Take in the messages of the message store that no entry names, where entries are lost.

        Return whether there are any. They may be those of the lost entries, or acknowledged long
        ago. Call this after :meth:`check`, before :meth:`copy_messages`.
        """
        if not any(self.report.loses(one) and _is_of_index(one) for one in self.report.findings):
            return False
        there = self.messages.all_records()[0]
        first = np.sort(np.unique(there, return_index=True)[1])
        ids = there[first]
        ids = ids[~is_in(ids, self.messages.named()[0])]
        count = len(ids)
        packed = b"".join(msg_id.ljust(16, b"\0") for msg_id in ids.tolist())
        nothing, yes = np.zeros(count, np.int64), np.ones(count, np.bool_)
        self._unnamed = Entries(
            path="",
            location="segment",
            data=b"",
            version2=False,
            seqs=np.arange(count),
            states=nothing.astype(np.uint8),
            payloads=nothing,
            offsets=nothing,
            ids=np.frombuffer(packed, np.uint8).reshape(-1, 16),
            expiry=nothing.astype(np.uint64),
            sizes=nothing,
            embedded=nothing,
            persistent=yes,
            delivered=yes,
            dropped=~yes,
        )
        self.messages.entries = [*self.messages.entries, self._unnamed]
        return count > 0

    def copy_unnamed(self, directory: str, name: bytes, saved: SavedQueue) -> None:
        """Copy what :meth:`take_unnamed` has found into a queue of its own."""
        batch = self._unnamed
        assert batch is not None
        count = len(batch.seqs)
        sizes = self._stored_sizes(batch, batch.sizes.copy())
        self._writer(directory, name).add(batch, batch.seqs, sizes)
        saved.messages = saved.unnamed = saved.redelivered = saved.next_seq_id = count
        saved.bytes = int(sizes.sum())

    def _writer(self, directory: str, name: bytes | None) -> QueueWriter | PairWriter:
        path = os.path.join(self.target, layout.QUEUES, directory)
        if self.version == 2:
            count = self._kept_pairs.get(directory, self.pair_entries)
            return PairWriter(self.fs, path, count, name)
        return QueueWriter(self.fs, path, self.entry_count, name, sums=self.sums)

    def begin_vhost(self, vhost: bytes) -> None:
        """Make the new store a virtual host's directory, which a node knows by these files."""
        make_dirs(self.fs, os.path.join(self.target, layout.QUEUES))
        replace_file(self.fs, os.path.join(self.target, VHOST_FILE), vhost)
        config = format_vhost_config(self.entry_count)
        replace_file(self.fs, os.path.join(self.target, layout.CONFIG), config)

    def copy_queue_for_node(self, checked: CheckedQueue, saved: SavedQueue) -> None:
        """Copy a queue under the names that a node knows it by: the directory's, and the queue's in
        its name file. Raises :class:`UsageError` if a node can't have the queue or a message."""
        directory = checked.queue.directory
        saved.name, raw = self.name_of(checked.queue, saved.vhost)
        if checked.queue.priority is not None:
            saved.max_priority = max(saved.max_priority or 1, checked.queue.priority)
        if raw is not None:
            raw = format_queue_name(*parse_queue_name(raw, directory), version=self.version)
        try:
            self.copy_queue(checked, directory, raw, saved)
        except UsageError as error:
            raise UsageError(f"queue {saved.name!r}: {error}") from error
        if not checked.queue.priority:
            saved.next_seq_id = max(saved.next_seq_id, checked.next_seen)

    def _advance(self, count: int) -> None:
        """Tell how far it has come: messages of the store are copied first, and counted with the
        entries."""
        self._done += count
        if self.progress is not None:
            total = sum(one.entries for one in self.checked)
            self.progress(self._done, total)

    def _kept(self, batch: Entries, saved: SavedQueue) -> Entries:
        dropped = batch.dropped
        if self.reader.vhost is None:
            dropped = ~batch.persistent
        stored = (batch.embedded == 0) & ~dropped
        lost = stored & np.isin(pack_ids(batch.ids), self._missing)
        saved.transient += int(dropped.sum())
        saved.lost += int(lost.sum())
        # A second entry of one message is a copy of the first, in a file that is out of its place.
        double = np.isin(batch.offsets, self._doubles.get(batch.path, ()))
        return take_rows(batch, ~dropped & ~lost & ~double)

    def _not_moved(self, batch: Entries, directory: str, saved: SavedQueue) -> Entries:
        undone = self.undone.get(directory)
        if undone is not None:
            batch = take_rows(batch, ~np.isin(batch.seqs, undone))
        moved = self.moved.get(directory)
        if moved is None:
            return batch
        gone = np.isin(batch.seqs, moved)
        saved.moved += int(gone.sum())
        return take_rows(batch, ~gone)

    def kept_entries(self, directory: str) -> Iterator[tuple[int, bytes]]:
        """Yield seq_id and message id of the entries of a queue directory that would be copied,
        moved or not. After :meth:`check`."""
        for checked in self.checked:
            if checked.queue.directory != directory or not checked.readable:
                continue
            view = self.reader.pin(checked.queue, Depth.DECODE)
            for batch in view.all_alive():
                kept = self._kept(batch, SavedQueue("", ""))
                ids = pack_ids(kept.ids)
                for seq, msg_id in zip(kept.seqs.tolist(), ids.tolist(), strict=True):
                    yield seq, msg_id.ljust(16, b"\0")

    def _true_sizes(self, batch: Entries) -> I64:
        """Return the sizes of the bodies. In RabbitMQ's records no checksum covers the size in the
        entry."""
        if batch.bodies is not None:
            sizes = np.where(batch.bodies >= 0, batch.bodies, batch.sizes)
            return self._stored_sizes(batch, sizes)
        sizes = batch.sizes.copy()
        for at, record in batch.foreign_records():
            sizes[at] = len(decode_any(record, batch.ids[at].tobytes()).body)
        return self._stored_sizes(batch, sizes)

    def _stored_sizes(self, batch: Entries, sizes: I64) -> I64:
        known, bodies = self._sizes_by_id
        rows = np.flatnonzero(batch.embedded == 0)
        ids = pack_ids(batch.ids[rows])
        there = is_in(ids, known)
        sizes[rows[there]] = bodies[np.searchsorted(known, ids[there])]
        return sizes

    @cached_property
    def _sizes_by_id(self) -> tuple[npt.NDArray[np.bytes_], I64]:
        """Message ids, ascending, and the sizes of their bodies. Shapes ``(n,)``."""
        ids = np.concatenate([np.empty(0, "S16"), *(ids for ids, _ in self._sizes)])
        sizes = np.concatenate([np.empty(0, np.int64), *(sizes for _, sizes in self._sizes)])
        order = np.argsort(ids, kind="stable")
        self._sizes.clear()
        return ids[order], sizes[order]

    def name_of(self, queue: QueueDirectory, vhost: str) -> tuple[str, bytes | None]:
        """Find a queue's name, and the content of its name file, ``None`` where it is lost.

        A damaged file is put right if one bit flipped; else ``names`` are tried: the directory's
        name is a hash of the queue's.
        """
        directory = queue.directory
        path = os.path.join(self.reader.path_of(queue), layout.QUEUE_NAME)
        raw = read_optional(self.fs, path)
        if raw is not None:
            for candidate in (raw, *_one_bit_off(raw)):
                try:
                    found = parse_queue_name(candidate, directory)
                except QueueNameError:
                    continue
                if candidate is not raw:
                    self.report.restored.add(path)
                return found.queue.decode("utf-8", "surrogateescape"), candidate
        with_priorities = [one.queue.name for one in self.checked if one.queue.priority is not None]
        for name in dict.fromkeys((*self.names, *with_priorities)):
            for priority in (None, *range(MAX_PRIORITY + 1)):
                if directory_name(vhost, raw_name(name), priority) == directory:
                    self.report.restored.add(path)
                    return name, format_queue_name(vhost, name, priority)
        return queue.name, None

    # -- quarantine -----------------------------------------------------------------------------

    def set_aside(self) -> None:
        """Copy the damaged bytes of the source into ``quarantine/`` of the new store."""
        lengths: dict[tuple[str, int], int] = {}
        for finding in self.report.findings:
            if finding.cause is Cause.DAMAGE and finding.length and finding.kind is not Kind.SIZE:
                place = finding.path, finding.offset
                lengths[place] = max(lengths.get(place, 0), finding.length)
        for (path, offset), length in lengths.items():
            inner = os.path.relpath(path, self.reader.directory)
            for start, pieces in groupby(self._read_pieces(path, offset, length), itemgetter(0)):
                aside = os.path.join(QUARANTINE, f"{inner}.{start}")
                self._write_pieces(os.path.join(self.target, aside), map(itemgetter(1), pieces))
                self.report.quarantined.append(aside)

    def _read_pieces(self, path: str, offset: int, length: int) -> Iterator[tuple[int, bytes]]:
        """Read what can be read of a damaged place, each piece with the offset at which the bytes
        begin that it is of: holes are left out. That the rest can't be read is known already."""
        fs = self.fs
        try:
            with opened(fs, path) as fd:
                for start, end in data_ranges(fs, fd, offset, offset + length):
                    at = start
                    while at < end and (piece := fs.pread(fd, min(_PIECE, end - at), at)):
                        yield start, piece
                        at += len(piece)
        except OSError as error:
            _log.warning("%s: can't be read at offset %d: %s", path, offset, error)

    def _write_pieces(self, target: str, pieces: Iterable[bytes]) -> None:
        fs = self.fs
        make_dirs(fs, os.path.dirname(target))
        with created(fs, target) as fd:
            for piece in pieces:
                write_all(fs, fd, piece)
            fs.fdatasync(fd)


def _is_of_index(finding: Finding) -> bool:
    """Return whether a finding is about a file that holds entries."""
    name = os.path.basename(finding.path)
    if finding.kind is Kind.ENTRY_WITHOUT_MESSAGE:
        return False
    is_file = name.endswith(INDEX_SUFFIX) or file_number(name) is not None
    return is_file or name == journal_format.FILE_NAME


def _basic(batch: Entries, vhost: bytes) -> Entries:
    """Return the entries with the records that a node before 3.13 reads."""
    view = memoryview(batch.data)
    starts = (batch.payloads + journal_format.PAYLOAD_SIZE).tolist()
    records = [
        _basic_record(bytes(view[start : start + length]), msg_id.tobytes(), vhost)
        if length
        else b""
        for start, length, msg_id in zip(starts, batch.embedded.tolist(), batch.ids, strict=True)
    ]
    lengths = np.array([len(record) for record in records], np.int64)
    payloads = np.cumsum(lengths) - lengths - journal_format.PAYLOAD_SIZE
    data = b"".join(records)
    return replace(batch, data=data, version2=False, payloads=payloads, embedded=lengths)


def _basic_record(record: bytes, msg_id: bytes, vhost: bytes) -> bytes:
    if record[0] == _TERM:
        return basic_message(record, vhost)
    # Of a store of qindex none but persistent messages are copied.
    return encode_rabbitmq(decode_any(record, msg_id), vhost, msg_id, True)


def _one_bit_off(raw: bytes) -> Iterator[bytes]:
    for bit in range(len(raw) * 8 if len(raw) <= _LONGEST_NAME_FILE else 0):
        flipped = bytearray(raw)
        flipped[bit >> 3] ^= 0x80 >> (bit & 7)
        yield bytes(flipped)
