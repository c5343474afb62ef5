"""The streaming source ``rocketstore``: a CommitLog's records as they are appended.

An offset is the physical offset after the last record of a batch: ``{store: offset}``. Records
that the store has deleted before they were read (its retention) are not returned.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from pyspark_qindex.offsets import Places, flatten, share, unflatten
from pyspark_qindex.planning import FailedStore, group
from pyspark_qindex.reading.read_parts import Parts
from pyspark_qindex.reading.read_rocket import read_rocket_part
from pyspark_qindex.rocket_planning import LogPart, end_of_log, look_at, lost_file, open_log
from pyspark_qindex.stores import Store, find_stores, is_rocket_store, need_store
from pyspark_qindex.streaming import Stream
from rocketstore.layout import Layout
from rocketstore.log.walk import LogWalk, SkipDamage


@dataclass(slots=True)
class _Log:
    """The files of a CommitLog as they are now."""

    store: Store
    layout: Layout

    @property
    def first(self) -> int:
        """The lowest offset there is."""
        return min(self.layout.readable, default=0)

    def part(self, low: int, high: int) -> LogPart:
        """Return the file that ``low`` is in, from there to ``high``."""
        size = self.layout.commitlog_file_size
        start = low - low % size
        held = self.layout.short.get(start)
        return LogPart(self.store, size, start, low, high, False, max(high - low, 1), held)

    def end(self, known: int = 0) -> int:
        """Return the offset after the last record; it is at least ``known``."""
        return end_of_log(self.store, self.layout, known)

    def after(self, low: int, most: int, stop: int) -> int:
        """Return the offset after ``most`` records from ``low`` on, and at most ``stop``."""
        layout = self.layout
        log = open_log(self.store, layout.commitlog_file_size, layout.readable, layout.short)
        try:
            walk = LogWalk(
                log,
                low,
                check_crc=False,
                strict=True,
                on_damage=SkipDamage(log),
                limit=stop,
            )
            count = 0
            for base, records in walk:
                ends = records.positions + records.sizes + base
                if count + len(ends) >= most:
                    return int(ends[most - count - 1])
                count += len(ends)
            return stop
        finally:
            log.files.close()


class LogStream(Stream):
    """One query's look at its logs."""

    _read_part = staticmethod(read_rocket_part)

    def _firsts(self) -> Places:
        return {at: log.first for at, log in self._look().items()}

    def _ends(self) -> Places:
        return {at: log.end() for at, log in self._look().items()}

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Where the next batch ends."""
        places = flatten(start)
        logs = self._look()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        equal = share(dict.fromkeys(logs, most), most) if most is not None else {}
        for at, log in logs.items():
            low = max(places.get(at, 0), log.first)
            places[at] = low
            stop = log.end(low) if self._target is None else self._target.get(at, 0)
            if stop > low:
                count = equal.get(at)
                if count is None:
                    places[at] = stop
                elif count:
                    places[at] = log.after(low, count, stop)
        return unflatten(places)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Plan a batch: a part for each file that it touches."""
        before, after = flatten(start), flatten(end)
        found: list[LogPart | FailedStore] = []
        logs = self._look()
        for at, high in after.items():
            if before.get(at, 0) < high:
                need_store(at[0], self._stores)
        for at, log in logs.items():
            high = after.get(at, 0)
            low = max(before.get(at, 0), log.first)
            size = log.layout.commitlog_file_size
            files, lost = set(log.layout.readable), set(log.layout.lost())
            while low < high:
                stop = min(high, low - low % size + size)
                if low - low % size in files:
                    found.append(log.part(low, stop))
                elif low - low % size in lost:
                    found.append(lost_file(log.store, low - low % size))
                low = stop
        return [Parts(list(task)) for task in group(found, self.options.partitions)]

    def _look(self) -> dict[tuple[str, str], _Log]:
        stores = find_stores(self.options.paths, self.options.storage, is_rocket_store)
        self._stores = {store.url for store in stores}
        return {
            (store.url, ""): _Log(store, look_at(store.file_system(), store)) for store in stores
        }
