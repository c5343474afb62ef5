"""The peers that ``--peers`` adds, each in its fastest mode that keeps the promise asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from qindex.compare.contender import Contender, Fifo
from qindex.compare.designs import QueueIndexDesign, RocketDesign


class Queuelib(Fifo):
    """queuelib's FifoDiskQueue."""

    name = title = "queuelib"
    module: ClassVar[str | None] = "queuelib"
    note = "no ack; its state is written on close: a kill loses it"
    kill_safe = False
    acks = False

    def __init__(self, directory: Path, durability: str) -> None:
        self._queue = importlib.import_module("queuelib").FifoDiskQueue(str(directory / "queue"))

    def publish(self, body: bytes) -> None:
        self._queue.push(body)

    def publish_each(self, bodies: Sequence[bytes]) -> None:
        push = self._queue.push
        for body in bodies:
            push(body)

    def take(self) -> tuple[Any, bytes] | None:
        body = self._queue.pop()
        return None if body is None else (None, body)

    def get_ack_each(self, count: int) -> list[bytes]:
        pop = self._queue.pop
        return [pop() for _ in range(count)]

    def close(self) -> None:
        self._queue.close()


class PersistQueue(Fifo):
    """persist-queue's SQLiteAckQueue. It always syncs fully; for ``"os"`` its connection is set
    to NORMAL from outside, in its favour."""

    name = title = "persist-queue"
    module: ClassVar[str | None] = "persistqueue"
    note = "SQLiteAckQueue; acknowledged messages stay in its file"
    fsync = True
    threads = True
    linear = True  # in the messages that were acknowledged
    max_backlog = 10_000

    def __init__(self, directory: Path, durability: str) -> None:
        library = importlib.import_module("persistqueue")
        self._empty: type[Exception] = library.Empty
        self._queue = library.SQLiteAckQueue(str(directory), multithreading=True)
        if durability == "os":
            self._queue._putter.execute("PRAGMA synchronous = NORMAL")

    def publish(self, body: bytes) -> None:
        self._queue.put(body)

    def take(self) -> tuple[Any, bytes] | None:
        try:
            item = self._queue.get(block=False, raw=True)
        except self._empty:
            return None
        return item["pqid"], item["data"]

    def ack(self, token: Any) -> None:
        self._queue.ack(id=token)

    def close(self) -> None:
        self._queue.close()


class Litequeue(Fifo):
    """litequeue: SQLite WAL, text only; a pop sorts all that waits."""

    name = title = "litequeue"
    module: ClassVar[str | None] = "litequeue"
    note = "text only; done messages stay in its file"
    fsync = True
    batch_publish = True
    linear = True
    max_backlog = 10_000

    def __init__(self, directory: Path, durability: str) -> None:
        library = importlib.import_module("litequeue")
        self._queue = library.LiteQueue(str(directory / "queue.db"))
        if durability == "fsync":
            self._queue.conn.execute("PRAGMA synchronous = FULL")

    def publish(self, body: bytes) -> None:
        self._queue.put(body.decode("latin-1"))

    def publish_many(self, bodies: list[bytes]) -> None:
        with self._queue.transaction():
            self.publish_each(bodies)

    def take(self) -> tuple[Any, bytes] | None:
        item = self._queue.pop()
        return None if item is None else (item.message_id, item.data.encode("latin-1"))

    def ack(self, token: Any) -> None:
        self._queue.done(token)

    def close(self) -> None:
        self._queue.close()


class Diskcache(Fifo):
    """diskcache's Cache with push and pull: a large value is a file of its own beside SQLite."""

    name = title = "diskcache"
    module: ClassVar[str | None] = "diskcache"
    note = "Cache.push and pull; no ack"
    fsync = True
    acks = False

    def __init__(self, directory: Path, durability: str) -> None:
        library = importlib.import_module("diskcache")
        self._cache = library.Cache(
            str(directory),
            eviction_policy="none",
            sqlite_synchronous=2 if durability == "fsync" else 1,
        )

    def publish(self, body: bytes) -> None:
        self._cache.push(body)

    def take(self) -> tuple[Any, bytes] | None:
        key, body = self._cache.pull()
        return None if key is None else (None, body)

    def close(self) -> None:
        self._cache.close()


DESIGNS: tuple[type[Contender], ...] = (QueueIndexDesign, RocketDesign)
PEERS: tuple[type[Contender], ...] = (Queuelib, PersistQueue, Litequeue, Diskcache)
CONTENDERS = {kind.name: kind for kind in DESIGNS + PEERS}
