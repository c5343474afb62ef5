"""Look into a store directory without touching it: ours, or a RabbitMQ virtual host's.

The directory may be in use (by our engine or a node), closed, or left by a crash. Nothing is ever
written and no lock is taken. Of a queue in use one moment is shown, see
:mod:`qindex.recovery.point_in_time`.

A reader shows the messages that our engine or a node would deliver, in that order, and the ones
it would move to a dead-letter queue. It does not show messages that it would drop (acknowledged,
expired, transient after a restart). Damage is reported in ``findings``; reading goes on after it.

>>> import qindex, tempfile
>>> directory = tempfile.mkdtemp()
>>> with qindex.open(directory) as engine:
...     _ = engine.queue("orders").publish(b"first", key="o-17")
...     reader = StoreReader(directory).queue("orders")
...     [(row.seq_id, row.key, row.body) for row in reader.entries()]
[(0, 'o-17', b'first')]
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError, StorageError, UsageError, storage_errors
from journal.findings import Cause, Finding
from journal.findings import Kind as Found
from journal.fs.beneath import beneath
from journal.fs.files import REAL, FileSystem, PathLike, checked_path, names_in, read_optional
from journal.locks.directory_lock import LockWatch, is_held
from journal.memory.arrays import Bools
from journal.poison import Poison
from qindex.format import layout
from qindex.format.priorities import SHIFT
from qindex.format.rabbitmq.names import (
    MAX_PRIORITY,
    directory_name,
)
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.format.settings import NO_SETTINGS, QueueSettings
from qindex.format.transactions import pending_in
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.index.pair_scan import Depth
from qindex.index.seq_ids import SeqFile
from qindex.recovery import store_directory
from qindex.recovery.columns import Columns
from qindex.recovery.delivery_rules import ALL_REDELIVERED, DirectoryRules
from qindex.recovery.point_in_time import BusyError
from qindex.recovery.settings_file import read_settings
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.recovery.snapshot import RestingQueue, read_snapshot
from qindex.view.backlog import ready_and_unacked
from qindex.view.delayed import Delayed
from qindex.view.entry_count import settle_entry_count
from qindex.view.freed_room import frees_room_inside
from qindex.view.queue_view import Location, QueueView, Row
from qindex.view.rabbitmq_vhost import (
    QueueDirectory,
    Vhost,
    delivery_order,
    group_queues,
    named,
    raw_name,
    refuse_node_directory,
)
from qindex.view.stored_messages import (
    MessageStoreSummary,
    StorePlace,
    stored_ids,
    summarise_store,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BusyError",
    "Location",
    "MessageStoreSummary",
    "QueueReader",
    "QueueSummary",
    "Row",
    "StoreReader",
    "lacks_its_name",
]

Kind = Literal["qindex", "rabbitmq"]


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One queue at one moment.

    ``messages``: all that are in it. ``delayed``: messages not due yet, and ``next_due``:
    when the first of them is, in microseconds since 1970 UTC. ``ready``: messages that wait for a
    consumer; ``unacked``: messages with one (:mod:`qindex.view.backlog`); both ``None`` where
    only the process tells that has the store open. ``delivered_before``: messages that were
    delivered and come again as redelivered if they are not acknowledged; ``None`` where a node was
    killed, which does not keep
    it. ``bytes``: of the bodies of all. ``file_bytes``: of journal and segment files,
    ``journal_bytes``: of the journal alone. ``segments``: segment files. ``versions``: of
    RabbitMQ's queue files, as the files tell (both: it was being converted); none for ours, and
    where a queue has no files. ``journal_entries``: records in the journal. ``settings``: those
    that are kept with the queue; none where they are damaged.
    """

    name: str
    messages: int
    ready: int | None
    unacked: int | None
    delivered_before: int | None
    bytes: int
    file_bytes: int
    journal_bytes: int
    segments: int
    journal_entries: int
    next_seq_id: int
    settings: QueueSettings = NO_SETTINGS
    versions: tuple[int, ...] = ()
    delayed: int = 0
    next_due: int | None = None


class QueueReader:
    """One queue of a store. Made by :meth:`StoreReader.queue`.

    ``directories``: of the queue, or of its sub-queues in order of delivery.
    Each call of :meth:`entries` or :meth:`summary` looks anew. ``findings`` has what the last
    one met, so far as it went.
    """

    def __init__(self, store: StoreReader, name: str, directories: list[QueueDirectory]) -> None:
        self.name = name
        self.directories = directories
        self._store = store
        self._views: list[QueueView] = []
        self._in_settings: list[Finding] = []

    @property
    def findings(self) -> list[Finding]:
        """Findings in the queue's files."""
        found = [finding for view in self._views for finding in view.findings]
        return found + self._in_settings

    def entries(self) -> Iterator[Row]:
        """Yield the messages in order of delivery.

        In a store of qindex they have the seq_ids that the queue gave them. In a node's directory a
        sub-queue of a priority queue has its own. All sub-queues are pinned at the first step;
        memory does not grow with the backlog (one segment and the journal at a time). Messages that
        are acknowledged, and whose segments are deleted, before this comes to them, are left out.
        Raises :class:`UsageError` when the queue is not there any more,
        :class:`BusyError`, :class:`StorageError`.
        """
        for view, base in self._based():
            for row in view.rows():
                yield replace(row, seq_id=base + row.seq_id) if base else row

    def __iter__(self) -> Iterator[Row]:
        return self.entries()

    def batches(self, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the messages as Arrow record batches, in the order and with the seq_ids of
        :meth:`entries`.

        ``columns``: the wanted ones of :data:`qindex.view.message_batches.MESSAGES`, none for
        all. What only others need is not read. Needs pyarrow. Raises as :meth:`entries`, and
        :class:`UsageError` for a column that there is not.
        """
        from qindex.view.arrow import choose_columns
        from qindex.view.message_batches import MESSAGES, MessageBatches

        table = choose_columns(MESSAGES, columns)
        for view, base in self._based():
            of_view = MessageBatches(view, table, self._store.directory, self.name, base=base)
            try:
                for number in view.numbers:
                    found = view.columns(number)
                    if found is not None:
                        yield from of_view.of(found)
            finally:
                view.close()

    def summary(self) -> QueueSummary:
        """Count. O(size of the files), without looking into messages. Raises as
        :meth:`entries`."""
        total = delivered = size = delayed = 0
        dues: list[int] = []
        known = True
        next_seq_id = 0
        views = self._pin()
        for view, one in zip(views, self.directories, strict=True):
            rules = view.rules
            later = self._store.delayed(one)
            known &= rules.delivered_known
            highest = -1
            seen = 0
            for number in view.numbers:
                columns = view.columns(number, counting=True)
                if columns is None:
                    continue
                again = columns.redelivered
                there = ~self._store.gone(view, columns)
                total += int(there.sum())
                delivered += int((again & there).sum())
                size += int(columns.sizes[there].sum())
                later.add(view, columns, there)
                highest = number
                seen = int(columns.seqs[-1]) + 1
            delayed += later.count
            dues += [] if later.next_due is None else [later.next_due]
            seen = (highest + 1) * view.entry_count if rules.recovers else max(seen, view.seen)
            if not one.priority or self._store.vhost is not None:
                next_seq_id = max(next_seq_id, self._store.next_seq(one, rules, seen))
        delivered_before = delivered if known else None
        ready, unacked = ready_and_unacked(total - delayed, delivered_before, self._store.in_use)
        return QueueSummary(
            name=self.name,
            messages=total,
            ready=ready,
            unacked=unacked,
            delivered_before=delivered_before,
            bytes=size,
            file_bytes=sum(view.file_bytes for view in views),
            journal_bytes=sum(view.journal_bytes for view in views),
            segments=sum(view.segment_files for view in views),
            journal_entries=sum(view.journal_entries for view in views),
            next_seq_id=next_seq_id,
            settings=self.settings_if_sound(),
            versions=tuple(sorted({one for view in views for one in view.versions})),
            delayed=delayed,
            next_due=min(dues, default=None),
        )

    def summary_if_there(self) -> QueueSummary | None:
        """Count the messages. Return None if the queue no longer exists."""
        try:
            return self.summary()
        except UsageError:
            return None

    def settings(self) -> QueueSettings:
        """Read the queue's settings; a RabbitMQ queue has none here. Raises
        :class:`DamageError`, :class:`StorageError`."""
        return self._store.settings_of(self.directories[0])

    def settings_if_sound(self) -> QueueSettings:
        """Read the queue's settings; none where they are damaged, which is a finding."""
        try:
            return self.settings()
        except DamageError as error:
            lost = "it is shown without them"
            self._in_settings = [
                Finding(error.path, 0, 0, Cause.DAMAGE, error.what, lost, Found.CHECKSUM)
            ]
            return NO_SETTINGS

    def _based(self) -> Iterator[tuple[QueueView, int]]:
        """Pin the queue. Yield each sub-queue with the number added to its seq_ids."""
        for view, one in zip(self._pin(), self.directories, strict=True):
            yield view, 0 if self._store.vhost is not None else (one.priority or 0) << SHIFT

    def _pin(self) -> list[QueueView]:
        self._views = []
        self._in_settings = []
        try:
            for one in self.directories:
                self._views.append(self._store.pin(one))
        except FileNotFoundError as error:
            raise UsageError(f"{self._store.directory}: queue {self.name!r} is gone") from error
        return self._views


class StoreReader:
    """A store directory, read-only.

    ``kind``: ``"qindex"`` or ``"rabbitmq"``. ``findings``: those outside the queues' own files.
    ``marker``: the marker's content of a store of qindex (given, where the file can't be read any
    more); ``vhost``: that of a virtual host's own files. The other one is ``None``.
    ``segment_entry_count``: of a virtual host whose ``.config`` does not say it.
    Raises :class:`NotAStoreError` for a file or a directory of something else (it names
    the virtual hosts of a node's directory), :class:`StorageError` when the system refuses, and
    :class:`UsageError` where ``segment_entry_count`` has to be given.
    """

    def __init__(
        self,
        directory: PathLike,
        fs: FileSystem = REAL,
        *,
        marker: layout.StoreMarker | None = None,
        segment_entry_count: int | None = None,
    ) -> None:
        self.directory: str = os.path.abspath(checked_path(directory))
        self._fs = fs = beneath(fs, self.directory)
        self.vhost: Vhost | None = None
        self._own_findings: list[Finding] = []
        self._lock_watch = LockWatch(fs, os.path.join(self.directory, layout.LOCK))
        self._snapshot_mark: tuple[int, int, int] | None = None
        self._snapshot: dict[str, RestingQueue] = {}
        try:
            refuse_node_directory(fs, self.directory)
            self.marker: layout.StoreMarker | None = marker or store_directory.find_marker(
                fs, self.directory
            )
            if self.marker is None:
                self.vhost = Vhost.read(fs, self.directory)
                if self.vhost.assumed:
                    settle_entry_count(fs, self.vhost, self.place, segment_entry_count)
        except OSError as error:
            raise self._unreadable(error) from error

    @property
    def kind(self) -> Kind:
        """Tell the maker of the directory."""
        return "qindex" if self.vhost is None else "rabbitmq"

    @property
    def findings(self) -> list[Finding]:
        """Findings beside the queues' own files."""
        return list(self._own_findings if self.vhost is None else self.vhost.findings)

    def queue_names(self) -> list[str]:
        """Return the queues' names, sorted; a directory's where the queue's is unknown."""
        return list(group_queues(self.directories()))

    def queues(self) -> list[QueueSummary]:
        """Summarise all queues, sorted by name; a queue deleted meanwhile is left out.
        O(size of the store's index files)."""
        return [summary for reader in self.readers() if (summary := reader.summary_if_there())]

    def readers(self) -> list[QueueReader]:
        """Return a reader for each queue, sorted by name."""
        groups = group_queues(self.directories())
        return [QueueReader(self, name, group) for name, group in groups.items()]

    def message_store(self) -> MessageStoreSummary | None:
        """Summarise the persistent message store; ``None`` where there is none.

        O(size of the index files + messages in the store): its files are scanned. Raises
        :class:`BusyError`, :class:`StorageError`.
        """
        directory = os.path.join(self.directory, PERSISTENT_DIRECTORY)
        try:
            self._fs.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(error) from error
        references: Counter[bytes] = Counter()
        for one in self.directories():
            with contextlib.suppress(FileNotFoundError):  # the queue was deleted just now
                view = self.pin(one)
                ids = view.stored_ids()
                if view.pinned.pairs and not self.rules(one).clean:
                    there = np.isin(np.array(ids, "S16"), self._stored_now)
                    ids = [msg_id for msg_id, found in zip(ids, there, strict=True) if found]
                references.update(ids)
        return summarise_store(self._fs, directory, references)

    def queue(self, name: str) -> QueueReader:
        """Return the queue of that name. Raises :class:`UsageError` when there is none.

        O(1): the directory's name is a hash of the queue's. A directory's name, or that of a queue
        whose directory has another name than it should, takes a look at all of them.
        """
        try:
            chosen = self._hashed(name)
        except OSError as error:
            raise self._unreadable(error) from error
        if not chosen:
            chosen = [one for one in self.directories() if name in (one.directory, one.name)]
            chosen.sort(key=delivery_order)
        if not chosen:
            raise UsageError(f"{self.directory}: there is no queue {name!r}")
        return QueueReader(self, name, chosen)

    def _hashed(self, name: str) -> list[QueueDirectory]:
        if self.vhost is not None:
            return self.vhost.hashed(self._fs, name)
        assert self.marker is not None
        vhost, raw = self.marker.vhost, raw_name(name)
        wanted = [directory_name(vhost, raw)]
        if list(self._own_directories([directory_name(vhost, raw, 0)])):
            wanted += [directory_name(vhost, raw, one) for one in range(MAX_PRIORITY, -1, -1)]
        return sorted(self._own_directories(wanted), key=delivery_order)

    # -- for the queues' readers ----------------------------------------------------------------

    def rules(self, one: QueueDirectory) -> DirectoryRules:
        """Tell how the entries of a queue directory are to be read."""
        if self.vhost is not None:
            return self.vhost.rules(one.directory)
        assert self.marker is not None
        try:
            moves_expired = self.settings_of(one).dead_letter is not None
        except DamageError:
            moves_expired = False  # the code that shows its settings reports them
        if self.marker.in_version2:
            return DirectoryRules(
                self.marker.entry_count,
                redelivered_below=ALL_REDELIVERED,
                delivered_known=False,
                keeps_expired=moves_expired,
                clean=True,
                journalled_pairs=True,
            )
        return DirectoryRules(
            self.marker.entry_count, keeps_expired=moves_expired, vouched=not self._with_a_node
        )

    @cached_property
    def _with_a_node(self) -> bool:
        try:
            return store_directory.was_with_a_node(self._fs, self.directory)
        except OSError as error:
            raise self._unreadable(error) from error

    def in_use(self) -> bool:
        """Return whether a process has the store open, or may have: of a node that was not stopped
        in order, nobody knows. Raises :class:`StorageError`."""
        if self.vhost is not None:
            return self.vhost.not_clean is not None
        try:
            # What an engine writes last when it closes, and removes before it writes anything.
            if SNAPSHOT in self._fs.listdir(self.directory):
                return False
            return is_held(self._fs, os.path.join(self.directory, layout.LOCK))
        except OSError as error:
            raise self._unreadable(error) from error

    def may_be_written(self) -> bool:
        """Return whether a writer may be at work now: then a torn record may be half written."""
        return self._lock_watch.may_be_held() if self.vhost is None else self.in_use()

    def settings_of(self, one: QueueDirectory) -> QueueSettings:
        """Read the settings in a queue directory; a RabbitMQ node puts none there."""
        if self.vhost is not None:
            return QueueSettings()
        if one.priority:
            assert self.marker is not None
            one = QueueDirectory(directory_name(self.marker.vhost, raw_name(one.name), 0), one.name)
        path = self.path_of(one)
        with storage_errors(path, "the settings can't be read"):
            return read_settings(self._fs, path)

    def delayed(self, one: QueueDirectory) -> Delayed:
        """Return what counts the delayed messages of a queue directory. Raises
        :class:`StorageError`."""
        path = self.path_of(one)
        with storage_errors(path, "the due times can't be read"):
            return Delayed(self._fs, path)

    def pin(self, one: QueueDirectory, depth: Depth = Depth.READ) -> QueueView:
        """Pin a queue directory as it is now. Raises :class:`FileNotFoundError`, and as
        :func:`qindex.recovery.point_in_time.pin_queue`."""
        pinned = QueueView(
            self._fs,
            self.path_of(one),
            self.rules(one),
            priority=one.priority,
            place=self.place,
            busy=self.may_be_written,
            depth=depth,
        )
        if self.vhost is None:
            # Later than the queue: every message published by then is noted by now.
            path = os.path.join(self.directory, layout.TRANSACTIONS)
            with storage_errors(path, "can't be read"):
                data = read_optional(self._fs, path)
            if data:
                pending = pending_in(data, one.name, one.priority or 0)
                pinned.rules = replace(pinned.rules, pending=pending)
        return pinned

    @property
    def place(self) -> StorePlace:
        """Where the message store is."""
        return StorePlace(os.path.join(self.directory, PERSISTENT_DIRECTORY), self._has_holes)

    @cached_property
    def _has_holes(self) -> bool:
        if self.vhost is None:
            return False
        store = os.path.join(self.directory, PERSISTENT_DIRECTORY)
        try:
            return frees_room_inside(self._fs, self.directory, store, layout.QUEUES)
        except OSError as error:
            raise self._unreadable(error) from error

    def gone(self, view: QueueView, columns: Columns) -> Bools:
        """Tell which entries a node that was killed would drop, for their messages are not in the
        message store. Shape ``(n,)``. The first call reads the store's headers; memory: 16 bytes
        for each message in it. Raises :class:`StorageError`."""
        rows = view.doubtful(columns)
        gone = np.zeros(len(columns.seqs), np.bool_)
        if len(rows):
            gone[rows] = ~np.isin(columns.ids[rows].view("S16").ravel(), self._stored_now)
        return gone

    @cached_property
    def _stored_now(self) -> npt.NDArray[np.bytes_]:
        return stored_ids(self._fs, os.path.join(self.directory, PERSISTENT_DIRECTORY))

    def next_seq(self, one: QueueDirectory, rules: DirectoryRules, seen: int) -> int:
        """Tell the seq_id of the queue's next publish; ``seen``: one above the highest there is."""
        if self.vhost is not None:
            return rules.next_seq if rules.next_seq is not None else seen
        resting = self._resting().get(one.directory)
        if resting is not None:
            return max(resting.next_seq, seen)
        path = os.path.join(self.path_of(one), SEQ_FILE_NAME)
        return SeqFile(self._fs, path, Poison()).next_after_crash(seen)

    def _resting(self) -> dict[str, RestingQueue]:
        """Return the queues of the snapshot, none where there is none. It is read again only when
        it has changed: it names all queues, and each of them asks."""
        try:
            stat = self._fs.stat(os.path.join(self.directory, SNAPSHOT))
            mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            mark = None
        if mark != self._snapshot_mark:
            queues = os.path.join(self.directory, layout.QUEUES)
            snapshot = read_snapshot(self._fs, self.directory, queues)
            self._snapshot = {} if snapshot is None else snapshot[0]
            self._snapshot_mark = mark
        return self._snapshot

    def path_of(self, one: QueueDirectory) -> str:
        """The path of a queue's directory."""
        return os.path.join(self.directory, layout.QUEUES, one.directory)

    def directories(self) -> list[QueueDirectory]:
        """List the queues' directories. Raises :class:`StorageError`."""
        try:
            if self.vhost is not None:
                return self.vhost.directories(self._fs)
            self._own_findings = []
            root = os.path.join(self.directory, layout.QUEUES)
            return list(self._own_directories(sorted(names_in(self._fs, root))))
        except OSError as error:
            raise self._unreadable(error) from error

    def _own_directories(self, names: list[str]) -> Iterator[QueueDirectory]:
        root = os.path.join(self.directory, layout.QUEUES)
        for directory in names:
            if directory.endswith(layout.DELETED_SUFFIX):
                continue
            path = os.path.join(root, directory, layout.QUEUE_NAME)
            try:
                raw = read_optional(self._fs, path)
                if raw is None and not lacks_its_name(self._fs, os.path.dirname(path)):
                    # It may have been made between the two looks.
                    raw = read_optional(self._fs, path)
                    if raw is None:
                        continue
            except (FileNotFoundError, NotADirectoryError):
                continue
            one = named(path, directory, raw, self._own_findings)
            yield one or QueueDirectory(directory, directory)

    def _unreadable(self, error: OSError) -> StorageError:
        return StorageError(self.directory, "the store can't be read", error)


def lacks_its_name(fs: FileSystem, directory: str) -> bool:
    """Return whether a queue's directory has content and lacks the queue's name. A queue whose
    creation was cut short or is under way does not count, nor does a queue that is being deleted.
    Raises :class:`OSError`."""
    # Twice: a directory that was opened before its deletion may be read half empty.
    return all(_has_content_alone(fs.listdir(directory)) for _ in range(2))


def _has_content_alone(names: list[str]) -> bool:
    return layout.QUEUE_NAME not in names and not set(names) <= {layout.QUEUE_NAME + ".tmp"}
