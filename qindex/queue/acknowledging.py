"""Acknowledging deliveries. The path of a single ack is written out in one function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from journal.call_lock import refuse_twice
from journal.errors import StoreError, UsageError
from journal.format import ACK, ACK_BITS
from qindex.index.segment import ACKED, OUT
from qindex.queue.cut_short import count_anew
from qindex.queue.delivery import Batch, BatchDelivery, Delivery
from qindex.queue.queue_core import QueueCore

__all__ = ["Acker", "ascending"]

I64 = npt.NDArray[np.int64]

_DELIVERIES = {Delivery, BatchDelivery}
_queue_of = attrgetter("_queue")


class Acker(QueueCore):
    """What takes acks, and knows which deliveries are outstanding."""

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge: the message is done with, and never comes back once this is durable.

        Raises :class:`UsageError` for a delivery of another queue, or one that was settled.
        """
        lock = self._lock
        if lock.is_mine():
            refuse_twice()
        try:
            take = lock.take
            if not take():
                lock.stand_in_line()
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
            record = (ACK_BITS | seq).to_bytes(8, "big")
            # Before the write: behind a call a signal's handler may raise, and then all is done.
            states[rel] = ACKED
            delivery._queue = None
            index.acks += 1
            try:
                try:
                    index.journal.write(record)
                except ValueError:
                    index.journal.append(record, reserve=True)
                    # In the reserve it is time to look whether room can be made.
                    self._check_mask = 0
            except StoreError:
                states[rel] = OUT
                delivery._queue = self
                index.acks -= 1
                raise
            if not seq & self._check_mask:
                self._tick()
            if index.transient or self._nacked_at or self._holding:
                self._forget((seq,))
            elif self._stored_out:
                self._forget_stored(seq)
            lock.release()
        except BaseException as error:
            lock.let_go()
            if not isinstance(error, StoreError):
                count_anew(self)
            raise
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
        try:
            index.append_actions(ACK, seqs)
            index.set_states(seqs, ACKED)
            index.acks += len(seqs)
            if index.transient or self._nacked_at or self._holding or self._stored_out:
                self._forget(seqs.tolist())
        except BaseException as error:
            self._cut_short(error)
            raise
        self._tick()

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
            if self._nacked_at or not self._are_ours(deliveries):
                for delivery in deliveries:
                    if not isinstance(delivery, Delivery):
                        raise _no_delivery(delivery)
                    if delivery._queue is not self:
                        raise _not_ours(delivery, self)
                    self._check_taken(delivery)
            listed = [delivery.seq_id for delivery in deliveries]
            first = listed[0] if listed else 0
            if listed == list(range(first, first + len(listed))):
                seqs = ascending(listed)
            elif len(set(listed)) != len(listed):
                raise UsageError("a delivery stands twice in the batch")
            else:
                seqs = np.array(listed, np.int64)
        if not self._index.all_are(seqs, OUT):
            settled = np.flatnonzero(self._index.states_of(seqs) != OUT)
            raise _not_ours(deliveries[int(settled[0])], self)
        return seqs

    def _are_ours(self, deliveries: Sequence[Delivery]) -> bool:
        """Tell whether all are deliveries of this queue, at a glance; false: look at each."""
        if set(map(type, deliveries)) <= _DELIVERIES:
            return set(map(_queue_of, deliveries)) == {self}
        return False

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

    def _forget_stored(self, seq: int) -> None:
        """As :meth:`_forget`, of one entry of which nothing else can have been noted than that its
        message is in the message store."""
        msg_id = self._stored_out.pop(seq, None)
        if msg_id is not None and self._messages is not None:
            self._messages.remove_one(msg_id)


def _no_delivery(what: object) -> UsageError:
    return UsageError(f"not a delivery: {type(what).__name__}")


def _not_ours(delivery: Delivery, queue: Acker) -> UsageError:
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
