"""Both ways with real nodes of RabbitMQ 4.0 and 4.3: they start from what we write, and deliver it;
we read what they leave, as they deliver it.

The nodes are those that ``scripts/rabbitmq-4x.sh DIR 40|43 install`` puts into ``DIR``;
``QINDEX_RABBITMQ_4X`` names it. Starting one needs root.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest

import qindex
from qindex.tools.convert import convert
from qindex.view.reader import Row, StoreReader
from tests.golden import golden
from tests.golden_v2 import scenario

SCRIPT = Path(__file__).parents[2] / "scripts" / "rabbitmq-4x.sh"
PLACE = os.environ.get("QINDEX_RABBITMQ_4X", "")
SMALL = (
    "[{rabbit,[{classic_queue_index_v2_segment_entry_count,512},"
    "{msg_store_file_size_limit,1048576}]}]."
)
NAMES = ("content_type", "headers", "delivery_mode", "priority", "correlation_id", "expiration")

Message = tuple[bytes, bool, str, str, dict[str, Any]]


@dataclass
class Node:
    """A node of 4.x in a directory of its own."""

    version: str
    name: str

    def run(self, verb: str, *more: str) -> str:
        command = ["bash", str(SCRIPT), PLACE, self.version, verb, self.name, *more]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=300
        ).stdout.strip()

    def start(self, advanced: str = "[].") -> pika.BlockingConnection:
        port = int(self.run("start", advanced))
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))

    @property
    def vhost(self) -> Path:
        (path,) = (Path(PLACE) / self.name).glob("mnesia/*/msg_stores/vhosts/*")
        return path

    def put(self, source: Path) -> None:
        """Put the queues of ``source`` in the place of the node's."""
        for name in ("queues", "msg_store_persistent"):
            shutil.rmtree(self.vhost / name, ignore_errors=True)
            if (source / name).is_dir():
                shutil.copytree(source / name, self.vhost / name)
        (self.vhost / "recovery.dets").unlink(missing_ok=True)
        owner = f"--reference={self.vhost}"
        subprocess.run(["chown", "-R", owner, str(self.vhost)], check=True)


@pytest.fixture(params=["40", "43"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if not PLACE or not (Path(PLACE) / f"root{request.param}").is_dir() or os.getuid():
        pytest.skip(
            "no RabbitMQ 4.x here: scripts/rabbitmq-4x.sh DIR "
            f"{request.param} install, as root, and QINDEX_RABBITMQ_4X=DIR"
        )
    one = Node(request.param, f"test{request.param}")
    shutil.rmtree(Path(PLACE) / one.name, ignore_errors=True)
    yield one
    if (Path(PLACE) / one.name / "pid").exists():
        one.run("kill")
    shutil.rmtree(Path(PLACE) / one.name, ignore_errors=True)


def drain(connection: pika.BlockingConnection, queue: str) -> list[Message]:
    channel = connection.channel()
    found: list[Message] = []
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            return found
        values = {name: getattr(properties, name) for name in NAMES}
        shown = {name: value for name, value in values.items() if value not in (None, {})}
        found.append((body, method.redelivered, method.exchange, method.routing_key, shown))


def expected(rows: Iterator[Row], *, redelivered: bool | None = None) -> list[Message]:
    found: list[Message] = []
    for row in rows:
        assert row.body is not None
        values = {**row.properties, "headers": dict(row.headers)}
        shown = {name: values[name] for name in NAMES if values.get(name) not in (None, {})}
        again = row.redelivered if redelivered is None else redelivered
        found.append((row.body, again, row.properties["exchange"], row.key or "", shown))
    return found


def declare(node: Node, queues: list[str], arguments: dict[str, Any] | None = None) -> None:
    connection = node.start()
    for queue in queues:
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)
    connection.close()
    node.run("stop")


def delivers(
    node: Node, source: Path, queues: list[str], arguments: dict[str, Any] | None = None
) -> int:
    """Give a node the queues of ``source``; it delivers what we read there. Gives the messages."""
    declare(node, queues, arguments)
    node.put(source)
    connection = node.start()
    count = 0
    for queue in queues:
        rows = StoreReader(source).queue(queue).entries()
        found = drain(connection, queue)
        assert found == expected(rows, redelivered=True)
        count += len(found)
    return count


@pytest.mark.parametrize("name", ["vh2", "x43_d4", "x40_a"])
def test_a_node_starts_from_what_was_saved(node: Node, name: str, tmp_path: Path) -> None:
    source = scenario(name)
    saved = qindex.salvage(source.vhost_dir, tmp_path / "new", format="rabbitmq-4")
    queues = [queue for queue, delivered in source.delivered.items() if delivered]
    assert delivers(node, tmp_path / "new", queues) == saved.messages > 100


def test_a_node_starts_from_converted_queues(node: Node, tmp_path: Path) -> None:
    vhost = golden("e1").copy(tmp_path)
    convert(vhost, 2)
    assert delivers(node, vhost, StoreReader(vhost).queue_names()) == 177


def test_a_node_starts_from_a_store_of_ours(node: Node, tmp_path: Path) -> None:
    chance = random.Random(4)
    with qindex.open(tmp_path / "store", background=False) as engine:
        for number in range(3000):
            body = b"%d:" % number + chance.randbytes(chance.choice((0, 20, 900, 9000)))
            headers = {"n": number} if number % 3 else None
            engine.queue("ours").publish(body, key="ours", headers=headers)
    convert(tmp_path / "store", 2, out=tmp_path / "vhost")
    assert delivers(node, tmp_path / "vhost", ["ours"]) == 3000


def test_a_priority_queue_goes_to_a_node_and_comes_back(node: Node, tmp_path: Path) -> None:
    chance = random.Random(4)
    with qindex.open(tmp_path / "store", background=False) as engine:
        jobs = engine.queue("jobs", max_priority=9)
        for number in range(600):
            body = b"%d:" % number + chance.randbytes(chance.choice((0, 20, 900, 9000)))
            jobs.publish(body, priority=number % 7, key="jobs")
    report = convert(tmp_path / "store", 2, out=tmp_path / "vhost")
    (declared,) = report.declarations
    assert declared["arguments"] == {"x-max-priority": 9}
    assert delivers(node, tmp_path / "vhost", ["jobs"], declared["arguments"]) == 600
    node.run("stop")
    qindex.salvage(node.vhost, tmp_path / "back")
    with qindex.open(tmp_path / "back") as engine:
        jobs = engine.queue("jobs")
        assert jobs.settings.max_priority == 9
        assert jobs.stats().ready_by_priority == (86, 86, 86, 86, 86, 85, 85, 0, 0, 0)
        assert [one.priority for one in jobs.get_many(85)] == [6] * 85


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_a_node_leaves_is_read(node: Node, end: str) -> None:
    chance = random.Random(7)
    channel = node.start(SMALL).channel()
    channel.confirm_delivery()
    channel.queue_declare("a", durable=True)
    channel.queue_declare("p", durable=True, arguments={"x-max-priority": 3})
    for number in range(2000):
        body = b"%d:" % number + chance.randbytes(40_000 if number % 50 == 0 else 60)
        properties = pika.BasicProperties(delivery_mode=2, priority=number % 5, headers={"n": 1})
        channel.basic_publish("", "ap"[number % 3 == 0], body, properties)
    for number in range(500):
        method, _, _ = channel.basic_get("a")
        if number % 2:
            channel.basic_ack(method.delivery_tag)
    time.sleep(2)  # until the acks are written
    node.run(end)
    assert qindex.verify(node.vhost).sound
    reader = StoreReader(node.vhost)
    before = {name: expected(reader.queue(name).entries()) for name in ("a", "p")}
    assert [len(before[name]) for name in ("a", "p")] == [1333 - 250, 667]
    connection = node.start(SMALL)
    assert {name: drain(connection, name) for name in ("a", "p")} == before
