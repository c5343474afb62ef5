"""A real RabbitMQ node takes over a message store of ours, and we read one of its own.

The store has several files, messages in one and in three queues, acknowledged ones, and files that
our compaction combined.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import qindex
from qindex.view.reader import StoreReader
from tests.qindex.messages_support import PERSISTENT, assert_counts, rdq_files
from tests.qindex.rabbitmq_child import open_ours
from tests.qindex.test_rabbitmq_node import put_before, queue_dir
from tests.rabbitmq_server import RabbitServer, rabbitmq_or_skip

NAMES = ["one", "two", "three"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RabbitServer]:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path / "node") as node:
        node.start()
        yield node
    assert node.processes() == []


def body_of(number: int) -> bytes:
    size = 300_000 if number == 77 else 50 if number % 10 == 0 else 4000 + number * 37 % 9000
    return b"%d " % number + random.Random(number).randbytes(size)


def fill(engine: qindex.Engine) -> dict[str, list[bytes]]:
    """Fan-outs to three, two and one queue; some acknowledged; combined. Gives what is left."""
    left: dict[str, list[bytes]] = {}
    for number in range(160):
        engine.publish_to(NAMES[: 3 - number % 3], body_of(number), headers={"n": number})
    engine.flush()
    chance = random.Random(4)
    for name in NAMES:
        queue = engine.queue(name)
        batch = list(queue.get_many(1000))
        keep = {one.seq_id for one in batch if one.headers["n"] % 6 == 0 or chance.random() < 0.05}
        queue.ack_many([one for one in batch if one.seq_id not in keep])
        left[name] = [one.body for one in batch if one.seq_id in keep]
    report = engine.compact()
    assert report is not None
    assert report.files_written >= 2
    assert report.files_deleted > report.files_written
    for number in range(160, 180):
        engine.publish_to(NAMES, body_of(number), headers={"n": number})
        for name in NAMES:
            left[name].append(body_of(number))
    return left


def put_store_before(server: RabbitServer, store: Path) -> None:
    """Replace the stopped node's message store by a copy of ours."""
    target = server.vhost_dir / PERSISTENT
    shutil.rmtree(target)
    shutil.copytree(store / PERSISTENT, target)
    put_before(server, {name: queue_dir(store, server, name) for name in NAMES})


@pytest.mark.parametrize("killed", [False, True])
def test_a_node_delivers_from_our_message_store(
    server: RabbitServer, tmp_path: Path, killed: bool
) -> None:
    store = tmp_path / "ours"
    with open_ours(store, store_file_bytes=1 << 16, background=False) as engine:
        left = fill(engine)
        assert_counts(engine)
        if killed:
            store = Path(shutil.copytree(store, tmp_path / "killed"))
    if killed:
        # Opened and closed by the engine first, as any store that was not closed.
        with open_ours(store, store_file_bytes=1 << 16, background=False) as engine:
            assert_counts(engine)
    files = rdq_files(store)
    assert len(files) >= 4
    shared = [body for body in left["one"] if body in left["two"] and body in left["three"]]
    assert len(shared) > 20

    for name in NAMES:
        server.declare_queue(name)
        server.publish_confirmed(name, [b"to be replaced", bytes(10_000)])
    server.stop()
    put_store_before(server, store)
    server.start()
    for name in NAMES:
        drained = server.drain(name)
        assert [one.body for one in drained] == left[name]
        assert all(one.redelivered for one in drained)
        assert [one.properties.headers for one in drained] == [
            {"n": int(body.split(b" ", 1)[0])} for body in left[name]
        ]
        server.publish_confirmed(name, [b"a" * 5000])
        assert [one.body for one in server.drain(name)] == [b"a" * 5000]
    assert "[error]" not in server.log_tail(1000)


def test_what_the_node_writes_behind_ours_we_read(server: RabbitServer, tmp_path: Path) -> None:
    """The node goes on in our files, is stopped, and is read, bodies included."""
    store = tmp_path / "ours"
    with open_ours(store, store_file_bytes=1 << 16, background=False) as engine:
        left = fill(engine)
    for name in NAMES:
        server.declare_queue(name)
    server.stop()
    put_store_before(server, store)
    server.start()
    added = [b"node %d " % number + bytes(20_000) for number in range(5)]
    for name in NAMES:
        server.publish_confirmed(name, added)
    server.stop()
    reader = StoreReader(server.vhost_dir)
    for name in NAMES:
        queue = reader.queue(name)
        rows = list(queue)
        assert [row.body for row in rows] == left[name] + added
        assert queue.findings == []
    summary = reader.message_store()
    assert summary is not None
    assert summary.missing == 0
