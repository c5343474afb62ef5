"""The streaming source ``qindex``: the messages of queues as they are published.

An offset is the seq_id of the next message for each queue: ``{store: {queue: seq_id}}``. The
source only looks: it acknowledges nothing, and the engine that owns the store goes on. A message
is given if it is not acknowledged when its batch is planned; a batch that is planned again after
a restart has the same bounds, and all of its messages that are still there.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from journal.errors import StoreError
from pyspark_qindex.offsets import Places, check_start, flatten, next_places, unflatten
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.planning import SHIPPED_BYTES, QueuePart, group, narrowed, queue_parts, split
from pyspark_qindex.reading.read_parts import Parts, PartsReader, read_part
from pyspark_qindex.stores import find_stores, is_queue_store, need_store
from qindex.view.arrow import plain_text

_TASK_BYTES = 16 << 20
_LIKE_OURS = re.compile(r" \((priority \d+|plain)\)$")
"""The end of a queue's own name that looks as if it had been added here."""


class Stream(PartsReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's look at its queues, or logs; lives in a Python process beside the driver."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._target: Places | None = None
        self._stores: set[str] = set()

    def _firsts(self) -> Places:
        """Look, and give where they begin on disk."""
        raise NotImplementedError

    def _ends(self) -> Places:
        """Look, and give where they end."""
        raise NotImplementedError

    def initialOffset(self) -> dict[str, object]:
        """Where a new query begins: see the option ``startingPosition``."""
        starting = self.options.starting
        if starting == "latest":
            return unflatten(self._ends())
        first = self._firsts()
        if starting == "earliest":
            return unflatten(first)
        given = flatten(json.loads(starting))
        check_start(given, self._stores, first)
        return unflatten(first | given)

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxMessagesPerBatch``."""
        most = self.options.most_in_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where they end, or the option ``endingPosition``: this run goes no further."""
        ending = self.options.ending
        self._target = flatten(json.loads(ending)) if ending else self._ends()

    def commit(self, end: dict[str, object]) -> None:
        """Nothing is kept for a batch, so nothing can be given back."""

    def stop(self) -> None:
        """Nothing is held open."""


class QueueStream(Stream):
    """One query's look at its queues."""

    _read_part = staticmethod(read_part)

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._seen: dict[tuple[str, str], QueuePart] = {}
        self._heads: dict[tuple[str, str], tuple[object, int]] = {}

    def _firsts(self) -> Places:
        return {at: _first(part) for at, part in self._look().items()}

    def _ends(self) -> Places:
        return {at: self._head(at, part) for at, part in self._look().items()}

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Where the next batch ends."""
        places = flatten(start)
        heads = self._ends()
        if self._target is not None:
            target = self._target
            heads = {at: min(head, target[at]) for at, head in heads.items() if at in target}
        # What is gone for good need not be gone through.
        places |= {
            at: max(places.get(at, 0), min(_first(self._seen[at]), head))
            for at, head in heads.items()
        }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return unflatten(next_places(places, heads, most))

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Plan a batch: of the moment that :meth:`latestOffset` saw, else of now."""
        before, after = flatten(start), flatten(end)
        parts = self._seen or self._look()
        self._seen = {}
        found = []
        for at, high in sorted(after.items()):
            low = before.get(at, 0)
            if low >= high:
                continue
            part = parts.get(at)
            if part is None:
                need_store(at[0], self._stores)
                continue  # the queue was deleted
            count = part.entry_count
            numbers = tuple(
                one for one in part.numbers if low // count <= one <= (high - 1) // count
            )
            if numbers:
                piece = replace(narrowed(part, numbers), low=low, high=high)
                found += split(piece, _TASK_BYTES)
        return [Parts(list(task)) for task in group(found, self.options.partitions)]

    def _look(self) -> dict[tuple[str, str], QueuePart]:
        """Pin the queues as they are now."""
        options = self.options
        found: dict[tuple[str, str], QueuePart] = {}
        shipped = [SHIPPED_BYTES]
        stores = find_stores(options.paths, options.storage, is_queue_store)
        self._stores = {store.url for store in stores}
        for store in stores:
            try:
                parts = queue_parts(store, store.file_system(), options, shipped)
            except StoreError:
                if store.named or not options.permissive:
                    raise
                continue
            for part in parts:
                if isinstance(part, QueuePart):
                    found[(store.url, _name(part))] = part
        self._seen = found
        return found

    def _head(self, at: tuple[str, str], part: QueuePart) -> int:
        """Return the seq_id after the last message of a queue; it never goes back."""
        pinned = part.pinned
        last = part.numbers[-1] if part.numbers else None
        token = (last, part.head, pinned.segments.get(last or 0) if pinned is not None else None)
        before = self._heads.get(at, (None, 0))
        if before[0] == token:
            return before[1]
        head = part.head
        if last is not None and head == (last + 1) * part.entry_count:
            # The journal has no publish: the last segment tells.
            view = part.view()
            entries = [] if view is None else view.entries(last)
            head = max((int(one.seqs.max()) + 1 for one in entries if len(one.seqs)), default=0)
        head = max(head, before[1])
        self._heads[at] = (token, head)
        return head


def _first(part: QueuePart) -> int:
    """Return the lowest seq_id that a queue can have on disk."""
    return part.numbers[0] * part.entry_count if part.numbers else 0


def _name(part: QueuePart) -> str:
    """Return the name of a queue in offsets, which no other queue of the store has."""
    name = plain_text(part.queue) or ""
    if part.priority is not None:
        return f"{name} (priority {part.priority})"
    return f"{name} (plain)" if _LIKE_OURS.search(name) else name
