"""Fill a new store with messages that come in order, and keep their seq_ids, message ids and
records."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from journal.format import PAYLOAD_SIZE, pack_publish
from journal.fs.files import replace_file
from journal.memory.arrays import I64
from msgstore import MessageStore
from qindex.format import layout
from qindex.format.message import Message
from qindex.format.message_record import encode_front, seal_embedded, seal_stored
from qindex.format.priorities import LOW, SHIFT
from qindex.format.rabbitmq.bridge import RabbitProperties, encode_rabbitmq
from qindex.format.rabbitmq.names import directory_name, format_queue_name
from qindex.format.segment import DEFAULT_ENTRY_COUNT
from qindex.options import Options
from qindex.queue.notes.delivery_counts import FILE_NAME as DELIVERIES
from qindex.queue.notes.delivery_counts import pack_counts
from qindex.recovery.columns import Entries
from qindex.tools.copying import new_message_store
from qindex.tools.queue_writer import QueueWriter
from qindex.tools.repair import begin_store, reserve_seq_ids, settle
from qindex.tools.staging import Staging

_ROWS_AT_ONCE = 4096
_BYTES_AT_ONCE = 8 << 20
_PUBLISH_WORD = 8
_EMBED_BELOW = Options().embed_below
_VHOST = "/"
_Place = tuple[str, int | None]
"""A queue, and the priority of one of its directories."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a message in a queue store. ``expiry``: microseconds since 1970, 0 = never."""

    queue: str
    seq_id: int
    msg_id: bytes
    persistent: bool
    redelivered: bool
    expiry: int
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class QueueKept:
    """A queue without its messages: ``settings`` as its file keeps them, ``next_seq_id``,
    ``deliveries`` by seq_id where they are counted. ``error``: why its settings can't be read."""

    name: str
    settings: dict[str, Any] | None = None
    next_seq_id: int = 0
    deliveries: dict[int, int] = field(default_factory=dict)
    messages: int = 0
    error: str | None = None


class QueueFill:
    """Fills one store of ours. Messages keep seq_id, message id and record. With transient ones in
    it the store is left as a running engine has it: the next open drops them."""

    def __init__(self, place: Staging) -> None:
        self._path = place.path
        self._fs = place.fs
        self._writers: dict[_Place, QueueWriter] = {}
        self._next: dict[_Place, int] = {}
        self._declared: dict[str, QueueKept] = {}
        self._waiting: dict[_Place, list[tuple[Origin, bytes, int, int]]] = {}
        self._count = 0
        self._held = 0
        self._store: MessageStore | None = None
        self._transient = False
        identity = layout.new_identity()
        marker = layout.StoreMarker(DEFAULT_ENTRY_COUNT, _VHOST, identity=identity)
        begin_store(self._fs, self._path, marker)

    def declare(self, kept: QueueKept) -> None:
        """Make a queue."""
        self._declared[kept.name] = kept

    def _writer(self, place: _Place) -> QueueWriter:
        """Return the writer of a directory, which is made if there is none."""
        if place not in self._writers:
            path = os.path.join(self._path, layout.QUEUES, directory_name(_VHOST, *place))
            stored = format_queue_name(_VHOST, *place)
            self._writers[place] = QueueWriter(
                self._fs, path, DEFAULT_ENTRY_COUNT, stored, sums=True
            )
        return self._writers[place]

    def put(self, origin: Origin, message: Message) -> int:
        """Add a message, in order within its queue; returns its seq_id there."""
        if origin.queue not in self._declared:
            self.declare(QueueKept(origin.queue))
        place, seq = (origin.queue, origin.priority), origin.seq_id
        self._next[place] = max(self._next.get(place, 0), seq + 1)
        self._transient |= not origin.persistent
        record = self._record(origin, message, seq)
        self._waiting.setdefault(place, []).append((origin, record, seq, len(message.body)))
        self._held += len(record)
        self._count += 1
        if self._count >= _ROWS_AT_ONCE or self._held >= _BYTES_AT_ONCE:
            self._flush()
        return ((origin.priority or 0) << SHIFT) + seq

    def next_seq(self, queue: str) -> int:
        """Return the seq_id of the queue's next publish, without a priority."""
        seen = max(self._next.get((queue, None), 0), self._next.get((queue, 0), 0))
        kept = self._declared.get(queue)
        return seen if kept is None else max(seen, kept.next_seq_id)

    def _record(self, origin: Origin, message: Message, seq: int) -> bytes:
        """Return the record that the index embeds, empty when it went to the message store."""
        msg_id, properties = origin.msg_id, message.properties
        if isinstance(properties, RabbitProperties):
            record = encode_rabbitmq(message, properties.source.vhost, msg_id, origin.persistent)
            if len(record) < _EMBED_BELOW:
                return record
        else:
            front = encode_front(message)
            if len(front) + len(message.body) < _EMBED_BELOW:
                whole = front + message.body
                head = (seq, origin.persistent, msg_id, origin.expiry, len(message.body))
                return seal_embedded(pack_publish(*head, whole))[_PUBLISH_WORD + PAYLOAD_SIZE :]
            record = seal_stored(msg_id, front, message.body)
        if self._store is None:
            self._store = new_message_store(self._fs, self._path)
        self._store.write(msg_id, record)
        return b""

    def _flush(self) -> None:
        for place, waiting in self._waiting.items():
            self._writer(place).add(*_batch_of(waiting))
        self._waiting.clear()
        self._held = self._count = 0

    def finish(self) -> None:
        """Write the remaining records, and have the engine check all of them. Raises
        :class:`DamageError`, :class:`StorageError`."""
        self._flush()
        if self._store is not None:
            self._store.sync()
            self._store.close()
        for kept in self._declared.values():
            self._finish_queue(kept)
        if not self._transient:
            settle(self._fs, self._path)

    def _finish_queue(self, kept: QueueKept) -> None:
        """Write the settings, the next seq_ids and the delivery counts of a queue."""
        settings = dict(kept.settings or {})
        highest = max(
            (one for name, one in self._next if name == kept.name and one is not None), default=-1
        )
        first = None
        if highest >= 0 or settings.get("max_priority") is not None:
            first = 0
            settings.setdefault("message_ttl", None)
            settings.setdefault("max_priority", max(highest, 1))
        self._next.setdefault((kept.name, first), 0)
        counts: dict[int, dict[int, int]] = {}
        for seq_id, count in kept.deliveries.items():
            counts.setdefault(seq_id >> SHIFT, {})[seq_id & LOW] = count
        for place, following in self._next.items():
            if place[0] != kept.name:
                continue
            path = self._writer(place).directory
            is_first = place[1] == first
            following = max(following, kept.next_seq_id) if is_first else following
            reserve_seq_ids(self._fs, path, following)
            if is_first and settings:
                content = layout.pack_checked(settings)
                replace_file(self._fs, os.path.join(path, layout.SETTINGS), content)
            if (place[1] or 0) in counts:
                content = pack_counts(counts[place[1] or 0])
                replace_file(self._fs, os.path.join(path, DELIVERIES), content)


def _batch_of(rows: list[tuple[Origin, bytes, int, int]]) -> tuple[Entries, I64, I64]:
    """Put rows (origin, embedded record, seq_id, size of the body) into columns."""
    origins = [origin for origin, _, _, _ in rows]
    seqs = np.array([seq for _, _, seq, _ in rows], np.int64)
    sizes = np.array([size for _, _, _, size in rows], np.int64)
    lengths = np.array([len(record) for _, record, _, _ in rows], np.int64)
    ids = np.frombuffer(b"".join(origin.msg_id for origin in origins), np.uint8)
    batch = Entries(
        path="",
        location="segment",
        data=b"".join(record for _, record, _, _ in rows),
        version2=False,
        seqs=seqs,
        states=np.zeros(len(origins), np.uint8),
        payloads=np.cumsum(lengths) - lengths - PAYLOAD_SIZE,
        offsets=np.cumsum(lengths) - lengths,
        delivered=np.array([origin.redelivered for origin in origins], np.bool_),
        persistent=np.array([origin.persistent for origin in origins], np.bool_),
        dropped=np.zeros(len(origins), np.bool_),
        ids=ids.reshape(-1, 16),
        expiry=np.array([origin.expiry for origin in origins], np.uint64),
        sizes=sizes,
        embedded=lengths,
    )
    return batch, seqs, sizes
