"""Check a message store: every record of every file, and references both ways.

Nothing on disk says which records are wanted: that follows from the queues' entries. A record
that no entry names is garbage, as a rule. Only the snapshot of a clean shutdown (``qindex.clean``),
which counts the references of each message, reveals a record that should have entries.

Beside a writer the files change: compaction moves records to new files and deletes the old ones,
and a message that is acknowledged may be gone. So what seems to be missing is looked for again,
and asked for again, until either it is found, or no entry names it, or nothing moves any more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import sleep

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from journal.errors import StorageError, StoreError, storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, names_in, opened, read_file
from journal.memory.arrays import I64, U8, U64, Bools
from msgstore.format import MAX_RECORD, classify_name
from msgstore.format import Kind as FileKind
from msgstore.scan import FileScan, Record, read_record, scan_file
from qindex.format.entries import decode_any
from qindex.format.rabbitmq.bridge import read_named
from qindex.format.rabbitmq.container import states_more
from qindex.format.rabbitmq.queue_index_v2 import ENTRY_SIZE
from qindex.format.stored_id import vouches
from qindex.index.messages import check_record
from qindex.index.pair_scan import ACKED_OR_LOST
from qindex.recovery.columns import Entries
from qindex.tools.headless import find_headless
from qindex.tools.queue_check import size_finding
from qindex.view.freed_room import concerning

Ids = npt.NDArray[np.bytes_]

_ATTEMPTS = 64
_SETTLE = 0.02
_ID = "S16"
_NUL = b"\0"
_TERM = b"\x83"
_LOST = "the message is lost"


@dataclass(slots=True)
class ScannedFile:
    """One file as it was scanned; the columns have a row for each record.

    ``bodies``: bytes of the bodies, of RabbitMQ's records alone; -1 = not told. ``sums``: xxh3 of
    the records, 0 = not told.
    """

    path: str
    size: int
    inode: int
    ids: Ids
    offsets: I64
    totals: I64
    bodies: I64
    sums: U64
    findings: list[Finding]

    def is_as_it_was(self, row: int, record: bytes) -> bool:
        """Return whether a record that was read again has not changed since."""
        told = int(self.sums[row])
        if told:
            return xxh3_64_intdigest(record) == told
        return check_record(bytes(self.ids[row]).ljust(16, _NUL), record) is None


def pack_ids(ids: U8) -> Ids:
    """Return message ids of shape ``(n, 16)`` as one column that can be sorted."""
    column: Ids = np.ascontiguousarray(ids).view(_ID).ravel()
    return column


@dataclass(slots=True)
class StoreCheck:
    """The check of one message store directory.

    ``entries``: of all queues, that name a message in it. ``named_now(ids)``: which of these ids
    entries name now; asked beside a writer only. ``lost_is_damage(entries)``: whether a message
    that is missing can't be a crash's doing. ``rescue``: look for missing messages under damaged
    headers, too, where no engine finds them. ``has_holes``: see :mod:`qindex.view.freed_room`.
    ``live`` and ``size`` (bytes), ``records``, ``missing`` (ids that entries name and no file has),
    after :meth:`findings`. Memory: 48 bytes for each record, 100 for each entry.
    """

    fs: FileSystem
    directory: str
    entries: Sequence[Entries]
    in_use: bool
    named_now: Callable[[set[bytes]], set[bytes]]
    lost_is_damage: Callable[[Entries], bool]
    rescue: bool = False
    has_holes: bool = False
    size: int = 0
    live: int = 0
    records: int = 0
    missing: set[bytes] = field(default_factory=set)
    _files: dict[str, ScannedFile] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """Yield all findings. Raises :class:`StorageError`."""
        self._scan_all()
        missing = self.missing = self._missing()
        if self.rescue and missing:
            self._rescue(missing)
        for file in self._files.values():
            if self.has_holes:
                yield from concerning(self.fs, file.findings, missing)
            elif not self.in_use or not self._has_moved_on(file):
                yield from file.findings
        for name in self._files:
            if name.endswith(FileKind.RECORDS.value):
                continue
            what = "copies of an unfinished compaction"
            path = os.path.join(self.directory, name)
            yield Finding(path, 0, 0, Cause.CRASH, what, "nothing is lost", Kind.UNFINISHED)
        yield from self._duplicates()
        yield from self._entries_without_message(missing)
        yield from self._wrong_sizes()
        self._count()

    # -- scanning -------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        with storage_errors(self.directory, "can't be listed"):
            names = names_in(self.fs, self.directory)
        kinds = {name: classify_name(name) for name in names}
        known = [(*kind, name) for name, kind in kinds.items() if kind is not None]
        # The tails of a node's compaction are copies: they come last.
        known.sort(key=lambda one: (one[0] is FileKind.TAIL, one[1]))
        return [name for kind, _, name in known if kind in _SCANNED]

    def _scan_all(self) -> None:
        """Scan new and changed files, and forget deleted ones."""
        names = self._names()
        self._files = {name: file for name, file in self._files.items() if name in names}
        for name in names:
            path = os.path.join(self.directory, name)
            try:
                status = self.fs.stat(path)
                known = self._files.get(name)
                if known and (known.size, known.inode) == (status.st_size, status.st_ino):
                    continue
                notes = _Notes()
                scan = scan_file(self.fs, path, check=notes, max_record=MAX_RECORD, verify=True)
                self._files[name] = _columns(scan, status.st_ino, notes)
            except FileNotFoundError:
                self._files.pop(name, None)
            except StorageError as error:
                self._files.pop(name, None)
                if error.errno == errno.ENOENT:
                    continue
                self._files[name] = _unreadable(path, status.st_size, status.st_ino, error)
            except OSError as error:
                raise StorageError(path, "can't be read", error) from error

    def _has_moved_on(self, file: ScannedFile) -> bool:
        """Return whether a file's findings only come of its growth or deletion meanwhile."""
        if not file.findings:
            return False
        end = max(one.offset + one.length for one in file.findings)
        torn = all(one.cause is Cause.CRASH for one in file.findings) and end == file.size
        for _ in range(3 if torn else 1):
            try:
                if self.fs.stat(file.path).st_size != file.size and torn:
                    return True
            except FileNotFoundError:
                return True
            sleep(_SETTLE if torn else 0)
        return False

    def _sorted_ids(self) -> Ids:
        ids = np.concatenate([file.ids for file in self._files.values()] or [_NO_IDS])
        ids.sort()
        return ids

    # -- references -----------------------------------------------------------------------------

    def named(self) -> tuple[Ids, I64]:
        """Return the ids that entries name, ascending, and how many entries name each."""
        names = [pack_ids(one.ids) for one in self.entries]
        return np.unique(np.concatenate(names or [_NO_IDS]), return_counts=True)

    def _missing(self) -> set[bytes]:
        """Return the ids that entries name and no file has."""
        named, _ = self.named()
        missing = _as_set(named[~is_in(named, self._sorted_ids())])
        if not self.in_use:
            return missing
        for _ in range(_ATTEMPTS):
            if not missing:
                break
            missing &= self.named_now(missing)
            before = self._names()
            self._scan_all()
            wanted = np.array(sorted(missing), _ID) if missing else _NO_IDS
            missing = _as_set(wanted[~is_in(wanted, self._sorted_ids())])
            missing &= self.named_now(missing)
            # Else a listing may have fallen between two names of records that were moved.
            if before == self._names() == list(self._files):
                break
        return missing

    def _rescue(self, missing: set[bytes]) -> None:
        """Take in the messages under damaged headers; they are not ``missing`` any more."""
        for file in self._files.values():
            gaps = [one for one in file.findings if one.kind is not Kind.UNREADABLE]
            if not gaps:
                continue
            found = list(find_headless(self.fs, file.path, gaps, missing))
            if found:
                ids, offsets, totals = zip(*found, strict=True)
                file.ids = np.append(file.ids, np.array(ids, _ID))
                file.offsets = np.append(file.offsets, np.array(offsets, np.int64))
                file.totals = np.append(file.totals, np.array(totals, np.int64))
                file.bodies = np.append(file.bodies, np.full(len(found), -1))
                file.sums = np.append(file.sums, np.zeros(len(found), np.uint64))
                missing.difference_update(ids)

    def _entries_without_message(self, missing: set[bytes]) -> Iterator[Finding]:
        if not missing:
            return
        ids = np.array(sorted(missing), _ID)
        for one in self.entries:
            cause = Cause.DAMAGE if self.lost_is_damage(one) else Cause.CRASH
            lost = ACKED_OR_LOST if one.version2 and cause is Cause.CRASH else _LOST
            for at in np.flatnonzero(is_in(pack_ids(one.ids), ids)).tolist():
                msg_id = one.ids[at].tobytes().hex()
                what = f"seq_id {int(one.seqs[at])}: its message {msg_id} is not in the store"
                offset = int(one.offsets[at])
                kind = Kind.ENTRY_WITHOUT_MESSAGE
                length = ENTRY_SIZE if one.version2 else _ENTRY_SIZE
                yield Finding(one.path, offset, length, cause, what, lost, kind)

    def _duplicates(self) -> Iterator[Finding]:
        """Find messages that are there more than once with different bytes. Equal copies are
        garbage of a compaction that was cut short; but it never copies a whole file."""
        ids, files, offsets, totals = self.all_records()
        order = np.argsort(ids, kind="stable")
        again = order[1:][ids[order][1:] == ids[order][:-1]]
        if not len(again):
            return
        twins = {}
        for number, path in enumerate(self.paths()):
            mine = again[files[again] == number]
            twin = self._twin(number) if len(mine) == int((files == number).sum()) else None
            if twin is not None:
                twins[number] = twin
                what = f"the same bytes as {os.path.basename(twin)}"
                lost, kind = "nothing is lost", Kind.DUPLICATE_FILE
                yield Finding(path, 0, 0, Cause.DAMAGE, what, lost, kind)
        paths = self.paths()
        before = {int(at): int(other) for other, at in pairwise(order)}
        for at in again.tolist():
            number = int(files[at])
            if number in twins:
                continue
            mine = self._bytes(at, files, offsets, totals)
            other = self._bytes(before[at], files, offsets, totals)
            if mine == other or mine is None or other is None:
                continue  # a copy, or deleted by now
            what = f"message {ids[at].ljust(16, _NUL).hex()} is there with different bytes"
            lost, kind = "one of the two is delivered", Kind.DUPLICATE_MSG_ID
            place = paths[number], int(offsets[at]), int(totals[at])
            yield Finding(*place, Cause.DAMAGE, what, lost, kind)

    def files(self) -> list[ScannedFile]:
        """Return the files as they were scanned."""
        return list(self._files.values())

    def paths(self) -> list[str]:
        """Return the files that were scanned."""
        return [file.path for file in self._files.values()]

    def all_records(self) -> tuple[Ids, I64, I64, I64]:
        """Return ids, number of the file (see :meth:`paths`), offsets and framed sizes of all
        records."""
        files = self.files()
        if not files:
            return _NO_IDS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS
        return (
            np.concatenate([file.ids for file in files]),
            np.repeat(np.arange(len(files)), [len(file.ids) for file in files]),
            np.concatenate([file.offsets for file in files]),
            np.concatenate([file.totals for file in files]),
        )

    def _twin(self, number: int) -> str | None:
        files = self.files()
        mine = files[number]
        for other in files[:number]:
            if other.size == mine.size and np.array_equal(other.ids, mine.ids):
                try:
                    if read_file(self.fs, other.path) == read_file(self.fs, mine.path):
                        return other.path
                except FileNotFoundError:
                    continue  # deleted meanwhile
        return None

    def _bytes(self, at: int, files: I64, offsets: I64, totals: I64) -> bytes | None:
        record = (b"", int(offsets[at]), int(totals[at]))
        return _read(self.fs, self.paths()[int(files[at])], record)

    def _wrong_sizes(self) -> Iterator[Finding]:
        """Hold the entries' sizes against the bodies, where the id does not vouch for them."""
        doubted = [(one, np.flatnonzero(~vouches(one.ids, one.sizes))) for one in self.entries]
        if not any(len(rows) for _, rows in doubted):
            return
        ids, files, offsets, totals = self.all_records()
        bodies = np.concatenate([file.bodies for file in self.files()] or [_NO_NUMBERS])
        order = np.argsort(ids, kind="stable")
        ids, paths = ids[order], self.paths()
        for one, rows in doubted:
            there, places = look_up(pack_ids(one.ids[rows]), ids)
            rows, at = rows[there], order[places[there]]
            sizes = bodies[at]
            for row in np.flatnonzero(sizes < 0).tolist():
                place = int(offsets[at[row]]), int(totals[at[row]])
                msg_id = one.ids[rows[row]].tobytes()
                record = _read(self.fs, paths[int(files[at[row]])], (msg_id, *place))
                sizes[row] = _body_size(record, msg_id)
            for row in np.flatnonzero((sizes >= 0) & (sizes != one.sizes[rows])).tolist():
                found = size_finding(one, int(rows[row]), int(sizes[row]))
                # Of an entry that a loss of power has left a part of, no checksum tells.
                yield found if self.lost_is_damage(one) else replace(found, cause=Cause.CRASH)

    def chosen(self) -> Iterator[tuple[ScannedFile, I64, I64]]:
        """Yield the records that entries name, each message once: for each file its rows, and how
        many entries name them. Of several copies in a file the last counts, as in RabbitMQ. A
        node's half-done copies count if there is no other."""
        named, counts = self.named()
        taken = np.zeros(len(named), np.bool_)
        for file in self._files.values():
            if not len(file.ids) or not len(named):
                continue
            there, places = look_up(file.ids, named)
            wanted = there & ~taken[places]
            last = np.zeros(len(file.ids), np.bool_)
            last[len(file.ids) - 1 - np.unique(file.ids[::-1], return_index=True)[1]] = True
            rows = np.flatnonzero(wanted & last)
            taken[places[rows]] = True
            yield file, rows, counts[places[rows]]

    def _count(self) -> None:
        ids, _, _, totals = self.all_records()
        self.size = sum(file.size for file in self._files.values())
        kept = np.unique(ids, return_index=True)[1]
        self.records = len(kept)
        self.live = int(totals[kept[is_in(ids[kept], self.named()[0])]].sum())


_SCANNED = (FileKind.RECORDS, FileKind.TAIL)
_ENTRY_SIZE = 40
_NO_IDS: Ids = np.empty(0, _ID)
_NO_NUMBERS: I64 = np.empty(0, np.int64)
_NO_NOTE = (-1, 0)


class _Notes:
    """The check of a file's records, which notes body size and checksum by message id. If two
    records of one id differ, it notes neither."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[int, int]] = {}

    def __call__(self, msg_id: bytes, record: bytes) -> str | None:
        size = -1
        if record[:1] == _TERM:
            try:
                message = read_named(record, msg_id)
            except StoreError as error:
                return str(error)
            if not states_more(record):
                size = len(message.body)
        elif (wrong := check_record(msg_id, record)) is not None:
            return wrong
        note = (size, xxh3_64_intdigest(record))
        if self._seen.setdefault(msg_id, note) != note:
            self._seen[msg_id] = _NO_NOTE
        return None

    def of(self, records: list[Record]) -> tuple[I64, U64]:
        """Return body sizes and checksums of these records. Shapes ``(n,)``."""
        notes = [self._seen.get(msg_id, _NO_NOTE) for msg_id, _, _ in records]
        sizes = np.array([size for size, _ in notes], np.int64)
        return sizes, np.array([total for _, total in notes], np.uint64)


def _columns(scan: FileScan, inode: int, notes: _Notes) -> ScannedFile:
    ids = b"".join(msg_id for msg_id, _, _ in scan.records)
    bodies, sums = notes.of(scan.records)
    return ScannedFile(
        scan.path,
        scan.size,
        inode,
        np.frombuffer(ids, _ID),
        np.array([offset for _, offset, _ in scan.records], np.int64),
        np.array([total for _, _, total in scan.records], np.int64),
        bodies,
        sums,
        scan.gaps,
    )


def _unreadable(path: str, size: int, inode: int, error: StoreError) -> ScannedFile:
    what, lost = f"can't be read: {error}", "its messages are lost"
    finding = Finding(path, 0, size, Cause.DAMAGE, what, lost, Kind.UNREADABLE)
    none = _NO_NUMBERS
    return ScannedFile(
        path, size, inode, _NO_IDS, none, none, none, np.empty(0, np.uint64), [finding]
    )


def look_up(wanted: Ids, ascending: Ids) -> tuple[Bools, I64]:
    """Return which ids are among the others, which are sorted, and where. Shapes ``(n,)``."""
    if not len(ascending):
        return np.zeros(len(wanted), np.bool_), np.zeros(len(wanted), np.int64)
    places = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return ascending[places] == wanted, places


def is_in(wanted: Ids, ascending: Ids) -> Bools:
    """Return which ids are among the others, which are sorted. Shape ``(n,)``."""
    return look_up(wanted, ascending)[0]


def _as_set(ids: Ids) -> set[bytes]:
    return {msg_id.ljust(16, b"\0") for msg_id in ids.tolist()}


def _read(fs: FileSystem, path: str, record: Record) -> bytes | None:
    """Read a record; ``None`` when its file is gone."""
    try:
        with opened(fs, path) as fd:
            return read_record(fs, fd, record[1], record[2])
    except FileNotFoundError:
        return None


def _body_size(record: bytes | None, msg_id: bytes) -> int:
    """Return the bytes of a record's body, -1 where there is nothing to be held against it."""
    if record is None or states_more(record):
        return -1
    try:
        return len(decode_any(record, msg_id).body)
    except StoreError:
        return -1
