"""The designs that are compared: one interface over the two designs and the peers.

Every contender is used as its documentation says. A :class:`Receiver` is one consumer of one
queue in one group; it belongs to one thread.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import qindex
import rocketstore
from qindex.compare.workload import Workload

POLL_SECONDS = 0.001
"""How often an empty queue is asked again where a get does not wait by itself."""

_PULLED = 32
"""Messages that RocketMQ's consumers ask for at once, and then handle one by one."""


class Receiver(ABC):
    """One consumer. Not thread-safe."""

    @abstractmethod
    def take(self, most: int, timeout: float) -> Sequence[bytes]:
        """Bodies of the next messages; empty when there was none for ``timeout`` seconds."""

    @abstractmethod
    def settle(self, count: int) -> None:
        """Acknowledge the oldest ``count`` messages of those that were taken."""


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


class Contender(ABC):
    """A store in one directory, with all queues and groups of the workload. Thread-safe."""

    name: ClassVar[str]
    title: ClassVar[str]
    module: ClassVar[str | None] = None
    """The module that has to be importable beside this project."""
    note: ClassVar[str] = ""
    kill_safe: ClassVar[bool] = True
    fsync: ClassVar[bool] = True
    """It has a mode in which what returned is on disk."""

    @abstractmethod
    def __init__(self, directory: Path, workload: Workload) -> None: ...

    @abstractmethod
    def publish(self, queue: int, bodies: list[bytes], keys: list[str]) -> None:
        """Publish to all groups of a queue; ``keys`` is empty when messages have none."""

    @abstractmethod
    def receiver(self, queue: int, group: int, number: int) -> Receiver:
        """The consumer ``number`` of those that share a queue in a group."""

    @abstractmethod
    def close(self) -> None:
        """Close the store."""

    def find(self, queue: int, key: str) -> bytes | None:
        """Body of the message with a key. Raises :class:`NotImplementedError` where a store
        can't look for one without removing others."""
        raise NotImplementedError


class QueueIndexDesign(Contender):
    """The engine: journal, segments, message store."""

    name = "qindex"
    title = "queue index (qindex)"
    note = "consumers wait in get; no index of keys: a lookup reads the queue from its head"

    def __init__(self, directory: Path, workload: Workload) -> None:
        durability: Any = workload.durability
        self._engine = qindex.open(str(directory), durability=durability)
        self._names = [
            [f"q{queue}.g{group}" for group in range(workload.groups)]
            for queue in range(workload.queues)
        ]
        self._queues = [[self._engine.queue(name) for name in names] for names in self._names]

    def publish(self, queue: int, bodies: list[bytes], keys: list[str]) -> None:
        """One append to each group's queue for a batch; a large body is stored once for all."""
        if len(self._names[queue]) > 1:
            for number, body in enumerate(bodies):
                self._engine.publish_to(
                    self._names[queue], body, key=keys[number] if keys else None
                )
            return
        target = self._queues[queue][0]
        if len(bodies) == 1:
            target.publish(bodies[0], key=keys[0] if keys else None)
        elif keys:
            target.publish_many(list(map(qindex.Message, bodies, keys)))
        else:
            target.publish_many(bodies)

    def receiver(self, queue: int, group: int, number: int) -> Receiver:
        """Consumers of one queue compete for its messages."""
        return _QueueReceiver(self._queues[queue][group])

    def find(self, queue: int, key: str) -> bytes | None:
        """Read the queue from its head until the key is met."""
        target = self._queues[queue][0]
        most = 256
        while True:
            seen = target.peek(most)
            found = next((one for one in seen if one.key == key), None)
            if found is not None or len(seen) < most:
                return found.body if found is not None else None
            most *= 8

    def close(self) -> None:
        """Close the engine: flushes, and leaves its snapshot."""
        self._engine.close()


class _QueueReceiver(Receiver):
    def __init__(self, queue: qindex.Queue) -> None:
        self._queue = queue
        self._held: deque[qindex.Delivery] = deque()

    def take(self, most: int, timeout: float) -> Sequence[bytes]:
        if most == 1:
            delivery = self._queue.get(timeout)
            if delivery is None:
                return ()
            self._held.append(delivery)
            return (delivery.body,)
        batch = self._queue.get_many(most, timeout)
        self._held.extend(batch)
        return [delivery.body for delivery in batch]

    def settle(self, count: int) -> None:
        popleft = self._held.popleft
        if count == 1:
            self._queue.ack(popleft())
        else:
            self._queue.ack_many([popleft() for _ in range(count)])


class RocketDesign(Contender):
    """The RocketMQ-style store: one CommitLog, ConsumeQueues, IndexFiles."""

    name = "rocketstore"
    title = "commit log (rocketstore)"
    note = (
        "consumers ask for 32 messages, every millisecond while there are none; "
        "an ack is a committed offset, which is on disk only after the next checkpoint"
    )

    def __init__(self, directory: Path, workload: Workload) -> None:
        durability: Any = workload.durability
        self._store = rocketstore.open(
            directory, durability=durability, index=workload.lookups > 0,
            max_message_size=max(4 << 20, 65 << 20),
        )  # fmt: skip
        # As RocketMQ does it: a queue is read by one consumer of a group, so that a topic has as
        # many queues as a group has consumers for it.
        self._spread = max(1, -(-workload.consumers // workload.receivers))
        self._turn = [0] * workload.queues

    def publish(self, queue: int, bodies: list[bytes], keys: list[str]) -> None:
        """One record for each message, however many groups read it."""
        turn = self._turn[queue]
        self._turn[queue] = turn + 1
        queue_id = turn % self._spread
        topic = f"q{queue}"
        if len(bodies) == 1:
            self._store.put(topic, bodies[0], queue_id=queue_id, keys=keys[0] if keys else None)
        else:
            self._store.put_many(topic, bodies, queue_id=queue_id, keys=keys or None)

    def receiver(self, queue: int, group: int, number: int) -> Receiver:
        """A consumer has the queues of the topic that fall to it."""
        return _RocketReceiver(self._store, f"q{queue}", f"g{group}", number)

    def find(self, queue: int, key: str) -> bytes | None:
        """Ask the index."""
        found = self._store.query(f"q{queue}", key, 1)
        return found[0].body if found else None

    def close(self) -> None:
        """Close the store: a checkpoint, and no ``abort`` any more."""
        self._store.close()


class _RocketReceiver(PollingReceiver):
    def __init__(self, store: rocketstore.Store, topic: str, group: str, queue_id: int) -> None:
        self._store = store
        self._place = (group, topic, queue_id)
        self._next = max(store.fetch_offset(*self._place), 0)
        self._settled = self._next
        self._pulled: list[bytes] = []

    def ask(self, most: int) -> Sequence[bytes]:
        if not self._pulled:
            _, topic, queue_id = self._place
            count = max(most, _PULLED)
            result = self._store.get(topic, queue_id, self._next, count, most=count)
            self._pulled = result.bodies
            self._next += len(self._pulled)
        bodies, self._pulled = self._pulled[:most], self._pulled[most:]
        return bodies

    def settle(self, count: int) -> None:
        self._settled += count
        self._store.commit_offset(*self._place, self._settled)


class PeerQueue(ABC):
    """One queue of a peer. Used under a lock."""

    @abstractmethod
    def put(self, body: bytes) -> None:
        """Append a message."""

    @abstractmethod
    def take(self) -> tuple[Any, bytes] | None:
        """Take the oldest message: what :meth:`ack` wants of it, and its body."""

    @abstractmethod
    def ack(self, token: Any) -> None:
        """Acknowledge a message."""

    @abstractmethod
    def close(self) -> None:
        """Close the queue."""


class PeerContender(Contender):
    """A peer has one queue for each pair of queue and group; a message for all is put in each."""

    def __init__(self, directory: Path, workload: Workload) -> None:
        self._lock = threading.Lock()
        self._queues: list[list[PeerQueue]] = []
        for queue in range(workload.queues):
            places = [directory / f"q{queue}.g{group}" for group in range(workload.groups)]
            for place in places:
                place.mkdir(exist_ok=True)
            self._queues.append([self.open_queue(place, workload) for place in places])

    @abstractmethod
    def open_queue(self, place: Path, workload: Workload) -> PeerQueue:
        """Open one queue in a directory of its own."""

    def publish(self, queue: int, bodies: list[bytes], keys: list[str]) -> None:
        """Put messages one by one: what all peers have."""
        for target in self._queues[queue]:
            for body in bodies:
                with self._lock:
                    target.put(body)

    def receiver(self, queue: int, group: int, number: int) -> Receiver:
        """Consumers of one queue compete for its messages."""
        return _PeerReceiver(self._queues[queue][group], self._lock)

    def close(self) -> None:
        """Close all queues."""
        for queues in self._queues:
            for queue in queues:
                queue.close()


class _PeerReceiver(PollingReceiver):
    def __init__(self, queue: PeerQueue, lock: threading.Lock) -> None:
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
