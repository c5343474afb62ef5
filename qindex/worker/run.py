"""A worker of one queue: slots that take messages, and a main loop that looks after them.

Each slot is a thread that takes one message at a time, calls the handler, and settles the message.
A slot of a worker with processes passes the message to its process and waits for it
(:mod:`qindex.worker.processes`); one whose handler is a coroutine function passes it to the
worker's event loop. So the rules, and what happens at the end, are the same for all three.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from operator import attrgetter
from queue import Empty, SimpleQueue
from time import monotonic, time
from typing import TYPE_CHECKING, Literal, TypedDict

from journal.errors import UsageError
from journal.fs.files import REAL
from qindex.queue.delivery import Delivery
from qindex.queue.notes.leases import check_lease
from qindex.server import signals
from qindex.worker.child import check_sendable, load_handlers
from qindex.worker.outcomes import (
    Figures,
    Handlers,
    Outcome,
    check_count,
    check_options,
    check_seconds,
    checked_handlers,
    log,
    log_failure,
    outcome_of,
    wanted_settings,
)
from qindex.worker.runners import InThread, OnLoop, Runner
from qindex.worker.slots import Slot

if TYPE_CHECKING:
    from qindex.client.faces import AnyQueue
    from qindex.metrics import Family

_CUT = 0.2
"""Seconds that handlers get to end which were cut: coroutines, and processes, do."""
_HEALTH = 5.0
"""Seconds between two writes of the health file."""

_FAMILIES: list[tuple[str, Literal["counter", "gauge"], str]] = [
    ("done", "counter", "Messages whose handlers returned."),
    ("failed", "counter", "Attempts that failed."),
    ("dead", "counter", "Messages that became dead letters."),
    ("cut", "counter", "Messages given back at the end, before their handlers returned."),
    ("restarts", "counter", "Processes that were begun anew."),
    ("running", "gauge", "Handlers that run now."),
]


class WorkerOptions(TypedDict, total=False):
    """The options of :class:`Worker`."""

    concurrency: int
    processes: int
    retries: int | None
    backoff: str | None
    timeout: float | None
    on_error: Callable[[Delivery, BaseException], object] | None
    grace: float
    lease: float | None
    slow_after: float
    max_tasks: int | None
    max_memory: int | None
    health: str | os.PathLike[str] | None
    batch: int
    until_empty: bool


class Worker:
    """Runs a handler for each message of a queue, until it is stopped.

    A message whose handler returns is acknowledged. One whose handler raises is delivered again
    after the queue's back-off, and becomes a dead letter after its last attempt, with the error as
    its cause. The queue's settings ``delivery_limit``, ``backoff`` and ``dead_letter`` say how;
    where it has none, the worker sets five retries, ``"exponential:1:300"`` and ``NAME.failed``.

    Args:
        queue: A :class:`qindex.Queue` or :class:`qindex.SharedQueue`.
        handler: It is called with each delivery; or a mapping from types of messages (their
            property ``type``) to such callables. Coroutine functions run on an event loop. A
            message without a handler is treated as if its handler had raised. A handler may settle
            its delivery, or raise :class:`Retry` or :class:`Reject`.
        concurrency: How many handlers run at a time, in threads or coroutines.
        processes: If not 0, handlers run in this many processes, one in each. The handler must be
            importable, as with :mod:`multiprocessing`.
        retries: Attempts after the first: sets the queue's ``delivery_limit``.
        backoff: Sets the queue's ``backoff``.
        timeout: Seconds after which a handler is ended, and has failed: a coroutine is cancelled, a
            process is killed. Threads can't be ended, and refuse it.
        on_error: Called with the delivery and the error of each attempt that failed, in the slot's
            thread. It may settle the delivery.
        grace: Seconds that running handlers get when the worker is stopped.
        lease: Seconds of a lease that is extended as long as the handler runs. Needed only where
            others are to get the message while this process is suspended.
        slow_after: Seconds after which a running handler is logged once, with its stack.
        max_tasks: A process is replaced after this many messages.
        max_memory: A process is replaced, between messages, when it holds more bytes of memory.
        health: A file that is written every five seconds, for probes: the worker's figures and the
            time, in JSON.
        batch: How many messages a handler's place takes at a time, if this many are ready, and
            acknowledges at the end of the batch. More than 1 is for handlers that take less than a
            few milliseconds: if the worker is killed, those of a batch that were handled run again.
        until_empty: End when no message is ready.

    Example:
        >>> def send(mail):
        ...     print(mail.body)
        >>> Worker(mails, send, concurrency=8, retries=3, until_empty=True).run().done
        b'hello'
        1
    """

    def __init__(
        self,
        queue: AnyQueue,
        handler: Handlers | str,
        *,
        concurrency: int = 1,
        processes: int = 0,
        retries: int | None = None,
        backoff: str | None = None,
        timeout: float | None = None,
        on_error: Callable[[Delivery, BaseException], object] | None = None,
        grace: float = 30.0,
        lease: float | None = None,
        slow_after: float = 60.0,
        max_tasks: int | None = None,
        max_memory: int | None = None,
        health: str | os.PathLike[str] | None = None,
        batch: int = 1,
        until_empty: bool = False,
    ) -> None:
        handlers = load_handlers(handler) if isinstance(handler, str) else handler
        self._is_asynchronous = checked_handlers(handlers)
        check_options(concurrency, retries, timeout, on_error, grace)
        check_count("processes", processes, 0)
        check_count("batch", batch, 1)
        for name, count in (("max_tasks", max_tasks), ("max_memory", max_memory)):
            if count is not None:
                check_count(name, count, 1)
        if lease is not None:
            check_lease(lease)
        check_seconds("slow_after", slow_after)
        if not isinstance(health, str | os.PathLike | None):
            raise UsageError(f"health must be the path of a file, not {health!r}")
        if processes and concurrency > 1:
            raise UsageError("a process runs one handler at a time: concurrency is for threads")
        if timeout is not None and not processes and not self._is_asynchronous:
            raise UsageError(
                "a thread can't be ended: a timeout needs processes, or a coroutine function as "
                "the handler"
            )
        if (max_tasks or max_memory) and not processes:
            raise UsageError("max_tasks and max_memory are for processes")
        self.queue = queue
        self.lease = lease
        self.batch = batch
        self.until_empty = until_empty
        self.stopping: threading.Event = threading.Event()
        if processes:
            check_sendable(handler)
        self._handler: Handlers | str = handler
        self._handlers = handlers
        self._count = processes or concurrency
        self._processes = processes
        self._timeout = timeout
        self._recycle = (max_tasks, max_memory)
        self._on_error = on_error
        self._grace = grace
        self._slow_after = slow_after
        self._health = None if health is None else os.fspath(health)
        self._figures = Figures()
        self._lock = threading.Lock()
        self._told: SimpleQueue[str] = SimpleQueue()
        self._slots: list[Slot] = []
        self._error: BaseException | None = None
        wanted = wanted_settings(queue.name, queue.settings, retries, backoff)
        if wanted:
            queue.configure(**wanted)
        self._limit = queue.settings.delivery_limit

    @property
    def figures(self) -> Figures:
        """The worker's figures so far."""
        running = sum(one.delivery is not None for one in self._slots)
        with self._lock:
            return replace(self._figures, running=running)

    def families(self) -> list[Family]:
        """Return the figures for Prometheus: :func:`qindex.metrics.exposition` has the text form.

        Returns:
            The families of samples.

        Example:
            >>> worker.families()[0].name
            'qindex_worker_done'
        """
        from qindex.metrics import Column, table  # needs numpy, as clients do not

        columns: list[Column[Figures]] = [(*one, attrgetter(one[0])) for one in _FAMILIES]
        return table("qindex_worker_", columns, [({"queue": self.queue.name}, self.figures)])

    def stop(self) -> None:
        """Take no more messages, and end within ``grace`` seconds; a second call ends at once. From
        any thread, and in a signal's handler."""
        self._told.put("stop")

    def run(self) -> Figures:
        """Run until SIGTERM or SIGINT (in the main thread), or :meth:`stop`.

        Returns:
            What was done; ``cut`` counts handlers that were still running at the end.

        Raises:
            StoreError: The store can't be used any more.
        """
        if not self._told.empty():
            return self.figures  # stopped before it began
        with self._signals(), self._runners() as make_runner:
            self._slots = [Slot(self, make_runner) for _ in range(self._count)]
            for slot in self._slots:
                slot.thread.start()
            try:
                self._look_after()
            except BaseException:
                self.stopping.set()
                for slot in self._slots:
                    slot.stop()
                    slot.cut()
                raise
        if self._error is not None:
            raise self._error
        return self.figures

    # -- what slots call ------------------------------------------------------------------------

    def tell_ended(self) -> None:
        """Tell the main loop that a slot has ended."""
        self._told.put("ended")

    def fail(self, error: BaseException) -> None:
        """End the worker with an error.

        Args:
            error: What :meth:`run` raises.
        """
        if self._error is None:
            self._error = error
        self._told.put("stop")

    def count_restart(self) -> None:
        """Count a process that is begun anew."""
        with self._lock:
            self._figures.restarts += 1

    def judge(self, delivery: Delivery, attempt: int, error: BaseException | None) -> Outcome:
        """Decide what becomes of a message, and count it.

        Args:
            delivery: The delivery that was handled.
            attempt: The number of the attempt, from 1.
            error: What the handler raised, or None.

        Returns:
            The outcome.
        """
        if error is not None and self._on_error is not None:
            try:
                self._on_error(delivery, error)
            except Exception:
                log.exception("queue=%s on_error raised", self.queue.name)
        outcome = outcome_of(error, attempt, self._limit, is_settled=delivery.settled)
        with self._lock:
            self._figures.note(error, outcome)
        if error is not None:
            log_failure(self.queue.name, delivery.seq_id, attempt, self._limit, outcome, error)
        return outcome

    # -- the main loop --------------------------------------------------------------------------

    def _look_after(self) -> None:
        alive = len(self._slots)
        stops = 0
        end = None
        self._keep()
        while alive:
            try:
                what = self._told.get(timeout=self._pause(end))
            except Empty:
                what = ""
            if what == "ended":
                alive -= 1
            elif what == "stop":
                stops += 1
                self.stopping.set()
                end = monotonic() + (self._grace if stops == 1 else 0)
                for slot in self._slots:
                    slot.stop()
            if end is not None and monotonic() >= end:
                break
            self._keep()
        cut = sum(slot.cut() for slot in self._slots)
        with self._lock:
            self._figures.cut += cut
        end = monotonic() + _CUT
        for slot in self._slots:
            slot.thread.join(max(0.0, end - monotonic()))
        if self._health:
            with suppress(OSError):
                os.unlink(self._health)

    def _pause(self, end: float | None) -> float:
        pauses = [self._slow_after]
        if end is not None:
            pauses.append(end - monotonic())
        if self.lease is not None:
            pauses.append(self.lease / 3)
        if self._health is not None:
            pauses.append(_HEALTH)
        return max(0.0, min(pauses))

    def _keep(self) -> None:
        """Extend leases, report slow handlers, and write the health file."""
        for slot in self._slots:
            if self.lease is not None:
                slot.keep(self.lease)
            delivery, runner = slot.delivery, slot.runner
            if delivery is None or runner is None or slot.is_reported:
                continue
            seconds = monotonic() - slot.since
            if seconds >= self._slow_after:
                slot.is_reported = True
                log.warning(
                    "queue=%s seq_id=%d runs for %.0f s:\n%s",
                    self.queue.name,
                    delivery.seq_id,
                    seconds,
                    runner.stack(),
                )
        if self._health is not None:
            self._write_health(self._health)

    def _write_health(self, path: str) -> None:
        told = {"pid": os.getpid(), "time": time(), "queue": self.queue.name}
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(REAL.open(f"{path}.new", flags, 0o644), "w") as file:
                json.dump(told | asdict(self.figures), file)
            os.replace(f"{path}.new", path)
        except OSError as error:
            log.warning("health file %s: %s", path, error.strerror or error)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = [signal.getsignal(one) for one in signals.ENDS]
        with signals.heard() as told:
            threading.Thread(target=self._listen, args=(told,), daemon=True).start()
            try:
                yield
            finally:
                for number, handler in zip(signals.ENDS, before, strict=True):
                    signal.signal(number, handler)

    def _listen(self, told: socket.socket) -> None:
        """Stop at each signal that the socket tells of."""
        with suppress(OSError):  # it is closed at the end
            while number := told.recv(1):
                if number[0] in signals.ENDS:
                    self.stop()

    @contextmanager
    def _runners(self) -> Iterator[Callable[[], Runner]]:
        """Return what makes a slot's runner."""
        if self._processes:
            from qindex.worker.processes import InProcess

            yield lambda: InProcess(
                self._handler, self._timeout, *self._recycle, self.stopping, self.count_restart
            )
        elif not self._is_asynchronous:
            yield lambda: InThread(self._handlers)
        else:
            loop = asyncio.new_event_loop()
            ended = threading.Event()

            def run_loop() -> None:
                while not ended.is_set():  # a handler may also stop the loop
                    loop.run_forever()

            thread = threading.Thread(target=run_loop, name="qindex loop", daemon=True)
            thread.start()
            try:
                yield lambda: OnLoop(loop, self._handlers, self._timeout)
            finally:
                ended.set()
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()
