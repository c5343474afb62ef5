"""The writer of one queue's action log, ``journal.jif``.

The file is extended ahead of need (``fallocate``) and memory-mapped, and a record is appended by
storing it into the map: that survives the death of the process as a ``write`` does, and costs a
tenth of it. Zeros are written ahead in pieces: a page made by a write costs a third of a page made
by the first store into it. The price: after the last record the file is zero-filled until it is
closed or emptied, which the format allows (a parser stops at 40 zero bytes).

A copy into a map may be under way anywhere, in any order, when its process dies, and a write in its
middle. So the first sixteen bytes of an append (or all of them, if it has no more) are stored last,
at once: until then zeros are there, and the bytes after them do not count.

After the map the file has a *reserve* (:mod:`journal.room`) for deliver and ack records on a full
disk. While the journal is in it, each publish asks for room first, and fails where there is none.

``rebase`` drops the front of the journal once the segment files have its entries. Entries
that were appended meanwhile are kept: they are put into a new file that takes the journal's name
at once, so that at any moment ``journal.jif`` is a whole journal.

An open journal takes up to three file handles and the pages of its map. A queue that nobody uses
needs neither: ``rest`` closes them, and the first touch opens them again. The file stays what it
is. It also keeps its room on disk, so that waking needs none on a full disk: consuming must work
there, because it makes room.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from journal.block_sums import extent
from journal.durations import NO_DURATIONS, Durations, Stopwatch
from journal.errors import ClosedError, StorageError, storage_errors
from journal.format import ACTION_SIZE, START_SIZE
from journal.fs.beneath import check_root
from journal.fs.files import (
    FileSystem,
    PathLike,
    close_quietly,
    create,
    pwrite_all,
    unlink_if_there,
)
from journal.fs.written_map import WrittenMap, map_writable
from journal.locks.call_lock import CallLock, refuse_twice
from journal.locks.lock_order import Rank
from journal.locks.sync import GroupCommit
from journal.memory import words
from journal.poison import PASSING, Poison, was_tried
from journal.room import FIRST_CAPACITY, FULL, allocate, make_room, whole_pages
from journal.sum_file import SumFile

_log = logging.getLogger("qindex.journal")

_NEW_SUFFIX = ".new"
_BULK = 64 << 10
_IN_PLACE = 1 << 20
_AHEAD = 64 << 10
"""Bytes of zeros that are written ahead at a time: this many, or as many as the journal has."""
_MAX_AHEAD = 1 << 20
"""No more than this. Each write lets other threads run, and they come to wait for the queue's
lock: with several on one queue that costs more than the zeros do."""
_AHEAD_OF_SYNCS = 16 << 10
"""The same where syncs come often: each writes pages back in the pieces in which they were made."""
_ZEROS = memoryview(bytes(_MAX_AHEAD))
_NO_MAP = mmap.mmap(-1, mmap.PAGESIZE)
"""The map of each journal that has none. Nothing is stored into it: such a journal has no room."""


def _nothing() -> None:
    """Nobody wants to know that a journal wakes."""


@dataclass(slots=True)
class Retired:
    """A file that is about to become the journal, or was it: descriptor, map, bytes, and their
    checksums."""

    fd: int
    map: mmap.mmap | None
    size: int
    sums: bytes = b""


class Journal:
    """Append-only, memory-mapped, one writer at a time (the queue's lock).

    An append has two steps, so that every step that can fail comes before the commit:
    :meth:`make_room` where ``limit`` (for deliver and ack records ``word_limit``) says that there
    is none, then :meth:`store` or :meth:`store_word`, which do not fail. :meth:`append` does both,
    for a batch of any size.

    ``map``: the mapped file. ``end``: offset past the last record. ``entries``: the reserve must
    have room for the deliver and ack records of at least this many entries, from the next time on
    that room is made. ``in_reserve``: the disk was full when room was needed last. ``at_rest``: no
    file is open. The next :meth:`make_room` opens it, and calls ``before_waking`` first.
    """

    # Slots: the attributes that each append uses.
    __slots__ = ("__dict__", "__weakref__", "end", "highest", "limit", "map", "word_limit")

    def __init__(
        self,
        fs: FileSystem,
        path: PathLike,
        poison: Poison,
        *,
        position: int = 0,
        entries: int = 0,
        kept: bool = False,
        at_rest: bool = False,
        sums: int = 0,
    ) -> None:
        """Open or create the file and keep its first ``position`` bytes.

        The bytes past them are cut off: recovery has found a torn or zero-filled tail there. With
        ``kept`` they are room, and stay: on a full disk it takes delivers and acks. ``at_rest``:
        the first touch opens the file. ``sums``: bytes of checksums, which hold for all of the
        first ``position`` bytes; without them the checksum file is removed. Raises
        :class:`StorageError`.
        """
        self._fs = fs
        self.path: str = os.fspath(path)
        self._poison = poison
        self._closed = False
        self.at_rest: bool = True
        self.before_waking: Callable[[], None] = _nothing
        # Whether the bytes past the end are room, and how many of the file were mapped before.
        self._kept = kept
        self._mapped = 0
        self._allocated = 0
        self._fd = -1
        self._name_synced = False
        self._rebases = 0
        self._rebases_synced = 0
        self.entries = entries
        self.synced: int = 0
        """Bytes from the start known to be durable."""
        self.syncs: int = 0
        """Syncs that went to the disk."""
        self._sums = SumFile(fs, self.path, sums)
        self._sealed = position if sums else 0
        # Made by the first sync: most queues of thousands are never synced by themselves.
        self._commits: GroupCommit | None = None
        self._stopwatch: Stopwatch | None = None
        # Held while files are exchanged or closed, and by a sync for the moment in which it looks
        # which file to sync: never while it waits for the disk, for a rebase, which has the queue's
        # lock, would wait for it then, and a handler in the sync's thread for that lock.
        self._files = CallLock()
        self._files.before_waiting = poison.order.checked(Rank.JOURNAL_FILES)
        self._syncing = False
        # Descriptors that are closed as soon as no sync may use them.
        self._retired: list[int] = []
        self._use(_NO_MAP, position)
        self.refuse()
        if not at_rest:
            self.wake()
        poison.watch(self)
        if poison.reason is not None:
            self.refuse()

    # -- rest -----------------------------------------------------------------------------------

    def rest(self) -> None:
        """Close the file and its map until the next touch; the owner's lock is held.

        All that was appended stays in the file, sealed, and as durable as it was: a sync opens the
        file for itself.
        """
        with self._files:
            if self.at_rest or self._closed:
                return
            self.seal()
            self._kept = True
            self._mapped = len(self.map)
            fd, self._fd = self._fd, -1
            self.at_rest = True
            self.map = _NO_MAP
            self.refuse()
            self._sums.rest()
            self._retired.append(fd)
            self._close_retired()

    def wake(self) -> None:
        """Open the file of a journal at rest, and map it; the owner's lock is held.

        Reading needs no more than this, so it works while writes are refused. Raises
        :class:`StorageError` and :class:`ClosedError`; it is at rest as before then.
        """
        if self._closed:
            raise ClosedError(f"{self.path}: the journal is closed")
        if not self.at_rest:
            return
        self.before_waking()
        fs = self._fs
        with storage_errors(self.path, "the journal can't be opened"):
            if not self._mapped and not self._sealed:
                # The checksums go before their bytes change.
                self._sums.remove()
            self._fd = fs.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                self._map_again()
            except BaseException:
                fd, self._fd = self._fd, -1
                fs.close(fd)
                raise
        self.at_rest = False

    def _map_again(self) -> None:
        """Map the file that was just opened."""
        end = self.end
        size = self._fs.fstat(self._fd).st_size
        if size < end:
            what = f"it has {size} bytes of {end}: another program has changed it"
            raise FileNotFoundError(errno.ENOENT, what, self.path)
        if size > end and not self._kept:
            self._fs.truncate(self._fd, end)
            size = end
        self._allocated = size
        if 0 < self._mapped <= size:
            self._use(map_writable(self._fs, self._fd, self._mapped), end, self.in_reserve)
            return
        try:
            self._map_at(end, FIRST_CAPACITY)
        except OSError as error:
            if not self._kept or error.errno not in FULL:
                raise
            if end:
                self._open_reserve(end, 0)
            else:
                self._use(mmap.mmap(-1, mmap.PAGESIZE), end, in_reserve=True)
                self.word_limit = 0

    map: mmap.mmap
    end: int
    limit: int
    word_limit: int

    def _map_at(self, position: int, room: int) -> None:
        """Make room for ``room`` bytes after ``position`` and go on writing there."""
        had = self._allocated
        new_map, self._allocated = make_room(self._fs, self._fd, had, position, room, self.entries)
        self._use(new_map, position)

    def _open_reserve(self, position: int, room: int) -> None:
        """Go on in the reserve; where it is too small, with the next page that the disk has."""
        size = max(self._allocated, whole_pages(position + room))
        if size > self._allocated:
            allocate(self._fs, self._fd, self._allocated, size)
            self._allocated = size
        if not self.in_reserve:
            _log.warning("%s: the disk is full: takes delivers and acks only", self.path)
        self._use(map_writable(self._fs, self._fd, size), position, in_reserve=True)

    @property
    def reserve_left(self) -> int:
        """Bytes of the reserve that are free while the journal is in it."""
        return max(self._allocated - self.end, 0)

    def tell(self) -> int:
        """Return the offset after the last record."""
        return self.end

    def _use(self, new_map: mmap.mmap, position: int, in_reserve: bool = False) -> None:
        self.map = new_map
        self.highest: int = position
        self.end = position
        self.in_reserve: bool = in_reserve
        # In the reserve each publish asks for room first.
        self.limit = 0 if in_reserve else len(new_map)
        self.word_limit = min(len(new_map), self._allocated)
        if self._poison.reason is not None:
            self.refuse()

    def make_room(self, room: int, *, reserve: bool = False) -> None:
        """Make room for ``room`` more bytes; ``reserve``: for deliver and ack records, which may
        go to the reserve. Wakes a journal at rest.

        Raises :class:`StorageError` on a full disk; nothing has changed then. Raises
        :class:`ClosedError` and :class:`WritesRefusedError`.
        """
        if self._closed:
            raise ClosedError(f"{self.path}: the journal is closed")
        self._poison.check()
        if self.at_rest:
            self.wake()
            if self.end + room <= (self.word_limit if reserve else self.limit):
                return
        with storage_errors(self.path, "the journal can't grow"):
            if self.in_reserve or self.end + room > len(self.map):
                self._map_more(room, reserve)
        if not self.in_reserve and not isinstance(self.map, WrittenMap):
            self._write_ahead(room)

    def _map_more(self, room: int, reserve: bool) -> None:
        try:
            self._map_at(self.end, room)
        except OSError as error:
            if not reserve or error.errno not in FULL:
                raise
            self._open_reserve(self.end, room)

    def _write_ahead(self, room: int) -> None:
        """Let records be stored up to where zeros have been written, ``room`` bytes or more.

        A page made by a write costs a third of a page made by the first store into it. Blocks and
        map exist already, so if the zeros can't be written, only this saving is lost.
        """
        synced_lately = self.synced > max(self.end - _AHEAD, 0)
        piece = _AHEAD_OF_SYNCS if synced_lately else min(max(_AHEAD, self.end), _MAX_AHEAD)
        start = whole_pages(self.end)
        self.limit = min(max(start + piece, whole_pages(self.end + room)), len(self.map))
        if room < _BULK and start < self.limit:
            with suppress(OSError):
                self._fs.pwrite(self._fd, _ZEROS[: self.limit - start], start)

    def store(self, record: bytes | memoryview) -> int:
        """Store a record, or a few; return the offset of the first byte. There must be room.

        The last store, of the first sixteen bytes, is the commit.
        """
        start = self.end
        end = self.highest = start + len(record)
        words.store_record(self.map, start, record)
        self.end = end
        return start

    def store_word(self, word: int) -> None:
        """Store a deliver or ack record, at once. There must be room."""
        start = self.end
        end = self.highest = start + ACTION_SIZE
        words.store_word(self.map, start, word)
        self.end = end

    def append(self, data: bytes | memoryview, *, reserve: bool = False) -> int:
        """Append ``data``, one record or a batch, and return the offset of its first byte.
        ``reserve``: delivers and acks, which may go to the reserve.

        In the operating system on return. Raises as :meth:`make_room`.
        """
        size = len(data)
        limit = self.word_limit if reserve else self.limit
        if self.end + size > limit:
            self.make_room(size, reserve=reserve)
        if size < _BULK or isinstance(self.map, WrittenMap):
            return self.store(data)
        return self._store_bulk(data)

    def erase_tail(self) -> None:
        """Put zeros where a call that was cut short has stored something past the end."""
        end = min(self.highest, len(self.map))
        if end > self.end and not self._closed and self._poison.reason is None:
            self.map[self.end : end] = bytes(end - self.end)
        self.highest = self.end
        self._sealed = min(self._sealed, self.end)

    def _store_bulk(self, data: bytes | memoryview) -> int:
        """Store much at once with a write: half the cost of touching fresh pages of the map one
        by one, and other threads run meanwhile. Map and file are the same pages."""
        self.seal()
        offset = self.end
        end = self.highest = offset + len(data)
        try:
            with memoryview(data) as view:
                pwrite_all(self._fs, self._fd, view[START_SIZE:], offset + START_SIZE)
            self.map[offset : offset + START_SIZE] = data[:START_SIZE]
        except OSError as error:
            failure = StorageError(self.path, "append failed", error)
            self._poison.set(failure)
            raise failure from error
        self.end = end
        self._sums.append(extent(data, offset))
        self._sealed = end
        return offset

    def seal(self, at_least: int = 1) -> None:
        """Write checksums of the bytes appended since the last call, if they are at least
        ``at_least`` (see :mod:`journal.block_sums`).

        The owner calls it now and then, with its lock held. They are a help against bit rot: when
        they can't be written, that is all that is lost.
        """
        start, end = self._sealed, self.end
        if end - start < at_least or self.at_rest or self._closed:
            return
        self._sums.append(extent(self.map[start:end], start))
        self._sealed = end

    def sync(self) -> None:
        """Make durable all that was appended before the call; concurrent callers share one sync.

        Where all of it is durable already, as after a clean close, nothing is done. Raises
        :class:`StorageError`; unless there was no handle for it, all writes are refused from then
        on, with :class:`WritesRefusedError`. Raises :class:`UsageError` to a handler in the middle
        of a sync or a rebase of its thread.
        """
        self._poison.check()
        if self._files.is_mine():
            refuse_twice()
        commits = self._commits
        if commits is None:
            with self._files:
                commits = self._commits
                if commits is None:
                    self._stopwatch = Stopwatch()
                    commits = GroupCommit(self._sync_now)
                    commits.before_waiting = self._poison.order.checked(Rank.JOURNAL_SYNC)
                    self._commits = commits
        commits.commit()

    def is_syncing_here(self) -> bool:
        """Return whether the calling thread is in the middle of a sync: it can't make another."""
        return self._commits is not None and self._commits.is_mine()

    def is_changing_here(self) -> bool:
        """Return whether the calling thread is in the middle of an exchange of files."""
        return self._files.is_mine()

    @property
    def sync_durations(self) -> Durations:
        """Return the durations of the syncs that did not raise."""
        return NO_DURATIONS if self._stopwatch is None else self._stopwatch.durations()

    def _sync_now(self) -> None:
        assert self._stopwatch is not None
        self._poison.check()
        opened = -1
        try:
            with self._files:
                if self.is_durable():
                    return
                if self._closed:
                    raise ClosedError(f"{self.path}: the journal is closed")
                if self.at_rest:
                    opened = self._fs.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
                self._syncing = True
                fd, position, rebases = self._fd, self.end, self._rebases
            self.syncs += 1
            with self._stopwatch.running():
                self._fs.fdatasync(fd if opened < 0 else opened)
                if not self._name_synced:
                    self._fs.sync_dir(os.path.dirname(self.path))
                    self._name_synced = True
        except OSError as error:
            if self._closed and isinstance(error, FileNotFoundError):
                # The queue was deleted meanwhile, and its directory has another name by now.
                raise ClosedError(f"{self.path}: the journal is closed") from error
            failure = StorageError(self.path, "sync failed", error)
            if was_tried(error):
                self._poison.set(failure)
            raise failure from error
        finally:
            self._syncing = False
            if opened >= 0:
                close_quietly(self._fs, opened, self.path)
            self._close_retired()
        # A rebase that came meanwhile has made its new file durable before it took the name.
        if rebases == self._rebases:
            self.synced = max(self.synced, position)
            self._rebases_synced = rebases

    def is_durable(self) -> bool:
        """Return whether a sync has nothing to do: no record, and no exchange of files, came since
        the last one."""
        return self.synced >= self.end and self._rebases_synced == self._rebases

    def _close_retired(self) -> None:
        """Close the files that were replaced, unless a sync may use them: then that one does."""
        while self._retired and not self._syncing:
            try:
                fd = self._retired.pop()
            except IndexError:
                return  # the other of the two has it
            close_quietly(self._fs, fd, self.path)

    def _is_durable_from(self, front: int) -> bool:
        """Return whether anything after ``front`` is durable in this file, or may be soon."""
        return self._syncing or self.synced > front

    def check_place(self) -> None:
        """See that the file is where it was opened: writes to another place would be lost.

        Raises :class:`StorageError` when it, or the store's directory, was deleted, moved, or
        replaced by another one.
        """
        fs = self._fs
        with self._files:
            if self._closed or self.at_rest:
                return
            try:
                check_root(fs, self.path)
                if fs.stat(self.path).st_ino != fs.fstat(self._fd).st_ino:
                    raise FileNotFoundError(errno.ENOENT, "another file is in its place", self.path)
            except OSError as error:
                doing = "the journal was taken away under the engine"
                raise StorageError(self.path, doing, error) from error

    def prepare(self, front: int, end: int) -> Retired | None:
        """Copy bytes ``front .. end`` into a new file, ahead of :meth:`rebase`, which then has
        little left to copy. Needs no lock: appends go on after ``end``, which the owner took
        between two appends (a record may be completed after it was written).

        Raises :class:`StorageError`; nothing has changed then.
        """
        old_map = self.map
        if end <= front:
            return None
        fs = self._fs
        with storage_errors(self.path, "the journal can't be copied"):
            fd = create(fs, self.path + _NEW_SUFFIX)
            try:
                fs.fallocate(fd, 0, end - front)
                with memoryview(old_map) as view:
                    pwrite_all(fs, fd, view[front:end], 0)
                    sums = extent(view[front:end], 0)
                if self._is_durable_from(front):
                    fs.fdatasync(fd)
            except BaseException:
                self._discard_new(fd)
                raise
        return Retired(fd, None, end - front, sums)

    def rebase(self, front: int, prepared: Retired | None) -> Retired | None:
        """Drop the first ``front`` bytes; the records after them move to the start.

        With nothing after, a small file is emptied in place, as RabbitMQ does it. Otherwise the
        commit point is the rename of a new file (``prepared``, completed here) over the journal.
        Durable records stay durable: then the new file is synced before the rename, and its name
        after. Returns the old file, for :meth:`retire`, which is called without the lock.
        Raises :class:`StorageError`. When there was no room for a new file nothing has changed;
        after any other failure writes are refused from then on: recovery judges a half-done
        change of files. Reading goes on: the old records stay mapped.
        """
        with self._files:
            old = Retired(self._fd, self.map, self.end)
            was_in_reserve = self.in_reserve
            self._rebases += 1
            durable = self._is_durable_from(front)
            try:
                # The checksums go before their bytes.
                self._sums.remove()
                self._sealed = 0
                empties = old.size == front and prepared is None
                if empties and len(self.map) <= _IN_PLACE:
                    self._empty()
                    return None
                try:
                    new = self._write_new(front, old.size, prepared, durable)
                except OSError as error:
                    if error.errno not in PASSING:
                        raise
                    if not empties:
                        raise StorageError(
                            self.path, "the journal can't be emptied", error
                        ) from error
                    self._empty()
                    return None
                self._take_name(old.size - front, prepared, durable, *new)
            except OSError as error:
                failure = StorageError(self.path, "the journal can't be emptied", error)
                # Without a handle for it, the old file still has its name, and all there is.
                if was_tried(error):
                    self._poison.set(failure)
                assert old.map is not None
                self._fd = old.fd
                self._use(old.map, old.size, in_reserve=was_in_reserve)
                raise failure from error
            return old

    def retire(self, old: Retired | None) -> None:
        """Close the file that a rebase replaced: freeing its pages takes a while. A sync that is
        under way does that, if it may be using it."""
        if old is not None:
            self._retired.append(old.fd)
            self._close_retired()
            old.map = None

    def _empty(self) -> None:
        # This comes first: the old map must not be touched once the file is shorter than it.
        # Nothing is stored into this empty map: it has no room, so each append makes room first.
        allocated, self._allocated = self._allocated, 0
        self._use(mmap.mmap(-1, mmap.PAGESIZE), 0, in_reserve=True)
        try:
            self._fs.truncate(self._fd, 0)
        except OSError:
            self._allocated = allocated
            raise
        self.synced = 0
        try:
            self._map_at(0, FIRST_CAPACITY)
        except OSError as error:
            failure = StorageError(self.path, "the journal can't grow", error)
            if error.errno not in PASSING:
                self._poison.set(failure)
            _log.warning("%s", failure)

    def _write_new(
        self, front: int, end: int, prepared: Retired | None, durable: bool
    ) -> tuple[int, mmap.mmap, int]:
        """Put what follows ``front`` into a new file; return its descriptor, map, and bytes.
        Raises :class:`OSError`; the new file is then gone, and nothing has changed."""
        fs = self._fs
        new_path = self.path + _NEW_SUFFIX
        if prepared is not None:
            fd, copied = prepared.fd, prepared.size
        else:
            fd, copied = create(fs, new_path), 0
        tail = end - front
        try:
            new_map, allocated = make_room(fs, fd, copied, tail, FIRST_CAPACITY, self.entries)
            if tail > copied:
                with memoryview(self.map) as view:
                    piece = view[front + copied : end]
                    if isinstance(new_map, WrittenMap):
                        new_map[copied:tail] = piece
                    else:
                        pwrite_all(fs, fd, piece, copied)
            if durable:
                fs.fdatasync(fd)
        except BaseException:
            self._discard_new(fd)
            raise
        return fd, new_map, allocated

    def _discard_new(self, fd: int) -> None:
        """Remove a new file that did not come about: it may have taken the last of the disk."""
        close_quietly(self._fs, fd, self.path + _NEW_SUFFIX)
        try:
            unlink_if_there(self._fs, self.path + _NEW_SUFFIX)
        except OSError as error:
            _log.warning("%s: can't be removed: %s", self.path + _NEW_SUFFIX, error)

    def _take_name(
        self,
        size: int,
        prepared: Retired | None,
        durable: bool,
        fd: int,
        new_map: mmap.mmap,
        allocated: int,
    ) -> None:
        """Rename the new file, which holds ``size`` bytes, over the journal, and go on in it."""
        try:
            self._fs.rename(self.path + _NEW_SUFFIX, self.path)
            self._name_synced = False
            if durable:
                self._sync_name()
        except BaseException:
            self._fs.close(fd)
            raise
        self._fd = fd
        self._allocated = allocated
        self._use(new_map, size)
        self.synced = size if durable else 0
        if durable and self._name_synced:
            self._rebases_synced = self._rebases
        if prepared is not None:
            self._sums.append(prepared.sums)
            self._sealed = prepared.size

    def _sync_name(self) -> None:
        """Make the new file's name durable. If no handle is left for that, the next sync does it.
        Until then a loss of power brings the old file back, which has all the new one has."""
        try:
            self._fs.sync_dir(os.path.dirname(self.path))
        except OSError as error:
            if was_tried(error):
                raise
            _log.warning("%s: the name is not durable yet: %s", self.path, error)
        else:
            self._name_synced = True

    def close(self, *, cut: bool = True) -> None:
        """Cut the zero-filled tail off (unless ``cut`` is false) and close the file.

        With ``cut`` all that was appended is durable on return, and what a flush has dropped is
        gone for good. If that came back after a loss of power, messages whose acks were never
        synced would come back after a clean close.
        Raises :class:`StorageError`; the file is closed all the same.
        """
        with self._files:
            if self._closed:
                return
            self.seal()
            self._closed = True
            self.map = _NO_MAP
            self.refuse()
            fd, self._fd = self._fd, -1
            with storage_errors(self.path, "the journal can't be closed"):
                try:
                    self._sums.close()
                    if cut and (self._kept or not self.at_rest):
                        if fd < 0:
                            fd = self._fs.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
                        self._fs.truncate(fd, self.end)
                        self._sync_at_close(fd)
                finally:
                    if fd >= 0 and self._syncing:
                        self._retired.append(fd)
                        self._close_retired()
                    elif fd >= 0:
                        self._fs.close(fd)

    def _sync_at_close(self, fd: int) -> None:
        if self._poison.reason is not None or self.is_durable():
            return
        self._fs.fdatasync(fd)
        if not self._name_synced:
            self._fs.sync_dir(os.path.dirname(self.path))
        self.synced, self._rebases_synced = self.end, self._rebases

    def refuse(self) -> None:
        """Make each later append ask for room, which raises what the poison raises. The poison
        calls this."""
        self.limit = self.word_limit = 0
