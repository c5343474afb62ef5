"""The dispatcher: from the records in the log to queues and index."""

from __future__ import annotations

import contextlib
import mmap
from array import array
from typing import Any

import numpy as np

from journal.compiled import INTERPRETED, build
from journal.errors import DamageError, StorageError, StoreError
from journal.poison import is_passing
from rocketstore.format import words
from rocketstore.format.commitlog_format import COMMIT, ROLLBACK, TRANSACTION_MASK
from rocketstore.format.heads import Head, changed
from rocketstore.format.javahash import absolute, topic_seed
from rocketstore.format.key_columns import key_columns
from rocketstore.format.properties import Indexed
from rocketstore.log.dispatch import DispatchBatch, Int64Array, QueueKey
from rocketstore.log.scan import read_heads
from rocketstore.queues.consumequeue import UnitRun
from rocketstore.repair.index_rebuild import rebuild_index
from rocketstore.state import Change, StoreState

PENDING_MAX = 4096
"""So many single puts are dispatched at once: the call that comes next waits no longer."""
_FEW = 24 if build() == INTERPRETED else PENDING_MAX
"""Up to this many messages, one by one is faster than columns."""
_SPACE = 32


class Dispatcher:
    """Bring queues and index up to the log. The caller has the store's lock.

    Where the disk has no room for queues or index, the messages stay pending and are tried again by
    the next call. After any other failure the store takes no more writes: the messages are in the
    log, and the next open puts them where they belong.
    """

    __slots__ = ("_state",)

    def __init__(self, state: StoreState) -> None:
        self._state = state

    def dispatch(self) -> None:
        """Dispatch all pending messages. Can be repeated after an error that :func:`is_passing`.

        Raises :class:`StorageError`, and :class:`DamageError` when another process has written into
        the records.
        """
        state = self._state
        pending = state.pending
        offsets = pending.offsets
        if not offsets:
            return
        if state.broken is not None:
            raise state.broken
        outer = state.changing
        state.changing = True
        try:
            if len(offsets) <= _FEW:
                view = state.commitlog.view
                assert view is not None
                self._one_by_one(view)
            else:
                state.parts.dispatch(self._columns())
        except (StorageError, DamageError) as error:
            self.failed(error)
            state.changing = outer
            raise
        log = state.commitlog
        log.last = (offsets[-1], log.max_offset - offsets[-1])
        pending.clear()
        if state.behind is not None:
            state.fall_behind(None)
        state.changing = outer

    def failed(self, error: StoreError) -> None:
        """Note that queues or index could not be written."""
        if isinstance(error, StorageError) and is_passing(error):
            self._state.fall_behind(error)
        else:
            self._state.broke(error)

    def begin_put(self) -> None:
        """Begin a put as :meth:`StoreState.begin_put` does. Then dispatch the messages that queues
        and index lack for want of room. Raises as it does, and as :meth:`dispatch`."""
        self._state.begin_put()
        if self._state.behind is not None:
            self.dispatch()

    def dispatch_quietly(self) -> None:
        """:meth:`dispatch` within a put: its message is stored, so an error is for the next
        call."""
        with contextlib.suppress(StorageError, DamageError):
            self.dispatch()

    def catch_up(self) -> None:
        """Make ready to read: every put that returned is found. Raises :class:`ClosedError`,
        :class:`StorageError`, :class:`DamageError`, :class:`StoreError`."""
        missing = self.catch_up_or_less()
        if missing is not None:
            raise missing

    def catch_up_or_less(self) -> StorageError | None:
        """As :meth:`catch_up`, but return the error where the disk has no room for all."""
        state = self._state
        if state.refusal is not None or state.changing:
            state.begin_read()
        if state.broken is not None:
            raise state.broken
        if state.pending.offsets:
            try:
                self.dispatch()
            except StorageError as error:
                if not is_passing(error):
                    raise
                return error
        return None

    def rebuild_index(self) -> None:
        """Delete all index files and build them anew from the log. O(bytes of the log).

        Raises :class:`StorageError`. The index may be half built then, and the store is broken.
        """
        state = self._state
        state.begin_write()
        self.dispatch()
        log = state.commitlog
        log.settle()
        with Change(state):
            try:
                rebuild_index(state.parts, 0, max(log.min_offset, 0), 0, log.max_offset)
            except StorageError as error:
                state.broke(error)
                raise

    def _one_by_one(self, data: mmap.mmap) -> None:
        """``data``: the last file of the log."""
        parts, pending = self._state.parts, self._state.pending
        log = parts.commitlog
        head, indexed = Head(), Indexed()
        noted = list(pending.queues.items())
        topic, queue_id = "", 0
        noted_place = seed = offset = now = 0
        noted_offset = noted[0][0]
        runs: dict[QueueKey, UnitRun] = {}
        run: UnitRun | None = None
        hashes, owners, times = array("q"), array("q"), array("q")
        before, ascends = parts.index.end_timestamp, True
        base, places = log.base, pending.offsets
        count, log_end = len(places), log.max_offset
        for number in range(count):
            offset = words.number_at(places, number)
            end = log_end if number + 1 == count else words.number_at(places, number + 1)
            if offset == noted_offset:
                topic, queue_id = noted[noted_place][1]
                noted_place += 1
                noted_offset = noted[noted_place][0] if noted_place < len(noted) else -1
                seed = topic_seed(topic)
                run = runs.get((topic, queue_id))
            head.read(data, offset - base, end - base, base)
            indexed.find(data, head.properties_at, end - base)
            now = head.store_timestamp
            ascends = ascends and now >= before
            before = now
            transaction = head.sys_flag & TRANSACTION_MASK
            if transaction == 0 or transaction == COMMIT:
                code = words.piece_hash(data, indexed.tags, indexed.tags_end, 0)
                if pending.codes:
                    code = pending.codes.get(offset) or code
                if run is None:
                    run = runs[topic, queue_id] = UnitRun(parts.queue(topic, queue_id))
                run.add(head.queue_offset, offset, head.size, code)
            if transaction != ROLLBACK:
                known = len(hashes)
                if indexed.unique < indexed.unique_end:
                    code = words.piece_hash(data, indexed.unique, indexed.unique_end, seed)
                    words.push(hashes, absolute(code))
                at = indexed.keys
                while at < indexed.keys_end:
                    stop = words.place_of(data, _SPACE, at, indexed.keys_end)
                    if at < stop:
                        words.push(hashes, absolute(words.piece_hash(data, at, stop, seed)))
                    at = stop + 1
                for _ in range(len(hashes) - known):
                    words.push(owners, offset)
                    words.push(times, now)
        for run in runs.values():
            run.put()
        if parts.options.index:
            put = parts.index.put_keys if ascends else parts.index.put_runs
            put(hashes, owners, times, offset)
        parts.checkpoint.logical = now

    def _columns(self) -> DispatchBatch:
        log, pending = self._state.commitlog, self._state.pending
        count = len(pending.offsets)
        offsets = np.array(pending.offsets, np.int64)
        first = pending.offsets[0]
        assert log.view is not None
        data = np.frombuffer(log.view, np.uint8, log.max_offset - first, first - log.base)
        places = offsets - first
        heads = read_heads(data, places, np.diff(places, append=len(data)))
        sound = heads.sound & (heads.offsets == offsets)
        if not sound.all():
            raise changed(int(offsets[sound.argmin()]))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(pending.queues.values()))}
        starts = _places(pending.queues, offsets)
        queue_numbers = np.repeat(
            np.array([numbers[key] for key in pending.queues.values()], np.int64),
            np.diff(starts, append=count),
        )
        seeds = [topic_seed(topic) for topic, _ in numbers]
        seed = np.array(seeds, np.int64)[queue_numbers] if len(set(seeds)) > 1 else seeds[0]
        keys = key_columns(data, heads.properties_at, heads.property_lengths, seed)
        keys.tags_codes[_places(pending.codes, offsets)] = list(pending.codes.values())
        return DispatchBatch.of(list(numbers), queue_numbers, offsets, heads, keys)


def _places(noted: dict[int, Any], offsets: Int64Array) -> Int64Array:
    """The numbers of the messages that a note by offset is of."""
    return np.searchsorted(offsets, np.fromiter(noted, np.int64, len(noted)))
