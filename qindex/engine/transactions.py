"""Transactions: publishes and acks in several queues, all of them or none.

What a transaction publishes is appended at once, so that it has its seq_id, and is kept from all
readers (:data:`qindex.index.segment.PENDING`). What it acknowledges is marked as being moved.

1. Before each append, a frame in ``qindex.transactions`` says which messages come.
2. A frame with the acks is the *commit point* (:meth:`qindex.engine.moves.Moves.commit`). It is
   written with the locks of all queues of the transaction held, when nothing else can fail.
3. The messages become ready, the acks count, and the locks are released: nobody sees a part. The
   acks reach the journals as those of moves do: after what was published is durable, many at a
   time.

After a crash, recovery (:func:`qindex.engine.move_recovery.finish_transactions`) drops what a
transaction without its commit has published, and acknowledges what a committed one acknowledges.

With ``durability="fsync"`` each step is on disk before the next begins. Otherwise a sync of the
engine or of any queue syncs the file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from time import time_ns
from types import TracebackType
from typing import Any

from journal.errors import ClosedError, StoreError, UsageError
from journal.locks.calls import Calls
from qindex.engine.moves import Moves
from qindex.engine.transaction_log import TransactionLog
from qindex.format.entries import make_entry
from qindex.format.message import Body, Message, message_of
from qindex.format.transactions import pack_published
from qindex.format.unique import Until
from qindex.index.segment import PENDING
from qindex.queue.delays import due_time
from qindex.queue.delivery import Delivery, no_delivery, refusal_of
from qindex.queue.parts import QueueParts
from qindex.queue.prepared_message import Prepared
from qindex.queue.queue import Queue
from qindex.queue.settling import Settler

_log = logging.getLogger("qindex.transactions")

_BARE = (*(None,) * 9, "acked")


class _Part:
    """What a transaction publishes by one call: :class:`qindex.queue.prepared_message.Notes`."""

    __slots__ = (
        "_due",
        "_id_high",
        "_items",
        "_log",
        "_noted",
        "_number",
        "_seqs",
        "parts",
        "then",
    )

    def __init__(
        self, log: TransactionLog, number: int, id_high: int, parts: QueueParts, due: int
    ) -> None:
        self._log = log
        self._number = number
        self._id_high = id_high
        self.parts = parts
        self.then: Callable[[], None] | None = None
        self._due = due
        # Announced, and published.
        self._noted = self._seqs = range(0)
        # Of each message its id, where it is in the message store, and the bytes of its body.
        self._items: list[tuple[bytes, int]] = []

    def publish(self, body: bytes) -> int:
        """Publish a body that needs nothing else; -1 if it does."""
        self._items = [(b"", len(body))]
        return self.parts.producer.append_pending(body, self._id_high, self)

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        """Announce the messages."""
        self._items = [(b"" if item.stored is None else item.msg_id, item.size) for item in items]
        self.announce(first, [item.msg_id for item in items])

    def announce(self, first: int, ids: list[bytes]) -> None:
        """Note which messages come. Raises :class:`StorageError`."""
        self._noted = range(first, first + len(ids))
        state = self.parts.state
        frame = pack_published(self._number, state.name, state.base + first, ids)
        self._log.note(self._number, frame)

    def after(self) -> None:
        """Keep them from all readers."""
        self._seqs = self._noted
        for seq in self._seqs:
            self.parts.state.index.pend(seq)

    def admit(self) -> None:
        """Let them be delivered. Lock held."""
        for seq in self._seqs:
            self.parts.state.admit(seq, self._due)
        if self.then is not None:
            self.then()

    def drop(self) -> None:
        """Drop them, as nobody has seen them. Raises :class:`StoreError`."""
        state = self.parts.state
        with state.lock, state:
            # Those of a failed append are announced alone.
            for seq, (msg_id, size) in zip(self._seqs, self._items, strict=False):
                if seq < state.index.next_seq and state.index.state_of(seq) == PENDING:
                    entry = make_entry(msg_id, 0, size, None, stored=bool(msg_id))
                    self.parts.letters.reader.drop(seq, entry)


class Transactions:
    """The transactions of one engine."""

    def __init__(self, moves: Moves, calls: Calls, parts_of: Callable[[str], QueueParts]) -> None:
        self.moves = moves
        self.log: TransactionLog = moves.log
        self.calls = calls
        self.parts_of = parts_of
        self.open: set[Transaction] = set()

    def roll_back(self) -> None:
        """Roll back all that are under way: the engine closes."""
        for one in list(self.open):
            one._roll_back()


class Transaction:
    """Publishes and acks that happen together. Made by
    :meth:`qindex.engine.engine.Engine.transaction`, and used in a ``with`` block.

    The end of the block commits. An exception in it rolls back: nothing was published, and the
    deliveries are as they were. One thread uses it at a time.
    """

    __slots__ = ("__weakref__", "_acks", "_all", "_id_high", "_number", "_parts")

    def __init__(self, transactions: Transactions) -> None:
        self._all = transactions
        self._number = 0
        self._parts: list[_Part] = []
        self._acks: list[tuple[Settler, Delivery]] = []

    def __enter__(self) -> Transaction:
        if self._number:
            raise UsageError("a transaction is used once: make another one")
        self._all.calls.check()
        self._number = self._all.log.begin()
        # Of its own: where an append fails, another message takes the seq_id.
        self._id_high = int.from_bytes(os.urandom(8), "big")
        self._all.open.add(self)
        return self

    def publish(
        self,
        queue: str | Queue,
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        window: float | None = None,
        until: Until = "acked",
        priority: int | None = None,
    ) -> int:
        """Publish a message once the transaction is committed.

        The message has the place of its seq_id in the queue. A consumer that has passed this place
        gets the message next.

        Args:
            queue: The queue, or its name. It is made if there is none.
            body: The message, as :meth:`qindex.Queue.publish` takes it; the other arguments
                likewise.

        Returns:
            The message's seq_id. After a rollback no message has it.

        Raises:
            UsageError: The transaction is over; or as :meth:`qindex.Queue.publish`.
            DuplicateError: Another message holds the unique key.
            QueueFullError: The queue is full. Messages of transactions count.
            StorageError: The system refuses. The transaction goes on without the message.

        Example:
            >>> with engine.transaction() as tx:
            ...     seq_id = tx.publish("emails", b"welcome")
        """
        given = (key, headers, properties, ttl, delay, at, unique, window, priority, until)
        if type(body) is bytes and given == _BARE:
            seq = self._publish_body(queue, body)
            if seq >= 0:
                return seq
        message = message_of(body, key, headers, properties, time_ns())
        due = due_time(delay, at)
        return self._publish(queue, message, ttl, timeout, due, unique, window, until, priority)

    def _publish_body(self, queue: str | Queue, body: bytes) -> int:
        """Publish a body alone; -1 for a queue where that takes more."""
        every = self._checked()
        parts = _parts_of(every, queue)
        part = _Part(every.log, self._number, self._id_high, parts, 0)
        # First: a close that rolls this back meanwhile finds it.
        self._parts.append(part)
        try:
            seq = part.publish(body)
        except BaseException:
            self._drop(part)
            raise
        if seq < 0:
            self._parts.remove(part)
        return seq

    def _publish(
        self,
        queue: str | Queue,
        message: Message,
        ttl: float | None,
        timeout: float | None,
        due: int,
        unique: str | None,
        window: float | None,
        until: Until,
        priority: int | None,
        *,
        waits: bool = True,
    ) -> int:
        """See :meth:`publish`; ``waits``: whether the caller may wait for room."""
        every = self._checked()
        with every.calls.here():
            whole = _parts_of(every, queue)
            parts, message = whole.place(message, priority)
            part = _Part(every.log, self._number, self._id_high, parts, due)
            self._parts.append(part)
            try:
                seq = parts.producer.publish_noted(
                    message, part, ttl, timeout, due, unique, window, until, waits
                )
            except BaseException:
                self._drop(part)
                raise
        return parts.state.base + seq

    def _drop(self, part: _Part) -> None:
        """Take a failed call back; it may have failed after its append."""
        try:
            with suppress(ClosedError):  # it was deleted, and its messages with it
                part.drop()
        except StoreError:
            self._all.log.refuse(self._number)  # there is no commit with it
            raise
        self._parts.remove(part)

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery once the transaction is committed.

        Until then nothing else can settle it, and its lease does not run out.

        Args:
            delivery: A delivery of any queue of the engine.

        Raises:
            UsageError: The transaction is over, or the delivery is settled.
            LeaseExpiredError: Its lease has run out.

        Example:
            >>> delivery = orders.get()
            >>> with engine.transaction() as tx:
            ...     seq_id = tx.publish("invoices", delivery.body)
            ...     tx.ack(delivery)
        """
        every = self._checked()
        if not isinstance(delivery, Delivery):
            raise no_delivery(delivery)
        owner = delivery._queue
        if not isinstance(owner, Settler):
            raise refusal_of(delivery)
        if owner.mover is not every.moves:
            raise UsageError(f"the delivery is of queue {owner.name!r} of another engine")
        self._acks.append((owner, delivery))
        try:
            owner.begin_move(delivery)
        except StoreError:
            self._acks.pop()
            raise

    def _checked(self) -> Transactions:
        if self not in self._all.open:
            why = "is over" if self._number else "is used in a with block"
            raise UsageError(f"the transaction {why}")
        return self._all

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._roll_back()
            return
        try:
            self._commit()
        except BaseException:
            self._roll_back()
            raise

    def _commit(self) -> None:
        every = self._checked()
        if not (self._parts or self._acks):
            self._roll_back()
            return
        with every.calls.here():
            every.moves.commit(
                self._number, self._parts, self._acks, lambda: every.open.discard(self)
            )

    def _roll_back(self) -> None:
        """Undo all, unless it is decided. A failure leaves it to the next open."""
        every = self._all
        if self not in every.open:
            return
        every.open.discard(self)
        every.log.refuse(self._number)
        for owner, delivery in self._acks:
            with suppress(StoreError):
                owner.undo_move(delivery)
        whole = True
        for part in self._parts:
            try:
                part.drop()
            except ClosedError as error:
                _log.info("%s", error)  # it was deleted, and its messages with it
            except StoreError as error:
                whole = False
                _log.error("what a transaction published is dropped by the next open: %s", error)
        if not whole:
            return
        if not self._parts:
            every.log.end([self._number])
            return
        try:
            every.moves.rolled_back(self._number, self._parts)
        except StoreError as error:
            _log.error("what follows a rollback is left for later: %s", error)


def _parts_of(every: Transactions, queue: str | Queue) -> QueueParts:
    """Return the parts of a queue of the engine. Raises :class:`UsageError` for any other."""
    if not isinstance(queue, Queue):
        return every.parts_of(queue)
    if queue._parts.letters.mover is not every.moves:
        raise UsageError(f"queue {queue.name!r} is of another engine")
    return queue._parts
