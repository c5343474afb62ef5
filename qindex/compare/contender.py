"""The protocol of the queues that take part in a comparison.

A :class:`Fifo` is one queue in one directory, for one user: the benchmarks drive it. A
:class:`Store` has all queues and groups of a workload, for many threads: ``qindex compare`` drives
it. Every contender has a store; that of a plain queue is made of many of them.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from qindex.compare.workload import Workload

POLL_SECONDS = 0.001
"""Pause between gets from an empty queue, for a contender whose get does not wait by itself."""


class Contender(ABC):
    """A kind of queue: its name, what it can do, and how a workload is run on it."""

    name: ClassVar[str]
    title: ClassVar[str] = ""
    module: ClassVar[str | None] = None
    """The module that has to be importable beside this project."""
    note: ClassVar[str] = ""
    kill_safe: ClassVar[bool] = True
    fsync: ClassVar[bool] = False
    """It has a mode in which what returned is on disk."""

    @classmethod
    @abstractmethod
    def store(cls, directory: Path, workload: Workload) -> Store:
        """Open a store for the workload."""

    @classmethod
    def is_installed(cls) -> bool:
        """Return whether it can be run here, without importing it."""
        if cls.module is None:
            return True
        spec = importlib.util.find_spec(cls.module)
        # A directory without an __init__.py is found too (a namespace package): no library.
        return spec is not None and spec.origin is not None


class Receiver(ABC):
    """One consumer of one queue in one group. Not thread-safe."""

    @abstractmethod
    def take(self, most: int, timeout: float) -> Sequence[bytes]:
        """Bodies of the next messages; empty when there was none for ``timeout`` seconds."""

    @abstractmethod
    def settle(self, count: int) -> None:
        """Acknowledge the oldest ``count`` of the messages that were taken."""


class PollingReceiver(Receiver):
    """A receiver over a store whose get does not wait."""

    def take(self, most: int, timeout: float) -> Sequence[bytes]:
        """Ask every :data:`POLL_SECONDS`, at most until the timeout."""
        deadline = time.monotonic() + timeout
        while not (bodies := self.ask(most)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return bodies

    @abstractmethod
    def ask(self, most: int) -> Sequence[bytes]:
        """Bodies of the next messages, without waiting."""


class Store(ABC):
    """All queues and groups of a workload, in one directory. Thread-safe."""

    @abstractmethod
    def publish(self, queue: int, bodies: list[bytes], keys: list[str]) -> None:
        """Publish to all groups of a queue; ``keys`` is empty when messages have none."""

    @abstractmethod
    def receiver(self, queue: int, group: int, number: int) -> Receiver:
        """Consumer ``number`` of the consumers that share a queue in a group."""

    @abstractmethod
    def close(self) -> None: ...

    def find(self, queue: int, key: str) -> bytes | None:
        """Body of the message with a key. Raises :class:`NotImplementedError` where a store
        can't look for one without removing others."""
        raise NotImplementedError


class Fifo(Contender):
    """One queue in a directory.

    ``durability`` is ``"os"`` (what returned survives SIGKILL, as far as ``kill_safe`` says) or
    ``"fsync"`` (what returned is on disk), the latter only where ``fsync`` is true. Loops
    (``..._each``) are overridden where a call more for each message would show, batches
    (``..._many``) where there is one call for all.
    """

    acks: ClassVar[bool] = True
    """False where taking a message removes it: less work for each."""
    threads: ClassVar[bool] = False
    """Many threads may publish at once."""
    batch_publish: ClassVar[bool] = False
    batch_get: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    """A get costs time in proportion to the backlog: large ones are not tried."""
    max_backlog: ClassVar[int] = 1_000_000

    @abstractmethod
    def __init__(self, directory: Path, durability: str) -> None: ...

    @abstractmethod
    def publish(self, body: bytes) -> object: ...

    @abstractmethod
    def take(self) -> tuple[Any, bytes] | None:
        """Take the oldest message: what :meth:`ack` wants of it, and its body."""

    def ack(self, token: Any) -> None:
        """Acknowledge a message; nothing where taking it has removed it."""

    @abstractmethod
    def close(self) -> None: ...

    @classmethod
    def store(cls, directory: Path, workload: Workload) -> Store:
        """Open one queue for each pair of queue and group."""
        return _ManyFifos(cls, directory, workload)

    def records(self, bodies: list[bytes]) -> list[bytes]:
        """Return the arguments of ``publish_each``. They are made outside the measured time."""
        return bodies

    def publish_each(self, bodies: Sequence[bytes]) -> None:
        publish = self.publish
        for body in bodies:
            publish(body)

    def publish_many(self, bodies: list[bytes]) -> None:
        self.publish_each(bodies)

    def get_each(self, count: int) -> list[Any]:
        take = self.take
        return [take() for _ in range(count)]

    def ack_each(self, taken: Sequence[Any]) -> None:
        ack = self.ack
        for token, _ in taken:
            ack(token)

    def get_ack_each(self, count: int) -> list[bytes]:
        take, ack = self.take, self.ack
        bodies = []
        for _ in range(count):
            token, body = take()  # type: ignore[misc]
            bodies.append(body)
            ack(token)
        return bodies

    def get_ack_many(self, count: int) -> list[bytes]:
        return self.get_ack_each(count)


class _ManyFifos(Store):
    """A message for all groups is put into the queue of each."""

    def __init__(self, kind: type[Fifo], directory: Path, workload: Workload) -> None:
        self._lock = threading.Lock()
        self._queues: list[list[Fifo]] = []
        for queue in range(workload.queues):
            places = [directory / f"q{queue}.g{group}" for group in range(workload.groups)]
            for place in places:
                place.mkdir(exist_ok=True)
            self._queues.append([kind(place, workload.durability) for place in places])

    def publish(self, queue: int, bodies: list[bytes], keys: list[str]) -> None:
        for target in self._queues[queue]:
            for body in bodies:
                with self._lock:
                    target.publish(body)

    def receiver(self, queue: int, group: int, number: int) -> Receiver:
        return _FifoReceiver(self._queues[queue][group], self._lock)

    def close(self) -> None:
        for queues in self._queues:
            for queue in queues:
                queue.close()


class _FifoReceiver(PollingReceiver):
    def __init__(self, queue: Fifo, lock: threading.Lock) -> None:
        self._queue = queue
        self._lock = lock
        self._held: deque[Any] = deque()

    def ask(self, most: int) -> Sequence[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < most:
            with self._lock:
                taken = self._queue.take()
            if taken is None:
                break
            self._held.append(taken[0])
            bodies.append(taken[1])
        return bodies

    def settle(self, count: int) -> None:
        for _ in range(count):
            with self._lock:
                self._queue.ack(self._held.popleft())
