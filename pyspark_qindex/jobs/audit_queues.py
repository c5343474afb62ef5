"""The audit of a queue store, ours or a RabbitMQ virtual host's: what ``qindex verify`` checks.

A store is one task. Its entries and its messages are held against one another where they are, in
about 150 bytes for each message in the message store, and beside a writer the way a reader does
it; joining them across the cluster would only compare two different moments of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from journal.errors import StoreError
from journal.files import FileSystem
from journal.findings import Finding, Kind
from pyspark_qindex.jobs.findings import damage
from pyspark_qindex.stores import Store
from qindex.format import layout
from qindex.index.messages import PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY
from qindex.tools.verify import Verification
from qindex.view.reader import StoreReader

_LEAST_WEIGHT: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class QueueStoreItem:
    """A store to be audited. ``queues``: names by directory name. ``weight``: bytes."""

    store: Store
    sort: str
    queues: dict[str, str]
    weight: int

    def queue_of(self, finding: Finding) -> str | None:
        """Give the name of the queue whose file a finding names."""
        parts = self.store.relative(finding.path).split(os.sep)
        return self.queues.get(parts[1]) if parts[0] == layout.QUEUES and len(parts) > 1 else None


def plan_queue_store(store: Store) -> QueueStoreItem:
    """Look at a store; nothing is read but names and sizes.

    Raises :class:`StoreError` for a directory that is no store, of a newer format, or can't be
    listed.
    """
    fs = store.file_system()
    reader = StoreReader(store.path, fs)
    queues = {one.directory: one.name for one in reader.directories()}
    places = [os.path.join(layout.QUEUES, name) for name in queues]
    places += [PERSISTENT_DIRECTORY, TRANSIENT_DIRECTORY]
    weight = sum(_bytes_in(fs, os.path.join(store.path, place)) for place in places)
    return QueueStoreItem(store, reader.kind, queues, weight + _LEAST_WEIGHT)


def _bytes_in(fs: FileSystem, directory: str) -> int:
    total = 0
    try:
        for name in fs.listdir(directory):
            try:
                total += fs.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue  # deleted just now
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return total


def audit_queue_store(item: QueueStoreItem) -> Iterator[Finding | tuple[str, int]]:
    """Audit a store: gives findings, then how many things of each sort were looked at."""
    check = Verification(item.store.path, item.store.file_system())
    try:
        yield from check.findings()
    except StoreError as error:
        path = getattr(error, "path", item.store.path)
        what = f"the audit of this store ended here: {error}"
        yield damage(path, 0, 0, Kind.UNREADABLE, what)
    figures = check.figures
    yield "queues", figures.queues
    yield "entries", figures.entries
    yield "stored messages", figures.records
