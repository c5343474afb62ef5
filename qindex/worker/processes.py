"""Handlers in processes: a slot passes its messages to a process of its own."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Any

from journal.errors import StoreError, UsageError
from qindex.queue.delivery import Delivery
from qindex.worker import child
from qindex.worker.outcomes import Handlers, ProcessDiedError, TimedOutError, cause_of, log

_SPAWN = multiprocessing.get_context("spawn")
"""A child inherits no memory, no lock that another thread holds, and no descriptor."""
_BEGIN = 120.0
"""Seconds in which a process has to import its handler."""
_LOOK_BEGIN = 0.2
"""Seconds between looks, meanwhile, whether the worker is to end."""
_LOOK = 1.0
"""Seconds between looks whether a process is alive whose handler runs."""
_ATTEMPTS = 3
"""Processes in a row that may die before they have begun."""
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
"""Errors that pass: the system has no descriptor, process or memory left."""
_SCARCE_PAUSE = 1.0
"""Seconds between attempts to start a process meanwhile."""
_STACK_WAIT = 0.5
"""Seconds that a process gets to write its stack."""
_END_WAIT = 5.0
"""Seconds that a process without a message gets to end."""


class InProcess:
    """The runner of a slot: it has a process, and begins another one when that has ended."""

    def __init__(
        self,
        handler: Handlers | str,
        timeout: float | None,
        max_tasks: int | None,
        max_memory: int | None,
        stopping: threading.Event,
        count_restart: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._timeout = timeout
        self._max_tasks = max_tasks
        self._max_memory = max_memory
        self._stopping = stopping
        self._count_restart = count_restart
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115
        self._started = _SPAWN.RawValue("Q", 0)
        self._tasks = 0
        self._pipe: Connection
        self._process: Any = None
        self._begin()

    def run(self, batch: Sequence[Delivery]) -> Iterator[BaseException | None]:
        """See :meth:`qindex.worker.runners.Runner.run`. Ends after a message whose process died,
        or was killed at its timeout."""
        at = 0  # of the next message whose end is to be told
        is_killed = False
        try:
            self._started.value = 0
            self._pipe.send(list(map(child.task_of, batch)))
            while True:
                if not is_killed and not self._has_news():
                    is_killed = True
                    self._kill_hanging(batch[self._started.value])
                what, *values = self._pipe.recv()
                if what == "done":
                    break
                if what == "call":
                    number, *call = values
                    self._pipe.send(_called(batch[number], *call))
                    continue
                number, error = values
                yield from [None] * (number - at)
                yield error
                at = number + 1
        except (EOFError, ConnectionError):
            how = self._how_it_ended()
        except Exception as error:
            log.error("a process sent what can't be read: %r", error)
            self._kill()
            self._how_it_ended()
            how = f"its process sent what can't be read: {type(error).__name__}"
        else:
            yield from [None] * (len(batch) - at)
            self._tasks += len(batch)
            self._replace_if_due(values[0], is_killed=is_killed)
            return
        # What it told before it died has been read.
        yield from [None] * (self._started.value - at)
        self._begin_anew()
        if is_killed:
            yield TimedOutError(f"its process was killed after {self._timeout:g} s")
        else:
            yield ProcessDiedError(how)

    def _has_news(self) -> bool:
        """Wait until the process tells something, or return False if one handler takes longer than
        its timeout."""
        while True:
            before, begun = self._started.value, monotonic()
            while self._timeout is None or monotonic() < begun + self._timeout:
                left = _LOOK if self._timeout is None else begun + self._timeout - monotonic()
                if self._pipe.poll(max(0.0, min(_LOOK, left))):
                    return True
                if not self._process.is_alive() and not self._pipe.poll(0):
                    raise EOFError  # a process that the handler has forked keeps the pipe open
                if self._started.value != before:
                    break
            else:
                return False

    def _replace_if_due(self, memory: int, *, is_killed: bool) -> None:
        too_many = self._max_tasks is not None and self._tasks >= self._max_tasks
        if is_killed or too_many or (self._max_memory is not None and memory > self._max_memory):
            self._end()
            self._begin_anew()

    def stack(self) -> str:
        """Return the stacks of the process, as far as it writes them in time."""
        start = os.fstat(self._stacks.fileno()).st_size
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        end = monotonic() + _STACK_WAIT
        size = start
        while monotonic() < end:
            sleep(0.02)
            before, size = size, os.fstat(self._stacks.fileno()).st_size
            if size == before > start:
                break
        return os.pread(self._stacks.fileno(), size - start, start).decode("utf-8", "replace")

    def cut(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._kill()

    def _kill(self) -> None:
        """Kill the process, and the programs that its handlers have started."""
        if self._process.exitcode is None:
            self._kill_group()
            self._process.kill()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        self._end()
        self._stacks.close()

    def _begin(self) -> None:
        for _ in range(_ATTEMPTS):
            if not self._start():
                return
            with suppress(EOFError, ConnectionError):
                if not self._has_begun():
                    self._kill()
                error = self._pipe.recv()
                if error is not None:
                    self._end()
                    raise error
                return
            how = self._how_it_ended()
            if self._stopping.is_set():
                return
            log.error("a process has ended before it had a message: %s", how)
        raise ProcessDiedError(
            f"processes end before they have a message: {how}. Each one imports the program's main "
            'module: what this does only when it is started belongs under if __name__ == "__main__"'
        )

    def _start(self) -> bool:
        """Start a process, as soon as the system has room for one. Return False if the worker is to
        end before."""
        while True:
            try:
                self._start_now()
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                log.error("a process can't be started now: %s", error.strerror)
                if self._stopping.wait(_SCARCE_PAUSE):
                    return False
            else:
                return True

    def _start_now(self) -> None:
        self._tasks = 0
        ours, theirs = _SPAWN.Pipe()
        try:
            # Not a pipe; but it is in a Connection that a descriptor is passed on.
            with theirs, Connection(os.dup(self._stacks.fileno())) as stacks:
                process: Any = _SPAWN.Process(
                    target=child.serve, args=(theirs, self._handler, stacks, self._started)
                )
                process.start()
        except BaseException:
            ours.close()
            raise
        # Not before it has started: cut() kills the process that is set here.
        self._pipe, self._process = ours, process

    def _has_begun(self) -> bool:
        """Wait until the process has imported its handler; return False if it is to be killed."""
        end = monotonic() + _BEGIN
        while monotonic() < end and not self._stopping.is_set():
            if self._pipe.poll(_LOOK_BEGIN):
                return True
        return False

    def _begin_anew(self) -> None:
        self._count_restart()
        if not self._stopping.is_set():
            self._begin()

    def _end(self) -> None:
        if self._process is None:  # the worker ended before it could be started
            return
        self._pipe.close()
        self._process.join(_END_WAIT)
        if self._process.exitcode is None:
            self._kill()
            self._process.join()

    def _how_it_ended(self) -> str:
        self._pipe.close()
        self._process.join(_END_WAIT)
        code = self._process.exitcode
        if code is None:
            self._kill()
            return "its process closed its pipe"
        self._kill_group()  # which has the process's number as long as a program is left
        if code < 0:
            return f"its process was killed by {_signal_name(-code)}"
        return f"its process ended with exit code {code}"

    def _kill_hanging(self, delivery: Delivery) -> None:
        log.warning(
            "queue=%s seq_id=%d timed out:\n%s", delivery.queue_name, delivery.seq_id, self.stack()
        )
        self._kill()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have none
        return f"signal {number}"


def _called(
    delivery: Delivery, verb: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Exception | None:
    """Settle a delivery for the process; return the error to raise there."""
    try:
        getattr(delivery, verb)(*arguments, **named)
    except StoreError as error:
        return error
    except Exception as error:
        return UsageError(cause_of(error))
    return None
