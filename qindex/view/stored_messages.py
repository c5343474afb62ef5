"""The messages of one queue that are in the message store, for readers that take no lock.

The store is opened read-only, at the first read of one of its messages: its files are scanned for
the messages that the pinned index names. Beside a writer at work a message may be gone again:
compaction has moved it, or it was acknowledged and its file deleted. So when a message can't be
read, all is looked at again, in this order:

1. which messages does the index name now;
2. where are they;
3. which does the index name now.

What 2 did not find and 3 still names is missing: a message is in the store before its index entry,
and leaves it after its acknowledgement. What 3 does not name was acknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError, StorageError, storage_errors
from journal.findings import Cause, Finding
from journal.fs.files import FileSystem, names_in
from journal.poison import Poison
from msgstore import MessageStore
from msgstore.errors import MissingMessageError
from msgstore.format import MAX_RECORD, classify_name
from msgstore.scan import scan_file
from qindex.index.messages import check_record
from qindex.view.freed_room import concerning

_ATTEMPTS = 64


class StorePlace(NamedTuple):
    """Where the message store is. (A node erases its transient one when it starts.)
    ``has_holes``: files may have freed room inside (see :mod:`qindex.view.freed_room`)."""

    directory: str
    has_holes: bool = False


@dataclass(frozen=True, slots=True)
class MessageStoreSummary:
    """A message store at one moment; sizes in bytes.

    ``size``: of its files, ``live``: of the messages with references, ``garbage``: the rest.
    ``messages``: that are there and have references, ``references``: index entries that name one,
    ``missing``: messages that index entries name and that are not there.
    """

    files: int
    size: int
    live: int
    garbage: int
    messages: int
    references: int
    missing: int


def summarise_store(
    fs: FileSystem, directory: str, references: Mapping[bytes, int]
) -> MessageStoreSummary:
    """Scan the store for the messages that have references. Raises :class:`StorageError`."""
    with _open_read_only(fs, directory, references) as store:
        stats = store.stats()
        return MessageStoreSummary(
            files=stats.files,
            size=stats.size,
            live=stats.live,
            garbage=stats.garbage,
            messages=stats.messages,
            references=sum(references.values()),
            missing=len(store.missing),
        )


def stored_ids(fs: FileSystem, directory: str) -> npt.NDArray[np.bytes_]:
    """Return the ids of all messages in a store, sorted. O(messages). Raises
    :class:`StorageError`."""
    found = [b""]
    with storage_errors(directory, "can't be listed"):
        names = names_in(fs, directory)
    for name in names:
        if classify_name(name) is not None:
            scan = scan_file(fs, os.path.join(directory, name), check=check_record)
            found.append(b"".join(msg_id for msg_id, _, _ in scan.records))
    return np.unique(np.frombuffer(b"".join(found), "S16"))


def _open_read_only(
    fs: FileSystem, directory: str, references: Mapping[bytes, int]
) -> MessageStore:
    return MessageStore.open(
        directory,
        references=references,
        snapshot=None,
        check=check_record,
        poison=Poison(),
        fs=fs,
        max_message_bytes=MAX_RECORD,
        read_only=True,
    )


class StoredMessages:
    """Reads records by message id. ``pinned``: the ids of the moment that is shown, ``current``:
    those of now. Memory: about 250 bytes for each id, once one was asked for."""

    def __init__(
        self,
        fs: FileSystem,
        place: StorePlace,
        pinned: Callable[[], list[bytes]],
        current: Callable[[], list[bytes]],
    ) -> None:
        self._fs = fs
        self._place = place
        self._pinned = pinned
        self._current = current
        self._store: MessageStore | None = None
        self._alive: set[bytes] | None = None
        self._missing: set[bytes] = set()
        self._listing: list[tuple[str, int]] = []
        self._found: dict[Finding, None] = {}

    @property
    def findings(self) -> list[Finding]:
        """Damage met in the files of the store. Leftovers of crashes cost nothing there."""
        return list(self._found)

    def read(self, msg_id: bytes) -> bytes | None:
        """Return the record, verified, or ``None`` when it was acknowledged meanwhile.

        Raises :class:`MissingMessageError`, :class:`DamageError`, :class:`StorageError`.
        """
        if self._store is None:
            self._open(self._pinned())
        for _ in range(_ATTEMPTS):
            assert self._store is not None
            try:
                return self._store.read(msg_id)
            except (MissingMessageError, DamageError) as error:
                failure = error
            if self._alive is not None and msg_id not in self._alive:
                return None
            if msg_id in self._missing:
                break
            # Nothing is overwritten in a file: the bytes are damaged, not moved.
            if isinstance(failure, DamageError) and self._list() == self._listing:
                break
            self._look_again()
        raise failure

    def _look_again(self) -> None:
        for _ in range(_ATTEMPTS):
            names = {name for name, _ in self._list()}
            missing = self._open(self._current())
            self._alive = set(self._current())
            self._missing = missing & self._alive
            # Else a listing may have fallen between two names of a file that was moved.
            if not self._missing or names == {name for name, _ in self._list()}:
                return

    def _open(self, ids: Iterable[bytes]) -> set[bytes]:
        """Scan for these messages. Return the missing ones."""
        self.close()
        self._listing = self._list()
        store = _open_read_only(self._fs, self._place.directory, dict.fromkeys(ids, 1))
        self._store = store
        damage = [found for found in store.findings if found.cause is Cause.DAMAGE]
        if self._place.has_holes and damage:
            damage = concerning(self._fs, damage, store.missing)
        self._found.update(dict.fromkeys(damage))
        return store.missing

    def _list(self) -> list[tuple[str, int]]:
        """Names and sizes of the files of the store."""
        directory = self._place.directory
        found = []
        try:
            for name in sorted(self._fs.listdir(directory)):
                path = os.path.join(directory, name)
                found.append((path, self._fs.stat(path).st_size))
        except (FileNotFoundError, NotADirectoryError):
            pass  # not made yet, or a file of it was deleted just now
        except OSError as error:
            raise StorageError(directory, "can't be listed", error) from error
        return found

    def close(self) -> None:
        """Let go of the files."""
        if self._store is not None:
            self._store.close()
            self._store = None
