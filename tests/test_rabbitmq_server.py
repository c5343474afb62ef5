"""The real node for tests: it starts, stops, is killed, restarts, and reads files put before it."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import rabbitmq_server
from tests.rabbitmq_server import BrokerError, RabbitServer, rabbitmq_or_skip

# journal record: 8 bytes type and sequence id, 28 bytes payload, 4 bytes length, the message
PUBLISH_HEADER = 8 + 28 + 4
DELIVER = 0b10 << 62


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RabbitServer]:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path) as node:
        node.start()
        yield node
    assert node.processes() == []


def bodies(count: int, label: str = "m") -> list[bytes]:
    return [f"{label}{number}-".encode() + b"x" * 20 for number in range(count)]


def published_records(journal: bytes) -> list[bytes]:
    """Cut the publish records (types 00 and 01) out of a journal."""
    records, at = [], 0
    while at < len(journal):
        if journal[at] & 0b1000_0000:
            at += 8
            continue
        (embedded,) = struct.unpack_from(">I", journal, at + PUBLISH_HEADER - 4)
        end = at + PUBLISH_HEADER + embedded
        records.append(journal[at:end])
        at = end
    return records


def test_clean_stop_and_start(server: RabbitServer) -> None:
    server.declare_queue("orders")
    assert server.publish_confirmed("orders", bodies(100)) == 100
    server.stop()
    assert not server.is_running
    assert (server.vhost_dir / "recovery.dets").is_file()
    name_file = server.queue_dir("orders") / ".queue_name"
    assert name_file.read_bytes() == b"VHOST: /\nQUEUE: orders\n"
    server.start()
    drained = server.drain("orders")
    assert [message.body for message in drained] == bodies(100)
    assert {message.redelivered for message in drained} == {False}
    assert {message.properties.delivery_mode for message in drained} == {2}
    assert {(message.exchange, message.routing_key) for message in drained} == {("", "orders")}
    assert server.drain("orders") == []


def test_kill_and_start(server: RabbitServer) -> None:
    server.declare_queue("orders")
    server.publish_confirmed("orders", bodies(100))
    assert len(server.drain("orders", ack=False)) == 100
    server.kill()
    assert not server.is_running
    assert not (server.vhost_dir / "msg_store_persistent" / "clean.dot").exists()
    server.start()
    drained = server.drain("orders")
    assert [message.body for message in drained] == bodies(100)
    assert all(message.redelivered for message in drained)


def test_node_delivers_from_a_journal_put_before_it(server: RabbitServer) -> None:
    for queue in ("other", "orders"):
        server.declare_queue(queue)
        server.publish_confirmed(queue, bodies(10))
    # Only a kill at once leaves all records in the journal: a queue that has been idle for a
    # second flushes to segments.
    server.kill()
    journal = server.queue_dir("orders") / "journal.jif"
    records = published_records(journal.read_bytes())
    assert len(records) == 10
    server.start()
    assert len(server.drain("orders")) == 10
    server.stop()

    for stale in server.queue_dir("orders").glob("*.idx"):
        stale.unlink()
    chosen = [7, 2, 5]
    journal.write_bytes(
        b"".join(
            struct.pack(">Q", seq_id) + records[number][8:] + struct.pack(">Q", DELIVER | seq_id)
            for seq_id, number in enumerate(chosen, start=40)
        )
    )
    server.forget_clean_stop()
    server.start()
    server.publish_confirmed("orders", [b"after"])
    drained = server.drain("orders")
    expected = [bodies(10)[number] for number in chosen]
    assert [message.body for message in drained] == [*expected, b"after"]
    assert [message.redelivered for message in drained] == [True, True, True, False]
    assert [message.body for message in server.drain("other")] == bodies(10)


def test_priorities_have_directories_of_their_own(server: RabbitServer) -> None:
    server.declare_queue("urgent", {"x-max-priority": 2})
    server.publish_confirmed("urgent", bodies(1))
    server.stop()
    assert (server.queue_dir("urgent", priority=0) / "journal.jif").stat().st_size > 0
    assert not server.queue_dir("urgent").exists()


def test_unroutable_publish_is_an_error(server: RabbitServer) -> None:
    with pytest.raises(BrokerError, match="2 of 2 messages reached no queue"):
        server.publish_confirmed("nowhere", bodies(2))


def test_misuse_is_refused(server: RabbitServer) -> None:
    with pytest.raises(BrokerError, match="running already"):
        server.start()
    with pytest.raises(BrokerError, match="is running"):
        server.forget_clean_stop()
    server.kill()
    with pytest.raises(BrokerError, match="not running"):
        server.stop()


def test_failed_start_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path, {"tcp_listeners": "{not an erlang term"}) as node:
        with pytest.raises(BrokerError, match=r"(?s)node start: ended with 1.*console\.log"):
            node.start()
        assert not node.is_running
    assert node.processes() == []


def test_start_gives_up_in_time(tmp_path: Path) -> None:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path) as node:
        with pytest.raises(BrokerError, match=r"not up in 0\.3 s"):
            node.start(timeout=0.3)
        assert not node.is_running
    assert node.processes() == []


def test_skips_where_there_is_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq_server, "PACKAGE_ROOT", tmp_path)
    with pytest.raises(pytest.skip.Exception, match="install-rabbitmq"):
        rabbitmq_or_skip()
    (tmp_path / "rabbitmq_server-4.1.0").mkdir()
    with pytest.raises(pytest.skip.Exception, match=r"4\.1\.0 is installed"):
        rabbitmq_or_skip()
