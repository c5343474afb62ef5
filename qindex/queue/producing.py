"""Publishing: append messages to one queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate, repeat
from operator import add
from time import time_ns
from typing import Any, TypeVar, cast

import numpy as np

from journal.errors import StoreError, UsageError
from journal.format import pack_publish
from journal.locks.call_lock import refuse_twice
from journal.memory import words
from journal.memory.arrays import I64
from qindex.format.entries import make_entry
from qindex.format.headers import (
    DUE_HEADER,
    TIME_HEADER,
    Until,
    due_middle,
    refuse_without_key,
    without_key,
)
from qindex.format.message import (
    Body,
    Message,
    as_bytes,
    make_message,
    message_of,
    refuse_parts,
)
from qindex.format.message_record import (
    NOTHING,
    encode_front,
    encode_middle,
    join_front,
    seal_embedded,
    seal_stored,
)
from qindex.format.publish_records import (
    alike_record,
    framed_batch,
    framed_record,
    plain_batch,
    plain_record,
)
from qindex.index.seq_ids import RESERVE
from qindex.queue.expiry import Expirer
from qindex.queue.flushing import Flusher
from qindex.queue.notes.delays import due_time, now_us
from qindex.queue.notes.unique_keys import Taking
from qindex.queue.prepared_message import Notes, Prepared
from qindex.queue.room import Room
from qindex.queue.state import Debt, QueueState

Given = TypeVar("Given")
Made = TypeVar("Made")

MAX_RESERVED = RESERVE // 2
"""Messages that :meth:`Producer.reserve` takes: a segment has room beside them."""
MAX_DEPTH = 64
"""Levels of lists and maps in a value of a header: RabbitMQ's nodes and JSON libraries recurse."""
_CONTAINERS = frozenset((dict, list, tuple))
_NO_TABLE: Mapping[str, Any] = {}
SHARED_BELOW = 4096
"""Message records of at least so many bytes go to the message store when several queues share them:
to embed a record costs each queue its bytes twice, in the journal and in a segment."""


class Later:
    """Notes of a message that counts later. ``then`` is called when it does."""

    __slots__ = ("then",)

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        """See :meth:`qindex.queue.prepared_message.Notes.before`; of one message."""
        (item,) = items
        self.announce(first, item.msg_id)

    def announce(self, seq: int, msg_id: bytes) -> None:
        """:meth:`before`, of a message with this id."""
        raise NotImplementedError

    def after(self) -> None:
        raise NotImplementedError


class Producer:
    """Appends messages to one queue. Nothing here waits for the disk: what is to be durable on
    return its caller makes durable."""

    def __init__(self, state: QueueState, flusher: Flusher, room: Room, expirer: Expirer) -> None:
        self.state = state
        self.room = room
        self._flusher = flusher
        self._expirer = expirer

    # -- one message ----------------------------------------------------------------------------

    def publish(
        self,
        body: Body | Message,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        delay: float | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        window: float | None = None,
        until: Until = "acked",
        priority: int | None = None,
    ) -> int:
        state = self.state
        middle, expiry, due, limits = NOTHING, 0, 0, None
        if (
            key is not None
            or headers is not None
            or properties is not None
            or ttl is not None
            or delay is not None
            or at is not None
            or unique is not None
            or window is not None
            or persistent is not True
            or type(body) is not bytes
            or len(body) > state.most_plain
            or until != "acked"
            or priority is not None
        ):
            if priority is not None:
                raise self.without_priorities(priority)
            if delay is not None or at is not None:
                due = due_time(delay, at)
            refuse_without_key(unique, window, until)
            if unique is not None:
                if state.base and not properties and not isinstance(body, Message):
                    properties = state.properties
                message = message_of(body, key, headers, properties, time_ns())
                return self._publish_unique(
                    message, unique, window, until, ttl, persistent, confirm, due
                )
            if isinstance(body, Message):
                refuse_parts(key, headers, properties)
                # Checked here, because its error names no place in a batch.
                messages = [self._checked(body)]
                return self._publish_messages(messages, ttl, persistent, confirm, due).start
            if type(body) is not bytes:
                body = as_bytes(body)
            frame = self._frame(body, key, headers, properties, ttl, persistent, due)
            if frame is None:
                return self._publish_any(
                    body, key, headers, properties, ttl, persistent, confirm, due
                )
            middle, expiry = frame
            limits = state.limits
            if len(body) > state.most_embedded:
                return self._publish_stored(body, time_ns(), middle, expiry, due, confirm)
        lock = state.lock
        synced = confirm or state.sync_each
        if lock.is_mine() or (synced and state.is_syncing_here()):
            refuse_twice()
        try:
            state.take()
            if limits is not None and not self._fits(len(body)):
                lock.release()
                return self._publish_any(
                    body, key, headers, properties, ttl, persistent, confirm, due
                )
            later = state.delays() if due else None
            index = state.index
            stamp = words.now_ns()
            if middle is NOTHING and not expiry:
                if state.base:
                    record = alike_record(
                        index.next_seq, state.id_high, body, stamp, state.middle, state.tails
                    )
                else:
                    record = plain_record(index.next_seq, state.id_high, body, stamp)
                seq = index.append(record)
                ahead = index.ahead
                if ahead.keeps_up(index.tail, seq, len(body)):
                    ahead.add(seq, body, stamp)
            else:
                record = framed_record(index.next_seq, state.id_high, body, stamp, middle, expiry)
                seq = index.append(record)
                if expiry:
                    self._expirer.note(expiry)
                if later is not None:
                    later.hold(seq, due)
            if limits is not None:
                limits.bytes += len(body)
            if state.arrived.waiting and not due:
                state.arrived.notify()
            if not seq & state.check_mask:
                self._flusher.tick()
            lock.release()
        except BaseException as error:
            try:
                state.leave(error)
            finally:
                lock.let_go()  # a signal's handler may have raised as leave began
            raise
        return seq

    def without_priorities(self, priority: object) -> UsageError:
        """Return the error for a publish with a priority."""
        return UsageError(
            f"queue {self.state.name!r} has no priorities, so a message can't have "
            f"priority={priority!r}: ask the engine for the queue with max_priority= while it is "
            "empty"
        )

    def _publish_unique(
        self,
        message: Message,
        unique: str,
        window: float | None,
        until: Until,
        ttl: float | None,
        persistent: bool,
        confirm: bool,
        due: int,
        also: Later | None = None,
    ) -> int:
        """Publish a message with a unique key; ``also``: others that take note of it."""
        self.check_message(message)
        state = self.state
        with state.lock, state:
            keys, check = state.unique_keys(), state.check_unique
            taking = Taking(keys, check, unique, window, until, window_later=also is not None)
            taking.check()
        if also is not None:
            also.then = taking.open_window
        message = replace(message, headers=without_key(message.headers) | taking.headers)
        notes: Notes = taking if also is None else _Both(taking, also)
        seqs = self._publish_all([message], ttl, persistent, confirm, due, notes=notes)
        return seqs.start

    def publish_noted(
        self,
        message: Message,
        notes: Later,
        ttl: float | None,
        due: int,
        unique: str | None,
        window: float | None,
        until: Until,
    ) -> int:
        """Publish a message, as :meth:`publish`, and take ``notes`` of it. They delay a message
        that is ``due`` later, and make it durable."""
        refuse_without_key(unique, window, until)
        if due:
            with self.state.lock, self.state as state:
                state.delays()
            message = _with_due(message, due)
        if unique is not None:
            return self._publish_unique(message, unique, window, until, ttl, True, False, 0, notes)
        self.check_message(message)
        return self._publish_all([message], ttl, True, False, 0, notes).start

    def append_pending(self, body: bytes, id_high: int, notes: Later) -> int:
        """Append a plain message of a transaction, of which ``notes`` are taken, and return its
        seq_id; -1 for a message of another kind. ``id_high``, the start of the message's id, is the
        transaction's own: where an append fails, another message has the seq_id. Raises as
        :meth:`publish`."""
        state = self.state
        if len(body) > state.most_plain:
            return -1
        lock = state.lock
        if lock.is_mine():
            refuse_twice()
        try:
            state.take()
            index = state.index
            seq = index.next_seq
            record = plain_record(seq, id_high, body, words.now_ns())
            notes.announce(seq, record[8:24])
            try:
                index.append(record)
                notes.after()
            except BaseException as error:
                if not isinstance(error, StoreError):
                    index.poison.cut_short(error)
                raise
            if not seq & state.check_mask:
                self._flusher.tick()
            lock.release()
        except BaseException as error:
            try:
                state.leave(error)
            finally:
                lock.let_go()  # a signal's handler may have raised as leave began
            raise
        return seq

    def _fits(self, size: int) -> bool:
        """Return whether a body of ``size`` bytes fits into the queue as it is. Lock held."""
        limits = self.state.limits
        assert limits is not None
        return not self.room.is_stuck() and limits.fits(self.state.inside_all(), 1, size)

    def _frame(
        self,
        body: bytes,
        key: str | None,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any] | None,
        ttl: float | None,
        persistent: bool,
        due: int,
    ) -> tuple[bytes, int] | None:
        """Return key, headers and properties as the record has them, and the expiry, of a message
        that is embedded whole, or that the message store takes for its body alone. Return None
        for any other message. ``due``: microseconds since 1970, 0: it is not delayed."""
        state = self.state
        if persistent is not True or state.most_embedded < 0:
            return None
        room = state.most_embedded - len(body)
        if room < 0 and (
            state.messages is None
            or state.limits is not None
            or len(body) > state.options.max_message_bytes
        ):
            return None
        expiry = 0
        if ttl is not None or state.message_ttl is not None:
            expiry = self.expiry(ttl)
        if key is None and not headers and not properties:
            if not state.base:
                return due_middle(due) if due else NOTHING, expiry
            if not due and (room < 0 or len(state.middle) - len(NOTHING) <= room):
                return state.middle, expiry
        headers, properties = headers or _NO_TABLE, properties or state.properties
        _check_parts(key, headers, properties)
        if due:
            headers = {**headers, DUE_HEADER: due}
        middle = encode_middle(key, headers, properties)
        return None if len(middle) - len(NOTHING) > room >= 0 else (middle, expiry)

    def _publish_stored(
        self,
        body: bytes,
        stamp: int,
        middle: bytes,
        expiry: int,
        due: int,
        confirm: bool,
    ) -> int:
        """Publish a message whose record goes to the message store, of the usual kind: persistent,
        in our own format, to a queue without limits; return the seq_id.

        ``stamp``: the time (nanoseconds), ``middle``: key, headers and properties, as the record
        has them, ``expiry``, ``due``: microseconds since 1970, 0 for none.
        """
        state = self.state
        assert state.messages is not None
        state.check_sync(confirm)
        with state.calls.here():
            state.lock.check()
            stored: list[bytes] = []
            try:
                msg_id = state.messages.put(join_front(stamp, middle, len(body)), body)
                stored.append(msg_id)
                with state.lock, state:
                    if due:
                        state.delays()
                    index = state.index
                    seq = index.append(
                        pack_publish(index.next_seq, True, msg_id, expiry, len(body), b"")
                    )
                    ahead = index.ahead
                    is_plain = not expiry and middle is NOTHING
                    if is_plain and ahead.keeps_up(index.tail, seq, len(body)):
                        # A consumer that keeps up need not read it from the message store.
                        message = make_message(body, None, {}, {}, stamp)
                        ahead.add(seq, body, make_entry(msg_id, 0, len(body), message, stored=True))
                        ahead.window.plain = False
                    self._announce(range(seq, seq + 1), expiry, due)
                    if not seq & state.check_mask:
                        self._flusher.tick()
            except BaseException as error:
                self.give_up(stored, error)
                raise
        return seq

    def _announce(self, seqs: range, expiry: int, due: int) -> None:
        """Let entries that were just appended expire, or be delayed, and wake consumers. Lock
        held."""
        state = self.state
        self._expirer.note(expiry)
        if due:
            state.delays().hold_batch(seqs, due)
        elif state.arrived.waiting:
            state.arrived.notify(len(seqs))

    # -- batches --------------------------------------------------------------------------------

    def publish_many(
        self,
        messages: Iterable[Body | Message],
        *,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        delay: float | None = None,
        at: datetime | None = None,
        priority: int | None = None,
    ) -> range:
        if priority is not None:
            raise self.without_priorities(priority)
        state = self.state
        due = due_time(delay, at)
        given = messages if isinstance(messages, list | tuple) else list(messages)
        if not given:
            with state.lock, state:
                return range(state.index.next_seq, state.index.next_seq)
        largest = _largest_of(given)
        if largest < 0:
            if any(isinstance(one, Message) for one in given):
                return self._publish_messages(given, ttl, persistent, confirm, due)
            given = _each(given, as_bytes)
            largest = _largest_of(given)
        batch = cast("Sequence[bytes]", given)
        if largest > state.options.max_message_bytes:
            _each(batch, lambda body: state.check_size(len(body)))
        middle = state.middle
        most = state.most_embedded - len(middle) + len(NOTHING)
        if largest > most or state.limits is not None or not persistent:
            stamp = time_ns()
            its = state.properties
            stamped = [Message(body, properties=dict(its), timestamp=stamp) for body in batch]
            return self._publish_all(stamped, ttl, persistent, confirm, due)
        expiry, now = self.expiry(ttl), time_ns()
        framed = middle
        if due:
            its = state.properties
            framed = encode_middle(None, {DUE_HEADER: due}, its) if its else due_middle(due)

        def make(seq: int) -> tuple[bytes | memoryview, I64]:
            if expiry or due:
                alike = repeat(framed)
                return framed_batch(seq, state.id_high, batch, repeat(now), alike, expiry)
            return plain_batch(seq, state.id_high, batch, now, middle)

        return self._append_batch(make, expiry, due, confirm)

    def _publish_messages(
        self,
        given: Sequence[Body | Message],
        ttl: float | None,
        persistent: bool,
        confirm: bool,
        due: int,
    ) -> range:
        """Publish a batch some of which have more to them than a body."""
        state = self.state
        now = time_ns()
        messages = _each(given, self._checked)
        if due:
            messages = [_with_due(message, due) for message in messages]
        if persistent and state.limits is None and state.most_embedded >= 0:
            middles = _each(
                messages, lambda one: encode_middle(one.key, one.headers, one.properties)
            )
            bodies = [message.body for message in messages]
            largest = max(map(add, map(len, bodies), map(len, middles)))
            if largest <= state.most_embedded + len(NOTHING):
                expiry = self.expiry(ttl)
                stamps = [message.timestamp or now for message in messages]
                return self._append_batch(
                    lambda seq: framed_batch(seq, state.id_high, bodies, stamps, middles, expiry),
                    expiry,
                    due,
                    confirm,
                )
        stamped = [
            message if message.timestamp else replace(message, timestamp=now)
            for message in messages
        ]
        return self._publish_all(stamped, ttl, persistent, confirm, due)

    def _append_batch(
        self,
        make: Callable[[int], tuple[bytes | memoryview, I64]],
        expiry: int,
        due: int,
        confirm: bool,
    ) -> range:
        """Append publish records with one write: ``make`` gives them, and the offset of each, for
        the first one's seq_id."""
        state = self.state
        state.check_sync(confirm)
        with state.calls.here(), state.lock, state:
            if due:
                state.delays()
            block, offsets = make(state.index.next_seq)
            seqs = state.index.append_batch(block, offsets)
            self._announce(seqs, expiry, due)
            self._flusher.tick()
        return seqs

    def reserve(self, count: int) -> int:
        if type(count) is not int or not 0 <= count <= MAX_RESERVED:
            raise UsageError(f"0 to {MAX_RESERVED} seq_ids can be reserved, not {count!r}")
        with self.state.lock, self.state as state:
            state.index.reserve(count)
            return state.index.next_seq

    # -- messages of any kind -------------------------------------------------------------------

    def _publish_any(
        self,
        body: bytes,
        key: str | None,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any] | None,
        ttl: float | None,
        persistent: bool,
        confirm: bool,
        due: int,
    ) -> int:
        properties = properties or dict(self.state.properties)
        message = Message(body, key, headers or {}, properties, time_ns())
        self.check_message(message)
        return self._publish_all([message], ttl, persistent, confirm, due).start

    def _publish_all(
        self,
        messages: Sequence[Message],
        ttl: float | None,
        persistent: bool,
        confirm: bool,
        due: int,
        notes: Notes | None = None,
    ) -> range:
        """Publish messages of any kind: those whose records are large go to the message store,
        before the lock is taken: the store may slow publishers down."""
        state = self.state
        expiry = self.expiry(ttl)
        if due:
            messages = [_with_due(message, due) for message in messages]
        state.check_sync(confirm)
        with state.calls.here():
            items = _each(messages, lambda message: self.prepared(message, persistent))
            held = self.room.ask(items)
            try:
                seqs = self.store_and_append(
                    items, expiry, persistent, held=held, notes=notes, due=due
                )
            finally:
                self.room.give_back(held)
            self.room.keep_within()
        return seqs

    def prepared(
        self, message: Message, persistent: bool, queues: int = 1, *, timed: bool = False
    ) -> Prepared:
        """Encode a message for so many queues, and decide where its record goes. ``timed``: one of
        the others has delayed messages."""
        state = self.state
        size = len(message.body)
        messages, options = state.messages, state.options
        below = options.embed_below if queues == 1 else min(options.embed_below, SHARED_BELOW)
        msg_id = os.urandom(16) if messages is None else messages.new_id(size)
        if options.record_format == "qindex":
            front = encode_front(message)
            if messages is None or len(front) + size < below:
                return Prepared(msg_id, size, front + message.body, None, sealed=False)
            stored = seal_stored(msg_id, front, message.body)
            return Prepared(msg_id, size, b"", stored, sealed=True)
        from qindex.format.rabbitmq.bridge import encode_rabbitmq

        headers = message.headers
        if message.timestamp and (timed or state.later is not None):
            headers = {**headers, TIME_HEADER: message.timestamp // 1000}
        key = state.name if message.key is None else message.key
        message = Message(message.body, key, headers, message.properties)
        record = encode_rabbitmq(message, options.vhost.encode(), msg_id, persistent)
        if messages is None or len(record) < below:
            return Prepared(msg_id, size, record, None, sealed=True)
        return Prepared(msg_id, size, b"", record, sealed=True)

    def store_and_append(
        self,
        items: Sequence[Prepared],
        expiry: int,
        persistent: bool,
        *,
        held: list[Prepared],
        notes: Notes | None = None,
        due: int = 0,
        owed: list[Debt] | None = None,
    ) -> range:
        """Store the records of prepared messages that belong into the message store, and append
        their index entries, all or none. Returns their seq_ids. ``held``: see
        :meth:`append_entries`."""
        stored: list[bytes] = []
        try:
            stored += self.store_records(items, 1)
            return self.append_entries(
                items, expiry, persistent, held=held, notes=notes, due=due, owed=owed
            )
        except BaseException as error:
            self.give_up(stored, error)
            raise

    def give_up(self, stored: list[bytes], error: BaseException) -> None:
        """Release the references of ``stored`` messages whose entries were not appended, because of
        ``error``."""
        if isinstance(error, StoreError):
            self.state.release(stored)
        elif self.state.messages is not None:
            # The message may have its entry or not. The next open counts the references.
            self.state.messages.miscounted = True

    def store_records(self, items: Sequence[Prepared], references: int) -> list[bytes]:
        """Write the records that belong there to the message store; return their message ids."""
        state = self.state
        stored = [
            (item.msg_id, item.stored, references) for item in items if item.stored is not None
        ]
        if stored and state.messages is not None:
            state.lock.check()
            state.messages.write(stored)
        return [msg_id for msg_id, _, _ in stored]

    def append_entries(
        self,
        items: Sequence[Prepared],
        expiry: int,
        persistent: bool,
        *,
        held: list[Prepared],
        notes: Notes | None = None,
        due: int = 0,
        owed: list[Debt] | None = None,
    ) -> range:
        """Append the index entries of prepared messages, in one piece.

        ``held``: the messages that room was taken for; emptied when they have taken it.
        ``notes`` are taken with the first seq_id when nothing but the append is left to do, and
        when it is done: before anybody else sees the messages. ``owed``: where a flush that is due
        is noted, in another place than the queue's own.
        """
        with self.state.lock, self.state as state:
            if due:
                state.delays()
            index = state.index
            seq = index.next_seq
            records = []
            for at, item in enumerate(items):
                packed = pack_publish(
                    seq + at, persistent, item.msg_id, expiry, item.size, item.record
                )
                records.append(packed if item.sealed else seal_embedded(packed))
            if not records:
                return range(seq, seq)
            offsets = accumulate(map(len, records[:-1]), initial=0)
            places = np.fromiter(offsets, np.int64, len(records))
            block = b"".join(records)
            if notes is None:
                seqs = index.append_batch(block, places, transient=not persistent)
            else:
                with index.poison.whole():
                    notes.before(seq, items)
                    seqs = index.append_batch(block, places, transient=not persistent)
                    notes.after()
            limits = state.limits
            if limits is not None:
                limits.bytes += sum(item.size for item in items)
                limits.give_back(len(held), sum(item.size for item in held))
                held.clear()
            self._announce(seqs, expiry, due)
            self._flusher.tick(owed)
            return seqs

    def _checked(self, given: Body | Message) -> Message:
        """Return a body or message as a message. Raises as :meth:`check_message`."""
        if not isinstance(given, Message):
            given = Message(as_bytes(given))
        elif given.body.__class__ is not bytes:
            given = replace(given, body=as_bytes(given.body))
        self.check_message(given)
        return given

    def check_message(self, message: Message, *, any_depth: bool = False) -> None:
        """Raise :class:`UsageError` for a message that can't be right. `any_depth` is for a message
        that was published before there was a limit."""
        _check_message(message, any_depth)
        self.state.check_size(len(message.body))

    def expiry(self, ttl: float | None) -> int:
        """Return when a message that is published now expires: microseconds since 1970, 0:
        never."""
        if ttl is not None and not (isinstance(ttl, (int, float)) and 0 <= ttl < 1e10):
            raise UsageError(f"ttl must be seconds from 0 to 1e10, not {ttl!r}")
        seconds = self.state.message_ttl
        if seconds is None or (ttl is not None and ttl < seconds):
            seconds = ttl
        return 0 if seconds is None else now_us() + int(seconds * 1e6)


class _Both(Notes):
    """Two objects that take note of one append."""

    def __init__(self, first: Notes, second: Notes) -> None:
        self._first = first
        self._second = second

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        self._first.before(first, items)
        self._second.before(first, items)

    def after(self) -> None:
        self._first.after()
        self._second.after()


def batch_bytes(messages: Iterable[Body | Message]) -> int:
    """Return the bytes of the bodies of a batch; an item that is not a body counts as none."""
    bodies = [one.body if isinstance(one, Message) else one for one in messages]
    return sum(len(body) for body in bodies if isinstance(body, Body))


def _largest_of(given: Sequence[object]) -> int:
    """Return the size of the largest body; -1 where not all of them are bytes."""
    largest = 0
    for body in given:
        if type(body) is not bytes:
            return -1
        size = len(body)
        if size > largest:
            largest = size
    return largest


def _each(batch: Sequence[Given], make: Callable[[Given], Made]) -> list[Made]:
    """Make something of each message of a batch; an error says of which it is."""
    made = []
    for at, one in enumerate(batch):
        try:
            made.append(make(one))
        except UsageError as error:
            raise UsageError(f"message {at} of the batch: {error}") from error
    return made


def _with_due(message: Message, due: int) -> Message:
    return replace(message, headers={**message.headers, DUE_HEADER: due})


def _check_message(message: Message, any_depth: bool) -> None:
    stamp = message.timestamp
    if not isinstance(stamp, int) or not 0 <= stamp < 1 << 64:
        raise UsageError(f"a timestamp is nanoseconds, an int from 0 to 2^64 - 1, not {stamp!r}")
    _check_parts(message.key, message.headers, message.properties, any_depth)


def _check_parts(
    key: str | None,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    any_depth: bool = False,
) -> None:
    if key is not None and not isinstance(key, str):
        raise UsageError(f"a key must be a str, not {type(key).__name__}")
    if headers is not _NO_TABLE:
        _check_table("headers", headers, any_depth)
    if properties is not _NO_TABLE:
        _check_table("properties", properties, any_depth)


def _check_table(name: str, table: Mapping[str, Any], any_depth: bool) -> None:
    # A dict is not asked: that would cost as much as all the rest.
    is_table = type(table) is dict or isinstance(table, Mapping)
    for key in table if is_table else (None,):
        if not isinstance(key, str):
            raise UsageError(f"{name} must be a mapping with str keys")
        if type(table[key]) in _CONTAINERS and not any_depth:
            _check_depth(name, table[key])


def _check_depth(name: str, value: Any) -> None:
    """Refuse a value nested too deep for programs that go through it by recursion."""
    level, depth = [value], 1
    while level := [
        inner
        for one in level
        for inner in (one.values() if isinstance(one, dict) else one)
        if type(inner) in _CONTAINERS
    ]:
        depth += 1
        if depth > MAX_DEPTH:
            raise UsageError(f"{name} may be nested {MAX_DEPTH} deep")
