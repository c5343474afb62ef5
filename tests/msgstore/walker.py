"""A small reader of RabbitMQ's queue index files, enough to count references to the store."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from qindex.format.rabbitmq.record import decode_message

_ENTRY_COUNT = 2048


@dataclass(slots=True)
class Entry:
    msg_id: bytes
    persistent: bool
    embedded: bytes
    steps: int = 0


def check(msg_id: bytes, record: bytes) -> str | None:
    """The check for a store of RabbitMQ records, which have no checksum: they have to decode."""
    try:
        message = decode_message(record)
    except ValueError as error:
        return str(error)
    except Exception as error:  # a codec's typed error, whatever its base
        return f"{type(error).__name__}: {error}"
    return None if message.msg_id == msg_id else "it is the record of another message"


def _walk_segment(path: Path, entries: dict[int, Entry]) -> None:
    data = path.read_bytes()
    if not data.strip(b"\0"):
        return
    first = int(path.stem) * _ENTRY_COUNT
    position = 0
    while position + 2 <= len(data):
        (head,) = struct.unpack_from(">H", data, position)
        seq = first + (head & 0x3FFF)
        if head & 0x8000:
            msg_id, _, _, size = struct.unpack_from(">16sQII", data, position + 2)
            embedded = data[position + 34 : position + 34 + size]
            entries[seq] = Entry(msg_id, bool(head & 0x4000), embedded)
            position += 34 + size
        else:
            entries[seq].steps += 1
            position += 2


def _walk_journal(path: Path, entries: dict[int, Entry]) -> None:
    data = path.read_bytes()
    position = 0
    while position + 8 <= len(data) and data[position : position + 40].strip(b"\0"):
        (word,) = struct.unpack_from(">Q", data, position)
        kind, seq = word >> 62, word & ((1 << 62) - 1)
        position += 8
        if kind < 2:
            if position + 32 > len(data):
                return
            msg_id, _, _, size = struct.unpack_from(">16sQII", data, position)
            embedded = data[position + 32 : position + 32 + size]
            if len(embedded) < size:
                return
            entries.setdefault(seq, Entry(msg_id, kind == 0, embedded))
            position += 32 + size
        elif seq in entries:
            entries[seq].steps = max(entries[seq].steps, kind - 1)


def queue_entries(queue: Path) -> list[Entry]:
    """The unacknowledged entries of a queue directory, by seq_id."""
    entries: dict[int, Entry] = {}
    for path in queue.glob("*.idx"):
        _walk_segment(path, entries)
    if (queue / "journal.jif").exists():
        _walk_journal(queue / "journal.jif", entries)
    return [entry for _, entry in sorted(entries.items()) if entry.steps < 2]


def store_references(vhost: Path) -> Counter[bytes]:
    """How often each message of the persistent store is referred to by all queues."""
    counts: Counter[bytes] = Counter()
    queues = vhost / "queues"
    for queue in sorted(queues.iterdir()) if queues.exists() else []:
        counts.update(
            entry.msg_id
            for entry in queue_entries(queue)
            if entry.persistent and not entry.embedded
        )
    return counts
