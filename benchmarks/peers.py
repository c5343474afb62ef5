"""All contenders of the engine's benchmark: the floor, the engine, and its peers.

Each peer is used as its own documentation says, in its fastest mode that still keeps what
returned through a SIGKILL (``"os"``), or that syncs before it returns (``"fsync"``). The two
hand-written ones (rocksdict, sqlite3) are what an engineer would write in an afternoon instead of
taking a dependency, and are written for speed. No benchmark takes from an empty queue.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.bodies import BODY_BYTES, RECORD_BYTES
from qindex.compare.contender import Fifo
from qindex.compare.designs import QueueIndexDesign
from qindex.compare.peers import Diskcache, Litequeue, PersistQueue, Queuelib

_BIG_ENDIAN_64 = struct.Struct(">Q").pack
_LONG_LEASE = 3600.0
"""Seconds; longer than any run, so that no lease ends while it is measured."""


class Floor(Fifo):
    """The least that a kill-safe queue in Python can do: the record's bytes to ``os.write``.

    One call for each message, for a publish and for a get with its ack alike; in a batch, one
    call for all records. It gives no bodies back and reads nothing: a bound, not a queue.
    """

    name = "floor"
    fsync = True
    threads = True
    batch_publish = True
    note = "bare os.write"

    def __init__(self, directory: Path, durability: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(directory / "floor", flags, 0o600)
        self._durable = durability == "fsync"
        self._record = bytes(RECORD_BYTES)

    def records(self, bodies: list[bytes]) -> list[bytes]:
        """Return what the floor writes for each body: as many bytes as a journal record."""
        tail = bytes(range(RECORD_BYTES - BODY_BYTES))
        return [body + tail for body in bodies]

    def publish(self, body: bytes) -> None:
        os.write(self._fd, body)
        if self._durable:
            os.fdatasync(self._fd)

    def publish_each(self, bodies: Sequence[bytes]) -> None:
        fd, write, sync = self._fd, os.write, os.fdatasync
        if self._durable:
            for record in bodies:
                write(fd, record)
                sync(fd)
        else:
            for record in bodies:
                write(fd, record)

    def take(self) -> tuple[Any, bytes] | None:
        return self._record, self._record

    def ack(self, token: Any) -> None:
        self.publish(token)

    def get_ack_each(self, count: int) -> list[bytes]:
        fd, write, record = self._fd, os.write, self._record
        for _ in range(count):
            write(fd, record)
        return []

    def close(self) -> None:
        os.close(self._fd)


class RocksFifo(Fifo):
    """A FIFO with acks written by hand on RocksDB: keys count up, an ack deletes its key.

    What is delivered and not acknowledged lives in memory (after a restart it is still there).
    Measured to be the fastest of its kind: no compression, a 256 MiB write buffer, no adaptive
    yield; gets read ahead through an iterator (a point lookup for each is a third slower), and a
    batch, whose keys lie side by side, is acknowledged by one range deletion.
    """

    name = module = "rocksdict"
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

    def publish_many(self, bodies: list[bytes]) -> None:
        batch = self._batch(raw_mode=True)
        put = batch.put
        for body, key in zip(bodies, self._tail, strict=False):
            put(_BIG_ENDIAN_64(key), body)
        self._db.write(batch)

    def take(self) -> tuple[bytes, bytes]:
        ahead = self._ahead
        if not ahead:
            ahead.extend(islice(self._db.items(from_key=self._head), self._READ_AHEAD))
            self._head = _after(ahead[-1][0])
        return ahead.popleft()

    def ack(self, token: Any) -> None:
        self._db.delete(token)

    def get_ack_each(self, count: int) -> list[bytes]:
        get, delete = self.take, self._db.delete
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


class SqliteFifo(Fifo):
    """A FIFO with acks written by hand on SQLite: WAL, synchronous NORMAL (FULL for fsync).

    A delivery is noted in memory only, so a get writes nothing and an ack is one delete.
    """

    name = "sqlite3"
    fsync = True
    threads = True
    batch_publish = True
    batch_get = True
    note = "hand-written"
    columns = "id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB"

    def __init__(self, directory: Path, durability: str) -> None:
        self._db = sqlite3.connect(
            directory / "queue.db", isolation_level=None, check_same_thread=False
        )
        self._lock = threading.Lock()
        level = "FULL" if durability == "fsync" else "NORMAL"
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {level}")
        self._db.execute(f"CREATE TABLE IF NOT EXISTS messages ({self.columns})")
        self._head = 0

    def publish(self, body: bytes) -> None:
        with self._lock:
            self._db.execute("INSERT INTO messages (body) VALUES (?)", (body,))

    def publish_many(self, bodies: list[bytes]) -> None:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO messages (body) VALUES (?)", ((body,) for body in bodies)
            )
            self._db.execute("COMMIT")

    def take(self) -> tuple[int, bytes] | None:
        with self._lock:
            row: tuple[int, bytes] = self._db.execute(
                "SELECT id, body FROM messages WHERE id > ? ORDER BY id LIMIT 1", (self._head,)
            ).fetchone()
            self._head = row[0]
            return row

    def ack(self, token: Any) -> None:
        with self._lock:
            self._db.execute("DELETE FROM messages WHERE id = ?", (token,))

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


class LmdbQueue(Fifo):
    """lmdb-queue: acks and leases on LMDB. Its ``sync=True`` does not sync: no fsync figures."""

    name = "lmdb-queue"
    max_backlog = 100_000  # it takes longer to fill a million than all others together
    module = "equeue"
    threads = True

    def __init__(self, directory: Path, durability: str) -> None:
        equeue = importlib.import_module("equeue")
        self._queue = equeue.Queue(directory, lease_time=_LONG_LEASE)

    def publish(self, body: bytes) -> None:
        self._queue.put(body)

    def take(self) -> tuple[Any, bytes] | None:
        delivery = self._queue.get()
        return delivery, delivery.payload

    def ack(self, token: Any) -> None:
        token.ack()

    def close(self) -> None:
        self._queue.close()


class Rocksq(Fifo):
    """rocksq: RocksDB in Rust; a pop removes at once."""

    name = module = "rocksq"
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

    def publish_many(self, bodies: list[bytes]) -> None:
        self._queue.push(bodies)

    def take(self) -> tuple[Any, bytes] | None:
        return None, self._queue.pop()[0]

    def get_ack_each(self, count: int) -> list[bytes]:
        pop = self._queue.pop
        return [pop()[0] for _ in range(count)]

    def get_ack_many(self, count: int) -> list[bytes]:
        bodies: list[bytes] = self._queue.pop(count)
        return bodies

    def close(self) -> None:
        # The library has no close; the last reference closes the database.
        del self._queue


class Localqueue(Fifo):
    """localqueue: SQLite WAL in Rust, leases; a get costs in proportion to the backlog."""

    name = module = "localqueue"
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
            serializer=SimpleNamespace(dumps=bytes, loads=bytes),  # not JSON
        )

    def publish(self, body: bytes) -> None:
        self._queue.put(body)

    def publish_many(self, bodies: list[bytes]) -> None:
        self._queue.put_many(bodies)

    def take(self) -> tuple[Any, bytes] | None:
        delivery = self._queue.get()
        return delivery, delivery.data

    def ack(self, token: Any) -> None:
        self._queue.ack(token)

    def close(self) -> None:
        self._queue.close()


CONTENDERS: dict[str, type[Fifo]] = {
    kind.name: kind
    for kind in (
        Floor,
        QueueIndexDesign,
        RocksFifo,
        LmdbQueue,
        Rocksq,
        SqliteFifo,
        Queuelib,
        PersistQueue,
        Litequeue,
        Localqueue,
    )
}
LARGE: dict[str, type[Fifo]] = {
    kind.name: kind for kind in (QueueIndexDesign, SqliteFifo, Diskcache)
}
"""Those that are measured with messages of 64 KiB."""
