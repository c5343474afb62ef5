"""The IndexFiles of a store: which file takes the next key, and which files a query reads.

A file is named by the local time of its creation; names sort by age. When the last file is full
the next message begins a new one, with or without a key (a quirk of the real one). So does the next
key after the clock went back: an entry can't be earlier than its file's first one.
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from journal.errors import storage_errors
from journal.fs.files import FileSystem, make_dirs, unlink_if_there
from rocketstore.format.commitlog_format import ROLLBACK
from rocketstore.format.index_format import index_name
from rocketstore.index.index_file import IndexFile, Numbers
from rocketstore.log.dispatch import DispatchBatch
from rocketstore.log.watch import Watch

BATCH_MAX = 64
"""Most messages that one query of the real store gives (``maxMsgsNumBatch``)."""

_OPEN_MAX = 32
"""Files that are open at a time, and mapped, if to write, where a process may have few
descriptors: a store may have thousands."""
_SHARE = 16
"""One file for this many of the descriptors that a process may have; it takes two."""
_OPEN_ANYWAY = 512
"""More are not open, however many descriptors there may be."""


def _most_open() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(_OPEN_MAX, min(most // _SHARE if most > 0 else 0, _OPEN_ANYWAY))


class IndexService:
    """All index files, oldest first. Its owner holds a lock."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        slots: int,
        entries: int,
        *,
        writable: bool,
        clock: Callable[[], int],
        watch: Watch | None = None,
    ) -> None:
        self._fs = fs
        self._watch = watch
        self.directory = directory
        self.slots = slots
        self.entries = entries
        self._writable = writable
        self._clock = clock
        self.files: list[IndexFile] = []
        self.names_changed: bool = False
        self.interrupted: bool = False
        self._open: list[IndexFile] = []
        self._open_most = _most_open()

    def load(self, names: list[str]) -> None:
        """Take over existing files, by name. Raises :class:`StorageError`."""
        for name in sorted(names, key=int):
            file = self._file(name)
            file.load()
            self.files.append(file)

    def _file(self, name: str) -> IndexFile:
        path = os.path.join(self.directory, name)
        file = IndexFile(
            self._fs, path, self.slots, self.entries, writable=self._writable, watch=self._watch
        )
        file.on_open = self._make_room
        return file

    def _make_room(self, file: IndexFile) -> None:
        """Close the file that was opened last if too many are open. A query reads all files in the
        same order, so the files that were opened first are still open at the next query.

        Nothing is lost: bytes stored into a map are the file's, and the file is synced by name."""
        self._open = [one for one in self._open if one.fd >= 0 and one is not file]
        newest = self.files[-1] if self.files else None
        while self._open and len(self._open) >= self._open_most:
            last = self._open.pop()
            if last is newest and self._open:
                last, self._open[-1] = self._open[-1], last
            last.close()
        self._open.append(file)

    @property
    def end_offset(self) -> int:
        """Offset of the newest message that is indexed; 0 if there is none."""
        return self.files[-1].header.end_offset if self.files else 0

    @property
    def end_timestamp(self) -> int:
        """Store timestamp of the newest message that is indexed; 0 if there is none."""
        return self.files[-1].header.end_timestamp if self.files else 0

    # Writing

    def put(self, batch: DispatchBatch) -> None:
        """Index messages, in log order. Raises :class:`StorageError`; the call that comes next
        leaves out what this one has indexed."""
        if not len(batch):
            return
        hashes, messages = batch.key_hashes, batch.key_messages
        wanted = batch.transactions[messages] != ROLLBACK
        if not wanted.all():
            hashes, messages = hashes[wanted], messages[wanted]
        offsets, times = batch.offsets[messages], batch.store_times[messages]
        self.put_runs(hashes.astype(np.int64), offsets, times, int(batch.offsets[-1]))

    def put_runs(self, hashes: Numbers, offsets: Numbers, times: Numbers, last: int) -> None:
        """:meth:`put_keys` of keys whose times need not ascend."""
        back = (np.flatnonzero(np.diff(times) < 0) + 1).tolist()
        for start, end in pairwise([0, *back, len(times)]):
            if (
                start < end
                and times[start] < self.end_timestamp
                and self.files[-1].header.count > 1
            ):
                self._rotate()
            final = last if end == len(times) else int(offsets[end - 1])
            self.put_keys(hashes[start:end], offsets[start:end], times[start:end], final)

    def put_keys(self, hashes: Numbers, offsets: Numbers, times: Numbers, last: int) -> None:
        """Index keys, in log order: the hash of each, and the offset and store timestamp of its
        message. The times ascend. ``last``: the offset of the last message, which need not have a
        key. Raises as :meth:`put`."""
        file = self.current()
        end = file.header.end_offset
        at = bisect_left(offsets, end)
        count = len(hashes)
        if self.interrupted and at < count and offsets[at] == end:
            at += self._entries_of(end)
        self.interrupted = True
        while at < count:
            at += file.put_many(hashes[at:], offsets[at:], times[at:])
            if at < count:
                file = self._rotate()
        if file.is_full and count and offsets[-1] < last:
            self._rotate()
        self.interrupted = False

    def _entries_of(self, offset: int) -> int:
        """Number of entries of the newest message, if it is the one at this offset."""
        found = 0
        for file in reversed(self.files):
            for number in range(file.header.count - 1, 0, -1):
                if file.entries_from(number, 1)["offset"][0] != offset:
                    return found
                found += 1
        return found

    def current(self) -> IndexFile:
        """The file that takes the next key, made if need be."""
        if self.files and not self.files[-1].is_full:
            return self.files[-1]
        return self._rotate()

    def _rotate(self) -> IndexFile:
        name = index_name(self._clock())
        if self.files and int(name) <= int(self.files[-1].name):
            # Two files within a millisecond, or a clock set back: names must be new and sort.
            name = str(int(self.files[-1].name) + 1)
        previous = self.files[-1].header if self.files else None
        path = os.path.join(self.directory, name)
        with storage_errors(self.directory, "can't be created"):
            make_dirs(self._fs, self.directory)
        file = IndexFile.create(self._fs, path, self.slots, self.entries, previous, self._watch)
        file.on_open = self._make_room
        self._make_room(file)
        self.files.append(file)
        self.names_changed = True
        return file

    def drop_from(self, number: int) -> None:
        """Delete the file with this number and all after it. Raises :class:`StorageError`."""
        while len(self.files) > number:
            self.drop_file(len(self.files) - 1)

    def delete_expired(self, min_offset: int) -> int:
        """Delete leading files that end before ``min_offset``, never the last; their number."""
        removed = 0
        while len(self.files) > 1 and self.files[0].header.end_offset < min_offset:
            self.drop_file(0)
            removed += 1
        return removed

    def drop_file(self, number: int) -> None:
        """Delete the file with this number. Raises :class:`StorageError`."""
        file = self.files[number]
        with storage_errors(file.path, "can't be removed"):
            unlink_if_there(self._fs, file.path)
        file.close()
        del self.files[number]
        self.names_changed = True

    # Reading

    def query_offsets(self, key_hash: int, max_num: int, begin: int, end: int) -> list[int]:
        """Return the offsets as the real ``queryOffset`` does: newest file first, in each newest
        entry first."""
        limit = min(max_num, BATCH_MAX)
        out: list[int] = []
        for file in reversed(self.files):
            header = file.header
            if header.matches(begin, end):
                file.select(out, key_hash, limit, begin, end)
            if header.begin_timestamp < begin or len(out) >= limit:
                break
        return out

    def dirty(self) -> list[IndexFile]:
        """Files with entries that were not synced."""
        return [file for file in self.files if file.dirty]

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
