"""Verify needs no lock: beside a writer it checks one moment, and finds what is really damaged."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.findings import Cause, Kind
from journal.fs.files import RealFileSystem
from rocketstore.layout import Paths
from rocketstore.lock import StoreLock, is_open
from rocketstore.verify import check_store, verify
from tests.rocketstore.support import ANY_DISK, TINY, Clock, open_tiny

WRITER = """
import sys, time, rocketstore
from tests.rocketstore.support import TINY
with rocketstore.open(sys.argv[1], flush_interval=0.01, checkpoint_interval=0.05, **TINY) as store:
    for number in range(10**9):
        store.put("t", b"x" * (number % 90), keys=f"k{number} all", queue_id=number % 2)
        if number == 200:
            print("ready", flush=True)
        if number >= 200:
            time.sleep(0.002)
"""


def fill(store: rocketstore.Store, count: int = 100) -> None:
    for number in range(count):
        store.put("t", b"body %d" % number, queue_id=number % 2, keys=f"k{number}")


def harm(path: Path, at: int, mask: int = 0x11) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


@contextmanager
def writing(store: rocketstore.Store) -> Iterator[None]:
    stop = threading.Event()

    def put() -> None:
        while not stop.is_set():
            fill(store, 10)
            time.sleep(0.005)

    writer = threading.Thread(target=put)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_beside_a_writer_in_another_process(tmp_path: Path) -> None:
    root = tmp_path / "s"
    command = [sys.executable, "-c", WRITER, str(root)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            assert is_open(RealFileSystem(), Paths(str(root)).lock)
            reports = [check_store(root) for _ in range(6)]
            assert child.poll() is None
        finally:
            child.kill()
    assert [report.findings for report in reports] == [[]] * 6
    assert reports[-1].records > reports[0].records >= 200
    # What the kill left, the next open repairs.
    assert {one.cause for one in verify(root)} <= {Cause.CRASH}


def test_beside_a_writer_in_this_process(tmp_path: Path) -> None:
    """Nor does it let go of the lock, as a close of the lock file would."""
    root = tmp_path / "s"
    with rocketstore.open(root, flush_interval=0.01, **TINY) as store:
        fill(store)
        with writing(store):
            for _ in range(5):
                assert verify(root) == []
        code = "import rocketstore, sys; rocketstore.open(sys.argv[1])"
        other = subprocess.run(
            [sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False
        )
        assert "LockedError" in other.stderr
    assert verify(root) == []


def test_beside_a_writer_whose_messages_expire(tmp_path: Path) -> None:
    root = tmp_path / "s"
    options: dict[str, Any] = {**TINY, "retention": ANY_DISK, "background": False}
    stop = threading.Event()
    with rocketstore.open(root, **options) as store:
        fill(store, 200)

        def put() -> None:
            while not stop.is_set():
                fill(store, 40)
                store.clean(now=4e9)
                time.sleep(0.02)

        writer = threading.Thread(target=put)
        writer.start()
        try:
            for _ in range(10):
                assert verify(root) == []
        finally:
            stop.set()
            writer.join()


@pytest.mark.parametrize(
    ("file", "at", "kind"),
    [
        ("commitlog/*", 91, Kind.CHECKSUM),
        ("consumequeue/t/0/*", 47, Kind.MISMATCH),
        ("index/*", 40 + 4 * 7 + 20 * 3 + 11, Kind.MISMATCH),
    ],
)
def test_damage_is_found_beside_a_writer(tmp_path: Path, file: str, at: int, kind: Kind) -> None:
    root = tmp_path / "s"
    with rocketstore.open(root, flush_interval=0.01, **TINY) as store:
        fill(store)
        store.checkpoint()
        path = sorted(root.glob(file))[0]
        with path.open("r+b") as opened:
            opened.seek(at)
            byte = opened.read(1)
            opened.seek(at)
            opened.write(bytes([byte[0] ^ 0x11]))
        with writing(store):
            (found,) = verify(root)
    assert (found.path, found.kind, found.cause) == (str(path), kind, Cause.DAMAGE)


def test_a_writer_that_comes_meanwhile(tmp_path: Path) -> None:
    """Without a lock a store may be opened in the middle of the check."""
    root = tmp_path / "s"
    with open_tiny(root) as store:
        fill(store)
    opened: list[rocketstore.Store] = []

    class Opens(RealFileSystem):
        @staticmethod
        def open(path: Any, flags: int, mode: int = 0o600, /) -> int:
            if "commitlog" in str(path) and not opened:
                opened.append(open_tiny(root))
                fill(opened[0])
            return RealFileSystem.open(path, flags, mode)

    try:
        assert verify(root, fs=Opens()) == []
        assert opened
    finally:
        for store in opened:
            store.close()


def test_what_was_durable_is_damage_and_the_rest_a_trace_of_a_crash(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_tiny(root) as store:
        fill(store)
    unknown = shutil.copytree(root, tmp_path / "unknown")
    (unknown / "config" / "rocketstore.json").unlink()
    for store_root, cause in ((root, Cause.DAMAGE), (unknown, Cause.CRASH)):
        harm(sorted((store_root / "consumequeue" / "t" / "0").iterdir())[1], 27)
        harm(sorted((store_root / "index").iterdir())[1], 34)
        queue, index = verify(store_root)
        assert (queue.kind, index.kind) == (Kind.MISMATCH, Kind.MISMATCH)
        assert (queue.cause, index.cause) == (cause, cause)
        assert (Path(queue.path).name, queue.offset) == ("00000000000000000200", 20)
    with rocketstore.open(unknown, background=False):
        pass
    assert verify(unknown) == []


def test_files_that_are_missing(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_tiny(root) as store:
        fill(store)
    units = shutil.copytree(root, tmp_path / "units")
    log = sorted((root / "commitlog").iterdir())
    log[1].unlink()
    harm(log[2], 91)
    found = {(Path(one.path).name, one.kind) for one in verify(root)}
    assert found == {(log[1].name, Kind.MISSING_FILE), (log[2].name, Kind.CHECKSUM)}
    queue = sorted((units / "consumequeue" / "t" / "0").iterdir())
    queue[1].unlink()
    assert [(one.path, one.kind) for one in verify(units)] == [(str(queue[1]), Kind.MISSING_FILE)]


def test_queue_offsets_and_store_times(tmp_path: Path) -> None:
    """A gap that no filled hole explains, and a store time that no clock has given."""
    root = tmp_path / "s"
    clock = Clock()
    with open_tiny(root, clock=clock) as store:
        fill(store, 10)
        clock.now -= 3 * 86_400_000  # a clock that was set is none
        fill(store, 10)
        places = [message.offset for message in store.messages("t", 0)]
    assert verify(root) == []
    path = sorted((root / "commitlog").iterdir())[0]
    harm(path, places[2] + 27, 0x08)  # its queue offset: 10
    harm(path, places[3] + 57, 0x01)  # its store time
    found = [(one.offset, one.kind) for one in verify(root)]
    # The index has the time as it was.
    assert found == [(places[3], Kind.RECORD), (places[2], Kind.GAP), (0, Kind.MISMATCH)]


def test_a_lock_waits_for_the_look_at_it(tmp_path: Path) -> None:
    """The close of the lock file would give back a lock that this process took meanwhile."""
    path = Paths(str(tmp_path)).lock
    locks: list[StoreLock] = []
    thread = threading.Thread(target=lambda: locks.append(StoreLock(RealFileSystem(), path)))

    class Looks(RealFileSystem):
        @staticmethod
        def lock_shared(fd: int, /) -> bool:
            thread.start()
            thread.join(0.05)
            assert not locks
            return RealFileSystem.lock_shared(fd)

    Path(path).touch()
    assert not is_open(Looks(), path)
    thread.join()
    assert is_open(RealFileSystem(), path)
    locks[0].release()
    assert not is_open(RealFileSystem(), path)
