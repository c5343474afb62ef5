"""Messages that are moved into a store, and out of it, while a server has it open."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.cli import move
from qindex.format.envelope import Moved
from qindex.format.rabbitmq.bridge import RabbitProperties
from qindex.transfer import export_messages, import_messages, importing
from qindex.transfer.ends import give_back_uncounted, most_bytes, restore, take_uncounted
from qindex.view.reader import StoreReader
from tests.cli.support import run
from tests.golden import golden
from tests.qindex.transfer.support import contents, fill
from tests.server.support import WAIT, end_server, server_pid

SERVED: dict[str, Any] = {"shared": True, "linger": 0}


@pytest.fixture(params=["jsonl", "parquet"])
def suffix(request: pytest.FixtureRequest) -> str:
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return str(request.param)


def flat(directory: Path) -> dict[str, Any]:
    """The contents of a store that is not open, with the settings of its queues."""
    with qindex.open(directory, read_only=True) as engine:
        settings = {name: engine.queue(name).settings for name in engine.queue_names()}
    return {name: (settings[name], rows) for name, rows in contents(directory).items()}


def test_an_import_uses_the_running_server(tmp_path: Path, suffix: str) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    fill(source)
    with qindex.open(source) as engine:
        jobs = engine.queue("jobs", max_priority=5, message_ttl=1e6)
        for number in range(40):
            jobs.publish(b"%d" % number, priority=number % 7 % 6)
        for one in jobs.get_many(9):
            one.nack()
        engine.queue("empty", max_length=3)
        engine.queue("large").publish_many([bytes([at]) * (1 << 20) for at in range(12)])
    file = tmp_path / f"x.{suffix}"
    export_messages(source, file)
    with qindex.open(target, **SERVED) as engine:
        other = engine.queue("other")
        other.publish(b"kept")
        pid = server_pid(target)
        done = run("import", file, target, "--json")
        assert done.code == 0, done.complaints
        assert (done.rows[0]["resumed"], done.rows[0]["queues"]["jobs"]) == (0, 40)
        assert engine.queue("jobs").get(timeout=WAIT).priority == 5
        assert server_pid(target) == pid
        assert not (target / importing.IMPORT_FILE).exists()
    end_server(target)
    expected = flat(source)
    found = flat(target)
    assert found.pop("other")[1][0][0] == b"kept"
    assert found == expected


def test_messages_of_a_node_stay_as_they_are(tmp_path: Path) -> None:
    node, file, target = golden("g1").vhost_dir, tmp_path / "x.jsonl", tmp_path / "b"
    export_messages(node, file)
    with qindex.open(target, **SERVED):
        import_messages([file], target, **SERVED)
    end_server(target)
    assert as_written(target) == as_written(node)


def as_written(directory: Path) -> dict[str, list[Any]]:
    """What the records of a node say, of all messages by queue."""
    found: dict[str, list[Any]] = {}
    for reader in StoreReader(directory).readers():
        rows = found[reader.name] = []
        for row in reader.entries():
            assert isinstance(row.properties, RabbitProperties)
            record = row.properties.source
            rows.append((row.body, row.expiry, record.exchange, record.routing_keys))
            rows.append((record.persistent, record.properties_raw))
    return found


CHILD = """
import os, sys
from qindex.transfer import import_messages, importing
whole, calls = importing.restore_shared, 0
def restore(queue, ticket, batch):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        if sys.argv[4] == "done":
            whole(queue, ticket, batch)
        os.kill(os.getpid(), 9)
    whole(queue, ticket, batch)
importing.restore_shared = restore
import_messages([sys.argv[1]], sys.argv[2], batch=10, shared=True)
"""


def killed(file: Path, target: Path, call: int, when: str) -> None:
    command = [sys.executable, "-P", "-c", CHILD, str(file), str(target), str(call), when]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def test_an_import_that_is_killed_goes_on_whatever_others_do(tmp_path: Path) -> None:
    file, target = tmp_path / "x.jsonl", tmp_path / "b"
    with qindex.open(tmp_path / "a") as source:
        source.queue("q").publish_many([b"%d" % number for number in range(95)])
    export_messages(tmp_path / "a", file)
    with qindex.open(target, **SERVED) as engine:
        queue, seen = engine.queue("q"), []
        for call, when in ((1, "before"), (3, "done"), (2, "before"), (1, "done")):
            killed(file, target, call, when)
            queue.publish(b"stranger")
            with queue.get() as one:
                seen.append(one.body)
        report = import_messages([file], target, batch=10, **SERVED)
        assert report.resumed == 30 + 10 + 10  # the first run has published nothing
        seen += [one.body for one in queue.get_many(200)]
        assert sorted(seen) == sorted(
            [*(b"%d" % number for number in range(95)), *[b"stranger"] * 4]
        )
    end_server(target)


def test_an_import_whose_server_has_died(tmp_path: Path) -> None:
    file, target = tmp_path / "x.jsonl", tmp_path / "b"
    fill(tmp_path / "a")
    export_messages(tmp_path / "a", file)
    with qindex.open(target, **SERVED) as engine:
        killed(file, target, 2, "done")
        pid = server_pid(target)
        os.kill(pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{pid}/fd/0"):
            time.sleep(0.01)
        with suppress(qindex.DisconnectedError):
            engine.queue_names()
        engine.queue("orders")  # there is another one now
        refused = run("import", file, target)
        assert (refused.code, len(refused.complaints)) == (2, 1)
        assert "end the server, and import again" in refused.complaints[0]
    end_server(target)
    assert run("verify", target).code == 0  # what it noted about itself is no damage
    assert import_messages([file], target, batch=10).resumed > 10
    assert contents(target) == contents(tmp_path / "a")


def test_one_import_at_a_time(tmp_path: Path) -> None:
    file, target = tmp_path / "x.jsonl", tmp_path / "b"
    fill(tmp_path / "a", 1)
    export_messages(tmp_path / "a", file)
    with qindex.open(target, **SERVED):
        fd = os.open(target, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            refused = run("import", file, target)
        finally:
            os.close(fd)
        assert refused.code == 2
        assert refused.complaints[0].endswith("another import is under way")
        assert run("import", file, target).code == 0
    end_server(target)


def test_an_error_in_the_middle_is_told_and_gone_on_from(tmp_path: Path) -> None:
    with qindex.open(tmp_path, max_message_bytes=1000, **SERVED) as engine:
        queue = engine.queue("q")
        moved = [
            Moved(None, qindex.Message(b"x")),
            Moved(None, qindex.Message(bytes(2000)), 1 << 60),
        ]
        with pytest.raises(qindex.UsageError, match="at most 1000 bytes"):
            restore(queue, moved)
        assert [one.body for one in queue.get_many(9)] == [b"x"]
        assert queue.publish_many([b"y"]) == range(1, 2)
        assert most_bytes(queue) == 1000
    end_server(tmp_path)


def test_what_is_taken_to_be_moved_and_comes_back_does_not_count(tmp_path: Path) -> None:
    with qindex.open(tmp_path, **SERVED) as engine:
        queue = engine.queue("q", delivery_limit=2)
        queue.publish_many([b"1", b"2", b"3"])
        for _ in range(5):
            held = take_uncounted(queue, 2)
            assert [(one.body, one.delivery_count) for one in held] == [(b"1", 1), (b"2", 1)]
            give_back_uncounted(queue, held)
        held = take_uncounted(queue, 3)
        queue.ack_many(held[1:2])
        give_back_uncounted(queue, held)
        assert [one.body for one in queue.get_many(9)] == [b"1", b"3"]
    end_server(tmp_path)


class Broker:
    """Stands for :mod:`qindex.transfer.brokers`."""

    def __init__(self) -> None:
        self.messages: list[Moved] = []

    def ready(self, *_: object) -> int:
        return len(self.messages)

    @contextmanager
    def _taken(self, queue: Any) -> Iterator[list[qindex.Delivery]]:
        held = take_uncounted(queue, 100)
        try:
            yield held
        finally:
            give_back_uncounted(queue, held)

    def push(self, queue: Any, _url: str, **_: object) -> Any:
        with self._taken(queue) as held:
            self.messages = [Moved(None, one.message, redelivered=True) for one in held]
            queue.ack_many(held)
        return type("Report", (), {"messages": len(held), "refused": 0})

    def pull(self, _url: str, _source: str, queue: Any, **_: object) -> int:
        restore(queue, self.messages)
        queue.sync()
        return len(self.messages)


def test_push_and_pull_use_the_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    monkeypatch.setattr(move, "_brokers", lambda: broker)
    with qindex.open(tmp_path, **SERVED) as engine:
        queue = engine.queue("q")
        queue.publish(b"x", key="k", headers={"n": 1})
        assert run("push", tmp_path, "q", "--amqp", "amqp://x").text == "pushed 1 of q\n"
        assert queue.get(timeout=0) is None
        pulled = run("pull", "q", tmp_path, "--amqp", "amqp://x", "--to", "back")
        assert pulled.text == "pulled 1 to back\n"
        back = engine.queue("back").get()
        assert (back.body, back.key, back.headers, back.redelivered) == (b"x", "k", {"n": 1}, True)
    end_server(tmp_path)
