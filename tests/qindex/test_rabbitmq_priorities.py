"""A real RabbitMQ node and this engine take over each other's priority queues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

import qindex
from qindex.format.priorities import SHIFT
from tests.qindex.rabbitmq_child import open_ours
from tests.rabbitmq_server import RabbitServer, rabbitmq_or_skip

HIGHEST = 5
ARGUMENTS = {"x-max-priority": HIGHEST}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RabbitServer]:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path / "node") as node:
        node.start()
        yield node
    assert node.processes() == []


def in_order(sent: list[tuple[int, bytes]]) -> list[bytes]:
    """Give bodies as they are to be delivered, of (priority, body) as they were published."""
    return [body for _, body in sorted(sent, key=lambda one: -min(one[0], HIGHEST))]


def test_a_node_takes_over_a_priority_queue(server: RabbitServer, tmp_path: Path) -> None:
    store = tmp_path / "ours"
    sent: list[tuple[int, bytes]] = []
    with open_ours(store, max_journal_entries=50) as engine:
        jobs = engine.queue("jobs", max_priority=HIGHEST)
        for number in range(300):
            priority = (0, 4, 2, 4)[number % 4]
            body = b"%d " % number + b"x" * (number % 90)
            headers = {"n": number} if number % 3 else None
            jobs.publish(body, priority=priority, headers=headers)
            sent.append((priority, body))
        ordered = in_order(sent)
        taken = jobs.get_many(180)
        assert taken.bodies == ordered[:180]
        jobs.ack_many([*taken][::2])
        expected = ordered[:180][1::2] + ordered[180:]
    server.declare_queue("jobs", ARGUMENTS)
    server.stop()
    for priority in (0, 2, 4):
        target = server.queue_dir("jobs", priority)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(store / "queues" / target.name, target)
    server.forget_clean_stop()
    server.start()
    drained = server.drain("jobs")
    assert [one.body for one in drained] == expected
    numbers = [int(body.split(b" ", 1)[0]) for body in expected]
    assert [one.properties.priority or 0 for one in drained] == [
        (0, 4, 2, 4)[number % 4] for number in numbers
    ]
    high = pika.BasicProperties(delivery_mode=2, priority=5)
    server.publish_confirmed("jobs", [b"low"])
    server.publish_confirmed("jobs", [b"high"], high)
    assert [one.body for one in server.drain("jobs")] == [b"high", b"low"]
    assert "[error]" not in server.log_tail(1000)


def filled(server: RabbitServer) -> list[bytes]:
    """Publish to a priority queue of the node, which is stopped then; gives the bodies in order."""
    server.declare_queue("jobs", ARGUMENTS)
    sent: list[tuple[int, bytes]] = []
    for priority in (0, 3, 1, 200, 3, None):
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        bodies = [b"%d %r" % (number, priority) for number in range(20)]
        server.publish_confirmed("jobs", bodies, properties)
        sent += [(priority or 0, body) for body in bodies]
    server.stop()
    return in_order(sent)


def test_a_nodes_priority_queue_is_salvaged_as_one(server: RabbitServer, tmp_path: Path) -> None:
    expected = filled(server)
    saved = qindex.salvage(server.vhost_dir, tmp_path / "new")
    assert saved.complete
    (queue,) = saved.queues
    assert (queue.name, queue.messages, queue.max_priority) == ("jobs", 120, HIGHEST)
    with qindex.open(tmp_path / "new") as engine:
        jobs = engine.queue("jobs")
        assert jobs.settings.max_priority == HIGHEST
        assert jobs.stats().ready_by_priority == (40, 20, 0, 40, 0, 20)
        jobs.publish(b"ours", priority=5)
        batch = jobs.get_many(200)
        assert batch.bodies == [*expected[:20], b"ours", *expected[20:]]
        assert [one.priority for one in batch[:20]] == [5] * 20
        assert batch[0].properties["priority"] == 200  # as it was sent
    assert qindex.verify(tmp_path / "new").sound


def test_a_nodes_directories_open_as_ours(server: RabbitServer, tmp_path: Path) -> None:
    expected = filled(server)
    with open_ours(tmp_path / "ours"):
        pass
    (tmp_path / "ours" / "qindex.clean").unlink()
    for priority in range(HIGHEST + 1):
        source = server.queue_dir("jobs", priority)
        if source.is_dir():  # a node makes it with the first message
            shutil.copytree(source, tmp_path / "ours" / "queues" / source.name)
    with open_ours(tmp_path / "ours") as engine:
        assert engine.queue_names() == ["jobs"]
        jobs = engine.queue("jobs")
        assert jobs.settings.max_priority == HIGHEST
        assert jobs.publish(b"ours", priority=1) >> SHIFT == 1
        found = []
        while (delivery := jobs.get(0)) is not None:
            found.append(delivery.body)
            delivery.ack()
        assert found == [*expected[:80], b"ours", *expected[80:]]


def test_a_node_that_has_not_declared_the_queue_deletes_its_directories(
    server: RabbitServer, tmp_path: Path
) -> None:
    """Why convert prints the declarations."""
    with open_ours(tmp_path / "ours") as engine:
        engine.queue("jobs", max_priority=HIGHEST).publish(b"x", priority=3)
    server.declare_queue("other")
    server.stop()
    target = server.queue_dir("jobs", 3)
    shutil.copytree(tmp_path / "ours" / "queues" / target.name, target)
    server.forget_clean_stop()
    server.start()
    assert not target.exists()
