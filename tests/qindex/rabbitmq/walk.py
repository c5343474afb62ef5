"""A plain walk over a golden store's files, to find the message records in them.

It knows the grammar of the files and nothing of recovery, and stops where a file makes no sense.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from struct import Struct

from tests.golden import golden

_PUBLISH = Struct(">16sQII")  # message id, expiry, body size, length of the embedded record


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record and what stands beside it.

    In a message store file there is no ``size``, no ``queue_directory`` (""), no ``seq_id`` (-1).
    """

    queue_directory: str
    seq_id: int
    msg_id: bytes
    persistent: bool
    size: int | None
    record: bytes


@cache
def records(scenario: str) -> tuple[FoundRecord, ...]:
    """All records of a scenario: embedded in journals and segments, and in the message store."""
    embedded = (found for found in _index(scenario) if found.record)
    return (*embedded, *_stored(scenario))


@cache
def published(scenario: str) -> tuple[FoundRecord, ...]:
    """All publishes in journals and segments whose record is still there, wherever it is."""
    stored = {found.msg_id: found.record for found in _stored(scenario)}
    return tuple(
        found if found.record else replace(found, record=stored[found.msg_id])
        for found in _index(scenario)
        if found.record or found.msg_id in stored
    )


@cache
def _index(scenario: str) -> tuple[FoundRecord, ...]:
    root = golden(scenario).vhost_dir
    return (
        *(found for path in sorted(root.glob("queues/*/journal.jif")) for found in _journal(path)),
        *(found for path in sorted(root.glob("queues/*/*.idx")) for found in _segment(path)),
    )


@cache
def _stored(scenario: str) -> tuple[FoundRecord, ...]:
    root = golden(scenario).vhost_dir
    return tuple(found for path in sorted(root.glob("msg_store_*/*.rdq")) for found in _rdq(path))


def _journal(path: Path) -> Iterator[FoundRecord]:
    data = path.read_bytes()
    pos = 0
    while pos + 8 <= len(data):
        word = int.from_bytes(data[pos : pos + 8], "big")
        pos += 8
        if word >> 62 >= 2:  # deliver, ack
            continue
        if pos + 32 > len(data) or not any(data[pos - 8 : pos + 32]):
            return
        msg_id, _expiry, size, length = _PUBLISH.unpack_from(data, pos)
        pos += 32 + length
        if pos > len(data):
            return
        seq_id = word & ((1 << 62) - 1)
        record = data[pos - length : pos]
        yield FoundRecord(path.parent.name, seq_id, msg_id, word >> 62 == 0, size, record)


def _segment(path: Path) -> Iterator[FoundRecord]:
    data = path.read_bytes()
    base = int(path.stem) * 2048
    pos = 0
    while pos + 2 <= len(data):
        word = int.from_bytes(data[pos : pos + 2], "big")
        pos += 2
        if word >> 14 == 1:  # deliver, ack
            continue
        assert word >> 15, f"{path.name} at {pos - 2}"
        msg_id, _expiry, size, length = _PUBLISH.unpack_from(data, pos)
        pos += 32 + length
        record = data[pos - length : pos]
        assert len(record) == length
        seq_id, persistent = base + (word & 0x3FFF), bool(word & 0x4000)
        yield FoundRecord(path.parent.name, seq_id, msg_id, persistent, size, record)


def _rdq(path: Path) -> Iterator[FoundRecord]:
    data = path.read_bytes()
    persistent = path.parent.name == "msg_store_persistent"
    pos = 0
    while pos + 8 <= len(data):
        size = int.from_bytes(data[pos : pos + 8], "big")
        end = pos + 8 + size
        if not size or end + 1 > len(data):
            return
        if data[end] == 255:
            msg_id = data[pos + 8 : pos + 24]
            yield FoundRecord("", -1, msg_id, persistent, None, data[pos + 24 : end])
        pos = end + 1
