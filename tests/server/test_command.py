"""``qindex serve``, and the commands that use a running server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import qindex
from qindex.format import layout
from tests.cli.support import run
from tests.server.support import WAIT, end_server, serve, server_pid


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_serve_runs_in_the_foreground_and_ends_in_order(
    tmp_path: Path, sent: signal.Signals
) -> None:
    data, notified = tmp_path / "data", tmp_path / "notify"
    command = [sys.executable, "-P", "-m", "qindex.cli", "serve", str(data)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notified))
        systemd.settimeout(WAIT)
        environment = os.environ | {"NOTIFY_SOCKET": str(notified)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, **pipes) as server:  # type: ignore[call-overload]
            try:
                assert systemd.recv(100) == b"READY=1"
                with qindex.open(data, shared=True) as engine:
                    engine.queue("q").publish(b"x")
                # It does not end with its last client.
                assert run("list", str(data), "--json").rows[0]["ready"] == 1
                assert server_pid(data) == server.pid
                second = run("serve", str(data))
                assert second.code == 2
                assert "a server has it" in second.complaints[0]
            finally:
                server.send_signal(sent)
            out, err = server.communicate(timeout=WAIT)
            assert (server.returncode, err) == (0, b"")
            assert out == f"serving {data}\n".encode()
            assert systemd.recv(100) == b"STOPPING=1"
    assert layout.SERVER_SOCKET not in os.listdir(data)
    with qindex.open(data) as own:
        assert own.queue("q").get(timeout=0).body == b"x"  # type: ignore[union-attr]


def test_commands_use_a_running_server(tmp_path: Path) -> None:
    data, lines = str(tmp_path / "data"), tmp_path / "lines"
    lines.write_text("one\ntwo\nthree\n")
    with qindex.open(data, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        pid = server_pid(tmp_path / "data")
        published = run("publish", data, "q", str(lines), "--lines", "--key", "k")
        assert published.text == "published 3 to q, seq_id 0 to 2\n"
        held = queue.get()
        assert (held.body, held.key) == (b"one", "k")
        assert run("consume", data, "q", "--count", "1").out == b"two\n"
        assert run("queue", data, "q", "--max-length", "5").code == 0
        assert queue.settings.max_length == 5
        assert run("purge", data, "q").text == "purged 1 of q\n"
        assert run("compact", data).code == 0
        assert run("delete", data, "q").code == 2
        held.ack()
        assert run("delete", data, "q").text == "deleted q with 0 messages\n"
        with pytest.raises(qindex.ClosedError, match="was deleted"):
            queue.publish(b"x")
        assert server_pid(tmp_path / "data") == pid
    end_server(tmp_path / "data")


def test_commands_that_need_a_store_at_rest_say_so(tmp_path: Path) -> None:
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    with qindex.open(data, shared=True, linger=0) as engine:
        engine.queue("q").publish(b"x")
        pid = server_pid(tmp_path / "data")
        for arguments in (
            ("repair", data, "--out", out),
            ("convert", data, "--to", "2", "--out", out),
        ):
            refused = run(*arguments)
            assert (refused.code, len(refused.complaints)) == (2, 1)
            assert f"is open for writing by process {pid}; end it first" in refused.complaints[0]
            assert not (tmp_path / "out").exists()
        # Those that look do so beside it.
        assert run("verify", data).code == 0
        assert run("export", data, "--out", f"{out}.jsonl").code == 0
    end_server(tmp_path / "data")


def test_commands_that_look_ask_the_server(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with qindex.open(data) as engine:
        engine.queue("at rest").publish_many([b"x"] * 2)
        for delivery in engine.queue("at rest").get_many(2):
            delivery.nack()
    with qindex.open(data, shared=True, linger=0) as shared:
        queue = shared.queue("q")
        queue.publish_many([b"x"] * 10)
        queue.publish(b"later", delay=60)
        kept = queue.get_many(3)
        kept[0].ack()
        expected = {"q": (7, 2), "at rest": (2, 0)}
        for command in (("list",), ("stats",), ("top", "--once")):
            rows = run(*command, data, "--json").rows
            rows = rows if command == ("list",) else rows[0]["queues"]
            assert {row["name"]: (row["ready"], row["unacked"]) for row in rows} == expected
        text = run("stats", data, "--prometheus").text
        assert 'qindex_queue_ready{queue="q"} 7' in text.splitlines()
    end_server(tmp_path / "data")


def test_a_served_store_is_served_by_nobody_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with qindex.open(data, shared=True, lock_timeout=0.2, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        held = queue.get()
        # A server that a client has started gives back what it holds, and ends.
        with serve(data) as server:
            try:
                again = queue.get(timeout=WAIT)
                assert again is not None
                assert (again.body, again.redelivered) == (b"x", True)
                with pytest.raises(qindex.LeaseExpiredError):
                    held.ack()
                again.ack()
                second = run("serve", str(data))
                assert (second.code, len(second.complaints)) == (2, 1)
            finally:
                server.terminate()
                assert server.wait(WAIT) == 0
        with pytest.raises(qindex.DisconnectedError, match="qindex unserve"):
            queue.publish(b"y")
        assert not (data / "qindex.sock").exists()
        assert "clients start servers again" in run("unserve", str(data)).text
        assert "was not marked" in run("unserve", str(data)).text
        assert queue.publish(b"y") == 1
    end_server(data)


def test_serve_refuses_what_it_can_not_do(tmp_path: Path) -> None:
    for arguments in (["--durability", "x"], ["--group", "no such group"]):
        refused = run("serve", str(tmp_path / "data"), *arguments)
        assert refused.code == 2
        assert len(refused.complaints) == 1
    with qindex.open(tmp_path / "data"):
        refused = run("serve", str(tmp_path / "data"))
        assert refused.code == 2
        assert "is open for writing" in refused.complaints[0]
    with qindex.open(tmp_path / "data", shared=True, linger=0) as engine:  # it is not marked
        engine.queue("q")
    end_server(tmp_path / "data")
