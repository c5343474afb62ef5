"""A store after a call that was cut short: it is read again from its files, and goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import rocketstore
from journal.errors import StoreError, WritesRefusedError
from journal.fs.files import PathLike
from rocketstore.dispatcher import Dispatcher
from rocketstore.index.index_service import IndexService
from rocketstore.log.commitlog import CommitLog
from rocketstore.parts import Parts
from rocketstore.queues.consumequeue import ConsumeQueue
from rocketstore.verify import verify
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import TINY, Clock, open_tiny
from tests.waiting import WAIT


class Ended(BaseException):
    """A signal's handler raises it."""


def cut_short(
    target: object,
    name: str,
    call: Callable[[], object],
    *,
    put: Callable[[], object] | None = None,
) -> None:
    """Have a call end where it comes to ``name``. ``put`` gives it something to do: the background
    thread may have done it before, and then there is another turn."""
    for _ in range(100 if put else 1):
        if put is not None:
            put()
        with patch.object(target, name, side_effect=Ended):
            try:
                call()
            except Ended:
                return
    raise AssertionError(f"{name} was not reached")


def check(store: rocketstore.Store, bodies: list[bytes]) -> None:
    found = list(store.messages("T", 0))
    assert [one.body for one in found] == bodies
    assert [one.queue_offset for one in found] == list(range(len(bodies)))
    for message in found:
        assert [one.offset for one in store.query("T", message.body.decode())] == [message.offset]


@pytest.mark.interpreted  # methods of the store's parts are replaced
@pytest.mark.parametrize("recovery", ["full", "compatible"])
@pytest.mark.parametrize("background", [False, True])
def test_each_kind_of_state_is_read_again(tmp_path: Path, recovery: str, background: bool) -> None:
    options: dict[str, Any] = {
        "recovery": recovery, "background": background, "flush_interval": 0.01
    }  # fmt: skip
    bodies: list[bytes] = []

    def put(store: rocketstore.Store, count: int = 3) -> None:
        for _ in range(count):
            bodies.append(b"%d" % len(bodies))
            assert store.put("T", bodies[-1], keys=bodies[-1].decode()).queue_offset == (
                len(bodies) - 1
            )

    def get_after_put(target: object, name: str) -> None:
        cut_short(target, name, lambda: store.get("T", 0, 0), put=lambda: put(store))

    with open_tiny(tmp_path / "s", **options) as store:
        put(store, 30)
        cut_short(CommitLog, "make_room", lambda: store.put("T", b"x" * 3500))
        get_after_put(Dispatcher, "_one_by_one")
        check(store, bodies)
        get_after_put(ConsumeQueue, "_append")
        get_after_put(IndexService, "put_keys")
        assert store.max_offset == store._state.commitlog.max_offset
        put(store)
        new = [b"%d" % (len(bodies) + one) for one in range(3)]
        keys = [body.decode() for body in new]
        cut_short(Parts, "dispatch", lambda: store.put_many("T", new, keys=keys))
        bodies += new  # they are in the log
        put(store)
        cut_short(CommitLog, "write", lambda: store.put_many("T", new))
        put(store)
        check(store, bodies)
        assert not store.findings
    assert not verify(tmp_path / "s", **TINY)


@pytest.mark.interpreted  # methods of the store's parts are replaced
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    sizes = {"commitlog_file_size": 1 << 20, "consumequeue_file_size": 20_000}
    with open_tiny(tmp_path / "s", **sizes, index_entries=1000) as store:

        def turn() -> None:
            store.put("T", b"a", keys="a")
            cut_short(Dispatcher, "_one_by_one", lambda: store.get("T", 0, 0))
            store.put("T", b"b", keys="b")
            store.get("T", 0, 0)
            store.sync()

        turn()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            turn()
        assert len(os.listdir("/proc/self/fd")) == before
    assert len(os.listdir("/proc/self/fd")) < before


@pytest.mark.interpreted  # methods of the store's parts are replaced
def test_a_sync_under_way_keeps_its_descriptors(tmp_path: Path) -> None:
    store = open_tiny(tmp_path / "s")
    store.put("T", b"0", keys="0")
    inside, go_on = threading.Event(), threading.Event()
    real = os.fdatasync
    seen: list[str] = []

    def fdatasync(fd: int) -> None:
        if threading.current_thread() is not syncing:
            return real(fd)
        inside.set()
        assert go_on.wait(WAIT)
        seen.append(os.readlink(f"/proc/self/fd/{fd}"))
        return real(fd)

    syncing = threading.Thread(target=store.sync)
    with patch.object(type(store.options.fs), "fdatasync", staticmethod(fdatasync)):
        syncing.start()
        assert inside.wait(WAIT)
        cut_short(Dispatcher, "_one_by_one", lambda: store.get("T", 0, 0))
        store.put("T", b"1", keys="1")
        go_on.set()
        syncing.join(WAIT)
    assert [os.path.basename(os.path.dirname(path)) for path in seen] == ["commitlog"]
    check(store, [b"0", b"1"])
    store.close()
    assert not verify(tmp_path / "s", **TINY)


@pytest.mark.interpreted  # methods of the store's parts are replaced
def test_a_store_that_takes_no_writes_is_not_read_again() -> None:
    """Recovery would write."""
    store = open_tiny(Path("/s"), fs=MemoryFileSystem(root="/s"))
    first = store.put("T", b"0")
    store._state.poison.set(OSError(5, "EIO"))
    cut_short(Dispatcher, "_one_by_one", lambda: store.get("T", 0, 0))
    with pytest.raises(WritesRefusedError):
        store.put("T", b"1")
    for _ in range(2):
        with pytest.raises(StoreError, match="a call was cut short, and an earlier write failed"):
            store.get("T", 0, 0)
    with pytest.raises(StoreError, match="close, and open again"):
        store.lookup(first.offset)
    store.close()


@pytest.mark.interpreted  # methods of the store's parts are replaced
def test_files_that_can_not_be_read_again() -> None:
    """The error is told, and told again; nothing is written."""
    fs = MemoryFileSystem(root="/s")
    store = open_tiny(Path("/s"), fs=fs)
    store.put("T", b"0", keys="0")
    cut_short(Dispatcher, "_one_by_one", lambda: store.get("T", 0, 0))
    with patch.object(type(fs), "listdir", side_effect=OSError(5, "EIO")):
        for _ in range(2):
            with pytest.raises(StoreError):
                store.get("T", 0, 0)
    with pytest.raises(WritesRefusedError):
        store.put("T", b"1")
    store.close()
    with open_tiny(Path("/s"), fs=fs) as store:
        check(store, [b"0"])


class Synced(MemoryFileSystem):
    """It notes the files that were synced."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.names: dict[int, str] = {}
        self.synced: set[str] = set()

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:
        fd = super().open(path, flags, mode)
        self.names[fd] = os.fspath(path)
        return fd

    def fdatasync(self, fd: int, /) -> None:
        super().fdatasync(fd)
        self.synced.add(self.names[fd])


def test_an_open_after_a_kill_syncs_the_files_it_vouches_for() -> None:
    """They may be in the system's memory alone; our note says of them that they are durable."""
    fs = MemoryFileSystem(root="/s")
    store = open_tiny(Path("/s"), fs=fs, clock=Clock())
    for number in range(40):
        store.put("T", b"x" * 300, keys=f"k{number}")
    store.get("T", 0, 0)
    files, directories = fs.contents()
    again = Synced(files, directories)
    with open_tiny(Path("/s"), fs=again, clock=Clock()) as store:
        kinds = ("commitlog", "consumequeue", "index")
        there = {f"/{path}" for path in again.contents()[0] if path.split("/")[1] in kinds}
        assert len(there) > 6
        assert there <= again.synced
        again.synced.clear()
        store.checkpoint()
        assert not again.synced & there
    store.close()
