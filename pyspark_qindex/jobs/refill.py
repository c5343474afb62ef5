"""Fill new stores with messages that come in order: queue stores of ours
(:mod:`qindex.tools.filling`), RocketMQ stores. And messages of a queue as those of a RocketMQ
store, and back: the table in docs/spark.md.

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

import rocketstore
from journal.errors import StoreError, UsageError, storage_errors
from journal.fs.files import REAL, make_dirs
from journal.packed import unpack
from pyspark_qindex.jobs.fleet import Row
from qindex.format.envelope import make_envelope, open_envelope
from qindex.format.message import Message
from qindex.tools.filling import Origin
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
