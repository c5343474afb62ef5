"""The state that the parts of one open store share: the lock, the index, the file summaries, the
handles.

Locks, taken in the order of :class:`journal.locks.lock_order.Rank`: the compaction's mutex, the
writer's append lock, ``lock``.
``lock`` is held for dictionary work and for opening a file, never for reading or writing one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from journal.errors import ClosedError
from journal.fs.files import FileSystem
from journal.locks.lock_order import Rank
from journal.locks.patience import PatientLock
from journal.poison import Poison
from msgstore.format import Check
from msgstore.handles import MAX_HANDLES, Handles
from msgstore.locations import Location, Locations
from msgstore.recovery import Recovered
from msgstore.summary import FileSummary, Summary


class Worth(enum.IntEnum):
    """The work that a removal leaves to compaction."""

    NOTHING = 0
    DRAINED = 1
    """The current file has no live message: to be rolled if that lasts."""
    RECLAIM = 2


class State:
    """The shared state of one open store; ``lock`` guards all of it."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        poison: Poison,
        check: Check,
        recovered: Recovered,
        *,
        garbage_ratio: float,
        writable: bool,
        max_open_files: int = MAX_HANDLES,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.poison = poison
        self.check = check
        self.locations: Locations = recovered.locations
        self.summary: Summary = recovered.summary
        self.garbage_ratio = garbage_ratio
        self.handles: Handles = Handles(fs, directory, writable, max_open_files)
        self.path: Callable[[int], str] = self.handles.path
        self.lock: PatientLock = PatientLock(shared=True)
        self.lock.before_waiting = poison.order.add(Rank.STORE, self.lock.is_used_here)
        self.closed = False
        self.current: int | None = recovered.current
        """Key of the file that is appended to."""
        self.unsynced: set[int] = recovered.unsynced
        """Keys of files that may hold bytes a power loss would take."""
        self.leftovers: list[str] = recovered.leftovers
        """Paths of RabbitMQ's ``.rdt`` files whose records are safe elsewhere by now."""

    def check_open(self) -> None:
        """Raise :class:`ClosedError` after close."""
        if self.closed:
            raise ClosedError(f"{self.directory}: the message store is closed")

    def is_reclaimable(self, key: int, entry: FileSummary) -> bool:
        """Whether compaction should look at the file: dead, or more garbage than is allowed."""
        if key == self.current:
            return False
        if not entry.live:
            return True
        return entry.stuck is None and entry.garbage > self.garbage_ratio * entry.size

    def discard(self, location: Location) -> Worth:
        """Count a record as garbage; whether its file is worth compaction's while now."""
        entry = self.summary.files[location.file]
        self.summary.change_live(entry, -location.total)
        if self.is_reclaimable(location.file, entry):
            return Worth.RECLAIM
        if not entry.live and location.file == self.current:
            return Worth.DRAINED
        return Worth.NOTHING
