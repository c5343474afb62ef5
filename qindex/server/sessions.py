"""Keep which client holds which deliveries, and give them back when it ends.

Nothing here knows of sockets, or of bytes.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from journal.errors import StoreError, UsageError
from qindex.engine.transactions import Transaction
from qindex.queue.delivering import Deliverer
from qindex.queue.delivery import Batch, Delivery, lease_expired
from qindex.queue.flushing import Flusher
from qindex.queue.plain_queue import Queue
from qindex.queue.producing import Producer
from qindex.queue.settling import Settler
from qindex.queue.state import QueueState

_MAX_LAPSED = 1 << 16
"""Deliveries that are remembered of those whose lease has run out unsettled."""
_SWEEP_AT = 4096
"""Deliveries that a session holds before those whose lease has run out are looked for."""


class Served:
    """A queue as its clients know it, with the parts that the server calls; ``number``: its name in
    requests, for as long as the server runs."""

    __slots__ = (
        "deliverer",
        "flusher",
        "number",
        "producer",
        "publish",
        "queue",
        "settler",
        "state",
        "sync_each",
    )

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue: Queue = queue
        self.number: int = number
        parts = queue._parts
        self.state: QueueState = parts.state
        self.flusher: Flusher = parts.flusher
        self.producer: Producer = parts.producer
        self.publish: Callable[..., int] = parts.producer.publish
        self.deliverer: Deliverer = parts.deliverer
        self.settler: Settler = parts.settler
        self.sync_each: bool = parts.state.sync_each


class Credit:
    """Limit what one consumer is given: at most ``prefetch`` messages are with it at a time.

    ``held``: their tags. ``is_hungry``: it has none left to hand out, and waits.
    """

    __slots__ = ("held", "is_hungry", "lease", "prefetch", "served")

    def __init__(self, served: Served, prefetch: int, lease: float | None) -> None:
        self.served: Served = served
        self.prefetch: int = prefetch
        self.lease: float | None = lease
        self.held: set[int] = set()
        self.is_hungry: bool = lease is None

    def room(self) -> int:
        """Return how many messages it is to be sent now.

        Half of them are sent together where it still has the other half to hand out. The lease of
        a message begins as it is sent, so a consumer with leases is sent one when it asks.
        """
        held = len(self.held)
        if self.lease is not None:
            return int(self.is_hungry and held < self.prefetch)
        if self.is_hungry or 2 * held <= self.prefetch:
            return self.prefetch - held
        return 0


Held = tuple[Served, Delivery, Credit | None]
HeldBatch = tuple[Served, dict[int, Delivery], Batch]


class Together:
    """A transaction of a client. ``lock``: held for each of its calls, some of which are made by
    other threads. ``acks``: queue, tag and delivery of each message that it acknowledges."""

    __slots__ = ("acks", "lock", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction: Transaction = transaction
        self.lock: LockType = allocate_lock()
        self.acks: list[tuple[Served, int, Delivery]] = []

    def roll_back(self) -> None:
        """Undo it, if it is not over."""
        with self.lock:
            self.transaction._roll_back()
        self.transaction.hand_over()


class Session:
    """One client. ``id``: a random secret that its further connections name.

    Each delivery has a tag, or each batch; a message that is delivered again gets another one.
    """

    def __init__(self) -> None:
        self.id: bytes = os.urandom(16)
        self.has_said_bye = False
        self._held: dict[int, Held | HeldBatch] = {}
        self._next_tag = 1
        self._lapsed: dict[tuple[int, int], None] = {}
        self.transactions: dict[int, Together] = {}
        self._next_transaction = 1
        self._sweep_at = _SWEEP_AT

    def begin(self, transaction: Transaction) -> int:
        """Keep a transaction for the client. Return its number."""
        number = self._next_transaction
        self._next_transaction = number + 1
        self.transactions[number] = Together(transaction)
        return number

    def transaction(self, number: int) -> Together:
        """Return a transaction of the client. Raises :class:`UsageError`."""
        found = self.transactions.get(number)
        if found is None:
            raise UsageError(f"the transaction {number!r} is over")
        return found

    def hold(self, served: Served, delivery: Delivery, credit: Credit | None = None) -> int:
        """Note a delivery as the client's. Return its tag."""
        tag = self._next_tag
        self._next_tag = tag + 1
        self._held[tag] = (served, delivery, credit)
        if credit is not None:
            credit.held.add(tag)
        elif len(self._held) > self._sweep_at:
            self._sweep()
        return tag

    def hold_batch(self, served: Served, batch: Batch) -> int:
        """Note a batch as the client's. Return its tag."""
        tag = self._next_tag
        self._next_tag = tag + 1
        self._held[tag] = (served, {}, batch)
        return tag

    def queue_of(self, tag: int) -> Served | None:
        """Return the queue of a delivery or batch that the client holds."""
        held = self._held.get(tag)
        return None if held is None else held[0]

    def find(self, served: Served, tag: int, seq_id: int) -> Delivery:
        """Return a delivery that the client holds. Raises :class:`UsageError`,
        :class:`LeaseExpiredError`."""
        held = self._held.get(tag)
        if held is not None and held[0] is served:
            found = held[1]
            if isinstance(found, Delivery):
                if found.seq_id == seq_id:
                    return found
            else:
                delivery = self._opened(held).get(seq_id)
                if delivery is not None:
                    return delivery
        if (tag, seq_id) in self._lapsed:
            raise lease_expired(seq_id)
        raise UsageError(f"delivery of seq_id {seq_id} is settled already")

    def find_many(self, served: Served, tags: list[int], seq_ids: list[int]) -> Iterable[Delivery]:
        """Return deliveries as :meth:`find`; ``tags``: one for all, or one for each."""
        if len(tags) == 1 and len(seq_ids) != 1:
            held = self._held.get(tags[0])
            if (
                held is not None
                and held[0] is served
                and len(held) == 3
                and isinstance(held[2], Batch)
                and not held[1]
                and seq_ids == held[2].seq_ids
            ):
                return held[2]
            tags = tags * len(seq_ids)
        if len(tags) != len(seq_ids):
            raise UsageError("a batch has as many tags as seq_ids")
        return [self.find(served, tag, seq) for tag, seq in zip(tags, seq_ids, strict=True)]

    def _opened(self, held: Held | HeldBatch) -> dict[int, Delivery]:
        found = held[1]
        assert isinstance(found, dict)
        assert isinstance(held[2], Batch)
        if not found:
            found.update((one.seq_id, one) for one in held[2])
        return found

    def forget(self, tag: int, seq_id: int) -> Credit | None:
        """A delivery was settled. Return the credit that it was of."""
        held = self._held.get(tag)
        if held is None:
            return None
        found = held[1]
        if type(found) is not dict:
            del self._held[tag]
            credit = held[2]
            assert not isinstance(credit, Batch)
            if credit is not None:
                credit.held.discard(tag)
            return credit
        found.pop(seq_id, None)
        if not found:
            del self._held[tag]
        return None

    def forget_many(self, tags: list[int], seq_ids: list[int]) -> set[Credit]:
        """Deliveries were settled, as :meth:`find_many` found them. Return their credits."""
        if len(tags) == 1 and len(seq_ids) != 1:
            held = self._held.get(tags[0])
            if held is not None and held[1] == {}:
                del self._held[tags[0]]
                return set()
            tags = tags * len(seq_ids)
        credits = map(self.forget, tags, seq_ids)
        return {one for one in credits if one is not None}

    def _all(self) -> Iterator[tuple[Served, list[Delivery]]]:
        for held in self._held.values():
            if type(held[1]) is dict:
                yield held[0], list(self._opened(held).values())
            else:
                assert isinstance(held[1], Delivery)
                yield held[0], [held[1]]

    def count(self) -> int:
        """Return how many deliveries the client holds."""
        self._sweep()
        return sum(len(deliveries) for _, deliveries in self._all())

    def _sweep(self) -> None:
        """Forget deliveries that came back when their lease ran out, or were settled by others."""
        for tag, held in list(self._held.items()):
            found = held[1]
            if type(found) is dict:
                for one in list(self._opened(held).values()):
                    self._look_at(tag, one)
            elif isinstance(found, Delivery):
                self._look_at(tag, found)
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._held))

    def _look_at(self, tag: int, delivery: Delivery) -> None:
        if delivery.settled and not self._in_transaction(delivery):
            if delivery._has_lapsed():
                self.note_lapsed(tag, delivery.seq_id)
            self.forget(tag, delivery.seq_id)

    def note_lapsed(self, tag: int, seq_id: int) -> None:
        """Remember that the lease of a delivery ran out: each call that settles it says so."""
        self._lapsed[tag, seq_id] = None
        if len(self._lapsed) > _MAX_LAPSED:
            del self._lapsed[next(iter(self._lapsed))]

    def _in_transaction(self, delivery: Delivery) -> bool:
        return any(
            delivery is one for each in self.transactions.values() for _, _, one in each.acks
        )

    def take_back(self, tags: Iterable[int]) -> None:
        """Take back what never reached the client's program; it does not count as delivered."""
        for tag in tags:
            held = self._held.pop(tag, None)
            if held is None:
                continue
            if type(held[1]) is dict:
                deliveries = list(self._opened(held).values())
            else:
                assert isinstance(held[1], Delivery)
                deliveries = [held[1]]
                if isinstance(held[2], Credit):
                    held[2].held.discard(tag)
            with suppress(StoreError):  # deleted meanwhile, or the engine is closed
                held[0].settler.take_back_uncounted(deliveries)

    def end(self) -> None:
        """The client has gone: all that it held goes back to its queues, as delivered if it died,
        as if it had not been if it has said good-bye."""
        transactions, self.transactions = self.transactions, {}
        for one in transactions.values():
            one.roll_back()
        if self.has_said_bye:
            self.take_back(list(self._held))
            return
        for served, deliveries in list(self._all()):
            for delivery in deliveries:
                with suppress(StoreError):  # settled by others meanwhile, or its lease ran out
                    served.settler.nack(delivery)
                    served.state.hand_over()
        self._held.clear()
