"""What is on the disk, and what is on its way: the log of a recording, and its meaning.

A file is an inode with bytes, a directory an inode with names. What the disk has for certain is
what was synced; everything since is pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

__all__ = [
    "ROOT",
    "Data",
    "Disk",
    "Name",
    "Note",
    "Operation",
    "SyncDirectory",
    "SyncFile",
    "apply_data",
    "apply_name",
    "parts_of_copy",
    "resolve",
]

ROOT = 0
"""The inode of the directory in which all is recorded."""


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes at an offset of a file; ``data`` None: the file is cut or extended with zeros to
    ``offset``.

    ``cuts``: how often the file had been cut, this operation included, and ``left``: to how many
    bytes the last time. What is done behind a cut is never there without it. ``copied``: into a
    map, in no order that is known.
    """

    inode: int
    offset: int
    data: bytes | None
    cuts: int = 0
    left: int = 0
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """A change in one directory: ``source`` stands for nothing any more, ``target`` for ``inode``.

    A creation has no source, a removal no target. ``made``: the inode is a new directory.
    ``left``: the directory that ``source`` was in, where it is another one. Such a rename is done
    in both or in none, as journaling file systems have it.
    """

    directory: int
    source: str | None
    target: str | None
    inode: int
    made: bool = False
    left: int | None = None

    @property
    def directories(self) -> set[int]:
        """All that it changes."""
        return {self.directory} if self.left is None else {self.directory, self.left}


@dataclass(frozen=True, slots=True)
class SyncFile:
    inode: int


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    inode: int


@dataclass(frozen=True, slots=True)
class Note:
    """What the test put into the log: a promise made, a call begun."""

    what: object


Operation = Data | Name | SyncFile | SyncDirectory | Note
Names = dict[str, int]
"""What the names of a directory stand for."""


def apply_data(content: bytes, write: Data) -> bytes:
    """Give a file's bytes after a write."""
    if write.data is None:
        return content[: write.offset].ljust(write.offset, b"\0")
    end = write.offset + len(write.data)
    front = content[: write.offset].ljust(write.offset, b"\0")
    return b"".join((front, write.data, content[end:]))


def parts_of_copy(write: Data, cuts: Sequence[int]) -> Iterator[tuple[str, list[Data]]]:
    """Of a copy into a map, what may be done when its process dies in the middle: all up to one of
    the ``cuts`` (ascending, within the write), all from there on, all but what is between two."""
    assert write.data is not None

    def part(start: int, stop: int) -> Data:
        assert write.data is not None
        return replace(write, offset=write.offset + start, data=write.data[start:stop])

    size = len(write.data)
    for cut in cuts:
        yield f"up to {cut}", [part(0, cut)]
        yield f"from {cut} on", [part(cut, size)]
    for first, last in pairwise(cuts):
        yield f"but for {first} to {last}", [part(0, first), part(last, size)]


def apply_name(names: Names, change: Name) -> None:
    """Change the names of a directory. Of a rename whose source never came to be the target is
    there all the same: a directory's names are written one by one."""
    if change.source is not None:
        names.pop(change.source, None)
    if change.target is not None:
        names[change.target] = change.inode


def change_names(directories: Mapping[int, Names], change: Name) -> None:
    """Make a change in the directories that it is about."""
    if change.left is not None and change.source is not None:
        directories[change.left].pop(change.source, None)
        change = replace(change, source=None)
    apply_name(directories[change.directory], change)


def resolve(directories: Mapping[int, Names]) -> tuple[list[tuple[str, int]], list[str]]:
    """Give the files that can be reached from the root (path, inode), and the directories."""
    files: list[tuple[str, int]] = []
    paths: list[str] = []
    waiting = [("", ROOT)]
    while waiting:
        prefix, inode = waiting.pop()
        for name, child in directories[inode].items():
            if child in directories:
                paths.append(prefix + name)
                waiting.append((f"{prefix}{name}/", child))
            else:
                files.append((prefix + name, child))
    return files, paths


@dataclass(slots=True)
class Disk:
    """What is safe at a point of a log, what is pending, in order, and the notes so far.

    ``contents``: bytes by inode, ``directories``: names by inode.
    """

    contents: dict[int, bytes] = field(default_factory=dict)
    directories: dict[int, Names] = field(default_factory=lambda: {ROOT: {}})
    data: list[Data] = field(default_factory=list)
    changes: list[Name] = field(default_factory=list)
    notes: list[object] = field(default_factory=list)
    cuts: dict[int, int] = field(default_factory=dict)
    """How often each file was cut, for certain."""

    def copy(self) -> Disk:
        """Give another one that goes its own way."""
        directories = {inode: dict(names) for inode, names in self.directories.items()}
        pending = list(self.data), list(self.changes), list(self.notes)
        return Disk(dict(self.contents), directories, *pending, dict(self.cuts))

    def take(self, operation: Operation) -> None:
        """Go on behind one operation of the log."""
        match operation:
            case Data():
                self.data.append(operation)
            case Name(made=made, inode=inode):
                if made:
                    self.directories[inode] = {}
                self.changes.append(operation)
            case SyncFile(inode):
                content = self.contents.get(inode, b"")
                for write in self.data:
                    if write.inode == inode:
                        content = apply_data(content, write)
                        self.cuts[inode] = write.cuts
                self.contents[inode] = content
                self.data = [write for write in self.data if write.inode != inode]
            case SyncDirectory(inode):
                for change in self.changes:
                    if inode in change.directories:
                        change_names(self.directories, change)
                self.changes = [each for each in self.changes if inode not in each.directories]
                self._forget_unreachable()
            case Note(what):
                self.notes.append(what)

    def _forget_unreachable(self) -> None:
        """Drop the writes to files that no name can lead to any more."""
        named = {inode for names in self.directories.values() for inode in names.values()}
        named |= {change.inode for change in self.changes}
        self.data = [write for write in self.data if write.inode in named]

    def files(
        self, data: Iterable[Data], changes: Iterable[Name]
    ) -> tuple[dict[str, bytes], frozenset[str]]:
        """Give files and directories, with these of the pending operations done."""
        contents = dict(self.contents)
        cuts = dict(self.cuts)
        for write in data:
            content = contents.get(write.inode, b"")
            if write.cuts > cuts.get(write.inode, 0):
                content = content[: write.left]
                cuts[write.inode] = write.cuts
            contents[write.inode] = apply_data(content, write)
        directories = {inode: dict(names) for inode, names in self.directories.items()}
        for change in changes:
            change_names(directories, change)
        files, paths = resolve(directories)
        return {path: contents.get(inode, b"") for path, inode in files}, frozenset(paths)
