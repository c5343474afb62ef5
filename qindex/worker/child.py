"""A process that runs handlers, one message at a time: its requests and its answers.

The worker's process holds the deliveries. It sends the parts that a handler sees, and the child's
delivery asks it to settle. So if a handler hangs or kills its process, the worker gives the message
back. The child ends with the pipe.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from journal.errors import UsageError
from qindex.client.calls import Parts
from qindex.format.message import Message
from qindex.queue.delivery import Delivery, make_delivery
from qindex.worker.outcomes import (
    HandlerError,
    Handlers,
    Reject,
    Retry,
    cause_of,
    checked_handlers,
    end_if_forked,
    handler_for,
    plain_retry,
)

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that comes when the parent ends."""


def task_of(delivery: Delivery) -> tuple[Any, ...]:
    """Return the parts of a delivery that are sent to a child."""
    return (
        delivery.seq_id,
        delivery.redelivered,
        delivery.delivery_count,
        delivery.expiry or 0,
        delivery.message,
        delivery.queue_name,
    )


_asking = threading.Lock()
"""Held for a call and its reply."""


class _Asking:
    """The owner of a child's deliveries: it asks the worker to settle them."""

    def __init__(self, pipe: Connection, at: int, name: str) -> None:
        self._pipe = pipe
        self._at = at
        self._pid = os.getpid()
        self.name = name
        self.is_settled = False

    def _ask(self, verb: str, *arguments: Any, **named: Any) -> None:
        with _asking:  # a handler may have threads
            if self.is_settled:
                raise UsageError("the delivery is settled already, or its handler has ended")
            if os.getpid() != self._pid:
                raise UsageError("a process that a handler has forked can't settle its delivery")
            self._pipe.send(("call", self._at, verb, arguments, named))
            error = self._pipe.recv()
            if error is not None:
                raise error
            self.is_settled = verb != "extend_lease"

    def end(self) -> None:
        """Settle nothing more: the handler has ended."""
        with _asking:
            self.is_settled = True

    def ack(self, delivery: Delivery, /) -> None:
        self._ask("ack")

    def nack(self, delivery: Delivery, delay: float | None = None, count: bool = True, /) -> None:
        self._ask("nack", delay=delay, count=count)

    def reject(self, delivery: Delivery, reason: str | None = None, /) -> None:
        self._ask("reject", reason)

    def move(
        self,
        delivery: Delivery,
        queue: str,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
        /,
    ) -> None:
        self._ask("move", queue, headers=headers, delay=delay)

    def extend_lease(self, delivery: Delivery, seconds: float, /) -> None:
        self._ask("extend_lease", seconds)

    def take_back_uncounted(self, deliveries: Iterable[Delivery], /) -> None:
        self._ask("nack", delay=0, count=False)

    def is_out(self, seq_id: int, taken: int | None = None, /) -> bool:
        return not self.is_settled

    def catch_up(self) -> None:
        """Do nothing: the queue is another process's."""

    def has_lapsed(self, seq_id: int, taken: int, /) -> bool:
        return False


def load_handlers(name: str) -> Handlers:
    """Import ``module:handler``. Raises :class:`UsageError`."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"name the handler as module:handler, not {name!r}")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if frame.filename.startswith("<") else f" ({frame.filename}:{frame.lineno})"
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            where = "; run this in the directory of the module, or set PYTHONPATH"
        raise UsageError(f"{module} can't be imported: {cause_of(error)}{where}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"module {module!r} has no {attribute!r}") from None
    handlers: Handlers = found
    checked_handlers(handlers)
    return handlers


def check_sendable(handlers: Handlers | str) -> None:
    """Raise :class:`UsageError` for handlers that another process can't import."""
    try:
        pickle.dumps(handlers)
    except Exception as error:
        raise UsageError(
            "with processes, a handler must be a function that a process can import: "
            f"{cause_of(error)}"
        ) from error


def serve(pipe: Connection, handlers: Handlers | str, stacks: Connection, started: Any) -> None:
    """Run handlers until the pipe is closed.

    ``stacks``: holds the descriptor of the file that gets the stacks of all threads at each
    SIGUSR1. ``started``: shared memory that says which message of its batch is being handled.
    """
    os.setpgid(0, 0)  # so that the programs that a handler starts can be killed with it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The worker says when to end. Not SIG_IGN, which programs that a handler starts would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno(), all_threads=True)
    try:
        found = load_handlers(handlers) if isinstance(handlers, str) else handlers
        is_asynchronous = checked_handlers(found)
    except UsageError as error:
        pipe.send(error)
        return
    pid = os.getpid()
    with suppress(BrokenPipeError):
        pipe.send(None)
    with asyncio.Runner() as loop, suppress(EOFError, BrokenPipeError):
        while True:
            for at, task in enumerate(pipe.recv()):
                started.value = at
                delivery, owner = _delivery_of(pipe, at, *task)
                failure: Exception | None = None
                try:
                    made = handler_for(found, delivery.properties.get("type"))(delivery)
                    if is_asynchronous:
                        loop.run(made)
                except Retry as raised:
                    failure = plain_retry(raised)
                except Reject as raised:
                    failure = Reject(cause_of(raised))
                except BaseException as raised:
                    failure = HandlerError(cause_of(raised), traceback.format_exc()[-10_000:])
                end_if_forked(pid)
                owner.end()
                if failure is not None:
                    pipe.send(("failed", at, failure))
            pipe.send(("done", _memory()))


def _delivery_of(
    pipe: Connection,
    at: int,
    seq_id: int,
    redelivered: bool,
    count: int,
    expiry: int,
    message: Message,
    name: str,
) -> tuple[Delivery, _Asking]:
    owner = _Asking(pipe, at, name)
    extra: Any = Parts(message, expiry)
    delivery = make_delivery(owner, seq_id, message.body, redelivered, extra)
    delivery._count = count
    return delivery, owner


def _memory() -> int:
    """Return how many bytes of memory this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
