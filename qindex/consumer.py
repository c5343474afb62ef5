"""Delivering and settling: the half of a queue that consumers use.

Messages are read ahead, a window at a time; the path of a single delivery and of a single ack is
written out in one function each.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import TIMEOUT_MAX
from time import monotonic, time_ns

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError, UsageError
from journal.findings import Cause, Finding
from journal.format import ACK, DELIVER, TYPE_SHIFT
from msgstore.errors import MissingMessageError
from qindex.delivery import Batch, BatchDelivery, Delivery
from qindex.entries import Entry
from qindex.quarantine import quarantine
from qindex.queue_core import QueueCore
from qindex.segment import ACKED, DELIVERED, OUT, PUBLISHED

__all__ = ["READ_AHEAD", "Consumer"]

I64 = npt.NDArray[np.int64]

_log = logging.getLogger("qindex.queue")

_ACK_WORD = ACK << TYPE_SHIFT
READ_AHEAD = 2048
_MOST_READ_AHEAD = 8192


class Consumer(QueueCore):
    """What hands messages out and takes their acks."""

    def get(self, timeout: float | None = None) -> Delivery | None:
        """Take the next message; waits for one up to ``timeout`` seconds (``None``: for ever).

        Gives ``None`` when there was none in time. The message stays in the queue until it is
        acknowledged; after a crash it is delivered again, with ``redelivered`` true.
        Raises :class:`DamageError` when the next message is damaged: it names file and offset,
        the bytes are set aside in a quarantine file, and the next call goes on behind it.
        O(1), whatever the backlog.
        """
        with self._lock:
            while True:
                window = self._window
                at = self._at
                if self._returned or at == len(window.seqs):
                    if not self._available(timeout):
                        return None
                    if self._returned:
                        given = self._take_returned()
                        if given is None:
                            continue
                        return given
                    window = self._window
                    at = self._at
                seq = window.seqs[at]
                extra = window.extras[at]
                if extra.__class__ is not int:
                    self._at = at + 1
                    admitted = self._admit(seq, window.bodies[at], extra)
                    if admitted is None:
                        continue
                    extra, body = admitted, self._body(seq, admitted)
                    self._at = at
                else:
                    body = window.bodies[at]
                index = self._index
                states = window.segment.states
                rel = seq - window.base
                fresh = states[rel] == PUBLISHED
                if fresh:
                    try:
                        index.journal.write(window.delivers[at])
                    except ValueError:
                        index.journal.append(window.delivers[at])
                states[rel] = OUT
                self._at = at + 1
                index.taken += 1
                return Delivery(self, seq, body, not fresh, extra)

    def _available(self, timeout: float | None) -> bool:
        """Wait until something is given back or in the window; false when the time is up."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._returned and self._at == len(self._window.seqs):
            if self._index.dirty > self._max_dirty:
                # Deliveries count too; a flush may let others in, who fill the window.
                self._flush_due()
                if self._returned or self._at < len(self._window.seqs):
                    break
            if self._fill(READ_AHEAD):
                break
            left = _time_left(deadline)
            if left is not None and left <= 0:
                return False
            self._waiting += 1
            try:
                self._arrived.wait(left)
            finally:
                self._waiting -= 1
            self._check_open()
        return True

    def _fill(self, most: int) -> bool:
        """Read ahead into an empty window; false when nothing is ready."""
        fetched, self._next_fetch = self._index.fetch(self._next_fetch, most)
        if fetched is None:
            return False
        self._window = fetched
        self._at = 0
        return True

    def _take_returned(self) -> Delivery | None:
        """Deliver the first of what was given back; ``None`` when it had expired."""
        seq = heapq.heappop(self._returned)
        body, extra = self._returned_by_seq.pop(seq)
        if not isinstance(extra, int):
            admitted = self._admit(seq, body, extra)
            if admitted is None:
                return None
            extra, body = admitted, self._body(seq, admitted)
        index = self._index
        try:
            segment = index.segment_of(seq)
            # If so, it is here because it could not be marked as delivered before.
            fresh = segment.states[seq - segment.base] == PUBLISHED
            if fresh:
                index.append_actions(DELIVER, np.array([seq]))
        except BaseException:
            self._give_back(seq, body, extra)
            raise
        segment.states[seq - segment.base] = OUT
        index.taken += 1
        return Delivery(self, seq, body, not fresh, extra)

    def _give_back(self, seq: int, body: bytes, extra: int | Entry) -> None:
        """Make a message ready again, in its place before all that was not delivered yet."""
        if seq < self._next_fetch:
            self._returned_by_seq[seq] = body, extra
            heapq.heappush(self._returned, seq)
        # Else (a purge has failed half-way) reading comes by it again.

    def _admit(self, seq: int, body: bytes, extra: int | Entry) -> Entry | None:
        """See to an entry that is not plain: ``None`` when it had expired and was dropped, else
        the entry, with its message where that is in the message store. A damaged one is given
        with ``message`` ``None``.
        """
        assert isinstance(extra, Entry)
        index = self._index
        try:
            if extra.corrected:
                path, offset = index.where(seq)
                what, consequence = "one flipped bit", "corrected from the checksum: none lost"
                index.report([Finding(path, offset, 1, Cause.DAMAGE, what, consequence)])
                extra = replace(extra, corrected=False)
            if extra.expiry and extra.expiry <= time_ns() // 1000:
                self._drop_one(seq, extra)
                return None
            extra = self._with_message(extra)
            if extra.stored and extra.message is not None:
                self._stored_out[seq] = extra.msg_id
            return extra
        except BaseException:
            self._give_back(seq, body, extra)
            raise

    def _with_message(self, entry: Entry) -> Entry:
        """Read the message of an entry from the message store, if it is there; where it can't be
        had, ``damage`` tells why."""
        if not entry.stored or entry.message is not None or entry.damage:
            return entry
        if self._messages is None:
            return replace(entry, damage="it is in a message store, and there is none")
        msg_id = entry.msg_id
        try:
            message = self._messages.read(msg_id)
        except (MissingMessageError, DamageError) as error:
            return replace(entry, damage=str(error))
        return Entry(msg_id, entry.expiry, entry.size, message, stored=True)

    def _drop_one(self, seq: int, entry: Entry) -> None:
        self._index.drop(np.array([seq]))
        if entry.stored:
            self._stored_out.pop(seq, None)
            self._release([entry.msg_id])

    def _set_aside(self, seq: int, entry: Entry) -> tuple[str, int]:
        """Copy the bytes of a damaged message into a quarantine file; gives its file and offset."""
        index = self._index
        path, offset = index.where(seq)
        data = index.bytes_of(seq)
        if entry.stored and self._messages is not None:
            # A message that is gone leaves its entry alone to be set aside.
            with suppress(MissingMessageError):
                path, offset, data = self._messages.raw(entry.msg_id)
        quarantine(index.fs, path, offset, data)
        return path, offset

    def _body(self, seq: int, entry: Entry) -> bytes:
        """Give the body of an entry that is about to be delivered.

        Raises :class:`DamageError` for a damaged one, after setting its bytes aside.
        """
        if entry.message is not None:
            return entry.message.body
        try:
            path, offset = self._set_aside(seq, entry)
            self._drop_one(seq, entry)
        except BaseException:
            self._give_back(seq, b"", entry)
            raise
        what = f"the message with seq_id {seq} is damaged: {entry.damage}"
        finding = Finding(path, offset, 0, Cause.DAMAGE, what, "set aside in quarantine")
        self._index.report([finding])
        error = DamageError(path, offset, what)
        _log.error("%s", error)
        raise error

    def get_many(self, most: int, timeout: float | None = 0) -> Batch:
        """Take up to ``most`` messages at once, in order.

        Waits up to ``timeout`` seconds for the first one only (default: not at all); gives an
        empty batch when there is none. A damaged message ends the batch before it; the next call
        raises its :class:`DamageError`. One append to the journal for the batch.
        """
        if not isinstance(most, int) or most < 1:
            raise UsageError(f"the number of messages must be at least 1, not {most!r}")
        with self._lock:
            ready = self._available(timeout)
            # Made after the waiting: what was given back meanwhile may be a part of it.
            batch = Batch(self, self._index.nacks)
            if ready:
                try:
                    while len(batch) < most and self._take_into(batch, most - len(batch)):
                        pass
                finally:
                    self._mark_out(batch)
            return batch

    def _take_into(self, batch: Batch, most: int) -> bool:
        """Move messages that may be delivered into ``batch``; false when it has to end here."""
        if self._returned:
            seq = heapq.heappop(self._returned)
            body, extra = self._returned_by_seq.pop(seq)
            return self._take_entry(batch, seq, extra, body)
        at = self._at
        if at == len(self._window.seqs):
            if not self._fill(min(max(most, READ_AHEAD), _MOST_READ_AHEAD)):
                return False
            at = 0
        window = self._window
        if window.plain:
            end = min(len(window.seqs), at + most)
            part = slice(at, end)
            self._at = end
            batch._extend(
                window.seqs[part], window.bodies[part], window.states[part], window.extras[part]
            )
            return True
        self._at = at + 1
        return self._take_entry(batch, window.seqs[at], window.extras[at], window.bodies[at])

    def _take_entry(self, batch: Batch, seq: int, extra: int | Entry, body: bytes) -> bool:
        """Move one message into ``batch``, or drop it (expired); false when it is damaged and
        the batch has to end before it."""
        if not isinstance(extra, int):
            admitted = self._admit(seq, body, extra)
            if admitted is None:
                return True
            if batch and admitted.message is None:
                # Its error is for the next call, and belongs to no message of this batch.
                self._give_back(seq, body, admitted)
                return False
            extra, body = admitted, self._body(seq, admitted)
        state = self._index.states_of(np.array([seq])).tobytes()
        batch._extend((seq,), (body,), state, (extra,))
        return True

    def _mark_out(self, batch: Batch) -> None:
        if not batch:
            return
        seqs = _array(batch.seq_ids)
        index = self._index
        try:
            states = index.states_of(seqs)
            index.append_actions(DELIVER, seqs[states == PUBLISHED])
        except BaseException:
            for seq, body, extra in zip(batch.seq_ids, batch.bodies, batch._extras, strict=True):
                self._give_back(seq, body, extra)
            raise
        index.set_states(seqs, OUT)
        index.taken += len(batch)
        self._tick()

    def consume(self, prefetch: int = 100, timeout: float | None = None) -> Iterator[Delivery]:
        """Yield messages as they come; ends when none came for ``timeout`` seconds.

        At most ``prefetch`` of those it gave are unacknowledged at a time: then it waits for an
        ack (by another thread), up to ``timeout`` seconds too, before it gives the next.
        """
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        given: list[Delivery] = []
        while True:
            if len(given) >= prefetch:
                given = self._await_settled(given, timeout)
                if len(given) >= prefetch:
                    return
            delivery = self.get(timeout)
            if delivery is None:
                return
            given.append(delivery)
            yield delivery

    def _await_settled(self, given: list[Delivery], timeout: float | None) -> list[Delivery]:
        """Wait until one of these is settled, or the time is up; gives those that are not."""
        deadline = None if timeout is None else monotonic() + timeout
        with self._lock:
            while True:
                held = [delivery for delivery in given if not delivery.settled]
                left = _time_left(deadline)
                if len(held) < len(given) or (left is not None and left <= 0):
                    return held
                self._holding += 1
                try:
                    self._settled.wait(left)
                finally:
                    self._holding -= 1
                self._check_open()

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
            self._index.journal.sync()

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write. Raises as :meth:`ack`; then none is acknowledged."""
        with self._lock:
            seqs = self._outstanding(deliveries)
            if len(seqs):
                self._ack_all(seqs)
        if self._sync_each and len(seqs):
            self._index.journal.sync()

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
            self._index.journal.sync()
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
        """Give a message back: it returns to its place in the queue, or with ``requeue=False``
        it is dropped. Raises as :meth:`ack`."""
        if not requeue:
            self.ack(delivery)
            return
        with self._lock:
            self._outstanding([delivery])
            seq = delivery.seq_id
            segment = self._index.segment_of(seq)
            segment.states[seq - segment.base] = DELIVERED
            self._give_back(seq, delivery.body, delivery._extra)
            delivery._queue = None
            index = self._index
            index.nacks += 1
            self._nacked_at[seq] = index.nacks
            if self._holding:
                self._settled.notify_all()
            if self._waiting:
                self._arrived.notify()

    def requeue(self, delivery: Delivery) -> None:
        """Give a message back to its place; the same as ``nack(delivery, requeue=True)``."""
        self.nack(delivery, requeue=True)

    def _outstanding(self, deliveries: Iterable[Delivery]) -> I64:
        """Give the seq_ids of these deliveries, all of them outstanding.

        Raises :class:`UsageError` for the first that is not, or that stands there twice.
        """
        if isinstance(deliveries, Batch) and deliveries._queue is self:
            seqs = _array(deliveries.seq_ids)
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
            msg_id = self._stored_out.pop(seq, None)
            if msg_id is not None:
                stored.append(msg_id)
        if stored:
            self._release(stored)
        if self._holding:
            self._settled.notify_all()


def _no_delivery(what: object) -> UsageError:
    return UsageError(f"not a delivery: {type(what).__name__}")


def _not_ours(delivery: Delivery, queue: Consumer) -> UsageError:
    """Say why this delivery can't be settled by this queue."""
    owner = delivery._queue
    if owner is None or owner is queue:
        return UsageError(f"delivery of seq_id {delivery.seq_id} is settled already")
    return UsageError(
        f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r}, "
        f"not to {queue.name!r}"
    )


def _time_left(deadline: float | None) -> float | None:
    """Give the seconds left, no more than a lock can wait for; ``None``: for ever."""
    return None if deadline is None else min(deadline - monotonic(), TIMEOUT_MAX)


def _array(seqs: list[int]) -> I64:
    """Give ascending seq_ids as an array; most often they are a run."""
    if seqs and seqs[-1] - seqs[0] + 1 == len(seqs):
        return np.arange(seqs[0], seqs[-1] + 1, dtype=np.int64)
    return np.array(seqs, np.int64)
