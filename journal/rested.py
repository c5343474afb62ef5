"""A journal at rest: one that holds nothing, and whose file is closed until it is needed.

An open journal takes three file handles (the file, its map, its checksums) and the pages of its
map. Once a flush has emptied it, it can do without them: :func:`rest` closes it, and puts a
:class:`RestedJournal` in its place, which opens the file again at the first touch. The file keeps
its room on disk, so that waking needs no room on a full disk: consuming must work there, because it
makes room.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

from journal.durations import NO_DURATIONS, Durations
from journal.errors import ClosedError, storage_errors
from journal.files import FileSystem, opened
from journal.journal import Journal, Retired
from journal.poison import Poison

_NO_MAP = mmap.mmap(-1, mmap.PAGESIZE)
"""The map of each: nothing is read from it, and nothing stored."""


def rest(journal: Journal) -> None:
    """Close a journal that holds nothing; its owner's lock is held.

    The empty journal is durable on return: records that a flush has dropped do not come back after
    a loss of power. A sync that is asked of it from now on (by a thread that found it
    before this) has nothing to do: all that was appended is in the segment files, durably.
    Raises as :meth:`Journal.sync`; it is open as before then.
    """
    assert not journal.tell()
    if journal._rebases:
        journal.sync()
    journal.rested = True
    journal.close(cut=False)


class RestedJournal(Journal):
    """Stands in the place of a :class:`Journal` at rest, or of one that was not needed yet.

    It answers as an empty journal does. All other calls go to the journal that ``wake`` gives, and
    that is in its place from then on. ``used``: the file may have room
    from before the rest.
    """

    __slots__ = ("_wake", "used")

    def __init__(
        self, fs: FileSystem, path: str, poison: Poison, wake: Callable[[], Journal], *, used: bool
    ) -> None:
        self._fs = fs
        self._poison = poison
        self._wake = wake
        self.used: bool = used
        self._closed = False
        self.path = path
        self.entries = 0
        self.map = _NO_MAP
        self.end = self.highest = self.limit = self.word_limit = 0
        self.in_reserve = False
        self.rested = True

    # -- what needs no file ---------------------------------------------------------------------

    @property
    def syncs(self) -> int:
        """None were made."""
        return 0

    @property
    def sync_durations(self) -> Durations:
        """None were made."""
        return NO_DURATIONS

    def seal(self, at_least: int = 1) -> None:
        """There is nothing to take checksums of."""

    def erase_tail(self) -> None:
        """Nothing was stored."""

    def sync(self) -> None:
        """All is durable. Raises :class:`WritesRefusedError`."""
        self._poison.check()

    def is_syncing_here(self) -> bool:
        """Nothing is to be synced."""
        return False

    def is_changing_here(self) -> bool:
        """There are no files."""
        return False

    def check_place(self) -> None:
        """Nothing is to be flushed."""

    def retire(self, old: Retired | None) -> None:
        """Nothing was replaced."""

    def close(self, *, cut: bool = True) -> None:
        """Cut off the room that the file was left (unless ``cut`` is false). Raises
        :class:`StorageError`; it is closed all the same."""
        if self._closed:
            return
        self._closed = True
        if not (cut and self.used):
            return
        closing = storage_errors(self.path, "the journal can't be closed")
        with closing, opened(self._fs, self.path, os.O_WRONLY) as fd:
            self._fs.truncate(fd, 0)

    # -- what wakes it --------------------------------------------------------------------------

    def _awake(self) -> Journal:
        """Open the journal. Raises :class:`StorageError`, :class:`ClosedError`,
        :class:`WritesRefusedError`; nothing has changed then."""
        if self._closed:
            raise ClosedError(f"{self.path}: the journal is closed")
        self._poison.check()
        return self._wake()

    def make_room(self, room: int, *, reserve: bool = False) -> Journal:
        """Open the journal, with room; see :meth:`Journal.make_room`."""
        journal = self._awake()
        end = journal.end + room
        if end > (journal.word_limit if reserve else journal.limit):
            journal.make_room(room, reserve=reserve)
        return journal

    def append(self, data: bytes | memoryview, *, reserve: bool = False) -> int:
        """See :meth:`Journal.append`."""
        return self._awake().append(data, reserve=reserve)

    def prepare(self, front: int, end: int) -> Retired | None:
        """See :meth:`Journal.prepare`."""
        return self._awake().prepare(front, end)

    def rebase(self, front: int, prepared: Retired | None) -> Retired | None:
        """See :meth:`Journal.rebase`."""
        return self._awake().rebase(front, prepared)
