"""Plan reads: the parts of stores, which task reads which of them, and the rows of damage.

Small parts are packed together and large ones split, so that there are two to four tasks for each
core, of about equal size.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from journal.errors import DamageError, StoreError
from journal.findings import Cause, Finding, Kind
from journal.fs.beneath import leave
from journal.fs.files import FileSystem
from pyspark_qindex.errors import one_line
from pyspark_qindex.options import ReadOptions
from pyspark_qindex.stores import Store, find_stores
from qindex.view.arrow import arrow_schema, plain_text

_TASKS_PER_CORE: Final = 3
_TASK_BYTES: Final = 4 << 20
"""A task that reads less is not worth its start."""
_UNREAD: Final = frozenset({Kind.MISSING_FILE, Kind.UNREADABLE})
PartsOf = Callable[[Store, FileSystem, ReadOptions], Iterable[Any]]
"""Plans one store. Raises :class:`StoreError`."""


@dataclass(frozen=True, slots=True)
class FailedStore:
    """A store that can't be read; ``why`` in one line."""

    store: Store
    why: str
    weight: int = 0


def parts_of_stores(options: ReadOptions, source: str, parts: PartsOf) -> list[Any]:
    """Return the parts of all stores that ``source`` reads. A store found in a tree that can't be
    read is a :class:`FailedStore` where the read is permissive."""
    found: list[Any] = []
    for store in find_stores(options.paths, options.storage, source):
        try:
            fs = store.file_system(hold=True)
            found += parts(store, fs, options)
            leave(fs)
        except StoreError as error:
            if store.named or not options.permissive:
                raise
            found.append(FailedStore(store, str(error)))
    return found


def tasks_for(total: int, wanted: int) -> int:
    """Return the number of tasks for ``total`` bytes. ``wanted``: the number that the user set, or
    0."""
    if wanted:
        return wanted
    cores = os.cpu_count() or 1
    return max(1, min(_TASKS_PER_CORE * cores, -(-total // _TASK_BYTES)))


def group(parts: Sequence[Any], wanted: int) -> list[list[Any]]:
    """Share ``parts`` out among tasks of about equal weight: the heaviest first, each to the
    lightest task. The parts of a task keep their order."""
    count = min(tasks_for(sum(part.weight for part in parts), wanted), len(parts))
    tasks: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for at in sorted(range(len(parts)), key=lambda at: -parts[at].weight):
        load, number = heapq.heappop(loads)
        tasks[number].append(at)
        heapq.heappush(loads, (load + parts[at].weight, number))
    return [[parts[at] for at in sorted(task)] for task in tasks if task]


class ReadFailedError(StoreError):
    """Damage met by a read with ``mode=failfast``, or something of a stream's batch that is not
    there; the message names file and offset."""


def lost(store: Store, what: str) -> ReadFailedError:
    """Make the error for what a batch of a stream should have, and can't be read."""
    why = one_line(what.replace(store.path, store.url))
    return ReadFailedError(
        f"{why}: the batch can't be given whole. Restore it (a copy by `repair` does as well), or "
        "set the option failOnDataLoss to false to go on without"
    )


def tell(
    store: Store,
    options: ReadOptions,
    found: Iterable[Finding | StoreError | str],
    queue: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows for damage in a store, or a queue of it: the place and ``error``; none for traces
    of a crash. Raises :class:`ReadFailedError` with the first where the read is not permissive, or
    with one that names a file that can't be read where it is to be whole."""
    name = plain_text(queue)
    found = [one for one in found if not (isinstance(one, Finding) and one.cause is Cause.CRASH)]
    for one in found if options.whole else ():
        unread = isinstance(one, Finding) and one.kind in _UNREAD
        if unread or (isinstance(one, StoreError) and not isinstance(one, DamageError)):
            raise lost(store, str(one))
    rows = [
        {
            "store": store.url,
            "queue": name,
            "topic": name,
            "error": one_line(str(one).replace(store.path, store.url)),
        }
        for one in found
    ]
    if rows and not options.permissive:
        raise ReadFailedError(rows[0]["error"])
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(options.columns))
