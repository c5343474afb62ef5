"""Fill new stores with messages that come in order: queue stores of ours, RocketMQ stores. And
messages of a queue as those of a RocketMQ store, and back: the table in docs/spark.md.

The property ``QINDEX`` is the base64 of the message's :mod:`qindex.format.envelope`, with its
queue, seq_id, message id, expiry, priority, and whether it is persistent and redelivered.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgpack
import numpy as np

import rocketstore
from journal.errors import StoreError, UsageError, storage_errors
from journal.format import PAYLOAD_SIZE, pack_publish
from journal.fs.files import REAL, make_dirs, replace_file
from journal.memory.arrays import I64
from journal.packed import unpack
from msgstore import MessageStore
from pyspark_qindex.jobs.fleet import Row
from qindex.format import layout
from qindex.format.envelope import make_envelope, open_envelope
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
from rocketstore.format.compose import Delivered
from rocketstore.format.delay import SCHEDULE_TOPIC
from rocketstore.format.message import PutResult
from rocketstore.format.properties import KEYS, PROPERTIES_MAX, decode_properties, encode_properties
from rocketstore.options import MAX_MESSAGE_SIZE

EXACT: Final = "QINDEX"
"""The property that has all of a message."""
ROCKETMQ: Final = "rocketmq"
"""The property of ours that has the rest of a RocketMQ record."""
TOPIC_MAX: Final = 127
"""Bytes of a topic at most."""
_HEADER: Final = "h."
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]")
_KEPT: Final = re.compile(
    r"SCHEDULE_TOPIC_XXXX|TBW102|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT|BenchmarkTest|RMQ_SYS_.*|"
    r"TRANS_CHECK_MAX_TIME_TOPIC|SET_ASIDE"
)
_UNSEEN: Final = re.compile(r"[\x00-\x20\x7f]")
PUT_FIELDS: Final = ("flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times")
"""The other fields of a record that a put takes."""
_RECORD_SIZE = 91 + 12
"""Bytes of a record besides body, topic and properties, if one of its hosts is IPv6."""
_ROWS_AT_ONCE = 4096
_BYTES_AT_ONCE = 8 << 20
_PUBLISH_WORD = 8
_EMBED_BELOW: Final = Options().embed_below
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
class RocketRecord:
    """The arguments of a put. ``properties``: as they are stored. ``rest``: of :data:`PUT_FIELDS`
    those that are known."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    rest: Mapping[str, Any] = field(default_factory=dict)


def encode_name(name: str) -> str:
    """Return a name in characters that topics have.

    >>> encode_name("orders/ü 1"), encode_name("TBW102")
    ('orders%2F%C3%BC%201', '%54BW102')
    """
    raw = name.encode("utf-8", "surrogateescape")
    text = "".join(chr(b) if _PLAIN.match(bytes((b,))) else f"%{b:02X}" for b in raw)
    return f"%{raw[0]:02X}{text[1:]}" if _KEPT.fullmatch(text) else text


def decode_name(text: str) -> str:
    """The reverse of :func:`encode_name`."""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode())
    return raw.decode("utf-8", "surrogateescape")


def to_rocket(origin: Origin, message: Message) -> RocketRecord:
    """Return the RocketMQ record of a message. Raises :class:`UsageError` with the limit it
    exceeds."""
    mine = message.properties.get(ROCKETMQ)
    if isinstance(mine, Mapping) and origin.priority is None:
        return _as_it_was(mine, message.body)
    topic = encode_name(origin.queue)
    if len(topic) > TOPIC_MAX:
        raise UsageError(f"topic of {len(topic)} bytes: the limit is {TOPIC_MAX}")
    place = [origin.queue.encode("utf-8", "surrogateescape"), origin.seq_id, origin.msg_id,
             origin.persistent, origin.redelivered, origin.expiry, origin.priority]  # fmt: skip
    packed = msgpack.packb([*place, make_envelope(message)])
    properties = {EXACT: base64.b64encode(packed).decode()}
    if message.key and not _UNSEEN.search(message.key) and _is_text(message.key):
        properties[KEYS] = message.key
    shown = {_HEADER + encode_name(name): _shown(value) for name, value in message.headers.items()}
    data = _fitting(properties, {name: text for name, text in shown.items() if text})
    return RocketRecord(topic, origin.priority or 0, message.body, data)


def _fitting(properties: dict[str, str], shown: dict[str, str]) -> bytes:
    for names in (properties | shown, properties):
        size = sum(len(name.encode()) + len(text.encode()) + 2 for name, text in names.items()) - 1
        if size <= PROPERTIES_MAX:
            return encode_properties(names)
    raise UsageError(f"properties of {size} bytes: the limit is {PROPERTIES_MAX}")


def _shown(value: Any) -> str:
    if isinstance(value, str) and _is_text(value) and not set(value) & {"\0", "\2"}:
        return value
    from qindex.format.json_value import plain_value

    return json.dumps(plain_value(value))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_rocket(
    topic: str, queue_id: int, body: bytes, properties: bytes, rest: Mapping[str, Any]
) -> tuple[Origin | str, Message]:
    """Return the message of a RocketMQ record, and its origin or the name of the queue it goes to.
    ``rest``: the other fields. Raises :class:`StoreError` for a damaged property :data:`EXACT`."""
    found = decode_properties(properties)
    if EXACT in found:
        return _exact(found[EXACT], body)
    message = Message(
        body,
        found.get(KEYS),
        {name: text for name, text in found.items() if name != KEYS},
        {ROCKETMQ: {"topic": topic, "queue_id": queue_id, "properties": properties, **rest}},
        int(rest.get("store_timestamp", 0)) * 1_000_000,
    )
    return f"{decode_name(topic)}.{queue_id}", message


def _exact(text: str, body: bytes) -> tuple[Origin, Message]:
    try:
        queue, *place, envelope = unpack(base64.b64decode(text, validate=True))
        origin = Origin(queue.decode("utf-8", "surrogateescape"), *place)
    except (ValueError, TypeError) as error:
        raise StoreError(f"property {EXACT} is damaged: {error}") from error
    return origin, open_envelope(envelope, body)


def _as_it_was(mine: Mapping[str, Any], body: bytes) -> RocketRecord:
    topic = str(mine["topic"])
    if topic == SCHEDULE_TOPIC:
        raise UsageError("it waited in RocketMQ's queue of delayed messages")
    rest = {name: mine[name] for name in PUT_FIELDS if mine.get(name) is not None}
    return RocketRecord(topic, int(mine["queue_id"]), body, bytes(mine["properties"]), rest)


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


@contextmanager
def new_store(target: str, source: str) -> Iterator[Staging]:
    """Yield the place where to build ``target``, which appears when all is done. The store of an
    earlier run of the task stays as it is: what is built again is dropped."""
    with storage_errors(os.path.dirname(target), "can't be made"):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        is_made = os.path.isdir(target) and os.listdir(target)
    with Staging(REAL, f"{target}.again" if is_made else target, source) as staging:
        yield staging
        if not is_made:
            staging.commit()


def fill_stores(
    rows: Iterator[dict[str, Any]],
    *,
    targets: dict[str, str],
    source: str,
    begin: Callable[[str, Staging], Any],
    put: Callable[[Any, dict[str, Any]], Row | None],
) -> Iterator[Row]:
    """Build the target of each store from its rows, which come store by store; yield what ``put``
    returns for them. ``begin`` takes the name of a store, and where to build its target."""
    for store, mine in groupby(rows, itemgetter("store")):
        with new_store(targets[store], source) as place:
            fill = begin(store, place)
            for row in mine:
                done = put(fill, row)
                if done is not None:
                    yield done
            fill.finish()


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
        begin_store(self._fs, self._path, layout.StoreMarker(DEFAULT_ENTRY_COUNT, _VHOST))

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


class RocketFill:
    """Fills one RocketMQ store. ``sizes``: of its files, as :func:`rocketstore.open` takes them."""

    def __init__(self, place: Staging, sizes: Mapping[str, int]) -> None:
        self._now = 0
        make_dirs(place.fs, place.path)
        self._store = rocketstore.open(
            place.path, background=False, clock=lambda: self._now, fs=place.fs, **sizes
        )

    def put(self, record: RocketRecord, store_timestamp: int) -> int:
        """Add a record, stored at that time (ms) or later, as the one before it; return its queue
        offset. Raises :class:`UsageError` with the limit that the record exceeds."""
        size = _RECORD_SIZE + len(record.topic.encode()) + len(record.body) + len(record.properties)
        if size > MAX_MESSAGE_SIZE:
            raise UsageError(f"record of {size} bytes: the limit is {MAX_MESSAGE_SIZE}")
        self._now = store_timestamp
        waits = record.topic == SCHEDULE_TOPIC
        put: PutResult = self._store.put(
            record.topic,
            record.body,
            queue_id=record.queue_id,
            properties=record.properties if waits else Delivered(record.properties),
            wait=False,
            **record.rest,
        )
        return put.queue_offset

    def finish(self) -> None:
        """Close the store: all is durable then."""
        self._store.close()
