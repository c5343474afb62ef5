"""When a schedule is due: by a cron expression in a time zone, or at an interval.

A rule has one method, ``after(time)``: the first instant after a time. Instants are microseconds
since 1970 UTC, so the days on which clocks change are the business of cron expressions alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from journal.errors import UsageError
from qindex.format.message import Microseconds

SECOND = 1_000_000
_FIRST_WINDOW = 3600 * SECOND
_NEEDED = "cron expressions need cronsim: pip install cronsim"


class Rule(Protocol):
    """The instants of a schedule."""

    def after(self, time: Microseconds) -> Microseconds:
        """Return the first instant after a time."""


class Every:
    """One instant each ``period`` from ``start`` on, by the time that passes."""

    def __init__(self, period: Microseconds, start: Microseconds) -> None:
        self._period = period
        self._start = start

    def after(self, time: Microseconds) -> Microseconds:
        """Return the first instant after a time."""
        return self._start + ((time - self._start) // self._period + 1) * self._period


class Cron:
    """The instants of a cron expression, as Debian's cron runs it on the days of change."""

    def __init__(self, expression: str, timezone: str) -> None:
        self._expression = expression
        self._zone = zone(timezone)

    def after(self, time: Microseconds) -> Microseconds:
        """Return the first instant after a time. Raises :class:`UsageError` if there is none."""
        start = datetime.fromtimestamp(time // SECOND, self._zone)
        for found in self._from(start):
            # Where the clock was set back, the parser begins anew an hour too early.
            instant = round(found.timestamp()) * SECOND
            if instant > time:
                return instant
        raise UsageError(f"cron expression {self._expression!r} is never due")

    def _from(self, start: datetime) -> Iterable[datetime]:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError as error:
            raise UsageError(_NEEDED) from error
        try:
            return CronSim(self._expression, start)
        except CronSimError as error:
            what = str(error).lower()
            raise UsageError(f"cron expression {self._expression!r}: {what}") from None


def checked_cron(expression: str) -> str:
    """Return a cron expression with single spaces. Raises :class:`UsageError`."""
    if not isinstance(expression, str):
        raise UsageError(f"a cron expression must be a str, not {expression!r}")
    fields = expression.split()
    if len(fields) != 5:
        raise UsageError(
            f"a cron expression has 5 fields (minute hour day month weekday), not {expression!r}; "
            "every= takes seconds"
        )
    return " ".join(fields)


def zone(name: str) -> tzinfo:
    """Return a time zone. Raises :class:`UsageError` for a name that this system does not have."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        raise UsageError(
            f"there is no time zone {name!r} here; use a name such as 'Europe/Amsterdam'"
        ) from None


def latest(rule: Rule, after: Microseconds, now: Microseconds, most: int) -> list[Microseconds]:
    """Return the last instants that are after ``after`` and not after ``now``, at most ``most``.

    It looks at longer and longer windows before ``now``, so that a clock that was set by years
    does not cost a step for each instant of these years.
    """
    window = _FIRST_WINDOW
    while True:
        start = max(after, now - window)
        found = []
        instant = rule.after(start)
        while instant <= now:
            found.append(instant)
            instant = rule.after(instant)
        if len(found) >= most or start == after:
            return found[-most:]
        window *= 4
