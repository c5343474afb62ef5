"""The streaming sources: messages of queues, and records of CommitLogs, as they come.

An offset is the seq_id of the next message for each queue, ``{store: {queue: seq_id}}``, or the
physical offset after a log's last record, ``{store: offset}``. The source only looks. It gives a
message that is not acknowledged when its batch is planned; a batch that is planned again has the
same bounds, and all of its messages that are still there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource

from journal.errors import UsageError
from journal.fs.files import FileSystem
from pyspark_qindex.options import Places, ReadOptions, flatten
from pyspark_qindex.planning import FailedStore, group, parts_of_stores
from pyspark_qindex.reading import read_queues
from pyspark_qindex.reading.read_parts import Parts, PartsReader
from pyspark_qindex.reading.read_rocket import LogPart, end_of_log, look_at, lost_file, open_log
from pyspark_qindex.stores import QUEUES, ROCKET, Store, local_store
from qindex.view.arrow import plain_text
from rocketstore.layout import Layout
from rocketstore.log.walk import LogWalk, SkipDamage

_TASK_BYTES: Final = 16 << 20
_LIKE_OURS: Final = re.compile(r" \((priority \d+|plain)\)$")
"""The end of a queue's own name that looks as if it had been added here."""

_SHOWN: Final = 10
"""Names that an error lists."""

_Heads = dict[str, tuple[object, int]]
"""The ends of a store's queues as they were last found, with what they were found by."""


@dataclass(slots=True)
class _Queue:
    """A queue as it is now."""

    part: read_queues.QueuePart
    heads: _Heads

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
        part, pinned = self.part, self.part.pinned
        last = part.numbers[-1] if part.numbers else None
        token = (last, part.head, pinned.segments.get(last or 0) if pinned is not None else None)
        before = self.heads.get(self.name, (None, 0))
        if before[0] == token:
            return before[1]
        head = part.head
        if last is not None and head == (last + 1) * part.entry_count:
            # The journal has no publish: the last segment tells that is not all damage.
            head, view = 0, part.view()
            for number in reversed(part.numbers):
                entries = [] if view is None else view.entries(number)
                head = max((int(one.seqs.max()) + 1 for one in entries if len(one.seqs)), default=0)
                if head:
                    break
        head = max(head, before[1])
        self.heads[self.name] = (token, head)
        return head

    def after(self, low: int, most: int, stop: int) -> int:
        """Return the place after ``most`` messages from ``low`` on, and at most ``stop``."""
        return min(low + most, stop)

    def parts(self, low: int, high: int) -> list[Any]:
        """Return what to read for the messages from ``low`` up to ``high``."""
        first, last = low // self.part.entry_count, (high - 1) // self.part.entry_count
        numbers = tuple(one for one in self.part.numbers if first <= one <= last)
        if not numbers:
            return []
        part = read_queues.narrowed(self.part, numbers)
        return read_queues.split(replace(part, low=low, high=high), _TASK_BYTES)


@dataclass(slots=True)
class _Log:
    """The files of a CommitLog as they are now; with the methods of :class:`_Queue`."""

    store: Store
    layout: Layout
    name: str = ""

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
        files, lost = set(self.layout.readable), set(self.layout.lost())
        low = max(low, self.first)
        while low < high:
            start = low - low % size
            stop = min(high, start + size)
            if start in files:
                held = self.layout.short.get(start)
                part = LogPart(self.store, size, start, low, stop, False, stop - low, held)
                found.append(part)
            elif start in lost:
                found.append(lost_file(self.store, start))
            low = stop
        return found


class Stream(PartsReader, DataSourceStreamReader, datasource.SupportsTriggerAvailableNow):
    """One query's look at its queues, or logs, in a Python process beside the driver. It keeps
    nothing for a batch, and holds nothing open."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._target: Places | None = None
        self._stores: set[str] = set()
        self._seen: dict[tuple[str, str], _Queue | _Log] = {}
        self._heads: dict[str, _Heads] = {}

    def _look(self) -> dict[tuple[str, str], _Queue | _Log]:
        """Look at the queues, which are pinned, or at the logs as they are now."""
        stores: set[str] = set()
        found: dict[tuple[str, str], _Queue | _Log] = {}
        shipped = [read_queues.SHIPPED_BYTES]

        def queues(store: Store, fs: FileSystem, options: ReadOptions) -> list[FailedStore]:
            stores.add(store.url)
            heads = self._heads.setdefault(store.url, {})
            for part in read_queues.queue_parts(store, fs, options, shipped):
                if isinstance(part, read_queues.QueuePart):
                    queue = _Queue(part, heads)
                    found[store.url, queue.name] = queue
            return []

        def log(store: Store, fs: FileSystem, _options: ReadOptions) -> list[FailedStore]:
            stores.add(store.url)
            found[store.url, ""] = _Log(store, look_at(fs, store))
            return []

        if self.options.include == "messages":
            failed = parts_of_stores(self.options, QUEUES, queues)
        else:
            failed = parts_of_stores(self.options, ROCKET, log)
        self._stores = stores | {one.store.url for one in failed}
        self._seen = found
        return found

    def initialOffset(self) -> dict[str, object]:
        """Where a new query begins: see the option ``startingPosition``."""
        starting, found = self.options.starting, self._look()
        if starting == "latest":
            return unflatten({at: one.end(0) for at, one in found.items()})
        first = {at: one.first for at, one in found.items()}
        if isinstance(starting, str):
            return unflatten(first)
        check_start(starting, self._stores, first)
        return unflatten(first | starting)

    def getDefaultReadLimit(self) -> datasource.ReadLimit:
        """``maxMessagesPerBatch``."""
        most = self.options.most_in_batch
        return datasource.ReadAllAvailable() if most is None else datasource.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where they end, or the option ``endingPosition``: this run goes no further."""
        self._target = self.options.ending
        if self._target is None:
            self._target = {at: one.end(0) for at, one in self._look().items()}

    def latestOffset(
        self, start: dict[str, object], limit: datasource.ReadLimit
    ) -> dict[str, object]:
        """Where the next batch ends. Places of what is not there are kept: it may come back."""
        places, ends = flatten(start), {}
        found = self._look()
        for at, one in found.items():
            if self._target is None or at in self._target:
                place = places.get(at, 0)
                stop = one.end(max(place, one.first))
                if self._target is not None:
                    stop = min(stop, self._target[at])
                # What is gone for good need not be gone through.
                places[at] = low = max(place, min(one.first, stop))
                if low < stop:
                    ends[at] = stop
        if not isinstance(limit, datasource.ReadMaxRows):
            return unflatten(places | ends)
        # Of a log, bytes: no record is smaller than one.
        waiting = {at: stop - places[at] for at, stop in ends.items()}
        for at, count in share(waiting, limit.max_rows).items():
            places[at] = found[at].after(places[at], count, ends[at])
        return unflatten(places)

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
            elif low < high and at[0] not in self._stores:  # else the queue was deleted
                raise local_store(at[0]).not_here(at[0])
        return [Parts(task) for task in group(read_queues.carried(parts), self.options.partitions)]


def unflatten(places: Places) -> dict[str, object]:
    """Return offsets as Spark keeps them; equal places give equal JSON."""
    offsets: dict[str, object] = {}
    for (store, queue), place in sorted(places.items()):
        if not queue:
            offsets[store] = place
            continue
        queues = offsets.setdefault(store, {})
        assert isinstance(queues, dict)
        queues[queue] = place
    return offsets


def check_start(given: Places, stores: Collection[str], known: Collection[tuple[str, str]]) -> None:
    """See whether each place in ``startingPosition`` is of a source that is followed. ``stores``:
    that are; ``known``: sources of those that could be read. Raises :class:`UsageError`."""
    read = {store for store, _ in known}
    for store, queue in given:
        if store not in stores:
            what = f"startingPosition names {store}, which is not followed"
            raise UsageError(f"{what}; there are {_some(sorted(stores))}")
        if store in read and (store, queue) not in known:
            queues = sorted(name for one, name in known if one == store)
            what = f"startingPosition names {queue!r} of {store}, which is not followed"
            what += f"; there are {_some(queues)}" if any(queues) else ": a number is right"
            raise UsageError(what)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def share(waiting: Mapping[tuple[str, str], int], most: int) -> Places:
    """Share ``most`` messages out among sources that have ``waiting`` ones: equal shares, and
    what one does not need goes to the others."""
    given: Places = {}
    left = most
    order = sorted(waiting, key=lambda at: (waiting[at], at))
    for number, at in enumerate(order):
        given[at] = min(waiting[at], -(-left // (len(order) - number)))
        left -= given[at]
    return given
