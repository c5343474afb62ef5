"""The rules for a message whose handler has ended: one set for threads, coroutines and
processes."""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from journal.errors import UsageError
from qindex.format.settings import QueueSettings

log: logging.Logger = logging.getLogger("qindex.worker")

Handler: TypeAlias = Callable[..., Any]
"""It is called with a delivery, and may be a coroutine function. What it returns is not used."""
Handlers: TypeAlias = Handler | Mapping[str, Handler]
"""A handler, or one for each ``type`` that messages have among their properties."""

RETRIES = 5
BACKOFF = "exponential:1:300"
"""For a queue without a ``delivery_limit``, and without a ``backoff``."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts to reach a server that has gone."""
_LONGEST_DELAY = 1e10
"""Seconds."""
FULL_PAUSE = 1.0
"""Seconds between attempts to move a message into a full dead-letter queue."""


class Retry(Exception):
    """Raised by a handler: deliver the message again.

    ``delay``: seconds until then; ``None``: the queue's back-off. ``count=False`` uses up no
    attempt.

    >>> raise Retry(delay=60, count=False)
    Traceback (most recent call last):
    qindex.worker.outcomes.Retry: in 60 s
    """

    # For subclasses whose __init__ does not call this one.
    delay: float | None = None
    count: bool = True

    def __init__(self, delay: float | None = None, *, count: bool = True) -> None:
        if not _is_delay(delay):
            raise UsageError(f"delay must be seconds from 0 to 1e10, not {delay!r}")
        super().__init__("after the back-off" if delay is None else f"in {delay:g} s")
        self.delay = delay
        self.count = count

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Retry, count=self.count), (self.delay,)


def _is_delay(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and 0 <= value <= _LONGEST_DELAY)  # type: ignore[operator]


def plain_retry(error: Retry) -> Retry:
    """Return a :class:`Retry` of no subclass, which any process can read."""
    return Retry(error.delay if _is_delay(error.delay) else None, count=bool(error.count))


class Reject(Exception):
    """Raised by a handler: the message can never be handled. It becomes a dead letter, with the
    text as its cause."""


class HandlerError(Exception):
    """A handler in a process raised: ``str()`` has its error, ``trace`` the traceback."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class NoHandlerError(Exception):
    """There is no handler for a message of this type."""


class ProcessDiedError(Exception):
    """A handler's process has ended, or was killed, in the middle of a message."""


class TimedOutError(Exception):
    """A handler took longer than its timeout, and was ended."""


@dataclass(slots=True)
class Figures:
    """The figures of a worker: messages ``done``, attempts that ``failed``, messages that became
    dead letters (``dead``) or were given back as the worker ended before their handlers (``cut``),
    handlers that run now (``running``), and processes that were begun anew (``restarts``)."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    cut: int = 0
    running: int = 0
    restarts: int = 0

    def note(self, error: BaseException | None, outcome: Outcome) -> None:
        """Count an attempt and its outcome.

        Args:
            error: What the handler raised, or None.
            outcome: The outcome of the attempt.
        """
        if error is None:
            self.done += 1
        else:
            self.failed += 1
            self.dead += outcome.verb == "reject"


def handler_for(handlers: Handlers, kind: object) -> Handler:
    """Return the handler for messages of a type. Raises :class:`NoHandlerError`."""
    if not isinstance(handlers, Mapping):
        return handlers
    found = handlers.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise NoHandlerError(f"no handler for messages of type {kind!r}")
    return found


def checked_handlers(handlers: Handlers) -> bool:
    """Return whether these are coroutine functions. Raises :class:`UsageError`."""
    found = list(handlers.values()) if isinstance(handlers, Mapping) else [handlers]
    if not found or not all(map(callable, found)):
        raise UsageError(
            "a handler must be a callable, or a mapping from message types to callables"
        )
    asynchronous = {inspect.iscoroutinefunction(one) for one in found}
    if len(asynchronous) == 2:
        raise UsageError("handlers of one worker are all coroutine functions, or none is")
    return asynchronous.pop()


def check_options(
    concurrency: object, retries: object, timeout: object, on_error: object, grace: object
) -> None:
    """Raise :class:`UsageError` for wrong values of the options that all workers have."""
    check_count("concurrency", concurrency, 1)
    if retries is not None:
        check_count("retries", retries, 0)
    if timeout is not None:
        check_seconds("timeout", timeout)
    check_callable("on_error", on_error)
    check_seconds("grace", grace, zero=True)


def end_if_forked(pid: int) -> None:
    """End this process if it is not ``pid``: a handler has forked, and returned in both. The other
    one would go on as a second worker, which nobody knows of."""
    if os.getpid() != pid:
        os._exit(0)


def check_count(name: str, value: object, least: int) -> None:
    """Raise :class:`UsageError` if ``value`` is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be an integer of at least {least}, not {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise :class:`UsageError` if ``value`` is not a number of seconds above 0, or 0 where that is
    allowed (``zero``)."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if not (0 < number < math.inf or (zero and number == 0)):
        above = "at least 0" if zero else "above 0"
        raise UsageError(f"{name} must be a number of seconds, {above}, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Raise :class:`UsageError` if ``value`` is neither None nor a callable."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} must be a function, not {value!r}")


def wanted_settings(
    name: str, settings: QueueSettings, retries: int | None, backoff: str | None
) -> dict[str, Any]:
    """Return the settings that a worker's queue is to have, as far as it has others.

    A message that fails for good needs a queue to go to; it would be dropped otherwise.
    """
    wanted: dict[str, Any] = {}
    if retries is not None or settings.delivery_limit is None:
        wanted["delivery_limit"] = (RETRIES if retries is None else retries) + 1
    if backoff is not None or settings.backoff is None:
        wanted["backoff"] = backoff or BACKOFF
    if settings.dead_letter is None:
        wanted["dead_letter"] = f"{name}.failed"
    return {key: one for key, one in wanted.items() if getattr(settings, key) != one}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The call that settles a delivery: its name and arguments."""

    verb: str
    arguments: Mapping[str, Any]


DONE = Outcome("ack", {})
GIVEN_BACK = Outcome("nack", {"delay": 0, "count": False})


def outcome_of(
    error: BaseException | None, attempt: int, limit: int | None, *, is_settled: bool
) -> Outcome:
    """Decide what becomes of a message whose handler returned, or raised ``error``.

    ``attempt``: which one it was, from 1; ``limit``: the last one; ``is_settled``: the handler has
    settled the delivery.
    """
    if error is None or is_settled:
        return DONE
    if isinstance(error, Reject):
        return Outcome("reject", {"reason": cause_of(error) or "rejected"})
    is_last = limit is not None and attempt >= limit
    if isinstance(error, Retry):
        if not (error.count and is_last):
            # A subclass may have set any delay, and the store's refusal would end the worker.
            plain = plain_retry(error)
            return Outcome("nack", {"delay": plain.delay, "count": plain.count})
    elif not is_last:
        return Outcome("nack", {})
    return Outcome("reject", {"reason": cause_of(error)})


_LONGEST = 1000
"""Characters of an error's text."""


def cause_of(error: BaseException) -> str:
    """Say in a line what went wrong."""
    try:
        text = str(error)[:_LONGEST]
    except BaseException as second:
        text = f"its text can't be made: {type(second).__name__}"
    text = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    if isinstance(error, Reject | HandlerError | NoHandlerError | ProcessDiedError | TimedOutError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def log_cut(queue: str, seq_id: int) -> None:
    """Write one line about a message whose handler was still running at the end."""
    log.warning("queue=%s seq_id=%d cut: given back, not counted", queue, seq_id)


def log_failure(
    queue: str, seq_id: int, attempt: int, limit: int | None, outcome: Outcome, error: BaseException
) -> None:
    """Log a failed attempt in one line. The record has the traceback, for level DEBUG."""
    what = {"reject": "dead letter", "ack": "settled"}.get(outcome.verb, "retry")
    delay = outcome.arguments.get("delay")
    if what == "retry" and delay is not None:
        what = f"retry in {delay:g} s"
    limits = "" if limit is None else f"/{limit}"
    fields = {"queue": queue, "seq_id": seq_id, "attempt": attempt, "next": what}
    log.warning(
        "queue=%s seq_id=%d attempt=%d%s next=%r error=%r",
        queue,
        seq_id,
        attempt,
        limits,
        what,
        cause_of(error),
        exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
        extra={"qindex": fields | {"error": cause_of(error)}},
    )
