"""The layout of a store: its files, and strangers in its directory."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from time import sleep

from journal.errors import NotAStoreError, StorageError, storage_errors
from journal.fs.files import FileSystem, opened, pread_all, read_file
from rocketstore.format.consumequeue_format import DEFAULT_FILE_SIZE, round_file_size
from rocketstore.format.index_format import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    HEADER_SIZE,
    IndexHeader,
    empty_geometry,
    file_size,
    find_geometry,
)
from rocketstore.log.dispatch import QueueKey
from rocketstore.log.dispatch_note import load_note
from rocketstore.log.mapped_files import Stranger, scan_directory
from rocketstore.options import COMMITLOG_FILE_SIZE, Options

_SETTLE_PAUSES = (0.001, 0.005, 0.02)
"""Seconds between looks at a file that may be being written."""


class Paths:
    """All names of files in a store directory are made here, each once.

    ``abort`` is there while the store is open for writing, and after a crash. ``dispatch_note`` is
    ours (:mod:`rocketstore.log.dispatch_note`). ``local_offset`` has the offsets of broadcast
    consumers, which belong to this process's machine, ``delay_offset`` the next message to deliver
    of each delay level. In ``quarantine`` damaged bytes and foreign files are set aside.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.commitlog: str = os.path.join(root, "commitlog")
        self.consumequeue: str = os.path.join(root, "consumequeue")
        self.index: str = os.path.join(root, "index")
        self.quarantine: str = os.path.join(root, "quarantine")
        self.checkpoint: str = os.path.join(root, "checkpoint")
        self.abort: str = os.path.join(root, "abort")
        self.lock: str = os.path.join(root, "lock")
        self.config: str = os.path.join(root, "config")
        self.dispatch_note: str = os.path.join(self.config, "rocketstore.json")
        self.consumer_offset: str = os.path.join(self.config, "consumerOffset.json")
        self.local_offset: str = os.path.join(self.config, "localOffset.json")
        self.delay_offset: str = os.path.join(self.config, "delayOffset.json")


@dataclass(slots=True)
class Layout:
    """The files found, and the sizes that hold for them."""

    commitlog_file_size: int
    consumequeue_file_size: int
    index_slots: int
    index_entries: int
    commitlog: list[int]
    queues: dict[QueueKey, list[int]]
    index: list[str]
    strangers: list[Stranger] = field(default_factory=list)
    missing: list[range] = field(default_factory=list)
    """Starts of log files that are not there between others, which no crash of ours leaves."""
    short: dict[int, int] = field(default_factory=dict)
    """Bytes of log files whose end was cut off, by start: strangers, of which a reader can have the
    rest."""

    @property
    def readable(self) -> list[int]:
        """Starts of the log files that have something to read."""
        return sorted([*self.commitlog, *self.short])

    def lost(self) -> list[int]:
        """Starts of the log files that are not there at all between others."""
        size = self.commitlog_file_size
        pairs = itertools.pairwise(self.readable)
        return [start for left, right in pairs for start in range(left + size, right, size)]


def look(
    fs: FileSystem, paths: Paths, options: Options, sizes: tuple[int, ...] | None = None
) -> Layout:
    """List a store directory, find its sizes, change nothing.

    Sizes come from the options, else from ``sizes`` (what a former open noted), else from files.

    Raises :class:`NotAStoreError` for a file, and for a directory without a commit log where none
    is to be made; :class:`StorageError`.
    """
    try:
        info = fs.stat(paths.root)
    except FileNotFoundError:
        if options.read_only or not options.create:
            raise NotAStoreError(f"{paths.root}: there is no such directory") from None
        info = None
    except OSError as error:
        raise StorageError(paths.root, "can't be looked at", error) from error
    if info is not None and not stat.S_ISDIR(info.st_mode):
        raise NotAStoreError(f"{paths.root}: is a file, not a store directory")
    if sizes is not None:
        options = replace(
            options,
            commitlog_file_size=options.commitlog_file_size or sizes[0],
            consumequeue_file_size=options.consumequeue_file_size or sizes[1],
            index_slots=options.index_slots or sizes[2],
            index_entries=options.index_entries or sizes[3],
        )
    try:
        return _look(fs, paths, options, exists=info is not None)
    except OSError as error:
        raise StorageError(error.filename or paths.root, "can't be listed", error) from error


def is_store(names: Iterable[str]) -> bool:
    """Return whether a directory with these names has files of a store."""
    return not {"commitlog", "consumequeue", "index"}.isdisjoint(names)


def _look(fs: FileSystem, paths: Paths, options: Options, *, exists: bool) -> Layout:
    listed = fs.listdir(paths.root) if exists else []
    if exists and not is_store(listed):
        names = [name for name in listed if name not in ("lock", "config")]
        if options.read_only or not options.create:
            raise NotAStoreError(f"{paths.root}: holds no commitlog directory")
        if names and set(names) - {"abort", "checkpoint", "quarantine"}:
            raise NotAStoreError(
                f"{paths.root}: is neither empty nor a store (it holds {names[0]!r})"
            )
    starts, strangers, size = scan_directory(fs, paths.commitlog, options.commitlog_file_size)
    size = size or COMMITLOG_FILE_SIZE
    short = {one.start: one.length for one in strangers if one.is_placed and 0 < one.length < size}
    queues, queue_size = _look_queues(fs, paths, options, strangers)
    names, slots, entries = _look_index(fs, paths, options, strangers)
    missing = [
        range(left + size, right, size)
        for left, right in itertools.pairwise(starts)
        if right - left != size
    ]
    return Layout(
        size, queue_size, slots, entries, starts, queues, names, strangers, missing, short
    )


def _look_queues(
    fs: FileSystem, paths: Paths, options: Options, strangers: list[Stranger]
) -> tuple[dict[QueueKey, list[int]], int]:
    wanted = options.consumequeue_file_size
    size = round_file_size(wanted) if wanted is not None else None
    queues: dict[QueueKey, list[int]] = {}
    lengths: dict[QueueKey, int] = {}
    for topic in _listdir(fs, paths.consumequeue):
        directory = os.path.join(paths.consumequeue, topic)
        for name in _listdir(fs, directory):
            if not (name.isascii() and name.removeprefix("-").isdigit()):
                where = os.path.join(directory, name)
                strangers.append(Stranger(where, "is not a queue directory"))
                continue
            key = (topic, int(name))
            starts, strange, found = scan_directory(fs, os.path.join(directory, name), size)
            strangers += strange
            queues[key] = starts
            if found is not None and starts:
                lengths[key] = found
    if size is None:
        size = max(set(lengths.values()), key=list(lengths.values()).count, default=None)
        for key, length in lengths.items():
            if length != size:
                path = os.path.join(paths.consumequeue, key[0], str(key[1]))
                strangers += [
                    Stranger(
                        os.path.join(path, f"{start:020d}"),
                        f"is {length} bytes long, not {size}",
                        start,
                        length,
                        size or 0,
                    )
                    for start in queues[key]
                ]
                queues[key] = []
    return queues, size or DEFAULT_FILE_SIZE


def _look_index(
    fs: FileSystem, paths: Paths, options: Options, strangers: list[Stranger]
) -> tuple[list[str], int, int]:
    # The real store ignores names that are not a number; only a wrong length could be a trap.
    names = [
        name
        for name in _listdir(fs, paths.index)
        if name.isascii() and name.isdigit() and len(name) == 17
    ]
    slots, entries = options.index_slots, options.index_entries
    if (slots is None) != (entries is None):
        slots = slots or DEFAULT_SLOTS
        entries = entries or DEFAULT_ENTRIES
    if slots is None or entries is None:
        slots, entries = _index_geometry(fs, paths, names, options.read_only)
    length = file_size(slots, entries)
    fitting: list[str] = []
    for name in names:
        path = os.path.join(paths.index, name)
        found = fs.stat(path).st_size
        if found == length:
            fitting.append(name)
        else:
            what = f"is {found} bytes long, not {length}"
            strangers.append(Stranger(path, what, 0, found, length))
    return fitting, slots, entries


def _index_geometry(
    fs: FileSystem, paths: Paths, names: list[str], read_only: bool
) -> tuple[int, int]:
    default = (DEFAULT_SLOTS, DEFAULT_ENTRIES)
    lengths = {name: fs.stat(os.path.join(paths.index, name)).st_size for name in names}
    if file_size(*default) in lengths.values():
        return default
    note = load_note(fs, paths.dispatch_note)
    likely = (note.sizes[2], note.sizes[3]) if note is not None else None
    for name, length in lengths.items():
        if length < HEADER_SIZE:
            continue
        for pause in (*_SETTLE_PAUSES, None):
            found = _geometry_of(fs, os.path.join(paths.index, name), length, likely)
            if found is not None:
                return found
            if pause is None or not _has_entries(fs, os.path.join(paths.index, name)):
                break
            sleep(pause)
    if read_only and len(set(lengths.values())) == 1:
        # Files without an entry hold nothing that could be misread.
        return likely or empty_geometry(next(iter(lengths.values()))) or default
    return default


def _geometry_of(
    fs: FileSystem, path: str, length: int, likely: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Find the geometry of a file. Read all of it only if the likely geometry does not fit."""
    with opened(fs, path) as fd:
        return find_geometry(lambda at, count: pread_all(fs, fd, count, at), length, likely)


def _has_entries(fs: FileSystem, path: str) -> bool:
    return IndexHeader.parse(read_file(fs, path, HEADER_SIZE)).count > 1


def _listdir(fs: FileSystem, directory: str) -> list[str]:
    try:
        return sorted(fs.listdir(directory))
    except FileNotFoundError:
        return []


def extend(fs: FileSystem, stranger: Stranger) -> None:
    """Restore a file's full length: a crash took zeros from its end, or bytes that were never
    synced. Raises :class:`StorageError`."""
    path = stranger.path
    with storage_errors(path, "can't be extended"), opened(fs, path, os.O_RDWR) as fd:
        fs.truncate(fd, stranger.wanted)
        fs.fdatasync(fd)
