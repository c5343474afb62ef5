"""A worker of coroutines: tasks of the caller's event loop that take messages one at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypedDict

from journal.errors import (
    ClosedError,
    DamageError,
    DisconnectedError,
    LeaseExpiredError,
    QueueFullError,
    StoreError,
    UsageError,
)
from qindex.format.settings import QueueSettings
from qindex.worker.outcomes import (
    FULL_PAUSE,
    GIVEN_BACK,
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    Figures,
    Handlers,
    Outcome,
    TimedOutError,
    check_options,
    checked_handlers,
    end_if_forked,
    handler_for,
    log,
    log_cut,
    log_failure,
    outcome_of,
    wanted_settings,
)

if TYPE_CHECKING:
    from qindex.aio.delivery import Delivery
    from qindex.aio.queue import Queue
    from qindex.aio.shared import SharedQueue


class TaskOptions(TypedDict, total=False):
    """The options of a worker of coroutines."""

    concurrency: int
    retries: int | None
    backoff: str | None
    timeout: float | None
    on_error: Callable[[Delivery, BaseException], Awaitable[object]] | None
    grace: float
    until_empty: bool


async def within(timeout: float | None, handlers: Handlers, delivery: Any) -> None:
    """Call the handler, a coroutine function, for a delivery. Raises :class:`TimedOutError` if it
    was ended by its timeout."""
    limit = asyncio.timeout(timeout)
    pid = os.getpid()
    try:
        async with limit:
            await handler_for(handlers, delivery.properties.get("type"))(delivery)
    except TimeoutError:
        if limit.expired():
            raise TimedOutError(f"the handler took longer than {timeout:g} s") from None
        raise
    finally:
        end_if_forked(pid)


class TaskWorker:
    """The worker of :meth:`qindex.aio.Queue.run`; the rules are :class:`qindex.worker.Worker`'s."""

    def __init__(
        self,
        queue: Queue | SharedQueue,
        handler: Handlers,
        *,
        concurrency: int = 1,
        retries: int | None = None,
        backoff: str | None = None,
        timeout: float | None = None,
        on_error: Callable[[Delivery, BaseException], Awaitable[object]] | None = None,
        grace: float = 30.0,
        until_empty: bool = False,
    ) -> None:
        if not checked_handlers(handler):
            raise UsageError("a handler must be a coroutine function here")
        check_options(concurrency, retries, timeout, on_error, grace)
        self._queue = queue
        self._handlers = handler
        self._concurrency = concurrency
        self._wanted = retries, backoff
        self._timeout = timeout
        self._on_error = on_error
        self._grace = grace
        self._until_empty = until_empty
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._limit: int | None = None
        self._idle: set[asyncio.Task[None]] = set()
        self.figures: Figures = Figures()

    def stop(self) -> None:
        """Take no more messages, and end within ``grace`` seconds; a second call ends at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        for task in self._idle:
            task.cancel()

    async def run(self) -> Figures:
        """Run until :meth:`stop`, SIGTERM or SIGINT; see :meth:`qindex.worker.Worker.run`."""
        settings = await self._settings()
        wanted = wanted_settings(self._queue.name, settings, *self._wanted)
        if wanted:
            await self._queue.configure(**wanted)
        self._limit = (await self._settings()).delivery_limit
        with self._signals():
            tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
            all_of_them: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
            hurried: asyncio.Future[Any] = asyncio.create_task(self._hurried())
            try:
                await asyncio.wait((all_of_them, hurried), return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurried.cancel()
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return self.figures

    async def _settings(self) -> QueueSettings:
        found: Any = self._queue.settings
        return found if isinstance(found, QueueSettings) else await found()

    async def _hurried(self) -> None:
        await self._stop.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._grace)

    async def _work(self) -> None:
        try:
            await self._take()
        except Exception:
            self.stop()
            raise

    async def _take(self) -> None:
        pause = SHORTEST_PAUSE
        timeout = 0.0 if self._until_empty else None
        task = asyncio.current_task()
        assert task is not None
        while not self._stop.is_set():
            self._idle.add(task)
            try:
                delivery = await self._queue.get(timeout)
            except asyncio.CancelledError:
                if self._stop.is_set():
                    return
                raise
            except DamageError as error:
                log.error("queue=%s damaged message passed over: %s", self._queue.name, error)
                continue
            except DisconnectedError as error:
                log.warning("queue=%s %s", self._queue.name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            except ClosedError:
                if self._stop.is_set():
                    return
                raise
            finally:
                self._idle.discard(task)
            if delivery is None:
                return
            pause = SHORTEST_PAUSE
            await self._handle(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        attempt = delivery.delivery_count
        error: BaseException | None = None
        self.figures.running += 1
        try:
            await within(self._timeout, self._handlers, delivery)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                error = TimedOutError("the handler was cancelled")
            else:
                await self._cut(delivery)
                raise
        except BaseException as raised:
            error = raised
        finally:
            self.figures.running -= 1
        if error is not None and self._on_error is not None:
            try:
                await self._on_error(delivery, error)
            except Exception:
                log.exception("queue=%s on_error raised", self._queue.name)
        outcome = outcome_of(error, attempt, self._limit, is_settled=delivery.settled)
        self.figures.note(error, outcome)
        if error is not None:
            log_failure(self._queue.name, delivery.seq_id, attempt, self._limit, outcome, error)
        while True:
            try:
                await _settle(delivery, outcome)
            except QueueFullError as full:
                log.warning("queue=%s %s; waiting for room", self._queue.name, full)
                await asyncio.sleep(FULL_PAUSE)
            except (DisconnectedError, LeaseExpiredError) as lost:
                log.warning("queue=%s %s", self._queue.name, lost)
                return
            else:
                return

    async def _cut(self, delivery: Delivery) -> None:
        self.figures.cut += 1
        log_cut(self._queue.name, delivery.seq_id)
        with suppress(StoreError):
            await _settle(delivery, GIVEN_BACK)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def _settle(delivery: Delivery, outcome: Outcome) -> None:
    if not delivery.settled:
        await getattr(delivery, outcome.verb)(**outcome.arguments)
