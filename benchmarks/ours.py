"""The engine behind the interface of its peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender

__all__ = ["Ours"]


class Ours(Contender):
    """The engine, through its public interface alone."""

    name = "qindex"
    module = "qindex"
    role = "ours"
    fsync = True
    threads = True
    batch_publish = True
    batch_get = True

    def __init__(self, directory: Path, durability: str, **options: Any) -> None:
        qindex = importlib.import_module("qindex")
        self._engine = qindex.open(directory, durability=durability, **options)
        self._queue = self._engine.queue("bench")

    def __len__(self) -> int:
        return len(self._queue)

    def publisher(self) -> Callable[[bytes], object]:
        publish: Callable[[bytes], object] = self._queue.publish
        return publish

    def publish_each_keyed(self, bodies: Sequence[bytes]) -> None:
        """Publish each with a key and two headers."""
        publish = self._queue.publish
        headers = {"kind": "new", "attempt": 1}
        for body in bodies:
            publish(body, key="orders.new", headers=headers)

    def publish_many(self, bodies: list[bytes]) -> None:
        self._queue.publish_many(bodies)

    def flush(self) -> None:
        """Bring the journal into the segment files."""
        self._queue.flush()

    def get(self) -> Any:
        return self._queue.get(timeout=0)

    def body(self, delivery: Any) -> bytes:
        body: bytes = delivery.body
        return body

    def ack(self, delivery: Any) -> None:
        self._queue.ack(delivery)

    def get_ack_each(self, count: int) -> list[bytes]:
        get, ack = self._queue.get, self._queue.ack
        bodies: list[bytes] = []
        append = bodies.append
        for _ in range(count):
            delivery = get(timeout=0)
            append(delivery.body)
            ack(delivery)
        return bodies

    def get_ack_many(self, count: int) -> list[bytes]:
        batch = self._queue.get_many(count)
        bodies: list[bytes] = batch.bodies
        self._queue.ack_many(batch)
        return bodies

    def close(self) -> None:
        self._engine.close()
