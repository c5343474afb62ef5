"""Transactions: publishes and acks in several queues, all of them or none.

What a transaction publishes is appended at once, so that it has its seq_id, and is kept from all
readers (:data:`qindex.index.segment.PENDING`). What it acknowledges is marked as being moved.

1. Before each append, a frame in ``qindex.transactions`` says which messages come.
2. A frame with the acks is the *commit point* (:meth:`Transaction._commit`). It is written with the
   locks of all queues of the transaction held, when nothing else can fail.
3. The messages become ready, the acks count, and the locks are released: nobody sees a part. The
   acks reach the journals as those of moves do: many at a time, after the published messages are
   durable.

After a crash, recovery (:mod:`qindex.engine.transaction_recovery`) drops what a
transaction without its commit has published, and acknowledges what a committed one acknowledges.

With ``durability="fsync"`` each step is on disk before the next begins. Otherwise a sync of the
engine or of any queue syncs the file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from time import time_ns
from types import TracebackType
from typing import Any

from journal.errors import ClosedError, StoreError, UsageError
from journal.locks.call_lock import CallLock, refuse_twice
from journal.locks.calls import Calls
from journal.locks.patience import PatientLock
from qindex.engine.moves import Moves
from qindex.engine.transaction_log import Noted, TransactionLog
from qindex.format.entries import make_entry
from qindex.format.headers import Until
from qindex.format.message import Body, Message, message_of
from qindex.format.transactions import (
    pack_ack,
    pack_committed,
    pack_name,
    pack_published,
)
from qindex.format.values import Value
from qindex.index.segment import PENDING
from qindex.queue.delivery import Delivery, no_delivery, refusal_of
from qindex.queue.notes.delays import due_time
from qindex.queue.parts import QueueParts
from qindex.queue.plain_queue import Queue
from qindex.queue.prepared_message import Prepared
from qindex.queue.producing import SHARED_BELOW, Later
from qindex.queue.room import WouldWaitError
from qindex.queue.settling import Settler
from qindex.queue.state import QueueState
from qindex.queue.waiting import await_room

_log = logging.getLogger("qindex.transactions")

_ID_MASK = (1 << 64) - 1
_MAX_UNSETTLED = 1 << 14
"""Transactions that are over and not yet forgotten, at the most; likewise their acks. To forget
them takes a few syncs, and the open after a crash looks at each of them."""


class _Part(Later):
    """A message that a transaction publishes."""

    __slots__ = (
        "_due",
        "_log",
        "_msg_id",
        "_noted",
        "_seq",
        "_size",
        "_transaction",
        "parts",
        "state",
    )

    parts: QueueParts
    state: QueueState
    _log: TransactionLog
    _transaction: Noted

    def __init__(self) -> None:
        self.then = None
        self._due: int = 0
        # Announced, and published.
        self._noted: int = -1
        self._seq: int = -1
        # Its id, if it is in the message store, and the bytes of its body.
        self._msg_id: bytes = b""
        self._size: int = 0

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        """Announce the message."""
        (item,) = items
        if item.stored is not None:
            self._msg_id = item.msg_id
        self._size = item.size
        self.announce(first, item.msg_id)

    def announce(self, seq: int, msg_id: bytes) -> None:
        """Note which message comes. Raises :class:`StorageError`."""
        self._noted = seq
        state = self.state
        name = _noted_as(state)[0]
        frame = pack_published(self._transaction.number, name, state.base + seq, msg_id)
        self._log.note(self._transaction, frame)

    def after(self) -> None:
        """Keep it from all readers."""
        self._seq = self._noted
        self.state.index.pend(self._seq)

    def admit(self) -> None:
        """Let it be delivered. Lock held."""
        self.state.admit(self._seq, self._due)
        if self.then is not None:
            self.then()

    def drop(self) -> None:
        """Drop it, as nobody has seen it. Raises :class:`StoreError`."""
        state, seq = self.state, self._seq
        with state.lock, state:
            # That of a failed append is announced alone.
            if 0 <= seq < state.index.next_seq and state.index.state_of(seq) == PENDING:
                entry = make_entry(self._msg_id, 0, self._size, None, stored=bool(self._msg_id))
                self.parts.letters.reader.drop(seq, entry)


class Transactions:
    """The transactions of one engine."""

    __slots__ = ("boot", "calls", "id_high", "lock", "log", "moves", "open", "parts_of")

    def __init__(
        self, moves: Moves, lock: CallLock, calls: Calls, parts_of: Callable[[str], QueueParts]
    ) -> None:
        """``lock``: refuses since the engine was closed."""
        self.moves: Moves = moves
        self.log: TransactionLog = moves.log
        self.lock: CallLock = lock
        self.calls: Calls = calls
        self.parts_of: Callable[[str], QueueParts] = parts_of
        self.open: set[Transaction] = set()
        self.boot: bytes = moves.boot
        # The ids of the messages of a transaction start with this and its number, added.
        self.id_high: int = int.from_bytes(os.urandom(8), "big")

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

    __slots__ = (
        "__weakref__",
        "_acks",
        "_all",
        "_id_high",
        "_is_open",
        "_noted",
        "_number",
        "_owes_settling",
        "_parts",
    )

    def __init__(self, transactions: Transactions) -> None:
        self._all = transactions
        self._is_open: bool = False
        self._number = 0
        self._id_high = 0
        self._parts: list[_Part] = []
        # Marked as being moved, each with its queue.
        self._acks: list[Delivery] = []
        self._owes_settling: bool = False

    def __enter__(self) -> Transaction:
        if self._number:
            raise UsageError("a transaction is used once: make another one")
        self._begin()
        return self

    def _begin(self) -> None:
        every = self._all
        every.lock.check()
        self._noted = every.log.begin()
        self._number = self._noted.number
        # Of its own: where an append fails, another message takes the seq_id.
        self._id_high = (every.id_high + self._number) & _ID_MASK
        every.open.add(self)
        self._is_open = True

    def publish(
        self,
        queue: str | Queue,
        body: Body | Message | Value,
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
            body: Bytes, a Message, or a value if a queue with a serializer is passed.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            ttl: Seconds after which the message is dropped once it is at the head.
            timeout: Seconds to wait for room with ``overflow="block"``. None: forever.
            delay: Seconds before which it is not delivered.
            at: A datetime with a time zone before which it is not delivered.
            unique: A key that at most one message of the queue holds at a time.
            window: Seconds for which the unique key stays taken at least.
            until: What frees the unique key: ``"acked"`` or ``"delivered"``.
            priority: 0 to the queue's ``max_priority``, higher first.

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
        given: Any = body
        if isinstance(queue, Queue) and queue._coder is not None:
            given, properties = queue._coder.encode(body, properties)
        if (
            type(given) is bytes
            and key is None
            and headers is None
            and properties is None
            and ttl is None
            and delay is None
            and at is None
            and unique is None
            and window is None
            and priority is None
            and until == "acked"
        ):
            seq = self._publish_body(queue, given)
            if seq >= 0:
                return seq
        message = message_of(given, key, headers, properties, time_ns())
        due = due_time(delay, at)
        while True:
            try:
                seq = self._publish(queue, message, ttl, due, unique, window, until, priority)
                self.catch_up()
                return seq
            except WouldWaitError as full:
                timeout = await_room(full, timeout)

    def _new_part(self, parts: QueueParts) -> _Part:
        part = _Part()
        part._log = self._all.log
        part._transaction = self._noted
        part.parts = parts
        part.state = parts.state
        return part

    def _publish_body(self, queue: str | Queue, body: bytes) -> int:
        """Publish a body alone; -1 for a queue where that takes more."""
        every = self._checked()
        parts = _parts_of(every, queue)
        part = self._new_part(parts)
        part._size = len(body)
        producer = parts.producer
        # First: a close that rolls this back meanwhile finds it.
        self._parts.append(part)
        try:
            seq = producer.append_pending(body, self._id_high, part)
        except BaseException:
            self._drop(part)
            raise
        if seq < 0:
            self._parts.remove(part)
        if parts.state.owed:
            parts.state.catch_up()
        return seq

    def _publish(
        self,
        queue: str | Queue,
        message: Message,
        ttl: float | None = None,
        due: int = 0,
        unique: str | None = None,
        window: float | None = None,
        until: Until = "acked",
        priority: int | None = None,
    ) -> int:
        """See :meth:`publish`. Raises :class:`WouldWaitError`."""
        every = self._checked()
        with every.calls.here():
            whole = _parts_of(every, queue)
            parts, message = whole.place(message, priority)
            part = self._new_part(parts)
            part._due = due
            self._parts.append(part)
            try:
                seq = parts.producer.publish_noted(message, part, ttl, due, unique, window, until)
            except BaseException:
                self._drop(part)
                raise
        return parts.state.base + seq

    def _publish_to(
        self,
        names: Sequence[str],
        message: Message,
        ttl: float | None,
        persistent: bool,
    ) -> list[int]:
        """Publish one message to several queues, and return its seq_id in each. Raises
        :class:`WouldWaitError`. If it raises, the transaction must be rolled back."""
        every = self._checked()
        is_plain = (
            persistent
            and ttl is None
            and message.key is None
            and not (message.headers or message.properties or message.timestamp)
            and len(message.body) < SHARED_BELOW
        )
        seqs = [self._publish_body(name, message.body) if is_plain else -1 for name in names]
        others = [every.parts_of(name) for name, seq in zip(names, seqs, strict=True) if seq < 0]
        if not others:
            return seqs
        shared = iter(self._share(others, message, ttl, persistent))
        return [next(shared) if seq < 0 else seq for seq in seqs]

    def _share(
        self,
        queues: Sequence[QueueParts],
        message: Message,
        ttl: float | None,
        persistent: bool,
    ) -> list[int]:
        """See :meth:`_publish_to`. A large record is written to the message store once, with a
        reference for each queue."""
        if not message.timestamp:
            message = replace(message, timestamp=time_ns())
        levels = [queue.level_for(message) for queue in queues]
        first = levels[0].producer
        first.check_message(message)
        expiries = [level.producer.expiry(ttl) for level in levels]
        timed = any(level.state.later is not None for level in levels)
        item = first.prepared(message, persistent, len(levels), timed=timed)
        held: list[list[Prepared]] = []
        stored: list[bytes] = []
        seqs: list[int] = []
        try:
            for level in levels:
                held.append(level.producer.room.ask([item]))
            # A queue that has its entry is taken off the list.
            stored += first.store_records([item], len(levels)) * len(levels)
            for level, expiry, one in zip(levels, expiries, held, strict=True):
                part = self._new_part(level)
                self._parts.append(part)
                taken = level.producer.append_entries(
                    [item], expiry, persistent, held=one, notes=part
                )
                del stored[:1]
                seqs.append(level.state.base + taken.start)
        except BaseException as error:
            first.give_up(stored, error)
            raise
        finally:
            for level, one in zip(levels, held, strict=False):
                level.producer.room.give_back(one)
        for level in levels:
            level.producer.room.keep_within()
        return seqs

    def _drop(self, part: _Part) -> None:
        """Take a failed call back; it may have failed after its append."""
        try:
            with suppress(ClosedError):  # it was deleted, and its messages with it
                part.drop()
        except StoreError:
            self._all.log.end_one(self._noted)  # there is no commit with it
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
        settler: Settler = owner
        self._acks.append(delivery)
        try:
            settler.begin_move(delivery)
        except StoreError:
            self._acks.pop()
            raise

    def _checked(self) -> Transactions:
        if not self._is_open:
            why = "is over" if self._number else "must be used in a with block"
            raise UsageError(f"the transaction {why}")
        return self._all

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self._roll_back()
                return
            self._checked()
            if self._parts or self._acks:
                self._commit()
            else:
                self._roll_back()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self.catch_up()

    def catch_up(self) -> None:
        """Pay what its calls owe, for a thread. No lock is held."""
        for part in self._parts:
            if part.state.owed:
                part.state.catch_up()
        if self._owes_settling:
            self._owes_settling = False
            self._all.moves.pay()

    def hand_over(self) -> None:
        """Leave what its calls owe to the engine's threads, for a loop."""
        for part in self._parts:
            part.state.hand_over()
        if self._owes_settling:
            self._owes_settling = False
            self._all.moves.is_asked_for()

    def _commit(self) -> None:
        """Commit: the published messages can be delivered, and the deliveries are acknowledged.
        Raises :class:`StoreError`. Nothing has changed then, or writes are refused from now on."""
        every, moves = self._all, self._all.moves
        targets: list[QueueState] = []
        for part in self._parts:
            _add(targets, part.state)
        lock = moves.lock
        if lock.is_mine():
            refuse_twice()
        try:
            lock.wait_for_it()
            lock.check()
            moves.check()
            if moves.fsync:
                for state in targets:
                    state.sync_all()
            # A close does not roll it back any more: it waits for the lock.
            self._checked()
            self._commit_held(targets)
            if not self._acks:
                every.log.end_all((self._noted,))
            lock.let_go()
        except BaseException:
            lock.let_go()  # a signal's handler may have raised as the other one began
            raise
        if moves.fsync:
            self._sync_keys()
        self._owes_settling = moves.follow_up(_MAX_UNSETTLED)

    def _sync_keys(self) -> None:
        """Make the windows of unique keys durable. The transaction is committed, which no error may
        deny."""
        for part in self._parts:
            keys = part.state.keys
            if part.then is not None and keys is not None:
                try:
                    keys.sync()
                except StoreError as error:
                    _log.error("a window of a unique key is left for later: %s", error)

    def _commit_held(self, targets: list[QueueState]) -> None:
        """See :meth:`_commit`; the lock of the moves is held. The locks of the queues are taken."""
        every, moves = self._all, self._all.moves
        states = targets[:]
        for delivery in self._acks:
            _add(states, _owner_of(delivery).state)
        frame = self._frame(every)
        locks = _locks_of(states)
        is_done = False
        try:
            _take_together(locks)
            for state in states:
                if state.index.changing:
                    state.read_again()
            every.log.note(self._noted, frame)
            every.open.discard(self)
            self._is_open = False
            for part in self._parts:
                part.admit()
            for delivery in self._acks:
                owner = _owner_of(delivery)
                moves.settle_with(self._noted, owner.letters, [owner.end_move(delivery)], targets)
            is_done = True
            _release(locks)
        except BaseException as error:
            # Only an error that came before the commit point leaves all as it was.
            if not is_done and not (self._is_open and isinstance(error, StoreError)):
                moves.poison.cut_short(error)
            _release(locks)  # a signal's handler may have raised in between
            raise

    def _frame(self, every: Transactions) -> bytes:
        """Return the frame of the commit."""
        if len(self._acks) == 1:
            delivery = self._acks[0]
            owner = _owner_of(delivery)
            name = _noted_as(owner.state)[1]
            return pack_ack(self._number, every.boot, name, delivery.seq_id)
        acks: list[tuple[str, list[int]]] = []
        last = None
        for delivery in self._acks:
            owner = _owner_of(delivery)
            if owner is not last:
                acks.append((owner.name, []))
                last = owner
            acks[-1][1].append(delivery.seq_id)
        return pack_committed(self._number, every.boot, acks)

    def _roll_back(self) -> None:
        """Undo all, unless it is decided. A failure leaves it to the next open."""
        every = self._all
        if self not in every.open:
            return
        every.open.discard(self)
        self._is_open = False
        for delivery in self._acks:
            owner = delivery._queue
            if isinstance(owner, Settler):
                with suppress(StoreError):
                    owner.undo_move(delivery)
        every.moves.undo(self._noted, self._parts)
        self._owes_settling = every.moves.follow_up(_MAX_UNSETTLED)


def _parts_of(every: Transactions, queue: str | Queue) -> QueueParts:
    """Return the parts of a queue of the engine. Raises :class:`UsageError` for any other."""
    if not isinstance(queue, Queue):
        return every.parts_of(queue)
    given: Queue = queue
    if given._settler.mover is not every.moves:
        raise UsageError(f"queue {given.name!r} is of another engine")
    return given._parts


def _locks_of(states: Iterable[QueueState]) -> list[PatientLock]:
    """Return the locks of queues, each once. Raises :class:`UsageError` if the calling thread is in
    the middle of a call on one of them."""
    locks: list[PatientLock] = []
    for state in states:
        lock = state.lock
        if lock.is_mine():
            refuse_twice()
        _add(locks, lock)
    return locks


def _add(to: list[Any], one: object) -> None:
    """Append an object, unless it is there."""
    for other in to:
        if other is one:
            break
    else:
        to.append(one)


def _owner_of(delivery: Delivery) -> Settler:
    """Return the queue of a delivery that is marked as being moved."""
    owner = delivery._queue
    assert isinstance(owner, Settler)
    return owner


def _noted_as(state: QueueState) -> tuple[bytes, bytes]:
    """Return the name of a queue, as frames have it."""
    if state.noted_as is None:
        state.noted_as = pack_name(state.name)
    return state.noted_as


def _take_together(locks: list[PatientLock]) -> None:
    """Take all of these locks. One of them is waited for, with none held; the others are tried, and
    all are released before another one is waited for. Raises as a queue that is closed."""
    first = _try_all(locks, -1)
    while first >= 0:
        _release(locks)
        locks[first].__enter__()
        first = _try_all(locks, first)


def _release(locks: list[PatientLock]) -> None:
    """Release those of these locks that the calling thread has."""
    for lock in locks:
        lock.let_go()


def _try_all(locks: list[PatientLock], held: int) -> int:
    """Take all locks but one, which is held, if any is. Return the first that is not free, -1 if
    all are taken."""
    for at in range(len(locks)):
        lock = locks[at]
        if at != held:
            # One may be taken in its turn; the others are tried while that one is held.
            is_only = held < 0 and not at
            if not (lock.take() if is_only else lock.acquire(False)):
                return at
            lock.check()
    return -1
