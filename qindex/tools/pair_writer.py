"""Write the directory of a queue of version 2, from entries that were found sound: ``K.qi`` and
``K.qs``, as a RabbitMQ node of 3.10 to 4.3 reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from journal.format import PAYLOAD_SIZE
from journal.fs.files import FileSystem, make_dirs, opened, pread_all, pwrite_all
from journal.memory.arrays import I64, U8
from qindex.format.message_record import gather_bytes
from qindex.format.rabbitmq import queue_index_v2 as index_format
from qindex.format.rabbitmq import queue_store_v2 as store_format
from qindex.index.segment import segment_numbers
from qindex.recovery.columns import Entries, take_rows
from qindex.tools.queue_writer import write_name


class PairWriter:
    """Writes one queue directory. All calls raise :class:`OSError`; nothing is durable before the
    caller syncs it."""

    def __init__(
        self, fs: FileSystem, directory: str, entry_count: int, name: bytes | None
    ) -> None:
        self._fs = fs
        self.directory = directory
        self._entry_count = entry_count
        make_dirs(fs, directory)
        if name is not None:
            write_name(fs, directory, name)

    def add(self, batch: Entries, seqs: I64, sizes: I64) -> None:
        """Add entries under these seq_ids, ascending, with these body sizes. Their records are
        RabbitMQ's. Which of them come again as redelivered a node keeps elsewhere."""
        numbers = seqs // self._entry_count
        for number in segment_numbers(seqs, self._entry_count):
            mine = numbers == number
            self._segment(number, take_rows(batch, mine), seqs[mine], sizes[mine])

    def _segment(self, number: int, batch: Entries, seqs: I64, sizes: I64) -> None:
        where = batch.ids.copy()
        embedded = np.flatnonzero(batch.embedded)
        if len(embedded):
            where[embedded] = self._append(number, batch, embedded)
        locations = np.full(len(seqs), index_format.IN_SHARED_STORE, np.uint8)
        locations[embedded] = index_format.IN_QUEUE_STORE
        slots = index_format.pack_slots(batch.persistent, locations, where, sizes, batch.expiry)
        first, last = int(seqs[0]), int(seqs[-1])
        at = index_format.ENTRY_SIZE * (first - number * self._entry_count)
        at += index_format.HEADER_SIZE
        header = index_format.pack_header(number, self._entry_count)
        path = os.path.join(self.directory, index_format.file_name(number))
        with opened(self._fs, path, os.O_RDWR | os.O_CREAT) as fd:
            size = index_format.ENTRY_SIZE * (last - first + 1)
            # A journal's entries of a segment may lie between the entries of its file.
            there = pread_all(self._fs, fd, size, at)
            run = np.frombuffer(bytearray(there.ljust(size, b"\0")), index_format.SLOTS)
            run[seqs - first] = slots
            pwrite_all(self._fs, fd, header, 0)
            pwrite_all(self._fs, fd, run.tobytes(), at)

    def _append(self, number: int, batch: Entries, rows: I64) -> U8:
        """Append records to the segment's store; return their places as slots have them."""
        path = os.path.join(self.directory, store_format.file_name(number))
        with opened(self._fs, path, os.O_WRONLY | os.O_CREAT) as fd:
            end = self._fs.fstat(fd).st_size
            parts: list[bytes | memoryview] = []
            if not end:
                parts.append(store_format.pack_header(number, self._entry_count))
            lengths = batch.embedded[rows]
            parts += _framed(batch, batch.payloads[rows] + PAYLOAD_SIZE, lengths)
            pwrite_all(self._fs, fd, b"".join(parts), end)
        framed = lengths + store_format.ENTRY_HEAD.size
        offsets = max(end, store_format.HEADER_SIZE) + np.cumsum(framed) - framed
        return index_format.pack_places(offsets, lengths)


def _framed(batch: Entries, starts: I64, lengths: I64) -> Iterator[bytes | memoryview]:
    """Yield records with their heads. What comes from such a store with a head that fits is given
    as it is, as far as one follows the other: its checksum held when it was read."""
    head = store_format.ENTRY_HEAD.size
    view = memoryview(batch.data)
    ready = np.zeros(len(starts), np.bool_)
    if batch.version2:
        packed = np.ascontiguousarray(gather_bytes(batch.data, starts - head, head))
        heads: npt.NDArray[np.void] = packed.view(store_format.HEADS).ravel()
        ready = (heads["size"] == lengths) & (heads["flags"] == store_format.HAS_CHECKSUM)
        ready &= heads["zero"] == 0
    ends = starts + lengths
    goes_on = ready[1:] & ready[:-1] & (starts[1:] - head == ends[:-1])
    firsts = np.flatnonzero(np.append(True, ~goes_on))
    lasts = np.append(firsts[1:] - 1, len(starts) - 1)
    spans = zip(starts[firsts].tolist(), ends[lasts].tolist(), ready[firsts].tolist(), strict=True)
    for start, end, is_ready in spans:
        if is_ready:
            yield view[start - head : end]
        else:
            yield store_format.pack_entry_head(view[start:end])
            yield view[start:end]
