"""Settling deliveries: acknowledged, given back, rejected, or left until their lease ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.errors import StorageError, StoreError, UsageError
from journal.locks.call_lock import refuse_twice
from qindex.format.entries import Entry, make_entry
from qindex.format.headers import due_of
from qindex.format.message import Message
from qindex.format.settings import checked_name
from qindex.index.segment import HELD, MOVING, OUT, PUBLISHED
from qindex.queue.dead_letters import DeadLetters, Mover
from qindex.queue.delivery import LAPSED, Delivery, no_delivery
from qindex.queue.flushing import Flusher
from qindex.queue.notes.delays import due_time, now_us, pause_before
from qindex.queue.notes.entry_note import Lease
from qindex.queue.notes.leases import check_lease
from qindex.queue.outstanding import Outstanding
from qindex.queue.state import QueueState

_log = logging.getLogger("qindex.queue")

Seqs = range | npt.NDArray[np.int64]

_RETRY = 1.0
"""Seconds by which the lease of a message is prolonged that is being rejected."""


Sync = Callable[[], None] | None
"""What makes a call durable that is to be so on return, or nothing."""


class Settler:
    """Settles the deliveries of one queue.

    Nothing here waits for the disk: a verb returns what is to be made durable, if anything is.
    """

    def __init__(
        self,
        state: QueueState,
        flusher: Flusher,
        outstanding: Outstanding,
        letters: DeadLetters,
    ) -> None:
        self.name: str = state.name
        self.state = state
        self._flusher = flusher
        self.outstanding = outstanding
        self.letters = letters
        self.mover: Mover = letters.mover
        outstanding.owner = self

    # -- acknowledged ---------------------------------------------------------------------------

    def ack(self, delivery: Delivery) -> Sync:
        state, outstanding = self.state, self.outstanding
        lock = state.lock
        synced = state.sync_each
        if lock.is_mine() or (synced and state.is_syncing_here()):
            refuse_twice()
        try:
            state.take()
            try:
                given = delivery
                owner = given._queue
            except (AttributeError, TypeError):
                raise no_delivery(delivery) from None
            if owner is not self:
                raise outstanding.not_ours(delivery)
            seq = given.seq_id - state.base
            if state.noted:
                outstanding.check_taken(delivery)
            index = state.index
            if not index.acknowledge(seq):
                raise outstanding.not_ours(delivery)
            given._queue = None
            if state.noted or state.settled.waiting:
                state.forget((seq,))
            if not seq & state.check_mask or index.journal.in_reserve:
                self._flusher.tick()
            lock.release()
        except BaseException as error:
            try:
                state.leave(error)
            finally:
                lock.let_go()  # a signal's handler may have raised as leave began
            raise
        return state.sync_journal if synced else None

    def ack_many(self, deliveries: Iterable[Delivery]) -> Sync:
        acked = self._acknowledge(lambda: self.outstanding.seq_ids_of(deliveries))
        return self.state.sync_journal if acked and self.state.sync_each else None

    def ack_up_to(self, seq_id: int) -> int:
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise UsageError(f"a seq_id is an int, not {seq_id!r}")
        return self._acknowledge(lambda: self.state.index.outstanding_up_to(seq_id))

    def _acknowledge(self, find: Callable[[], Seqs]) -> int:
        """Acknowledge the entries that ``find`` gives under the lock; return how many."""
        state = self.state
        state.check_sync()
        with state.lock, state:
            seqs = find()
            if len(seqs):
                self.outstanding.ack_all(seqs)
                self._flusher.tick()
        return len(seqs)

    def catch_up(self) -> None:
        """Pay what was owed by the calls of its deliveries, which settle past the queue's face."""
        if self.state.owed:
            self.state.catch_up()

    def is_out(self, seq_id: int, taken: int | None = None) -> bool:
        return self.outstanding.is_out(seq_id, taken)

    def has_lapsed(self, seq_id: int, taken: int) -> bool:
        return self.outstanding.has_lapsed(seq_id, taken)

    # -- in transactions ------------------------------------------------------------------------

    def begin_move(self, delivery: Delivery) -> None:
        """Mark a delivery, so that nothing else can settle it. Raises as :meth:`ack`."""
        state = self.state
        lock = state.lock
        if lock.is_mine():
            refuse_twice()
        try:
            state.take()
            if delivery._queue is not self:
                raise self.outstanding.not_ours(delivery)
            if state.noted:
                self.outstanding.check_taken(delivery)
            if not state.index.begin_move(delivery.seq_id - state.base):
                raise self.outstanding.not_ours(delivery)
            lock.release()
        except BaseException as error:
            try:
                state.leave(error)
            finally:
                lock.let_go()  # a signal's handler may have raised as leave began
            raise

    def undo_move(self, delivery: Delivery) -> None:
        """Let a delivery be with its consumer as before."""
        with self.state.lock, self.state as state:
            seq = delivery.seq_id - state.base
            if state.index.state_of(seq) == MOVING:
                state.index.undo_move(seq)

    def end_move(self, delivery: Delivery) -> int:
        """Count a marked delivery as acknowledged, and return which entry is to be acknowledged
        later. Lock held."""
        state = self.state
        seq = delivery.seq_id - state.base
        state.count_moved(seq)
        delivery._queue = None
        return seq

    # -- given back -----------------------------------------------------------------------------

    def nack(
        self,
        delivery: Delivery,
        delay: float | None = None,
        count: bool = True,
    ) -> Sync:
        self._take_back(delivery, delay, count)
        state = self.state
        self.letters.owe()
        return state.later.sync if state.sync_each and delay and state.later is not None else None

    def reject(self, delivery: Delivery, reason: str | None = None) -> Sync:
        if reason is not None and not isinstance(reason, str):
            raise UsageError(f"a reason is a str, not {reason!r}")
        state = self.state
        if state.settings.dead_letter is None:
            due = self.ack(delivery)
            with state.lock.anyway:
                state.tally.given_up["rejected"] += 1
            return due
        failure = self.letters.reject([delivery], cause=reason or "")[0]
        if failure is not None:
            raise failure
        return None

    def move(
        self,
        delivery: Delivery,
        queue: str,
        headers: Mapping[str, Any] | None = None,
        delay: float | None = None,
    ) -> None:
        checked_name(queue)
        if queue == self.name:
            raise UsageError(f"queue {queue!r} is where the message is: give it back by nack")
        if headers is not None and not (
            isinstance(headers, Mapping) and all(isinstance(name, str) for name in headers)
        ):
            raise UsageError("headers must be a mapping with str keys")
        failure = self.letters.move_to(delivery, queue, headers, due_time(delay, None))
        if failure is not None:
            raise failure

    def _take_back(
        self, delivery: Delivery, delay: float | None = None, counts: bool = True
    ) -> None:
        due = due_time(delay, None)
        with self.state.lock, self.state as state:
            self.outstanding.seq_ids_of([delivery])
            seq = delivery.seq_id - state.base
            count = delivery.delivery_count - (not counts)
            is_last = counts and 0 < state.delivery_limit <= count
            if due and not is_last:
                # Before anything has changed: a full disk may have no room for it.
                state.delays().note(seq, due)
            elif delay is None and not is_last and state.settings.backoff is not None:
                due = self._back_off(seq, state.settings.backoff, count)
            self.come_back(seq, delivery.body, delivery._extra, count, due, counts)
            delivery._queue = None

    def _back_off(self, seq: int, backoff: str, count: int) -> int:
        """Return when a message that has failed is due again. Lock held."""
        due = now_us() + int(pause_before(backoff, count) * 1e6)
        try:
            self.state.delays().note(seq, due)
        except StorageError as error:
            _log.warning("%s; after a crash the message is due at once", error)
            if self.state.later is None:
                return 0
        return due

    def cancel(self, seq_id: int) -> bool:
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise UsageError(f"a seq_id is an int, not {seq_id!r}")
        state = self.state
        state.check_sync()
        with state.lock, state:
            index = state.index
            if not (
                0 <= seq_id < index.next_seq
                and seq_id // index.entry_count in index.segments
                and index.state_of(seq_id) in (PUBLISHED, HELD)
            ):
                return False
            body, extra = index.read_held(seq_id)
            if isinstance(extra, int):
                extra = make_entry(b"", 0, len(body), Message(body, timestamp=extra))
            entry = self.letters.reader.with_message(extra)
            later = state.later if index.is_held(seq_id) else None
            index.ahead.unread(seq_id)
            self.letters.reader.drop(seq_id, entry)
            if later is not None and entry.message is not None:
                later.cancelled(seq_id, due_of(entry.message.headers))
            self._flusher.tick()
        return True

    def give_back_together(self, asked: Sequence[tuple[Delivery, bool]]) -> list[StoreError | None]:
        """Reject messages, or requeue them (true), in a queue with a dead-letter queue: all that go
        there do so together. Returns what :meth:`reject` or :meth:`nack` raises for each."""
        rejected = [delivery for delivery, requeue in asked if not requeue]
        failures = iter(self.letters.reject(rejected) if rejected else ())
        found: list[StoreError | None] = []
        for delivery, requeue in asked:
            if not requeue:
                found.append(next(failures))
                continue
            try:
                self._take_back(delivery)
            except StoreError as error:
                found.append(error)
            else:
                found.append(None)
        self.letters.owe()
        return found

    def come_back(
        self,
        seq: int,
        body: bytes,
        extra: int | Entry,
        count: int,
        due: int = 0,
        counts: bool = True,
    ) -> None:
        """Take a message back that was with a consumer, for the ``count``-th time; it is delivered
        again once it is ``due``. Without ``counts`` its last delivery is not among these, and its
        limit does not matter. Lock held."""
        state = self.state
        note = state.note(seq)
        note.lease = None
        note.forgiven = False
        if counts and state.delivery_limit and count >= state.delivery_limit:
            message = Message(body, timestamp=extra) if isinstance(extra, int) else extra.message
            assert message is not None
            self.letters.part_with(seq, message, "limit")
            state.tally.given_up["limit"] += 1
        else:
            index = state.index
            index.requeue(seq)
            if due and state.later is not None:
                note.due = 0
                state.later.hold_again(seq, due)
            else:
                state.give_back(seq, body, extra)
            note.nacked_at = index.nacks
            note.deliveries = count
            if state.limits is not None:
                state.limits.bytes += len(body)
            if not counts and state.counts is not None:
                state.counts.note(seq, count)
        if state.settled.waiting:
            state.settled.notify_all()
        if state.arrived.waiting and not due:
            state.arrived.notify()

    # -- deliveries that do not count -------------------------------------------------------------

    def forgive(self, deliveries: Iterable[Delivery]) -> None:
        """Let these deliveries not count towards the ``delivery_limit``, also after a crash."""
        with self.state.lock, self.state as state:
            counts = state.counts
            if counts is None:
                return
            for delivery in deliveries:
                seq, before = delivery.seq_id - state.base, delivery.delivery_count - 1
                state.note(seq).forgiven = True
                counts.note(seq, before)

    def take_back_uncounted(self, deliveries: Iterable[Delivery]) -> None:
        """Take back the deliveries that are not settled, each to its place; they do not count."""
        with self.state.lock, self.state as state:
            for delivery in deliveries:
                if not delivery.settled:
                    seq, before = delivery.seq_id - state.base, delivery.delivery_count - 1
                    self.come_back(seq, delivery.body, delivery._extra, before, counts=False)
                    delivery._queue = None

    # -- leases ---------------------------------------------------------------------------------

    def lend(self, delivery: Delivery, count: int, seconds: float, holder: Delivery | None) -> None:
        """Begin the lease of a delivery. Lock held."""
        state = self.state
        seq = delivery.seq_id
        ends = monotonic() + seconds
        lease = Lease(ends, seq, delivery.body, delivery._extra, count, holder)
        state.note(seq).lease = lease
        state.leases.add(lease)
        state.alarm.set(self, ends)

    def extend_lease(self, delivery: Delivery, seconds: float) -> None:
        ends = monotonic() + check_lease(seconds)
        with self.state.lock, self.state as state:
            self.outstanding.seq_ids_of([delivery])
            seq = delivery.seq_id - state.base
            note = state.noted.get(seq)
            lease = None if note is None else note.lease
            if lease is None:
                raise UsageError(f"delivery of seq_id {delivery.seq_id} has no lease")
            if ends < lease.ends:
                raise UsageError(
                    f"the lease of seq_id {delivery.seq_id} has {lease.ends - monotonic():.3f} "
                    f"seconds left; {seconds!r} would shorten it"
                )
            lease.ends = ends
            state.leases.add(lease)
            state.alarm.set(self, ends)

    def on_alarm(self) -> None:
        """End the leases whose time is up. The engine's timer calls it."""
        with self.state.lock, self.state as state:
            now = monotonic()
            for lease in state.leases.due(now):
                self._end_lease(lease, now)
            following = state.leases.next_end()
            if following is not None:
                state.alarm.set(self, following)
        self.letters.owe()
        self.catch_up()

    def _end_lease(self, lease: Lease, now: float) -> None:
        seq = lease.seq_id
        state = self.state.index.state_of(seq)
        if state == MOVING:
            # It is being rejected just now. If that fails, its lease goes on.
            lease.ends = now + _RETRY
            self.state.leases.add(lease)
        elif state == OUT:
            if lease.delivery is not None:
                lease.delivery._queue = LAPSED
            settings = self.state.settings
            is_last = 0 < self.state.delivery_limit <= lease.count
            due = 0
            if settings.backoff is not None and not is_last:
                due = self._back_off(seq, settings.backoff, lease.count)
            self.come_back(seq, lease.body, lease.extra, lease.count, due)
            note = self.state.noted.get(seq)
            if note is not None:
                note.lapsed_at = self.state.index.nacks
