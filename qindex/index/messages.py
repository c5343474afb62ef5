"""The engine's side of the message store: message records in, messages out.

Two stores, as RabbitMQ has them: the persistent one, and the transient one, which is erased at each
open. Either is made when the first message needs it.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from journal.call_lock import CallLock
from journal.errors import DamageError, StoreError
from journal.files import FileSystem
from journal.findings import Finding
from journal.lock_order import Rank
from journal.poison import Poison
from msgstore import CompactionReport, MessageStore, MissingMessageError, StoreStats
from qindex.format import message_record as record_format
from qindex.format.entries import decode_any
from qindex.format.message import Message
from qindex.format.stored_id import COUNTS, RUN_SIZE, make_id
from qindex.index.file_budget import FileBudget
from qindex.options import Options

_log = logging.getLogger("qindex.index")

PERSISTENT_DIRECTORY = "msg_store_persistent"
TRANSIENT_DIRECTORY = "msg_store_transient"


def check_record(msg_id: bytes, record: bytes) -> str | None:
    """Tell why a record from the message store is not what was written under ``msg_id``, or
    ``None`` when it is."""
    if record[:1] == record_format.MAGIC[:1]:
        if record_format.stored_is_sound(msg_id, record):
            return None
        return "the checksum does not hold"
    try:
        decode_any(record, msg_id)
    except StoreError as error:
        return str(error)
    return None


class Messages:
    """The message stores of one engine. Thread-safe.

    ``references`` (message id -> how many index entries) and no ``snapshot``: the files are
    scanned; ``missing`` then has the ids without a sound record, ``findings`` what was met.
    ``verify``: the records are read, too (see :meth:`msgstore.MessageStore.open`).
    Raises as :meth:`msgstore.MessageStore.open`.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        options: Options,
        poison: Poison,
        *,
        references: Mapping[bytes, int] | None,
        snapshot: bytes | None,
        before_reclaim: Callable[[], None],
        verify: bool = False,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._options = options
        self._poison = poison
        self._before_reclaim = before_reclaim
        self._lock = CallLock()
        self._lock.before_waiting = poison.order.add(Rank.STORE_OPENING, self._lock.is_mine)
        self._persistent: MessageStore | None = None
        self._transient: MessageStore | None = None
        self._run = os.urandom(RUN_SIZE)
        self._count = itertools.count()
        self.findings: list[Finding] = []
        self.missing: set[bytes] = set(references or ())
        self.miscounted = False
        """Whether references were lost sight of, in a damaged index: then they have to be counted
        anew at the next open."""
        MessageStore.erase(os.path.join(directory, TRANSIENT_DIRECTORY), fs)
        if snapshot is not None or has_message_store(fs, directory):
            self._persistent = self._open(True, references, snapshot, verify)
            self.findings = self._persistent.findings
            self.missing = self._persistent.missing

    def _open(
        self,
        persistent: bool,
        references: Mapping[bytes, int] | None,
        snapshot: bytes | None,
        verify: bool = False,
    ) -> MessageStore:
        options = self._options
        name = PERSISTENT_DIRECTORY if persistent else TRANSIENT_DIRECTORY
        return MessageStore.open(
            os.path.join(self._directory, name),
            references=references if snapshot is None else None,
            snapshot=snapshot,
            check=check_record,
            poison=self._poison,
            fs=self._fs,
            file_size_limit=options.store_file_bytes,
            max_message_bytes=options.max_message_bytes + record_format.MAX_OVERHEAD,
            max_open_files=FileBudget(options.max_open_files).store_files,
            garbage_ratio=options.garbage_ratio,
            compaction_bytes_per_second=options.compaction_bytes_per_second,
            # No crash is to bring a transient message back, so its acks need not be durable.
            before_reclaim=self._before_reclaim if persistent else None,
            background=options.background,
            repair=options.repair,
            verify=verify,
        )

    def _store(self, persistent: bool) -> MessageStore:
        store = self._persistent if persistent else self._transient
        if store is not None:
            return store
        with self._lock:
            if persistent:
                if self._persistent is None:
                    self._persistent = self._open(True, {}, None)
                return self._persistent
            if self._transient is None:
                self._transient = self._open(False, {}, None)
            return self._transient

    @property
    def in_use(self) -> bool:
        """Whether any message is, or was since open, in a message store."""
        return self._persistent is not None or self._transient is not None

    def new_id(self, size: int) -> bytes:
        """Give an id for a message with a body of ``size`` bytes, that no other message has; see
        :mod:`qindex.format.stored_id`."""
        count = next(self._count)
        if count and not count % COUNTS:
            self._run = os.urandom(RUN_SIZE)
        return make_id(self._run, count % COUNTS, size)

    def write(self, items: list[tuple[bytes, bytes, int]], *, persistent: bool) -> None:
        """Store records: (message id, record, references) of each. In the operating system on
        return; all or none. Raises as :meth:`msgstore.MessageStore.write_many`."""
        store = self._store(persistent)
        if len(items) == 1:
            store.write(*items[0])
        else:
            store.write_many(items)

    def put(self, front: bytes, body: bytes) -> bytes:
        """Store a persistent message of our own format; gives its id.

        ``front``: its record up to the bytes of its body, with a zero checksum. Raises as
        :meth:`msgstore.MessageStore.write`.
        """
        msg_id = self.new_id(len(body))
        self._store(True).write_new(msg_id, record_format.sealed_parts(msg_id, front, body))
        return msg_id

    def read(self, msg_id: bytes) -> Message:
        """Read and verify a message.

        Raises :class:`msgstore.MissingMessageError`, :class:`DamageError` (with the store's file
        and offset), :class:`StorageError`.
        """
        store = self._holder(msg_id)
        record = store.read(msg_id)
        try:
            return decode_any(record, msg_id)
        except StoreError as error:
            path, offset, _ = store.raw(msg_id)
            raise DamageError(path, offset, f"message {msg_id.hex()}: {error}") from error

    def read_many(self, msg_ids: Sequence[bytes]) -> list[Message]:
        """Read messages, as :meth:`read` does, up to the first that can't be read."""
        read: list[Message] = []
        if self._persistent is None or self._transient is not None:
            return read
        records = self._persistent.read_many(msg_ids)
        with suppress(StoreError):
            for msg_id, record in zip(msg_ids, records, strict=True):
                if isinstance(record, StoreError):
                    break
                read.append(decode_any(record, msg_id))
        return read

    def raw(self, msg_id: bytes) -> tuple[str, int, bytes]:
        """Give a record as it stands on disk, with its file and offset, however damaged.

        Raises :class:`msgstore.MissingMessageError`, :class:`StorageError`.
        """
        return self._holder(msg_id).raw(msg_id)

    def _holder(self, msg_id: bytes) -> MessageStore:
        """Give the store that has the message, or should have it."""
        transient = self._transient
        if transient is not None and msg_id in transient:
            return transient
        if self._persistent is None:
            path = os.path.join(self._directory, PERSISTENT_DIRECTORY)
            raise MissingMessageError(path, msg_id)
        return self._persistent

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Take one reference from each; without any left, a record is garbage. Ids that are not
        there (their loss was reported when they were read, or at open) are passed over."""
        ids: Iterable[bytes] = msg_ids
        transient = self._transient
        try:
            if transient is not None:
                ids = list(msg_ids)
                theirs = [msg_id for msg_id in ids if msg_id in transient]
                gone = set(theirs)
                ids = [msg_id for msg_id in ids if msg_id not in gone]
                transient.remove(theirs)
            if self._persistent is not None:
                self._persistent.remove(ids)
        except MissingMessageError as error:
            _log.warning("%s", error)

    def remove_one(self, msg_id: bytes) -> None:
        """Take a reference from one, as :meth:`remove` does."""
        try:
            self._holder(msg_id).remove_one(msg_id)
        except MissingMessageError as error:
            _log.warning("%s", error)

    def sync(self) -> None:
        """Make all records written before durable."""
        if self._persistent is not None:
            self._persistent.sync()

    def is_syncing_here(self) -> bool:
        """Tell whether the calling thread is in the middle of a :meth:`sync`."""
        return self._persistent is not None and self._persistent.is_syncing_here()

    def compact(self) -> CompactionReport | None:
        """Reclaim what can be reclaimed now; ``None`` where there is no store."""
        return None if self._persistent is None else self._persistent.compact()

    def stats(self) -> StoreStats | None:
        """Give the figures of the persistent store, or ``None`` where there is none."""
        return None if self._persistent is None else self._persistent.stats()

    def is_this_thread(self) -> bool:
        """Tell whether the calling thread is one that reclaims in the background."""
        stores = (self._persistent, self._transient)
        return any(store is not None and store.is_compaction_thread() for store in stores)

    def rest(self) -> None:
        """Stop reclaiming in the background: the end is near."""
        for store in (self._persistent, self._transient):
            if store is not None:
                store.stop_compaction()

    def snapshot(self) -> bytes | None:
        """Give the store's part of the clean-shutdown snapshot."""
        return None if self._persistent is None else self._persistent.snapshot()

    def close(self) -> None:
        """Close the stores; the transient one's files go."""
        for store in (self._persistent, self._transient):
            if store is not None:
                store.close()
        MessageStore.erase(os.path.join(self._directory, TRANSIENT_DIRECTORY), self._fs)


def has_message_store(fs: FileSystem, directory: str) -> bool:
    """Tell whether a store directory has a persistent message store. Raises :class:`OSError`."""
    try:
        fs.stat(os.path.join(directory, PERSISTENT_DIRECTORY))
    except FileNotFoundError:
        return False
    return True
