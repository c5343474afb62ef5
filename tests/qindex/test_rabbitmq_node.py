"""A real RabbitMQ node and this engine take over each other's queues.

Ours to the node: the queue directories that the engine wrote in RabbitMQ mode, closed or killed,
are put in place of a node's own. Its way back: what a killed node left is read here. Where no
server is installed all of it is skipped, with the reason.

What a kill of the engine leaves should be opened and closed by the engine before a node gets it.
A node that gets it at once is known to differ in this:

* Where the kill cut a record (in the journal, or at the end of a segment) the node does not
  start; the engine cuts it off.
* Where the kill cut a flush, messages come back that were acknowledged while the flush was under
  way: their publish, deliver and ack stand in the journal, and their publish in a segment too. A
  node forgets an entry at its third record and then goes by the segment; the engine merges.

And in any case the node delivers everything with ``redelivered``, the engine what had been
delivered.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pika
import pika.exceptions
import pytest

import qindex
from journal.format import ACK, PUBLISH_PERSISTENT
from journal.fs.files import REAL
from journal.replay import walk_journal
from qindex.format.entries import read_entry
from qindex.format.rabbitmq.bridge import RabbitProperties
from qindex.format.rabbitmq.properties_format import Properties, encode_properties
from qindex.format.rabbitmq.table_format import Field, table
from qindex.format.segment import file_name
from qindex.index.segment import ABSENT
from qindex.index.segment_scan import scan_segment
from qindex.recovery.store_recovery import load_queue
from qindex.view.reader import Row, StoreReader
from tests.qindex.rabbitmq_child import (
    ENTRIES,
    check_books,
    kill_in_the_middle,
    number_of,
    open_ours,
)
from tests.rabbitmq_server import Drained, RabbitServer, rabbitmq_or_skip

EMBED_BELOW = 4096
"""Body and properties of fewer bytes are embedded by a node."""
OURS = ("qindex.seq", "qindex.settings")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RabbitServer]:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path / "node") as node:
        node.start()
        yield node
    assert node.processes() == []


@pytest.fixture(autouse=True)
def _keep_property_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pika keep the bytes of properties: as values it loses types, and fractions of floats."""
    decode = pika.BasicProperties.decode

    def keeping(self: Any, encoded: bytes, offset: int = 0) -> Any:
        self.raw = bytes(encoded[offset:])
        return decode(self, encoded, offset)

    monkeypatch.setattr(pika.BasicProperties, "decode", keeping)


def queue_dir(store: Path, server: RabbitServer, name: str) -> Path:
    """Directory of a queue in a store of ours: named as the node names it."""
    return store / "queues" / server.queue_dir(name).name


def put_before(server: RabbitServer, queues: Mapping[str, Path]) -> None:
    """Replace the stopped node's directories of these queues by copies of queue directories."""
    for name, source in queues.items():
        target = server.queue_dir(name)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    server.forget_clean_stop()


# --- what is compared ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """What was published through the engine."""

    body: bytes
    key: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)

    def publish(self, queue: qindex.Queue) -> int:
        return queue.publish(
            self.body, key=self.key, headers=self.headers, properties=self.properties
        )


def seen(one: Field) -> Any:
    """A typed header as pika decodes it."""
    tag, value = one
    if tag in "fd":
        return int(value)
    if tag == "T":
        return datetime.fromtimestamp(value, UTC)
    if tag == "D":
        return Decimal(value[1]).scaleb(-value[0])
    if tag == "F":
        return {name: seen(inner) for name, inner in value}
    if tag == "A":
        return [seen(inner) for inner in value]
    return value.decode() if tag == "S" else value


def assert_drained(drained: list[Drained], sent: list[Sent], queue: str) -> None:
    """All that was sent came out of the node, in order, with all there is to it."""
    assert [one.body for one in drained] == [one.body for one in sent]
    for got, one in zip(drained, sent, strict=True):
        fields = table(one.headers) if one.headers else None
        rest = {name: value for name, value in one.properties.items() if name != "exchange"}
        expected = Properties(headers=fields, **{"delivery_mode": 2, **rest})
        assert got.properties.raw == encode_properties(expected)
        for name in ("content_type", "correlation_id", "priority", "timestamp", "app_id"):
            assert getattr(got.properties, name) == rest.get(name)
        if fields is None:
            assert got.properties.headers is None
        else:
            assert got.properties.headers == {name: seen(value) for name, value in fields}
        assert got.routing_key == (queue if one.key is None else one.key)
        assert got.exchange == one.properties.get("exchange", "")
        assert got.redelivered


HEADERS: dict[str, Any] = {
    "bool": True,
    "int": -5,
    "long": 1 << 40,
    "float": 2.75,
    "text": "käse €",
    "empty": "",
    "bytes": b"\x00\xff",
    "none": None,
    "decimal": Decimal("-31.4"),
    "time": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
    "table": {"inner": {"deep": [1, "x", {"deeper": False}]}, "none": None},
    "array": [1, 2.5, "three", b"4", None, [], {}],
    "b": Field("b", -100),
    "B": Field("B", 200),
    "s": Field("s", -30000),
    "u": Field("u", 60000),
    "i": Field("i", 4_000_000_000),
    "l": Field("l", 7),
    "f": Field("f", 0.5),
    "T": Field("T", 1_700_000_000),
}
PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "amq.reply",
    "expiration": "3600000",
    "message_id": "m-1",
    "timestamp": 1_700_000_001,
    "type": "order.new",
    "user_id": "guest",
    "app_id": "tests",
    "cluster_id": "c",
}


def kinds() -> list[Sent]:
    """One message of each header, of each property, of all together; keys and exchanges."""
    return [
        *(Sent(f"h {name}".encode(), headers={name: value}) for name, value in HEADERS.items()),
        *(Sent(f"p {name}".encode(), properties={name: v}) for name, v in PROPERTIES.items()),
        Sent(b"all", headers=HEADERS, properties=PROPERTIES),
        Sent(b"key", key="another.key"),
        Sent(b"no key", key=""),
        Sent(b"exchange", key="a.b", properties={"exchange": "amq.topic", "type": "t"}),
    ]


def sizes() -> list[Sent]:
    """Bodies of all sorts of lengths, up to just below what a node embeds."""
    rng = random.Random(5)
    lengths = [0, 1, 2, 254, 255, 256, 257, 1023, 1024, EMBED_BELOW - 4]
    lengths += [rng.randrange(EMBED_BELOW - 3) for _ in range(150)]
    return [Sent(rng.randbytes(length)) for length in lengths]


# --- (1) closed by us, started by the node -------------------------------------------------------


def write_backlog(engine: qindex.Engine) -> list[Sent]:
    """5,000 messages over three segments: the first one all acknowledged, others here and there."""
    queue = engine.queue("ours.backlog")
    sent = [Sent(b"%05d " % number + b"x" * (number % 190)) for number in range(5000)]
    for first in range(0, len(sent), 250):
        queue.publish_many([one.body for one in sent[first : first + 250]])
    queue.ack_many(queue.get_many(2100))
    deliveries = queue.get_many(1500)
    kept = [one for number, one in enumerate(deliveries) if number % 3 == 0]
    queue.ack_many([one for number, one in enumerate(deliveries) if number % 3])
    for delivery in kept[::2]:
        queue.nack(delivery)
    return sent[2100:3600][::3] + sent[3600:]


def write_settled(engine: qindex.Engine) -> list[Sent]:
    """Some acknowledged, some delivered, some given back (once, twice), some never delivered."""
    queue = engine.queue("ours.settled")
    sent = [Sent(b"s%d" % number, headers={"n": number}) for number in range(100)]
    for one in sent:
        one.publish(queue)
    left = []
    for number in range(80):
        delivery = queue.get(timeout=0)
        assert delivery is not None
        assert delivery.body == sent[number].body
        if number % 4 == 0:
            delivery.ack()
            continue
        left.append(sent[number])
        if number % 4 > 1:
            delivery.nack()
            delivery = queue.get(timeout=0)
            assert delivery is not None
            assert delivery.redelivered
            if number % 4 == 3:
                # acknowledged after its redelivery
                delivery.ack()
                left.pop()
    return left + sent[80:]


def write_passing(engine: qindex.Engine) -> list[Sent]:
    """With a TTL far off, with one that is over, and transient: the first alone are left."""
    queue = engine.queue("ours.passing", message_ttl=86_400)
    left = []
    for number in range(30):
        queue.publish(b"transient", persistent=False)
        queue.publish(b"short-lived", ttl=0.001)
        left.append(Sent(b"t%d" % number))
        left[-1].publish(queue)
    return left


def test_a_node_takes_over_what_was_closed(server: RabbitServer, tmp_path: Path) -> None:
    store = tmp_path / "ours"
    expected: dict[str, list[Sent]] = {"ours.kinds": kinds(), "ours.sizes": sizes()}
    with open_ours(store, max_journal_entries=700) as engine:
        for name, sent in expected.items():
            queue = engine.queue(name)
            for one in sent:
                one.publish(queue)
        expected["ours.backlog"] = write_backlog(engine)
        expected["ours.settled"] = write_settled(engine)
        expected["ours.passing"] = write_passing(engine)
        queue = engine.queue("ours.empty")
        queue.publish_many([b"gone"] * 10)
        queue.ack_many(queue.get_many(10))
        expected["ours.empty"] = []
    segments = {path.name for path in queue_dir(store, server, "ours.backlog").glob("*.idx")}
    assert segments == {"1.idx", "2.idx"}

    for name in expected:
        server.declare_queue(name)
        server.publish_confirmed(name, [b"to be replaced"])
    server.stop()
    put_before(server, {name: queue_dir(store, server, name) for name in expected})
    beside = own_files(server, expected)
    assert {name for _, name in beside} == set(OURS)
    server.start()
    for name, sent in expected.items():
        assert_drained(server.drain(name), sent, name)
        server.publish_confirmed(name, [b"after"])
        drained = server.drain(name)
        assert [(one.body, one.redelivered) for one in drained] == [(b"after", False)]
    # What is ours alone the node neither reads nor removes.
    assert own_files(server, expected) == beside
    assert "[error]" not in server.log_tail(1000)


def own_files(server: RabbitServer, names: Mapping[str, object]) -> dict[tuple[str, str], bytes]:
    """Bytes of the files of ours in the node's queue directories, by queue and name."""
    return {
        (name, path.name): path.read_bytes()
        for name in names
        for path in server.queue_dir(name).glob("qindex.*")
    }


# --- (2) killed by -9, started by the node -------------------------------------------------------

Stored: TypeAlias = tuple[bytes, str, bytes]
"""Body, key and property bytes of a message."""


def delivered_by_us(store: Path, name: str) -> dict[int, Stored]:
    """All that our engine delivers from a copy of a store, by seq_id; the copy is closed then."""
    copied = store.with_name(f"{store.name}.closed")
    shutil.copytree(store, copied)
    with open_ours(copied) as engine:
        found = engine.queue(name).get_many(1_000_000)
        return {one.seq_id: as_stored(one.message) for one in found}


def acked_in_a_flush(directory: Path) -> dict[int, Stored]:
    """Persistent messages of which the journal has publish and ack, and a segment the publish."""
    data = (directory / "journal.jif").read_bytes()
    walk = walk_journal(data)
    acked = set(walk.seqs[walk.kinds == ACK].tolist())
    found = {}
    for seq_id, at, kind in zip(walk.seqs.tolist(), walk.offsets.tolist(), walk.kinds, strict=True):
        segment = directory / file_name(seq_id // ENTRIES)
        if kind != PUBLISH_PERSISTENT or seq_id not in acked or not segment.exists():
            continue
        if filed(segment)[seq_id % ENTRIES] != ABSENT:
            message = read_entry(data, at + 8, seq_id).message
            assert message is not None
            found[seq_id] = as_stored(message)
    return found


@cache
def filed(segment: Path) -> bytearray:
    """State of each entry as a segment file has it."""
    return scan_segment(str(segment), segment.read_bytes(), int(segment.stem), ENTRIES).filed


def as_stored(message: qindex.Message | Row) -> Stored:
    assert isinstance(message.properties, RabbitProperties)
    raw = message.properties.source.properties_raw
    assert raw is not None
    assert message.body is not None
    return message.body, message.key or "", raw


def as_drained(one: Drained) -> Stored:
    return one.body, one.routing_key, one.properties.raw


def is_torn(directory: Path) -> bool:
    """Whether the kill cut a record in the middle."""
    return bool(load_queue(REAL, str(directory), ENTRIES, os.listdir(directory)).findings)


def test_a_node_takes_over_what_was_killed(server: RabbitServer, tmp_path: Path) -> None:
    """After open and close by the engine, and (in a queue of another name) at once."""
    expected: dict[str, dict[int, Stored]] = {}
    told = {}
    directories = {}
    for after in (40, 9_000, 25_000):
        name = f"killed.{after}"
        store = tmp_path / name
        told[name] = kill_in_the_middle(store, name, after)
        raw = queue_dir(store, server, name)
        expected[name] = delivered_by_us(store, name)
        directories[name] = queue_dir(tmp_path / f"{name}.closed", server, name)
        assert [as_stored(row) for row in StoreReader(store).queue(name) if row.persistent] == [
            *expected[name].values()
        ]
        if not is_torn(raw):
            expected[f"{name}.raw"] = expected[name] | acked_in_a_flush(raw)
            directories[f"{name}.raw"] = raw
    for name in expected:
        server.declare_queue(name)
    server.stop()
    put_before(server, directories)
    server.start()
    drained = {name: server.drain(name) for name in expected}
    for name, found in drained.items():
        assert [as_drained(one) for one in found] == [
            expected[name][seq_id] for seq_id in sorted(expected[name])
        ]
        assert all(one.redelivered for one in found)
    for name, steps in told.items():
        check_books(steps, [number_of(one.body) for one in drained[name]])
    assert "[error]" not in server.log_tail(1000)


def test_acks_during_a_flush_that_was_cut(server: RabbitServer, tmp_path: Path) -> None:
    sent = [Sent(b"%d " % number, headers={"n": number}) for number in range(100)]
    store, crashed = tmp_path / "ours", tmp_path / "crashed"
    name = "ours.cut"
    with open_ours(store, background=False) as engine:
        queue = engine.queue(name)
        for one in sent:
            one.publish(queue)
        shutil.copytree(store, crashed)
        # What the flush writes of the state now ...
        with open_ours(crashed):
            pass
        # ... while an ack returns, and then the kill.
        queue.ack_many(queue.get_many(50)[::2])
        directory = queue_dir(crashed, server, name)
        shutil.copy(queue_dir(store, server, name) / "journal.jif", directory)
        (crashed / "qindex.clean").unlink()
    left = sent[1:50:2] + sent[50:]
    assert len(acked_in_a_flush(directory)) == 25
    ours = delivered_by_us(crashed, name)
    assert [body for body, _, _ in ours.values()] == [one.body for one in left]

    for queue_name in (name, "at once"):
        server.declare_queue(queue_name)
    server.stop()
    closed = queue_dir(tmp_path / "crashed.closed", server, name)
    put_before(server, {name: closed, "at once": directory})
    server.start()
    assert_drained(server.drain(name), left, name)
    assert_drained(server.drain("at once"), sent, name)


def test_a_torn_segment_is_cut_by_us_first(server: RabbitServer, tmp_path: Path) -> None:
    """A kill in the middle of a flush: the segment ends inside a record, and the journal still
    has all. A node does not start from that; after open and close by the engine it does."""
    sent = [Sent(b"%d " % number + b"." * 100, headers={"n": number}) for number in range(2500)]
    store = tmp_path / "ours"
    name = "ours.torn"
    with open_ours(store, background=False) as engine:
        queue = engine.queue(name)
        for one in sent:
            one.publish(queue)
        queue.ack_many(queue.get_many(500)[1::2])
        before = tmp_path / "before the flush"
        shutil.copytree(store, before)
        queue.flush()
        whole = (queue_dir(store, server, name) / "1.idx").read_bytes()
        assert (queue_dir(store, server, name) / "journal.jif").read_bytes().strip(b"\0") == b""
        torn = queue_dir(before, server, name)
        shutil.copy(queue_dir(store, server, name) / "0.idx", torn)
        (torn / "1.idx").write_bytes(whole[: len(whole) // 2 + 77])
    assert is_torn(torn)
    with open_ours(before):
        pass
    assert not is_torn(torn)

    server.declare_queue(name)
    server.stop()
    put_before(server, {name: torn})
    server.start()
    assert_drained(server.drain(name), sent[:500:2] + sent[500:], name)


# --- (3) written by the node, killed, read by us -------------------------------------------------

NODE_HEADERS: dict[str, Any] = {
    "bool": True,
    "int": -5,
    "long": 1 << 40,
    "text": "käse €",
    "bytes": b"\x00\xff",
    "none": None,
    "decimal": Decimal("-31.4"),
    "time": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
    "table": {"inner": {"deep": [1, "x", {"deeper": False}]}},
    "array": [1, "three", None, [], {}],
}
NODE_PLAIN = NODE_HEADERS | {"time": int(NODE_HEADERS["time"].timestamp())}


def rows(server: RabbitServer, name: str) -> list[Row]:
    """What a queue holds, as our reader shows it."""
    reader = StoreReader(server.vhost_dir).queue(name)
    found = list(reader)
    assert reader.findings == []
    for row in found:
        assert row.persistent
        assert row.error is None
        assert row.body is not None
        assert row.size == len(row.body)
    return found


def has_written_all(server: RabbitServer, left: int) -> bool:
    """Acks are not confirmed: a node writes them within some 200 ms. Segments it writes when a
    queue has been idle for a second or more."""
    segments = list(server.queue_dir("node.backlog").glob("*.idx"))
    return (
        len(segments) >= 2 and len(list(StoreReader(server.vhost_dir).queue("node.acked"))) <= left
    )


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def publish_kinds(server: RabbitServer) -> list[tuple[bytes, pika.BasicProperties]]:
    """Confirmed messages of each header and each property; gives them."""
    server.declare_queue("node.kinds")
    sent = [
        (
            name.encode(),
            pika.BasicProperties(delivery_mode=2, headers={name: value}, type="header"),
        )
        for name, value in NODE_HEADERS.items()
    ]
    sent += [
        (name.encode(), pika.BasicProperties(**{"delivery_mode": 2, name: value}))
        for name, value in PROPERTIES.items()
    ]
    sent.append((b"all", pika.BasicProperties(delivery_mode=2, headers=NODE_HEADERS, **PROPERTIES)))
    for body, properties in sent:
        server.publish_confirmed("node.kinds", [body], properties)
    return sent


def test_we_read_what_a_killed_node_left(server: RabbitServer) -> None:
    backlog = [b"%05d " % number + b"y" * (number % 500) for number in range(5000)]
    server.declare_queue("node.backlog")
    server.publish_confirmed("node.backlog", backlog)
    server.declare_queue("node.acked")
    server.publish_confirmed("node.acked", [b"%d" % number for number in range(600)])
    server.declare_queue("node.large")
    large = [b"l" * (EMBED_BELOW - 4), b"L" * (EMBED_BELOW - 3), b"L" * 300_000, b"small"]
    server.publish_confirmed("node.large", large)
    sent = publish_kinds(server)
    left = [number for number in range(600) if number >= 300 or number % 3 != 2]
    # The connection breaks when the node is killed, and can't be closed in order then.
    with contextlib.suppress(pika.exceptions.AMQPConnectionError), server.channel() as channel:
        for number, (method, _, body) in enumerate(channel.consume("node.acked"), start=1):
            assert body == b"%d" % (number - 1)
            if number % 3 == 0:
                channel.basic_ack(method.delivery_tag)
            if number == 300:
                break
        wait_until(lambda: has_written_all(server, len(left)), "the node has written all")
        server.kill()

    found = rows(server, "node.backlog")
    assert [row.body for row in found] == backlog
    assert {row.key for row in found} == {"node.backlog"}
    assert all(row.properties == {"exchange": "", "delivery_mode": 2} for row in found)
    assert len(list(server.queue_dir("node.backlog").glob("*.idx"))) >= 2

    assert [row.body for row in rows(server, "node.acked")] == [b"%d" % number for number in left]

    found = rows(server, "node.large")
    assert [row.size for row in found] == [len(body) for body in large]
    assert [row.location == "store" for row in found] == [False, True, True, False]
    assert [row.body for row in found] == large

    found = rows(server, "node.kinds")
    assert [row.body for row in found] == [body for body, _ in sent]
    for row, (body, properties) in zip(found, sent, strict=True):
        # byte for byte what the client sent, and as values what was given to it
        assert as_stored(row) == (body, "node.kinds", b"".join(properties.encode()))
        names = properties.headers or {}
        assert row.headers == {name: NODE_PLAIN[name] for name in names}
        for name in PROPERTIES:
            assert row.properties.get(name) == getattr(properties, name)
