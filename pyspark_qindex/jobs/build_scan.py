"""The first pass of ``build-index``: each CommitLog file, what its messages ask for, in columns.

Rows of :data:`PIECES`, one for each queue, and one for the keys, of each batch of records (8,192 at
most): 32 bytes for each message and 20 for each key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from journal.arrays import I64
from journal.errors import StorageError
from pyspark_qindex.jobs.tasks import Row
from pyspark_qindex.schemas import Table
from pyspark_qindex.stores import local_store
from rocketstore.checkpoint_format import Checkpoint
from rocketstore.commitlog_format import ROLLBACK
from rocketstore.dispatch import DispatchBatch, from_records
from rocketstore.filler_format import is_filler
from rocketstore.layout import Layout, Paths
from rocketstore.options import Options
from rocketstore.parts import Parts, build_parts
from rocketstore.scan import Records, Stop
from rocketstore.walk import LogWalk, find_survivor

PIECES: Final[Table] = {
    "row": "string",
    "store": "string",
    "topic": "string",
    "queue_id": "int",
    "at": "bigint",
    "count": "bigint",
    "first": "binary",
    "second": "binary",
    "third": "binary",
    "fourth": "binary",
    "end": "bigint",
    "last_size": "bigint",
    "last_time": "bigint",
    "stop": "string",
    "fillers": "boolean",
}
"""``row``: ``queue`` (queue offsets, physical offsets, sizes, tags codes), ``keys`` (hashes,
offsets, store times), or ``file`` (``at``: its start, ``end`` and ``stop`` of its records; offset
of the last in ``count``, with ``last_size`` and ``last_time``). ``at`` orders the pieces of a
store: the physical offset of the first message of the batch. ``end`` of keys: the offset of the
batch's last message."""

_SURVIVOR: Final = "damage"
_UNREADABLE: Final = "unreadable: "


@dataclass(frozen=True, slots=True)
class ScanItem:
    """One CommitLog file of the store at ``root``. ``weight``: bytes."""

    root: str
    layout: Layout
    start: int
    weight: int


@dataclass(frozen=True, slots=True)
class LogFile:
    """The scan of one file: where its records end and why, and the last of them."""

    start: int
    end: int
    stop: str
    last: int
    last_size: int
    last_time: int
    fillers: bool

    @property
    def is_empty(self) -> bool:
        """Whether no record stands in it."""
        return self.last_size == 0

    @property
    def is_damaged(self) -> bool:
        """Whether sound records stand behind a place where none is."""
        return self.stop == _SURVIVOR

    @property
    def unreadable(self) -> str:
        """Why the system did not let it be read, or empty."""
        return self.stop.removeprefix(_UNREADABLE) if self.stop.startswith(_UNREADABLE) else ""

    @property
    def is_full(self) -> bool:
        """Whether the log goes on in the next file."""
        return self.stop in (Stop.BLANK.value, Stop.END.value, Stop.LIMIT.value)


def pack(values: npt.NDArray[np.generic]) -> bytes:
    """Give a column's bytes, little-endian, 8 bytes each."""
    return values.astype("<i8").tobytes()


def unpack(data: bytes) -> I64:
    """Give the column back."""
    return np.frombuffer(data, "<i8").astype(np.int64)


def open_parts(root: str, layout: Layout) -> Parts:
    """Look at a store's files without opening the store. Raises
    :class:`~pyspark_qindex.stores.StoreNotHereError`."""
    local_store(root).file_system()
    return build_parts(Options(read_only=True), Paths(root), layout, Checkpoint())


def scan_log_file(item: ScanItem) -> Iterator[Row]:
    """Scan one file; gives rows of :data:`PIECES`. Raises
    :class:`~pyspark_qindex.stores.StoreNotHereError`."""
    parts = open_parts(item.root, item.layout)
    end = item.start + item.layout.commitlog_file_size
    walk = LogWalk(parts.commitlog, item.start, keep_bad_bodies=True, limit=end)
    fillers = False
    try:
        for base, records in walk:
            fillers = fillers or _has_filler(records)
            yield from _pieces(item.root, from_records(records, base))
        stop = walk.stop.value
        if walk.stop is Stop.BAD and find_survivor(parts.commitlog, walk.end) is not None:
            stop = _SURVIVOR
    except StorageError as error:
        stop = f"{_UNREADABLE}{error}"
    finally:
        parts.close()
    yield _row(
        "file",
        item.root,
        at=item.start,
        count=walk.last[0],
        end=walk.end,
        last_size=walk.last[1],
        last_time=walk.last_store_time,
        stop=stop,
        fillers=fillers,
    )


def _has_filler(records: Records) -> bool:
    rolled_back = np.flatnonzero(records.sys_flags & ROLLBACK == ROLLBACK).tolist()
    return any(
        is_filler(records.topics[number], ROLLBACK, int(records.sizes[number]))
        for number in rolled_back
    )


def _pieces(root: str, batch: DispatchBatch) -> Iterator[Row]:
    at = int(batch.offsets[0])
    for (topic, queue_id), chosen in batch.by_queue():
        yield _row(
            "queue",
            root,
            topic=topic,
            queue_id=queue_id,
            at=at,
            count=len(chosen),
            first=pack(batch.queue_offsets[chosen]),
            second=pack(batch.offsets[chosen]),
            third=pack(batch.sizes[chosen]),
            fourth=pack(batch.tags_codes[chosen]),
        )
    wanted = batch.transactions[batch.key_messages] != ROLLBACK
    messages = batch.key_messages[wanted]
    yield _row(
        "keys",
        root,
        at=at,
        count=len(messages),
        first=pack(batch.key_hashes[wanted]),
        second=pack(batch.offsets[messages]),
        third=pack(batch.store_times[messages]),
        end=int(batch.offsets[-1]),
    )


def _row(row: str, root: str, **values: object) -> Row:
    values |= {"row": row, "store": root}
    return tuple(values.get(name) for name in PIECES)
