"""The outstanding deliveries of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from journal.errors import StoreError, UsageError
from qindex.index.segment import OUT
from qindex.queue.delivery import (
    Batch,
    BatchDelivery,
    Delivery,
    Refusing,
    Settles,
    no_delivery,
    refusal_of,
)
from qindex.queue.state import QueueState

Seqs = range | npt.NDArray[np.int64]

_DELIVERIES = {Delivery, BatchDelivery}
_queue_of = attrgetter("_queue")


class Outstanding:
    """The deliveries of one queue that are neither acknowledged nor given back.

    ``owner``: the object that deliveries of this queue name as theirs. The queue's lock is held for
    every call but :meth:`is_out`.
    """

    owner: Settles

    def __init__(self, state: QueueState) -> None:
        self.state = state

    def ack_all(self, seqs: Seqs) -> None:
        """Acknowledge entries that are out, or being moved. Lock held."""
        state = self.state
        state.index.acknowledge_many(seqs)
        if state.noted or state.settled.waiting:
            state.forget(seqs if isinstance(seqs, range) else seqs.tolist())

    def seq_ids_of(self, deliveries: Iterable[Delivery]) -> Seqs:
        """Return the seq_ids of these deliveries, all of them outstanding. Lock held.

        Raises :class:`UsageError` for the first that is not, or that is there twice.
        """
        state = self.state
        index = state.index
        if isinstance(deliveries, Batch) and deliveries._queue is self.owner:
            seqs = seqs_of(deliveries)
            if state.noted:
                for at, seq in enumerate(deliveries._seqs):
                    note = state.noted.get(seq)
                    if note is not None and note.nacked_at > deliveries._taken:
                        raise self.not_ours(deliveries[at])
        else:
            deliveries = deliveries if isinstance(deliveries, Sequence) else list(deliveries)
            if state.noted or not self._are_ours(deliveries):
                for at, delivery in enumerate(deliveries):
                    if not isinstance(delivery, Delivery):
                        raise no_delivery(delivery, at, len(deliveries))
                    if delivery._queue is not self.owner:
                        raise self.not_ours(delivery)
                    self.check_taken(delivery)
            listed = [delivery.seq_id for delivery in deliveries]
            if state.base:
                listed = [seq - state.base for seq in listed]
            first = listed[0] if listed else 0
            if listed == list(range(first, first + len(listed))):
                seqs = range(first, first + len(listed))
            elif len(set(listed)) != len(listed):
                twice = next(seq for seq, times in Counter(listed).items() if times > 1)
                twice += state.base
                raise UsageError(f"the delivery of seq_id {twice} stands twice in the batch")
            else:
                seqs = np.array(listed, np.int64)
        if not index.all_are(seqs, OUT):
            settled = np.flatnonzero(index.states_of(seqs) != OUT)
            raise self.not_ours(deliveries[int(settled[0])])
        return seqs

    def _are_ours(self, deliveries: Sequence[Delivery]) -> bool:
        """Return whether all are deliveries of this queue, at a glance; false: look at each."""
        if set(map(type, deliveries)) <= _DELIVERIES:
            return set(map(_queue_of, deliveries)) == {self.owner}
        return False

    def check_taken(self, delivery: Delivery) -> None:
        """Refuse a delivery of a batch whose message was given back since."""
        if isinstance(delivery, BatchDelivery) and not self.is_out(delivery.seq_id, delivery.taken):
            raise self.not_ours(delivery)

    def is_out(self, seq_id: int, taken: int | None = None) -> bool:
        """Return whether an entry is still with a consumer. With ``taken``, whether it is still
        with the consumer that took it in a batch when ``taken`` messages had been given back. No
        lock is needed."""
        # Nothing is loaded or made here: a segment that is not in memory has nothing with a
        # consumer.
        state = self.state
        index = state.index
        seq_id -= state.base
        segment = index.segments.get(seq_id // index.entry_count)
        if segment is None:
            return False
        states, rel = segment.states, seq_id - segment.base
        if rel >= len(states) or states[rel] != OUT:
            return False
        note = state.noted.get(seq_id)
        return taken is None or note is None or note.nacked_at <= taken

    def has_lapsed(self, seq_id: int, taken: int) -> bool:
        """Return whether the lease of an entry has run out that a batch took when ``taken``
        messages had been given back."""
        seq_id -= self.state.base
        note = self.state.noted.get(seq_id)
        lapsed_at = self.state.lapsed.get(seq_id, -1) if note is None else note.lapsed_at
        return lapsed_at > taken

    def not_ours(self, delivery: Delivery) -> StoreError:
        """Say why this delivery can't be settled by this queue."""
        owner = delivery._queue
        if owner is None or owner is self.owner or isinstance(owner, Refusing):
            return refusal_of(delivery)
        return UsageError(
            f"delivery of seq_id {delivery.seq_id} belongs to queue {owner.name!r}, "
            f"not to {self.state.name!r}"
        )


def seqs_of(batch: Batch) -> Seqs:
    """Return the seq_ids of a batch as the run that they are most often, or as an array."""
    seqs = batch._seqs
    if seqs and batch._ordered and seqs[-1] - seqs[0] + 1 == len(seqs):
        return range(seqs[0], seqs[-1] + 1)
    return np.array(seqs, np.int64)
