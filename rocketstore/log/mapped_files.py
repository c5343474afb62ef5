"""A directory of files of one size, each named by the offset of its first byte.

A writer maps them. A reader reads: a map of a file that somebody cuts kills the process that looks
at it (SIGBUS), and a reader can't keep others from writing there.

Together they are one endless address space of which the files hold a window: old ones are deleted
at the front, new ones come at the end. A file is created at its full length (sparse), and its
blocks are reserved a step ahead of writing, so that a full disk is an error of that step and
never a SIGBUS at a store into the map.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from journal.errors import StorageError, storage_errors
from journal.fs.files import (
    FileSystem,
    ReadBuffer,
    close_quietly,
    data_ranges,
    pread_all,
    pwrite_all,
    unlink_if_there,
)
from rocketstore.format import words
from rocketstore.format.commitlog_format import file_name
from rocketstore.log.watch import Watch

RESERVE_STEP = 16 << 20
"""Bytes of blocks reserved at a time."""
_OPEN_MAX = 64
"""Files kept open besides the last."""
_ZERO_STEP = 1 << 20
_ZEROS = bytes(_ZERO_STEP)

Read = Callable[[int, int], bytes]
"""Reads up to ``length`` bytes of a file: ``read(position, length)``."""


def create_file(fs: FileSystem, path: str, size: int) -> int:
    """Make a file of zeros at its full length; returns a descriptor.

    Raises :class:`StorageError`; no file is left then.
    """
    with storage_errors(path, "can't be created"):
        fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fs.truncate(fd, size)
        except BaseException:
            fs.close(fd)
            # A file of a wrong length would keep the store from being opened.
            with contextlib.suppress(OSError):
                fs.unlink(path)
            raise
    return fd


def sync_files(fs: FileSystem, paths: Iterable[str]) -> None:
    """Sync files by name: no other call can close a descriptor of their own under the sync. A file
    that is gone is passed over. Raises :class:`StorageError`."""
    for path in paths:
        try:
            fd = fs.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(path, "can't be opened", error) from error
        try:
            fs.fdatasync(fd)
        except OSError as error:
            raise StorageError(path, "can't be synced", error) from error
        finally:
            close_quietly(fs, fd, path)


def sync_directories(fs: FileSystem, paths: Iterable[str]) -> None:
    """Make the names in directories durable. Skip a directory that does not exist any more. Raises
    :class:`StorageError`."""
    for path in paths:
        try:
            fs.sync_dir(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(path, "can't be synced", error) from error


class MappedFile:
    """One file: ``start`` is its first offset, ``wrote`` how many of its bytes count, ``held`` how
    many it has: fewer than ``size`` where its end was cut off. ``on_open``: called before it is
    opened, so that its owner can close another one. ``watch`` notices that it was taken away."""

    __slots__ = (
        "_fs",
        "_map",
        "_watch",
        "_writable",
        "dirty",
        "fd",
        "held",
        "on_open",
        "path",
        "reserved",
        "size",
        "start",
        "wrote",
    )

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        start: int,
        size: int,
        held: int | None = None,
        *,
        writable: bool,
        watch: Watch | None = None,
    ) -> None:
        self._fs = fs
        self._watch = watch
        self._map: mmap.mmap | None = None
        self._writable = writable
        self.path: str = path
        self.start: int = start
        self.size: int = size
        self.held: int = size if held is None else held
        self.wrote: int = self.held
        self.reserved: int = 0
        self.dirty: bool = False
        self.fd: int = -1
        self.on_open: Callable[[Any], None] | None = None

    def open(self) -> None:
        """Open the file, if it is not. Raises :class:`StorageError`, and :class:`DamageError` where
        another program has taken it away."""
        if self.fd < 0:
            if self.on_open is not None:
                self.on_open(self)
            flags = (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC
            with storage_errors(self.path, "can't be opened"):
                if self._watch is None:
                    self.fd = self._fs.open(self.path, flags)
                else:
                    self.fd = self._watch.open(self.path, flags, self.held)

    def check(self) -> None:
        """Raise :class:`DamageError` where another program has taken away a file that is open for
        writing. Raises :class:`StorageError`."""
        if self._watch is not None:
            self._watch.check(self.path, self.held, self.fd)

    def unwatch(self) -> None:
        """Let the file be taken away."""
        self._watch = None

    def map(self) -> mmap.mmap:
        """The file's map, to write, made at first use. Raises :class:`StorageError`, also for a
        file that is shorter."""
        if self._map is None:
            self.open()
            try:
                self._map = self._fs.mmap(self.fd, self.held, True)
            except (OSError, ValueError) as error:
                cause = error if isinstance(error, OSError) else OSError(0, str(error))
                raise StorageError(self.path, "can't be mapped", cause) from error
        return self._map

    def read(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position`` on; fewer only where the file ends. Raises
        :class:`StorageError`."""
        if self._writable:
            return words.piece(self.map(), position, position + length)
        self.open()
        with storage_errors(self.path, "can't be read"):
            return pread_all(self._fs, self.fd, length, position)

    def close(self) -> None:
        """Release map and descriptor; the file's bytes stay as they are, and its next use opens
        it again.

        The map may be left to its last reader: the frames of a call that was cut short keep what
        they looked at for as long as its exception is."""
        data, self._map = self._map, None
        fd, self.fd = self.fd, -1
        if data is not None:
            with contextlib.suppress(BufferError):
                data.close()
        if fd >= 0:
            close_quietly(self._fs, fd, self.path)

    def reserve(self, end: int) -> int:
        """Have the disk's blocks for bytes up to ``end``; returns how far they reach now.

        Raises :class:`StorageError` (disk full); nothing has changed then.
        """
        self.map()
        target = min(self.size, max(end, self.reserved + RESERVE_STEP))
        with storage_errors(self.path, "can't reserve space"):
            self._fs.fallocate(self.fd, self.reserved, target - self.reserved)
        self.reserved = target
        return target

    def write(self, data: ReadBuffer, position: int) -> None:
        """Write into a mapped file, where blocks are reserved. Raises :class:`StorageError`; a part
        may have been written then."""
        with storage_errors(self.path, "can't be written"):
            pwrite_all(self._fs, self.fd, data, position)

    def zero_from(self, position: int) -> bool:
        """Zero every byte from ``position`` on that is not zero. Return whether any was."""
        view = self.map()
        changed = False
        for start, end in data_ranges(self._fs, self.fd, position, self.size):
            position = start
            while position < end:
                step = min(_ZERO_STEP, end - position)
                zeros = _ZEROS if step == _ZERO_STEP else _ZEROS[:step]
                if view[position : position + step] != zeros:
                    self._fs.fallocate(self.fd, position, step)
                    view[position : position + step] = zeros
                    self.dirty = changed = True
                position += step
        return changed


def holds_data(read: Read, start: int, end: int) -> bool:
    """Return whether any byte of a file from ``start`` to ``end`` is not zero."""
    return any(
        read(at, min(_ZERO_STEP, end - at)).strip(b"\0") for at in range(start, end, _ZERO_STEP)
    )


class MappedFiles:
    """The files of one directory, by start. Not thread-safe: its owner holds a lock."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        size: int,
        *,
        writable: bool,
        watch: Watch | None = None,
    ) -> None:
        self._fs = fs
        self._watch = watch
        self.directory = directory
        self.size = size
        self._writable = writable
        self.files: OrderedDict[int, MappedFile] = OrderedDict()
        self._recent: OrderedDict[int, None] = OrderedDict()

    def load(self, starts: Iterable[int], short: Mapping[int, int] | None = None) -> None:
        """Take over existing files; each counts as full until the owner says otherwise.
        ``short``: bytes of those whose end was cut off, by start; they can only be read."""
        for start in sorted(starts):
            self._add(start, (short or {}).get(start))

    def _add(self, start: int, held: int | None = None) -> MappedFile:
        path = os.path.join(self.directory, file_name(start))
        file = MappedFile(
            self._fs, path, start, self.size, held, writable=self._writable, watch=self._watch
        )
        self.files[start] = file
        return file

    @property
    def min_offset(self) -> int:
        """First offset of the first file; -1 when there is none."""
        return next(iter(self.files), -1)

    @property
    def last(self) -> MappedFile | None:
        """The last file."""
        return next(reversed(self.files.values())) if self.files else None

    @property
    def max_offset(self) -> int:
        """Return the end of the written bytes in the last file; 0 if there is no file."""
        last = self.last
        return last.start + last.wrote if last is not None else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file that ``offset`` lies in."""
        return self.files.get(offset - offset % self.size)

    def mapped(self, file: MappedFile) -> mmap.mmap:
        """The file's map, to write. Raises :class:`StorageError`."""
        self._use(file)
        return file.map()

    def read(self, file: MappedFile, position: int, length: int) -> bytes:
        """:meth:`MappedFile.read`."""
        self._use(file)
        return file.read(position, length)

    def _use(self, file: MappedFile) -> None:
        """Keep the number of open files bounded."""
        self._recent[file.start] = None
        self._recent.move_to_end(file.start)
        if len(self._recent) > _OPEN_MAX:
            self._evict(file.start)

    def _evict(self, keep: int) -> None:
        last = next(reversed(self.files))
        for start in list(self._recent):
            if len(self._recent) <= _OPEN_MAX:
                return
            file = self.files.get(start)
            if file is None:
                del self._recent[start]
            elif start not in (keep, last) and not file.dirty:
                del self._recent[start]
                file.close()

    def data_ranges(self, file: MappedFile, position: int) -> Iterator[tuple[int, int]]:
        """The parts of a file from ``position`` on that may hold other bytes than zeros. Raises
        :class:`StorageError`."""
        self._use(file)
        file.open()
        return data_ranges(self._fs, file.fd, position, file.held)

    def append(self, start: int) -> MappedFile:
        """Create the next file, at full length. Raises :class:`StorageError`."""
        path = os.path.join(self.directory, file_name(start))
        close_quietly(self._fs, create_file(self._fs, path, self.size), path)
        with storage_errors(path, "can't be created"):
            # Names reach the disk in order: no crash can leave a gap between files.
            self._fs.sync_dir(self.directory)
        file = self._add(start)
        file.wrote = 0
        return file

    def remove(self, start: int) -> None:
        """Delete the first or last file, durably. Raises :class:`StorageError`; it then still
        counts."""
        file = self.files[start]
        file.unwatch()  # should the name be gone and the call fail, no other program has taken it
        with storage_errors(file.path, "can't be removed"):
            # A former try may have removed it, and failed only at making that durable.
            unlink_if_there(self._fs, file.path)
            # One name at a time: a crash can't take a later file first and leave a gap.
            self._fs.sync_dir(self.directory)
        file.close()
        del self.files[start]
        self._recent.pop(start, None)

    def dirty(self) -> list[MappedFile]:
        """The files with bytes that were not synced, oldest first."""
        return [file for file in self.files.values() if file.dirty]

    def close(self) -> None:
        """Close all."""
        for file in self.files.values():
            file.close()


@dataclass(frozen=True, slots=True)
class Stranger:
    """Something in a directory that does not fit there. ``start`` is the offset in its name (-1
    if it has none), ``wanted`` the length it should have (0 if it should not be there)."""

    path: str
    what: str
    start: int = -1
    length: int = 0
    wanted: int = 0

    @property
    def is_placed(self) -> bool:
        """Whether it is a file of the store, at its place, and only its length is wrong."""
        return self.start >= 0 and self.wanted > 0 and self.start % self.wanted == 0

    @property
    def is_short(self) -> bool:
        """Whether it is a file of the store that lacks its end."""
        return self.start >= 0 and self.length < self.wanted


def scan_directory(
    fs: FileSystem, directory: str, size: int | None
) -> tuple[list[int], list[Stranger], int | None]:
    """Look at a directory of files named by offset: ``(starts, strangers, size)``.

    ``starts`` are the files that fit; the size is found from the files when it is not given: two
    names are a multiple of it apart.
    """
    try:
        names = sorted(fs.listdir(directory))
    except FileNotFoundError:
        return [], [], size
    numbered: list[tuple[int, int, str]] = []
    strangers: list[Stranger] = []
    for name in names:
        path = os.path.join(directory, name)
        info = fs.stat(path)
        if stat.S_ISREG(info.st_mode) and len(name) == 20 and name.isascii() and name.isdigit():
            numbered.append((int(name), info.st_size, path))
        else:
            strangers.append(Stranger(path, "is not a file of this store"))
    if size is None and numbered:
        size = _likely_size(numbered)
    starts: list[int] = []
    for start, length, path in numbered:
        if size is None:
            strangers.append(Stranger(path, "is empty, and no other file tells its length"))
        elif length != size:
            what = f"is {length} bytes long, not {size}"
            strangers.append(Stranger(path, what, start, length, size))
        elif start % size:
            strangers.append(Stranger(path, f"its name is not a multiple of {size}"))
        else:
            starts.append(start)
    return starts, strangers, size


def _likely_size(numbered: list[tuple[int, int, str]]) -> int | None:
    lengths = [length for _, length, _ in numbered if length > 0]
    gaps = {right[0] - left[0] for left, right in itertools.pairwise(numbered)}
    for length in lengths:
        if length in gaps:
            return length
    return max(lengths, default=None)
