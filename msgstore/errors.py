"""The two errors only a message store raises; the others are in :mod:`journal.errors`."""

from __future__ import annotations

from journal.errors import StoreError


class MissingMessageError(StoreError, KeyError):
    """No message of this id (these ids) is in the store. ``msg_ids`` are the ids, 16 bytes each."""

    __module__ = "msgstore"

    def __init__(self, directory: str, *msg_ids: bytes) -> None:
        self.directory = directory
        self.msg_ids = msg_ids
        super().__init__(directory, *msg_ids)

    def __str__(self) -> str:
        named = ", ".join(msg_id.hex() for msg_id in self.msg_ids[:4])
        more = f" and {len(self.msg_ids) - 4} more" if len(self.msg_ids) > 4 else ""
        return f"{self.directory}: no message {named}{more}"


class StaleSnapshotError(StoreError):
    """A snapshot that does not fit the files in the directory; open without it, by scanning."""

    __module__ = "msgstore"
