"""Publishing: the half of a queue that producers use.

The path of a single plain message is written out in one function, on the attributes of the index:
each method call it does not make is a twentieth of its cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import time_ns
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from journal.errors import UsageError
from qindex.message import Message
from qindex.plain import CHECK_END, CHECK_START, PLAIN_HEAD, PLAIN_HEADS
from qindex.publish_records import embedded_record, plain_batch, plain_record
from qindex.queue_core import QueueCore
from qindex.record_format import encode_record
from qindex.segment import PUBLISHED

__all__ = ["Publisher"]

I64 = npt.NDArray[np.int64]


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
    ) -> int:
        """Append a message; gives its seq_id.

        ``ttl``: seconds after which it is dropped when it gets to the head. ``persistent``:
        whether it outlives the engine's run. ``confirm``: wait until it is on disk.
        Raises :class:`UsageError` for values that can't be stored; nothing has changed then.
        O(size of the message).
        """
        if (
            key is not None
            or headers is not None
            or properties is not None
            or ttl is not None
            or persistent is not True
            or body.__class__ is not bytes
            or not self._plain_only
        ):
            return self._publish_any(
                Message(body, key, headers or {}, properties or {}),
                ttl=ttl,
                persistent=persistent,
                confirm=confirm,
            )
        size = len(body)
        with self._lock:
            index = self._index
            seq = index.next_seq
            tail = index.tail if seq < index.tail_end else index.roll()
            if size < 256:
                first, second = PLAIN_HEADS[size]
                record = PLAIN_HEAD.pack(seq, self._id_high, seq, first, time_ns(), second) + body
            else:
                self._check_size(size)
                record = plain_record(seq, self._id_high, body, time_ns())
            journal = index.journal
            offset = journal.tell()
            try:
                journal.write(record)
            except ValueError:
                journal.grow(len(record))
                offset = journal.tell()
                journal.write(record)
            journal.map[offset + CHECK_START : offset + CHECK_END] = xxh3_64_digest(record)
            index.positions.append(offset)
            tail.states[seq - tail.base] = PUBLISHED
            index.next_seq = seq + 1
            if self._waiting:
                self._arrived.notify()
            if not seq & self._check_mask:
                self._tick()
        if confirm or self._sync_each:
            self._index.journal.sync()
        return seq

    def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
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
        self._check_size(max(map(len, batch)))
        with self._lock:
            index = self._index
            seq = index.next_seq
            # Checked while nothing has changed: seq_ids for all of the batch.
            if seq + len(batch) + index.entry_count > index.seq_file.reserved:
                index.seq_file.reserve(seq + len(batch))
            if seq >= index.tail_end:
                index.roll()
            if self._plain_only and ttl is None and persistent:
                block, offsets = plain_batch(seq, self._id_high, batch, time_ns())
            else:
                block, offsets = self._any_batch(seq, batch, ttl, persistent)
            base = index.journal.append(block)
            if not persistent:
                index.transient.update(range(seq, seq + len(batch)))
            self._take_batch(seq, offsets + base)
        if confirm or self._sync_each:
            self._index.journal.sync()
        return range(seq, seq + len(batch))

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
        self, message: Message, *, ttl: float | None, persistent: bool, confirm: bool
    ) -> int:
        _check_message(message)
        self._check_size(len(message.body))
        expiry = self._expiry(ttl)
        stamped = Message(message.body, message.key, message.headers, message.properties, time_ns())
        with self._lock:
            index = self._index
            seq = index.next_seq
            record = self._publish_record(seq, stamped, expiry, persistent)
            if seq >= index.tail_end:
                index.roll()
            base = index.journal.append(record)
            if not persistent:
                index.transient.add(seq)
            self._take_batch(seq, np.array([base], np.int64))
        if confirm or self._sync_each:
            self._index.journal.sync()
        return seq

    def _any_batch(
        self, seq: int, bodies: Sequence[bytes], ttl: float | None, persistent: bool
    ) -> tuple[bytes, I64]:
        expiry = self._expiry(ttl)
        stamp = time_ns()
        records = [
            self._publish_record(seq + at, Message(body, timestamp=stamp), expiry, persistent)
            for at, body in enumerate(bodies)
        ]
        ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
        return b"".join(records), np.concatenate((np.zeros(1, np.int64), ends[:-1]))

    def _publish_record(self, seq: int, message: Message, expiry: int, persistent: bool) -> bytes:
        msg_id = self._id_high.to_bytes(8, "big") + seq.to_bytes(8, "big")
        ours = self._options.record_format == "qindex"
        if ours:
            record = encode_record(message)
        else:
            from qindex.rabbitmq.bridge import encode_rabbitmq

            if message.key is None:
                message = Message(message.body, self.name, message.headers, message.properties)
            record = encode_rabbitmq(message, self._options.vhost.encode(), msg_id, persistent)
        size = len(message.body)
        return embedded_record(seq, persistent, msg_id, expiry, size, record, ours)

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
    if message.key is not None and not isinstance(message.key, str):
        raise UsageError(f"a key must be a str, not {type(message.key).__name__}")
    for name in ("headers", "properties"):
        value = getattr(message, name)
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{name} must be a mapping with str keys")
