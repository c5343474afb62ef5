"""The peers behind the one interface of :mod:`benchmarks.contender`, and the list of all.

Each peer is used as its own documentation says, in its fastest mode that still keeps what
returned through a SIGKILL (``"os"``), or that syncs before it returns (``"fsync"``). The two
hand-written ones (rocksdict, sqlite3) are what an engineer would write in an afternoon instead of
taking a dependency, and are written for speed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender, Floor
from benchmarks.ours import Ours

__all__ = ["CONTENDERS", "installed"]

_BIG_ENDIAN_64 = struct.Struct(">Q").pack
_LONG_LEASE = 3600.0
"""Seconds; longer than any run, so that no lease ends while it is measured."""


class RocksFifo(Contender):
    """A FIFO with acks written by hand on RocksDB: keys count up, an ack deletes its key.

    What is delivered and not acknowledged lives in memory (after a restart it is still there).
    Measured to be the fastest of its kind: no compression, a 256 MiB write buffer, no adaptive
    yield; gets read ahead through an iterator (a point lookup for each is a third slower), and a
    batch, whose keys lie side by side, is acknowledged by one range deletion.
    """

    name = "rocksdict"
    module = "rocksdict"
    fsync = True
    threads = True
    batch_publish = True
    batch_get = True
    note = "hand-written"
    _READ_AHEAD = 1024

    def __init__(self, directory: Path, durability: str) -> None:
        rocksdict = importlib.import_module("rocksdict")
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_write_buffer_size(256 << 20)
        options.set_enable_write_thread_adaptive_yield(False)
        self._db = rocksdict.Rdict(str(directory), options)
        if durability == "fsync":
            write_options = rocksdict.WriteOptions()
            write_options.sync = True
            self._db.set_write_options(write_options)
        self._batch = rocksdict.WriteBatch
        last = next(iter(self._db.keys(backwards=True)), None)
        first = next(iter(self._db.keys()), None)
        self._tail = count(int.from_bytes(last, "big") + 1 if last is not None else 0)
        self._head: bytes = first if first is not None else _BIG_ENDIAN_64(0)
        self._ahead: deque[tuple[bytes, bytes]] = deque()

    def publish(self, body: bytes) -> None:
        self._db.put(_BIG_ENDIAN_64(next(self._tail)), body)

    def publisher(self) -> Callable[[bytes], object]:
        return self.publish

    def publish_many(self, bodies: list[bytes]) -> None:
        batch = self._batch(raw_mode=True)
        put = batch.put
        for body, key in zip(bodies, self._tail, strict=False):
            put(_BIG_ENDIAN_64(key), body)
        self._db.write(batch)

    def get(self) -> tuple[bytes, bytes]:
        ahead = self._ahead
        if not ahead:
            ahead.extend(islice(self._db.items(from_key=self._head), self._READ_AHEAD))
            self._head = _after(ahead[-1][0])
        return ahead.popleft()

    def body(self, delivery: Any) -> bytes:
        body: bytes = delivery[1]
        return body

    def ack(self, delivery: Any) -> None:
        self._db.delete(delivery[0])

    def get_ack_each(self, count: int) -> list[bytes]:
        get, delete = self.get, self._db.delete
        bodies: list[bytes] = []
        append = bodies.append
        for _ in range(count):
            key, body = get()
            append(body)
            delete(key)
        return bodies

    def get_ack_many(self, count: int) -> list[bytes]:
        batch = [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]
        missing = count - len(batch)
        if missing:
            batch += islice(self._db.items(from_key=self._head), missing)
            self._head = _after(batch[-1][0])
        self._db.delete_range(batch[0][0], _after(batch[-1][0]))
        return [body for _, body in batch]

    def close(self) -> None:
        self._db.close()


def _after(key: bytes) -> bytes:
    return _BIG_ENDIAN_64(int.from_bytes(key, "big") + 1)


class SqliteFifo(Contender):
    """A FIFO with acks written by hand on SQLite: WAL, synchronous NORMAL (FULL for fsync).

    A delivery is noted in memory only, so a get writes nothing and an ack is one delete.
    """

    name = "sqlite3"
    fsync = True
    threads = True
    batch_publish = True
    batch_get = True
    note = "hand-written"

    def __init__(self, directory: Path, durability: str) -> None:
        self._db = sqlite3.connect(
            directory / "queue.db", isolation_level=None, check_same_thread=False
        )
        self._lock = threading.Lock()
        level = "FULL" if durability == "fsync" else "NORMAL"
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {level}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB)"
        )
        self._head = 0

    def publish(self, body: bytes) -> None:
        with self._lock:
            self._db.execute("INSERT INTO messages (body) VALUES (?)", (body,))

    def publisher(self) -> Callable[[bytes], object]:
        return self.publish

    def publish_many(self, bodies: list[bytes]) -> None:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO messages (body) VALUES (?)", ((body,) for body in bodies)
            )
            self._db.execute("COMMIT")

    def get(self) -> tuple[int, bytes]:
        with self._lock:
            row: tuple[int, bytes] = self._db.execute(
                "SELECT id, body FROM messages WHERE id > ? ORDER BY id LIMIT 1", (self._head,)
            ).fetchone()
            self._head = row[0]
            return row

    def body(self, delivery: Any) -> bytes:
        body: bytes = delivery[1]
        return body

    def ack(self, delivery: Any) -> None:
        with self._lock:
            self._db.execute("DELETE FROM messages WHERE id = ?", (delivery[0],))

    def get_ack_many(self, count: int) -> list[bytes]:
        with self._lock:
            rows = self._db.execute(
                "SELECT id, body FROM messages WHERE id > ? ORDER BY id LIMIT ?",
                (self._head, count),
            ).fetchall()
            self._head = rows[-1][0]
            self._db.execute(
                "DELETE FROM messages WHERE id BETWEEN ? AND ?", (rows[0][0], self._head)
            )
        return [body for _, body in rows]

    def close(self) -> None:
        self._db.close()


class LmdbQueue(Contender):
    """lmdb-queue: acks and leases on LMDB. Its ``sync=True`` does not sync: no fsync figures."""

    name = "lmdb-queue"
    max_backlog = 100_000  # it takes longer to fill a million than all others together
    module = "equeue"
    threads = True

    def __init__(self, directory: Path, durability: str) -> None:
        equeue = importlib.import_module("equeue")
        self._queue = equeue.Queue(directory, lease_time=_LONG_LEASE)

    def publisher(self) -> Callable[[bytes], object]:
        put: Callable[[bytes], object] = self._queue.put
        return put

    def get(self) -> Any:
        return self._queue.get()

    def body(self, delivery: Any) -> bytes:
        body: bytes = delivery.payload
        return body

    def ack(self, delivery: Any) -> None:
        delivery.ack()

    def close(self) -> None:
        self._queue.close()


class Rocksq(Contender):
    """rocksq: RocksDB in Rust; a pop removes at once."""

    name = "rocksq"
    module = "rocksq"
    acks = False
    threads = True
    batch_publish = True
    batch_get = True
    note = "no ack"

    def __init__(self, directory: Path, durability: str) -> None:
        blocking = importlib.import_module("rocksq.blocking")
        self._queue = blocking.PersistentQueueWithCapacity(str(directory / "rocksq"))

    def publish(self, body: bytes) -> None:
        self._queue.push([body])

    def publisher(self) -> Callable[[bytes], object]:
        return self.publish

    def publish_many(self, bodies: list[bytes]) -> None:
        self._queue.push(bodies)

    def get(self) -> bytes:
        body: bytes = self._queue.pop()[0]
        return body

    def body(self, delivery: Any) -> bytes:
        return bytes(delivery)

    def ack(self, delivery: Any) -> None:
        """There is none: the pop has removed the message."""

    def get_ack_each(self, count: int) -> list[bytes]:
        pop = self._queue.pop
        return [pop()[0] for _ in range(count)]

    def get_ack_many(self, count: int) -> list[bytes]:
        bodies: list[bytes] = self._queue.pop(count)
        return bodies

    def close(self) -> None:
        # The library has no close; the last reference closes the database.
        del self._queue


class QueuelibDisk(Contender):
    """queuelib's FifoDiskQueue: chunk files, its state written on close only."""

    name = "queuelib"
    module = "queuelib"
    kill_safe = False
    acks = False
    note = "no ack, lost on a kill"

    def __init__(self, directory: Path, durability: str) -> None:
        queuelib = importlib.import_module("queuelib")
        self._queue = queuelib.FifoDiskQueue(str(directory / "queuelib"))

    def publisher(self) -> Callable[[bytes], object]:
        push: Callable[[bytes], object] = self._queue.push
        return push

    def get(self) -> bytes:
        body: bytes = self._queue.pop()
        return body

    def body(self, delivery: Any) -> bytes:
        return bytes(delivery)

    def ack(self, delivery: Any) -> None:
        """There is none: the pop has removed the message."""

    def get_ack_each(self, count: int) -> list[bytes]:
        pop = self._queue.pop
        return [pop() for _ in range(count)]

    def close(self) -> None:
        self._queue.close()


class PersistQueue(Contender):
    """persist-queue's SQLiteAckQueue. It always syncs fully; for ``"os"`` its connection is set
    to NORMAL from outside, in its favour."""

    name = "persist-queue"
    module = "persistqueue"
    fsync = True
    threads = True
    linear = True  # in the messages that were acknowledged
    max_backlog = 10_000
    note = "SQLiteAckQueue"

    def __init__(self, directory: Path, durability: str) -> None:
        persistqueue = importlib.import_module("persistqueue")
        self._queue = persistqueue.SQLiteAckQueue(str(directory / "pq"), multithreading=True)
        if durability == "os":
            self._queue._putter.execute("PRAGMA synchronous = NORMAL")

    def publisher(self) -> Callable[[bytes], object]:
        put: Callable[[bytes], object] = self._queue.put
        return put

    def get(self) -> Any:
        return self._queue.get(raw=True)

    def body(self, delivery: Any) -> bytes:
        body: bytes = delivery["data"]
        return body

    def ack(self, delivery: Any) -> None:
        self._queue.ack(id=delivery["pqid"])

    def close(self) -> None:
        self._queue.close()


class Litequeue(Contender):
    """litequeue: SQLite WAL, text only; a pop sorts all that waits."""

    name = "litequeue"
    module = "litequeue"
    fsync = True
    batch_publish = True
    linear = True
    max_backlog = 10_000
    note = "text only"

    def __init__(self, directory: Path, durability: str) -> None:
        litequeue = importlib.import_module("litequeue")
        self._queue = litequeue.LiteQueue(str(directory / "queue.db"))
        if durability == "fsync":
            self._queue.conn.execute("PRAGMA synchronous = FULL")

    def publish(self, body: bytes) -> None:
        self._queue.put(body.decode("latin-1"))

    def publisher(self) -> Callable[[bytes], object]:
        return self.publish

    def publish_many(self, bodies: list[bytes]) -> None:
        with self._queue.transaction():
            self.publish_each(bodies)

    def get(self) -> Any:
        return self._queue.pop()

    def body(self, delivery: Any) -> bytes:
        text: str = delivery.data
        return text.encode("latin-1")

    def ack(self, delivery: Any) -> None:
        self._queue.done(delivery.message_id)

    def close(self) -> None:
        self._queue.close()


class Localqueue(Contender):
    """localqueue: SQLite WAL in Rust, leases; a get costs in proportion to the backlog."""

    name = "localqueue"
    module = "localqueue"
    fsync = True
    threads = True
    batch_publish = True
    linear = True
    max_backlog = 10_000

    def __init__(self, directory: Path, durability: str) -> None:
        localqueue = importlib.import_module("localqueue")
        mode = localqueue.DurabilityMode
        self._queue = localqueue.SimpleQueue(
            str(directory),
            durability=mode.DURABLE if durability == "fsync" else mode.RELAXED,
            delivery=localqueue.DeliveryPolicy(lease_seconds=_LONG_LEASE),
            serializer=_Bytes(),
        )

    def publisher(self) -> Callable[[bytes], object]:
        put: Callable[[bytes], object] = self._queue.put
        return put

    def publish_many(self, bodies: list[bytes]) -> None:
        self._queue.put_many(bodies)

    def get(self) -> Any:
        return self._queue.get()

    def body(self, delivery: Any) -> bytes:
        body: bytes = delivery.data
        return body

    def ack(self, delivery: Any) -> None:
        self._queue.ack(delivery)

    def close(self) -> None:
        self._queue.close()


class _Bytes:
    """Spares localqueue the JSON: bytes in, bytes out."""

    @staticmethod
    def dumps(data: bytes) -> bytes:
        return data

    @staticmethod
    def loads(data: bytes) -> bytes:
        return data


_ALL: Sequence[type[Contender]] = (
    Floor,
    Ours,
    RocksFifo,
    LmdbQueue,
    Rocksq,
    SqliteFifo,
    QueuelibDisk,
    PersistQueue,
    Litequeue,
    Localqueue,
)

CONTENDERS: dict[str, type[Contender]] = {kind.name: kind for kind in _ALL}


def installed(kind: type[Contender]) -> bool:
    """Tell whether the contender can be measured here, without importing it."""
    if kind.module is None:
        return True
    spec = importlib.util.find_spec(kind.module)
    # A directory without an __init__.py is found too (a namespace package): that is no library.
    return spec is not None and spec.origin is not None
