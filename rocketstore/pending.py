"""What was put into the log and not yet into queues and index, and how it gets there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from journal.call_lock import refuse_twice
from journal.errors import DamageError, StorageError, StoreError, UsageError
from journal.poison import Poison
from rocketstore.columns import Columns, build_columns
from rocketstore.commitlog_format import (
    COMMIT,
    ROLLBACK,
    TRANSACTION_MASK,
    host_bytes,
    with_host_bits,
)
from rocketstore.consumequeue_format import UNIT
from rocketstore.cut_short import WholeOrNothing
from rocketstore.dispatch import DispatchBatch, Int64Array, QueueKey
from rocketstore.heads import read_head, read_heads
from rocketstore.javahash import index_hash, tags_code, topic_seed
from rocketstore.key_columns import KeyColumns, key_columns
from rocketstore.message import BatchResult
from rocketstore.parts import Parts
from rocketstore.properties import TAGS, decode_properties, index_keys
from rocketstore.put_path import Route

if TYPE_CHECKING:
    from rocketstore.store import Store

__all__ = ["PENDING_MAX", "Pending", "append_columns"]

PENDING_MAX = 4096
"""After so many single puts the one that comes next is not kept waiting for longer."""
_FEW = 24
"""Up to so many messages, one by one is faster than columns."""


class Pending:
    """Messages that wait to be dispatched. The store holds its lock around all calls.

    ``offsets`` says where their records stand in the last file of the log: these tell what queues
    and index need, as they do after a crash. What they don't tell stands beside it by offset:
    ``queues`` says where the messages from that one on go, up to the next that is named, and
    ``codes`` the tagsCodes that are no tags'. ``route`` is the last put's, ``None`` at first.
    (:meth:`rocketstore.Store.put` does :meth:`note` itself: a call would cost as much again.)

    When queues or index can't be written (``broken`` is the error) the store takes no more
    writes: what waits is in the log, and open puts it where it belongs.
    """

    __slots__ = ("_parts", "_poison", "broken", "codes", "offsets", "queues", "route")

    def __init__(self, parts: Parts, poison: Poison) -> None:
        self._parts = parts
        self._poison = poison
        self.broken: StoreError | None = None
        self.route: Route | None = None
        self.queues: dict[int, QueueKey] = {}
        self.codes: dict[int, int] = {}
        self.offsets: list[int] = []

    def note(self, offset: int, route: Route, code: int) -> None:
        """One message more waits; ``code`` is its tagsCode, if that is not its tags'."""
        if route is not self.route:
            self.route = route
            self.queues[offset] = route.key
        if code:
            self.codes[offset] = code
        self.offsets.append(offset)
        if len(self.offsets) >= PENDING_MAX:
            self.dispatch_quietly()

    def dispatch(self) -> None:
        """Bring queues and index up to the log. Raises :class:`StorageError`, or
        :class:`DamageError` when somebody else has written into what was put."""
        offsets = self.offsets
        if not offsets:
            return
        if self.broken is not None:
            raise self.broken
        try:
            if len(offsets) <= _FEW:
                self._one_by_one()
            else:
                self._parts.dispatch(self._columns())
            log = self._parts.commitlog
            log.last = (offsets[-1], log.max_offset - offsets[-1])
            self.route = None
            self.queues.clear()
            self.codes.clear()
            offsets.clear()
        except (StorageError, DamageError) as error:
            self.broke(error)
            raise
        except BaseException as error:
            self.cut_short(error)
            raise

    def broke(self, error: StoreError) -> None:
        """Queues or index could not be written: nobody may ask them, or write, from here on."""
        self.broken = error
        self._poison.set(error)

    def cut_short(self, error: BaseException) -> None:
        """The same after a call was cut short (:mod:`rocketstore.cut_short`)."""
        self._poison.cut_short(error)
        if self.broken is None:
            name = type(error).__name__
            self.broken = StoreError(
                f"queues and index are not asked: a call was cut short by {name}; close, and "
                "open again"
            )

    def dispatch_quietly(self) -> None:
        """:meth:`dispatch` for a put: its message is stored, so an error is for the next one."""
        with contextlib.suppress(StorageError, DamageError):
            self.dispatch()

    def _one_by_one(self) -> None:
        parts = self._parts
        log = parts.commitlog
        index = parts.index if parts.options.index else None
        view = log.view
        assert view is not None
        topic, queue_id, now = "", 0, 0
        base = log.base
        for offset, end in pairwise((*self.offsets, log.max_offset)):
            topic, queue_id = self.queues.get(offset, (topic, queue_id))
            record = read_head(view, offset - base, end - base, base)
            now = record.store_timestamp
            found = decode_properties(record.properties)
            transaction = record.sys_flag & TRANSACTION_MASK
            if transaction in (0, COMMIT):
                code = self.codes.get(offset) or tags_code(found.get(TAGS))
                unit = UNIT.pack(offset, record.size, code)
                parts.queue(topic, queue_id).put_one(record.queue_offset, offset, record.size, unit)
            if index is None:
                continue
            keys = index_keys(found)
            if keys and transaction != ROLLBACK:
                seed = topic_seed(topic)
                index.put_one([index_hash(key, seed) for key in keys], offset, now)
            else:
                index.current()
        parts.checkpoint.logical = now

    def _columns(self) -> DispatchBatch:
        log = self._parts.commitlog
        count = len(self.offsets)
        offsets = np.fromiter(self.offsets, np.int64, count)
        first = self.offsets[0]
        assert log.view is not None
        data = np.frombuffer(log.view, np.uint8, log.max_offset - first, first - log.base)
        heads = read_heads(data, offsets - first, first)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(self.queues.values()))}
        starts = _places(self.queues, offsets)
        queue_numbers = np.repeat(
            np.array([numbers[key] for key in self.queues.values()], np.int64),
            np.diff(starts, append=count),
        )
        seeds = [topic_seed(topic) for topic, _ in numbers]
        seed = np.array(seeds, np.int64)[queue_numbers] if len(set(seeds)) > 1 else seeds[0]
        keys = key_columns(data, heads.properties_at, heads.property_lengths, seed)
        keys.tags_codes[_places(self.codes, offsets)] = list(self.codes.values())
        return DispatchBatch(
            queues=list(numbers),
            queue_numbers=queue_numbers,
            offsets=offsets,
            sizes=heads.sizes,
            queue_offsets=heads.queue_offsets,
            tags_codes=keys.tags_codes,
            store_times=heads.store_times,
            transactions=heads.sys_flags & TRANSACTION_MASK,
            key_hashes=keys.hashes,
            key_messages=keys.messages,
        )


def _places(noted: dict[int, Any], offsets: Int64Array) -> Int64Array:
    """The numbers of the messages that a note by offset is of."""
    return np.searchsorted(offsets, np.fromiter(noted, np.int64, len(noted)))


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
    route = store._route(topic, queue_id)
    stored_by = store._store_host if store_host is None else host_bytes(store_host)
    born_by = stored_by if born_host is None else host_bytes(born_host)
    sys_flag = with_host_bits(sys_flag, born_by, stored_by)
    columns = build_columns(
        bodies, properties, len(route.field) - 1, sys_flag, flags, options.max_message_size
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
    synced = wait and count > 0 and options.durability == "fsync"
    if synced and store._group.is_mine():
        refuse_twice()  # a handler in the middle of a sync: before anything is put
    with store._lock, WholeOrNothing(store):
        store._check_writable()
        store._pending.dispatch()
        now = store._now()
        queue_offset = route.ordinal
        offsets: list[int] = []
        done = 0
        while done < count:
            part, places = _append_part(
                store, columns, done, whole,
                topic_field=route.field, queue_id=queue_id, queue_offset=queue_offset + done,
                sys_flag=sys_flag, born_timestamp=now if born_timestamp is None else born_timestamp,
                born_host=born_by, store_timestamp=now, store_host=stored_by,
            )  # fmt: skip
            offsets += places.tolist()
            route.ordinal = queue_offset + done + part
            batch = _batch_of(columns, keys, done, part, places, route.key, queue_offset + done,
                              now, sys_flag & TRANSACTION_MASK)  # fmt: skip
            done += part
            try:
                store._parts.dispatch(batch)
            except StorageError as error:
                store._pending.broke(error)
                break
    if done < count:
        store._poison.check()
    if synced:
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
    try:
        log.write(data)
    except StorageError as error:
        store._pending.broke(error)  # a part of it may stand behind the log's end
        raise
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
