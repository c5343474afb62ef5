"""The two designs that are compared. Each is used as its documentation says."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qindex
import rocketstore
from journal.fs.files import REAL, FileSystem
from qindex.compare.contender import Contender, Fifo, PollingReceiver, Receiver, Store
from qindex.compare.workload import Workload
from qindex.engine.opening import open_store

_PULLED = 32
"""Messages that RocketMQ's consumers ask for at once, and then handle one by one."""


class QueueIndexDesign(Fifo):
    """The engine: journal, segments, message store. ``fs``: counts what it does with files."""

    name = "qindex"
    title = "queue index (qindex)"
    note = "consumers wait in get; no index of keys: a lookup reads the queue from its head"
    fsync = True
    threads = True
    batch_publish = True
    batch_get = True

    def __init__(
        self, directory: Path, durability: Any, *, fs: FileSystem = REAL, **options: Any
    ) -> None:
        self._engine: qindex.Engine = open_store(directory, fs=fs, durability=durability, **options)
        self.queue: qindex.Queue = self._engine.queue("bench")

    @classmethod
    def store(cls, directory: Path, workload: Workload) -> Store:
        """Open an engine with a queue for each group."""
        return _QueueIndexStore(directory, workload)

    def publish(self, body: bytes) -> object:
        return self.queue.publish(body)

    def publish_each(self, bodies: Sequence[bytes]) -> None:
        publish = self.queue.publish
        for body in bodies:
            publish(body)

    def publish_many(self, bodies: list[bytes]) -> None:
        self.queue.publish_many(bodies)

    def take(self) -> tuple[Any, bytes] | None:
        delivery = self.queue.get(timeout=0)
        return None if delivery is None else (delivery, delivery.body)

    def ack(self, token: Any) -> None:
        self.queue.ack(token)

    def get_ack_each(self, count: int) -> list[bytes]:
        get: Any = self.queue.get
        ack = self.queue.ack
        bodies: list[bytes] = []
        append = bodies.append
        for _ in range(count):
            delivery = get(timeout=0)
            append(delivery.body)
            ack(delivery)
        return bodies

    def get_ack_many(self, count: int) -> list[bytes]:
        batch = self.queue.get_many(count)
        bodies: list[bytes] = batch.bodies
        self.queue.ack_many(batch)
        return bodies

    def close(self) -> None:
        self._engine.close()


class _QueueIndexStore(Store):
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
        target = self._queues[queue][0]
        most = 256
        while True:
            seen = target.peek(most)
            found = next((one for one in seen if one.key == key), None)
            if found is not None or len(seen) < most:
                return found.body if found is not None else None
            most *= 8

    def close(self) -> None:
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
    fsync = True

    @classmethod
    def store(cls, directory: Path, workload: Workload) -> Store:
        """Open a store whose topics are the workload's queues."""
        return _RocketStore(directory, workload)


class _RocketStore(Store):
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
        found = self._store.query(f"q{queue}", key, 1)
        return found[0].body if found else None

    def close(self) -> None:
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
