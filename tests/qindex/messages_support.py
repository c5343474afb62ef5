"""What the tests of the engine with its message store share."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import qindex
from journal.fs.files import REAL, FileSystem, PathLike, RealFileSystem
from msgstore import MessageStore
from qindex.view.reader import StoreReader
from tests.qindex.support import open_quietly

__all__ = [
    "PERSISTENT",
    "SyncLog",
    "assert_counts",
    "big",
    "index_counts",
    "rdq_files",
    "ready",
    "store_of",
    "stored",
]

PERSISTENT = "msg_store_persistent"


def big(number: int, size: int = 700) -> bytes:
    """The body of message ``number``: too big to be embedded below 512 bytes."""
    return b"%d " % number + random.Random(number).randbytes(size)


def stored(directory: PathLike, **options: Any) -> qindex.Engine:
    """Open without a background thread; records of 512 bytes go to small message store files."""
    settings: dict[str, Any] = {"embed_below": 512, "store_file_bytes": 4096}
    return open_quietly(directory, **{**settings, **options})


def store_of(engine: qindex.Engine) -> MessageStore:
    """The message store underneath, for what the interface does not show."""
    store = engine._messages._opened
    assert store is not None
    return store


def rdq_files(directory: Path) -> list[Path]:
    return sorted((directory / PERSISTENT).glob("*.rdq"), key=lambda path: int(path.stem))


def index_counts(directory: PathLike, fs: FileSystem = REAL) -> Counter[bytes]:
    """How many index entries name each message, as the files have it."""
    reader = StoreReader(directory, fs=fs)
    found: Counter[bytes] = Counter()
    for one in reader.directories():
        found.update(reader.pin(one).stored_ids())
    return found


def assert_counts(engine: qindex.Engine, fs: FileSystem = REAL) -> int:
    """The message store's counts are those of the index; gives the number of messages."""
    expected = index_counts(engine.directory, fs)
    if engine._messages._opened is None:
        assert not expected
        return 0
    store = store_of(engine)
    assert {msg_id: store.references(msg_id) for msg_id in expected} == dict(expected)
    assert len(store) == len(expected)
    stats = store.stats()
    located = [store.locate(msg_id) for msg_id in expected]
    assert stats.live == sum(one.total for one in located if one is not None)
    return len(expected)


def ready(engine: qindex.Engine, name: str = "q") -> list[bytes]:
    """The bodies that are ready, without taking them."""
    return [one.body for one in engine.queue(name).peek(10**6)]


class SyncLog(RealFileSystem):
    """The real file system; ``synced`` has the names of the files that were synced, in order, and
    of directories with a slash behind."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.opened: list[str] = []
        self._names: dict[int, str] = {}
        real = RealFileSystem

        def open_(path: PathLike, flags: int, mode: int = 0o666, /) -> int:
            fd = real.open(path, flags, mode)
            self._names[fd] = Path(path).name
            self.opened.append(Path(path).name)
            return fd

        def fdatasync(fd: int, /) -> None:
            self.synced.append(self._names.get(fd, "?"))
            real.fdatasync(fd)

        def sync_dir(path: PathLike, /) -> None:
            self.synced.append(f"{Path(path).name}/")
            real.sync_dir(path)

        self.open = open_  # type: ignore[method-assign]
        self.fdatasync = fdatasync  # type: ignore[assignment]
        self.sync_dir = sync_dir  # type: ignore[method-assign]
