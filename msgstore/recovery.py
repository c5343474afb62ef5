"""Open a store directory: from a snapshot, or from its files alone.

Reads top to bottom as it happens without a snapshot: list the names, scan the files, choose a
record for each referenced message, judge the damage. Only then is anything changed, and each
change leaves all referenced records where a second recovery finds them:

1. The node's clean-stop files and our ``.tmp`` files go (copies of records that are elsewhere).
2. Damaged bytes are copied to ``quarantine/`` (only with ``repair``).
3. Records that RabbitMQ's scanner would not find (after a gap, in an ``.rdt`` file, with a lying
   length) are copied to a new file: ``.tmp``, synced, renamed, directory synced.
4. Torn tails are cut, and the cut is synced before anything is appended there.

Files that hold nothing live after that are not deleted here but by compaction, which first lets
the engine make its indexes durable.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from journal.errors import DamageError, StorageError, StoreError, storage_errors
from journal.findings import Cause, Finding
from journal.findings import Kind as Found
from journal.fs.files import (
    FileSystem,
    created,
    data_ranges,
    make_dirs,
    opened,
    pread_all,
    pwrite_all,
    replace_file,
)
from msgstore.errors import StaleSnapshotError
from msgstore.format import (
    NODE_STATE_NAMES,
    QUARANTINE,
    TAIL_FLAG,
    Check,
    Kind,
    classify_name,
    encode,
    file_name,
    tmp_name,
)
from msgstore.locations import Locations, pack_place, unpack_place
from msgstore.scan import FileScan, read_record, scan_file
from msgstore.snapshot import load_snapshot
from msgstore.summary import Summary

_DEEP_SCAN_BYTES = 1 << 30
"""Up to this much is read in full to look for missing messages; above it, only files with gaps."""
_ATTEMPTS = 200


@dataclass(slots=True)
class Recovered:
    """The state that a store starts with."""

    locations: Locations
    summary: Summary
    next_file: int
    findings: list[Finding] = field(default_factory=list)
    missing: set[bytes] = field(default_factory=set)
    leftovers: list[str] = field(default_factory=list)
    current: int | None = None
    unsynced: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Names:
    records: list[int] = field(default_factory=list)
    tails: list[int] = field(default_factory=list)
    tmps: list[str] = field(default_factory=list)
    node_state: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)

    def highest(self) -> int:
        """The highest number in use, -1 if there is none."""
        tails = [key ^ TAIL_FLAG for key in self.tails]
        return max(self.records + tails + self.taken, default=-1)


class Recovery:
    """One opening of one directory."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        check: Check,
        max_record: int,
        file_size_limit: int,
        repair: bool,
        read_only: bool,
        verify: bool = False,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._check = check
        self._max_record = max_record
        self._limit = file_size_limit
        self._repair = repair
        self._read_only = read_only
        self._verify = verify
        self._scans: dict[int, FileScan] = {}
        self._chosen: dict[bytes, int] = {}
        """Where the record chosen for each message is, packed."""
        self._untrusted: set[bytes] = set()
        """Those of them that were found after a gap."""

    def from_snapshot(self, snapshot: bytes) -> Recovered:
        """Trust a snapshot after a look at the sizes of the files; nothing is scanned.

        Raises :class:`StaleSnapshotError` when the files are not those of the snapshot.
        """
        locations, summary, next_file = load_snapshot(snapshot)
        names = self._list_names()
        expected = {key: entry.size for key, entry in summary}
        found = {key: names.sizes[key] for key in names.records}
        if expected != found:
            differing = sorted(expected.items() ^ found.items())
            name = os.path.join(self._directory, file_name(differing[0][0]))
            raise StaleSnapshotError(f"{name} is not as the snapshot says")
        recovered = Recovered(locations, summary, max(next_file, names.highest() + 1))
        recovered.findings = self._name_findings(names)
        recovered.leftovers = [self._path(key) for key in names.tails]
        if not self._read_only:
            self._remove(names.node_state + names.tmps)
            recovered.current = self._choose_current(summary)
        return recovered

    def from_files(self, references: Mapping[bytes, int]) -> Recovered:
        """Scan everything and locate each message that has references.

        Raises :class:`DamageError` for damage, unless ``repair`` or ``read_only``;
        :class:`StorageError`. Nothing has been changed then.
        """
        if not all(count > 0 for count in references.values()):
            references = {msg_id: count for msg_id, count in references.items() if count > 0}
        names = self._list_and_scan(references)
        missing = {msg_id for msg_id in references if msg_id not in self._chosen}
        findings = self._name_findings(names)
        for key in names.tails + names.records:
            findings.extend(self._scans[key].gaps)
        damage = next((finding for finding in findings if finding.cause is Cause.DAMAGE), None)
        if damage is not None and not self._repair and not self._read_only:
            raise DamageError(damage.path, damage.offset, damage.what)
        recovered = Recovered(Locations(), Summary(), names.highest() + 1, findings, missing)
        if not self._read_only:
            self._remove(names.node_state + names.tmps)
            self._set_aside()
            self._move_to_safety(recovered)
            recovered.leftovers = [self._path(key) for key in names.tails]
        self._fill(recovered, names, references)
        if not self._read_only:
            for key in names.records:
                self._cut_tail(recovered, key)
            recovered.unsynced = set(names.records)
            recovered.current = self._choose_current(recovered.summary)
        return recovered

    # -- reading ------------------------------------------------------------------------------

    def _path(self, key: int) -> str:
        return os.path.join(self._directory, file_name(key))

    def _list_names(self) -> _Names:
        names = _Names()
        try:
            if not self._read_only:
                make_dirs(self._fs, self._directory)
            for name in sorted(self._fs.listdir(self._directory)):
                self._sort_name(name, names)
        except OSError as error:
            if not (self._read_only and isinstance(error, FileNotFoundError)):
                raise StorageError(self._directory, "can't be listed", error) from error
        names.records.sort()
        names.tails.sort()
        return names

    def _sort_name(self, name: str, names: _Names) -> None:
        known = classify_name(name)
        if known is None:
            if name in NODE_STATE_NAMES:
                names.node_state.append(name)
            elif name != QUARANTINE:
                names.foreign.append(name)
            return
        kind, key = known
        try:
            status = self._fs.stat(os.path.join(self._directory, name))
        except FileNotFoundError:
            return  # deleted since it was listed
        if not stat.S_ISREG(status.st_mode):
            names.foreign.append(name)
            names.taken.append(key & ~TAIL_FLAG)
        elif kind is Kind.TMP:
            names.tmps.append(name)
        else:
            (names.records if kind is Kind.RECORDS else names.tails).append(key)
            names.sizes[key] = status.st_size

    def _name_findings(self, names: _Names) -> list[Finding]:
        def found(name: str, what: str, kind: Found = Found.UNFINISHED) -> Finding:
            path = os.path.join(self._directory, name)
            return Finding(path, 0, 0, Cause.CRASH, what, "nothing is lost", kind)

        return [
            *(
                found(name, "a foreign file, left alone", Found.FOREIGN_FILE)
                for name in names.foreign
            ),
            *(found(name, "copies of an unfinished compaction") for name in names.tmps),
            *(
                found(file_name(key), "copies of an unfinished compaction by RabbitMQ")
                for key in names.tails
            ),
        ]

    def _list_and_scan(self, references: Mapping[bytes, int]) -> _Names:
        """List and scan the files; again, if one is gone, because a process that has the store
        open for writing has moved its records to another meanwhile."""
        for _ in range(_ATTEMPTS if self._read_only else 1):
            names = self._list_names()
            self._scans.clear()
            try:
                self._scan(names, references)
            except StorageError as error:
                failure = error
                if error.errno != errno.ENOENT:
                    break
            else:
                return names
        raise failure

    def _scan(self, names: _Names, references: Mapping[bytes, int]) -> None:
        """Scan all files and choose the records. Where some are missing, scan again and read all:
        a wrong length may have swallowed a record without a trace."""
        # Of a process that died only the last file can hold a record that is not whole.
        deep = self._newest(names) if self._verify else set(names.records[-1:])
        self._scan_all(names, references, deep)
        if len(self._chosen) == len(references):
            return
        all_of_them = self._repair or sum(names.sizes.values()) <= _DEEP_SCAN_BYTES
        gaps = {key for key, scan in self._scans.items() if scan.gaps}
        deep |= set(names.records + names.tails) if all_of_them else gaps
        self._scan_all(names, references, deep)

    @staticmethod
    def _newest(names: _Names) -> set[int]:
        """The last file, and as many before it as may be read in full."""
        newest: set[int] = set()
        size = 0
        for key in reversed(names.records):
            size += names.sizes[key]
            if newest and size > _DEEP_SCAN_BYTES:
                break
            newest.add(key)
        return newest

    def _scan_all(self, names: _Names, references: Mapping[bytes, int], deep: set[int]) -> None:
        self._chosen.clear()
        self._untrusted.clear()
        for key in names.records + names.tails:
            scan = self._scans[key] = self._scan_one(key, key in deep)
            self._choose(key, scan, references)
            scan.records.clear()  # a million of them are 200 MB

    def _scan_one(self, key: int, verify: bool) -> FileScan:
        return scan_file(
            self._fs,
            self._path(key),
            check=self._check,
            max_record=self._max_record,
            verify=verify,
        )

    def _choose(self, key: int, scan: FileScan, references: Mapping[bytes, int]) -> None:
        """One record for each referenced message: within a file the last one, as RabbitMQ does;
        across files any sound one, an ``.rdt`` file's only if there is no other."""
        chosen, untrusted = self._chosen, self._untrusted
        for index, (msg_id, offset, total) in enumerate(scan.records):
            if msg_id not in references:
                continue
            place = pack_place(key, offset, total)
            trusted = index < scan.searched
            if msg_id in chosen and not self._is_better(msg_id, place, trusted):
                continue
            chosen[msg_id] = place
            if trusted:
                untrusted.discard(msg_id)
            else:
                untrusted.add(msg_id)

    def _is_better(self, msg_id: bytes, place: int, trusted: bool) -> bool:
        """Whether to take another copy in place of the chosen one."""
        chosen = self._chosen[msg_id]
        if trusted != (msg_id not in self._untrusted):
            return trusted
        if unpack_place(chosen)[0] == unpack_place(place)[0]:
            return True
        return not self._is_sound(msg_id, chosen) and self._is_sound(msg_id, place)

    def _is_sound(self, msg_id: bytes, place: int) -> bool:
        record = self._read(place)
        return record is not None and self._check(msg_id, record) is None

    def _read(self, place: int) -> bytes | None:
        file, offset, total = unpack_place(place)
        path = self._path(file)
        with storage_errors(path, "can't be read"), opened(self._fs, path) as fd:
            return read_record(self._fs, fd, offset, total)

    # -- changing -----------------------------------------------------------------------------

    def _remove(self, names: Iterable[str]) -> None:
        for name in sorted(names, key=_removal_order):
            path = os.path.join(self._directory, name)
            with storage_errors(path, "can't be deleted"):
                self._fs.unlink(path)

    def _set_aside(self) -> None:
        """Copy damaged bytes to the quarantine directory, durably."""
        damaged = [
            (key, gap)
            for key, scan in self._scans.items()
            for gap in scan.gaps
            if gap.cause is Cause.DAMAGE
        ]
        if not damaged:
            return
        quarantine = os.path.join(self._directory, QUARANTINE)
        with storage_errors(quarantine, "can't set damaged bytes aside"):
            make_dirs(self._fs, quarantine)
            for key, gap in damaged:
                with opened(self._fs, self._path(key)) as fd:
                    stop = gap.offset + gap.length
                    for start, end in data_ranges(self._fs, fd, gap.offset, stop):
                        data = pread_all(self._fs, fd, end - start, start)
                        name = f"{file_name(key)}.{start}"
                        replace_file(self._fs, os.path.join(quarantine, name), data)

    def _move_to_safety(self, recovered: Recovered) -> None:
        """Copy the chosen records of every file that RabbitMQ would not read in full."""
        unsafe = {key for key, scan in self._scans.items() if key & TAIL_FLAG or not scan.orderly}
        moving: dict[int, list[bytes]] = {}
        if not unsafe:
            return
        for msg_id, place in self._chosen.items():
            file = unpack_place(place)[0]
            if file in unsafe:
                moving.setdefault(file, []).append(msg_id)
        for key in sorted(moving):
            self._copy(recovered, moving[key])

    def _copy(self, recovered: Recovered, msg_ids: list[bytes]) -> None:
        key = recovered.next_file
        recovered.next_file += 1
        target = self._path(key)
        tmp = os.path.join(self._directory, tmp_name(key))
        scan = FileScan(target, 0)
        with storage_errors(tmp, "can't move records to safety"):
            with created(self._fs, tmp) as fd:
                for msg_id in msg_ids:
                    record = self._read(self._chosen[msg_id])
                    if record is None:
                        raise StoreError(f"{self._directory}: a file was cut during recovery")
                    framed = encode(msg_id, record)
                    pwrite_all(self._fs, fd, framed, scan.size)
                    self._chosen[msg_id] = pack_place(key, scan.size, len(framed))
                    scan.size += len(framed)
                self._fs.fdatasync(fd)
            self._fs.rename(tmp, target)
            self._fs.sync_dir(self._directory)
        scan.end = scan.size
        self._scans[key] = scan

    def _fill(self, recovered: Recovered, names: _Names, references: Mapping[bytes, int]) -> None:
        """Make the index and the summaries of the chosen records."""
        summary = recovered.summary
        for key, scan in self._scans.items():
            if self._read_only or not key & TAIL_FLAG:
                summary.add_file(key, scan.size)
        live: dict[int, int] = dict.fromkeys(self._scans, 0)
        for place in self._chosen.values():
            file, _, total = unpack_place(place)
            live[file] += total
        for key, size in live.items():
            if size:
                summary.change_live(summary.files[key], size)
        recovered.locations.take(self._chosen, references)
        self._chosen = {}

    def _cut_tail(self, recovered: Recovered, key: int) -> None:
        scan = self._scans[key]
        if scan.size == scan.end or not scan.orderly:
            return  # a disorderly file has no live record any more and is deleted soon
        path = self._path(key)
        failing = storage_errors(path, "can't be cut after its last record")
        with failing, opened(self._fs, path, os.O_RDWR) as fd:
            self._fs.truncate(fd, scan.end)
            self._fs.fdatasync(fd)
        recovered.summary.resize(key, scan.end)

    def _choose_current(self, summary: Summary) -> int | None:
        """The file to append to: the last one, if it is live and has room."""
        key = max(summary.files, default=None)
        if key is None:
            return None
        entry = summary.files[key]
        return key if entry.live and entry.size < self._limit else None


def _removal_order(name: str) -> tuple[int, str]:
    """The node believes its other files only if ``clean.dot`` is there, so that goes first."""
    return (NODE_STATE_NAMES.index(name) if name in NODE_STATE_NAMES else -1, name)
