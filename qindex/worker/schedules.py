"""Durable schedules: messages that a store publishes at set times.

A schedule is one message in the queue :data:`QUEUE`, delayed until its next instant. The message
holds the schedule's name as its unique key, the definition and the cursor in its headers, and the
body of the ticks. Each change is one transaction: it publishes the ticks that are due, acknowledges
the message, and publishes the next schedule message. So a tick is published once, however many
processes look and whenever they die.

The delay counts the time that passes, and instants are times of the wall clock. So whoever takes
the message compares its instant with the clock, and delays it again if it came early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from time import monotonic, sleep, time_ns
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict, get_args

from journal.arguments import encoded
from journal.errors import DuplicateError, QueueFullError, StoreError, UsageError
from qindex.format.message import Body, Microseconds, as_bytes
from qindex.format.settings import checked_name
from qindex.worker.cron import SECOND, Cron, Every, Rule, checked_cron, latest, zone

if TYPE_CHECKING:
    from qindex.client.faces import AnyEngine, AnyQueue
    from qindex.queue.delivery import Delivery

QUEUE = "qindex.schedules"
"""The queue that holds the schedules of a store."""
KEY = "schedule"
"""The key of the messages that are schedules."""
SCHEDULE_HEADER = "qindex-schedule"
"""The name of the schedule that published a message."""
INSTANT_HEADER = "qindex-instant"
"""The instant that a message was published for, in microseconds since 1970 UTC."""
MAX_MISSED = 100
"""The most ticks that ``missed="all"`` makes up for at a time: the latest ones."""
RETRY = 10 * SECOND
"""The pause before ticks that could not be published are tried again."""
LEASE = 60.0
"""Seconds after which another process takes the schedule that a stopped one holds."""
Missed: TypeAlias = Literal["skip", "once", "all"]

_FIELDS = "qindex-schedule-fields"
_GRACE = 60 * SECOND
"""An instant that is later than this is missed."""
_SET_BACK = 3 * 3600 * SECOND
"""A clock that is set back by more was wrong before; Debian's cron has the same limit."""
_SLACK = SECOND
_LEAST_SECONDS, _MAX_SECONDS = 0.1, 1e9
_LONGEST_NAME = 255
_UTC = "UTC"
_LONGEST_DELAY = 30 * 86400 * SECOND
_PATIENCE = 10.0
_LOOK = 0.01
_LOOKS = 10
_ALL = 1 << 30


def wall_us() -> Microseconds:
    """Return the time of the wall clock."""
    return time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it was when it was read. Made by :meth:`qindex.Engine.schedule` and
    :meth:`qindex.Engine.schedules`.

    ``queue``, ``body``, ``key``, ``headers``: the messages that it publishes. ``cron`` and
    ``timezone``, or ``every`` (seconds): when. ``missed``: what becomes of runs that were missed.
    ``paused``: whether it publishes nothing.
    """

    name: str
    queue: str
    body: bytes = b""
    key: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    cron: str | None = None
    every: float | None = None
    timezone: str | None = None
    missed: Missed = "once"
    paused: bool = False
    _start: Microseconds = field(default=0, repr=False)
    _next: Microseconds = field(default=0, repr=False)
    # The latest instant that was published or skipped.
    _cursor: Microseconds = field(default=0, repr=False)
    _last: Microseconds = field(default=0, repr=False)
    _engine: AnyEngine | None = field(default=None, repr=False, compare=False)

    @property
    def next_run(self) -> datetime | None:
        """The next instant, in the schedule's time zone; None while it is paused."""
        return None if self.paused else self._shown(self._next)

    @property
    def last_run(self) -> datetime | None:
        """The instant of the latest message that it published by itself; None without one."""
        return self._shown(self._last) if self._last else None

    def _shown(self, time: Microseconds) -> datetime:
        return datetime.fromtimestamp(time / SECOND, zone(self.timezone) if self.timezone else UTC)

    def pause(self) -> None:
        """Publish nothing until :meth:`resume`, in no process.

        Raises:
            UsageError: The schedule was removed.

        Example:
            >>> pulse = engine.schedule("pulse", every=60, queue="jobs")
            >>> pulse.pause()
            >>> engine.schedules()["pulse"].paused
            True
        """
        self._change(lambda found: replace(found, paused=True))

    def resume(self) -> None:
        """Go on after :meth:`pause`, with the next instant after now.

        Raises:
            UsageError: The schedule was removed.

        Example:
            >>> pulse.resume()
        """
        self._change(
            lambda found: replace(found, paused=False)._from(wall_us()) if found.paused else found
        )

    def remove(self) -> None:
        """Remove the schedule. The messages that it published stay in their queue.

        Raises:
            UsageError: The schedule was removed before.

        Example:
            >>> engine.schedule("old", every=60, queue="jobs").remove()
        """
        self._change(lambda _: None)

    def run_now(self) -> int:
        """Publish a message now, paused or not. The next instant stays as it is.

        Returns:
            The seq_id of the message. Its header ``qindex-instant`` is the present time.

        Raises:
            UsageError: The schedule was removed.
            QueueFullError: The queue is full; nothing was published.

        Example:
            >>> pulse.run_now()
            0
        """
        engine = self._of()
        delivery = _find(engine.queue(QUEUE), self.name)
        if delivery is None:
            raise _UnknownError(self.name)
        found = parse(delivery)
        return engine.queue(found.queue).publish(**found._tick(wall_us()))

    def _of(self) -> AnyEngine:
        if self._engine is None:
            raise UsageError(f"schedule {self.name!r} was read from a store that is read-only")
        return self._engine

    def _change(self, how: Callable[[Schedule], Schedule | None]) -> None:
        _change(self._of(), self.name, how)

    # -- due ticks ------------------------------------------------------------------------------

    def _rule(self) -> Rule:
        if self.every is not None:
            return Every(round(self.every * SECOND), self._start)
        return Cron(self.cron or "", self.timezone or _UTC)

    def _when(self) -> tuple[object, ...]:
        return self.cron, self.every, self.timezone

    def _defined(self) -> Schedule:
        return replace(self, paused=False, _start=0, _next=0, _cursor=0, _last=0)

    def _from(self, now: Microseconds) -> Schedule:
        """Begin with the first instant after now. ``every`` keeps its instants."""
        begun = replace(self, _start=self._start or now, _cursor=now)
        return replace(begun, _next=begun._rule().after(now))

    def due(self, now: Microseconds) -> tuple[Schedule, list[Microseconds]]:
        """Return the schedule's due instants.

        Args:
            now: Microseconds since 1970 UTC.

        Returns:
            The schedule that follows this one, or this one if nothing changes, and the instants to
            publish.

        Raises:
            UsageError: The schedule's rule can't be read here.
        """
        if self.paused:
            return self, []
        if now < self._next:
            if self.every is not None:
                was_set_back = self._next - now > self.every * SECOND + _SLACK
            else:
                was_set_back = self._cursor - now > _SET_BACK
            return replace(self, _start=0)._from(now) if was_set_back else self, []
        rule = self._rule()
        most = MAX_MISSED if self.missed == "all" else 1
        found = latest(rule, self._next - 1, now, most)
        instants = [] if self.missed == "skip" and now - found[-1] > _GRACE else found
        last = instants[-1] if instants else self._last
        return replace(self, _cursor=found[-1], _next=rule.after(now), _last=last), instants

    def delay(self, now: Microseconds) -> float:
        """Return the seconds until the schedule must be looked at again.

        Args:
            now: Microseconds since 1970 UTC.
        """
        left = _LONGEST_DELAY if self.paused else self._next - now
        return min(max(left, 1), _LONGEST_DELAY) / SECOND

    # -- its messages ---------------------------------------------------------------------------

    def _tick(self, instant: Microseconds) -> dict[str, Any]:
        """Return the arguments of a publish, for an instant."""
        headers = {**self.headers, SCHEDULE_HEADER: self.name, INSTANT_HEADER: instant}
        return {"body": self.body, "key": self.key, "headers": headers, "timeout": 0}

    def _message(self, now: Microseconds, delay: float | None = None) -> dict[str, Any]:
        """Return the arguments of a publish, for the message that is this schedule."""
        kept = {name.lstrip("_"): getattr(self, name) for name in _KEPT}
        kept = {name: value for name, value in kept.items() if value is not None}
        return {
            "body": self.body,
            "key": KEY,
            "headers": {_FIELDS: {**kept, "headers": dict(self.headers)}},
            "delay": self.delay(now) if delay is None else delay,
            "unique": self.name,
        }


_KEPT = tuple(one.name for one in fields(Schedule) if one.name not in ("body", "_engine"))
_STATE = ("paused", "_start", "_next", "_cursor", "_last")


def parse(delivery: Delivery, engine: AnyEngine | None = None) -> Schedule:
    """Return the schedule that a message is. Raises :class:`UsageError` for any other message."""
    kept = delivery.headers.get(_FIELDS)
    if not isinstance(kept, Mapping) or not {"name", "queue", "next"} <= kept.keys():
        raise UsageError(f"message {delivery.seq_id} of queue {QUEUE!r} is not a schedule")
    values = {name: kept[short] for name in _KEPT if (short := name.lstrip("_")) in kept}
    if not all(_is_sound(name.lstrip("_"), value) for name, value in values.items()):
        raise UsageError(f"message {delivery.seq_id} of queue {QUEUE!r} is not a sound schedule")
    return Schedule(**values, body=bytes(delivery.body), _engine=engine)


_LATEST = 253_402_300_799 * SECOND
"""The end of the year 9999, where datetimes end."""


def _is_sound(name: str, value: object) -> bool:
    """Return whether a schedule may have this value: others can also publish to the queue."""
    if name in ("start", "next", "cursor", "last"):
        return type(value) is int and 0 <= value <= _LATEST
    if name == "every":
        return isinstance(value, int | float) and 0.1 <= value <= 1e9
    if name == "headers":
        return isinstance(value, Mapping)
    if name == "paused":
        return isinstance(value, bool)
    return isinstance(value, str)


class _UnknownError(UsageError):
    """There is not a schedule of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}")


# -- changes --------------------------------------------------------------------------------------


def settle(engine: AnyEngine, delivery: Delivery) -> None:
    """Publish the due ticks of a schedule that was taken, and let it wait for its next instant.

    Raises :class:`StoreError`; the caller still has the delivery then.
    """
    now = wall_us()
    found = parse(delivery)
    follows, instants = found.due(now)
    if follows is found:
        delivery.nack(delay=found.delay(now), count=False)
        return
    try:
        _exchange(engine, delivery, found, instants, follows)
    except DuplicateError:
        # A program scheduled the name anew in the moment in which nothing held it. That schedule
        # goes on, and publishes the ticks that are due after its start.
        newer = _find(engine.queue(QUEUE), found.name)
        if newer is None:
            raise
        start = parse(newer)._start
        _exchange(engine, delivery, found, [one for one in instants if one <= start], None)


def _exchange(
    engine: AnyEngine,
    delivery: Delivery,
    found: Schedule,
    instants: Sequence[Microseconds],
    follows: Schedule | None,
) -> None:
    """Publish the ticks of a schedule that was taken, and replace its message by the next one: all
    of it or nothing."""
    now = wall_us()
    delay = None
    with engine.transaction() as tx:
        for at, instant in enumerate(instants):
            try:
                tx.publish(found.queue, **found._tick(instant))
            except QueueFullError:
                if not at or follows is None:
                    raise
                last = instants[at - 1]
                follows = replace(follows, _cursor=last, _next=instant, _last=last)
                delay = RETRY / SECOND
                break
        # The publish comes right after the ack, which frees the name.
        tx.ack(delivery)
        if follows is not None:
            tx.publish(QUEUE, **follows._message(now, delay))


def _change(
    engine: AnyEngine, name: str, how: Callable[[Schedule], Schedule | None]
) -> Schedule | None:
    """Put another schedule in the place of the one with this name, or none, and return it. Raises
    :class:`_UnknownError`."""
    queue = engine.queue(QUEUE)
    deadline = monotonic() + _PATIENCE
    while (found := _find(queue, name)) is not None:
        delivery = queue.get(seq_id=found.seq_id, lease=LEASE)
        if delivery is None:
            if monotonic() > deadline:
                raise StoreError(f"schedule {name!r} is held by another process: try again")
            sleep(_LOOK)
            continue
        try:
            known = parse(delivery)
            follows = how(known)
            _exchange(engine, delivery, known, (), follows)
        except DuplicateError:
            delivery.ack()  # as in settle(): the newer one is changed instead
        except BaseException:
            with suppress(StoreError):
                delivery.nack(delay=0, count=False)
            raise
        else:
            return follows
    raise _UnknownError(name)


def _find(queue: AnyQueue, name: str) -> Delivery | None:
    return _all(queue, name).get(name)


def _name_of(delivery: Delivery) -> object:
    kept = delivery.headers.get(_FIELDS)
    return kept.get("name") if isinstance(kept, Mapping) else None


def _all(queue: AnyQueue, name: str | None = None) -> dict[object, Delivery]:
    """Return all schedules by name, or at least the one with this name.

    A ticker holds a schedule for a moment, in which it is not found. So this looks again until
    nothing was held, or often enough where tickers are busy."""
    found: dict[object, Delivery] = {}
    deadline = monotonic() + _PATIENCE
    looks = 0
    while True:
        before = queue.stats()
        found |= {_name_of(one): one for one in queue.find(KEY, _ALL)}
        after = queue.stats()
        is_busy = before.delivered != after.delivered
        looks += is_busy
        is_whole = not (is_busy or before.unacked or after.unacked)
        if is_whole or name in found or looks == _LOOKS or monotonic() > deadline:
            return found
        sleep(_LOOK)


# -- the interface --------------------------------------------------------------------------------


class ScheduleOptions(TypedDict, total=False):
    """The options of :meth:`qindex.Engine.schedule`."""

    queue: Required[str]
    every: float | None
    body: Body
    key: str | None
    headers: Mapping[str, Any] | None
    timezone: str | None
    missed: Missed


def schedule(
    engine: AnyEngine,
    name: str,
    cron: str | None = None,
    *,
    queue: str,
    every: float | None = None,
    body: Body = b"",
    key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    timezone: str | None = None,
    missed: Missed = "once",
) -> Schedule:
    """See :meth:`qindex.Engine.schedule`."""
    _check_name(name, queue)
    _check_message(key, headers)
    cron, timezone = _checked_when(cron, every, timezone)
    if missed not in get_args(Missed):
        raise UsageError(f'missed must be "skip", "once" or "all", not {missed!r}')
    wanted = Schedule(
        name, queue, as_bytes(body), key, dict(headers or {}), cron, every, timezone, missed
    )
    fresh = wanted._from(wall_us())

    def follow(found: Schedule) -> Schedule:
        if found._when() != wanted._when():
            return replace(fresh, paused=found.paused)
        return replace(wanted, **{one: getattr(found, one) for one in _STATE})

    own = engine.queue(QUEUE)
    while True:
        delivery = _find(own, name)
        with suppress(_UnknownError):  # removed meanwhile
            if delivery is not None:
                found: Schedule | None = parse(delivery)
                if found is not None and found._defined() != wanted:
                    found = _change(engine, name, follow)
                assert found is not None
                return replace(found, _engine=engine)
            with suppress(DuplicateError):  # another process was first
                own.publish(**fresh._message(wall_us()))
                return replace(fresh, _engine=engine)
        sleep(_LOOK)


def schedules(engine: AnyEngine) -> dict[str, Schedule]:
    """See :meth:`qindex.Engine.schedules`."""
    return by_name(_all(engine.queue(QUEUE)).values(), engine)


def by_name(found: Iterable[Delivery], engine: AnyEngine | None = None) -> dict[str, Schedule]:
    """Return the schedules that messages are, in the order of their names."""
    # Beside a writer the message before is also seen for a moment: the later one counts.
    in_order = sorted(found, key=lambda one: one.seq_id)
    named = {}
    for each in in_order:
        with suppress(UsageError):  # the queue may also have other messages
            one = parse(each, engine)
            named[one.name] = one
    return dict(sorted(named.items()))


def _check_name(name: str, queue: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise UsageError(
            f"a schedule's name must be a str of 1 to {_LONGEST_NAME} characters, not {name!r}"
        )
    encoded(name, "a schedule's name")
    checked_name(queue)
    if queue == QUEUE:
        raise UsageError(f"queue {QUEUE!r} holds the schedules: publish to another one")


def _check_message(key: str | None, headers: Mapping[str, Any] | None) -> None:
    if key is not None and not isinstance(key, str):
        raise UsageError(f"a key must be a str, not {key!r}")
    if headers is not None and not isinstance(headers, Mapping):
        raise UsageError(f"headers must be a mapping, not {headers!r}")
    for name in (SCHEDULE_HEADER, INSTANT_HEADER):
        if name in (headers or ()):
            raise UsageError(f"header {name!r} is set by the schedule")


def _checked_when(
    cron: str | None, every: float | None, timezone: str | None
) -> tuple[str | None, str | None]:
    if (cron is None) == (every is None):
        raise UsageError("a schedule needs either a cron expression or every= (--every)")
    if cron is not None:
        zone(timezone or _UTC)
        return checked_cron(cron), timezone or _UTC
    if isinstance(every, bool) or not isinstance(every, int | float):
        raise UsageError(f"every must be a number of seconds, not {every!r}")
    if not _LEAST_SECONDS <= every <= _MAX_SECONDS:
        raise UsageError(f"every must be seconds from {_LEAST_SECONDS} to 1e9, not {every!r}")
    if timezone is not None:
        raise UsageError("every= counts the seconds that pass, and takes no timezone")
    return None, None
