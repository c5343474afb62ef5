"""Fill new stores with messages that come in order: queue stores of ours, RocketMQ stores.

A new store is made under another name and renamed when it is whole, so that a task may be run
again: it begins anew, and where an earlier run has finished, the store stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, starmap
from operator import itemgetter
from typing import Any

import numpy as np

import rocketstore
from journal.errors import UsageError, storage_errors
from journal.format import PAYLOAD_SIZE, pack_publish
from journal.fs.files import REAL, make_dirs, replace_file
from journal.memory.arrays import I64
from journal.poison import Poison
from msgstore import MessageStore
from pyspark_qindex.jobs.mapping import Origin, RocketRecord
from qindex.format import layout
from qindex.format.message import Message
from qindex.format.message_record import encode_front, seal_embedded, seal_stored
from qindex.format.priorities import LOW, SHIFT
from qindex.format.rabbitmq.bridge import RabbitProperties, encode_rabbitmq
from qindex.format.rabbitmq.names import directory_name, format_queue_name
from qindex.format.segment import DEFAULT_ENTRY_COUNT
from qindex.index.messages import PERSISTENT_DIRECTORY, check_record
from qindex.options import Options
from qindex.queue.notes.delivery_counts import FILE_NAME as DELIVERIES
from qindex.queue.notes.delivery_counts import pack_count
from qindex.recovery.columns import Entries
from qindex.tools.queue_writer import QueueWriter
from qindex.tools.repair import begin_store, reserve_seq_ids, settle
from qindex.tools.staging import Staging
from rocketstore.format.compose import Delivered
from rocketstore.format.delay import SCHEDULE_TOPIC
from rocketstore.format.message import PutResult
from rocketstore.options import MAX_MESSAGE_SIZE

_RECORD_SIZE = 91 + 12
"""Bytes of a record besides body, topic and properties, if one of its hosts is IPv6."""
_ROWS_AT_ONCE = 4096
_BYTES_AT_ONCE = 8 << 20
_PUBLISH_WORD = 8
_VHOST = "/"


@dataclass(frozen=True, slots=True)
class QueueKept:
    """The things of a queue beside its messages. ``settings``: what its settings file holds,
    ``None`` without one. ``next_seq_id``: of its next publish. ``deliveries``: how often messages
    were delivered, by seq_id, as far as that is counted. ``messages``: how many it holds.
    ``error``: why its settings can't be read."""

    name: str
    settings: dict[str, Any] | None = None
    next_seq_id: int = 0
    deliveries: dict[int, int] = field(default_factory=dict)
    messages: int = 0
    error: str | None = None


@contextmanager
def new_store(target: str, source: str) -> Iterator[Staging | None]:
    """Yield the place where to build ``target``, which appears when all is done; ``None`` when it
    is there already. ``source``: what it is made from.

    Raises as :class:`qindex.tools.staging.Staging`.
    """
    if os.path.isdir(target) and os.listdir(target):
        yield None
        return
    with storage_errors(os.path.dirname(target), "can't be made"):
        os.makedirs(os.path.dirname(target), exist_ok=True)
    with Staging(REAL, target, source) as staging:
        yield staging
        staging.commit()


def stores_of(
    rows: Iterator[dict[str, Any]], targets: dict[str, str], source: str
) -> Iterator[tuple[str, Staging | None, Iterator[dict[str, Any]]]]:
    """Yield the stores of rows that come store by store: each one's name, the place where to build
    its target (see :func:`new_store`), and its rows, to be gone through before the next."""
    for store, mine in groupby(rows, itemgetter("store")):
        with new_store(targets[store], source) as place:
            yield store, place, mine


_Place = tuple[str, int | None]
"""A queue, and the priority of one of its directories."""


class QueueFill:
    """Fills one store of ours. Messages keep seq_id, message id, record and all; those with a
    priority come into the directory of that priority. With transient ones in it the store is left
    as a running engine has it: the next open drops them.

    ``place``: ``None``: nothing is written, all is only counted.
    """

    def __init__(self, place: Staging | None) -> None:
        self._path = path = None if place is None else place.path
        self._fs = fs = REAL if place is None else place.fs
        self._options = Options(background=False)
        self._writers: dict[_Place, QueueWriter] = {}
        self._next: dict[_Place, int] = {}
        self._declared: dict[str, QueueKept] = {}
        self._waiting: dict[_Place, list[tuple[Origin, bytes, int, int]]] = {}
        self._count = 0
        self._held = 0
        self._store: MessageStore | None = None
        self._transient = False
        if path is not None:
            begin_store(fs, path, layout.StoreMarker(DEFAULT_ENTRY_COUNT, _VHOST))

    def declare(self, kept: QueueKept) -> None:
        """Make a queue."""
        self._declared[kept.name] = kept

    def _writer(self, place: _Place) -> QueueWriter:
        """Return the writer of a directory, which is made if there is none."""
        if place not in self._writers:
            assert self._path is not None
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
        given = ((origin.priority or 0) << SHIFT) + seq
        if self._path is None:
            return given
        record = self._record(origin, message, seq)
        self._waiting.setdefault(place, []).append((origin, record, seq, len(message.body)))
        self._held += len(record)
        self._count += 1
        if self._count >= _ROWS_AT_ONCE or self._held >= _BYTES_AT_ONCE:
            self._flush()
        return given

    def next_seq(self, queue: str) -> int:
        """Return the seq_id of the queue's next publish, without a priority."""
        seen = max(self._next.get((queue, None), 0), self._next.get((queue, 0), 0))
        kept = self._declared.get(queue)
        return seen if kept is None else max(seen, kept.next_seq_id)

    def _record(self, origin: Origin, message: Message, seq: int) -> bytes:
        """The record as the index embeds it, empty when it went to the message store."""
        msg_id = origin.msg_id
        theirs = isinstance(message.properties, RabbitProperties)
        if isinstance(message.properties, RabbitProperties):
            vhost = message.properties.source.vhost
            front = encode_rabbitmq(message, vhost, msg_id, origin.persistent)
        else:
            front = encode_front(message)
        size = len(front) if theirs else len(front) + len(message.body)
        if size >= self._options.embed_below:
            record = front if theirs else seal_stored(msg_id, front, message.body)
            self._messages().write(msg_id, record)
            return b""
        if theirs:
            return front
        packed = pack_publish(
            seq, origin.persistent, msg_id, origin.expiry, len(message.body), front + message.body
        )
        return seal_embedded(packed)[_PUBLISH_WORD + PAYLOAD_SIZE :]

    def _messages(self) -> MessageStore:
        if self._store is None:
            assert self._path is not None
            self._store = MessageStore.open(
                os.path.join(self._path, PERSISTENT_DIRECTORY),
                references={},
                snapshot=None,
                check=check_record,
                poison=Poison(),
                fs=self._fs,
                background=False,
            )
        return self._store

    def _flush(self) -> None:
        for place, waiting in self._waiting.items():
            self._writer(place).add(*_batch_of(waiting))
        self._waiting.clear()
        self._held = self._count = 0

    def finish(self) -> None:
        """Write the remaining records, and have the engine check all of them. Raises
        :class:`DamageError`, :class:`StorageError`."""
        if self._path is None:
            return
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
                content = b"".join(starmap(pack_count, counts[place[1] or 0].items()))
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


class RocketFill:
    """Fills one RocketMQ store. ``place``: ``None``: all is only counted.
    ``sizes``: of its files, as :func:`rocketstore.open` takes them."""

    def __init__(self, place: Staging | None, sizes: dict[str, int] | None = None) -> None:
        self._now = 0
        self._counts: dict[tuple[str, int], int] = {}
        self._store = None
        if place is not None:
            make_dirs(place.fs, place.path)
            self._store = rocketstore.open(
                place.path, background=False, clock=self._clock, fs=place.fs, **(sizes or {})
            )

    def _clock(self) -> int:
        return self._now

    def put(self, record: RocketRecord, store_timestamp: int) -> tuple[int, int]:
        """Add a record, stored at that time (ms) or when the one before it was, if that is later;
        gives queue offset and physical offset.

        Raises :class:`UsageError`, with the limit, for a record that RocketMQ can't hold.
        """
        size = _RECORD_SIZE + len(record.topic.encode()) + len(record.body) + len(record.properties)
        if size > MAX_MESSAGE_SIZE:
            raise UsageError(f"record of {size} bytes: the limit is {MAX_MESSAGE_SIZE}")
        self._now = store_timestamp
        key = (record.topic, record.queue_id)
        if self._store is None:
            self._counts[key] = self._counts.get(key, -1) + 1
            return self._counts[key], -1
        waits = record.topic == SCHEDULE_TOPIC
        put: PutResult = self._store.put(
            record.topic,
            record.body,
            queue_id=record.queue_id,
            properties=record.properties if waits else Delivered(record.properties),
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
            wait=False,
        )
        return put.queue_offset, put.offset

    def finish(self) -> None:
        """Close the store: all is durable then."""
        if self._store is not None:
            self._store.close()
