"""A file system that remembers every operation, and every state a crash could have left.

:class:`RecordingFileSystem` does the real operations below one directory and logs them. Stores
into memory maps leave no call: the mapped files are compared with what is known of them at each
next operation, and what has changed counts as written there.

:func:`crash_states` then gives the states that the directory can be in if the machine stops
between any two operations, by this model:

* a file's bytes and length as of its last ``fdatasync``/``fsync`` are safe; each write, truncation
  or allocation since may be done or not, in any combination; a write may also be cut short at any
  byte, or leave zeros in its place or in that of one of its sectors;
* the names of a directory as of its last ``sync_dir`` are safe; each creation, rename or removal
  since may be done or not;
* a process that dies alone loses nothing that was handed to the system (states called "kill").

Not every combination is tried: each un-synced operation is varied against "all others done" and
"no other done", and some states at random.
"""

from __future__ import annotations

import mmap as _mmap
import os
import random
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from journal.files import REAL, PathLike, ReadBuffer

__all__ = ["CrashState", "RecordingFileSystem", "crash_states"]

_PAGE = 4096
_SECTOR = 512


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes at an offset of a file (an inode); ``data`` None with a length: the file is cut or
    extended with zeros to ``offset``."""

    inode: int
    offset: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Name:
    """A change of names: ``target`` now stands for ``inode``, ``source`` for nothing.

    ``inode`` None with a target: a directory was made.
    """

    inode: int | None
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class SyncFile:
    inode: int


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    path: str


@dataclass(frozen=True, slots=True)
class Note:
    """What the test put into the log: a promise made, a call begun."""

    what: object


Operation = Data | Name | SyncFile | SyncDirectory | Note


@dataclass(slots=True)
class _OpenFile:
    inode: int
    path: str
    append: bool


@dataclass(slots=True)
class _Mapped:
    fd: int
    known: bytearray


class RecordingFileSystem:
    """The real file system below ``root``, with a log. Not thread-safe: one thread at a time."""

    def __init__(self, root: PathLike) -> None:
        self.root = os.path.abspath(root)
        self.log: list[Operation] = []
        self.base_files: dict[str, bytes] = {}
        self.base_directories: set[str] = {""}
        self._inodes: dict[str, int] = {}
        self._next_inode = 0
        self._open: dict[int, _OpenFile] = {}
        self._mapped: dict[int, _Mapped] = {}
        for parent, directories, files in os.walk(self.root):
            for name in directories:
                self.base_directories.add(self._relative(os.path.join(parent, name)))
            for name in files:
                relative = self._relative(os.path.join(parent, name))
                self.base_files[relative] = Path(parent, name).read_bytes()
                self._inodes[relative] = self._new_inode()
        self.base_inodes = dict(self._inodes)

    def note(self, what: object) -> None:
        """Put a note in the log; :class:`CrashState` gives those made before its point."""
        self._catch_up()
        self.log.append(Note(what))

    def forget_descriptors(self) -> None:
        """Close what a workload left open, as the death of its process would."""
        for fd in list(self._open):
            self.close(fd)
        for mapped in self._mapped.values():
            os.close(mapped.fd)
        self._mapped.clear()

    # -- operations on open files -------------------------------------------------------------

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:
        self._catch_up()
        name = self._relative(path)
        existed = name in self._inodes
        fd = REAL.open(path, flags, mode)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return fd
        if not existed:
            self._inodes[name] = self._new_inode()
            self.log.append(Name(self._inodes[name], None, name))
        elif flags & os.O_TRUNC:
            self._record(Data(self._inodes[name], 0, None))
        self._open[fd] = _OpenFile(self._inodes[name], name, bool(flags & os.O_APPEND))
        return fd

    def close(self, fd: int, /) -> None:
        self._catch_up()
        self._open.pop(fd, None)
        REAL.close(fd)

    def read(self, fd: int, length: int, /) -> bytes:
        return REAL.read(fd, length)

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        return REAL.pread(fd, length, offset)

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        self._catch_up()
        file = self._open[fd]
        offset = os.fstat(fd).st_size if file.append else os.lseek(fd, 0, os.SEEK_CUR)
        done = REAL.write(fd, data)
        self._record(Data(file.inode, offset, bytes(memoryview(data)[:done])))
        return done

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        self._catch_up()
        done = REAL.pwrite(fd, data, offset)
        self._record(Data(self._open[fd].inode, offset, bytes(memoryview(data)[:done])))
        return done

    def truncate(self, fd: int, length: int, /) -> None:
        self._catch_up()
        REAL.truncate(fd, length)
        self._record(Data(self._open[fd].inode, length, None))

    def fallocate(self, fd: int, offset: int, length: int, /) -> None:
        self._catch_up()
        before = os.fstat(fd).st_size
        REAL.fallocate(fd, offset, length)
        if offset + length > before:
            self._record(Data(self._open[fd].inode, offset + length, None))

    def fdatasync(self, fd: int, /) -> None:
        self._catch_up()
        # The real sync is left out: the states are rebuilt from the log, never from the disk.
        if fd in self._open:
            self.log.append(SyncFile(self._open[fd].inode))

    fsync = fdatasync

    def mmap(self, fd: int, length: int, writable: bool, /) -> _mmap.mmap:
        self._catch_up()
        inode = self._open[fd].inode
        if writable and inode not in self._mapped:
            own = os.dup(fd)
            known = bytearray(os.pread(own, os.fstat(own).st_size, 0))
            self._mapped[inode] = _Mapped(own, known)
        return REAL.mmap(fd, length, writable)

    # -- operations on names ------------------------------------------------------------------

    def rename(self, source: PathLike, target: PathLike, /) -> None:
        self._catch_up()
        REAL.rename(source, target)
        old, new = self._relative(source), self._relative(target)
        inode = self._inodes.pop(old)
        self._inodes[new] = inode
        self.log.append(Name(inode, old, new))

    def unlink(self, path: PathLike, /) -> None:
        self._catch_up()
        REAL.unlink(path)
        name = self._relative(path)
        del self._inodes[name]
        self.log.append(Name(None, name, None))

    def mkdir(self, path: PathLike, /) -> None:
        self._catch_up()
        REAL.mkdir(path)
        self.log.append(Name(None, None, self._relative(path)))

    def rmdir(self, path: PathLike, /) -> None:
        self._catch_up()
        REAL.rmdir(path)
        self.log.append(Name(None, self._relative(path), None))

    def listdir(self, path: PathLike, /) -> list[str]:
        return REAL.listdir(path)

    def stat(self, path: PathLike, /) -> os.stat_result:
        return REAL.stat(path)

    def fstat(self, fd: int, /) -> os.stat_result:
        return REAL.fstat(fd)

    def sync_dir(self, path: PathLike, /) -> None:
        self._catch_up()
        self.log.append(SyncDirectory(self._relative(path)))

    def lock(self, fd: int, /) -> bool:
        return REAL.lock(fd)

    def boot_id(self) -> bytes:
        return REAL.boot_id()

    # -- the log ------------------------------------------------------------------------------

    def _relative(self, path: PathLike) -> str:
        relative = os.path.relpath(os.path.abspath(path), self.root)
        if relative.startswith(os.pardir):
            raise AssertionError(f"{path} is outside of {self.root}")
        return "" if relative == os.curdir else relative

    def _new_inode(self) -> int:
        self._next_inode += 1
        return self._next_inode

    def _record(self, operation: Data) -> None:
        self.log.append(operation)
        mapped = self._mapped.get(operation.inode)
        if mapped is not None:
            _apply(mapped.known, operation)

    def _catch_up(self) -> None:
        """Log what was stored into maps since the last operation, page by page."""
        for inode, mapped in self._mapped.items():
            size = os.fstat(mapped.fd).st_size
            for start in range(0, size, _PAGE):
                now = os.pread(mapped.fd, _PAGE, start)
                before = bytes(mapped.known[start : start + _PAGE]).ljust(len(now), b"\0")
                if now == before:
                    continue
                first, last = _differing(before, now)
                self._record(Data(inode, start + first, now[first:last]))


def _differing(before: bytes, now: bytes) -> tuple[int, int]:
    """The range in which two pages differ."""
    indexes = [at for at, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
    return indexes[0], indexes[-1] + 1


def _apply(content: bytearray, operation: Data) -> None:
    if operation.data is None:
        if operation.offset < len(content):
            del content[operation.offset :]
        else:
            content.extend(bytes(operation.offset - len(content)))
        return
    end = operation.offset + len(operation.data)
    if len(content) < operation.offset:
        content.extend(bytes(operation.offset - len(content)))
    content[operation.offset : end] = operation.data


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


@dataclass(slots=True)
class _Disk:
    """What is safe at a point of the log, and what is not yet, in order."""

    contents: dict[int, bytearray] = field(default_factory=dict)
    names: dict[str, int | None] = field(default_factory=dict)
    data: list[Data] = field(default_factory=list)
    changes: list[Name] = field(default_factory=list)
    notes: list[object] = field(default_factory=list)

    def take(self, operation: Operation) -> None:
        match operation:
            case Data():
                self.data.append(operation)
            case Name():
                self.changes.append(operation)
            case SyncFile(inode):
                content = self.contents.setdefault(inode, bytearray())
                for write in self.data:
                    if write.inode == inode:
                        _apply(content, write)
                self.data = [write for write in self.data if write.inode != inode]
            case SyncDirectory(path):
                for change in self.changes:
                    if _directory_of(change) == path:
                        _rename(self.names, change)
                self.changes = [each for each in self.changes if _directory_of(each) != path]
            case Note(what):
                self.notes.append(what)

    def state(
        self, point: int, how: str, data: Iterable[Data], changes: Iterable[Name]
    ) -> CrashState:
        contents = {inode: bytearray(content) for inode, content in self.contents.items()}
        for write in data:
            _apply(contents.setdefault(write.inode, bytearray()), write)
        names = dict(self.names)
        for change in changes:
            _rename(names, change)
        directories = {name for name, inode in names.items() if inode is None}
        files = {
            name: bytes(contents.get(inode, b""))
            for name, inode in names.items()
            # A file whose directory never came to be has no name.
            if inode is not None and os.path.dirname(name) in directories
        }
        reachable = frozenset(
            name for name in directories if name == "" or os.path.dirname(name) in directories
        )
        return CrashState(point, how, files, reachable, tuple(self.notes))


def _directory_of(change: Name) -> str:
    return os.path.dirname(change.target or change.source or "")


def _rename(names: dict[str, int | None], change: Name) -> None:
    if change.source is not None:
        if change.source not in names:
            return  # what it renames or removes never came to be
        del names[change.source]
    if change.target is not None:
        names[change.target] = change.inode


def crash_states(
    recording: RecordingFileSystem,
    *,
    first: int = 0,
    window: int = 12,
    random_per_point: int = 2,
    seed: int = 1,
) -> Iterator[CrashState]:
    """All distinct crash states of a recording, from operation ``first`` on.

    ``window``: how many of the latest un-synced operations are varied one by one at each point.
    """
    chance = random.Random(seed)
    disk = _Disk()
    for name, inode in recording.base_inodes.items():
        disk.names[name] = inode
        disk.contents[inode] = bytearray(recording.base_files[name])
    for name in recording.base_directories:
        disk.names[name] = None
    seen: set[int] = set()
    for point in range(len(recording.log) + 1):
        if point:
            disk.take(recording.log[point - 1])
        if point < first:
            continue
        for state in _states_at(disk, point, window, random_per_point, chance):
            key = hash(state.key())
            if key not in seen:
                seen.add(key)
                yield state


def _states_at(
    disk: _Disk, point: int, window: int, random_per_point: int, chance: random.Random
) -> Iterator[CrashState]:
    data, changes = disk.data, disk.changes
    yield disk.state(point, "kill", data, changes)
    if not data and not changes:
        return
    yield disk.state(point, "nothing un-synced done", (), ())
    yield disk.state(point, "names only", (), changes)
    yield disk.state(point, "data only", data, ())
    for index in range(max(0, len(changes) - window), len(changes)):
        others = changes[:index] + changes[index + 1 :]
        yield disk.state(point, f"all but {changes[index]}", data, others)
        yield disk.state(point, f"of the names only {changes[index]}", data, [changes[index]])
    for index in range(max(0, len(data) - window), len(data)):
        before, this, after = data[:index], data[index], data[index + 1 :]
        yield disk.state(point, f"all but write {index}", before + after, changes)
        yield disk.state(point, f"only write {index}", [this], changes)
        for how, variant in _variants(this, chance):
            yield disk.state(point, f"write {index} {how}", [*before, variant, *after], changes)
            yield disk.state(point, f"ends with write {index} {how}", [*before, variant], changes)
    for _ in range(random_per_point):
        some = [_maybe(each, chance) for each in data]
        named = [each for each in changes if chance.random() < 0.6]
        yield disk.state(point, "random", [each for each in some if each is not None], named)


def _variants(write: Data, chance: random.Random) -> Iterator[tuple[str, Data]]:
    if write.data is None:
        return
    size = len(write.data)
    yield "zeros", Data(write.inode, write.offset, bytes(size))
    first, last = write.offset // _SECTOR, (write.offset + size - 1) // _SECTOR
    for sector in sorted({first, last, chance.randint(first, last)} if last > first else set()):
        start = max(sector * _SECTOR - write.offset, 0)
        stop = min((sector + 1) * _SECTOR - write.offset, size)
        lost = write.data[:start] + bytes(stop - start) + write.data[stop:]
        yield f"without sector {sector}", Data(write.inode, write.offset, lost)
    for cut in sorted({1, 7, size // 2, size - 1, chance.randrange(size)} if size else set()):
        if 0 < cut < size:
            yield f"cut at {cut}", Data(write.inode, write.offset, write.data[:cut])


def _maybe(write: Data, chance: random.Random) -> Data | None:
    choice = chance.random()
    if choice < 0.3:
        return None
    if choice < 0.7 or write.data is None or not write.data:
        return write
    if choice < 0.8:
        return Data(write.inode, write.offset, bytes(len(write.data)))
    return Data(write.inode, write.offset, write.data[: chance.randrange(len(write.data))])
