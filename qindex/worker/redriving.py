"""Redrive: put dead letters back into the queues that they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypedDict

from journal.errors import StoreError, UsageError
from qindex.format.settings import checked_name
from qindex.queue.dead_letter import DEATHS
from qindex.view.queue_view import Row
from qindex.view.reader import StoreReader
from qindex.worker.outcomes import check_callable

if TYPE_CHECKING:
    from qindex.client.faces import AnyQueue

REDRIVES = "x-redrives"
"""The header that counts how often a message was put back."""


class RedriveOptions(TypedDict, total=False):
    """The options of :func:`redrive`."""

    to: str | None
    filter: Callable[[Row], bool] | None
    rate: float | None
    dry_run: bool


@dataclass(slots=True)
class RedriveReport:
    """``moved``: how many messages went to each queue (in a dry run: would go). ``filtered``: how
    many the filter left. ``without_origin``: how many do not say where they came from; they stay.
    ``not_ready``: how many were with a consumer, or gone, when their turn came."""

    moved: Counter[str] = field(default_factory=Counter)
    filtered: int = 0
    without_origin: int = 0
    not_ready: int = 0


def redrive(
    queue: AnyQueue,
    *,
    to: str | None = None,
    filter: Callable[[Row], bool] | None = None,
    rate: float | None = None,
    dry_run: bool = False,
) -> RedriveReport:
    """Put the messages that are in a dead-letter queue now back where they came from.

    Each message moves in one step: after a crash it is in one of the two queues, and a second call
    goes on with the rest. In its queue it is delivered as often as a new message, under the
    settings of that queue. Its header ``x-redrives`` counts how often it was put back; ``x-death``
    stays.

    Args:
        queue: The dead-letter queue.
        to: The queue to put them into. None: the queue that each message died in last.
        filter: Called with each message (its ``key``, ``headers``, ``body``, ``seq_id``); those for
            which it returns false stay.
        rate: Messages a second at the most.
        dry_run: Change nothing.

    Returns:
        The numbers of moved and left messages.

    Raises:
        QueueFullError: A queue has no room for its message. Those before it are put back.
        UsageError: ``to`` is the queue itself.

    Example:
        >>> failed.redrive(filter=lambda letter: letter.key == "o-17", rate=100).moved
        Counter({'orders': 1})
    """
    if to is not None:
        checked_name(to)
    if to == queue.name:
        raise UsageError(f"queue {to!r} is where the messages are")
    check_callable("filter", filter)
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and rate > 0):
        raise UsageError(f"rate must be above 0 messages a second, not {rate!r}")
    report = RedriveReport()
    start = monotonic()
    for row in StoreReader(queue.directory).queue(queue.name):
        target = _origin(row.headers) if to is None else to
        if target is None or target == queue.name:
            report.without_origin += 1
        elif filter is not None and not filter(row):
            report.filtered += 1
        elif dry_run:
            report.moved[target] += 1
        else:
            if rate is not None:
                sleep(max(0.0, start + report.moved.total() / rate - monotonic()))
            if _put_back(queue, row.seq_id, target):
                report.moved[target] += 1
            else:
                report.not_ready += 1
    return report


def _put_back(queue: AnyQueue, seq_id: int, target: str) -> bool:
    letter = queue.get(seq_id=seq_id)
    if letter is None:
        return False
    try:
        count = letter.headers.get(REDRIVES)
        count = count if isinstance(count, int) else 0
        letter.move(target, headers={**letter.headers, REDRIVES: count + 1})
    except BaseException:
        with suppress(StoreError):
            letter.nack(delay=0, count=False)
        raise
    return True


def deaths_of(headers: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of ``x-death``, the latest first."""
    found = headers.get(DEATHS)
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return []
    return [one for one in found if isinstance(one, Mapping)]


def _origin(headers: Mapping[str, Any]) -> str | None:
    deaths = deaths_of(headers)
    name = deaths[0].get("queue") if deaths else None
    if not isinstance(name, str):
        return None
    try:
        checked_name(name)
    except UsageError:
        return None
    return name
