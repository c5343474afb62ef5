"""The two threads of an engine's asyncio face: one for syncs, one for calls that may block.

::

    loop A   publish, publish, publish ... -> [futures] --+
                                                          |--> Syncer: one fdatasync, all resolved
    loop B   publish, publish ...          -> [futures] --+

The appends of one turn of a loop are handed over once, at the end of that turn. The appends that
have come by the time a sync ends share the next one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from journal.errors import ClosedError, UsageError
from journal.locks.flag import Flag
from qindex.queue.plain_queue import Queue

T = TypeVar("T")

_log = logging.getLogger("qindex.aio")


class Waiting:
    """Futures of one loop that are resolved together, and what with."""

    __slots__ = ("futures", "results")

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []
        self.results: list[int | None] = []

    def resolve(self, error: BaseException | None) -> None:
        """Resolve the futures, on their loop's thread, with the result or the error."""
        for future, result in zip(self.futures, self.results, strict=True):
            if future.done():
                continue  # its waiter was cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


_Asked = tuple[asyncio.AbstractEventLoop, dict[Queue, Waiting]]


async def to_the_end(future: asyncio.Future[T]) -> T:
    """Await a future whatever happens: a cancellation is raised when it has ended."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return future.result()
    failure = future.exception()
    if failure is not None:
        _log.error("failed, after it was cancelled: %s", failure)
    raise cancelled


async def asked_to_end() -> asyncio.CancelledError | None:
    """Return the cancellation that the running task was asked for and has not been told of."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as error:
        return error
    return None


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop that runs. Raises :class:`UsageError` where asyncio runs none, as in trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise UsageError(
            "qindex.aio needs asyncio: call it in a coroutine that asyncio runs "
            "(trio has no asyncio loop of its own)"
        ) from error


class Helper:
    """One thread, started when it is first needed, for calls that would stop a loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "qindex-aio")

    async def run(self, call: Callable[[], T]) -> T:
        """Call it in the thread. Cancelled before its turn, it is not called; after, it goes on
        and its outcome is dropped. Raises :class:`ClosedError` after :meth:`stop`."""
        return await self.submit(call)

    async def finish(self, call: Callable[[], T]) -> T:
        """Call it in the thread, whatever happens: a cancellation is raised when it has ended."""
        return await to_the_end(self.submit(call))

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Call it in the thread; return a future. Raises :class:`ClosedError` after
        :meth:`stop`."""
        loop = running_loop()
        try:
            return loop.run_in_executor(self._executor, call)
        except RuntimeError as error:
            raise ClosedError("the engine is closed") from error

    def stop(self) -> None:
        """Take no more calls. Calls taken before are made; this waits for none."""
        self._executor.shutdown(wait=False)


class Syncer:
    """One thread that makes queues durable, for all loops; started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: deque[_Asked | None] = deque()
        self._wake = Flag()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def ask(self, loop: asyncio.AbstractEventLoop, asked: dict[Queue, Waiting]) -> None:
        """Resolve what waits for each queue, on ``loop``, when all that was done to it before is
        on disk. Raises :class:`ClosedError` after :meth:`stop`."""
        with self._lock:
            if self._stopped:
                raise ClosedError("the engine is closed")
            self._asked.append((loop, asked))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="qindex-aio-sync", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """End the thread; earlier calls are done first."""
        with self._lock:
            self._stopped = True
            thread = self._thread
            self._asked.append(None)
        self._wake.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            ended = False
            parties: dict[Queue, list[tuple[asyncio.AbstractEventLoop, Waiting]]] = {}
            while self._asked:
                asked = self._asked.popleft()
                if asked is None:
                    ended = True
                    break
                for queue, waiting in asked[1].items():
                    parties.setdefault(queue, []).append((asked[0], waiting))
            for queue, all_waiting in parties.items():
                error: BaseException | None = None
                try:
                    queue._parts.sync_all()
                except BaseException as caught:
                    error = caught
                for loop, waiting in all_waiting:
                    # A loop that was closed has no waiter left.
                    with suppress(RuntimeError):
                        loop.call_soon_threadsafe(waiting.resolve, error)
            if ended:
                return
