"""Settling deliveries: acknowledged, given back, rejected, or left until their lease ends.

The path of a single ack is written out in one function.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from journal.errors import ClosedError, UsageError
from journal.format import ACK, TYPE_SHIFT
from qindex.dead_letter import Letter, NotMovedError, Reason
from qindex.delivery import Batch, BatchDelivery, Delivery
from qindex.entries import Entry
from qindex.lease import Lease, check_lease
from qindex.message import Message
from qindex.queue_core import QueueCore
from qindex.segment import ACKED, DELIVERED, MOVING, OUT
from qindex.waits import CALLER

if TYPE_CHECKING:
    from qindex.queue import Queue

__all__ = ["Settler", "ascending"]

I64 = npt.NDArray[np.int64]

_log = logging.getLogger("qindex.queue")

_ACK_WORD = ACK << TYPE_SHIFT
_RETRY = 1.0
"""Seconds until a move that failed is tried again."""


class Settler(QueueCore):
    """What takes acks, and everything else that ends a delivery."""

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge: the message is done with, and never comes back once this is durable.

        Raises :class:`UsageError` for a delivery of another queue, or one that was settled.
        """
        with self._lock:
            try:
                owner = delivery._queue
            except AttributeError:
                raise _no_delivery(delivery) from None
            if owner is not self:
                raise _not_ours(delivery, self)
            seq = delivery.seq_id
            segment = self._ack_segment
            rel = seq - segment.base
            if not 0 <= rel < len(segment.states):
                segment = self._ack_segment = self._index.segment_of(seq)
                rel = seq - segment.base
            states = segment.states
            if states[rel] != OUT:
                raise _not_ours(delivery, self)
            if self._nacked_at:
                self._check_taken(delivery)
            index = self._index
            try:
                index.journal.write((_ACK_WORD | seq).to_bytes(8, "big"))
            except ValueError:
                index.journal.append((_ACK_WORD | seq).to_bytes(8, "big"))
            states[rel] = ACKED
            delivery._queue = None
            index.acks += 1
            if not seq & self._check_mask:
                self._tick()
            if index.transient or self._nacked_at or self._holding or self._stored_out:
                self._forget((seq,))
        if self._sync_each:
            self._sync_each_journal()

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write. Raises as :meth:`ack`; then none is acknowledged."""
        with self._lock:
            seqs = self._outstanding(deliveries)
            if len(seqs):
                self._ack_all(seqs)
        if self._sync_each and len(seqs):
            self._sync_each_journal()

    def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries with a seq_id up to this one; gives their
        number."""
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise UsageError(f"a seq_id is an int, not {seq_id!r}")
        with self._lock:
            seqs = self._index.outstanding_up_to(seq_id)
            if len(seqs):
                self._ack_all(seqs)
        if self._sync_each and len(seqs):
            self._sync_each_journal()
        return len(seqs)

    def _ack_all(self, seqs: I64) -> None:
        index = self._index
        index.append_actions(ACK, seqs)
        index.set_states(seqs, ACKED)
        index.acks += len(seqs)
        if index.transient or self._nacked_at or self._holding or self._stored_out:
            self._forget(seqs.tolist())
        self._tick()

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
            else:
                self._reject(delivery)
            return
        with self._lock:
            self._outstanding([delivery])
            count = delivery.delivery_count
            self._come_back(delivery.seq_id, delivery.body, delivery._extra, count)
            delivery._queue = None
        if self._to_move:
            self._move_waiting()

    def requeue(self, delivery: Delivery) -> None:
        """Give a message back to its place; the same as ``nack(delivery, requeue=True)``."""
        self.nack(delivery, requeue=True)

    def _outstanding(self, deliveries: Iterable[Delivery]) -> I64:
        """Give the seq_ids of these deliveries, all of them outstanding.

        Raises :class:`UsageError` for the first that is not, or that stands there twice.
        """
        if isinstance(deliveries, Batch) and deliveries._queue is self:
            seqs = ascending(deliveries.seq_ids)
            if self._nacked_at:
                for delivery in deliveries:
                    self._check_taken(delivery)
        else:
            deliveries = deliveries if isinstance(deliveries, Sequence) else list(deliveries)
            for delivery in deliveries:
                if not isinstance(delivery, Delivery):
                    raise _no_delivery(delivery)
                if delivery._queue is not self:
                    raise _not_ours(delivery, self)
                self._check_taken(delivery)
            seqs = np.array([delivery.seq_id for delivery in deliveries], np.int64)
            if len(np.unique(seqs)) != len(seqs):
                raise UsageError("a delivery stands twice in the batch")
        settled = np.flatnonzero(self._index.states_of(seqs) != OUT)
        if len(settled):
            raise _not_ours(deliveries[int(settled[0])], self)
        return seqs

    def _check_taken(self, delivery: Delivery) -> None:
        """Refuse a delivery of a batch whose message was given back since."""
        if isinstance(delivery, BatchDelivery) and not self._is_out(
            delivery.seq_id, delivery.taken
        ):
            raise _not_ours(delivery, self)

    def _is_out(self, seq_id: int, taken: int | None = None) -> bool:
        """Tell whether an entry is still with a consumer: the one that took it with a batch when
        ``taken`` messages had been given back."""
        # Asked without the lock too, so nothing is loaded or made here: a segment that is not in
        # memory has nothing with a consumer.
        segment = self._index.segments.get(seq_id // self._index.entry_count)
        if segment is None:
            return False
        states, rel = segment.states, seq_id - segment.base
        is_out = rel < len(states) and states[rel] == OUT
        return is_out and (taken is None or self._nacked_at.get(seq_id, 0) <= taken)

    def _forget(self, seqs: Iterable[int]) -> None:
        """Drop what was noted of entries that are acknowledged, take their references from the
        message store, and wake who waits for acks."""
        stored = []
        for seq in seqs:
            self._index.transient.discard(seq)
            self._nacked_at.pop(seq, None)
            self._leases.drop(seq)
            if self._returns.pop(seq, None) is not None and self._counts is not None:
                self._counts.note(seq, 0, self._returns)
            msg_id = self._stored_out.pop(seq, None)
            if msg_id is not None:
                stored.append(msg_id)
        if stored:
            self._release(stored)
        if self._holding:
            self._settled.notify_all()

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
                self._part_with_one(seq, delivery.message, "limit")
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
                self._part_with_one(delivery.seq_id, delivery.message, "limit")
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

    def _part_with_one(self, seq: int, message: Message, reason: Reason) -> None:
        """Let a message go that is marked as out: to the dead-letter queue, as soon as the lock is
        free, or nowhere. Lock held."""
        if self.settings.dead_letter is None:
            self._ack_all(np.array([seq]))
        else:
            self._set_moving(seq, message, reason)

    def _part_with(self, batch: Batch, reason: Reason) -> None:
        """The same for a batch."""
        if self.settings.dead_letter is None:
            self._ack_all(ascending(batch.seq_ids))
            return
        for delivery in batch:
            self._set_moving(delivery.seq_id, delivery.message, reason)

    def _set_moving(self, seq: int, message: Message, reason: Reason) -> None:
        segment = self._index.segment_of(seq)
        segment.states[seq - segment.base] = MOVING
        self._to_move.append(self._letter(seq, message, reason))

    def _letter(self, seq: int, message: Message, reason: Reason) -> Letter:
        return Letter(seq, message, reason, seq not in self._index.transient)

    def _reject(self, delivery: Delivery) -> None:
        """Move a message to the dead-letter queue; it is there on return."""
        with self._lock:
            self._outstanding([delivery])
            seq = delivery.seq_id
            segment = self._index.segment_of(seq)
            segment.states[seq - segment.base] = MOVING
            letter = self._letter(seq, delivery.message, "rejected")
        try:
            self._moves.move(cast("Queue", self), [letter])
        except NotMovedError as error:
            if error.left:
                with self._real_lock:
                    segment.states[seq - segment.base] = OUT
            raise error.cause from error
        delivery._queue = None

    def _move_unlocked(self) -> bool:
        """Move what is to be moved, with the lock released meanwhile; tells whether it was."""
        if self._stuck:
            return False
        self._real_lock.release()
        try:
            self._move_waiting()
        finally:
            self._real_lock.acquire()
        self._check_open()
        return not self._to_move

    def _move_waiting(self, *, again: bool = False) -> None:
        """Move what is to be moved; ``again``: also when that has failed before. No lock held.

        What can't be moved stays, and is tried again after a while.
        """
        if not self._to_move or (self._stuck and not again):
            return
        if self._sync_each and not CALLER.waits:
            self._alarm.set(self, 0.0)
            return
        with self._real_lock:
            letters, self._to_move = self._to_move, []
        try:
            self._moves.move(cast("Queue", self), letters)
        except NotMovedError as error:
            with self._real_lock:
                self._to_move = error.left + self._to_move
                self._stuck = bool(error.left)
            if isinstance(error.cause, ClosedError):
                return
            log = _log.info if error.is_full else _log.error
            log("queue %r: messages can't be moved yet: %s", self.name, error)
            self._alarm.set(self, monotonic() + _RETRY)
        else:
            self._stuck = False

    def _moved(self, seqs: Sequence[int]) -> None:
        """Count messages as gone: they are in the dead-letter queue."""
        with self._real_lock:
            self._index.acks += len(seqs)
            self._dead_lettered += len(seqs)
            for seq in seqs:
                self._leases.drop(seq)
            if self._holding:
                self._settled.notify_all()

    def _end_moved(self, seqs: Sequence[int]) -> None:
        """Acknowledge messages that were moved. Raises :class:`ClosedError`."""
        with self._lock:
            gone = np.array(seqs, np.int64)
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


def _no_delivery(what: object) -> UsageError:
    return UsageError(f"not a delivery: {type(what).__name__}")


def _not_ours(delivery: Delivery, queue: Settler) -> UsageError:
    """Say why this delivery can't be settled by this queue."""
    owner = delivery._queue
    if owner is None or owner is queue:
        return UsageError(
            f"delivery of seq_id {delivery.seq_id} is settled already, or its lease has run out"
        )
    return UsageError(
        f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r}, "
        f"not to {queue.name!r}"
    )


def ascending(seqs: list[int]) -> I64:
    """Give ascending seq_ids as an array; most often they are a run."""
    if seqs and seqs[-1] - seqs[0] + 1 == len(seqs):
        return np.arange(seqs[0], seqs[-1] + 1, dtype=np.int64)
    return np.array(seqs, np.int64)
