"""Delivering and settling: the half of a queue that consumers use.

Messages are read ahead, a window at a time; the path of a single delivery and of a single ack is
written out in one function each.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator
from time import monotonic, time_ns

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError, StoreError, UsageError
from journal.format import ACK, DELIVER, TYPE_SHIFT
from qindex.delivery import Batch, Delivery
from qindex.entries import Entry
from qindex.quarantine import quarantine
from qindex.queue_core import QueueCore
from qindex.queue_index import Fetched
from qindex.segment import ACKED, DELIVERED, OUT, PUBLISHED

__all__ = ["READ_AHEAD", "Consumer"]

I64 = npt.NDArray[np.int64]

_log = logging.getLogger("qindex.queue")

_DELIVER_WORD = DELIVER << TYPE_SHIFT
_ACK_WORD = ACK << TYPE_SHIFT
READ_AHEAD = 512
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
            if self._window and not self._returned:
                delivery = self._window.pop()
            else:
                found = self._next(timeout)
                if found is None:
                    return None
                delivery = found
            while delivery._extra.__class__ is not int and not self._admit(delivery):
                found = self._next(timeout)
                if found is None:
                    return None
                delivery = found
            seq = delivery.seq_id
            segment = self._read_segment
            rel = seq - segment.base
            if not 0 <= rel < len(segment.states):
                segment = self._read_segment = self._index.segment_of(seq)
                rel = seq - segment.base
            states = segment.states
            if states[rel] == PUBLISHED:
                index = self._index
                try:
                    index.journal.write((_DELIVER_WORD | seq).to_bytes(8, "big"))
                except ValueError:
                    self._append_or_put_back(delivery, _DELIVER_WORD | seq)
                index.dirty += 1
            states[rel] = OUT
            self._out += 1
            return delivery

    def _append_or_put_back(self, delivery: Delivery, word: int) -> None:
        try:
            self._index.journal.append(word.to_bytes(8, "big"))
        except BaseException:
            self._window.append(delivery)
            raise

    def _next(self, timeout: float | None) -> Delivery | None:
        """Give the next ready message, not yet marked as delivered; waits. Lock held."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self._returned:
                return self._returned_by_seq.pop(heapq.heappop(self._returned))
            if self._window:
                return self._window.pop()
            if self._fill(READ_AHEAD):
                continue
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return None
            self._waiting += 1
            try:
                self._arrived.wait(left)
            finally:
                self._waiting -= 1
            self._check_open()

    def _fill(self, most: int) -> bool:
        """Read ahead into an empty window; false when nothing is ready."""
        fetched, self._next_fetch = self._index.fetch(self._next_fetch, most)
        if fetched is None:
            return False
        self._window = self._deliveries(fetched)
        self._window.reverse()
        return True

    def _deliveries(self, fetched: Fetched) -> list[Delivery]:
        again = [state == DELIVERED for state in fetched.states]
        if fetched.entries is None:
            columns = zip(fetched.seqs, fetched.bodies, again, fetched.stamps, strict=True)
            return [Delivery(self, *column) for column in columns]
        return [
            Delivery(
                self,
                seq,
                entry.message.body if entry.message is not None else b"",
                redelivered,
                _extra_of(entry),
            )
            for seq, entry, redelivered in zip(fetched.seqs, fetched.entries, again, strict=True)
        ]

    def _admit(self, delivery: Delivery) -> bool:
        """Decide on an entry that is not plain: false when it was dropped (expired).

        Raises :class:`DamageError` for a damaged one, after setting its bytes aside.
        """
        entry = delivery._extra
        assert isinstance(entry, Entry)
        if entry.corrected:
            path, offset = self._index.where(delivery.seq_id)
            _log.warning("%s: at offset %d: one flipped bit, corrected", path, offset)
        if entry.expiry and entry.expiry <= time_ns() // 1000:
            self._index.drop(np.array([delivery.seq_id]))
            return False
        if entry.message is None:
            what = entry.damage or "its message is in a message store that is not here"
            self._set_aside(delivery.seq_id, what)
        return True

    def _set_aside(self, seq_id: int, what: str) -> None:
        index = self._index
        path, offset = index.where(seq_id)
        quarantine(index.fs, path, offset, index.bytes_of(seq_id))
        index.drop(np.array([seq_id]))
        error = DamageError(path, offset, f"the message with seq_id {seq_id} is damaged: {what}")
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
        batch = Batch()
        with self._lock:
            found = self._next(timeout)
            if found is None:
                return batch
            self._put_back([found])
            try:
                while len(batch) < most:
                    taken = self._take_ready(most - len(batch), first=not batch)
                    if not taken:
                        break
                    batch += taken
            finally:
                self._mark_out(batch)
        return batch

    def _take_ready(self, most: int, *, first: bool) -> list[Delivery]:
        """Take messages that may be delivered from what was given back, or from the window."""
        if self._returned:
            seqs = [heapq.heappop(self._returned) for _ in range(min(most, len(self._returned)))]
            taken = [self._returned_by_seq.pop(seq) for seq in seqs]
        elif self._window or self._fill(min(max(most, READ_AHEAD), _MOST_READ_AHEAD)):
            taken = self._window[-most:]
            del self._window[-most:]
            taken.reverse()
        else:
            return []
        admitted: list[Delivery] = []
        for at, delivery in enumerate(taken):
            if delivery._extra.__class__ is int:
                admitted.append(delivery)
                continue
            entry = delivery._extra
            assert isinstance(entry, Entry)
            if entry.message is None and (admitted or not first):
                # Its error is for the next call, and belongs to no message of this batch.
                self._put_back(taken[at:])
                break
            try:
                if self._admit(delivery):
                    admitted.append(delivery)
            except StoreError:
                self._put_back(taken[at + 1 :])
                raise
        return admitted

    def _put_back(self, deliveries: list[Delivery]) -> None:
        """Make these the next ones again; they were not marked as delivered."""
        if self._returned:
            for delivery in deliveries:
                self._returned_by_seq[delivery.seq_id] = delivery
                heapq.heappush(self._returned, delivery.seq_id)
        else:
            self._window.extend(reversed(deliveries))

    def _mark_out(self, batch: Batch) -> None:
        if not batch:
            return
        seqs = np.array([delivery.seq_id for delivery in batch], np.int64)
        index = self._index
        try:
            states = index.states_of(seqs)
            index.append_actions(DELIVER, seqs[states == PUBLISHED])
        except BaseException:
            self._put_back(list(batch))
            raise
        index.set_states(seqs, OUT)
        self._out += len(batch)
        if index.dirty > self._max_dirty:
            self._flush_due()

    def consume(self, prefetch: int = 100, timeout: float | None = None) -> Iterator[Delivery]:
        """Yield messages as they come; ends when none came for ``timeout`` seconds.

        At most ``prefetch`` of those it gave are unacknowledged at a time: then it waits for an
        ack (by another thread) before it gives the next.
        """
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        given: list[Delivery] = []
        while True:
            if len(given) >= prefetch:
                given = [delivery for delivery in given if not delivery.settled]
            if len(given) >= prefetch:
                with self._lock:
                    self._waiting += 1
                    self._arrived.wait(0.05)
                    self._waiting -= 1
                continue
            delivery = self.get(timeout)
            if delivery is None:
                return
            given.append(delivery)
            yield delivery

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge: the message is done with, and never comes back once this is durable.

        Raises :class:`UsageError` for a delivery of another queue, or one that was settled.
        """
        with self._lock:
            if delivery._queue is not self:
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
            index = self._index
            try:
                index.journal.write((_ACK_WORD | seq).to_bytes(8, "big"))
            except ValueError:
                index.journal.append((_ACK_WORD | seq).to_bytes(8, "big"))
            states[rel] = ACKED
            delivery._queue = None
            self._out -= 1
            index.live -= 1
            index.dirty = dirty = index.dirty + 1
            if dirty > self._max_dirty:
                self._flush_due()
            if index.transient:
                index.transient.discard(seq)
        if self._sync_each:
            self._index.journal.sync()

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge a batch with one write. Raises as :meth:`ack`; then none is acknowledged."""
        batch = deliveries if isinstance(deliveries, list) else list(deliveries)
        if not batch:
            return
        with self._lock:
            self._settle(batch, ACK)
        if self._sync_each:
            self._index.journal.sync()

    def _settle(self, batch: list[Delivery], kind: int) -> I64:
        """Check that all of ``batch`` are outstanding, and settle them."""
        for delivery in batch:
            if delivery._queue is not self:
                raise _not_ours(delivery, self)
        seqs = np.array([delivery.seq_id for delivery in batch], np.int64)
        ascending = bool((seqs[1:] > seqs[:-1]).all())
        if not ascending and len(np.unique(seqs)) != len(seqs):
            raise UsageError("a delivery stands twice in the batch")
        index = self._index
        states = index.states_of(seqs)
        if (states != OUT).any():
            raise _not_ours(batch[int(np.flatnonzero(states != OUT)[0])], self)
        if kind == ACK:
            index.append_actions(ACK, seqs)
            index.set_states(seqs, ACKED)
            index.live -= len(seqs)
            if index.transient:
                index.transient.difference_update(seqs.tolist())
        else:
            index.set_states(seqs, DELIVERED)
        for delivery in batch:
            delivery._queue = None
        self._out -= len(seqs)
        if index.dirty > self._max_dirty:
            self._flush_due()
        return seqs

    def ack_up_to(self, seq_id: int) -> int:
        """Acknowledge all outstanding deliveries with a seq_id up to this one; gives their
        number."""
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise UsageError(f"a seq_id is an int, not {seq_id!r}")
        with self._lock:
            index = self._index
            seqs = index.outstanding_up_to(seq_id)
            index.append_actions(ACK, seqs)
            index.set_states(seqs, ACKED)
            index.live -= len(seqs)
            self._out -= len(seqs)
            if index.transient:
                index.transient.difference_update(seqs.tolist())
            if index.dirty > self._max_dirty:
                self._flush_due()
        if self._sync_each and len(seqs):
            self._index.journal.sync()
        return len(seqs)

    def nack(self, delivery: Delivery, requeue: bool = True) -> None:
        """Give a message back: it returns to its place in the queue, or with ``requeue=False``
        it is dropped. Raises as :meth:`ack`."""
        if not requeue:
            self.ack(delivery)
            return
        with self._lock:
            if delivery._queue is not self:
                raise _not_ours(delivery, self)
            self._settle([delivery], DELIVER)
            again = Delivery(self, delivery.seq_id, delivery.body, True, delivery._extra)
            self._returned_by_seq[delivery.seq_id] = again
            heapq.heappush(self._returned, delivery.seq_id)
            if self._waiting:
                self._arrived.notify()

    def requeue(self, delivery: Delivery) -> None:
        """Give a message back to its place; the same as ``nack(delivery, requeue=True)``."""
        self.nack(delivery, requeue=True)


def _not_ours(delivery: Delivery, queue: Consumer) -> UsageError:
    """Say why this delivery can't be settled by this queue."""
    owner = delivery._queue
    if owner is None or owner is queue:
        return UsageError(f"delivery of seq_id {delivery.seq_id} is settled already")
    return UsageError(
        f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r}, "
        f"not to {queue.name!r}"
    )


def _extra_of(entry: Entry) -> int | Entry:
    """Give what a delivery needs to keep of an entry: of a plain message only its timestamp."""
    message = entry.message
    if (
        message is None
        or entry.expiry
        or entry.corrected
        or message.key is not None
        or message.headers
        or message.properties
    ):
        return entry
    return message.timestamp
