"""The engine's side of the message store: message records in, messages out.

One store for all messages, which is made when the first message needs it. (RabbitMQ keeps transient
messages in a second one, ``msg_store_transient``, and erases it at each start.)
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from journal.errors import DamageError, StoreError
from journal.findings import Finding
from journal.fs.files import FileSystem
from journal.locks.call_lock import CallLock
from journal.locks.lock_order import Rank
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
    """Return the fault of a record that was written to the message store under ``msg_id``, or
    ``None`` if it is sound."""
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
    """The message store of one engine. Thread-safe.

    ``references`` (message id -> how many index entries) and no ``snapshot``: the files are
    scanned; ``missing`` then has the ids without a sound record, ``findings`` the problems.
    ``verify``: also read the records (see :meth:`msgstore.MessageStore.open`).
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
        self._opened: MessageStore | None = None
        self._run = os.urandom(RUN_SIZE)
        self._count = itertools.count()
        self.findings: list[Finding] = []
        self.missing: set[bytes] = set(references or ())
        self.miscounted = False
        """Whether references were lost sight of, in a damaged index: then they have to be counted
        anew at the next open."""
        MessageStore.erase(os.path.join(directory, TRANSIENT_DIRECTORY), fs)
        if snapshot is not None or has_message_store(fs, directory):
            self._opened = self._open(references, snapshot, verify)
            self.findings = self._opened.findings
            self.missing = self._opened.missing

    def _open(
        self,
        references: Mapping[bytes, int] | None,
        snapshot: bytes | None,
        verify: bool = False,
    ) -> MessageStore:
        options = self._options
        return MessageStore.open(
            os.path.join(self._directory, PERSISTENT_DIRECTORY),
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
            before_reclaim=self._before_reclaim,
            background=options.background,
            repair=options.repair,
            verify=verify,
        )

    def _store(self) -> MessageStore:
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open({}, None)
        return self._opened

    @property
    def in_use(self) -> bool:
        """Whether any message is in the message store, or was since open."""
        return self._opened is not None

    def new_id(self, size: int) -> bytes:
        """Return an id for a message with a body of ``size`` bytes, that no other message has; see
        :mod:`qindex.format.stored_id`."""
        count = next(self._count)
        if count and not count % COUNTS:
            self._run = os.urandom(RUN_SIZE)
        return make_id(self._run, count % COUNTS, size)

    def write(self, items: list[tuple[bytes, bytes, int]]) -> None:
        """Store records: (message id, record, references) of each. In the operating system on
        return; all or none. Raises as :meth:`msgstore.MessageStore.write_many`."""
        store = self._store()
        if len(items) == 1:
            store.write(*items[0])
        else:
            store.write_many(items)

    def put(self, front: bytes, body: bytes) -> bytes:
        """Store a message of our own format; return its id.

        ``front``: its record up to the bytes of its body, with a zero checksum. Raises as
        :meth:`msgstore.MessageStore.write`.
        """
        msg_id = self.new_id(len(body))
        self._store().write_new(msg_id, record_format.sealed_parts(msg_id, front, body))
        return msg_id

    def read(self, msg_id: bytes) -> Message:
        """Read and verify a message.

        Raises :class:`msgstore.MissingMessageError`, :class:`DamageError` (with the store's file
        and offset), :class:`StorageError`.
        """
        store = self._known(msg_id)
        record = store.read(msg_id)
        try:
            return decode_any(record, msg_id)
        except StoreError as error:
            path, offset, _ = store.raw(msg_id)
            raise DamageError(path, offset, f"message {msg_id.hex()}: {error}") from error

    def read_many(self, msg_ids: Sequence[bytes]) -> list[Message]:
        """Read messages, as :meth:`read` does, up to the first that can't be read."""
        read: list[Message] = []
        if self._opened is None:
            return read
        records = self._opened.read_many(msg_ids)
        with suppress(StoreError):
            for msg_id, record in zip(msg_ids, records, strict=True):
                if isinstance(record, StoreError):
                    break
                read.append(decode_any(record, msg_id))
        return read

    def raw(self, msg_id: bytes) -> tuple[str, int, bytes]:
        """Return a record as it is on disk, with its file and offset, however damaged.

        Raises :class:`msgstore.MissingMessageError`, :class:`StorageError`.
        """
        return self._known(msg_id).raw(msg_id)

    def _known(self, msg_id: bytes) -> MessageStore:
        """Return the store, which should have the message."""
        if self._opened is None:
            path = os.path.join(self._directory, PERSISTENT_DIRECTORY)
            raise MissingMessageError(path, msg_id)
        return self._opened

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Take one reference from each; without any left, a record is garbage. Ids that are not
        there (their loss was reported when they were read, or at open) are passed over."""
        try:
            if self._opened is not None:
                self._opened.remove(msg_ids)
        except MissingMessageError as error:
            _log.warning("%s", error)

    def remove_one(self, msg_id: bytes) -> None:
        """Take a reference from one, as :meth:`remove` does."""
        try:
            self._known(msg_id).remove_one(msg_id)
        except MissingMessageError as error:
            _log.warning("%s", error)

    def sync(self) -> None:
        """Make all records written before durable."""
        if self._opened is not None:
            self._opened.sync()

    def is_syncing_here(self) -> bool:
        """Return whether the calling thread is in the middle of a :meth:`sync`."""
        return self._opened is not None and self._opened.is_syncing_here()

    def compact(self) -> CompactionReport | None:
        """Reclaim all space that can be reclaimed now; ``None`` if there is no store."""
        return None if self._opened is None else self._opened.compact()

    def stats(self) -> StoreStats | None:
        """Return the figures of the store, or ``None`` where there is none."""
        return None if self._opened is None else self._opened.stats()

    def is_this_thread(self) -> bool:
        """Return whether the calling thread is the background compaction thread."""
        return self._opened is not None and self._opened.is_compaction_thread()

    def rest(self) -> None:
        """Stop reclaiming in the background: the end is near."""
        if self._opened is not None:
            self._opened.stop_compaction()

    def snapshot(self) -> bytes | None:
        """Return the store's part of the clean-shutdown snapshot."""
        return None if self._opened is None else self._opened.snapshot()

    def close(self) -> None:
        """Close the store."""
        if self._opened is not None:
            self._opened.close()


def has_message_store(fs: FileSystem, directory: str) -> bool:
    """Return whether a store directory has a persistent message store. Raises :class:`OSError`."""
    try:
        fs.stat(os.path.join(directory, PERSISTENT_DIRECTORY))
    except FileNotFoundError:
        return False
    return True
