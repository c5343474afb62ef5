"""The peers that ``--peers`` adds, each in its fastest mode that keeps the workload's promise."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from qindex.compare.designs import (
    Contender,
    PeerContender,
    PeerQueue,
    QueueIndexDesign,
    RocketDesign,
)
from qindex.compare.workload import Workload


class _Queuelib(PeerQueue):
    def __init__(self, place: Path) -> None:
        self._queue = importlib.import_module("queuelib").FifoDiskQueue(str(place / "queue"))

    def put(self, body: bytes) -> None:
        self._queue.push(body)

    def take(self) -> tuple[Any, bytes] | None:
        body = self._queue.pop()
        return None if body is None else (None, body)

    def ack(self, token: Any) -> None:
        """The pop has removed the message: there is nothing to acknowledge."""

    def close(self) -> None:
        self._queue.close()


class _PersistQueue(PeerQueue):
    def __init__(self, place: Path, durability: str) -> None:
        module = importlib.import_module("persistqueue")
        self._empty: type[Exception] = module.Empty
        self._queue = module.SQLiteAckQueue(str(place), multithreading=True)
        if durability == "os":
            self._queue._putter.execute("PRAGMA synchronous = NORMAL")

    def put(self, body: bytes) -> None:
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


class _Litequeue(PeerQueue):
    def __init__(self, place: Path, durability: str) -> None:
        module = importlib.import_module("litequeue")
        self._queue = module.LiteQueue(str(place / "queue.db"))
        if durability == "fsync":
            self._queue.conn.execute("PRAGMA synchronous = FULL")

    def put(self, body: bytes) -> None:
        self._queue.put(body.decode("latin-1"))

    def take(self) -> tuple[Any, bytes] | None:
        item = self._queue.pop()
        return None if item is None else (item.message_id, item.data.encode("latin-1"))

    def ack(self, token: Any) -> None:
        self._queue.done(token)

    def close(self) -> None:
        self._queue.close()


class _Diskcache(PeerQueue):
    def __init__(self, place: Path, durability: str) -> None:
        module = importlib.import_module("diskcache")
        self._cache = module.Cache(
            str(place), eviction_policy="none", sqlite_synchronous=2 if durability == "fsync" else 1
        )

    def put(self, body: bytes) -> None:
        self._cache.push(body)

    def take(self) -> tuple[Any, bytes] | None:
        key, body = self._cache.pull()
        return None if key is None else (None, body)

    def ack(self, token: Any) -> None:
        """The pull has removed the message: there is nothing to acknowledge."""

    def close(self) -> None:
        self._cache.close()


class Queuelib(PeerContender):
    """queuelib's FifoDiskQueue."""

    name = title = "queuelib"
    module: ClassVar[str | None] = name
    note = "no ack; its state is written on close: a kill loses it"
    kill_safe = False
    fsync = False

    def open_queue(self, place: Path, workload: Workload) -> PeerQueue:
        """One FifoDiskQueue."""
        return _Queuelib(place)


class PersistQueue(PeerContender):
    """persist-queue's SQLiteAckQueue."""

    name = title = "persist-queue"
    module: ClassVar[str | None] = "persistqueue"
    note = "SQLiteAckQueue; acknowledged messages stay in its file"

    def open_queue(self, place: Path, workload: Workload) -> PeerQueue:
        """One SQLiteAckQueue."""
        return _PersistQueue(place, workload.durability)


class Litequeue(PeerContender):
    """litequeue."""

    name = title = "litequeue"
    module: ClassVar[str | None] = name
    note = "text only; done messages stay in its file"

    def open_queue(self, place: Path, workload: Workload) -> PeerQueue:
        """One LiteQueue."""
        return _Litequeue(place, workload.durability)


class Diskcache(PeerContender):
    """diskcache's Cache with push and pull."""

    name = title = "diskcache"
    module: ClassVar[str | None] = name
    note = "Cache.push and pull; no ack"

    def open_queue(self, place: Path, workload: Workload) -> PeerQueue:
        """One Cache."""
        return _Diskcache(place, workload.durability)


DESIGNS: tuple[type[Contender], ...] = (QueueIndexDesign, RocketDesign)
PEERS: tuple[type[Contender], ...] = (Queuelib, PersistQueue, Litequeue, Diskcache)
CONTENDERS = {kind.name: kind for kind in DESIGNS + PEERS}


def is_installed(kind: type[Contender]) -> bool:
    """Tell whether a contender can be run here, without importing it."""
    return kind.module is None or importlib.util.find_spec(kind.module) is not None
