"""ConsumeQueues: for each topic and queue, where its messages are in the CommitLog.

They hold nothing that the CommitLog does not tell, so they are written in batches, synced late,
and rebuilt when they disagree with it. Files are read and written with ``pread`` and ``pwrite``
through a bounded number of descriptors: a store may have thousands of queues.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from journal.errors import DamageError, StorageError, storage_errors
from journal.fs.files import FileSystem, close_quietly, make_dirs, pread_all, pwrite_all
from rocketstore.format import words
from rocketstore.format.commitlog_format import file_name
from rocketstore.format.consumequeue_format import (
    MAX_UNIT,
    PRE_BLANK,
    UNIT,
    UNIT_SIZE,
    Units,
    build_units,
    count_valid,
    parse_units,
)
from rocketstore.log.mapped_files import create_file
from rocketstore.log.watch import Watch

_log = logging.getLogger("qindex.rocketstore")
_OPEN_MAX = 128
_RECOVER_FILES = 3
Int64Array = npt.NDArray[np.int64]


class Descriptors:
    """Open descriptors of many files, a bounded number at once."""

    def __init__(self, fs: FileSystem, *, writable: bool, watch: Watch | None = None) -> None:
        self._fs = fs
        self._watch = watch
        self._writable = writable
        self._flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        self._open: OrderedDict[str, int] = OrderedDict()
        self._dirty: set[str] = set()
        self._directories: set[str] = set()

    def get(self, path: str) -> int:
        """A descriptor of the file. Raises :class:`StorageError`, and :class:`DamageError` where
        another program has taken it away."""
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        with storage_errors(path, "can't be opened"):
            if self._watch is None:
                fd = self._fs.open(path, self._flags)
            else:
                fd = self._watch.open(path, self._flags, 0)
        self._keep(path, fd)
        return fd

    def create(self, path: str, size: int) -> None:
        """Make a file of zeros. Raises :class:`StorageError`."""
        directory = os.path.dirname(path)
        with storage_errors(directory, "can't be created"):
            make_dirs(self._fs, directory)
        fd = create_file(self._fs, path, size)
        self._keep(path, fd)
        self.mark_dirty(path)

    def _keep(self, path: str, fd: int) -> None:
        self._open[path] = fd
        if len(self._open) > _OPEN_MAX:
            oldest, fd = self._open.popitem(last=False)
            close_quietly(self._fs, fd, oldest)

    def write(self, path: str, data: bytes, position: int) -> None:
        """Write into a file. Raises :class:`StorageError`."""
        self._dirty.add(path)
        with storage_errors(path, "can't be written"):
            pwrite_all(self._fs, self.get(path), data, position)

    def read(self, path: str, length: int, position: int) -> bytes:
        """Read from a file. Raises :class:`StorageError`."""
        with storage_errors(path, "can't be read"):
            return pread_all(self._fs, self.get(path), length, position)

    def remove(self, path: str) -> None:
        """Delete a file (a read-only store only forgets it). Raises :class:`StorageError`."""
        fd = self._open.pop(path, None)
        if fd is not None:
            close_quietly(self._fs, fd, path)
        if not self._writable:
            return
        self._dirty.discard(path)
        self._directories.add(os.path.dirname(path))
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            _log.debug("%s: was gone already", path)
        except OSError as error:
            raise StorageError(path, "can't be removed", error) from error

    def mark_dirty(self, path: str) -> None:
        """Count a file and its directory as not synced."""
        self._dirty.add(path)
        self._directories.add(os.path.dirname(path))

    def dirty(self) -> tuple[list[str], list[str]]:
        """Files and directories that were not synced."""
        return sorted(self._dirty), sorted(self._directories)

    def take_dirty(self) -> tuple[list[str], list[str]]:
        """Files and directories that were not synced; from now on they count as synced."""
        taken = self.dirty()
        self._dirty.clear()
        self._directories.clear()
        return taken

    def check(self, path: str, size: int) -> None:
        """Raise :class:`DamageError` where another program has taken a file away. Raises
        :class:`StorageError`."""
        if self._watch is not None:
            self._watch.check(path, size, self._open.get(path, -1))

    def close(self) -> None:
        """Close all descriptors."""
        while self._open:
            path, fd = self._open.popitem()
            close_quietly(self._fs, fd, path)


class ConsumeQueue:
    """One queue of one topic. Positions are in bytes of its address space, 20 for each unit.

    ``wrote`` is the position after the last unit, ``max_physical`` the end of the record that the
    last unit points to (-1 if none), ``min_logic`` the position of the first unit that points
    into the CommitLog as it is.
    """

    __slots__ = (
        "_files",
        "_path",
        "directory",
        "file_size",
        "max_physical",
        "min_logic",
        "queue_id",
        "starts",
        "topic",
        "wrote",
    )

    def __init__(
        self, files: Descriptors, root: str, topic: str, queue_id: int, file_size: int
    ) -> None:
        self._files = files
        self.topic: str = topic
        self.queue_id: int = queue_id
        self.directory: str = os.path.join(root, topic, str(queue_id))
        self.file_size: int = file_size
        self.starts: list[int] = []
        self.wrote: int = 0
        self.max_physical: int = -1
        self.min_logic: int = 0
        self._path = (-1, "")

    def load(self, starts: list[int]) -> None:
        """Take over existing files, which count as full."""
        self.starts = sorted(starts)
        self.wrote = self.starts[-1] + self.file_size if self.starts else 0

    @property
    def min_offset(self) -> int:
        """Number of the first unit."""
        return self.min_logic // UNIT_SIZE

    @property
    def max_offset(self) -> int:
        """Number after the last unit."""
        return self.wrote // UNIT_SIZE

    def path(self, start: int) -> str:
        """Path of the file that starts at a position."""
        kept, path = self._path
        if kept != start:
            path = os.path.join(self.directory, file_name(start))
            self._path = (start, path)
        return path

    # Reading

    def read(self, unit: int, count: int) -> bytes:
        """Up to ``count`` units from number ``unit`` on, within its file; empty if it has none.

        Whole ones: a file that was cut may end in a part of one.
        """
        if not 0 <= unit < self.max_offset or count <= 0 or not self.starts:
            return b""
        position = unit * UNIT_SIZE
        start = position - position % self.file_size
        end = min(self.wrote, start + self.file_size)
        if count < (end - position) // UNIT_SIZE:
            end = position + count * UNIT_SIZE
        if start < self.starts[0]:
            return b""
        data = self._files.read(self.path(start), end - position, position - start)
        return data[: len(data) - len(data) % UNIT_SIZE]

    def place(self, unit: int) -> tuple[int, int]:
        """Where the message of a unit is in the log, and its size. Raises
        :class:`DamageError` when it is gone from its file, :class:`StorageError`."""
        data = self.read(unit, 1)
        if not data:
            at = unit * UNIT_SIZE % self.file_size
            path = self.path(unit * UNIT_SIZE - at)
            raise DamageError(path, at, f"unit {unit} is gone: the file was cut")
        place, size, _ = UNIT.unpack(data)
        return place, size

    def units(self, first: int, last: int) -> Units:
        """The units from number ``first`` up to before ``last``, over all files."""
        parts: list[bytes] = []
        while first < last:
            part = self.read(first, last - first)
            if not part:
                break
            parts.append(part)
            first += len(part) // UNIT_SIZE
        return parse_units(b"".join(parts))

    def file_units(self, start: int) -> Units:
        """All units of one file, also those after the end."""
        data = self._files.read(self.path(start), self.file_size, 0)
        return parse_units(data)

    def next_file_unit(self, unit: int) -> int:
        """Number of the first unit of the next file."""
        position = unit * UNIT_SIZE
        return (position - position % self.file_size + self.file_size) // UNIT_SIZE

    # Writing

    def put(
        self, queue_offsets: Int64Array, offsets: Int64Array, sizes: Int64Array, codes: Int64Array
    ) -> None:
        """Add units in log order, as the real store does: units that were put before are skipped,
        and units below the end; a gap is closed up. Raises :class:`StorageError`."""
        skip = int(np.searchsorted(offsets + sizes, self.max_physical, side="right"))
        if skip:
            queue_offsets, offsets = queue_offsets[skip:], offsets[skip:]
            sizes, codes = sizes[skip:], codes[skip:]
        count = len(offsets)
        if count == 0:
            return
        first = int(queue_offsets[0])
        if not self.starts and 0 < first <= MAX_UNIT:
            self.begin(first * UNIT_SIZE)
        consecutive = count == 1 or bool((np.diff(queue_offsets) == 1).all())
        if not (consecutive and first * UNIT_SIZE == self.wrote):
            keep = self._placeable(queue_offsets)
            offsets, sizes, codes = offsets[keep], sizes[keep], codes[keep]
            count = len(offsets)
            if count == 0:
                return
        self._append(build_units(offsets, sizes, codes, count))
        self.max_physical = int(offsets[-1] + sizes[-1])

    def put_run(self, first: int, offset: int, end: int, data: bytes) -> None:
        """Add units of consecutive ordinals from ``first`` on, in log order: :meth:`put`.
        ``offset``: where the first one's record begins, ``end``: where the last one's ends."""
        if first == self.max_offset and self.starts and offset >= self.max_physical:
            self._append(data)
            self.max_physical = end
            return
        units = parse_units(data)
        self.put(
            np.arange(first, first + len(units), dtype=np.int64),
            units["offset"].astype(np.int64),
            units["size"].astype(np.int64),
            units["tags_code"].astype(np.int64),
        )

    def _placeable(self, queue_offsets: Int64Array) -> list[int]:
        keep: list[int] = []
        position = self.wrote
        for number, queue_offset in enumerate(queue_offsets.tolist()):
            if queue_offset and queue_offset * UNIT_SIZE < position:
                continue
            keep.append(number)
            position += UNIT_SIZE
        dropped = len(queue_offsets) - len(keep)
        _log.warning(
            "%s: %d units out of order, %d of them left out",
            self.directory,
            len(queue_offsets),
            dropped,
        )
        return keep

    def begin(self, position: int) -> None:
        """Start a queue in the middle of its address space. Raises :class:`StorageError`; the
        queue is then as empty as before."""
        start = position - position % self.file_size
        try:
            self._create(start)
            self.wrote = start
            if position > start:
                self._append(PRE_BLANK * ((position - start) // UNIT_SIZE))
        except StorageError:
            self.starts.clear()
            self.wrote = 0
            raise
        self.min_logic = position

    def _create(self, start: int) -> None:
        self._files.create(self.path(start), self.file_size)
        self.starts.append(start)

    def _append(self, data: bytes) -> None:
        done = 0
        position = self.wrote
        while done < len(data):
            start = position - position % self.file_size
            if not self.starts or start > self.starts[-1]:
                self._create(start)
            part = data[done : done + start + self.file_size - position]
            self._files.write(self.path(start), part, position - start)
            position += len(part)
            done += len(part)
        # Only now: units that met a full disk in the middle are written again, all of them.
        self.wrote = position

    # Recovery and deletion

    def recover(self) -> None:
        """Find the end as the real store does: the first unwritten unit of the last 3 files."""
        self.max_physical = -1
        if not self.starts:
            return
        recent = self.starts[-_RECOVER_FILES:]
        end = recent[0]
        for start in recent:
            units = self.file_units(start)
            valid = count_valid(units)
            if valid:
                last = units[valid - 1]
                self.max_physical = int(last["offset"]) + int(last["size"])
            end = start + valid * UNIT_SIZE
            if valid < len(units):
                break
        self._cut(end)

    def _cut(self, end: int) -> None:
        while self.starts and self.starts[-1] > end:
            self._remove_last()
        self.wrote = end

    def _remove_last(self) -> None:
        start = self.starts.pop()
        self._files.remove(self.path(start))
        self.wrote = start if self.starts else 0

    def truncate_physical(self, physical: int) -> None:
        """Drop the units that point at or past ``physical``, as the real store does."""
        self.max_physical = physical
        while self.starts:
            units = self.file_units(self.starts[-1])
            if int(units["offset"][0]) >= physical:
                self._remove_last()
                continue
            bad = (units["offset"] < 0) | (units["size"] <= 0) | (units["offset"] >= physical)
            # The first unit of a file is taken whatever its size says (as the real one does).
            bad[0] = False
            kept = int(bad.argmax()) if bad.any() else len(units)
            last = units[kept - 1]
            self.max_physical = int(last["offset"]) + int(last["size"])
            self.wrote = self.starts[-1] + kept * UNIT_SIZE
            return

    def overwrite(self, unit: int, data: bytes) -> None:
        """Replace units from number ``unit`` on (within the written units or at their end)."""
        position = unit * UNIT_SIZE
        kept_end = self.wrote
        self.wrote = position
        self._append(data)
        self.wrote = max(self.wrote, kept_end)

    def cut(self, end: int) -> bool:
        """End the queue at a position and zero what follows. Return whether there was anything."""
        changed = False
        while self.starts and self.starts[-1] >= max(end, 1):
            self._remove_last()
            changed = True
        self.wrote = end if self.starts else 0
        if self.starts:
            start = self.starts[-1]
            rest = self._files.read(self.path(start), self.file_size, end - start)
            if rest.strip(b"\0"):
                self._files.write(self.path(start), bytes(len(rest)), end - start)
                changed = True
        return changed

    def destroy(self) -> None:
        """Delete all files."""
        while self.starts:
            self._remove_last()
        self.wrote = 0
        self.max_physical = -1
        self.min_logic = 0

    def delete_expired(self, physical: int) -> int:
        """Delete leading files whose last unit points below ``physical``, never the last file;
        gives their number."""
        removed = 0
        while len(self.starts) > 1:
            start = self.starts[0]
            unit = parse_units(
                self._files.read(self.path(start), UNIT_SIZE, self.file_size - UNIT_SIZE)
            )
            if int(unit["offset"][0]) >= physical:
                break
            self._files.remove(self.path(start))
            del self.starts[0]
            removed += 1
        return removed

    def correct_min(self, physical: int) -> None:
        """Set ``min_logic`` to the first unit of the first file that points at or past
        ``physical``; it stays when there is none."""
        if not self.starts:
            return
        start = self.starts[0]
        written = min(self.wrote - start, self.file_size)
        units = parse_units(self._files.read(self.path(start), max(written, 0), 0))
        reached = units["offset"] >= physical
        if reached.any():
            self.min_logic = start + int(reached.argmax()) * UNIT_SIZE


class UnitRun:
    """Units for one queue, which are written together as long as their ordinals follow each
    other."""

    __slots__ = ("_end", "_first", "_next", "_offset", "_queue", "_units")

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        self._units = bytearray()
        self._first = self._next = self._offset = self._end = 0

    def add(self, ordinal: int, offset: int, size: int, code: int) -> None:
        """Take a unit in. Raises :class:`StorageError`."""
        if ordinal != self._next or not self._units:
            self.put()
            self._first, self._offset = ordinal, offset
        words.add_unit(self._units, offset, size, code)
        self._next = ordinal + 1
        self._end = offset + size

    def put(self) -> None:
        """Put all that was taken in into the queue. Raises :class:`StorageError`."""
        if self._units:
            units, self._units = bytes(self._units), bytearray()
            self._queue.put_run(self._first, self._offset, self._end, units)
