"""A file system that remembers every operation, and every state a crash could have left.

:class:`RecordingFileSystem` does the operations below one directory, on the real file system or
one in memory, and logs them. Stores into memory maps are logged as they are made; those that leave
no call (through numpy, say) are found at the next operation, by comparing the mapped files with
what is known of them.

:func:`crash_states` then gives states that the directory can be in if the machine stops
between any two operations, by this model:

* a file's bytes and length as of its last ``fdatasync``/``fsync`` are safe; each write, truncation
  or allocation since may be done or not, in any combination; a write may also be cut short at any
  byte, or leave zeros in its place or in that of one of its sectors; what is done to a file behind
  a cut of it is never there without the cut;
* a sector is written whole, as it is at that moment: none has a write and lacks an earlier one;
* the names of a directory as of its last ``sync_dir`` are safe; each creation, rename or removal
  since may be done or not; a rename from one directory to another is done in both or in none;
* a process that dies alone loses nothing that was handed to the system (states called "kill"); a
  copy into a map that was under way may be done in part.

Not every combination is tried: each un-synced operation is varied against "all others done" and
"no other done", and some states at random. :mod:`tests.crash.states` enumerates, by sectors.
"""

from __future__ import annotations

import itertools
import mmap as _mmap
import os
import random
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from journal.fs.files import REAL, FileSystem, PathLike, ReadBuffer, RealFileSystem
from tests.crash.disk import (
    ROOT,
    Data,
    Disk,
    Name,
    Note,
    Operation,
    SyncDirectory,
    SyncFile,
    apply_data,
    parts_of_copy,
)
from tests.effort import SEED
from tests.memory_fs import FileMap, Inode, MemoryFileSystem

__all__ = ["CrashState", "RecordingFileSystem", "crash_states"]

_PAGE = 4096
_SECTOR = 512
_GAP = 16
_WORD = 16
_MAX_WORDS = 24
"""A processor stores a word at once; so many of the first of a copy are looked at one by one."""


@dataclass(slots=True)
class _Node:
    """A file or directory as the recording knows it."""

    inode: int
    entries: dict[str, _Node] | None = None


@dataclass(slots=True)
class _OpenFile:
    """An open file; nobody reads and writes in turn through one descriptor's position."""

    inode: int
    append: bool
    position: int = 0


class _RecordedMap(FileMap):
    """A map that tells of each store into it."""

    stored: Callable[[int, bytes], None]

    def write(self, data: Any, /) -> int:
        at = self.tell()
        done = super().write(data)
        self.stored(at, bytes(data))
        return done

    def __setitem__(self, key: Any, value: Any, /) -> None:
        super().__setitem__(key, value)
        start, stop, _ = (key if isinstance(key, slice) else slice(key, key + 1)).indices(len(self))
        self.stored(start, self[start:stop])


@dataclass(slots=True)
class _Mapped:
    """A mapped file: how to read it, how to let go of it, and its bytes as logged."""

    read: Callable[[], bytes]
    let_go: Callable[[], None]
    known: bytes


class RecordingFileSystem:
    """A file system below ``root``, with a log. Not thread-safe: one thread at a time.

    ``below`` does the work: the real one, or one in memory.
    """

    def __init__(self, root: PathLike, below: RealFileSystem | MemoryFileSystem = REAL) -> None:
        self.root = os.path.abspath(root)
        self._prefix = self.root.rstrip("/") + "/"
        self._below: FileSystem = below
        self._memory = below if isinstance(below, MemoryFileSystem) else None
        self.log: list[Operation] = []
        self.start = Disk()
        """The disk before the first operation; all of it is safe."""
        self._next_inode = ROOT
        self._top = self._look(self.root, _Node(ROOT, {}))
        self._open: dict[int, _OpenFile] = {}
        self._mapped: dict[int, _Mapped] = {}
        self._cuts: dict[int, tuple[int, int]] = {}
        self._writing = False
        self.at_next_sync: Callable[[], None] | None = None
        """Called once, at the next sync of a file: what others do in the middle of a call."""
        self.read = below.read
        self.pread = below.pread
        self.lseek = below.lseek
        self.listdir = below.listdir
        self.stat = below.stat
        self.statvfs = below.statvfs
        self.fstat = below.fstat
        self.lock = below.lock
        self.lock_shared = below.lock_shared
        self.lock_byte = below.lock_byte
        self.unlock = below.unlock
        self.byte_holder = below.byte_holder
        self.boot_id = below.boot_id

    def _look(self, path: str, node: _Node) -> _Node:
        """Take in what is there."""
        if self._memory is not None:
            return self._take_in(self._memory.find(path), node)
        assert node.entries is not None
        names = self.start.directories[node.inode] = {}
        for name in self._below.listdir(path):
            full = os.path.join(path, name)
            is_directory = stat.S_ISDIR(self._below.stat(full).st_mode)
            child = node.entries[name] = _Node(self._new_inode(), {} if is_directory else None)
            names[name] = child.inode
            if is_directory:
                self._look(full, child)
            else:
                self.start.contents[child.inode] = self._content(full)
        return node

    def _take_in(self, directory: Inode, node: _Node) -> _Node:
        """:meth:`_look` in memory, where nothing needs to be opened: this is done for each state
        that is explored."""
        assert node.entries is not None
        assert directory.entries is not None
        names = self.start.directories[node.inode] = {}
        for name, inode in directory.entries.items():
            is_directory = inode.entries is not None
            child = node.entries[name] = _Node(self._new_inode(), {} if is_directory else None)
            names[name] = child.inode
            if is_directory:
                self._take_in(inode, child)
            else:
                self.start.contents[child.inode] = inode.content()
        return node

    def _content(self, path: str) -> bytes:
        fd = self._below.open(path, os.O_RDONLY)
        try:
            return self._below.pread(fd, self._below.fstat(fd).st_size, 0)
        finally:
            self._below.close(fd)

    def note(self, what: object) -> None:
        """Put a note in the log; :class:`CrashState` gives those made before its point."""
        self._catch_up()
        self.log.append(Note(what))

    def settle(self) -> None:
        """Take all that was done so far as safe, and begin the log anew: the system has written
        everything out in time."""
        self._catch_up()
        for operation in self.log:
            self.start.take(operation)
        for inode in {write.inode for write in self.start.data}:
            self.start.take(SyncFile(inode))
        for directory in list(self.start.directories):
            self.start.take(SyncDirectory(directory))
        self.start.notes.clear()
        self.log.clear()

    def forget_descriptors(self) -> None:
        """Close what a workload left open, as the death of its process would."""
        self._catch_up()
        for mapped in self._mapped.values():
            mapped.let_go()
        self._mapped.clear()
        if self._memory is not None:
            self._memory.forget_descriptors()
            self._open.clear()
        for fd in list(self._open):
            self.close(fd)

    # -- operations on open files -------------------------------------------------------------

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:
        self._catch_up()
        directory, name = self._place(path)
        fd = self._below.open(path, flags, mode)
        assert directory.entries is not None
        node = directory.entries.get(name)
        if node is None:
            node = directory.entries[name] = _Node(self._new_inode())
            self.log.append(Name(directory.inode, None, name, node.inode))
        elif node.entries is not None:
            return fd
        elif flags & os.O_TRUNC:
            self._cut(node.inode, 0)
        self._open[fd] = _OpenFile(node.inode, bool(flags & os.O_APPEND))
        return fd

    def close(self, fd: int, /) -> None:
        self._catch_up()
        self._open.pop(fd, None)
        self._below.close(fd)

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        self._catch_up()
        file = self._open[fd]
        offset = self._below.fstat(fd).st_size if file.append else file.position
        with self._not_copied():
            done = self._below.write(fd, data)
        file.position = offset + done
        self._record(Data(file.inode, offset, bytes(memoryview(data)[:done])))
        return done

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        self._catch_up()
        with self._not_copied():
            done = self._below.pwrite(fd, data, offset)
        self._record(Data(self._open[fd].inode, offset, bytes(memoryview(data)[:done])))
        return done

    def truncate(self, fd: int, length: int, /) -> None:
        self._catch_up()
        shorter = length < self._below.fstat(fd).st_size
        self._below.truncate(fd, length)
        inode = self._open[fd].inode
        if shorter:
            self._cut(inode, length)
        else:
            self._record(Data(inode, length, None))

    def fallocate(self, fd: int, offset: int, length: int, /) -> None:
        self._catch_up()
        before = self._below.fstat(fd).st_size
        self._below.fallocate(fd, offset, length)
        if offset + length > before:
            self._record(Data(self._open[fd].inode, offset + length, None))

    def fdatasync(self, fd: int, /) -> None:
        self._catch_up()
        # The real sync is left out: the states are rebuilt from the log, never from the disk.
        if fd in self._open:
            self.log.append(SyncFile(self._open[fd].inode))
        if self.at_next_sync is not None:
            meanwhile, self.at_next_sync = self.at_next_sync, None
            meanwhile()

    fsync = fdatasync

    def mmap(self, fd: int, length: int, writable: bool, /) -> _mmap.mmap:
        self._catch_up()
        if not writable:
            return self._below.mmap(fd, length, False)
        inode = self._open[fd].inode
        if self._memory is not None:
            mapped = _RecordedMap(-1, length)
            mapped.stored = lambda at, data: None  # what fills it is the file's own content
            self._memory.adopt_map(fd, mapped)
        else:
            mapped = _RecordedMap(fd, length, access=_mmap.ACCESS_WRITE)
        mapped.stored = lambda at, data: self._copied(inode, at, data)
        if inode not in self._mapped:
            self._mapped[inode] = self._watch(fd)
        return mapped

    def _copied(self, inode: int, at: int, data: bytes) -> None:
        if not self._writing:
            self._record(Data(inode, at, data, copied=True))

    @contextmanager
    def _not_copied(self) -> Iterator[None]:
        """In memory a write goes into the map of a file that is mapped."""
        self._writing = True
        try:
            yield
        finally:
            self._writing = False

    def _watch(self, fd: int) -> _Mapped:
        if self._memory is not None:
            content = self._memory.inode(fd).content
            return _Mapped(content, lambda: None, content())
        own = os.dup(fd)

        def read() -> bytes:
            return os.pread(own, os.fstat(own).st_size, 0)

        return _Mapped(read, lambda: os.close(own), read())

    # -- operations on names ------------------------------------------------------------------

    def rename(self, source: PathLike, target: PathLike, /) -> None:
        self._catch_up()
        self._below.rename(source, target)
        directory, old = self._place(source)
        other, new = self._place(target)
        assert directory.entries is not None
        assert other.entries is not None
        node = directory.entries.pop(old)
        other.entries[new] = node
        left = None if other is directory else directory.inode
        self.log.append(Name(other.inode, old, new, node.inode, left=left))

    def unlink(self, path: PathLike, /) -> None:
        self._catch_up()
        self._below.unlink(path)
        self._remove(path)

    def mkdir(self, path: PathLike, /) -> None:
        self._catch_up()
        self._below.mkdir(path)
        directory, name = self._place(path)
        assert directory.entries is not None
        node = directory.entries[name] = _Node(self._new_inode(), {})
        self.log.append(Name(directory.inode, None, name, node.inode, made=True))

    def rmdir(self, path: PathLike, /) -> None:
        self._catch_up()
        self._below.rmdir(path)
        self._remove(path)

    def _remove(self, path: PathLike) -> None:
        directory, name = self._place(path)
        assert directory.entries is not None
        node = directory.entries.pop(name)
        self.log.append(Name(directory.inode, name, None, node.inode))

    def sync_dir(self, path: PathLike, /) -> None:
        self._catch_up()
        self.log.append(SyncDirectory(self._node(path).inode))

    # -- the log ------------------------------------------------------------------------------

    def _parts(self, path: PathLike) -> list[str]:
        text = os.fspath(path)
        if not text.startswith(self._prefix):
            text = os.path.abspath(text)
            if text == self.root:
                return []
            if not text.startswith(self._prefix):
                raise AssertionError(f"{path} is outside of {self.root}")
        rest = text[len(self._prefix) :]
        return rest.split("/") if rest else []

    def _walk(self, parts: list[str], path: PathLike) -> _Node:
        node = self._top
        for part in parts:
            child = None if node.entries is None else node.entries.get(part)
            if child is None:
                raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
            node = child
        return node

    def _node(self, path: PathLike) -> _Node:
        return self._walk(self._parts(path), path)

    def _place(self, path: PathLike) -> tuple[_Node, str]:
        """Give the directory of a path and the name in it."""
        *parents, name = self._parts(path)
        node = self._walk(parents, path)
        if node.entries is None:
            raise NotADirectoryError(20, "Not a directory", os.fspath(path))
        return node, name

    def _new_inode(self) -> int:
        self._next_inode += 1
        return self._next_inode

    def _cut(self, inode: int, length: int) -> None:
        self._cuts[inode] = (self._cuts.get(inode, (0, 0))[0] + 1, length)
        self._record(Data(inode, length, None))

    def _record(self, operation: Data) -> None:
        cuts = self._cuts.get(operation.inode)
        if cuts is not None:
            operation = replace(operation, cuts=cuts[0], left=cuts[1])
        self.log.append(operation)
        mapped = self._mapped.get(operation.inode)
        if mapped is not None:
            mapped.known = apply_data(mapped.known, operation)

    def _catch_up(self) -> None:
        """Log what was stored into maps since the last operation, page by page."""
        for inode, mapped in self._mapped.items():
            now = mapped.read()
            before = mapped.known
            if now == before:
                continue
            for start in range(0, len(now), _PAGE):
                new = now[start : start + _PAGE]
                old = before[start : start + _PAGE].ljust(len(new), b"\0")
                if new != old:
                    for first, last in _differing(old, new):
                        stored = Data(inode, start + first, new[first:last], copied=True)
                        self._record(stored)


def _differing(before: bytes, now: bytes) -> Iterator[tuple[int, int]]:
    """The ranges in which two pages differ. What lies between two of them may be safe since long,
    and must not be lost with them; only short gaps are taken for one store."""
    indexes = [at for at, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
    first = indexes[0]
    for last, following in itertools.pairwise(indexes):
        if following - last > _GAP:
            yield first, last + 1
            first = following
    yield first, indexes[-1] + 1


@dataclass(frozen=True, slots=True)
class CrashState:
    """One state a crash can leave: ``point`` operations of the log had been called.

    ``how`` says what had become of the un-synced ones, ``notes`` are those made before.
    """

    point: int
    how: str
    files: dict[str, bytes]
    directories: frozenset[str]
    notes: tuple[object, ...]

    def build(self, target: Path) -> Path:
        """Make the directory, which must not exist yet or be empty."""
        target.mkdir(parents=True, exist_ok=True)
        for directory in sorted(self.directories):
            (target / directory).mkdir(exist_ok=True)
        for name, content in self.files.items():
            (target / name).write_bytes(content)
        return target

    def key(self) -> tuple[object, ...]:
        return (tuple(sorted(self.files.items())), self.directories, len(self.notes))


def crash_states(
    recording: RecordingFileSystem,
    *,
    first: int = 0,
    window: int = 12,
    random_per_point: int = 2,
    power: int = 1,
    seed: int = SEED,
) -> Iterator[CrashState]:
    """All distinct crash states of a recording, from operation ``first`` on.

    ``window``: how many of the latest un-synced operations are varied one by one at each point.
    ``power``: of the states that a loss of power leaves, one of so many is given; those of the
    death of the process are given all. ``seed``: of the random states, and of which ones are given.
    """
    chance = random.Random(seed)
    disk = recording.start.copy()
    seen: set[int] = set()
    numbers = itertools.count(seed)
    for point in range(len(recording.log) + 1):
        if point:
            disk.take(recording.log[point - 1])
        if point < first:
            continue
        last = recording.log[point - 1] if point else None
        states = _states_at(disk, point, window, random_per_point, chance)
        some = (state() for state in states if next(numbers) % power == 0)
        for state in itertools.chain(_kill_states(disk, point, last), some):
            if state is None:
                continue
            key = hash(state.key())
            if key not in seen:
                seen.add(key)
                yield state


def _kill_states(disk: Disk, point: int, last: Operation | None) -> Iterator[CrashState]:
    data, notes = disk.data, tuple(disk.notes)
    yield CrashState(point, "kill", *disk.files(data, disk.changes), notes)
    if not isinstance(last, Data) or not last.copied or last.data is None:
        return
    size = len(last.data)
    if size <= _WORD:
        return
    cuts = sorted({*range(_WORD, size, _WORD)[:_MAX_WORDS], size - _WORD})
    for how, parts in parts_of_copy(last, cuts):
        files = disk.files([*data[:-1], *parts], disk.changes)
        yield CrashState(point, f"kill, copied {how}", *files, notes)


def _states_at(
    disk: Disk, point: int, window: int, random_per_point: int, chance: random.Random
) -> Iterator[Callable[[], CrashState | None]]:
    """Give what makes each state, or ``None`` where a disk can't come to it: either takes longer
    than to know of it."""
    data, changes = disk.data, disk.changes
    if not data and not changes:
        return
    nothing: list[Data | None] = [None] * len(data)

    def states() -> Iterator[tuple[str, list[Data | None], list[Name]]]:
        yield "nothing un-synced done", nothing, []
        yield "names only", nothing, changes
        yield "data only", [*data], []
        for index in range(max(0, len(changes) - window), len(changes)):
            others = changes[:index] + changes[index + 1 :]
            yield f"all but {changes[index]}", [*data], others
            yield f"of the names only {changes[index]}", [*data], [changes[index]]
        for index in range(max(0, len(data) - window), len(data)):
            before, this, after = data[:index], data[index], data[index + 1 :]
            yield f"all but write {index}", [*before, None, *after], changes
            yield f"only write {index}", [*nothing[:index], this, *nothing[index + 1 :]], changes
            for how, variant in _variants(this, chance):
                yield f"write {index} {how}", [*before, variant, *after], changes
                end = nothing[index + 1 :]
                yield f"ends with write {index} {how}", [*before, variant, *end], changes
        for _ in range(random_per_point):
            some = [_maybe(each, chance) for each in data]
            yield "random", some, [each for each in changes if chance.random() < 0.6]

    for how, done, named in states():
        yield partial(_power_state, disk, point, how, done, named)


def _power_state(
    disk: Disk, point: int, how: str, done: list[Data | None], named: list[Name]
) -> CrashState | None:
    if not _is_possible(disk.data, done):
        return None
    writes = [each for each in done if each is not None]
    return CrashState(point, how, *disk.files(writes, named), tuple(disk.notes))


def _is_possible(data: Sequence[Data], done: Sequence[Data | None]) -> bool:
    """Tell whether no sector has a write, or a part of one, and lacks an earlier one: it is written
    whole, as it is at that moment."""
    lacking: dict[int, set[int]] = {}
    for write, there in zip(data, done, strict=True):
        if write.data is None:
            continue
        known = lacking.setdefault(write.inode, set())
        if there is not None and there.data and known.intersection(_sectors(there, there.data)):
            return False
        known.update(_lost(write, write.data, there))
    return True


def _sectors(write: Data, data: bytes) -> range:
    return range(write.offset // _SECTOR, (write.offset + len(data) - 1) // _SECTOR + 1)


def _lost(write: Data, data: bytes, there: Data | None) -> Iterable[int]:
    """The sectors in which bytes of a write are not there."""
    if there is None or not there.data or not data:
        return _sectors(write, data)
    if there.data == data:
        return ()
    size = len(there.data)
    starts = range(-(write.offset % _SECTOR), len(data), _SECTOR)
    return [
        (write.offset + start) // _SECTOR
        for start in starts
        for at, end in [(max(start, 0), min(start + _SECTOR, len(data)))]
        if end > size or there.data[at:end] != data[at:end]
    ]


def _variants(write: Data, chance: random.Random) -> Iterator[tuple[str, Data]]:
    if write.data is None:
        return
    size = len(write.data)
    yield "zeros", replace(write, data=bytes(size))
    first, last = write.offset // _SECTOR, (write.offset + size - 1) // _SECTOR
    for sector in sorted({first, last, chance.randint(first, last)} if last > first else set()):
        start = max(sector * _SECTOR - write.offset, 0)
        stop = min((sector + 1) * _SECTOR - write.offset, size)
        lost = write.data[:start] + bytes(stop - start) + write.data[stop:]
        yield f"without sector {sector}", replace(write, data=lost)
    for cut in sorted({1, 7, size // 2, size - 1, chance.randrange(size)} if size else set()):
        if 0 < cut < size:
            yield f"cut at {cut}", replace(write, data=write.data[:cut])


def _maybe(write: Data, chance: random.Random) -> Data | None:
    choice = chance.random()
    if choice < 0.3:
        return None
    if choice < 0.7 or write.data is None or not write.data:
        return write
    if choice < 0.8:
        return replace(write, data=bytes(len(write.data)))
    return replace(write, data=write.data[: chance.randrange(len(write.data))])
