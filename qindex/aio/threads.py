"""The two threads of an engine's asyncio face: one for syncs, one for calls that may block.

::

    loop A   publish, publish, publish ... -> [futures] --+
                                                          |--> Syncer: one fdatasync, all resolved
    loop B   publish, publish ...          -> [futures] --+

What one turn of a loop appends is handed over once, at the end of that turn, and what has come by
the time a sync ends shares the next one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from journal.errors import ClosedError
from qindex.queue_core import QueueCore
from qindex.waits import CALLER

__all__ = ["Helper", "Port", "Syncer", "unsynced"]

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("qindex.aio")

_Futures = list[asyncio.Future[None]]
_Asked = tuple[asyncio.AbstractEventLoop, dict[QueueCore, _Futures]]


def unsynced(call: Callable[[], T]) -> T:
    """Call what would sync each thing it does, or wait for room, without that: the syncer is asked
    instead, and the helper's thread is there for all."""
    CALLER.syncs = CALLER.waits = False
    try:
        return call()
    finally:
        CALLER.syncs = CALLER.waits = True


class Helper:
    """One thread, started when it is first needed, for calls that would stop a loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "qindex-aio")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in the thread. Cancelled before its turn, it is not called; after, it goes on
        and nobody hears how it ended. Raises :class:`ClosedError` after :meth:`stop`."""
        return await self._submit(lambda: call(*args, **kwargs))

    async def finish(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in the thread, whatever happens: a cancellation is raised when it has ended."""
        future = self._submit(lambda: call(*args, **kwargs))
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

    def _submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, call)
        except RuntimeError as error:
            raise ClosedError("the engine is closed") from error

    def stop(self) -> None:
        """Take no more calls; those that were taken are made. Waits for none."""
        self._executor.shutdown(wait=False)


class Syncer:
    """One thread that makes queues durable, for all loops; started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: deque[_Asked | None] = deque()
        self._wake = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._stopped = False

    def ask(self, loop: asyncio.AbstractEventLoop, futures: dict[QueueCore, _Futures]) -> None:
        """Resolve each queue's futures, on ``loop``, when all that was done to the queue before
        is on disk. Raises :class:`ClosedError` after :meth:`stop`."""
        with self._lock:
            if self._stopped:
                raise ClosedError("the engine is closed")
            self._asked.append((loop, futures))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="qindex-aio-sync", daemon=True
                )
                self._thread.start()
        self._wake.release()

    def stop(self) -> None:
        """End the thread; what was asked for is done first."""
        with self._lock:
            self._stopped = True
            thread = self._thread
            self._asked.append(None)
        self._wake.release()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            ended = False
            parties: dict[QueueCore, list[tuple[asyncio.AbstractEventLoop, _Futures]]] = {}
            while self._asked:
                asked = self._asked.popleft()
                if asked is None:
                    ended = True
                    break
                for queue, futures in asked[1].items():
                    parties.setdefault(queue, []).append((asked[0], futures))
            for queue, waiting in parties.items():
                error: BaseException | None = None
                try:
                    queue._sync_all()
                except BaseException as caught:
                    error = caught
                for loop, futures in waiting:
                    # A loop that was closed has nobody left to tell.
                    with suppress(RuntimeError):
                        loop.call_soon_threadsafe(_resolve, futures, error)
            if ended:
                return


class Port:
    """What one loop asks of the syncer; used on that loop's thread alone."""

    def __init__(self, syncer: Syncer) -> None:
        self._syncer = syncer
        self._asked: dict[QueueCore, _Futures] = {}

    def durable(self, queue: QueueCore, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Give a future that is resolved when all that was done to ``queue`` so far is on disk."""
        future = loop.create_future()
        futures = self._asked.get(queue)
        if futures is None:
            if not self._asked:
                loop.call_soon(self._hand_over)
            self._asked[queue] = [future]
        else:
            futures.append(future)
        return future

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, {}
        try:
            self._syncer.ask(asyncio.get_running_loop(), asked)
        except ClosedError as error:
            for futures in asked.values():
                _resolve(futures, error)


def _resolve(futures: _Futures, error: BaseException | None) -> None:
    for future in futures:
        if future.done():
            continue  # its waiter was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
