"""A priority queue: several levels under the parts that its users know.

Each level is a queue of its own on disk, with an index, a journal and due times of its own. All
levels share one lock, the bells and the limits (:class:`qindex.queue.state.QueueState`). The parts
here choose the level of a call, and turn the seq_ids of a level into those of the whole queue
(:mod:`qindex.format.priorities`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import reduce
from operator import add, attrgetter
from typing import Any

from journal.durations import NO_DURATIONS, Durations, Stopwatch
from journal.errors import DamageError, StoreError, UsageError
from qindex.format.headers import Until
from qindex.format.message import Body, Message, as_bytes
from qindex.format.priorities import LOW, PROPERTY, SHIFT, priority_of
from qindex.format.settings import QueueSettings
from qindex.queue.dead_letters import DeadLetters, Mover
from qindex.queue.delivering import Deliverer
from qindex.queue.delivery import Batch, Delivery, MixedBatch, parts_of
from qindex.queue.flushing import Flusher, close_together
from qindex.queue.limits import Limits
from qindex.queue.outstanding import Outstanding
from qindex.queue.parts import QueueParts
from qindex.queue.producing import Producer
from qindex.queue.room import Room
from qindex.queue.settling import Settler, Sync
from qindex.queue.state import QueueState
from qindex.queue.stats import ByReason, QueueStats


class PriorityParts(QueueParts):
    """The parts of a priority queue.

    ``made``: its levels by priority; there is one for priority 0. ``make``: makes the missing level
    of a priority, or returns the level that another thread has made meanwhile. It takes the
    engine's lock.
    """

    __slots__ = ("_by_priority", "_levels", "_make")

    deliverer: PriorityDeliverer
    producer: PriorityProducer

    def __init__(self, made: Mapping[int, QueueParts], make: Callable[[int], QueueParts]) -> None:
        first = made[0]
        self._make = make
        self._by_priority = dict(made)
        self.state: QueueState = first.state
        self.letters: DeadLetters = first.letters
        self.flusher: Flusher = PriorityFlusher(self)
        self.room: Room = PriorityRoom(self)
        self.settler: Settler = PrioritySettler(self)
        self.deliverer = PriorityDeliverer(self)
        self.producer = PriorityProducer(self)
        self._levels: tuple[QueueParts, ...] = ()
        self._arrange()

    def _arrange(self) -> None:
        """Take up the levels that there are. Nobody else may do so meanwhile."""
        in_order = sorted(self._by_priority.items(), reverse=True)
        levels = tuple(level for _, level in in_order)
        for level in levels:
            level.producer.room = self.room
            if level.state not in self._states():
                self._states().append(level.state)
        self.state.count_ready_bytes()
        self._levels = levels
        self.deliverer.levels = tuple(level.deliverer for level in levels)
        self.producer.known = [
            self._by_priority[priority].producer if priority in self._by_priority else None
            for priority in range(self.max_priority + 1)
        ]

    def _states(self) -> list[QueueState]:
        assert self.state.levels is not None
        return self.state.levels

    def add(self, priority: int, level: QueueParts) -> None:
        """Take up a level that was just made. The engine's lock is held."""
        with self.state.lock:
            self._by_priority[priority] = level
            self._arrange()

    def change_settings(self, settings: QueueSettings) -> None:
        self.state.change_settings(settings)
        with self.state.lock:
            self._arrange()

    def made(self, priority: int) -> QueueParts | None:
        """Return the level of a priority, if there is one."""
        return self._by_priority.get(priority)

    @property
    def max_priority(self) -> int:
        """The highest priority that a message may have."""
        return self.state.settings.max_priority or 0

    @property
    def levels(self) -> Sequence[QueueParts]:
        """The levels, the highest first."""
        return self._levels

    def level(self, priority: int) -> QueueParts:
        """Return the level of a priority, which is made if there is none. No lock is held."""
        return self._by_priority.get(priority) or self._make(priority)

    def level_for(self, message: Message) -> QueueParts:
        """Return the level that a message belongs to. No lock is held."""
        return self.level(priority_of(message.properties, self.max_priority))

    def place(self, message: Message, priority: int | None) -> tuple[QueueParts, Message]:
        if priority is not None:
            message = with_priority(message, self.checked(priority))
        return self.level_for(message), message

    def level_at(self, seq_id: int) -> QueueParts | None:
        """Return the level that has given out a seq_id, if there is one."""
        return self._by_priority.get(seq_id >> SHIFT)

    def checked(self, priority: int) -> int:
        """Return a priority that a publish asks for. Raises :class:`UsageError`."""
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise UsageError(f"priority must be an integer, not {priority!r}")
        if not 0 <= priority <= self.max_priority:
            raise UsageError(
                f"priority must be 0 to {self.max_priority} in queue {self.state.name!r} "
                f"(max_priority), not {priority}"
            )
        return priority

    def find(self, key: str, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        with self.state.lock, ExitStack() as stack:
            for level in self._levels:
                stack.enter_context(level.state)
                found += level.finder.find(key, most - len(found))
        return found

    def work_of_find(self, key: str) -> int:
        with self.state.lock:
            return sum(level.finder.work(key) for level in self._levels)

    def ready(self) -> int:
        """Count the messages that are ready, of all priorities."""
        return sum(level.ready() for level in self._levels)

    def out(self) -> int:
        """Count the messages that are with consumers, of all priorities."""
        return sum(level.out() for level in self._levels)

    def sync_all(self) -> None:
        """Make messages and journals durable."""
        for level in self._levels:
            level.sync_all()

    def close(self) -> None:
        """Close all levels."""
        close_together([level.flusher for level in self._levels])

    def is_in_call_here(self) -> bool:
        """Return whether the calling thread is in the middle of a call on this queue."""
        return any(level.is_in_call_here() for level in self._levels)

    def purge(self) -> int:
        return sum(level.purge() for level in self._levels)

    def stats(self) -> QueueStats:
        with self.state.lock, ExitStack() as stack:
            for level in self._levels:
                stack.enter_context(level.state)
            by_priority = {level.state.base >> SHIFT: level.stats_held() for level in self._levels}
        return _added(by_priority, self.max_priority)


def _added(levels: Mapping[int, QueueStats], highest: int) -> QueueStats:
    """Add the figures of the levels of one queue."""
    every = list(levels.values())

    def total(name: str) -> int:
        return sum(map(attrgetter(name), every))

    def reasons(name: str) -> ByReason:
        found: list[ByReason] = [getattr(one, name) for one in every]
        return ByReason(
            rejected=sum(one.rejected for one in found),
            expired=sum(one.expired for one in found),
            limit=sum(one.limit for one in found),
            overflow=sum(one.overflow for one in found),
        )

    def durations(name: str) -> Durations:
        return reduce(add, map(attrgetter(name), every), NO_DURATIONS)

    counts: dict[str, Any] = {name: total(name) for name in _COUNTS}
    ready = Counter({priority: one.ready for priority, one in levels.items()})
    dues = [one.next_due for one in every if one.next_due is not None]
    return replace(
        levels[0],
        **counts,
        next_due=min(dues, default=None),
        flush_durations=durations("flush_durations"),
        sync_durations=durations("sync_durations"),
        given_up=reasons("given_up"),
        dead_letters=reasons("dead_letters"),
        ready_by_priority=tuple(ready[priority] for priority in range(max(highest, *levels) + 1)),
    )


_COUNTS = (
    "ready",
    "delayed",
    "pending",
    "unacked",
    "segments",
    "segment_bytes",
    "journal_bytes",
    "journal_entries",
    "published",
    "acked",
    "flushes",
    "flushed_bytes",
    "journal_syncs",
    "delivered",
    "requeued",
    "dropped",
    "redelivered",
    "refused",
)


class PriorityProducer(Producer):
    """Publishes each message to the level of its priority."""

    def __init__(self, parts: PriorityParts) -> None:
        first = parts.level(0).producer
        super().__init__(first.state, first._flusher, parts.room, first._expirer)
        self._parts = parts
        # Those of the levels, by priority; None where there is none yet.
        self.known: list[Producer | None] = [first]

    def _of(self, priority: int) -> Producer:
        """Return what publishes messages of a priority. Raises :class:`UsageError`."""
        known = self.known
        at = priority if type(priority) is int else -1
        if 0 <= at < len(known):
            producer = known[at]
            if producer is not None:
                return producer
        return self._parts.level(self._parts.checked(priority)).producer

    def publish(
        self,
        body: Body | Message,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        delay: float | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        window: float | None = None,
        until: Until = "acked",
        priority: int | None = None,
    ) -> int:
        """Publish a message with a priority, which its record has among its properties. None: with
        that of its properties."""
        given = body.properties if isinstance(body, Message) else properties
        if priority is not None:
            producer = self._of(priority)
            if isinstance(body, Message):
                body = with_priority(body, priority)
            elif properties and isinstance(properties, Mapping):
                properties = properties_with(properties, priority)
        elif given and isinstance(given, Mapping):
            parts = self._parts
            producer = parts.level(priority_of(given, parts.max_priority)).producer
        else:
            producer = self._of(0)
        seq = producer.publish(
            body,
            key,
            headers,
            properties,
            ttl,
            persistent,
            confirm,
            delay,
            at,
            unique,
            window,
            until,
            None,
        )
        return producer.state.base + seq

    def publish_many(
        self,
        messages: Iterable[Body | Message],
        *,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        delay: float | None = None,
        at: datetime | None = None,
        priority: int | None = None,
    ) -> range:
        parts = self._parts
        given: Sequence[Body | Message] = list(messages)
        if priority is not None:
            parts.checked(priority)
            if any(isinstance(one, Message) for one in given):
                given = [
                    with_priority(
                        one if isinstance(one, Message) else Message(as_bytes(one)), priority
                    )
                    if isinstance(one, Message | Body)
                    else one
                    for one in given
                ]
        else:
            priority = self._common(given)
        level = parts.level(priority)
        seqs = level.producer.publish_many(
            given,
            ttl=ttl,
            persistent=persistent,
            confirm=confirm,
            delay=delay,
            at=at,
        )
        base = level.state.base
        return range(base + seqs.start, base + seqs.stop)

    def _common(self, given: Sequence[Body | Message]) -> int:
        """Return the priority of all these messages. Raises :class:`UsageError`."""
        highest = self._parts.max_priority
        first = 0
        for at, one in enumerate(given):
            priority = 0
            if isinstance(one, Message) and one.properties:
                priority = priority_of(one.properties, highest)
            if not at:
                first = priority
            elif priority != first:
                raise UsageError(
                    f"message {at} of the batch has priority {priority}, and message 0 has "
                    f"{first}: publish_many takes messages of one priority in a call"
                )
        return first


def with_priority(message: Message, priority: int) -> Message:
    """Return a message with a priority among its properties."""
    properties = properties_with(message.properties, priority)
    return message if properties is message.properties else replace(message, properties=properties)


def properties_with(properties: Mapping[str, Any], priority: int) -> Mapping[str, Any]:
    """Return properties with a priority among them; 0 is that of a message without any."""
    if properties.get(PROPERTY, 0) == priority:
        return properties  # those that a node wrote keep their types
    return {**properties, PROPERTY: priority}


class PriorityDeliverer(Deliverer):
    """Hands out the messages of the highest level that has any that is ready."""

    def __init__(self, parts: PriorityParts) -> None:
        first = parts.level(0)
        super().__init__(
            first.state, first.flusher, first.letters.reader, first.letters, first.settler
        )
        self._parts = parts
        # Those of the levels, the highest first.
        self.levels: tuple[Deliverer, ...] = (first.deliverer,)

    def get(self, lease: float | None = None) -> Delivery | None:
        """Take the first message of the highest level that has one."""
        for level in self.levels:
            state = level.state
            index = state.index
            # Try the level of priority 0 in any case: it raises if the queue is closed.
            if index.has_any() or not state.base or level._owed is not None or index.changing:
                given = level.get(lease)
                if given is not None:
                    given.seq_id += state.base
                    return given
                if level.is_crowded():
                    break  # it may have a message after those that have expired
        return None

    def is_crowded(self) -> bool:
        return any(level.is_crowded() for level in self.levels)

    def get_many(self, most: int, *, lease: float | None = None) -> Batch:
        """Take messages of the highest level that has any, and of those below while there is room.
        An error ends the batch before its message, which raises it at the next call."""
        parts: list[Batch] = []
        count = 0
        for level in self.levels:
            state = level.state
            # As for one message, try the level of priority 0 in any case.
            if state.base and not (state.index.has_any() or level._owed or state.index.changing):
                continue
            if parts and count == most:
                break
            try:
                batch = level.get_many(most - count, lease=lease)
            except StoreError as error:
                if not parts:
                    raise
                if isinstance(error, DamageError):
                    level._owed = error
                break
            batch._base = state.base
            if batch or not (parts or state.base):
                parts.append(batch)
                count += len(batch)
            if level.is_crowded():
                break
        return parts[0] if len(parts) == 1 else MixedBatch(parts)

    def peek(self, most: int) -> list[Delivery]:
        seen: list[Delivery] = []
        for level in self.levels:
            found = level.peek(most - len(seen) if isinstance(most, int) else most)
            for one in found:
                one.seq_id += level.state.base
            seen += found
        return seen

    def drain(self) -> None:
        """Hand out no more messages."""
        for level in self.levels:
            level.state.draining = True
        self.wake_consumers()

    def take_last(self) -> Delivery | None:
        """Refuse: a priority queue is not a stack."""
        raise UsageError(f"queue {self.state.name!r} has priorities: it can't be used as a stack")

    def peek_last(self) -> bytes | None:
        """Refuse, as :meth:`take_last`."""
        raise UsageError(f"queue {self.state.name!r} has priorities: it can't be used as a stack")

    def take_at(self, seq: int, *, lease: float | None = None) -> Delivery | None:
        """See :meth:`qindex.Queue.get`, of the message with a seq_id."""
        level = self._parts.level_at(seq) if isinstance(seq, int) else self._parts.level(0)
        if level is None:
            return None
        seq = seq & LOW if isinstance(seq, int) else seq
        given = level.deliverer.take_at(seq, lease=lease)
        if given is not None:
            given.seq_id += level.state.base
        return given


class PrioritySettler(Settler):
    """Settles each delivery in the level that it is from."""

    def __init__(self, parts: PriorityParts) -> None:
        first = parts.level(0)
        self.name: str = first.state.name
        self.outstanding: Outstanding = first.settler.outstanding
        self.state: QueueState = first.state
        self._flusher = first.flusher
        self.letters: DeadLetters = first.letters
        self.mover: Mover = first.letters.mover
        self._parts = parts

    def _of(self, delivery: Delivery) -> Settler:
        """Return the level of a delivery. For another object, a level that raises its error."""
        seq_id = getattr(delivery, "seq_id", 0)
        return (self._parts.level_at(seq_id) or self._parts.level(0)).settler

    def _grouped(self, deliveries: Iterable[Delivery]) -> dict[Settler, list[Delivery]]:
        groups: dict[Settler, list[Delivery]] = {}
        for delivery in deliveries:
            groups.setdefault(self._of(delivery), []).append(delivery)
        return groups

    def ack(self, delivery: Delivery) -> Sync:
        return self._of(delivery).ack(delivery)

    def ack_many(self, deliveries: Iterable[Delivery]) -> Sync:
        """See :meth:`qindex.Queue.ack_many`. One write for each priority."""
        groups: dict[Settler, Iterable[Delivery]] = {}
        if isinstance(deliveries, Batch):
            # Deliveries of another queue are refused by the level that has their priorities here.
            for part in parts_of(deliveries):
                level = self._parts.level_at(part._base) or self._parts.level(0)
                groups[level.settler] = part
        else:
            groups.update(self._grouped(deliveries))
        if len(groups) < 2:
            due = None
            for settler, listed in groups.items():
                due = settler.ack_many(listed)
            return due
        state = self.state
        state.check_sync()
        with state.lock, ExitStack() as stack:
            for settler in groups:
                stack.enter_context(settler.state)
            found = [
                (settler, settler.outstanding.seq_ids_of(listed))
                for settler, listed in groups.items()
            ]
            for settler, seqs in found:
                settler.outstanding.ack_all(seqs)
                settler._flusher.tick()
        if not state.sync_each:
            return None

        def sync() -> None:
            for settler in groups:
                settler.state.sync_journal()

        return sync

    def ack_up_to(self, seq_id: int) -> int:
        """See :meth:`qindex.Queue.ack_up_to`: of the priority of this seq_id."""
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise UsageError(f"a seq_id is an int, not {seq_id!r}")
        level = self._parts.level_at(seq_id)
        return 0 if level is None else level.settler.ack_up_to(seq_id & LOW)

    def is_out(self, seq_id: int, taken: int | None = None) -> bool:
        level = self._parts.level_at(seq_id)
        return level is not None and level.settler.is_out(seq_id, taken)

    def has_lapsed(self, seq_id: int, taken: int) -> bool:
        level = self._parts.level_at(seq_id)
        return level is not None and level.settler.has_lapsed(seq_id, taken)

    def nack(
        self,
        delivery: Delivery,
        delay: float | None = None,
        count: bool = True,
    ) -> Sync:
        return self._of(delivery).nack(delivery, delay, count)

    def reject(self, delivery: Delivery, reason: str | None = None) -> Sync:
        return self._of(delivery).reject(delivery, reason)

    def move(
        self,
        delivery: Delivery,
        queue: str,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        self._of(delivery).move(delivery, queue, headers, delay)

    def cancel(self, seq_id: int) -> bool:
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise UsageError(f"a seq_id is an int, not {seq_id!r}")
        level = self._parts.level_at(seq_id)
        return level is not None and level.settler.cancel(seq_id & LOW)

    def give_back_together(self, asked: Sequence[tuple[Delivery, bool]]) -> list[StoreError | None]:
        found: list[StoreError | None] = [None] * len(asked)
        groups: dict[Settler, list[int]] = {}
        for at, (delivery, _) in enumerate(asked):
            groups.setdefault(self._of(delivery), []).append(at)
        for settler, places in groups.items():
            failures = settler.give_back_together([asked[at] for at in places])
            for at, failure in zip(places, failures, strict=True):
                found[at] = failure
        return found

    def forgive(self, deliveries: Iterable[Delivery]) -> None:
        for settler, listed in self._grouped(deliveries).items():
            settler.forgive(listed)

    def take_back_uncounted(self, deliveries: Iterable[Delivery]) -> None:
        for settler, listed in self._grouped(deliveries).items():
            settler.take_back_uncounted(listed)

    def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        self._of(delivery).extend_lease(delivery, seconds)


class PriorityFlusher(Flusher):
    """Flushes and syncs all levels."""

    def __init__(self, parts: PriorityParts) -> None:
        first = parts.level(0).flusher
        self.state: QueueState = first.state
        self.request: Callable[[Flusher], bool] | None = first.request
        self.mover: Mover = first.mover
        self.times: Stopwatch = first.times
        self.max_dirty: int = first.max_dirty
        self._parts = parts

    def is_due(self) -> bool:
        """Return whether a flush of any level is due."""
        return any(level.flusher.is_due() for level in self._parts.levels)

    def is_pressed(self) -> bool:
        """Return whether publishers wait for the flush of any level."""
        return any(level.flusher.is_pressed() for level in self._parts.levels)

    def flush(self) -> None:
        """Flush all levels, with all that returned before durable on return."""
        with self.state.calls.here():
            for level in self._parts.levels:
                level.flusher.flush()

    def flush_now(self) -> None:
        """Flush all levels. The emptied journals need not be durable where their records were
        not."""
        for level in self._parts.levels:
            level.flusher.flush_now()

    def sync(self) -> None:
        """Make all that returned before durable against power loss."""
        with self.state.calls.here():
            self.state.lock.check()
            self.mover.settle()
            for level in self._parts.levels:
                level.flusher.seal_and_sync()

    def unflushed(self) -> tuple[int, int]:
        """Return the sums of :meth:`qindex.queue.flushing.Flusher.unflushed`."""
        found = [level.flusher.unflushed() for level in self._parts.levels]
        return sum(one[0] for one in found), sum(one[1] for one in found)


class PriorityRoom(Room):
    """Allots the room of all levels together."""

    def __init__(self, parts: PriorityParts) -> None:
        self.state: QueueState = parts.state
        self._parts = parts

    @property
    def _letters(self) -> DeadLetters:  # type: ignore[override]
        """The dead letters that can't be moved."""
        stuck = (one.letters for one in self._levels if one.letters.stuck)
        return next(stuck, self._levels[-1].letters)

    @property
    def _levels(self) -> Sequence[QueueParts]:
        return self._parts.levels

    def is_stuck(self) -> bool:
        """Return whether nothing can be dropped now: the dead-letter queue is full."""
        return any(level.letters.stuck for level in self._levels)

    def owe_letters(self) -> None:
        """Note that the dropped messages go to the dead-letter queue."""
        for level in self._levels:
            level.letters.owe()

    def drop_some(self, limits: Limits) -> bool:
        """Drop the oldest messages of the lowest priority that has any. Lock held."""
        for level in reversed(self._levels):
            with level.state:
                if level.state.inside() and level.room.drop_some(limits):
                    return True
        return False
