"""Records with a checksum, for tests, and a store opened with the options tests like."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from journal.poison import Poison
from msgstore import MessageStore

_FIRST_BYTE = b"\x97"


def message_id(number: int) -> bytes:
    """An id that does not sort as its number does."""
    return zlib.crc32(b"%d" % number).to_bytes(4, "big") + number.to_bytes(12, "big")


def make_record(msg_id: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(msg_id + body)
    return _FIRST_BYTE + checksum.to_bytes(4, "big") + body


def record_of(number: int, size: int = 200) -> bytes:
    """The record of message ``number``, ``size`` bytes or a few more, without zeros."""
    word = b"%d." % number
    return make_record(message_id(number), word * (size // len(word) + 1))


def check(msg_id: bytes, record: bytes) -> str | None:
    if record[:1] != _FIRST_BYTE or len(record) < 5:
        return "it does not begin like a record"
    if zlib.crc32(msg_id + record[5:]) != int.from_bytes(record[1:5], "big"):
        return "its checksum is wrong"
    return None


def open_store(
    directory: Path,
    references: Mapping[bytes, int] | None = None,
    snapshot: bytes | None = None,
    **options: Any,
) -> MessageStore:
    """A store of small files that compacts only when told to."""
    if references is None and snapshot is None:
        references = {}
    settings: dict[str, Any] = {
        "check": check,
        "poison": Poison(),
        "file_size_limit": 1000,
        "background": False,
        **options,
    }
    return MessageStore.open(directory, references=references, snapshot=snapshot, **settings)


def write_numbers(store: MessageStore, numbers: range, size: int = 200) -> None:
    for number in numbers:
        store.write(message_id(number), record_of(number, size))


def rdq_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix == ".rdq")
