"""A workload at work: an engine on a recording file system, and the book of what it promised.

A workload is data: steps, each a tuple of a method's name here and its arguments. A step that has
nothing to do (an ack without a delivery) does nothing, so that steps can be left out to find
the shortest sequence that fails.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import qindex
from qindex.engine.housekeeper import Housekeeper
from qindex.engine.opening import open_store
from qindex.queue.delivery import Delivery
from qindex.shelf.idle_queues import Roster
from tests.crash.ledger import Book, Message
from tests.memory_fs import MemoryFileSystem
from tests.recording_fs import RecordingFileSystem

__all__ = ["KINDS", "OPTIONS", "ROOT", "Driver", "Step", "Workload", "body_of", "record"]

ROOT = "/store"
"""Where the store is on the file system in memory."""

OPTIONS: dict[str, Any] = {
    "background": False,
    "segment_entry_count": 4,
    "embed_below": 1200,
    "store_file_bytes": 4096,
    "max_journal_entries": 1000,
}
"""Everything small, so that few actions cross every border."""

UNIQUE_KEYS = ("u1", "u2")

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "small": (24, {}),
    "long": (900, {}),
    "border": (419, {}),  # behind it a sector ends in the length of the next record
    "rich": (40, {"key": "k", "headers": {"n": 1}, "properties": {"p": "q"}}),
    "ttl": (24, {"ttl": 1e9}),
    "expired": (24, {"ttl": 0}),
    "transient": (24, {"persistent": False}),
    "stored": (1300, {}),
    "stored_rich": (1300, {"key": "k"}),
    "stored_ttl": (1300, {"ttl": 1e9}),
    "stored_expired": (1300, {"ttl": 0}),
    "stored_transient": (1300, {"persistent": False}),
    "later": (24, {"delay": 5e8}),
    "later_rich": (40, {"key": "k", "headers": {"n": 1}, "delay": 5e8}),
    "stored_later": (1300, {"delay": 5e8}),
    "unique": (24, {"unique": UNIQUE_KEYS[0]}),
    "stored_unique": (1300, {"unique": UNIQUE_KEYS[1]}),
    "middle": (24, {"priority": 1}),
    "high": (24, {"priority": 3}),
    "high_rich": (40, {"key": "k", "headers": {"n": 1}, "priority": 3}),
    "stored_high": (1300, {"priority": 3}),
}
"""Kinds of messages: bytes of the body, and what else publish gets."""
_NOT_LASTING = {"expired", "transient", "stored_expired", "stored_transient"}

Step = tuple[Any, ...]

_CLOCK = 1_700_000_000 * 10**9
_WAIT = 600_000_000 * 10**9
ALL_ARE_DUE = _CLOCK + _WAIT + 10**15
"""When a state is opened: all messages are due that were published with a delay."""
_LATER = 1 << 60


@dataclass(frozen=True)
class Workload:
    """``setup`` is done before anything is explored; ``patches``: constants of the engine, by
    their dotted names, to reach with few actions what takes many."""

    name: str
    steps: tuple[Step, ...]
    setup: tuple[Step, ...] = (("open",), ("queue", "a"))
    options: dict[str, Any] = field(default_factory=dict)
    patches: dict[str, Any] = field(default_factory=dict)


def body_of(number: int, kind: str) -> bytes:
    """Give the body of message ``number``: it tells number and kind, and has no zero bytes."""
    head = f"{number} {kind} ".encode()
    size = KINDS[kind][0]
    return (head + b"%d," % number * size)[:size]


class _FailedError(Exception):
    """Ends a transaction that is to be rolled back."""


class _ByHand(Housekeeper):
    """The housekeeper without its thread."""

    def _run(self) -> None:
        """End at once."""


class _Clock:
    """A clock that stands nearly still but for :meth:`Driver.do_wait`, in nanoseconds."""

    def __init__(self) -> None:
        self.now = _CLOCK

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Driver:
    """Carries out steps."""

    def __init__(self, fs: RecordingFileSystem, options: dict[str, Any]) -> None:
        self.fs = fs
        self.options = {**OPTIONS, **options}
        self.engine: qindex.Engine | None = None
        self.books: dict[str, Book] = {}
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self._number = 0
        self._transactions = 0
        self._each = self.options.get("durability") == "fsync"
        self.problems: list[str] = []
        self.clock = _Clock()

    def run(self, step: Step) -> None:
        """Carry out one step."""
        method: Callable[..., None] = getattr(self, f"do_{step[0]}")
        if self.engine is not None or step[0] in ("open", "close", "kill", "meanwhile"):
            method(*step[1:])

    def _note(self) -> None:
        self.fs.note({name: book.promise() for name, book in self.books.items()})

    def _queue(self, name: str) -> qindex.Queue:
        assert self.engine is not None
        if name not in self.books or self.books[name].deleted:
            self.do_queue(name)
        return self.engine.queue(name)

    # -- the engine -----------------------------------------------------------------------------

    def do_open(self) -> None:
        if self.engine is None:
            self.engine = open_store(ROOT, fs=self.fs, **self.options)
            for book in self.books.values():
                book.restarted()
            self._note()

    def do_close(self) -> None:
        if self.engine is None:
            return
        for book in self.books.values():
            for one in book.messages.values():
                if not one.lasting:
                    one.ready = False
            book.changed()
        self._note()
        done = [book.syncing() for book in self.books.values()]
        self.engine.close()
        self.engine = None
        self._deliveries.clear()
        for synced in done:
            synced()
        self._note()

    def do_reopen(self) -> None:
        self.do_close()
        self.do_open()

    def do_kill(self) -> None:
        """The process dies, and another one opens what it left."""
        self.engine = None
        self._deliveries.clear()
        self.fs.forget_descriptors()
        self.do_open()

    def do_sync(self) -> None:
        assert self.engine is not None
        done = [book.syncing() for book in self.books.values()]
        self.engine.sync()
        for synced in done:
            synced()
        self._note()

    def do_compact(self) -> None:
        assert self.engine is not None
        self.engine.compact()
        self._note()

    def do_meanwhile(self, *steps: Step) -> None:
        """Do the first step, and the others in the middle of it: at its first sync."""

        def others() -> None:
            # Another thread would wait for this sync where a flush became due; here that is the
            # same thread, so the flush is left for later, as one that has just failed.
            queues = [] if self.engine is None else list(self.engine._queues.values())
            for queue in queues:
                queue._parts.flusher._retry_at += _LATER
            try:
                for step in steps[1:]:
                    self.run(step)
            finally:
                for queue in queues:
                    queue._parts.flusher._retry_at -= _LATER

        for name in {step[1] for step in steps if len(step) > 1}:
            if self.engine is not None:
                self._queue(name)  # so that none is made in the middle of being made
        self.fs.at_next_sync = others
        try:
            self.run(steps[0])
        finally:
            self.fs.at_next_sync = None

    # -- queues ---------------------------------------------------------------------------------

    def do_queue(self, name: str, ttl: float | None = None, **settings: Any) -> None:
        assert self.engine is not None
        book = self.books.get(name)
        if book is None or book.deleted:
            self.books[name] = book = Book(moves_once=self._each)
            self._note()
        self.engine.queue(name, message_ttl=ttl, **settings)
        book.created = True
        book.changed()
        self._note()

    def do_delete(self, name: str) -> None:
        assert self.engine is not None
        book = self.books.get(name)
        if book is None or book.deleted:
            return
        book.created = False
        for one in book.messages.values():
            one.going = True
        book.changed()
        self._note()
        self.engine.delete_queue(name)
        book.deleted = True
        book.changed()
        self._note()

    def do_sync_queue(self, name: str) -> None:
        queue = self._queue(name)
        synced = self.books[name].syncing()
        queue.sync()
        synced()
        self._note()

    def do_flush(self, name: str) -> None:
        """Flush as the engine does by itself: nothing is promised of it."""
        self._queue(name)._parts.flusher.flush_now()
        self._note()

    def do_flush_durably(self, name: str) -> None:
        queue = self._queue(name)
        synced = self.books[name].syncing()
        queue.flush()
        synced()
        self._note()

    def do_flush_idle(self, name: str) -> None:
        """Flush as the background thread does with an idle queue."""
        self._housekeep(name, looks=(0.0, 2.0), budget=1 << 40)

    def do_flush_budget(self, name: str) -> None:
        """Flush as the background thread does when queues hold too much memory."""
        self._housekeep(name, looks=(0.0,), budget=0)

    def _housekeep(self, name: str, looks: tuple[float, ...], budget: int) -> None:
        roster = Roster(1, None)
        roster.admit(self._queue(name)._parts)
        keeper = _ByHand(roster, flush_idle=1.0, rest_idle=1e9, budget=budget)
        for moment in looks:
            keeper._look(moment)
        self._note()

    def do_rest(self, name: str) -> None:
        """Put a queue to rest: nothing is promised of it."""
        assert self.engine is not None
        queue = self._queue(name)
        if not self.engine._roster.put_to_rest(queue._parts):
            self.problems.append(f"queue {name} was not put to rest")
        self._note()

    def do_flush_rested(self) -> None:
        """Flush the queues at rest as the background thread does."""
        assert self.engine is not None
        keeper = _ByHand(self.engine._roster, flush_idle=1.0, rest_idle=1.0, budget=1 << 40)
        keeper._flush_rested(math.inf)
        self._note()

    def do_purge(self, name: str) -> None:
        queue = self._queue(name)
        going = self.books[name].ready()
        for one in going:
            one.offered = True  # a purge marks them as delivered, and then as acknowledged
        self._begin_end(name, going)
        queue.purge()
        self._end_end(name, going)

    # -- messages -------------------------------------------------------------------------------

    def _new(self, names: str, kind: str) -> list[Message]:
        self._number += 1
        made = []
        for name in names:
            priority = KINDS[kind][1].get("priority", 0)
            one = Message(self._number, kind not in _NOT_LASTING, priority=priority)
            self.books[name].messages[self._number] = one
            self.books[name].changed()
            made.append(one)
        return made

    def _published(self, names: str, messages: list[Message], kind: str, safe: bool) -> None:
        for one in messages:
            one.published = True
            one.safe |= safe
            one.ready = "expired" not in kind and "later" not in kind
            one.delayed = "later" in kind
        for name in names:
            self.books[name].changed()
        self._note()

    def do_publish(self, name: str, kind: str = "small", confirm: bool = False) -> None:
        queue = self._queue(name)
        (one,) = self._new(name, kind)
        self._note()
        body = body_of(one.number, kind)
        one.seq_id = queue.publish(body, confirm=confirm, **KINDS[kind][1])
        self._published(name, [one], kind, confirm or self._each)

    def do_publish_many(
        self, name: str, count: int, kind: str = "small", confirm: bool = False
    ) -> None:
        kind = _IN_BATCH.get(kind, kind)
        queue = self._queue(name)
        messages = [self._new(name, kind)[0] for _ in range(count)]
        self._note()
        bodies = [body_of(one.number, kind) for one in messages]
        options = {key: value for key, value in KINDS[kind][1].items() if key in _BATCH_OPTIONS}
        seqs = queue.publish_many(bodies, confirm=confirm, **options)
        for one, seq in zip(messages, seqs, strict=True):
            one.seq_id = seq
        self._published(name, messages, kind, confirm or self._each)

    def do_reserve(self, name: str, count: int) -> None:
        book = self.books[name]
        book.reserved = self._queue(name).reserve(count) + count
        book.changed()
        self._note()

    def do_publish_to(self, names: str, kind: str = "small", confirm: bool = False) -> None:
        assert self.engine is not None
        for name in names:
            self._queue(name)
        messages = self._new(names, kind)
        self._transactions += 1
        for one in messages:
            one.published_in = self._transactions
        self._note()
        body = body_of(messages[0].number, kind)
        seqs = self.engine.publish_to(list(names), body, confirm=confirm, **KINDS[kind][1])
        for one, seq in zip(messages, seqs, strict=True):
            one.seq_id = seq
        self._published(names, messages, kind, confirm or self._each)

    def do_get(self, name: str, most: int = 1) -> None:
        queue = self._queue(name)
        wanted = self.books[name].ready()[:most]
        for one in wanted:
            one.offered = True
        self.books[name].changed()
        self._note()
        given: list[Delivery] = []
        if most == 1:
            single = queue.get(timeout=0)
            given = [] if single is None else [single]
        else:
            given = list(queue.get_many(most))
        for one in wanted:
            one.delivered = True
            one.ready = False
        self.books[name].changed()
        numbers = [int(each.body.split(b" ", 1)[0]) for each in given]
        if numbers != [one.number for one in wanted]:
            self.problems.append(f"get gave {numbers}, not {[one.number for one in wanted]}")
        for number, each in zip(numbers, given, strict=True):
            self._deliveries[name, number] = each
        self._note()

    def _held(self, name: str, first: int, count: int) -> list[Message]:
        return [one for one in self.books[name].out() if (name, one.number) in self._deliveries][
            first : first + count
        ]

    def _begin_end(self, name: str, messages: list[Message]) -> None:
        for one in messages:
            one.going = True
            one.ready = False
        self.books[name].changed()
        self._note()

    def _end_end(self, name: str, messages: list[Message]) -> None:
        for one in messages:
            one.gone = True
            one.safely_gone |= self._each
        self.books[name].changed()
        self._note()

    def do_ack(self, name: str, first: int = 0, count: int = 1) -> None:
        """Acknowledge outstanding deliveries, one by one, from the ``first`` on."""
        queue = self._queue(name)
        for one in self._held(name, first, count):
            self._begin_end(name, [one])
            queue.ack(self._deliveries.pop((name, one.number)))
            self._end_end(name, [one])

    def do_ack_many(self, name: str, first: int = 0, count: int = 100) -> None:
        queue = self._queue(name)
        going = self._held(name, first, count)
        if going:
            self._begin_end(name, going)
            queue.ack_many([self._deliveries.pop((name, one.number)) for one in going])
            self._end_end(name, going)

    def do_ack_up_to(self, name: str, count: int = 1) -> None:
        queue = self._queue(name)
        going = self._held(name, 0, count)
        if going and going[-1].seq_id is not None:
            self._begin_end(name, going)
            queue.ack_up_to(going[-1].seq_id)
            for one in going:
                del self._deliveries[name, one.number]
            self._end_end(name, going)

    def do_reject(self, name: str, first: int = 0) -> None:
        """Give a delivery back for good."""
        queue = self._queue(name)
        for one in self._held(name, first, 1):
            self._begin_end(name, [one])
            queue.reject(self._deliveries.pop((name, one.number)))
            self._end_end(name, [one])

    def do_requeue(self, name: str, first: int = 0, count: int = 1) -> None:
        queue = self._queue(name)
        for one in self._held(name, first, count):
            queue.nack(self._deliveries.pop((name, one.number)))
            one.ready = True
        self._note()

    # -- transactions ---------------------------------------------------------------------------

    def do_transact(
        self,
        targets: str,
        source: str = "a",
        count: int = 1,
        kind: str = "small",
        fails: bool = False,
        meanwhile: tuple[Step, ...] = (),
    ) -> None:
        """Publish to each of the targets, and acknowledge outstanding deliveries, as one."""
        assert self.engine is not None
        for name in {*targets, source}:
            self._queue(name)
        held = self._held(source, 0, count)
        books = [self.books[name] for name in {*targets, source}]
        made: list[Message] = []
        self._transactions += 1

        def changed() -> None:
            for book in books:
                book.changed()
            self._note()

        with suppress(_FailedError), self.engine.transaction() as transaction:
            for name in targets:
                (one,) = self._new(name, kind)
                one.going = one.gone = True  # nobody sees it, whatever comes
                made.append(one)
                self._note()
                body = body_of(one.number, kind)
                one.seq_id = transaction.publish(name, body, **KINDS[kind][1])
                changed()
            for one in held:
                transaction.ack(self._deliveries[source, one.number])
            for step in meanwhile:
                self.run(step)
            if fails:
                for one in made:
                    one.offered = True  # a rollback marks it as delivered, and then as acknowledged
                changed()
                raise _FailedError
            for one in made:
                one.going, one.gone = False, kind in _NOT_LASTING
                one.published_in = self._transactions
            for one in held:
                one.going, one.acked_in = True, self._transactions
            changed()
        if fails:
            for one in made:
                one.safely_gone |= self._each
            changed()
            return
        for one in held:
            del self._deliveries[source, one.number]
            one.gone = True
            one.safely_gone |= self._each
        for one in made:
            one.published = one.ready = True
            one.safe |= self._each
        changed()

    # -- delays ---------------------------------------------------------------------------------

    def do_postpone(self, name: str, first: int = 0, count: int = 1) -> None:
        """Give deliveries back with a delay."""
        queue = self._queue(name)
        for one in self._held(name, first, count):
            one.delayed = True
            self.books[name].changed()
            self._note()
            queue.nack(self._deliveries.pop((name, one.number)), delay=5e8)
        self._note()

    def do_cancel(self, name: str, first: int = 0) -> None:
        """Cancel a message that was never delivered, delayed or not."""
        queue = self._queue(name)
        every = self.books[name].messages.values()
        waiting = [one for one in every if one.published and not one.offered and not one.going]
        for one in waiting[first : first + 1]:
            assert one.seq_id is not None
            one.offered = True  # it is marked as delivered, and then as acknowledged
            self._begin_end(name, [one])
            if not queue.cancel(one.seq_id):
                self.problems.append(f"message {one.number} was not cancelled")
            self._end_end(name, [one])

    def do_wait(self) -> None:
        """Let all delayed messages become due: they come after all that were published before."""
        self.clock.now += _WAIT
        for book in self.books.values():
            for one in book.messages.values():
                if one.delayed and not one.going and (one.published or one.offered):
                    one.rank = self._number + 0.5
                    one.ready = True
            book.changed()
        if self.engine is not None:
            for queue in self.engine._queues.values():
                later = queue._parts.state.later
                if later is not None:
                    later.on_alarm()
        self._note()

    # -- dead letters, leases, limits -----------------------------------------------------------

    def do_limited(self, name: str, settings: tuple[tuple[str, Any], ...]) -> None:
        """Make a queue with settings."""
        self.do_queue(name, **dict(settings))

    def _begin_move(self, name: str, target: str, messages: list[Message]) -> list[Message]:
        letters = []
        for one in messages:
            one.going, one.ready, one.moved_to, one.offered = True, False, target, True
            letter = self.books[target].messages.setdefault(one.number, Message(one.number, True))
            letter.is_letter = True
            letters.append(letter)
        self.books[name].changed()
        self.books[target].changed()
        self._note()
        return letters

    def _end_move(self, name: str, target: str, letters: list[Message]) -> None:
        assert self.engine is not None
        first = self.engine.queue(target).stats().next_seq_id - len(letters)
        for at, letter in enumerate(letters):
            letter.seq_id, letter.published, letter.ready = first + at, True, True
            letter.safe |= self._each
        moved = [self.books[name].messages[letter.number] for letter in letters]
        self.books[target].changed()
        self._end_end(name, moved)

    def do_dead(self, name: str, target: str, first: int = 0, count: int = 1) -> None:
        """Reject outstanding deliveries: they go to the dead-letter queue."""
        queue = self._queue(name)
        for one in self._held(name, first, count):
            letters = self._begin_move(name, target, [one])
            queue.reject(self._deliveries.pop((name, one.number)))
            self._end_move(name, target, letters)

    def do_move(self, name: str, target: str, first: int = 0, count: int = 1) -> None:
        """Move outstanding deliveries to another queue."""
        queue = self._queue(name)
        for one in self._held(name, first, count):
            letters = self._begin_move(name, target, [one])
            queue.move(self._deliveries.pop((name, one.number)), target)
            self._end_move(name, target, letters)

    def do_dead_together(self, name: str, target: str, count: int) -> None:
        """Reject outstanding deliveries as those who come at a time do: with one move."""
        queue = self._queue(name)
        held = self._held(name, 0, count)
        letters = self._begin_move(name, target, held)
        nacks = [(self._deliveries.pop((name, one.number)), False) for one in held]
        assert not any(queue._settler.give_back_together(nacks))
        self._end_move(name, target, letters)

    def do_overflow(self, name: str, target: str, count: int = 1, kind: str = "small") -> None:
        """Publish to a full queue, whose oldest messages go to the dead-letter queue."""
        heads = self.books[name].ready()[:count]
        letters = self._begin_move(name, target, heads)
        self.do_publish_many(name, count, kind)
        self._end_move(name, target, letters)

    def do_expire(self, name: str, target: str, count: int) -> None:
        """Publish messages whose time is up at once: the timer moves them to the dead-letter
        queue."""
        queue = self._queue(name)
        messages = [self._new(name, "small")[0] for _ in range(count)]
        letters = self._begin_move(name, target, messages)
        bodies = [body_of(one.number, "small") for one in messages]
        for one, seq in zip(messages, queue.publish_many(bodies, ttl=0), strict=True):
            one.seq_id, one.published, one.safe = seq, True, self._each
        self.books[name].changed()
        self._note()
        queue._parts.producer._expirer.on_alarm()
        self._end_move(name, target, letters)

    def do_get_last(self, name: str, target: str) -> None:
        """Take a message for the last time: after a crash it goes to the dead-letter queue."""
        queue = self._queue(name)
        for one in self.books[name].ready()[:1]:
            self._begin_move(name, target, [one])
            delivery = queue.get(0)
            assert delivery is not None
            self._deliveries[name, one.number] = delivery
        self._note()

    def do_give_up(self, name: str, target: str) -> None:
        """Requeue what was taken for the last time."""
        queue = self._queue(name)
        for one in list(self.books[name].messages.values()):
            delivery = self._deliveries.pop((name, one.number), None)
            if delivery is not None and one.moved_to:
                queue.nack(delivery)
                self._end_move(name, target, [self.books[target].messages[one.number]])

    def do_lease(self, name: str) -> None:
        """Take a message, and let its lease end."""
        queue = self._queue(name)
        wanted = self.books[name].ready()[:1]
        for one in wanted:
            one.offered = True
        self.books[name].changed()
        self._note()
        if queue.get(0, lease=1e6) is None:
            return
        for one in wanted:
            one.delivered = True
        self.books[name].changed()
        for lease in queue._parts.state.leases.due(1e12):
            lease.ends = 0.0
            queue._parts.state.leases.add(lease)
        queue._settler.on_alarm()
        self._note()

    def do_consume(self, name: str, count: int = 100) -> None:
        """Take and acknowledge."""
        self.do_get(name, count)
        self.do_ack_many(name, 0, count)


_BATCH_OPTIONS = ("ttl", "persistent", "delay", "priority")
_IN_BATCH = {"rich": "small", "stored_rich": "stored", "later_rich": "later"}
"""A batch has neither keys nor headers."""


@contextmanager
def _repeatable(patches: dict[str, Any], clock: Callable[[], int]) -> Iterator[None]:
    """Have random bytes and the clock give the same in each run."""
    chance = random.Random(1)
    with ExitStack() as stack:
        stack.enter_context(mock.patch("os.urandom", chance.randbytes))
        for module in (
            "queue.producing",
            "engine.transactions",
            "queue.run_clock",
            "queue.dead_letter",
        ):
            stack.enter_context(mock.patch(f"qindex.{module}.time_ns", clock))
        # Compiled, single publishes read the clock without a function that could be replaced.
        stack.enter_context(mock.patch("journal.memory.words.now_ns", clock))
        # No thread, no clock: what is due is done by hand.
        stack.enter_context(mock.patch("qindex.queue.timer.Alarm.set"))
        for name, value in patches.items():
            stack.enter_context(mock.patch(name, value))
        yield


def record(workload: Workload) -> tuple[RecordingFileSystem, Driver]:
    """Run a workload; gives the recording of its steps, with the promises as notes."""
    memory = MemoryFileSystem()
    fs = RecordingFileSystem("/", memory)
    driver = Driver(fs, workload.options)
    with _repeatable(workload.patches, driver.clock):
        for step in workload.setup:
            driver.run(step)
        fs.settle()
        driver._note()
        for step in workload.steps:
            driver.run(step)
    fs.forget_descriptors()
    driver.engine = None
    return fs, driver
