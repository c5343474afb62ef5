"""One server, however many start it; and who may not."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.format import layout
from qindex.server import place, spawn
from tests.effort import by_tier
from tests.server.support import WAIT, end_server, log_of, server_pid

STARTERS = by_tier(quick=8, all=20, nightly=20)
RACES = by_tier(quick=1, all=5, nightly=100)
SCRIPT = (
    "import qindex, sys\n"
    "print('ready', flush=True)\n"
    "sys.stdin.readline()\n"
    "with qindex.open(sys.argv[1], shared=True, linger=0) as engine:\n"
    "    engine.queue('q').publish(b'x')\n"
    "    print(open(sys.argv[1] + '/qindex.lock').read().split()[0], flush=True)\n"
    "    sys.stdin.readline()\n"
)


def test_a_race_of_many_starts_one_server(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    for race in range(RACES):
        command = [sys.executable, "-P", "-c", SCRIPT, str(directory)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        racers: list[subprocess.Popen[str]] = [
            subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
            for _ in range(STARTERS)
        ]
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"  # type: ignore[union-attr]
        for racer in racers:
            racer.stdin.write("go\n")  # type: ignore[union-attr]
            racer.stdin.flush()  # type: ignore[union-attr]
        servers = {racer.stdout.readline() for racer in racers}  # type: ignore[union-attr]
        assert len(servers) == 1, (servers, log_of(directory))
        # The next race begins as this server ends.
        for racer in racers:
            racer.communicate("end\n", WAIT)
            assert racer.returncode == 0
        with qindex.open(directory, shared=True, linger=0) as engine:
            assert len(engine.queue("q")) == (race + 1) * STARTERS
    assert not log_of(directory)


def test_the_server_outlives_its_starter_and_inherits_nothing(tmp_path: Path) -> None:
    directory, aside = tmp_path / "data", tmp_path / "aside"
    aside.mkdir()
    for name in ("json.py", "msgpack.py", "sitecustomize.py", "qindex.py"):
        (aside / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    script = (
        "import os, socket, sys, time, qindex, msgpack, json\n"
        f"os.chdir({str(aside)!r})\n"
        f"os.environ['PYTHONPATH'] = os.environ['PYTHONSTARTUP'] = {str(aside)!r}\n"
        "os.umask(0)\n"
        "held = socket.socket(); held.set_inheritable(True); os.dup2(held.fileno(), 77)\n"
        "engine = qindex.open(sys.argv[1], shared=True, linger=0)\n"
        "print('started', flush=True); time.sleep(1000)\n"
    )
    with qindex.open(tmp_path / "other", shared=True, linger=0):
        command = [sys.executable, "-P", "-c", script, str(directory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as starter:
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"started\n"
            server = server_pid(directory)
            with qindex.open(directory, shared=True) as engine:
                os.killpg(starter.pid, signal.SIGKILL)
                starter.wait(WAIT)
                assert engine.queue("q").publish(b"x") == 0
                assert server_pid(directory) == server
                assert os.getsid(server) == server
                assert os.readlink(f"/proc/{server}/cwd") == "/"
                for fd in os.listdir(f"/proc/{server}/fd"):
                    target = os.readlink(f"/proc/{server}/fd/{fd}")
                    ours = target.startswith((str(directory), "anon_inode:", "/dev/null"))
                    assert ours or (target.startswith("socket:") and fd != "77"), (fd, target)
    assert not (tmp_path / "ran").exists()
    for name in (layout.SERVER_SOCKET, layout.SERVER_LOCK, layout.SERVER_LOG):
        path = directory / name
        assert not path.exists() or path.stat().st_mode & 0o777 == 0o600, name
    assert directory.stat().st_mode & 0o777 == 0o700
    end_server(directory)


def test_the_two_kinds_exclude_each_other(tmp_path: Path) -> None:
    with (
        qindex.open(tmp_path),
        pytest.raises(qindex.LockedError, match="without shared=True") as caught,
    ):
        qindex.open(tmp_path, shared=True)
    assert caught.value.pid == os.getpid()
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        with pytest.raises(qindex.LockedError, match="shared=True uses it, and") as caught:
            qindex.open(tmp_path)
        assert caught.value.pid == server_pid(tmp_path)
        engine.queue("q").publish(b"x")
        with qindex.open(tmp_path, read_only=True) as reader:
            assert [one.body for one in reader.queue("q").peek()] == [b"x"]


def test_options_are_those_of_the_first(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0, durability="fsync", embed_below=100):
        with qindex.open(tmp_path, shared=True) as second:
            second.queue("q")
        with qindex.open(tmp_path, shared=True, embed_below=100):
            pass
        with pytest.raises(qindex.UsageError, match="has embed_below=100, not 200"):
            qindex.open(tmp_path, shared=True, embed_below=200)
    with pytest.raises(qindex.UsageError, match="linger"):
        qindex.open(tmp_path, shared=True, linger=-1)
    with pytest.raises(qindex.UsageError, match="read_only"):
        qindex.open(tmp_path, shared=True, read_only=True)  # type: ignore[call-overload]
    end_server(tmp_path)


def test_what_the_server_meets_as_it_begins_is_raised_here(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(qindex.NotAStoreError, match="is a file"):
        qindex.open(file, shared=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(qindex.NotAStoreError, match="neither a qindex store"):
        qindex.open(other, shared=True)
    assert os.listdir(other) == ["letter.txt"]
    damaged = tmp_path / "damaged"
    qindex.open(damaged).close()
    (damaged / layout.MARKER).write_bytes(b"no marker")
    with pytest.raises(qindex.NotAStoreError, match="not the marker"):
        qindex.open(damaged, shared=True)
    end_server(damaged)


@pytest.mark.parametrize("name", [layout.SERVER_LOCK, layout.SERVER_LOG])
@pytest.mark.parametrize("kind", ["link", "fifo", "two names", "directory"])
def test_files_that_are_something_else_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    store, target = tmp_path / "data", tmp_path / "target"
    qindex.open(store).close()
    target.write_text("mine")
    path = store / name
    if kind == "link":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "two names":
        path.hardlink_to(target)
    else:
        path.mkdir()
    with pytest.raises(qindex.StorageError, match=name):
        qindex.open(store, shared=True)
    assert target.read_text() == "mine"
    assert os.path.lexists(path)


@pytest.mark.parametrize("kind", ["link", "file", "another's socket"])
def test_a_foreign_socket_is_refused_and_stays(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    qindex.open(tmp_path).close()
    path = tmp_path / layout.SERVER_SOCKET
    with socket.socket(socket.AF_UNIX) as other:
        if kind == "file":
            path.write_text("mine")
        elif kind == "link":
            other.bind(str(tmp_path / "elsewhere"))
            other.listen()
            path.symlink_to("elsewhere")
        else:
            other.bind(str(path))
            other.listen()
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            real = os.fstat
            monkeypatch.setattr(os, "fstat", lambda fd: _OfAnother(real(fd)))
        with pytest.raises(qindex.StorageError, match=layout.SERVER_SOCKET):
            place.connect(str(tmp_path))
    fd = place.open_directory(str(tmp_path))
    with pytest.raises(qindex.StorageError, match=layout.SERVER_SOCKET):
        place.listen(str(tmp_path), fd)
    os.close(fd)
    assert os.path.lexists(path)


class _OfAnother:
    """The status of a file of another user's."""

    def __init__(self, status: os.stat_result) -> None:
        self._status = status
        self.st_uid = status.st_uid + 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._status, name)


@pytest.mark.parametrize("call", ["bind", "chown", "chmod", "listen"])
def test_a_link_that_is_put_in_the_sockets_place_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """By a member of the store's group, in the middle of a start."""
    data, victim = tmp_path / "data", tmp_path / "victim"
    data.mkdir()
    victim.write_text("secret")
    victim.chmod(0o600)

    def putting(real: Any) -> Any:
        def done(*arguments: Any, **options: Any) -> Any:
            (data / "link").symlink_to(victim)
            os.rename(data / "link", data / layout.SERVER_SOCKET)
            return real(*arguments, **options)

        return done

    where: Any = os if call.startswith("ch") else socket.socket
    monkeypatch.setattr(where, call, putting(getattr(where, call)))
    fd = place.open_directory(str(data))
    sock, number = place.listen(str(data), fd, os.getgid())
    monkeypatch.undo()
    assert victim.stat().st_mode & 0o777 == 0o600
    assert os.listdir(data) == [layout.SERVER_SOCKET]
    made = (data / layout.SERVER_SOCKET).lstat()
    assert (made.st_ino, made.st_mode & 0o777) == (number, 0o660)
    place.connect(str(data)).close()
    place.remove_socket(fd, number)
    os.close(fd)
    sock.close()


def test_a_directory_of_others_is_not_used_for_the_socket(tmp_path: Path) -> None:
    making = tmp_path / layout.SERVER_MAKING
    making.mkdir()
    making.chmod(0o770)
    fd = place.open_directory(str(tmp_path))
    with pytest.raises(qindex.StorageError, match="open to others"):
        place.listen(str(tmp_path), fd)
    os.close(fd)


def test_a_hard_linked_copy_does_not_use_the_server_of_the_original(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with qindex.open(data, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        subprocess.run(["cp", "-al", data, copy], check=True)
        with pytest.raises(qindex.NotAStoreError, match="by hard links"):
            qindex.open(copy, shared=True)

        async def main() -> None:
            with pytest.raises(qindex.NotAStoreError, match="by hard links"):
                await qindex.aio.open(copy, shared=True)

        asyncio.run(main())
        with qindex.open(data, shared=True) as other:
            assert other.queue("q").get().body == b"x"
    shutil.rmtree(copy)
    end_server(data)


def test_a_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    with qindex.open(deep / "data", shared=True, linger=0) as engine:
        assert engine.queue("q").publish(b"x") == 0
        with qindex.open(deep / "data", shared=True) as other:
            assert other.queue("q").get().body == b"x"
    end_server(deep / "data")


def test_who_may_start_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(qindex.UsageError, match="qindex serve"):
        qindex.open(tmp_path, shared=True)
    monkeypatch.delattr(sys, "frozen")
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    with pytest.raises(qindex.UsageError, match="setuid"):
        spawn.check_may_start()


def test_a_stale_socket_is_replaced_and_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        engine.queue("q").publish(b"x")
        pid = server_pid(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        waiting = []
        try:
            # Nobody accepts: the backlog fills. That is no reason to start a second server.
            script = "import qindex, sys; qindex.open(sys.argv[1], shared=True).close()"
            command = [sys.executable, "-P", "-c", script, str(tmp_path)]
            waiting = [subprocess.Popen(command) for _ in range(2)]
            time.sleep(0.5)
            assert server_pid(tmp_path) == pid
        finally:
            os.kill(pid, signal.SIGCONT)
        for process in waiting:
            assert process.wait(WAIT) == 0
        os.kill(pid, signal.SIGKILL)
        assert spawn.wait_until_gone(str(tmp_path), WAIT)
        assert (tmp_path / layout.SERVER_SOCKET).exists()
        assert len(engine.queue("q")) == 1
    end_server(tmp_path)


def test_a_fork_gets_a_session_of_its_own(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"1", b"2"])
        held = queue.get()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(qindex.LeaseExpiredError):
                    held.ack()
                queue.get().ack()
                queue.publish(b"3")
                engine.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        held.ack()
        assert [one.body for one in queue.consume(timeout=0)] == [b"3"]


def test_importing_the_client_imports_no_numpy(tmp_path: Path) -> None:
    script = (
        "import qindex, sys\n"
        "with qindex.open(sys.argv[1], shared=True, linger=0) as engine:\n"
        "    queue = engine.queue('q', max_length=10)\n"
        "    queue.publish(b'x', headers={'a': 1})\n"
        "    queue.get().ack()\n"
        "    queue.stats()\n"
        "assert 'numpy' not in sys.modules, 'numpy'\n"
    )
    command = [sys.executable, "-P", "-c", script, str(tmp_path)]
    assert subprocess.run(command, timeout=WAIT, check=False).returncode == 0
