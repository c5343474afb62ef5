"""The streaming sources: messages of queues, and records of CommitLogs, as they come.

An offset is the seq_id of the next message for each queue, ``{store: {queue: {incarnation:
seq_id}}}``, or the physical offset after a log's last record, ``{store: offset}``. The source only
looks. It gives a message that is not acknowledged when its batch is read. A batch that is planned
again has the same bounds, and all of its messages that were not acknowledged since; where a store,
a queue or a file of it can't be read, it fails.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource

from journal.errors import UsageError
from journal.fs.files import FileSystem
from pyspark_qindex.options import At, Places, ReadOptions, flatten
from pyspark_qindex.planning import FailedStore, group, lost, parts_of_stores
from pyspark_qindex.reading import read_queues
from pyspark_qindex.reading.read_parts import Parts, PartsReader
from pyspark_qindex.reading.read_rocket import LogPart, end_of_log, log_path, look_at, open_log
from pyspark_qindex.stores import QUEUES, ROCKET, Store, local_store
from qindex.view.arrow import plain_text
from rocketstore.layout import Layout
from rocketstore.log.walk import LogWalk, SkipDamage

_TASK_BYTES: Final = 16 << 20
_LIKE_OURS: Final = re.compile(r" \((priority \d+|plain)\)$")
"""The end of a queue's own name that looks as if it had been added here."""

_SHOWN: Final = 10
"""Names that an error lists."""
_LOG = logging.getLogger("pyspark_qindex")

_Heads = dict[At, tuple[object, int]]
"""The ends of a store's queues as they were last found, with what they were found by."""


@dataclass(slots=True)
class _Queue:
    """A queue as it is now."""

    part: read_queues.QueuePart
    heads: _Heads

    @property
    def at(self) -> At:
        """The queue in offsets."""
        incarnation = self.part.incarnation
        return self.part.store.url, self.name, f"{incarnation:016x}" if incarnation else ""

    @property
    def name(self) -> str:
        """The name of the queue in offsets, which no other queue of the store has."""
        name = plain_text(self.part.queue) or ""
        if self.part.priority is not None:
            return f"{name} (priority {self.part.priority})"
        return f"{name} (plain)" if _LIKE_OURS.search(name) else name

    @property
    def first(self) -> int:
        """The lowest seq_id that it can have on disk."""
        return self.part.numbers[0] * self.part.entry_count if self.part.numbers else 0

    def end(self, _known: int) -> int:
        """Return the seq_id after the last message; it never goes back."""
        part = self.part
        token = (part.numbers[-1:], part.head, part.tail)
        before = self.heads.get(self.at, (None, 0))
        if before[0] == token:
            return before[1]
        head = part.head if part.tail is None else part.end(part.view())
        # Messages of a transaction that is not committed are given when it is.
        head = max(min((head, *part.rules.pending)), before[1])
        if not part.rules.pending:
            self.heads[self.at] = (token, head)
        return head

    def after(self, low: int, most: int, stop: int) -> int:
        """Return the place after ``most`` messages from ``low`` on, and at most ``stop``."""
        return min(low + most, stop)

    def parts(self, low: int, high: int) -> list[Any]:
        """Return what to read for the messages from ``low`` up to ``high``."""
        first, last = low // self.part.entry_count, (high - 1) // self.part.entry_count
        gone = [what for one, what in self.part.missing if one < 0 or first <= one <= last]
        found: list[Any] = [FailedStore(self.part.store, what) for what in gone]
        numbers = tuple(one for one in self.part.numbers if first <= one <= last)
        if numbers:
            part = read_queues.narrowed(self.part, numbers)
            found += read_queues.split(replace(part, low=low, high=high), _TASK_BYTES)
        return found


@dataclass(slots=True)
class _Log:
    """The files of a CommitLog as they are now; with the methods of :class:`_Queue`."""

    store: Store
    layout: Layout

    @property
    def at(self) -> At:
        """The log in offsets."""
        return self.store.url, "", ""

    @property
    def first(self) -> int:
        """The lowest offset there is."""
        return min(self.layout.readable, default=0)

    def end(self, known: int) -> int:
        """Return the offset after the last record; it is at least ``known``."""
        return end_of_log(self.store, self.layout, known)

    def after(self, low: int, most: int, stop: int) -> int:
        """Return the offset after ``most`` records from ``low`` on, and at most ``stop``."""
        if not most:
            return low
        layout = self.layout
        log = open_log(self.store, layout.commitlog_file_size, layout.readable, layout.short)
        try:
            count = 0
            for base, records in LogWalk(
                log, low, check_crc=False, strict=True, on_damage=SkipDamage(log), limit=stop
            ):
                ends = records.positions + records.sizes + base
                if count + len(ends) >= most:
                    return int(ends[most - count - 1])
                count += len(ends)
            return stop
        finally:
            log.files.close()

    def parts(self, low: int, high: int) -> list[Any]:
        """Return a part for each file that has something from ``low`` up to ``high``."""
        found: list[Any] = []
        size = self.layout.commitlog_file_size
        files = set(self.layout.readable)
        while low < high:
            start = low - low % size
            stop = min(high, start + size)
            if start in files:
                held = self.layout.short.get(start)
                part = LogPart(self.store, size, start, low, stop, False, stop - low, held)
                found.append(part)
            else:
                what = f"{log_path(self.store, start)}: this file of the log is missing"
                found.append(FailedStore(self.store, what))
            low = stop
        return found


class Stream(PartsReader, DataSourceStreamReader, datasource.SupportsTriggerAvailableNow):
    """One query's look at its queues, or logs, in a Python process beside the driver. It keeps
    nothing for a batch, and holds nothing open."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._target: Places | None = None
        self._stores: dict[str, str] = {}
        self._seen: dict[At, _Queue | _Log] = {}
        self._heads: _Heads = {}
        self._long_enough: set[At] = set()

    def __getstate__(self) -> dict[str, object]:
        """Return what a task needs."""
        return {"options": self.options}

    def _look(self) -> dict[At, _Queue | _Log]:
        """Look at the queues or the logs as they are now. ``_stores`` has by URL what can't be read
        of each."""
        before, self._stores = self._stores, {}
        found: list[_Queue | _Log] = []

        def queues(store: Store, fs: FileSystem, options: ReadOptions) -> list[FailedStore]:
            self._stores[store.url] = ""
            parts = read_queues.queue_parts(store, fs, options, pin=True)
            found.extend(
                _Queue(one, self._heads) for one in parts if isinstance(one, read_queues.QueuePart)
            )
            return []

        def log(store: Store, fs: FileSystem, _options: ReadOptions) -> list[FailedStore]:
            self._stores[store.url] = ""
            found.append(_Log(store, look_at(fs, store)))
            return []

        if self.options.include == "messages":
            failed = parts_of_stores(self.options, QUEUES, queues)
        else:
            failed = parts_of_stores(self.options, ROCKET, log)
        for one in failed:
            self._stores[one.store.url] = one.why
            if before.get(one.store.url) != one.why:
                _LOG.warning("left out until it can be read: %s", one.why)
        self._seen = {one.at: one for one in found}
        return self._seen

    def initialOffset(self) -> dict[str, object]:
        """Where a new query begins: see the option ``startingPosition``."""
        starting, found = self.options.starting, self._look()
        if starting == "latest":
            return unflatten({at: one.end(0) for at, one in found.items()})
        first = {at: one.first for at, one in found.items()}
        if isinstance(starting, str):
            return unflatten(first)
        starting = resolved(starting, first)
        check_start(starting, self._stores, first)
        return unflatten(first | starting)

    def getDefaultReadLimit(self) -> datasource.ReadLimit:
        """``maxMessagesPerBatch``."""
        most = self.options.most_in_batch
        return datasource.ReadAllAvailable() if most is None else datasource.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where they end, or the option ``endingPosition``: this run goes no further."""
        found = self._look()
        if self.options.ending is None:
            self._target = {at: one.end(0) for at, one in found.items()}
        else:
            self._target = resolved(self.options.ending, found)

    def latestOffset(
        self, start: dict[str, object], limit: datasource.ReadLimit
    ) -> dict[str, object]:
        """Where the next batch ends. Places of what is not there are kept: it may come back."""
        places, ends = flatten(start), {}
        found, named = self._look(), {at[:2]: at for at in places}
        for at, one in found.items():
            if self._target is None or at in self._target:
                if at not in places and places.pop(named.get(at[:2], at), 0):
                    _LOG.warning("%s: queue %r was made again: read from its beginning", *at[:2])
                place = places.get(at, 0)
                is_log = place > 0 and isinstance(one, _Log)
                if is_log and at not in self._long_enough:
                    place = self._checked(one, place)
                stop = one.end(max(place, one.first))
                if self._target is not None:
                    stop = min(stop, self._target[at])
                # What was acknowledged need not be gone through; in a log, nothing was.
                places[at] = low = place if is_log else max(place, min(one.first, stop))
                if low < stop:
                    ends[at] = stop
        if not isinstance(limit, datasource.ReadMaxRows):
            return unflatten(places | ends)
        # Of a log, bytes: no record is smaller than one.
        waiting = {at: stop - places[at] for at, stop in ends.items()}
        for at, count in share(waiting, limit.max_rows).items():
            places[at] = found[at].after(places[at], count, ends[at])
        return unflatten(places)

    def _checked(self, log: _Queue | _Log, place: int) -> int:
        """Return the place to go on at in a log: it never gets shorter. Raises
        :class:`ReadFailedError`."""
        end = log.end(0)
        if place > end and self.options.whole:
            what = f"{log.at[0]}: the log was read up to offset {place}, and ends at {end}: it was "
            raise lost(local_store(log.at[0]), f"{what}cut, or made again")
        self._long_enough.add(log.at)
        return min(place, end)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Plan a batch: of the moment that :meth:`latestOffset` saw, else of now."""
        before, after = flatten(start), flatten(end)
        seen = self._seen or self._look()
        self._seen = {}
        parts: list[Any] = []
        for at, high in sorted(after.items()):
            low = before.get(at, 0)
            if low < high and at in seen:
                parts += seen[at].parts(low, high)
            elif low < high:
                gone = f"{at[0]}: queue {at[1]!r} was deleted, with messages that were to be read"
                why = self._stores.get(at[0], f"{at[0]}: the store is not there") or gone
                parts.append(FailedStore(local_store(at[0]), why))
        for one in parts:
            if isinstance(one, FailedStore) and self.options.whole:
                raise lost(one.store, one.why)
        return [Parts(task) for task in group(parts, self.options.partitions)]


def unflatten(places: Places) -> dict[str, object]:
    """Return offsets as Spark keeps them; equal places give equal JSON."""
    offsets: dict[str, Any] = {}
    for (store, queue, incarnation), place in sorted(places.items()):
        if queue:
            value = {incarnation: place} if incarnation else place
            offsets.setdefault(store, {})[queue] = value
        else:
            offsets[store] = place
    return offsets


def resolved(given: Places, known: Collection[At]) -> Places:
    """Return places that a user gave, where a queue is named without its incarnation with that of
    the queue there is."""
    now = {at[:2]: at for at in known}
    return {at if at[2] else now.get(at[:2], at): place for at, place in given.items()}


def check_start(given: Places, stores: Collection[str], known: Collection[At]) -> None:
    """See whether each place in ``startingPosition`` is of a source that is followed. ``stores``:
    that are; ``known``: sources of those that could be read. Raises :class:`UsageError`."""
    read = {at[0] for at in known}
    for at in given:
        store, queue, _ = at
        if store not in stores:
            what = f"startingPosition names {store}, which is not followed"
            raise UsageError(f"{what}; there are {_some(sorted(stores))}")
        if store in read and at not in known:
            queues = sorted(name for one, name, _ in known if one == store)
            what = f"startingPosition names {queue!r} of {store}, which is not followed"
            what += f"; there are {_some(queues)}" if any(queues) else ": a number is right"
            raise UsageError(what)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def share(waiting: Mapping[At, int], most: int) -> Places:
    """Share ``most`` messages out among sources that have ``waiting`` ones: equal shares, and
    what one does not need goes to the others."""
    given: Places = {}
    left = most
    order = sorted(waiting, key=lambda at: (waiting[at], at))
    for number, at in enumerate(order):
        given[at] = min(waiting[at], -(-left // (len(order) - number)))
        left -= given[at]
    return given
