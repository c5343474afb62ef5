"""The state of one queue, which its parts share: what produces, delivers, settles and flushes."""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Container, Iterable, Iterator
from types import TracebackType
from typing import Protocol

from journal.errors import ClosedError, StoreError, UsageError
from journal.locks.call_lock import refuse_twice
from journal.locks.calls import Calls
from journal.locks.lock_order import Rank
from journal.locks.patience import PatientLock
from qindex.format.entries import Entry
from qindex.format.headers import DUE_FILE, KEYS_FILE
from qindex.format.message_record import NOTHING, encode_middle, plain_body_size
from qindex.format.priorities import SHIFT, properties_of
from qindex.format.publish_records import tails_of
from qindex.format.settings import QueueSettings
from qindex.index.messages import Messages
from qindex.index.queue_index import QueueIndex
from qindex.options import Options
from qindex.queue.limits import Limits
from qindex.queue.notes.delays import DueTimes
from qindex.queue.notes.delivery_counts import DeliveryCounts
from qindex.queue.notes.entry_note import EntryNote
from qindex.queue.notes.leases import Leases
from qindex.queue.notes.unique_keys import UniqueKeys
from qindex.queue.stats import Tally
from qindex.queue.timer import Alarm
from qindex.queue.wake_ups import Bell

_MAX_LAPSED = 10_000
"""Messages that have gone of which a queue remembers that a lease of theirs ran out."""
LOOK_AGAIN = 1.0
"""Seconds after which a call that waits for a flush looks whether it is over: a flush that a
signal's handler has cut short may not have told."""


class Debt(Protocol):
    """Work that a call of the core has found due, and has not done: the core never waits.

    The call notes it in :attr:`QueueState.owed`. Whoever made the call pays it once no lock is
    held: a thread by :meth:`QueueState.catch_up`, a loop through its helper or the engine's
    threads.
    """

    def pay(self) -> list[Debt]:
        """Do it, or wait until it is done; return what that owes in its turn. The calling thread
        holds no lock."""

    def is_asked_for(self) -> bool:
        """Ask a thread of the engine to do it; false where there is none."""

    def pressing(self) -> QueueState | None:
        """Return the queue whose ``flushed`` bell callers are to wait for, because the work has
        fallen too far behind. None if nobody need wait."""


class QueueState:
    """One queue. ``index.live - index.out`` messages are ready, ``index.out`` with consumers.

    A critical section is ``with state.lock, state:``. The lock is given back by a function in C, so
    that no signal's handler can raise in its stead. If an exception other than :class:`StoreError`
    ends the block (Ctrl-C, no memory), the work may be half done. Then the next thread that takes
    the lock reads the queue again from its journal, before anything else. The calls for single
    messages do the same by :meth:`take` and :meth:`leave`.
    """

    __slots__ = (
        "__weakref__",
        "alarm",
        "arrived",
        "base",
        "calls",
        "check_mask",
        "counts",
        "delivery_limit",
        "draining",
        "first_seq",
        "flushed",
        "flushing",
        "id_high",
        "incarnation",
        "index",
        "keys",
        "lapsed",
        "later",
        "leases",
        "levels",
        "limits",
        "lock",
        "message_ttl",
        "messages",
        "middle",
        "most_embedded",
        "most_plain",
        "name",
        "noted",
        "noted_as",
        "options",
        "owed",
        "properties",
        "room",
        "settings",
        "settled",
        "sync_each",
        "tails",
        "tally",
        "to_move",
        "watched",
    )

    def __init__(
        self,
        name: str,
        index: QueueIndex,
        options: Options,
        *,
        settings: QueueSettings,
        alarm: Alarm,
        calls: Calls,
        messages: Messages | None = None,
        beside: QueueState | None = None,
        priority: int | None = None,
    ) -> None:
        """``priority``: of this level of a priority queue; ``beside``: its level of priority 0,
        whose lock, bells and limits this one shares."""
        self.name: str = name
        # The name in the frames of transactions; None until there is one.
        self.noted_as: tuple[bytes, bytes] | None = None
        # The engine is closing, and messages that are out may still be settled.
        self.draining: bool = False
        self.index: QueueIndex = index
        self.options: Options = options
        self.messages: Messages | None = messages
        self.alarm: Alarm = alarm
        self.calls: Calls = calls
        # Added to a seq_id of the index it makes the seq_id that users get.
        self.base: int = (priority or 0) << SHIFT
        # The properties of a message that is published without any, and how its record has them.
        self.properties: dict[str, int] = properties_of(self.base)
        self.middle: bytes = encode_middle(None, {}, self.properties) if self.base else NOTHING
        self.tails: tuple[bytes, ...] = tails_of(self.middle) if self.base else ()
        index.middle = self.middle
        # The levels of a priority queue, of which this is one; None in any other queue.
        self.levels: list[QueueState] | None = None
        if beside is None:
            self.lock: PatientLock = PatientLock(f"queue {name!r}")
            self.lock.before_waiting = index.poison.order.checked(Rank.QUEUE)
            self.arrived: Bell = Bell(self.lock)
            self.settled: Bell = Bell(self.lock)
            self.room: Bell = Bell(self.lock)
            if priority is not None:
                self.levels = [self]
        else:
            self.lock = beside.lock
            self.arrived = beside.arrived
            self.settled = beside.settled
            self.room = beside.room
            self.levels = beside.levels
        # What the calls of the core owe, those of all priorities together. Whoever made the call
        # pays it once no lock is held.
        self.owed: list[Debt] = [] if beside is None else beside.owed
        # The number of the nack at which the lease of a message that has gone ran out, by seq_id.
        self.lapsed: dict[int, int] = {}
        self.flushed: Bell = Bell(self.lock)
        # The calls for single messages tick where seq_id & check_mask is 0.
        self.check_mask: int = 0
        # Dead letters wait in memory to be moved.
        self.to_move: bool = False
        # The thread that flushes; 0: none.
        self.flushing: int = 0
        self.sync_each: bool = options.durability == "fsync"
        # Message ids are unique among all queues and runs: eight random bytes, and the seq_id.
        self.id_high: int = int.from_bytes(os.urandom(8), "big")
        self.first_seq: int = index.next_seq
        # Tells this queue from another one of its name; 0: made by an earlier version.
        self.incarnation: int = index.seq_file.incarnate()
        # Notes on entries that are not acknowledged, by seq_id. The ack of an entry looks for its
        # note only if there are any.
        self.noted: dict[int, EntryNote] = {}
        self.leases: Leases = Leases(self.noted)
        # The delayed messages, from the first one on.
        self.later: DueTimes | None = None
        # The unique keys, likewise.
        self.keys: UniqueKeys | None = None
        self.tally: Tally = Tally()
        # Bodies up to this size are embedded, those of messages with neither key, headers nor
        # properties.
        self.most_embedded: int = -1
        if options.record_format == "qindex":
            self.most_embedded = options.max_message_bytes
            if messages is not None:
                most = plain_body_size(options.embed_below - 1)
                self.most_embedded = min(self.most_embedded, most)
        self.limits: Limits | None = None if beside is None else beside.limits
        self.counts: DeliveryCounts | None = None
        self._work_by(settings)

    def change_settings(self, settings: QueueSettings) -> None:
        """Let the queue, which is in use, work by other settings from now on. No lock is held.

        Publishers that wait for room see the new limits. A limit below the queue's present size
        drops nothing by itself: with ``overflow="drop-head"`` the next publish does. Publishes of
        other threads that have begun may exceed a new limit.
        """
        with self.lock, self:
            self._work_by(settings)
            for one in self.levels or ():
                if one is not self:
                    one.limits = self.limits
                    one._work_by(settings)
            self.room.notify_all()

    def _work_by(self, settings: QueueSettings) -> None:
        # Steps that read files come first: they may fail.
        counts = self.counts
        if settings.delivery_limit is None:
            counts = None
        elif counts is None:
            counts = DeliveryCounts(self.index.fs, self.index.directory, self.noted)
        limits = self.limits
        limited = settings.max_length is not None or settings.max_bytes is not None
        if limits is not None:
            limits.adopt(settings)  # waiting callers look at this object, whatever follows
        elif limited:
            limits = Limits(settings)
        self.limits = limits if limited else None
        self.count_ready_bytes()
        self.counts = counts
        self.delivery_limit: int = settings.delivery_limit or 0
        self.settings: QueueSettings = settings
        self.message_ttl: float | None = settings.message_ttl
        # Deliveries are to be looked at one by one.
        self.watched: bool = limited or self.delivery_limit > 0 or settings.dead_letter is not None
        # Bodies up to this size are embedded, where the message needs nothing else.
        plain = settings.message_ttl is None and not limited
        most = self.most_embedded - len(self.middle) + len(NOTHING)
        self.most_plain: int = most if plain else -1

    # -- the lock -------------------------------------------------------------------------------

    def take(self) -> None:
        """Take the lock; this thread does not have it. :meth:`leave` is to be called when this, or
        what follows, raises. Raises what the queue raises since it was closed or forked."""
        lock = self.lock
        if not lock.take():
            lock.wait_for_turn()
        if lock.refusal is not None:
            lock.check_taken()
        if self.index.changing:
            self.read_again()

    def leave(self, error: BaseException) -> None:
        """Release the lock, if this thread has it, after an exception. No other function of ours
        is called: there may be no room for it on the stack."""
        if self.lock.is_mine():
            if not isinstance(error, StoreError):
                self.index.changing += 1
            self.lock.release()

    def __enter__(self) -> QueueState:
        if self.index.changing:
            self.read_again()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, StoreError):
            self.index.changing += 1

    def resume(self) -> None:
        """Go on after a wait, with the lock held again. Raises what the queue raises since it was
        closed."""
        self.lock.check()
        if self.index.changing:
            self.read_again()

    def pay(self, debt: Debt) -> None:
        """Pay a debt, and what that owes in its turn. No lock is held."""
        self.owed += debt.pay()
        self.catch_up()

    def catch_up(self) -> bool:
        """Pay what the calls of this queue owe: for threads, which may wait. No lock is held.

        Return whether anything was paid: a get that found nothing may find a message then. A
        signal's handler, or a finalizer, in the middle of another call pays nothing. That call does
        so once it is over, unless a thread of the engine comes first.
        """
        paid = False
        while self.owed:
            if self.calls.is_mine() or self.index.poison.order.holds_any():
                for debt in self.owed[:]:
                    debt.is_asked_for()
                break
            try:
                debt = self.owed.pop()
            except IndexError:
                break  # another thread has taken it
            self.owed += debt.pay()
            paid = True
        return paid

    def take_owed(self) -> list[Debt]:
        """Take over what the calls of this queue owe: another one's caller pays it."""
        taken = []
        while self.owed:
            try:
                taken.append(self.owed.pop())
            except IndexError:
                break  # another thread has taken it
        return taken

    def hand_over(self) -> list[Debt]:
        """Ask the engine's threads for what the calls of this queue owe: for loops, which may not
        wait. Return what none of them does."""
        return [debt for debt in self.take_owed() if not debt.is_asked_for()]

    def check_open(self) -> None:
        """Raise what the queue raises since it was closed, deleted or forked, or since its engine
        began to close. Lock held or not."""
        self.lock.check()
        self.calls.check()

    def refuse_delivery(self) -> None:
        """Raise :class:`ClosedError` while the engine waits for outstanding messages to close."""
        if self.draining:
            raise ClosedError(f"queue {self.name!r}: the engine is closing")

    def wait_for(self, bell: Bell, seconds: float | None) -> bool:
        """Wait until a bell rings, or ``seconds`` have passed (false). Lock held, though not
        meanwhile. Raises when the queue's end, or its engine's, has come."""
        self.check_open()
        rung = bell.wait(seconds)
        self.check_open()
        self.resume()
        return rung

    def await_flush(self) -> None:
        """Wait until no flush is under way. Lock held, though not meanwhile."""
        while self.flushing:
            if self.flushing == get_ident():
                refuse_twice()
            self.flushed.wait(LOOK_AGAIN)

    def read_again(self) -> None:
        """Read the queue again from its journal: a call was cut short. Lock held.

        Raises :class:`WritesRefusedError` where writes are refused: files may have been in the
        middle of an exchange, and the next open judges them.
        """
        self.await_flush()
        if self.index.changing:
            self.index.poison.check()
            self.rebuild()

    def rebuild(self) -> None:
        """Read the queue again from its journal. Lock held; the flush that is under way, if there
        is one, is the caller's."""
        self.index.rebuild()
        if self.messages is not None and self.messages.in_use:
            # A message may have kept its reference, or have none: the next open counts them.
            self.messages.miscounted = True
        for notes in self.notes():
            notes.load()
        self.count_ready_bytes()
        self.notify_all()

    def count_ready_bytes(self) -> None:
        """Count the ready messages anew, for the limits. Lock held."""
        limits = self.limits
        if limits is not None:
            counted = (self,) if self.levels is None else self.levels
            limits.bytes = 0
            if limits.max_bytes is not None:
                limits.bytes = sum(one.index.ready_bytes() for one in counted)

    def notify_all(self) -> None:
        """Wake all waiters, threads and listeners. Lock held."""
        self.arrived.notify_all()
        self.settled.notify_all()
        self.flushed.notify_all()
        self.room.notify_all()

    # -- figures --------------------------------------------------------------------------------

    def ready(self) -> int:
        """Count the messages that a consumer can have now. O(1)."""
        # The counts change under the lock and are read without it: a get may come in between.
        return max(self.inside() - self.delayed() - self.index.pending, 0)

    def delayed(self) -> int:
        """Count the messages that are not due yet. O(1)."""
        return 0 if self.later is None else len(self.later)

    def inside(self) -> int:
        """Count the messages that are not with a consumer. O(1)."""
        return max(self.index.live - self.index.out, 0)

    def inside_all(self) -> int:
        """Count the messages of all priorities that are not with a consumer, as limits do."""
        if self.levels is None:
            return self.inside()
        return sum(one.inside() for one in self.levels)

    def check_size(self, size: int) -> None:
        """Raise :class:`UsageError` for a body of more bytes than may be."""
        if size > self.options.max_message_bytes:
            raise UsageError(
                f"a body may have at most {self.options.max_message_bytes} bytes "
                f"(max_message_bytes), not {size}"
            )

    # -- delays ---------------------------------------------------------------------------------

    def delays(self) -> DueTimes:
        """Return the delayed messages, before one more is delayed. Lock held.

        Raises :class:`StorageError`; nothing has changed then.
        """
        if self.later is None:
            later = DueTimes(self)
            later.begin(durably=self.sync_each)
            self._take_over(later)
        assert self.later is not None
        return self.later

    def unique_keys(self) -> UniqueKeys:
        """Return the unique keys, before one is taken. Lock held.

        Raises :class:`StorageError`; nothing has changed then.
        """
        if self.keys is None:
            keys = UniqueKeys(self.index, self.messages, self.is_spent, self.base)
            keys.begin(durably=self.sync_each)
            self.keys = keys
        return self.keys

    def check_unique(self, key: str) -> None:
        """Raise :class:`DuplicateError` if a message of any priority holds this key. Lock held."""
        for one in (self,) if self.levels is None else self.levels:
            if one.keys is not None:
                one.keys.check(key)

    def load_notes(self, files: Container[str]) -> None:
        """Take over the delayed messages and the unique keys of earlier runs, if these ``files``
        tell of any. Raises :class:`StorageError`."""
        if KEYS_FILE in files:
            # First, because it reads the messages that are ready, and not the delayed ones.
            keys = UniqueKeys(self.index, self.messages, self.is_spent, self.base)
            keys.load()
            self.keys = keys
        if DUE_FILE in files:
            later = DueTimes(self)
            later.load()
            self._take_over(later)

    def notes(self) -> Iterator[DueTimes | UniqueKeys]:
        """Yield the notes on messages that have files of their own."""
        if self.keys is not None:
            yield self.keys
        if self.later is not None:
            yield self.later

    def _take_over(self, later: DueTimes) -> None:
        # What is published next may come after a delayed message: it is read in its turn.
        self.index.ahead.window.room = 0
        self.later = later

    def give_back(self, seq: int, body: bytes, extra: int | Entry) -> None:
        """Let a message, which is ready, be delivered again, at its place. Lock held."""
        if self.later is None or not self.later.give_back(seq, extra):
            self.index.ahead.give_back(seq, body, extra)

    def admit(self, seq: int, due: int) -> None:
        """Let a message of a transaction, which is committed now, be delivered once it is ``due``.
        Lock held. :meth:`delays` was called before, for a delayed message."""
        index = self.index
        index.admit(seq)
        if due:
            self.delays().hold(seq, due)
        else:
            if seq < index.ahead.next_fetch:
                try:
                    self.give_back(seq, *index.read_held(seq))
                except StoreError:
                    # The next call that comes to it raises the error.
                    self.rewind()
                    index.ahead.forget(min(seq, index.ahead.next_fetch))
            if self.arrived.waiting:
                self.arrived.notify()

    def rewind(self) -> None:
        """Forget the entries read ahead; they are read again. Lock held."""
        if self.later is not None:
            self.later.take_back()
        self.index.ahead.rewind()

    # -- notes on entries beside the index --------------------------------------------------------

    def note(self, seq: int) -> EntryNote:
        """Return the note on an entry, which is made if there is none. Lock held."""
        note = self.noted.get(seq)
        if note is None:
            note = self.noted[seq] = EntryNote()
        return note

    def release(self, msg_ids: Iterable[bytes]) -> None:
        """Take this queue's references to messages in the message store back. Their acks are in
        the journal; the store asks for their sync before it deletes anything."""
        if self.messages is not None:
            self.messages.remove(msg_ids)

    def went_out(self, count: int, size: int) -> None:
        """Note that messages with bodies of ``size`` bytes are not ready any more. Lock held."""
        limits = self.limits
        if limits is not None:
            limits.bytes -= size
            if limits.overflow == "block":
                self.room.notify_all()

    def count_moved(self, seq: int) -> None:
        """Count a message as gone that is acknowledged later. Lock held."""
        self.index.count_moved(1)
        note = self.noted.get(seq)
        if note is not None:
            note.lease = None
        if self.settled.waiting:
            self.settled.notify_all()

    def forget(self, seqs: Iterable[int]) -> None:
        """Drop the notes on acknowledged entries, take their references from the message store, and
        wake the waiters for acks. Lock held."""
        stored = []
        for seq in seqs:
            note = self.noted.pop(seq, None)
            if note is None:
                continue
            if note.msg_id is not None:
                stored.append(note.msg_id)
            if note.lapsed_at >= 0:
                self._note_lapsed(seq, note.lapsed_at)
            if self.counts is not None and note.deliveries >= 0:
                self.counts.note(seq, None)
        if stored:
            self.release(stored)
        if self.settled.waiting:
            self.settled.notify_all()

    def _note_lapsed(self, seq: int, lapsed_at: int) -> None:
        """Remember that the lease of a message that has gone ran out: its first consumer may still
        settle it, and is to hear why it can't."""
        self.lapsed[seq] = lapsed_at
        if len(self.lapsed) > _MAX_LAPSED:
            del self.lapsed[next(iter(self.lapsed))]

    def is_spent(self, seq: int) -> bool:
        """Return whether a ready message was delivered as often as it may be: the next ``get``
        makes it a dead letter. Lock held."""
        note = self.noted.get(seq)
        return note is not None and 0 < self.delivery_limit <= note.deliveries

    # -- syncs in the middle of a sync ------------------------------------------------------------

    def is_syncing_here(self) -> bool:
        """Return whether the calling thread, a handler's, is in the middle of a sync: its
        writes could not be made durable."""
        if self.index.journal.is_syncing_here():
            return True
        return self.messages is not None and self.messages.is_syncing_here()

    def check_sync(self, confirm: bool = False) -> None:
        """Raise :class:`UsageError`, before anything has changed, if the coming action needs a sync
        and can't have one."""
        if (confirm or self.sync_each) and self.is_syncing_here():
            refuse_twice()

    def forgive_outstanding(self) -> None:
        """Let the deliveries that are out not count towards the ``delivery_limit``: a clean close
        takes them back, and no consumer lost or refused them. Lock held."""
        if self.counts is not None:
            for seq in self.index.outstanding_up_to(self.index.next_seq).tolist():
                note = self.note(seq)
                if not note.forgiven:
                    note.deliveries = (note.deliveries if note.deliveries >= 0 else 1) - 1
            self.counts.rewrite()

    # -- durability -----------------------------------------------------------------------------

    def sync_journal(self) -> None:
        """Make the journal durable."""
        self.index.journal.sync()

    def sync_all(self) -> None:
        """Make messages, journal and the windows of unique keys durable, in this order: an index
        entry is never there without its message."""
        if self.messages is not None:
            self.messages.sync()
        self.index.journal.sync()
        if self.keys is not None:
            self.keys.sync()
