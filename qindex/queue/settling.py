"""Settling deliveries otherwise than by an ack: given back, rejected, or left until their lease
ends; and moving what leaves the queue to its dead-letter queue."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, cast

import numpy as np

from journal.errors import ClosedError, StoreError, UsageError
from journal.format import ACK
from qindex.format.entries import Entry
from qindex.format.message import Message
from qindex.index.segment import ACKED, DELIVERED, MOVING, OUT
from qindex.queue.acknowledging import Acker, ascending
from qindex.queue.dead_letter import Letter, NotMovedError, Reason
from qindex.queue.delivery import Batch, Delivery
from qindex.queue.guards import RefusingLock
from qindex.queue.leases import Lease, check_lease
from qindex.queue.postponed import keeps_in_memory, recall
from qindex.queue.wake_ups import CALLER

if TYPE_CHECKING:
    from qindex.queue.queue import Queue

__all__ = ["Settler"]

_log = logging.getLogger("qindex.queue")

_RETRY = 1.0
"""Seconds until a move that failed is tried again."""


class Settler(Acker):
    """What ends a delivery otherwise than by an ack."""

    def nack(self, delivery: Delivery, requeue: bool = True) -> None:
        """Give a message back: it returns to its place in the queue.

        With ``requeue=False``, or when it was delivered ``delivery_limit`` times, it goes to the
        dead-letter queue; without one it is dropped. Raises as :meth:`ack`, and with
        ``requeue=False`` :class:`~journal.errors.QueueFullError` when the dead-letter queue is
        full: the delivery is then as it was.
        """
        if not requeue:
            if self.settings.dead_letter is None:
                self.ack(delivery)
                with self._real_lock:
                    self._tally.given_up["rejected"] += 1
            else:
                failure = self._reject([delivery])[0]
                if failure is not None:
                    raise failure
            return
        self._take_back(delivery)
        if self._to_move:
            self._move_waiting()

    def _take_back(self, delivery: Delivery) -> None:
        with self._lock:
            self._outstanding([delivery])
            count = delivery.delivery_count
            self._come_back(delivery.seq_id, delivery.body, delivery._extra, count)
            delivery._queue = None

    def _nack_together(self, nacks: Sequence[tuple[Delivery, bool]]) -> list[StoreError | None]:
        """Give messages back, each to be requeued or not, in a queue with a dead-letter queue: all
        that go there do so together. Gives what :meth:`nack` raises for each."""
        rejected = [delivery for delivery, requeue in nacks if not requeue]
        failures = iter(self._reject(rejected) if rejected else ())
        found: list[StoreError | None] = []
        for delivery, requeue in nacks:
            if not requeue:
                found.append(next(failures))
                continue
            try:
                self._take_back(delivery)
            except StoreError as error:
                found.append(error)
            else:
                found.append(None)
        if self._to_move:
            self._move_waiting()
        return found

    def requeue(self, delivery: Delivery) -> None:
        """Give a message back to its place; the same as ``nack(delivery, requeue=True)``."""
        self.nack(delivery, requeue=True)

    # -- what a message does when it is handed out, or comes back -------------------------------

    def _went_out(self, count: int, size: int) -> None:
        """Note that messages with bodies of ``size`` bytes are no longer ready. Lock held."""
        limits = self._limits
        if limits is not None:
            limits.bytes -= size
            if limits.overflow == "block":
                self._room.notify_all()

    def _hand_out(self, delivery: Delivery, lease: float | None) -> bool:
        """See to a delivery that is marked as out; false when it has been delivered too often,
        and is not to be handed out. Lock held."""
        seq = delivery.seq_id
        self._went_out(1, len(delivery.body))
        if delivery.redelivered:
            before = self._returns.get(seq, 1)
            if self._delivery_limit and before >= self._delivery_limit:
                delivery._queue = None
                self._withhold(seq, delivery.message)
                return False
            delivery._count = before + 1
            if self._counts is not None:
                self._note_count(seq, before + 1)
        if lease is not None:
            self._lend(delivery, delivery.delivery_count, lease, delivery)
        if self._to_move:
            self._move_unlocked()
        return True

    def _hand_out_all(self, batch: Batch, lease: float | None) -> bool:
        """The same for a batch, whose room is given back already; those that were delivered too
        often are taken out of it, and it tells whether there were any. Lock held."""
        again: dict[int, int] = {}
        for delivery in batch if DELIVERED in batch._states else ():
            if not delivery.redelivered:
                continue
            before = self._returns.get(delivery.seq_id, 1)
            if self._delivery_limit and before >= self._delivery_limit:
                self._withhold(delivery.seq_id, delivery.message)
                again[delivery.seq_id] = 0
                continue
            again[delivery.seq_id] = before + 1
            if self._counts is not None:
                self._note_count(delivery.seq_id, before + 1)
        batch._set_counts(again)
        if lease is not None:
            for delivery in batch:
                self._lend(delivery, delivery.delivery_count, lease, None)
        return 0 in again.values()

    def _note_count(self, seq: int, count: int) -> None:
        """Put a delivery where the next run finds it, before the message is handed out."""
        assert self._counts is not None
        self._returns[seq] = count
        self._nacked_at.setdefault(seq, 0)
        self._counts.note(seq, count, self._returns)

    def _lend(
        self, delivery: Delivery, count: int, seconds: float, holder: Delivery | None
    ) -> None:
        seq = delivery.seq_id
        ends = monotonic() + seconds
        self._leases.add(Lease(ends, seq, delivery.body, delivery._extra, count, holder))
        self._nacked_at.setdefault(seq, 0)
        self._alarm.set(self, ends)

    def extend(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end ``seconds`` from now.

        Raises :class:`UsageError` for one that is settled, whose lease has run out, or that has
        none.
        """
        ends = monotonic() + check_lease(seconds)
        with self._lock:
            self._outstanding([delivery])
            if not self._leases.extend(delivery.seq_id, ends):
                raise UsageError(f"delivery of seq_id {delivery.seq_id} has no lease")
            self._alarm.set(self, ends)

    def _give_back(self, seq: int, body: bytes, extra: int | Entry) -> None:
        """Make a message ready again, in its place before all that was not delivered yet."""
        if seq < self._next_fetch:
            self._returned_by_seq[seq] = body, extra
            heapq.heappush(self._returned, seq)
        # Else (a purge has failed half-way) reading comes by it again.

    def _come_back(self, seq: int, body: bytes, extra: int | Entry, count: int) -> None:
        """Take a message back that was with a consumer, for the ``count``-th time. Lock held."""
        self._leases.drop(seq)
        if self._delivery_limit and count >= self._delivery_limit:
            message = Message(body, timestamp=extra) if isinstance(extra, int) else extra.message
            assert message is not None
            self._part_with_one(seq, message, "limit")
            self._tally.given_up["limit"] += 1
        else:
            segment = self._index.segment_of(seq)
            segment.states[seq - segment.base] = DELIVERED
            self._give_back(seq, body, extra)
            index = self._index
            index.nacks += 1
            self._nacked_at[seq] = index.nacks
            self._returns[seq] = count
            if self._limits is not None:
                self._limits.bytes += len(body)
        if self._holding:
            self._settled.notify_all()
        if self._waiting:
            self._arrived.notify()

    # -- what leaves the queue without a consumer's ack -----------------------------------------

    def _withhold(self, seq: int, message: Message) -> None:
        """Let a message go that has been taken for a delivery, and had its last one before."""
        tally = self._tally
        tally.withheld += 1
        tally.again -= 1
        tally.given_up["limit"] += 1
        self._part_with_one(seq, message, "limit")

    def _part_with_one(self, seq: int, message: Message, reason: Reason) -> None:
        """Let a message go that is marked as out: to the dead-letter queue, as soon as the lock is
        free, or nowhere. Lock held."""
        if self.settings.dead_letter is None:
            self._ack_all(np.array([seq]))
        else:
            self._set_moving(seq, message, reason)

    def _part_with(self, batch: Batch, reason: Reason) -> None:
        """The same for a batch that was taken for this."""
        tally = self._tally
        tally.withheld += len(batch)
        tally.again -= sum(delivery.redelivered for delivery in batch)
        tally.given_up[reason] += len(batch)
        if self.settings.dead_letter is None:
            self._ack_all(ascending(batch.seq_ids))
            return
        for delivery in batch:
            self._set_moving(delivery.seq_id, delivery.message, reason)

    def _set_moving(self, seq: int, message: Message, reason: Reason) -> None:
        self._set_state(seq, MOVING)
        if keeps_in_memory(self, message):
            self._to_move.append(self._letter(seq, message, reason))
        else:
            self._postponed.add(seq, reason)
            self._stored_out.pop(seq, None)  # noted again when it is read again

    def _letter(self, seq: int, message: Message, reason: Reason) -> Letter:
        return Letter(seq, message, reason, seq not in self._index.transient)

    def _reject(self, deliveries: Sequence[Delivery]) -> list[StoreError | None]:
        """Move messages to the dead-letter queue; they are there on return. Gives why not, for
        each that is not: it is as it was."""
        failures: list[StoreError | None] = [None] * len(deliveries)
        letters: dict[int, Letter] = {}
        for at, delivery in enumerate(deliveries):
            try:
                with self._lock:
                    self._outstanding([delivery])
                    self._set_state(delivery.seq_id, MOVING)
                    letters[at] = self._letter(delivery.seq_id, delivery.message, "rejected")
            except StoreError as error:
                failures[at] = error
        left: set[int] = set()
        try:
            self._moves.move(cast("Queue", self), list(letters.values()))
        except NotMovedError as error:
            left = {one.seq_id for one in error.left}
            for at, letter in letters.items():
                if letter.seq_id in left or not left:
                    failures[at] = error.cause
        with self._real_lock:
            for at, letter in letters.items():
                if letter.seq_id in left:
                    self._set_state(letter.seq_id, OUT)
                elif failures[at] is None:
                    deliveries[at]._queue = None
                    self._tally.given_up["rejected"] += 1
        return failures

    def _set_state(self, seq: int, state: int) -> None:
        segment = self._index.segment_of(seq)
        segment.states[seq - segment.base] = state

    def _move_unlocked(self) -> bool:
        """Move what is to be moved, with the lock released meanwhile; tells whether it was."""
        if self._stuck:
            return False
        try:
            self._real_lock.release()
            self._move_waiting()
        finally:
            self._real_lock.retake()
        self._check_open()
        return not self._to_move

    def _move_waiting(self, *, again: bool = False) -> None:
        """Move what is to be moved; ``again``: also when that has failed before. No lock held.

        What can't be moved stays, and is tried again after a while.
        """
        if not (self._to_move or self._postponed) or (self._stuck and not again):
            return
        if self._sync_each and not CALLER.waits:
            self._alarm.set(self, 0.0)
            return
        while self._move_next():
            if self._postponed and not CALLER.waits:
                self._alarm.set(self, 0.0)
                return

    def _move_next(self) -> bool:
        """Move what waits in memory, or the next of what was postponed; false when nothing is
        left, or that failed."""
        with self._real_lock:
            letters, self._to_move = self._to_move, []
            if not letters and isinstance(self._lock, RefusingLock):
                return False
            if not letters:
                try:
                    letters = recall(cast("Queue", self))
                except StoreError as error:
                    _log.error("queue %r: messages can't be read again: %s", self.name, error)
                    self._alarm.set(self, monotonic() + _RETRY)
                    return False
        if not letters:
            return bool(self._postponed)
        try:
            self._moves.move(cast("Queue", self), letters)
        except NotMovedError as error:
            with self._real_lock:
                self._to_move = error.left + self._to_move
                self._stuck = bool(error.left)
            if isinstance(error.cause, ClosedError):
                return False
            log = _log.info if error.is_full else _log.error
            log("queue %r: messages can't be moved yet: %s", self.name, error)
            self._alarm.set(self, monotonic() + _RETRY)
            return False
        self._stuck = False
        return bool(self._to_move or self._postponed)

    def _moved(self, letters: Sequence[Letter], *, dropped: bool = False) -> None:
        """Count messages as gone: they are in the dead-letter queue, or ``dropped`` by it."""
        with self._real_lock:
            self._index.acks += len(letters)
            if not dropped:
                self._tally.moved.update(one.reason for one in letters)
            for one in letters:
                self._leases.drop(one.seq_id)
            if self._holding:
                self._settled.notify_all()

    def _end_moved(self, seqs: Sequence[int]) -> None:
        """Acknowledge messages that were moved. Raises :class:`ClosedError`."""
        with self._lock:
            gone = np.array(seqs, np.int64)
            with self._in_one_piece():
                self._index.append_actions(ACK, gone)
                self._index.set_states(gone, ACKED)
                self._forget(seqs)

    def _drop_moved(self, seqs: Sequence[int]) -> None:
        """Acknowledge messages that a run before this one has moved."""
        with self._lock:
            gone = np.array(seqs, np.int64)
            in_use = self._messages is not None and self._messages.in_use
            stored = []
            for seq in seqs if in_use else ():
                segment = self._index.segment_of(seq)
                stored += self._index.stored_ids(segment, np.array([seq - segment.base]))
            self._index.drop(gone)
            self._release(stored)

    def _on_alarm(self) -> None:
        """End the leases whose time is up, and move what is to be moved."""
        with self._lock:
            now = monotonic()
            for lease in self._leases.due(now):
                self._end_lease(lease, now)
            following = self._leases.next_end()
            if following is not None:
                self._alarm.set(self, following)
        self._move_waiting(again=True)

    def _end_lease(self, lease: Lease, now: float) -> None:
        seq = lease.seq_id
        segment = self._index.segment_of(seq)
        state = segment.states[seq - segment.base]
        if state == MOVING:
            # It is being rejected just now. If that fails, its lease goes on.
            lease.ends = now + _RETRY
            self._leases.add(lease)
        elif state == OUT:
            if lease.delivery is not None:
                lease.delivery._queue = None
            self._come_back(seq, lease.body, lease.extra, lease.count)
