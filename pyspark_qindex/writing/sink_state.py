"""The batches of a query that are published: one small file for each query.

It is in the store's staging directory and is replaced at once, durably::

    data/qindex.spark/<query>.json      this file
    data/qindex.spark/<query>/<batch>/  the rows of a batch, a file for each task

A batch is published in steps. Before a step its file says at which seq_id it starts and how many
rows it has, and the queue has reserved seq_ids for them (:meth:`qindex.queue.queue.Queue.reserve`),
so that the queue's next seq_id tells after a crash how many of them were published.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from journal.errors import DamageError, storage_errors
from journal.fs.beneath import beneath
from journal.fs.files import REAL, FileSystem, make_dirs, names_in, read_optional, replace_file
from qindex.format import layout

_VERSION: Final = 1
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIX: Final = ".json"


@dataclass(slots=True)
class Progress:
    """The latest batch of a query. ``files``: relative path and rows of each, in order.

    ``done``: rows that are published durably. ``start``, ``rows``: seq_id and size of the step
    that is being published, 0 rows when there is none. ``boot``: the run of the operating system
    in which it was begun. ``finished``: all of the batch is published.
    """

    query: str
    batch: int
    queue: str
    files: list[tuple[str, int]] = field(default_factory=list)
    done: int = 0
    start: int = 0
    rows: int = 0
    boot: str = ""
    finished: bool = False

    @property
    def total(self) -> int:
        """Rows of the batch."""
        return sum(rows for _, rows in self.files)


class Staging:
    """The staging directory of a store. All methods raise :class:`StorageError`.

    ``fs`` makes files with the mode of the store's directory, which a group may share.
    """

    def __init__(self, store: str) -> None:
        self.fs: FileSystem = beneath(REAL, store)
        self.path = os.path.join(store, layout.STAGING)

    def batch_directory(self, query: str, batch: int) -> str:
        """Return the directory for the rows of a batch."""
        return os.path.join(self.path, _name_of(query), str(batch))

    def load(self, query: str) -> Progress | None:
        """Read a query's file; ``None`` when it has none. Raises :class:`DamageError`."""
        return self._read(os.path.join(self.path, _name_of(query) + _SUFFIX))

    def save(self, progress: Progress) -> None:
        """Replace a query's file; durable on return."""
        path = os.path.join(self.path, _name_of(progress.query) + _SUFFIX)
        make_dirs(self.fs, self.path)
        value = {"version": _VERSION, **dataclasses.asdict(progress)}
        replace_file(self.fs, path, json.dumps(value).encode())

    def unfinished(self) -> Iterator[Progress]:
        """Yield the batches whose publishing was cut short, of all queries."""
        for name in self._names(self.path):
            if name.endswith(_SUFFIX):
                progress = self._read(os.path.join(self.path, name))
                if progress is not None and not progress.finished:
                    yield progress

    def sweep(self, query: str, batch: int) -> None:
        """Remove the rows of a query's batches up to ``batch``, whoever left them."""
        root = os.path.join(self.path, _name_of(query))
        for name in self._names(root):
            if name.isdigit() and int(name) <= batch:
                self._remove(os.path.join(root, name))

    def sweep_old(self, older_than: float) -> None:
        """Remove the rows that were staged before ``older_than`` (seconds since 1970) by queries
        with no batch to finish."""
        busy = {_name_of(progress.query) for progress in self.unfinished()}
        for query in self._names(self.path):
            if query.endswith(_SUFFIX) or query in busy:
                continue
            for name in self._names(os.path.join(self.path, query)):
                path = os.path.join(self.path, query, name)
                if self.fs.stat(path).st_mtime < older_than:
                    self._remove(path)

    def _remove(self, directory: str) -> None:
        names = self._names(directory)
        with storage_errors(directory, "can't be removed"), suppress(FileNotFoundError):
            for name in names:
                self.fs.unlink(os.path.join(directory, name))
            self.fs.rmdir(directory)

    def _names(self, directory: str) -> list[str]:
        with storage_errors(directory, "can't be listed"):
            return sorted(names_in(self.fs, directory))

    def _read(self, path: str) -> Progress | None:
        with storage_errors(path, "can't be read"):
            data = read_optional(self.fs, path)
        if data is None:
            return None
        try:
            value: dict[str, Any] = json.loads(data)
            if value.pop("version") != _VERSION:
                raise DamageError(path, 0, "the progress of a query, of another version")
            files = [(name, rows) for name, rows in value.pop("files")]
            return Progress(files=files, **value)
        except (ValueError, TypeError, KeyError) as error:
            raise DamageError(path, 0, f"not the progress of a query: {error}") from error


def _name_of(query: str) -> str:
    """Return the name of a query's files: its id, which Spark makes plain, or a hash of it."""
    if _PLAIN.fullmatch(query):
        return query
    return hashlib.sha256(query.encode()).hexdigest()[:32]
