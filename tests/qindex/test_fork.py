"""A forked child may not use what its parent opened, and does not keep the directory locked."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from journal.fs.files import REAL, PathLike, RealFileSystem
from journal.locks.directory_lock import DirectoryLock
from rocketstore.lock import StoreLock
from tests.qindex.support import drain, open_quietly
from tests.waiting import WAIT

Fork = Callable[[], int]

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

ROOT = Path(__file__).parents[2]
_ALONE = "QINDEX_TEST_ALONE"
BY_C: Fork = ctypes.PyDLL(None).fork
"""As uWSGI forks: no hook of Python's runs."""
FORKS = pytest.mark.parametrize("fork", [os.fork, BY_C], ids=["python", "c"])


def ran_alone(fork: Fork, request: pytest.FixtureRequest, tmp_path: Path) -> bool:
    """Run the test in a process of its own, if it forks in C; return False in that process.

    Such a fork copies the interpreter's own locks as other threads have them at that moment, and
    the child may hang: the process of many tests has many threads.
    """
    if fork is not BY_C or _ALONE in os.environ:
        return False
    environment = {name: text for name, text in os.environ.items() if "XDIST" not in name}
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path / 'alone'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, request.node.nodeid],
        cwd=ROOT,
        env={**environment, _ALONE: "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == 0, done.stdout
    return True


@FORKS
def test_use_in_a_forked_child_raises(
    tmp_path: Path, fork: Fork, request: pytest.FixtureRequest
) -> None:
    if ran_alone(fork, request, tmp_path):
        return
    engine = qindex.open(tmp_path, flush_idle=1e6)
    queue = engine.queue("q")
    queue.publish_many([b"0", b"1", b"2"])
    delivery = queue.get(0)
    assert delivery is not None
    reading, writing = os.pipe()
    child = fork()
    if not child:
        wrong = []
        for name, call in (
            ("publish", lambda: queue.publish(b"x")),
            ("publish_many", lambda: queue.publish_many([b"x"])),
            ("get", lambda: queue.get(0)),
            ("get_many", lambda: queue.get_many(2)),
            ("ack", delivery.ack),
            ("nack", delivery.nack),
            ("peek", queue.peek),
            ("purge", queue.purge),
            ("flush", queue.flush),
            ("sync", queue.sync),
            ("stats", queue.stats),
            ("len", lambda: len(queue)),
            ("queue", lambda: engine.queue("other")),
            ("engine.flush", engine.flush),
        ):
            try:
                call()
                wrong.append(f"{name} did not raise")
            except qindex.ForkedError as error:
                if "belongs to the parent process" not in str(error):
                    wrong.append(f"{name}: {error}")
            except BaseException as error:
                wrong.append(f"{name}: {error!r}")
        engine.close()
        os.write(writing, repr(wrong).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "[]"
    assert os.waitpid(child, 0)[1] == 0
    delivery.ack()
    assert queue.publish(b"3") == 3
    with pytest.raises(qindex.LockedError):
        qindex.open(tmp_path)
    engine.close()
    with open_quietly(tmp_path) as again:
        assert [body for _, body, _ in drain(again.queue("q"))] == [b"1", b"2", b"3"]


def test_a_child_that_outlives_its_parent_keeps_no_lock(tmp_path: Path) -> None:
    """The parent is killed; the child it forked lives on (as a worker pool's would)."""
    code = (
        "import os, sys, threading, qindex\n"
        "engine = qindex.open(sys.argv[1])\n"
        "engine.queue('q').publish(b'x')\n"
        "if not os.fork():\n"
        "    print(os.getpid(), flush=True)\n"  # by the child: it is past what fork does
        "threading.Event().wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        os.kill(child, 0)
        with open_quietly(tmp_path) as engine:
            assert [body for _, body, _ in drain(engine.queue("q"))] == [b"x"]
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


@FORKS
def test_a_child_forked_while_a_thread_holds_the_locks(
    tmp_path: Path, fork: Fork, request: pytest.FixtureRequest
) -> None:
    if ran_alone(fork, request, tmp_path):
        return
    engine = open_quietly(tmp_path)
    queue = engine.queue("q")
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with queue._parts.state.lock, engine._lock:
            held.set()
            go_on.wait(WAIT)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(WAIT)
    child = fork()
    if not child:
        try:
            queue.flush()
        except qindex.ForkedError:
            engine.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    holder.join()
    engine.close()


_GENERATIONS = """
import ctypes, os, sys, qindex, rocketstore
from qindex.compat import PersistentQueue
from qindex.compat.queuelib import FifoDiskQueue
engine, log = qindex.open(sys.argv[1] + "/parent"), rocketstore.open(sys.argv[1] + "/log")
queue, jobs = engine.queue("q"), PersistentQueue(sys.argv[1] + "/jobs")
stack = FifoDiskQueue(sys.argv[1] + "/stack")
queue.publish_many([b"x"] * 1000)
log.put("T", b"x")

def refuses(*calls):
    for call in calls:
        try:
            call()
        except qindex.ForkedError:
            continue
        raise AssertionError(f"{call} did not raise")

pid = ctypes.PyDLL(None).fork()
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    queue.publish(b"x")
    log.put("T", b"y")
    jobs.put(1)
    for refused in (qindex.open, rocketstore.open):
        try:
            refused(engine.directory if refused is qindex.open else log.path)
        except qindex.LockedError:
            continue
        raise AssertionError("the child gave its parent's lock back")
    log.close()
    engine.close()
else:
    mine = qindex.open(sys.argv[1] + "/child")
    PersistentQueue(sys.argv[1] + "/jobs of the child").put(1)
    refuses(lambda: queue.publish(b"y"), lambda: queue.get(0), queue.sync, engine.sync)
    refuses(lambda: log.put("T", b"y"), lambda: log.get("T", 0, 0), log.sync)
    refuses(lambda: jobs.put(1), lambda: jobs.get(timeout=9), jobs.qsize, lambda: stack.push(b""))
    jobs.close()
    stack.close()
    mine.queue("q").publish(b"y")
    if not (pid := ctypes.PyDLL(None).fork()):
        refuses(lambda: mine.queue("q"), lambda: queue.get(0), lambda: log.lookup(0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    mine.close()
    log.close()
    del queue, engine, log, jobs, stack  # and what finalizers and the end of the interpreter do
"""


_WITHOUT_PAGES = """
import sys
platform, sys.platform = sys.platform, "one that wipes no pages"
import journal.memory.forks
sys.platform = platform
assert journal.memory.forks.PAGE is None
"""


@pytest.mark.parametrize("before", ["", _WITHOUT_PAGES], ids=["page", "number of the process"])
def test_generations_of_a_process_that_c_forks(tmp_path: Path, before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", before + _GENERATIONS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with open_quietly(tmp_path / "parent") as engine:
        assert len(engine.queue("q")) == 1001
    with open_quietly(tmp_path / "child") as engine:
        assert len(engine.queue("q")) == 1


class ForkingFileSystem(RealFileSystem):
    """Forks when the queues are listed, in the middle of an open; the child goes on for ever."""

    child = 0

    def listdir(self, path: PathLike, /) -> list[str]:  # type: ignore[override]
        if os.fspath(path).endswith("queues") and not self.child:
            begun, tell = os.pipe()
            self.child = os.fork()
            if not self.child:
                os.write(tell, b"x")
            while not self.child:
                signal.pause()
            assert os.read(begun, 1) == b"x"  # what a fork does in the child is done
            os.close(begun)
            os.close(tell)
        return os.listdir(path)


def test_a_child_forked_in_the_middle_of_an_open_keeps_no_lock(tmp_path: Path) -> None:
    """Later opens failed, and named a process that had ended."""
    fs = ForkingFileSystem()
    with open_quietly(tmp_path, fs=fs) as engine:
        engine.queue("q").publish(b"x")
    try:
        with open_quietly(tmp_path) as engine:
            assert [body for _, body, _ in drain(engine.queue("q"))] == [b"x"]
    finally:
        os.kill(fs.child, signal.SIGKILL)
        os.waitpid(fs.child, 0)


class ForkingLockFileSystem(RealFileSystem):
    """Forks a child that lives on, behind the open of a file, or before its close."""

    def __init__(self, point: str) -> None:
        self.point, self.child = point, 0

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:  # type: ignore[override]
        fd = os.open(path, flags, mode)
        self._fork("open")
        return fd

    def close(self, fd: int, /) -> None:
        self._fork("close")
        os.close(fd)

    def _fork(self, point: str) -> None:
        if point == self.point and not self.child:
            self.child = os.fork()
            while not self.child:
                signal.pause()


@pytest.mark.parametrize("point", ["open", "close"])
@pytest.mark.parametrize("kind", [DirectoryLock, StoreLock])
def test_a_child_forked_around_the_lock_file_keeps_no_lock(
    tmp_path: Path, kind: type[DirectoryLock] | type[StoreLock], point: str
) -> None:
    """Once in some hundred opens beside forks all later ones failed, until the child ended."""
    path = str(tmp_path / "lock")
    fs = ForkingLockFileSystem(point)
    lock = kind(fs, path)
    try:
        if point == "open":
            lock.let_go()  # as the kernel does when this process dies
        else:
            lock.release()
        kind(REAL, path).release()
    finally:
        os.kill(fs.child, signal.SIGKILL)
        os.waitpid(fs.child, 0)
