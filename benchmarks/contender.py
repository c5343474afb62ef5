"""The contenders: one interface over the engine, its peers and the floor.

Hot loops belong to the contender, so that a fast one does not pay for this interface: the loops
``publish_each`` and ``get_ack_each`` are overridden wherever a call more for each message would
show. Every ``get`` hands over bytes, and every caller compares them with what was published.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["BODY_BYTES", "RECORD_BYTES", "Contender", "Floor"]

BODY_BYTES = 100
RECORD_BYTES = 165
"""Bytes of one journal record of a 100-byte body: what the floor writes for each message."""


class Contender(ABC):
    """A durable FIFO in one directory.

    ``durability`` is ``"os"`` (what returned survives SIGKILL, as far as ``kill_safe`` says) or
    ``"fsync"`` (what returned is on disk), the latter only where ``fsync`` is true.
    """

    name: ClassVar[str]
    module: ClassVar[str | None] = None
    """The module that has to be importable; ``None`` for the standard library."""
    role: ClassVar[str] = "peer"
    kill_safe: ClassVar[bool] = True
    acks: ClassVar[bool] = True
    """False where a get removes the message at once (at most once): less work for each get."""
    fsync: ClassVar[bool] = False
    threads: ClassVar[bool] = False
    """Many threads may publish at once."""
    batch_publish: ClassVar[bool] = False
    batch_get: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    """A get costs time in proportion to the backlog: large ones are not tried."""
    max_backlog: ClassVar[int] = 1_000_000
    note: ClassVar[str] = ""

    @abstractmethod
    def __init__(self, directory: Path, durability: str) -> None: ...

    @abstractmethod
    def publisher(self) -> Callable[[bytes], object]:
        """Give the callable that a service would call for each message."""

    @abstractmethod
    def get(self) -> Any:
        """Take the oldest message; the queue is known not to be empty."""

    @abstractmethod
    def body(self, delivery: Any) -> bytes: ...

    @abstractmethod
    def ack(self, delivery: Any) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def records(self, bodies: list[bytes]) -> list[bytes]:
        """Give what ``publish_each`` is to be called with; made outside the measured time."""
        return bodies

    def publish_each(self, bodies: Sequence[bytes]) -> None:
        publish = self.publisher()
        for body in bodies:
            publish(body)

    def publish_many(self, bodies: list[bytes]) -> None:
        self.publish_each(bodies)

    def get_each(self, count: int) -> list[Any]:
        get = self.get
        return [get() for _ in range(count)]

    def ack_each(self, deliveries: Sequence[Any]) -> None:
        ack = self.ack
        for delivery in deliveries:
            ack(delivery)

    def get_ack_each(self, count: int) -> list[bytes]:
        get, body, ack = self.get, self.body, self.ack
        bodies = []
        for _ in range(count):
            delivery = get()
            bodies.append(body(delivery))
            ack(delivery)
        return bodies

    def get_ack_many(self, count: int) -> list[bytes]:
        return self.get_ack_each(count)


class Floor(Contender):
    """The least that a kill-safe queue in Python can do: the record's bytes to ``os.write``.

    One call for each message, for a publish and for a get with its ack alike; in a batch, one
    call for all records. It gives no bodies back and reads nothing: a bound, not a queue.
    """

    name = "floor"
    role = "floor"
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
        """Give what the floor writes for each body: as many bytes as a journal record."""
        tail = bytes(range(RECORD_BYTES - BODY_BYTES))
        return [body + tail for body in bodies]

    def publisher(self) -> Callable[[bytes], object]:
        fd, write, sync = self._fd, os.write, os.fdatasync

        def durable_write(record: bytes) -> None:
            write(fd, record)
            sync(fd)

        return durable_write if self._durable else lambda record: write(fd, record)

    def publish_each(self, bodies: Sequence[bytes]) -> None:
        fd, write, sync = self._fd, os.write, os.fdatasync
        if self._durable:
            for record in bodies:
                write(fd, record)
                sync(fd)
        else:
            for record in bodies:
                write(fd, record)

    def join(self, records: list[bytes]) -> bytes:
        """Make the bytes of one bulk write; outside the measured time, as the bar has it."""
        return b"".join(records)

    def publish_bulk(self, data: bytes) -> None:
        os.write(self._fd, data)
        if self._durable:
            os.fdatasync(self._fd)

    def get(self) -> bytes:
        return self._record

    def body(self, delivery: Any) -> bytes:
        return bytes(delivery)

    def ack(self, delivery: Any) -> None:
        os.write(self._fd, delivery)
        if self._durable:
            os.fdatasync(self._fd)

    def get_ack_each(self, count: int) -> list[bytes]:
        fd, write, record = self._fd, os.write, self._record
        for _ in range(count):
            write(fd, record)
        return []

    def close(self) -> None:
        os.close(self._fd)
