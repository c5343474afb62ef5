"""A full disk, another user, a master that forks in C: what a server and its clients meet there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qindex
from tests.effort import not_quick
from tests.faults.test_full_disk import run_on_a_disk
from tests.server.support import WAIT, end_server, serve, server_pid

ROOT = Path(__file__).parents[2]
OTHER_USER, GROUP = 65534, 1
ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
UWSGI = shutil.which("uwsgi") or shutil.which("uwsgi", path=os.path.dirname(sys.executable))


@not_quick("a file system of its own")
def test_a_full_disk_under_the_server_is_told_and_loses_nothing(tmp_path: Path) -> None:
    found = run_on_a_disk(tmp_path, "1m", "tests.server.full_disk_child", "0")
    assert len(found["errors"]) == 20
    assert all("No space left on device" in error for error in found["errors"])
    assert len(found["published"]) > 200
    assert found["held"] == found["published"]
    assert found["ended"]
    assert "Traceback" not in found["log"]


def as_other(directory: Path, group: int | None, call: Callable[[str], Any]) -> Any:
    """Return what a call gives in a process of another user; text for an error. The directory is
    passed as a descriptor, for its parents may be closed to that user."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([] if group is None else [group])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            try:
                found = call(f"/proc/self/fd/{opened}")
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            os.write(write, json.dumps(found).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    os.close(opened)
    with open(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def publish_and_get(directory: str) -> list[str]:
    with qindex.open(directory, shared=True) as engine:
        queue = engine.queue("q")
        queue.publish(b"of another user")
        got = [queue.get(), queue.get()]
        queue.ack_many(got)
        return [one.body.decode() for one in got]


@ONLY_ROOT
def test_a_group_is_let_in_and_another_user_is_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with qindex.open(data, mode=0o660) as engine:
        engine.queue("q")
    os.chmod(data, 0o777)
    with serve(data) as server:
        try:
            with qindex.open(data, shared=True) as engine:
                engine.queue("q").publish(b"of root")
            # The socket itself keeps others out; where it does not, the server closes.
            assert "Permission denied" in as_other(data, GROUP, publish_and_get)
            os.chmod(data / "qindex.sock", 0o666)
            refused = as_other(data, GROUP, publish_and_get)
            assert refused.startswith(("StorageError", "DisconnectedError")), refused
            with qindex.open(data, shared=True) as engine:
                assert engine.queue("q").stats().messages == 1
        finally:
            server.terminate()
            assert server.wait(WAIT) == 0
    with serve(data, "--group", str(GROUP)) as server:
        try:
            status = (data / "qindex.sock").stat()
            assert (status.st_gid, status.st_mode & 0o777) == (GROUP, 0o660)
            assert as_other(data, GROUP, publish_and_get) == ["of root", "of another user"]
            assert "Permission denied" in as_other(data, None, publish_and_get)
            with qindex.open(data, shared=True) as engine:
                assert engine.queue("q").stats().messages == 0
        finally:
            server.terminate()
            assert server.wait(WAIT) == 0


@not_quick("a server of its own in C")
@pytest.mark.skipif(UWSGI is None, reason="uwsgi is not installed")
def test_workers_that_uwsgi_forks_share_a_store(tmp_path: Path) -> None:
    data, address = tmp_path / "data", tmp_path / "address"
    program = tmp_path / "program.py"
    program.write_text(
        "import os, qindex\n"
        f"engine = qindex.open({str(data)!r}, shared=True, linger=1)\n"
        "orders = engine.queue('orders')\n"
        "before = orders.publish(b'of the master')\n"
        "def application(environ, start_response):\n"
        "    seq = orders.publish(b'%d' % os.getpid())\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
        "    return [b'%d %d' % (seq, os.getpid())]\n"
    )
    assert UWSGI is not None
    command = [UWSGI, "--master", "--processes", "3", "--http-socket", "127.0.0.1:0"]
    command += ["--enable-threads", "--wsgi-file", str(program), "--need-app", "--die-on-term"]
    command += ["--virtualenv", sys.prefix, "--pythonpath", str(ROOT)]
    with open(address, "wb") as log:
        master = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        deadline = time.monotonic() + WAIT
        while "spawned uWSGI worker 3" not in address.read_text():
            assert master.poll() is None, address.read_text()
            assert time.monotonic() < deadline, address.read_text()
            time.sleep(0.02)
        port = address.read_text().split("bound to TCP address 127.0.0.1:")[1].split()[0]
        answers: list[tuple[int, bytes]] = []
        while len({pid for _, pid in answers}) < 2 or len(answers) < 20:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=WAIT) as answer:
                seq, pid = answer.read().split()
                answers.append((int(seq), pid))
            assert time.monotonic() < deadline
        assert [seq for seq, _ in answers] == list(range(1, len(answers) + 1))
    finally:
        master.send_signal(signal.SIGTERM)
        master.wait(WAIT)
    with qindex.open(data, shared=True, linger=0) as engine:
        bodies = engine.queue("orders").get_many(1000).bodies
        assert bodies == [b"of the master", *(pid for _, pid in answers)]
        os.kill(server_pid(data), signal.SIGTERM)
    end_server(data)


def test_a_connection_too_many_gets_an_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serve(data, before="ulimit -n 160") as server:
        try:
            with qindex.open(data, shared=True) as engine:
                queue = engine.queue("q")
                others: list[qindex.SharedEngine] = []
                with pytest.raises(qindex.StorageError, match="connections, and takes no more"):
                    others.extend(qindex.open(data, shared=True) for _ in range(160))
                assert len(others) > 20
                # Files of the store have descriptors left.
                for at in range(5):
                    engine.queue(f"more {at}").publish(b"x")
                assert queue.publish(b"x") == 0
                for one in others:
                    one.close()
                with qindex.open(data, shared=True) as again:
                    assert again.queue("q").publish(b"y") == 1
        finally:
            server.terminate()
            assert server.wait(WAIT) == 0
