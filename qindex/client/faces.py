"""Accept an engine or a queue of either kind: its store is open in this process, or in a server.

>>> def drain(queue: AnyQueue) -> int:
...     return sum(1 for delivery in queue.consume(timeout=0) if delivery.ack() is None)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack, overload

if TYPE_CHECKING:
    from journal.findings import Finding
    from msgstore import CompactionReport
    from qindex.client.calls import (
        BatchOptions,
        FanOutOptions,
        InOptions,
        PublishOptions,
        QueueOptions,
    )
    from qindex.format.message import Body, Message
    from qindex.format.settings import QueueSettings
    from qindex.format.values import Value
    from qindex.options import Options
    from qindex.queue.delivery import Batch, Delivery
    from qindex.queue.stats import EngineStats, QueueStats
    from qindex.worker.outcomes import Figures, Handlers
    from qindex.worker.redriving import RedriveOptions, RedriveReport
    from qindex.worker.run import WorkerOptions
    from qindex.worker.schedules import Schedule, ScheduleOptions


class AnyConsumer(Protocol):
    """The iterator of :meth:`AnyQueue.consume`."""

    stopped: bool

    def __iter__(self) -> Iterator[Delivery]: ...
    def __next__(self) -> Delivery: ...
    def stop(self) -> None:
        """Deliver no more messages."""


class AnyQueue(Protocol):
    """A queue: :class:`qindex.Queue`, which describes the arguments, or
    :class:`qindex.SharedQueue`."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def directory(self) -> str:
        """The directory of its store."""

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings."""

    def publish(self, body: Body | Message | Value, **options: Unpack[PublishOptions]) -> int:
        """Append a message and return its seq_id."""

    def publish_many(
        self, messages: Iterable[Body | Message | Value], **options: Unpack[BatchOptions]
    ) -> range:
        """Append a batch with one write and return the range of its seq_ids."""

    def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next ``count`` messages, durably on return."""

    @overload
    def get(
        self, timeout: None = None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery: ...
    @overload
    def get(
        self, timeout: float | None, *, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    @overload
    def get(
        self, *, seq_id: int, lease: float | None = None, ack: Delivery | None = None
    ) -> Delivery | None: ...
    def get(
        self,
        timeout: float | None = None,
        *,
        lease: float | None = None,
        ack: Delivery | None = None,
        seq_id: int | None = None,
    ) -> Delivery | None:
        """Take the next message. It stays in the queue until it is acknowledged."""

    def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the ready and delayed messages with a key, without taking them."""

    def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take up to ``max_messages`` at once, in order, with one append for each priority."""

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> AnyConsumer:
        """Yield messages as they come, until none came for ``timeout`` seconds."""

    def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them. O(max_messages)."""

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery: its message never comes back once this is durable."""

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write."""

    def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries up to a seq_id."""

    def nack(self, delivery: Delivery, *, delay: float | None = None, count: bool = True) -> None:
        """Requeue a message at its place, to be delivered again."""

    def cancel(self, seq_id: int) -> bool:
        """Drop a message that was never delivered, delayed or not."""

    def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        """Refuse a message for good: it becomes a dead letter, or is dropped."""

    def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        """Put a message into another queue of the engine, all or nothing."""

    def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now."""

    def configure(self, **settings: Any) -> None:
        """Change settings of the queue, as :meth:`qindex.engine.engine.Engine.queue` does."""

    def run(self, handler: Handlers | str, **options: Unpack[WorkerOptions]) -> Figures:
        """Run a handler for each message until SIGTERM or SIGINT."""

    def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport:
        """Put dead letters back into the queues that they died in."""

    def purge(self) -> int:
        """Drop all ready and delayed messages. Those with consumers stay."""

    def flush(self) -> None:
        """Bring the journal into the segment files and empty it."""

    def sync(self) -> None:
        """Make all that returned before durable against power loss. Concurrent callers share."""

    def stats(self) -> QueueStats:
        """Return the queue's figures at this moment."""

    def __len__(self) -> int: ...


class AnyTransaction(Protocol):
    """A transaction: :class:`qindex.Transaction` or its twin in a shared store."""

    def publish(
        self,
        queue: str,
        body: Body | Message | Value,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[InOptions],
    ) -> int:
        """Publish a message once the transaction is committed."""

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery once the transaction is committed."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class AnyEngine(Protocol):
    """An engine: :class:`qindex.Engine`, which describes the arguments, or
    :class:`qindex.SharedEngine`."""

    directory: str

    @property
    def options(self) -> Options:
        """The options that it was opened with."""

    @property
    def findings(self) -> list[Finding]:
        """Findings of recovery, and damage that was met since."""

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is just being closed, or was opened before a fork."""

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> AnyQueue:
        """Return the queue of this name, and make it if there is none."""

    def queue_names(self) -> list[str]:
        """Return the names of all queues."""

    def delete_queue(self, name: str) -> int:
        """Delete a queue and its messages."""

    @overload
    def get(
        self, queues: Sequence[Any], timeout: None = None, *, lease: float | None = None
    ) -> Delivery: ...
    @overload
    def get(
        self, queues: Sequence[Any], timeout: float | None, *, lease: float | None = None
    ) -> Delivery | None: ...
    def get(
        self, queues: Sequence[Any], timeout: float | None = None, *, lease: float | None = None
    ) -> Delivery | None:
        """Take the next message of the first of several queues that has one."""

    def publish_to(
        self,
        queues: Sequence[str],
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[FanOutOptions],
    ) -> list[int]:
        """Publish one message to several queues."""

    def transaction(self) -> AnyTransaction:
        """Return a transaction: publishes and acks in several queues, all of them or none."""

    def schedule(
        self, name: str, cron: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Publish a message at set times, durably."""

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of the store by name."""

    def sync(self) -> None:
        """Make all calls that returned before, on all queues, durable against power loss."""

    def flush(self) -> None:
        """Bring the journals of all queues into their segment files, durably on return."""

    def stats(self) -> EngineStats:
        """Return the figures of the store, and of the queues used since it was opened."""

    def compact(self) -> CompactionReport | None:
        """Reclaim the space of dead messages in the message store now."""

    def close(self, drain: float = 0) -> None:
        """Sync, leave a snapshot that makes the next open quick, and release the lock."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...
