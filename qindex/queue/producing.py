"""Publishing: the half of a queue that producers use.

The path of a single plain message is written out in one function, on the attributes of the index:
each method call it does not make is a twentieth of its cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from operator import add
from time import time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.call_lock import refuse_twice
from journal.errors import StoreError, UsageError
from journal.format import ACTION_WORD, DELIVER_BITS, START_SIZE, pack_publish
from qindex.format.message import Message
from qindex.format.message_record import (
    NOTHING,
    encode_front,
    encode_middle,
    seal_embedded,
    seal_stored,
)
from qindex.format.plain_record import PLAIN_HEAD, PLAIN_HEADS
from qindex.format.publish_records import framed_batch, framed_record, plain_batch, seal_rest
from qindex.index.segment import PUBLISHED
from qindex.index.seq_ids import RESERVE
from qindex.queue.cut_short import set_batch_right, set_right
from qindex.queue.limits import ask_for_room, give_room_back, keep_within
from qindex.queue.prepared_message import Notes, Prepared
from qindex.queue.publish_stored import publish_stored
from qindex.queue.queue_core import QueueCore
from qindex.queue.wake_ups import CALLER

__all__ = ["MOST_RESERVED", "Publisher"]

I64 = npt.NDArray[np.int64]

_pack_word = ACTION_WORD.pack

MOST_RESERVED = RESERVE // 2
"""Messages that :meth:`Publisher.reserve` takes: a segment has room beside them."""


class Publisher(QueueCore):
    """What appends messages."""

    def publish(
        self,
        body: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Append a message; gives its seq_id.

        ``ttl``: seconds after which it is dropped when it gets to the head. ``persistent``:
        whether it outlives the engine's run. ``confirm``: wait until it is on disk. ``timeout``:
        seconds to wait for room in a queue with ``overflow="block"`` (``None``: for ever).
        Raises :class:`UsageError` for values that can't be stored, and
        :class:`~journal.errors.QueueFullError`; nothing has changed then.
        O(size of the message).
        """
        middle, expiry, limits = NOTHING, 0, None
        if (
            key is not None
            or headers is not None
            or properties is not None
            or ttl is not None
            or persistent is not True
            or body.__class__ is not bytes
            or len(body) > self._most_plain
        ):
            frame = self._frame(body, key, headers, properties, ttl, persistent)
            if frame is None:
                message = Message(body, key, headers or {}, properties or {})
                return self._publish_any(message, ttl, persistent, confirm, timeout)
            middle, expiry = frame
            limits = self._limits
            if len(body) > self._most_embedded:
                return publish_stored(self, body, time_ns(), middle, expiry, confirm)
        size = len(body)
        lock = self._lock
        if lock.is_mine():
            refuse_twice()
        try:
            take = lock.take
            if not take():
                lock.stand_in_line()
            if limits is not None and (self._stuck or not limits.fits(len(self), 1, size)):
                lock.release()
                message = Message(body, key, headers or {}, properties or {})
                return self._publish_any(message, ttl, persistent, confirm, timeout)
            index = self._index
            seq = index.next_seq
            offset = -1
            try:
                tail = index.tail if seq < index.tail_end else index.roll()
                stamp = time_ns()
                if size < 256 and middle is NOTHING and not expiry:
                    first, second = PLAIN_HEADS[size]
                    record = PLAIN_HEAD.pack(seq, self._id_high, seq, first, stamp, second) + body
                else:
                    record = framed_record(seq, self._id_high, body, stamp, middle, expiry)
                start, rest = record[:START_SIZE], seal_rest(record)
                journal = index.journal
                offset = journal.tell()
                try:
                    journal.write(rest)
                except ValueError:
                    journal.grow(len(record))
                    offset = journal.tell()
                    journal.write(rest)
                journal.map[offset : offset + START_SIZE] = start
                index.positions.append(offset)
                tail.states[seq - tail.base] = PUBLISHED
                index.next_seq = seq + 1
                if limits is not None:
                    limits.bytes += size
                if seq == self._next_fetch and middle is NOTHING and not expiry:
                    # The consumer keeps up: it need not read this from the journal.
                    window = self._window
                    if len(window.seqs) < window.most and window.segment is tail:
                        window.seqs.append(seq)
                        window.bodies.append(body)
                        window.extras.append(stamp)
                        window.states.append(PUBLISHED)
                        window.delivers.append(_pack_word(DELIVER_BITS | seq))
                        self._next_fetch = seq + 1
                if self._waiting:
                    self._arrived.notify()
                if not seq & self._check_mask:
                    self._tick()
            except BaseException:
                set_right(self, seq, offset)
                raise
            lock.release()
        except BaseException:
            lock.let_go()
            raise
        if confirm or self._sync_each:
            self._sync_each_journal()
        return seq

    def _publish_on_loop(self, body: bytes) -> int:
        """Publish on the thread of an event loop, which waits for nothing."""
        CALLER.waits = False
        try:
            return self.publish(body)
        finally:
            CALLER.waits = True

    def _frame(
        self,
        body: bytes,
        key: str | None,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any] | None,
        ttl: float | None,
        persistent: bool,
    ) -> tuple[bytes, int] | None:
        """Give key, headers and properties as the record has them, and the expiry, of a message
        that is embedded whole, or whose body alone is too large for that; ``None`` for any other,
        and where there is more to be seen to."""
        if persistent is not True or body.__class__ is not bytes or self._most_embedded < 0:
            return None
        room = self._most_embedded - len(body)
        if room < 0 and (
            self._messages is None
            or self._limits is not None
            or len(body) > self._options.max_message_bytes
        ):
            return None
        expiry = 0
        if ttl is not None or self.message_ttl is not None:
            expiry = self._expiry(ttl)
        if key is None and not headers and not properties:
            return NOTHING, expiry
        headers, properties = headers or {}, properties or {}
        _check_parts(key, headers, properties)
        middle = encode_middle(key, headers, properties)
        return None if len(middle) - len(NOTHING) > room >= 0 else (middle, expiry)

    def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> range:
        """Append a batch, in order, with one write; gives the range of its seq_ids.

        Raises as :meth:`publish`; then none of the batch is published.
        """
        batch = bodies if isinstance(bodies, list | tuple) else list(bodies)
        if not batch:
            with self._lock:
                return range(self._index.next_seq, self._index.next_seq)
        if set(map(type, batch)) != {bytes}:
            raise UsageError("a body must be bytes")
        largest = max(map(len, batch))
        self._check_size(largest)
        if largest > self._most_embedded or self._limits is not None or not persistent:
            return self._publish_any_many(batch, ttl, persistent, confirm, timeout)
        expiry, now = self._expiry(ttl), time_ns()

        def make(seq: int) -> tuple[bytes | memoryview, I64]:
            if expiry:
                plain = repeat(NOTHING)
                return framed_batch(seq, self._id_high, batch, repeat(now), plain, expiry)
            return plain_batch(seq, self._id_high, batch, now)

        return self._append_block(len(batch), make, confirm)

    def _append_block(
        self, count: int, make: Callable[[int], tuple[bytes | memoryview, I64]], confirm: bool
    ) -> range:
        """Append ``count`` publish records with one write: ``make`` gives them, and the offset of
        each, for the first one's seq_id."""
        with self._lock:
            index = self._index
            seq = index.next_seq
            # Checked while nothing has changed: seq_ids for all of the batch.
            if seq + count + index.entry_count > index.seq_file.reserved:
                index.seq_file.reserve(seq + count)
            if seq >= index.tail_end:
                index.roll()
            block, offsets = make(seq)
            end = index.journal.tell()
            try:
                base = index.journal.append(block)
                self._take_batch(seq, offsets + base)
            except BaseException:
                set_batch_right(self, seq, count, end)
                raise
        if confirm or self._sync_each:
            self._sync_each_all()
        return range(seq, seq + count)

    def _take_one(self, seq: int, offset: int) -> None:
        """Make the entry known whose publish record was just appended."""
        index = self._index
        tail = index.tail if seq < index.tail_end else index.roll()
        index.positions.append(offset)
        tail.states[seq - tail.base] = PUBLISHED
        index.next_seq = seq + 1
        if self._waiting:
            self._arrived.notify()
        self._tick()

    def _take_batch(self, seq: int, offsets: I64) -> None:
        """Make the entries known whose publish records were just appended."""
        index = self._index
        index.positions.frombytes(offsets.tobytes())
        end = seq + len(offsets)
        while seq < end:
            index.next_seq = seq
            tail = index.tail if seq < index.tail_end else index.roll()
            rel = seq - tail.base
            count = min(end - seq, len(tail.states) - rel)
            tail.states[rel : rel + count] = bytes((PUBLISHED,)) * count
            seq += count
        index.next_seq = end
        if self._waiting:
            self._arrived.notify(len(offsets))
        self._tick()

    def _publish_any(
        self,
        message: Message,
        ttl: float | None,
        persistent: bool,
        confirm: bool,
        timeout: float | None,
    ) -> int:
        self._check_message(message)
        stamped = Message(message.body, message.key, message.headers, message.properties, time_ns())
        return self._publish_all([stamped], ttl, persistent, confirm, timeout)[0]

    def publish_messages(
        self,
        messages: Sequence[Message],
        *,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> range:
        """Append messages with their keys, headers and properties, in order, with one write; gives
        the range of their seq_ids.

        A message that has a timestamp keeps it. Raises as :meth:`publish`; then none of them is
        published.
        """
        now = time_ns()
        for message in messages:
            self._check_message(message)
        if messages and persistent and self._limits is None and self._most_embedded >= 0:
            middles = [encode_middle(one.key, one.headers, one.properties) for one in messages]
            bodies = [message.body for message in messages]
            largest = max(map(add, map(len, bodies), map(len, middles)))
            if largest <= self._most_embedded + len(NOTHING):
                expiry = self._expiry(ttl)
                stamps = [message.timestamp or now for message in messages]
                return self._append_block(
                    len(bodies),
                    lambda seq: framed_batch(seq, self._id_high, bodies, stamps, middles, expiry),
                    confirm,
                )
        stamped = [
            message
            if message.timestamp
            else Message(message.body, message.key, message.headers, message.properties, now)
            for message in messages
        ]
        return self._publish_all(stamped, ttl, persistent, confirm, timeout)

    def reserve(self, count: int) -> int:
        """Reserve seq_ids for the next ``count`` messages, durably on return; gives the first.

        Until as many are published, a crash of this process skips no seq_id: how many of them
        were published can be told from the next one. Raises :class:`UsageError` for a count above
        :data:`MOST_RESERVED`, :class:`StorageError`.
        """
        if not 0 <= count <= MOST_RESERVED:
            raise UsageError(f"0 to {MOST_RESERVED} seq_ids can be reserved, not {count}")
        with self._lock:
            index = self._index
            if index.next_seq + count + index.entry_count > index.seq_file.reserved:
                index.seq_file.reserve(index.next_seq)
            return index.next_seq

    def _publish_any_many(
        self,
        bodies: Sequence[bytes],
        ttl: float | None,
        persistent: bool,
        confirm: bool,
        timeout: float | None,
    ) -> range:
        stamp = time_ns()
        messages = [Message(body, timestamp=stamp) for body in bodies]
        return self._publish_all(messages, ttl, persistent, confirm, timeout)

    def _publish_all(
        self,
        messages: Sequence[Message],
        ttl: float | None,
        persistent: bool,
        confirm: bool,
        timeout: float | None,
    ) -> range:
        """Publish messages of any kind: those whose records are large go to the message store,
        before the lock is taken: the store may slow publishers down."""
        expiry = self._expiry(ttl)
        items = [self._prepared(message, persistent) for message in messages]
        if self._limits is not None and items:
            ask_for_room(self, items, timeout)
        try:
            stored = self._store_records(items, 1, persistent)
            try:
                seqs = self._append_entries(items, expiry, persistent, reserved=True)
            except StoreError:
                self._release(stored)
                raise
        except StoreError:
            give_room_back(self, items)
            raise
        except BaseException as error:
            # What was stored may have its entry or not, and room may be taken or given back.
            if self._limits is not None or any(item.stored is not None for item in items):
                self._cut_short(error)
            raise
        keep_within(self)
        if confirm or self._sync_each:
            self._sync_each_all()
        return seqs

    def _prepared(self, message: Message, persistent: bool) -> Prepared:
        """Encode a message, and decide where its record goes."""
        size = len(message.body)
        msg_id = os.urandom(16) if self._messages is None else self._messages.new_id(size)
        if self._options.record_format == "qindex":
            front = encode_front(message)
            if self._messages is None or len(front) + size < self._options.embed_below:
                return Prepared(msg_id, size, front + message.body, None, sealed=False)
            stored = seal_stored(msg_id, front, message.body)
            return Prepared(msg_id, size, b"", stored, sealed=True)
        from qindex.format.rabbitmq.bridge import encode_rabbitmq

        if message.key is None:
            message = Message(message.body, self.name, message.headers, message.properties)
        record = encode_rabbitmq(message, self._options.vhost.encode(), msg_id, persistent)
        if self._messages is None or len(record) < self._options.embed_below:
            return Prepared(msg_id, size, record, None, sealed=True)
        return Prepared(msg_id, size, b"", record, sealed=True)

    def _store_records(
        self, items: Sequence[Prepared], references: int, persistent: bool
    ) -> list[bytes]:
        """Write the records that belong there to the message store; gives their message ids."""
        stored = [
            (item.msg_id, item.stored, references) for item in items if item.stored is not None
        ]
        if stored and self._messages is not None:
            self._check_open()
            self._messages.write(stored, persistent=persistent)
        return [msg_id for msg_id, _, _ in stored]

    def _append_entries(
        self,
        items: Sequence[Prepared],
        expiry: int,
        persistent: bool,
        *,
        notes: Notes | None = None,
        reserved: bool = False,
    ) -> range:
        """Append the index entries of prepared messages, in one piece.

        ``notes`` are taken with the first seq_id when nothing but the append is left to do, and
        when it is done: before anybody else sees the messages.
        ``reserved``: room was taken for them, and is theirs from now on.
        """
        with self._lock:
            index = self._index
            seq = index.next_seq
            if seq + len(items) + index.entry_count > index.seq_file.reserved:
                index.seq_file.reserve(seq + len(items))
            if seq >= index.tail_end:
                index.roll()
            records = []
            for at, item in enumerate(items):
                packed = pack_publish(
                    seq + at, persistent, item.msg_id, expiry, item.size, item.record
                )
                records.append(packed if item.sealed else seal_embedded(packed))
            end = index.journal.tell()
            try:
                if notes is not None:
                    notes.before(seq)
                base = index.journal.append(b"".join(records))
                if notes is not None:
                    notes.after()
                limits = self._limits
                if limits is not None:
                    size = sum(item.size for item in items)
                    limits.bytes += size
                    if reserved:
                        limits.give_back(len(items), size)
                if not persistent:
                    index.transient.update(range(seq, seq + len(items)))
                if len(records) == 1:
                    self._take_one(seq, base)
                else:
                    offsets = accumulate(map(len, records[:-1]), initial=base)
                    self._take_batch(seq, np.fromiter(offsets, np.int64, len(records)))
            except BaseException as error:
                if notes is not None:
                    self._cut_short(error)
                set_batch_right(self, seq, len(items), end)
                raise
            return range(seq, seq + len(items))

    def _check_message(self, message: Message) -> None:
        """Raise :class:`UsageError` for a message that can't be right."""
        _check_message(message)
        self._check_size(len(message.body))

    def _expiry(self, ttl: float | None) -> int:
        if ttl is not None and not (isinstance(ttl, int | float) and 0 <= ttl < 1e10):
            raise UsageError(f"ttl must be seconds from 0 to 1e10, not {ttl!r}")
        given = [value for value in (ttl, self.message_ttl) if value is not None]
        if not given:
            return 0
        seconds = min(given)
        return time_ns() // 1000 + int(seconds * 1e6)


def _check_message(message: Message) -> None:
    if not isinstance(message.body, bytes):
        raise UsageError(f"a body must be bytes, not {type(message.body).__name__}")
    stamp = message.timestamp
    if not isinstance(stamp, int) or not 0 <= stamp < 1 << 64:
        raise UsageError(f"a timestamp is nanoseconds, an int from 0 to 2^64 - 1, not {stamp!r}")
    _check_parts(message.key, message.headers, message.properties)


def _check_parts(
    key: str | None, headers: Mapping[str, Any], properties: Mapping[str, Any]
) -> None:
    if key is not None and not isinstance(key, str):
        raise UsageError(f"a key must be a str, not {type(key).__name__}")
    for name, value in (("headers", headers), ("properties", properties)):
        if value.__class__ is dict and not value:
            continue
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{name} must be a mapping with str keys")
