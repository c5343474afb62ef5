"""Call the handlers of a slot: in its thread, or on the worker's event loop. Handlers in
processes: :mod:`qindex.worker.processes`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

from qindex.queue.delivery import Delivery
from qindex.worker.outcomes import (
    HandlerError,
    Handlers,
    TimedOutError,
    cause_of,
    end_if_forked,
    handler_for,
)
from qindex.worker.tasks import within


class Runner(Protocol):
    """Calls the handler for the messages of one slot."""

    def run(self, batch: Sequence[Delivery]) -> Iterator[BaseException | None]:
        """Call the handler for each message, and yield its error or None. May end before the batch
        does: the remaining messages were not begun."""

    def stack(self) -> str:
        """Return the handler's stack."""

    def cut(self) -> None:
        """End it if possible: its messages are given back."""

    def close(self) -> None:
        """End; there are no more messages."""


class _OneByOne:
    """Calls the handler for one message after the other."""

    def run(self, batch: Sequence[Delivery]) -> Iterator[BaseException | None]:
        for delivery in batch:
            try:
                self.call(delivery)
            except BaseException as error:
                yield error
            else:
                yield None

    def call(self, delivery: Delivery) -> None:
        """Call it; raise what it raises."""
        raise NotImplementedError

    def cut(self) -> None:
        """A thread can't be ended. What its handler does from now on is not asked for."""

    def close(self) -> None:
        """There is nothing to end."""


class InThread(_OneByOne):
    """Calls handlers in the slot's thread."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._thread = threading.get_ident()

    def call(self, delivery: Delivery) -> None:
        """See :class:`Runner`."""
        pid = os.getpid()
        try:
            handler_for(self._handlers, delivery.properties.get("type"))(delivery)
        finally:
            end_if_forked(pid)

    def stack(self) -> str:
        """Return the stack of the slot's thread."""
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame)) if frame else ""


class OnLoop(_OneByOne):
    """Calls coroutine functions on the worker's event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handlers: Handlers, timeout: float | None
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None
        self._is_cut = False

    def call(self, delivery: Delivery) -> None:
        """See :class:`Runner`. The slot's thread waits for the coroutine."""
        try:
            asyncio.run_coroutine_threadsafe(self._call(delivery), self._loop).result()
        except CancelledError:
            raise TimedOutError("the handler was cancelled") from None

    async def _call(self, delivery: Delivery) -> None:
        self._task = asyncio.current_task()
        if self._is_cut:
            raise TimedOutError("the handler was cancelled")
        try:
            await within(self._timeout, self._handlers, delivery)
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
            raise HandlerError(cause_of(error)) from error

    def stack(self) -> str:
        """Return the frames of the coroutine, the outermost first."""
        found = []
        waiting: Any = None if self._task is None else self._task.get_coro()
        while getattr(waiting, "cr_frame", None) is not None:  # get_stack() has the outermost only
            found += traceback.format_stack(waiting.cr_frame, 1)
            waiting = waiting.cr_await
        return "".join(found)

    def cut(self) -> None:
        """Cancel the coroutine."""
        self._is_cut = True
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
