"""Check everything in a store directory, ours or a RabbitMQ node's, and change nothing.

It may run beside a process that has the store open; the work of that process is not a finding.
Leftovers of a crash, which the next open repairs, are findings with the cause
:data:`journal.findings.Cause.CRASH`: they are not damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from journal.errors import storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.beneath import beneath, open_to_others
from journal.fs.files import REAL, FileSystem, PathLike, checked_path, read_optional
from journal.locks.directory_lock import is_held, read_owner
from qindex.format import layout
from qindex.format.rabbitmq.names import directory_name
from qindex.format.transactions import damage_in
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.index.pair_scan import Depth
from qindex.recovery.columns import Entries, take_rows
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.recovery.snapshot import unpack_snapshot
from qindex.tools.marker_check import check_marker
from qindex.tools.names_check import check_names
from qindex.tools.queue_check import CheckedQueue, check_queue
from qindex.tools.snapshot_check import check_messages, check_queues
from qindex.tools.store_check import StoreCheck
from qindex.view.rabbitmq_vhost import find_vhosts, group_queues, raw_name
from qindex.view.reader import StoreReader

_BLANK = b"\0 \t\r\n"
"""A lock file that nobody wrote to, or whose writing did not reach the disk."""
_LONGER_THAN_AN_OWNER = 4096
"""Bytes. No crash leaves a lock file this long: a pid and a host are shorter."""


@dataclass(slots=True)
class Figures:
    """The figures of a check. ``entries``: index entries not acknowledged, ``bytes`` of their
    bodies. ``records``: messages in the message stores, ``store_bytes`` of their files,
    ``live_bytes`` of records that entries name; the rest is garbage."""

    stores: int = 0
    queues: int = 0
    entries: int = 0
    bytes: int = 0
    records: int = 0
    store_bytes: int = 0
    live_bytes: int = 0


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of :func:`verify`. ``findings``: leftovers of a crash, and damage."""

    directory: str
    findings: list[Finding]
    figures: Figures

    @property
    def damage(self) -> list[Finding]:
        """The findings that no crash explains."""
        return [one for one in self.findings if one.cause is Cause.DAMAGE]

    @property
    def sound(self) -> bool:
        """Whether there is no damage."""
        return not self.damage


@dataclass(slots=True)
class Verification:
    """A check under way: ``figures`` grow while :meth:`findings` is gone through.
    ``segment_entry_count``: see :func:`verify`."""

    directory: str
    fs: FileSystem = REAL
    figures: Figures = field(default_factory=Figures)
    segment_entry_count: int | None = None

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of all stores in the directory: of one of qindex, of a virtual host's,
        or of all virtual hosts of a RabbitMQ node's directory.

        Raises :class:`NotAStoreError`, :class:`StorageError`,
        :class:`qindex.recovery.point_in_time.BusyError`.
        """
        directory = os.path.abspath(self.directory)
        self.fs = beneath(self.fs, directory)
        marker, findings = check_marker(self.fs, directory)
        if marker is None and layout.QUEUES not in self.fs.listdir(directory):
            vhosts = find_vhosts(self.fs, directory)
            for vhost in vhosts:
                yield from self._store(os.path.join(directory, vhost), None)
            if vhosts:
                return
        yield from findings
        yield from self._store(directory, marker)

    def _store(self, directory: str, marker: layout.StoreMarker | None) -> Iterator[Finding]:
        count = self.segment_entry_count
        reader = StoreReader(directory, self.fs, marker=marker, segment_entry_count=count)
        with storage_errors(directory, "the store can't be read"):
            yield from StoreVerification(self.fs, reader, self.figures).findings()


@dataclass(slots=True)
class StoreVerification:
    """The check of one store, in the order in which its methods are.

    ``for_copy``: the caller holds the store's lock, so that no writer is at work, and messages that
    an engine does not find, and a copy can save, count as found.
    ``checked``, ``messages``: the queues and the persistent message store, after
    :meth:`findings`.
    """

    fs: FileSystem
    reader: StoreReader
    figures: Figures
    for_copy: bool = False
    in_use: bool = False
    checked: list[CheckedQueue] = field(default_factory=list)
    messages: StoreCheck | None = None

    def findings(self) -> Iterator[Finding]:
        """Yield the findings. Raises as :meth:`Verification.findings`, and :class:`OSError`."""
        directory = self.reader.directory
        self.figures.stores += 1
        snapshot_path = os.path.join(directory, SNAPSHOT)
        snapshot = read_optional(self.fs, snapshot_path)
        lock = os.path.join(directory, layout.LOCK)
        self.in_use = not self.for_copy and is_held(self.fs, lock)
        marker = self.reader.marker
        yield from check_names(
            self.fs,
            directory,
            ours=marker is not None,
            pairs=marker is None or marker.in_version2,
            in_use=self.in_use,
        )
        if self.reader.vhost is None and not self.for_copy:
            yield from open_to_others(self.fs, directory)
        yield from self._lock()
        yield from self._transactions()
        yield from self._queues()
        yield from self._priorities()
        store = self.messages = self._store_check()
        yield from list(store.findings())
        self.figures.records += store.records
        self.figures.store_bytes += store.size
        self.figures.live_bytes += store.live
        yield from self.reader.findings
        if snapshot is not None and not self.in_use:
            against = list(self._against_snapshot(snapshot_path, store))
            # A process that opened the store meanwhile removed it first.
            if read_optional(self.fs, snapshot_path) == snapshot:
                yield from against

    def _lock(self) -> Iterator[Finding]:
        path = os.path.join(self.reader.directory, layout.LOCK)
        data = read_optional(self.fs, path, _LONGER_THAN_AN_OWNER) or b""
        unwritten = len(data) < _LONGER_THAN_AN_OWNER and not data.strip(_BLANK)
        if not unwritten and read_owner(data) is None:
            what, lost = "the lock file holds no pid", "the next open writes it anew"
            yield Finding(path, 0, len(data), Cause.DAMAGE, what, lost, Kind.RECORD)

    def _transactions(self) -> Iterator[Finding]:
        path = os.path.join(self.reader.directory, layout.TRANSACTIONS)
        yield from damage_in(path, read_optional(self.fs, path) or b"")

    def _queues(self) -> Iterator[Finding]:
        for queue in self.reader.directories():
            checked = CheckedQueue(queue)
            closed = self._is_clean()
            yield from check_queue(self.fs, self.reader, checked, in_use=self.in_use, closed=closed)
            self.checked.append(checked)
            self.figures.queues += 1
            self.figures.entries += checked.entries
            self.figures.bytes += checked.bytes

    def _priorities(self) -> Iterator[Finding]:
        """Find priority queues of ours that lack the directory of priority 0: it has the settings,
        and an engine knows the queue by it."""
        marker = self.reader.marker
        if marker is None:
            return
        queues = group_queues([checked.queue for checked in self.checked])
        for name, directories in queues.items():
            priorities = {one.priority for one in directories}
            if priorities != {None} and 0 not in priorities:
                place = directory_name(marker.vhost, raw_name(name), 0)
                path = os.path.join(self.reader.directory, layout.QUEUES, place)
                what = f"the directory of priority 0 of queue {name!r} is missing"
                lost = "its messages and the settings are lost"
                yield Finding(path, 0, 0, Cause.DAMAGE, what, lost, Kind.MISSING_FILE)

    def _is_clean(self) -> bool:
        return read_optional(self.fs, os.path.join(self.reader.directory, SNAPSHOT)) is not None

    def _store_check(self) -> StoreCheck:
        runs = {one.queue.directory: one.same_run for one in self.checked}
        clean = self._is_clean()

        def lost_is_damage(entries: Entries) -> bool:
            # A message reaches the operating system before its entry. It reaches the disk before
            # the entry does only where somebody synced both: a flush that the engine makes by
            # itself syncs the entry alone. So a loss of power explains missing messages.
            vhost = self.reader.vhost
            directory = os.path.basename(os.path.dirname(entries.path))
            if vhost is not None:
                # A killed node of version 2 may not have written an acknowledgement yet.
                return not entries.version2 or vhost.rules(directory).clean
            return clean or runs[directory]

        entries = [self._lasting(one) for checked in self.checked for one in checked.stored]
        return StoreCheck(
            self.fs,
            os.path.join(self.reader.directory, PERSISTENT_DIRECTORY),
            [one for one in entries if len(one.ids)],
            self.in_use,
            self._named_now,
            lost_is_damage,
            rescue=self.for_copy,
            has_holes=self.reader.place.has_holes,
        )

    def _lasting(self, entries: Entries) -> Entries:
        """Return the entries whose messages should be in the message store. A node keeps transient
        messages elsewhere, and the next open of a store drops them."""
        if self.in_use and self.reader.vhost is None:
            return entries
        return take_rows(entries, entries.persistent)

    def _named_now(self, ids: set[bytes]) -> set[bytes]:
        """Return which of these messages entries name now."""
        found: set[bytes] = set()
        for checked in self.checked:
            before = {id for one in checked.stored for id in map(bytes, one.ids)}
            if not before & ids:
                continue
            now = CheckedQueue(checked.queue)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                for batch in self.reader.pin(checked.queue, Depth.DECODE).all_alive():
                    now.count(batch)
            named = {id for one in now.stored for id in map(bytes, self._lasting(one).ids)}
            found |= named & ids
        return found

    def _against_snapshot(self, path: str, store: StoreCheck) -> Iterator[Finding]:
        directory = self.reader.directory
        data = read_optional(self.fs, path) or b""
        try:
            queues, messages = unpack_snapshot(data, os.path.join(directory, layout.QUEUES))
        except ValueError as error:
            what, lost = f"no snapshot: {error}", "the next open does without it"
            yield Finding(path, 0, len(data), Cause.DAMAGE, what, lost, Kind.CHECKSUM)
            return
        marker = self.reader.marker
        assert marker is not None
        if not marker.in_version2:  # of which the snapshot counts other files
            yield from check_queues(self.fs, queues, self.checked)
        if messages is not None:
            yield from check_messages(directory, messages, store)


def check_store(directory: PathLike, fs: FileSystem = REAL) -> Iterator[Finding]:
    """Check a store directory; see :class:`Verification`."""
    return Verification(checked_path(directory), fs).findings()


def verify(directory: PathLike, *, segment_entry_count: int | None = None) -> VerifyReport:
    """Check everything in a store directory, ours or a RabbitMQ node's, and change nothing.

    May run beside a process that has it open.

    Args:
        directory: The store.
        segment_entry_count: Of a RabbitMQ virtual host that has lost its ``.config``.

    Returns:
        The figures and findings.

    Raises:
        NotAStoreError: It is not a store.
        StorageError: The system refused an operation.
        UsageError: ``segment_entry_count`` is needed.
        BusyError: A writer changed the store faster than it could be read.

    O(size of the store); memory: one segment file and the longest journal, and about 150 bytes for
    each message in the message store.

    Example:
        >>> import qindex, tempfile
        >>> directory = tempfile.mkdtemp()
        >>> with qindex.open(directory) as engine:
        ...     _ = engine.queue("orders").publish(b"first")
        >>> report = qindex.verify(directory)
        >>> report.sound, report.findings, report.figures.entries
        (True, [], 1)
    """
    return verify_store(directory, segment_entry_count=segment_entry_count, fs=REAL)


def verify_store(
    directory: PathLike, *, segment_entry_count: int | None = None, fs: FileSystem
) -> VerifyReport:
    """Check a store as :func:`verify` does, on any file system."""
    check = Verification(checked_path(directory), fs, segment_entry_count=segment_entry_count)
    findings = list(check.findings())
    return VerifyReport(os.path.abspath(checked_path(directory)), findings, check.figures)
