"""The iterator behind ``async for delivery in queue.consume()``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from qindex.aio.delivery import Delivery
from qindex.queue.delivering import LONG_HELD, warn_of_full_prefetch

__all__ = ["Consumption"]


class Delivering(Protocol):
    """The part of :class:`qindex.aio.queue.Queue` that messages come from."""

    async def get(self, timeout: float | None, *, lease: float | None = None) -> Delivery | None:
        """Take the next message."""

    async def await_settled(self, given: list[Delivery], timeout: float | None) -> list[Delivery]:
        """Wait until one of these is settled, or the time is up."""

    @property
    def name(self) -> str:
        """The queue's name."""


class Consumption(AsyncIterator[Delivery]):
    """An iterator and no generator: it has nothing to clean up, wherever it is left."""

    def __init__(
        self, queue: Delivering, prefetch: int, timeout: float | None, lease: float | None
    ) -> None:
        self._queue = queue
        self._lease = lease
        self._prefetch = prefetch
        self._timeout = timeout
        self._given: list[Delivery] = []

    async def __anext__(self) -> Delivery:
        if len(self._given) >= self._prefetch:
            self._given = await self._queue.await_settled(self._given, LONG_HELD)
            if len(self._given) >= self._prefetch:
                seq_ids = [one.seq_id for one in self._given]
                warn_of_full_prefetch(self._queue.name, seq_ids)
                self._given = await self._queue.await_settled(self._given, None)
        delivery = await self._queue.get(self._timeout, lease=self._lease)
        if delivery is None:
            raise StopAsyncIteration
        self._given.append(delivery)
        return delivery
