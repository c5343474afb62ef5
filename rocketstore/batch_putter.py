"""Batches: many messages of one topic and queue, with one copy, one dispatch and one sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from journal.arguments import listed
from journal.errors import StorageError, UsageError
from rocketstore.columns import Batch, Host, make_properties
from rocketstore.dispatcher import Dispatcher
from rocketstore.format.commitlog_format import BLANK_SIZE, TRANSACTION_MASK
from rocketstore.format.compose import join_properties, raw_properties
from rocketstore.format.javahash import topic_seed
from rocketstore.format.key_columns import keys_of_properties
from rocketstore.format.message import BatchResult
from rocketstore.format.properties import DELAY, KEYS, TAGS, UNIQ_KEY
from rocketstore.log.dispatch import Int64Array
from rocketstore.log_sync import LogSync
from rocketstore.state import Change, StoreState

_NONE = np.zeros(0, np.int64)


class BatchPutter:
    """Store batches."""

    __slots__ = ("_dispatcher", "_log_sync", "_state")

    def __init__(self, state: StoreState, dispatcher: Dispatcher, log_sync: LogSync) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._log_sync = log_sync

    def put_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        queue_id: int,
        tags: str | Sequence[str] | None,
        keys: str | Sequence[str] | None,
        unique_keys: Sequence[str] | None,
        properties: Mapping[str, str] | None,
        flag: int,
        born_timestamp: int | None,
        born_host: Host,
        wait: bool,
    ) -> BatchResult:
        """:meth:`rocketstore.Store.put_many`."""
        self._state.check_writable()
        for reserved in (DELAY, TAGS, KEYS, UNIQ_KEY):
            if properties and reserved in properties:
                raise UsageError(f"property {reserved} can't be given to put_many by name")
        bodies = listed(bodies, "bodies")
        unique = unique_keys and listed(unique_keys, "unique_keys")
        given: dict[str, Any] = dict(properties or {})
        given.update({TAGS: tags, KEYS: keys, UNIQ_KEY: unique})
        data, key_columns = make_properties(len(bodies), topic, given)
        batch = Batch(
            self._state,
            topic,
            queue_id,
            bodies,
            data,
            key_columns,
            flag,
            0,
            born_timestamp,
            born_host,
            None,
        )
        return self._put(batch, whole=False, wait=wait)

    def put_batch(
        self,
        topic: str,
        messages: Sequence[tuple[int, bytes, Mapping[str, str] | bytes]],
        queue_id: int,
        properties: Mapping[str, str] | bytes | None,
        sys_flag: int,
        born_timestamp: int | None,
        born_host: Host,
        store_host: Host,
        wait: bool,
    ) -> BatchResult:
        """:meth:`rocketstore.Store.put_batch`."""
        self._state.check_writable()
        if sys_flag & TRANSACTION_MASK:
            raise UsageError("a batch can't be part of a transaction")
        shared = raw_properties(properties or {})
        rows = [raw_properties(own) for _, _, own in messages]
        if shared:
            rows = [join_properties(own, shared) for own in rows]
        batch = Batch(
            self._state,
            topic,
            queue_id,
            [body for _, body, _ in messages],
            rows,
            keys_of_properties(rows, topic_seed(topic)),
            [own_flag for own_flag, _, _ in messages],
            sys_flag,
            born_timestamp,
            born_host,
            store_host,
        )
        most = min(self._state.options.max_message_size, self._record_max())
        total = int(batch.sizes.sum())
        if total > most:
            raise UsageError(f"batch of {total} bytes: the limit is {most}")
        return self._put(batch, whole=True, wait=wait)

    def _record_max(self) -> int:
        return self._state.commitlog.file_size - BLANK_SIZE

    def _put(self, batch: Batch, *, whole: bool, wait: bool) -> BatchResult:
        """Append a batch to the log and dispatch it.

        ``whole`` keeps it in one file, as RocketMQ's batches are; otherwise each file is filled.
        """
        state = self._state
        count = len(batch.sizes)
        if batch.largest > self._record_max():
            raise UsageError(
                f"record of {batch.largest} bytes: a file of the commit log holds "
                f"{self._record_max()}"
            )
        done = 0
        offsets: list[Int64Array] = []
        synced = wait and count > 0 and state.options.durability == "fsync"
        if synced:
            self._log_sync.check_outside()
        with state.lock:
            self._dispatcher.begin_put()
            self._dispatcher.dispatch()
            batch.store_time = state.clock.read()
            first = batch.route.ordinal
            with Change(state):
                while done < count:
                    places = self._append_part(batch, done, first, whole=whole)
                    part = batch.dispatch_of(done, places, first)
                    offsets.append(places)
                    done += len(places)
                    batch.route.ordinal = first + done
                    try:
                        state.parts.dispatch(part)
                    except StorageError as error:
                        for place in places.tolist():
                            state.pending.note(place, batch.route, 0)
                        self._dispatcher.failed(error)
                        break
            if done < count:
                state.poison.check()
                assert state.behind is not None
                raise state.behind
        if synced:
            self._log_sync.commit()
        return BatchResult(
            offsets[0] if len(offsets) == 1 else np.concatenate([_NONE, *offsets]),
            batch.sizes,
            batch.route.queue_id,
            first,
            batch.store_time,
            batch.store_host,
        )

    def _append_part(self, batch: Batch, start: int, first: int, *, whole: bool) -> Int64Array:
        """Write as many records from number ``start`` on as the present file takes; return their
        offsets. ``first``: ordinal of the batch's first message."""
        state = self._state
        log = state.commitlog
        sizes = batch.sizes[start:]
        ends = np.cumsum(sizes)
        part = len(ends)
        if not whole:
            part = int(np.searchsorted(ends, log.space_left(), side="right"))
            if part == 0:
                log.make_room(int(sizes[0]))
                part = int(np.searchsorted(ends, log.space_left(), side="right"))
        places = ends[:part] - sizes[:part] + log.make_room(int(ends[part - 1]))
        data = batch.encode(start, places, first)
        try:
            log.write(data)
        except StorageError as error:
            state.broke(error)  # a part of it may be after the log's end
            raise
        log.last = (int(places[-1]), int(sizes[part - 1]))
        return places
