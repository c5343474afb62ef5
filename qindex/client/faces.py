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
    from qindex.client.calls import BatchOptions, FanOutOptions, InOptions, PublishOptions
    from qindex.format.message import Body, Message
    from qindex.format.settings import Overflow, QueueSettings, Unset
    from qindex.format.values import Serializer, Value
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
    """A queue: :class:`qindex.Queue` or :class:`qindex.SharedQueue`. The former describes the
    methods."""

    @property
    def name(self) -> str: ...
    @property
    def directory(self) -> str: ...
    @property
    def settings(self) -> QueueSettings: ...

    def publish(self, body: Body | Message | Value, **options: Unpack[PublishOptions]) -> int: ...
    def publish_many(
        self, messages: Iterable[Body | Message | Value], **options: Unpack[BatchOptions]
    ) -> range: ...
    def reserve(self, count: int) -> int: ...
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
    ) -> Delivery | None: ...
    def find(self, key: str, max_messages: int = 100) -> list[Delivery]: ...
    def get_many(
        self, max_messages: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch: ...
    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> AnyConsumer: ...
    def peek(self, max_messages: int = 1) -> list[Delivery]: ...
    def ack(self, delivery: Delivery) -> None: ...
    def ack_many(self, deliveries: Iterable[Delivery]) -> None: ...
    def ack_up_to(self, seq_id: int) -> int: ...
    def nack(
        self, delivery: Delivery, *, delay: float | None = None, count: bool = True
    ) -> None: ...
    def cancel(self, seq_id: int) -> bool: ...
    def reject(self, delivery: Delivery, reason: str | None = None) -> None: ...
    def move(
        self,
        delivery: Delivery,
        queue: str,
        *,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None: ...
    def extend_lease(self, delivery: Delivery, seconds: float) -> None: ...
    def configure(self, **settings: Any) -> None: ...
    def run(self, handler: Handlers | str, **options: Unpack[WorkerOptions]) -> Figures: ...
    def redrive(self, **options: Unpack[RedriveOptions]) -> RedriveReport: ...
    def purge(self) -> int: ...
    def flush(self) -> None: ...
    def sync(self) -> None: ...
    def stats(self) -> QueueStats: ...
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
    ) -> int: ...
    def ack(self, delivery: Delivery) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class AnyEngine(Protocol):
    """An engine: :class:`qindex.Engine` or :class:`qindex.SharedEngine`. The former describes the
    methods."""

    directory: str

    @property
    def options(self) -> Options: ...
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def closed(self) -> bool: ...

    def queue(
        self,
        name: str,
        *,
        message_ttl: float | Unset | None = None,
        max_length: int | Unset | None = None,
        max_bytes: int | Unset | None = None,
        overflow: Overflow | Unset | None = None,
        delivery_limit: int | Unset | None = None,
        dead_letter: str | Unset | None = None,
        backoff: str | Unset | None = None,
        max_priority: int | Unset | None = None,
        serializer: str | Serializer | None = None,
    ) -> AnyQueue: ...
    def queue_names(self) -> list[str]: ...
    def delete_queue(self, name: str) -> int: ...
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
    ) -> Delivery | None: ...
    def publish_to(
        self,
        queues: Sequence[str],
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        **options: Unpack[FanOutOptions],
    ) -> list[int]: ...
    def transaction(self) -> AnyTransaction: ...
    def schedule(
        self, name: str, cron: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...
    def schedules(self) -> dict[str, Schedule]: ...
    def sync(self) -> None: ...
    def flush(self) -> None: ...
    def stats(self) -> EngineStats: ...
    def compact(self) -> CompactionReport | None: ...
    def close(self, drain: float = 0) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...
