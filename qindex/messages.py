"""The engine's side of the message store: message records in, messages out.

Two stores, as RabbitMQ has them: the persistent one, and the transient one, which is erased at each
open. Either is made when the first message needs it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping

from journal.errors import StoreError
from journal.files import FileSystem
from journal.findings import Finding
from journal.poison import Poison
from msgstore import CompactionReport, MessageStore, StoreStats
from qindex import record_format
from qindex.entries import decode_any
from qindex.message import Message
from qindex.options import Options

__all__ = ["PERSISTENT_DIRECTORY", "TRANSIENT_DIRECTORY", "Messages", "check_record"]

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
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._options = options
        self._poison = poison
        self._before_reclaim = before_reclaim
        self._lock = threading.Lock()
        self._persistent: MessageStore | None = None
        self._transient: MessageStore | None = None
        self._id_high = os.urandom(8)
        self._id_low = itertools.count()
        self.findings: list[Finding] = []
        self.missing: set[bytes] = set(references or ())
        path = os.path.join(directory, PERSISTENT_DIRECTORY)
        if snapshot is not None or _exists(fs, path):
            self._persistent = self._open(path, references, snapshot)
            self.findings = self._persistent.findings
            self.missing = self._persistent.missing
        MessageStore.erase(os.path.join(directory, TRANSIENT_DIRECTORY), fs)

    def _open(
        self, path: str, references: Mapping[bytes, int] | None, snapshot: bytes | None
    ) -> MessageStore:
        options = self._options
        return MessageStore.open(
            path,
            references=references if snapshot is None else None,
            snapshot=snapshot,
            check=check_record,
            poison=self._poison,
            fs=self._fs,
            file_size_limit=options.store_file_bytes,
            max_message_bytes=options.max_message_bytes + record_format.MAX_OVERHEAD,
            garbage_ratio=options.garbage_ratio,
            compaction_bytes_per_second=options.compaction_bytes_per_second,
            before_reclaim=self._before_reclaim,
            background=options.background,
            repair=options.repair,
        )

    def _store(self, persistent: bool) -> MessageStore:
        store = self._persistent if persistent else self._transient
        if store is not None:
            return store
        with self._lock:
            if persistent:
                if self._persistent is None:
                    path = os.path.join(self._directory, PERSISTENT_DIRECTORY)
                    self._persistent = self._open(path, {}, None)
                return self._persistent
            if self._transient is None:
                path = os.path.join(self._directory, TRANSIENT_DIRECTORY)
                self._transient = self._open(path, {}, None)
            return self._transient

    def new_id(self) -> bytes:
        """Give a message id that no other message has: eight random bytes of this run, and a
        count."""
        return self._id_high + next(self._id_low).to_bytes(8, "big")

    def write(self, items: list[tuple[bytes, bytes, int]], *, persistent: bool) -> None:
        """Store records: (message id, record, references) of each. In the operating system on
        return; all or none. Raises as :meth:`msgstore.MessageStore.write_many`."""
        store = self._store(persistent)
        if len(items) == 1:
            store.write(*items[0])
        else:
            store.write_many(items)

    def read(self, msg_id: bytes) -> Message:
        """Read and verify a message.

        Raises :class:`msgstore.MissingMessageError`, :class:`DamageError` (with the store's file
        and offset), :class:`StorageError`.
        """
        transient = self._transient
        if transient is not None and msg_id in transient:
            return decode_any(transient.read(msg_id), msg_id)
        return decode_any(self._store(True).read(msg_id), msg_id)

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Take one reference from each; without any left, a record is garbage."""
        transient = self._transient
        if transient is None:
            self._store(True).remove(msg_ids)
            return
        ids = list(msg_ids)
        ours = [msg_id for msg_id in ids if msg_id in transient]
        transient.remove(ours)
        gone = set(ours)
        self._store(True).remove([msg_id for msg_id in ids if msg_id not in gone])

    def sync(self) -> None:
        """Make all records written before durable."""
        if self._persistent is not None:
            self._persistent.sync()

    def compact(self) -> CompactionReport | None:
        """Reclaim what can be reclaimed now; ``None`` where there is no store."""
        return None if self._persistent is None else self._persistent.compact()

    def stats(self) -> StoreStats | None:
        """Give the figures of the persistent store, or ``None`` where there is none."""
        return None if self._persistent is None else self._persistent.stats()

    def snapshot(self) -> bytes | None:
        """Give the store's part of the clean-shutdown snapshot."""
        return None if self._persistent is None else self._persistent.snapshot()

    def close(self) -> None:
        """Close the stores; the transient one's files go."""
        for store in (self._persistent, self._transient):
            if store is not None:
                store.close()
        MessageStore.erase(os.path.join(self._directory, TRANSIENT_DIRECTORY), self._fs)


def _exists(fs: FileSystem, path: str) -> bool:
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True
