"""Write the directory of a queue anew, from entries that were found sound: segment files alone,
and for a node, which always has one, an empty journal.

Publish records of a batch come first, then the deliver records of those that come again: both our
engine and a RabbitMQ node read that.
"""

from __future__ import annotations

import os

import numpy as np

from journal import format as journal_format
from journal.block_sums import extent
from journal.format import PAYLOAD_SIZE
from journal.fs.files import FileSystem, create, created, make_dirs, opened, write_all
from journal.memory.arrays import I64
from qindex.format import layout
from qindex.format.segment import (
    NEXT_STEP,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD_SIZE,
    STEP_SIZE,
    file_name,
)
from qindex.index.segment import segment_numbers
from qindex.index.segment_file import append_sums
from qindex.recovery.columns import Entries, pack_heads, take_rows


class QueueWriter:
    """Writes one queue directory. ``sums``: with the checksum files of our stores, else for a node.

    All calls raise :class:`OSError`; nothing is durable before the caller syncs it.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        entry_count: int,
        name: bytes | None,
        *,
        sums: bool,
    ) -> None:
        self._fs = fs
        self.directory = directory
        self._entry_count = entry_count
        self._sums = sums
        make_dirs(fs, directory)
        if name is not None:
            write_name(fs, directory, name)
        if not sums:
            fs.close(create(fs, os.path.join(directory, journal_format.FILE_NAME)))

    def add(self, batch: Entries, seqs: I64, sizes: I64) -> None:
        """Append entries under these seq_ids, ascending, with these body sizes. The seq_ids may
        only differ from the batch's where no embedded record is ours: its checksum covers it."""
        numbers = seqs // self._entry_count
        for number in segment_numbers(seqs, self._entry_count):
            mine = numbers == number
            part = take_rows(batch, mine)
            rels = seqs[mine] - number * self._entry_count
            self._append(number, _records(part, rels, sizes[mine]))

    def _append(self, number: int, data: bytes) -> None:
        fs = self._fs
        path = os.path.join(self.directory, file_name(number))
        with opened(fs, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd:
            start = fs.fstat(fd).st_size
            write_all(fs, fd, data)
        if self._sums:
            append_sums(fs, path, [extent(data, start)])


def write_name(fs: FileSystem, directory: str, name: bytes) -> None:
    """Write a queue's name file. Raises :class:`OSError`."""
    path = os.path.join(directory, layout.QUEUE_NAME)
    with created(fs, path) as fd:
        write_all(fs, fd, name)


def _records(batch: Entries, rels: I64, sizes: I64) -> bytes:
    count = len(rels)
    heads = np.empty((count, PUBLISH_HEAD_SIZE), np.uint8)
    words = PUBLISH | np.where(batch.persistent, PERSISTENT, 0) | rels
    heads[:, :STEP_SIZE] = words.astype(">u2").view(np.uint8).reshape(count, STEP_SIZE)
    fixed = pack_heads(batch.ids, batch.expiry, sizes, batch.embedded)
    heads[:, STEP_SIZE:] = fixed.view(np.uint8).reshape(count, -1)
    view = memoryview(batch.data)
    packed = heads.tobytes()
    starts = (batch.payloads + PAYLOAD_SIZE).tolist()
    parts: list[bytes | memoryview] = []
    for at, (start, length) in enumerate(zip(starts, batch.embedded.tolist(), strict=True)):
        parts.append(packed[at * PUBLISH_HEAD_SIZE : (at + 1) * PUBLISH_HEAD_SIZE])
        parts.append(view[start : start + length])
    steps = (rels[batch.delivered] | NEXT_STEP).astype(">u2").tobytes()
    return b"".join((*parts, steps))
