"""What was put into the log and not yet into queues and index, and how it gets there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from journal.errors import StorageError, UsageError
from journal.poison import Poison
from rocketstore.columns import Columns, KeyColumns, build_columns
from rocketstore.commitlog_format import (
    COMMIT,
    ROLLBACK,
    TRANSACTION_MASK,
    host_bytes,
    with_host_bits,
)
from rocketstore.consumequeue_format import UNIT
from rocketstore.dispatch import DispatchBatch, QueueKey
from rocketstore.javahash import hash_code, index_hash, index_hash_many
from rocketstore.message import BatchResult
from rocketstore.parts import Parts

if TYPE_CHECKING:
    from rocketstore.store import Store

__all__ = ["Note", "Pending", "append_columns"]

Note = tuple[QueueKey, int, int, int, int, int, int, Sequence[str]]
"""Queue, ordinal, physical offset, size, store time, transaction bits, tagsCode, index keys."""

_INT_MAX = 0x7FFFFFFF
_FEW = 24
"""Up to so many messages, one by one is faster than columns."""


class Pending:
    """Messages that wait to be dispatched. The store holds its lock around all calls.

    When queues or index can't be written the store takes no more writes: what waits is in the
    log, and open puts it where it belongs.
    """

    def __init__(self, parts: Parts, poison: Poison) -> None:
        self._parts = parts
        self._poison = poison
        self._seeds: dict[str, int] = {}
        self._broken: StorageError | None = None
        self.notes: list[Note] = []

    def dispatch(self) -> None:
        """Bring queues and index up to the log. Raises :class:`StorageError`."""
        notes = self.notes
        if not notes:
            return
        if self._broken is not None:
            raise self._broken
        try:
            if len(notes) <= _FEW:
                self._one_by_one(notes)
            else:
                self._parts.dispatch(self._columns(notes))
        except StorageError as error:
            self.broke(error)
            raise
        self._parts.commitlog.last = notes[-1][2:4]
        notes.clear()

    def broke(self, error: StorageError) -> None:
        """Queues or index could not be written: nobody may ask them, or write, from here on."""
        self._broken = error
        self._poison.set(error)

    def check(self) -> None:
        """Raise the error that kept queues or index from following the log."""
        if self._broken is not None:
            raise self._broken

    def dispatch_quietly(self) -> None:
        """:meth:`dispatch` for a put: its message is stored, so an error is for the next one."""
        with contextlib.suppress(StorageError):
            self.dispatch()

    def _one_by_one(self, notes: list[Note]) -> None:
        parts = self._parts
        index = parts.index if parts.options.index else None
        for (topic, queue_id), queue_offset, offset, size, now, transaction, code, keys in notes:
            if transaction in (0, COMMIT):
                unit = UNIT.pack(offset, size, code)
                parts.queue(topic, queue_id).put_one(queue_offset, offset, size, unit)
            if index is None:
                continue
            if keys and transaction != ROLLBACK:
                seed = self._seed(topic)
                index.put_one([index_hash(key, seed) for key in keys], offset, now)
            else:
                index.current()
        parts.checkpoint.logical = notes[-1][4]

    def _seed(self, topic: str) -> int:
        seed = self._seeds.get(topic)
        if seed is None:
            seed = self._seeds[topic] = hash_code(f"{topic}#")
        return seed

    def _columns(self, notes: list[Note]) -> DispatchBatch:
        queue_keys, queue_offsets, offsets, sizes, times, transactions, codes, all_keys = zip(
            *notes, strict=True
        )
        count = len(notes)
        numbers: dict[QueueKey, int] = dict.fromkeys(queue_keys, 0)
        if len(numbers) > 1:
            numbers = {key: number for number, key in enumerate(numbers)}
            queue_numbers = np.array([numbers[key] for key in queue_keys], np.int64)
        else:
            queue_numbers = np.zeros(count, np.int64)
        names: list[str] = []
        key_messages = np.zeros(0, np.int64)
        if any(all_keys):
            names = [
                f"{topic}#{key}"
                for (topic, _), keys in zip(queue_keys, all_keys, strict=True)
                for key in keys
            ]
            counts = np.fromiter(map(len, all_keys), np.int64, count)
            key_messages = np.repeat(np.arange(count, dtype=np.int64), counts)
        return DispatchBatch(
            queues=list(numbers),
            queue_numbers=queue_numbers,
            offsets=np.array(offsets, np.int64),
            sizes=np.array(sizes, np.int64),
            queue_offsets=np.array(queue_offsets, np.int64),
            tags_codes=np.array(codes, np.int64),
            store_times=np.array(times, np.int64),
            transactions=np.array(transactions, np.int64),
            key_hashes=index_hash_many(names),
            key_messages=key_messages,
        )


def append_columns(
    store: Store,
    topic: str,
    bodies: Sequence[bytes],
    properties: list[bytes] | bytes,
    keys: KeyColumns,
    queue_id: int,
    flags: Sequence[int] | int,
    sys_flag: int,
    born_timestamp: int | None,
    born_host: str | bytes | tuple[str, int] | None,
    store_host: str | bytes | tuple[str, int] | None,
    wait: bool,
    *,
    whole: bool,
) -> BatchResult:
    """Append a batch to the log of a store and dispatch it.

    ``whole`` keeps it in one file, as RocketMQ's batches are; otherwise each file is filled.
    """
    options = store.options
    if not 0 <= queue_id <= _INT_MAX:
        raise UsageError(f"queue id {queue_id}: 0 to {_INT_MAX} are right")
    topic_field = store._topics.get(topic) or store._topic_field(topic)
    stored_by = store._store_host if store_host is None else host_bytes(store_host)
    born_by = stored_by if born_host is None else host_bytes(born_host)
    sys_flag = with_host_bits(sys_flag, born_by, stored_by)
    columns = build_columns(
        bodies, properties, len(topic_field) - 1, sys_flag, flags, options.max_message_size
    )
    count = len(bodies)
    total = int(columns.sizes.sum())
    largest = int(columns.sizes.max()) if count else 0
    most = store._commitlog.file_size - 8
    if whole and total > min(options.max_message_size, most):
        raise UsageError(
            f"batch of {total} bytes: the limit is {min(options.max_message_size, most)}"
        )
    if largest > most:
        raise UsageError(f"record of {largest} bytes: a file of the commit log holds {most}")
    with store._lock:
        store._check_writable()
        store._pending.dispatch()
        now = max(options.clock(), store._last_time)
        key = (topic, queue_id)
        queue_offset = store._table.get(key, 0)
        offsets: list[int] = []
        done = 0
        while done < count:
            part, places = _append_part(
                store, columns, done, whole,
                topic_field=topic_field, queue_id=queue_id, queue_offset=queue_offset + done,
                sys_flag=sys_flag, born_timestamp=now if born_timestamp is None else born_timestamp,
                born_host=born_by, store_timestamp=now, store_host=stored_by,
            )  # fmt: skip
            offsets += places.tolist()
            store._table[key] = queue_offset + done + part
            store._last_time = now
            batch = _batch_of(columns, keys, done, part, places, key, queue_offset + done,
                              now, sys_flag & TRANSACTION_MASK)  # fmt: skip
            done += part
            try:
                store._parts.dispatch(batch)
            except StorageError as error:
                store._pending.broke(error)
                break
    if done < count:
        store._poison.check()
    if wait and count and options.durability == "fsync":
        store._group.commit()
    return BatchResult(offsets, columns.sizes.tolist(), queue_id, queue_offset, now, stored_by)


def _append_part(
    store: Store, columns: Columns, first: int, whole: bool, **fields: object
) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Write as many records as the present file takes; gives their number and offsets."""
    log = store._commitlog
    ends = np.cumsum(columns.sizes[first:])
    if whole:
        part = len(ends)
    else:
        part = int(np.searchsorted(ends, log.space_left(), side="right"))
        if part == 0:
            log.make_room(int(columns.sizes[first]))
            part = int(np.searchsorted(ends, log.space_left(), side="right"))
    size = int(ends[part - 1])
    base = log.make_room(size)
    places = ends[:part] - columns.sizes[first : first + part] + base
    try:
        data = columns.encode(first, first + part, places, **fields)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"a field does not fit into the record: {error}") from error
    log.write(data)
    log.last = (int(places[-1]), int(columns.sizes[first + part - 1]))
    return part, places


def _batch_of(
    columns: Columns,
    keys: KeyColumns,
    first: int,
    count: int,
    places: np.ndarray[tuple[int], np.dtype[np.int64]],
    key: QueueKey,
    queue_offset: int,
    now: int,
    transaction: int,
) -> DispatchBatch:
    if count != len(columns.sizes):
        keys = keys.part(first, first + count)
    return DispatchBatch(
        queues=[key],
        queue_numbers=np.zeros(count, np.int64),
        offsets=places,
        sizes=columns.sizes[first : first + count],
        queue_offsets=np.arange(queue_offset, queue_offset + count),
        tags_codes=keys.tags_codes,
        store_times=np.full(count, now, np.int64),
        transactions=np.full(count, transaction, np.int64),
        key_hashes=keys.hashes,
        key_messages=keys.messages,
    )
