"""Headers of a message that goes to a dead-letter queue, in RabbitMQ's shape.

``x-death``: a list of maps, the latest first, one for each queue and reason::

    {"queue": "orders", "reason": "rejected", "seq_id": 17, "time": 1700000000, "count": 2}

``queue``, ``seq_id``: where it was (the latest time); ``reason``: one of :data:`Reason`; ``time``:
seconds since 1970 UTC, of the latest time; ``count``: how often; ``cause``: what the consumer said
that rejected it, if it did. ``x-first-death-queue`` and
``x-first-death-reason`` stay those of the first time. Key, body, properties, timestamp and the
other headers are kept; an expiry and a unique key are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from time import time_ns
from typing import Any, Literal

from journal.errors import QueueFullError, StoreError
from qindex.format.headers import DUE_HEADER, without_key
from qindex.format.message import Message

Reason = Literal["rejected", "expired", "limit", "overflow"]
"""``reject()``; its time was up; ``delivery_limit``; dropped from the head of a queue
that was full."""

DEATHS = "x-death"
FIRST_QUEUE = "x-first-death-queue"
FIRST_REASON = "x-first-death-reason"

_BY_CONSUMERS = ("rejected", "limit")


@dataclass(frozen=True, slots=True)
class Letter:
    """One message that is to leave its queue. ``persistent``: as it was published. ``cause``: the
    reason that its consumer gave for rejecting it. ``target``: the queue that its consumer moves it
    to, as it is, and ``due``: when it is due there, in microseconds since 1970, 0 for at once;
    None: it goes to the dead-letter queue, with headers that tell why. ``base``: added to
    ``seq_id`` it makes the seq_id that users know."""

    seq_id: int
    message: Message
    reason: Reason
    persistent: bool
    cause: str = ""
    target: str | None = None
    due: int = 0
    base: int = 0


def _deaths(headers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the headers tell; a publisher may have put anything there."""
    found = headers.get(DEATHS)
    if found is None:
        return []  # its first death, as a rule: this runs for each message that waits for room
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return []
    return [dict(one) for one in found if isinstance(one, Mapping)]


def goes_round(letter: Letter, target: str) -> bool:
    """Return whether a message would come back to a queue it died in without any consumer having
    had a say since: then it would go round for ever, and is dropped."""
    if letter.reason in _BY_CONSUMERS:
        return False
    deaths = _deaths(letter.message.headers)
    since = list(takewhile(lambda one: one.get("queue") != target, deaths))
    if len(since) == len(deaths):
        return False
    return all(one.get("reason") not in _BY_CONSUMERS for one in deaths[: len(since) + 1])


def with_death(letter: Letter, queue: str) -> Message:
    """Return the message with the headers that tell of its death in ``queue``."""
    message = letter.message
    deaths = _deaths(message.headers)
    same = [
        one for one in deaths if one.get("queue") == queue and one.get("reason") == letter.reason
    ]
    counts = [one["count"] for one in same if isinstance(one.get("count"), int)]
    latest = (same[0] if same else {}) | {
        "queue": queue,
        "reason": letter.reason,
        "seq_id": letter.base + letter.seq_id,
        "time": time_ns() // 10**9,
        "count": sum(counts) + 1,
    }
    if letter.cause:
        latest["cause"] = letter.cause
    headers = {
        FIRST_QUEUE: queue,
        FIRST_REASON: letter.reason,
        **without_key(message.headers),
        DEATHS: [latest, *(one for one in deaths if one not in same)],
    }
    headers.pop(DUE_HEADER, None)  # it was due
    return replace(message, headers=headers)


class NotMovedError(StoreError):
    """A move failed; ``left`` are the messages that are still in their queue, ``cause`` is why."""

    def __init__(self, left: list[Letter], cause: StoreError) -> None:
        super().__init__(str(cause))
        self.left = left
        self.cause = cause

    @property
    def is_full(self) -> bool:
        """Whether the dead-letter queue is full, and it can be tried again later."""
        return isinstance(self.cause, QueueFullError)
