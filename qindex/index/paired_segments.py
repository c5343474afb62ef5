"""Segments as RabbitMQ's version 2 has them: slots in ``K.qi``, small messages in ``K.qs``
(:mod:`qindex.format.rabbitmq.queue_index_v2`, :mod:`qindex.format.rabbitmq.queue_store_v2`).

Messages are appended to ``K.qs``, and synced; then slots are written, and those zeroed in place
whose entries are acknowledged. So a slot never names a message that is not on disk. Until the
journal is emptied, which is durable before the first slot is written, it says the same: a slot
whose entry the journal publishes or acknowledges may be torn, and is not looked at by a recovery.
What a flush wants to be in ``K.qi`` does not depend on what an earlier try of it has left there.

Such a file keeps no note of what was delivered. Behind its slots, where no node looks, ours have a
bit for each entry; of a file without them all counts as delivered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from journal.arrays import I64
from journal.block_sums import extent, heal
from journal.files import (
    FileSystem,
    ReadBuffer,
    pread_all,
    pwrite_all,
    read_file,
    replace_file,
    unlink_if_there,
)
from journal.findings import Cause, Finding, Kind
from journal.format import ACTION_SIZE, PAYLOAD_SIZE, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT
from journal.poison import PASSING
from journal.replay import Ending, Walk
from qindex.format.message_record import gather_bytes
from qindex.format.rabbitmq import queue_index_v2 as index_format
from qindex.format.rabbitmq import queue_store_v2 as store_format
from qindex.format.rabbitmq.queue_index_v2 import HEADER_SIZE
from qindex.format.resynchronise import Elsewhere
from qindex.format.segment import PERSISTENT, PUBLISH, PUBLISH_HEAD_SIZE, STEP_SIZE, file_number
from qindex.index.appended_segments import APPENDED, append_sums, remove_sums, size_of
from qindex.index.pair_scan import HEAD, Depth, Pair, PinnedPair, scan_pair
from qindex.index.segment import ABSENT, ACKED, DELIVERED, PUBLISHED
from qindex.index.segment_form import Known, Places, SegmentForm, SegmentPlan
from qindex.index.segment_scan import SegmentScan, healed_findings, read_healed

_BATCH_BYTES = 4 << 20
_PIECE = 512
"""Bytes of ``K.qi`` that are written at once where one of them has changed."""


@dataclass(slots=True)
class _PairScan(SegmentScan):
    """``index``, ``store``: what the two files should hold; no ``store``: what it holds."""

    index: bytes = b""
    store: bytes | None = None


class _Paired(SegmentForm):
    version = 2
    default_entry_count = index_format.DEFAULT_ENTRY_COUNT
    rereads = False
    overwrites = True

    def file_name(self, number: int) -> str:
        return index_format.file_name(number)

    def file_number(self, name: str) -> int | None:
        number = file_number(name, index_format.SUFFIX)
        return file_number(name, store_format.SUFFIX) if number is None else number

    def size(self, fs: FileSystem, directory: str, number: int) -> int:
        return sum(size_of(fs, path) for path in _paths(directory, number))

    def place(self, rel: Places, offset: Places) -> Places:
        return HEADER_SIZE + index_format.ENTRY_SIZE * rel

    def scan(
        self,
        fs: FileSystem,
        directory: str,
        number: int,
        entry_count: int,
        *,
        elsewhere: Elsewhere | None = None,
        known: Known | None = None,
        power_lost: bool = False,
        at_rest: bool = False,
    ) -> SegmentScan:
        findings: list[Finding] = []
        index_path, store_path = _paths(directory, number)
        store_size = size_of(fs, store_path)
        try:
            index = _healed(read_file(fs, index_path), entry_count, index_path, findings)
        except FileNotFoundError:
            fs.stat(store_path)
            # All was acknowledged, or nothing is written yet.
            return _empty(number, entry_count, store_size)
        size = len(index)
        ignored = None if known is None else known.published | known.acked
        unfinished = power_lost or (ignored is not None and bool(ignored.any()))
        if not any(index) or (size < HEADER_SIZE and unfinished):
            return _empty(number, entry_count, size + store_size)  # just made, and not yet written
        stores: list[bytes | bytearray] = []

        def read_store() -> bytes | bytearray:
            healed = read_healed(fs, store_path, findings, power_lost=power_lost)
            store = bytes(healed.data)
            stores.append(store)
            return store

        ours = size == index_format.full_size(entry_count)
        pinned = PinnedPair(number, size, store_size or -1, bytes(index[:HEADER_SIZE]))
        pair = scan_pair(
            directory,
            pinned,
            index,
            read_store,
            entry_count,
            Depth.DECODE,
            clean=ours,
            ignored=ignored,
        )
        findings += _to_be_told(pair.findings, index_path, unfinished)
        if pair.count != entry_count:
            what = f"its segments have {pair.count} entries, those of the store {entry_count}"
            lost = "its messages are not to be had"
            findings.append(
                Finding(index_path, 0, HEADER_SIZE, Cause.DAMAGE, what, lost, Kind.CONFIG)
            )
            return _empty(number, entry_count, size + store_size, findings)
        delivered = index_format.delivered(index, entry_count)
        filed = np.zeros(entry_count, np.uint8)
        filed[pair.rows] = np.where(delivered[pair.rows], DELIVERED, PUBLISHED)
        data, entries = _image_of(pair)
        again = _none()
        if known is not None:
            again = np.flatnonzero(delivered & known.published & ours)
            # A flush has to zero these, or to do so again.
            there = index_format.all_slots(index, entry_count)["status"] != 0
            filed[known.acked & ~known.published & there] = DELIVERED
        scan = _PairScan(
            bytearray(filed.data),
            entries.seqs[entries.kinds == PUBLISH_TRANSIENT],
            size + store_size,
            data,
            findings,
            entries,
            entries,
            pair.rows,
            again + number * entry_count,
        )
        if findings:
            _put_right(scan, index, stores, number, entry_count)
        return scan

    def mended(self, directory: str, number: int, scan: SegmentScan) -> SegmentScan:
        assert isinstance(scan, _PairScan)
        size = len(scan.index) + (scan.size if scan.store is None else len(scan.store))
        scan.findings = []
        scan.size = size
        return scan

    def mend(self, fs: FileSystem, directory: str, number: int, mended: SegmentScan) -> None:
        assert isinstance(mended, _PairScan)
        index_path, store_path = _paths(directory, number)
        if mended.store is not None:
            remove_sums(fs, store_path)
            replace_file(fs, store_path, mended.store)
            append_sums(fs, store_path, [extent(mended.store, 0)])
        replace_file(fs, index_path, mended.index)

    def append(self, fs: FileSystem, directory: str, journal: ReadBuffer, plan: SegmentPlan) -> int:
        return _Append(fs, directory, journal, plan).run()

    def stamp(self, fs: FileSystem, directory: str, number: int) -> int:
        # Whole seconds: archives keep no more, and a node takes longer to start.
        return fs.stat(_paths(directory, number)[0]).st_mtime_ns // 1_000_000_000

    def forget_deliveries(self, fs: FileSystem, directory: str, number: int, count: int) -> None:
        path = _paths(directory, number)[0]
        try:
            fd = fs.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if fs.fstat(fd).st_size != index_format.full_size(count):
                return  # one of a node's, where all count as delivered
            # Without checksums: what somebody else has written is as it should be.
            bits = np.packbits(np.ones(count, np.bool_)).tobytes()
            start = HEADER_SIZE + index_format.ENTRY_SIZE * count
            rest = index_format.full_size(count) - start
            pwrite_all(fs, fd, bits.ljust(rest, b"\0"), start)
            fs.fdatasync(fd)
        finally:
            fs.close(fd)

    def delete(self, fs: FileSystem, directory: str, number: int) -> bool:
        index_path, store_path = _paths(directory, number)
        gone = unlink_if_there(fs, index_path)
        remove_sums(fs, store_path, durably=False)
        return unlink_if_there(fs, store_path) or gone


PAIRED: SegmentForm = _Paired()
"""The form of stores that a RabbitMQ node of 4.0 to 4.3 starts from."""


def form_of(version: int) -> SegmentForm:
    """Give the form of a store's segments; ``version``: as its marker has it."""
    return PAIRED if version == PAIRED.version else APPENDED


def _none() -> I64:
    return np.empty(0, np.int64)


def _paths(directory: str, number: int) -> tuple[str, str]:
    return (
        os.path.join(directory, index_format.file_name(number)),
        os.path.join(directory, store_format.file_name(number)),
    )


# -- read -----------------------------------------------------------------------------------------


def _healed(data: bytes, entry_count: int, path: str, findings: list[Finding]) -> bytes | bytearray:
    """Put single flipped bits of ``K.qi`` right; each place is added to ``findings``. A block that
    does not have its checksum tells nothing: a flush was cut short there, or a node has changed
    it."""
    at = index_format.sums_at(entry_count)
    if len(data) != index_format.full_size(entry_count):
        return data
    healed = heal(data[:at], data[at:])
    found = healed_findings(path, healed)
    findings += [one for one in found if one.kind is not Kind.CHECKSUM]
    return bytes(healed.data) + data[at:]


def _empty(
    number: int, entry_count: int, size: int, findings: list[Finding] | None = None
) -> _PairScan:
    nothing = Walk(np.empty(0, np.uint8), _none(), _none(), _none(), 0, Ending.END)
    index = index_format.pack_index(number, entry_count)
    return _PairScan(
        bytearray(entry_count),
        _none(),
        size,
        b"",
        findings or [],
        nothing,
        nothing,
        _none(),
        _none(),
        index,
    )


def _to_be_told(findings: list[Finding], path: str, unfinished: bool) -> Iterator[Finding]:
    """Give the findings but for the head of a new file of which not all was written."""
    for finding in findings:
        if not (unfinished and finding.path == path and not finding.offset):
            yield finding


def _image_of(pair: Pair) -> tuple[bytes, Walk]:
    """Give the entries of a segment as a segment of version 1 would have them, and where they are
    there."""
    embedded = pair.heads["embedded"].astype(np.int64)
    lengths = embedded + PUBLISH_HEAD_SIZE
    ends = np.cumsum(lengths)
    offsets = ends - lengths
    heads = np.empty((len(lengths), PUBLISH_HEAD_SIZE), np.uint8)
    words = PUBLISH | np.where(pair.kinds == PUBLISH_PERSISTENT, PERSISTENT, 0) | pair.rows
    heads[:, :STEP_SIZE] = words.astype(">u2").view(np.uint8).reshape(-1, STEP_SIZE)
    heads[:, STEP_SIZE:] = np.ascontiguousarray(pair.heads).view(np.uint8).reshape(-1, PAYLOAD_SIZE)
    packed, view = heads.tobytes(), memoryview(pair.store)
    parts: list[bytes | memoryview] = []
    columns = zip(pair.starts.tolist(), embedded.tolist(), strict=True)
    for at, (start, length) in enumerate(columns):
        parts.append(packed[at * PUBLISH_HEAD_SIZE : (at + 1) * PUBLISH_HEAD_SIZE])
        parts.append(view[start : start + length])
    data = b"".join(parts)
    return data, Walk(pair.kinds, pair.seqs, offsets, lengths, len(data), Ending.END)


def _put_right(
    scan: _PairScan,
    index: bytes | bytearray,
    stores: list[bytes | bytearray],
    number: int,
    entry_count: int,
) -> None:
    """Note what the files should hold: the entries that were given, and no others."""
    filed = np.frombuffer(scan.filed, np.uint8)
    slots = index_format.all_slots(index, entry_count)
    slots[filed == ABSENT] = np.zeros((), slots.dtype)
    scan.index = index_format.pack_index(number, entry_count, slots, filed == DELIVERED)
    if stores:
        scan.store = store_format.pack_header(number, entry_count) + bytes(stores[0][HEADER_SIZE:])


# -- write ----------------------------------------------------------------------------------------


class _Append:
    """A flush of one segment."""

    def __init__(
        self, fs: FileSystem, directory: str, journal: ReadBuffer, plan: SegmentPlan
    ) -> None:
        self._fs = fs
        self._journal = journal
        self._plan = plan
        self._index_path, self._store_path = _paths(directory, plan.number)
        self._count = len(plan.states)
        self._states = np.frombuffer(plan.states, np.uint8)
        self._filed = np.frombuffer(plan.filed, np.uint8)

    def run(self) -> int:
        plan = self._plan
        rels = np.flatnonzero(plan.fresh())
        slots, written, size = self._messages(rels)
        written += self._index(rels, slots)
        plan.file_size = index_format.full_size(self._count) + size
        # Where they stand in what a scan gives is found out when they are read.
        plan.rewritten = True
        return written

    # -- K.qs

    def _messages(self, rels: I64) -> tuple[npt.NDArray[np.void], int, int]:
        """Append messages, durably; gives slots for the entries ``rels``, the bytes written, and
        the size of the file then."""
        plan, fs = self._plan, self._fs
        offsets = plan.offsets_in_journal(rels)
        payloads = offsets + ACTION_SIZE
        packed = np.ascontiguousarray(gather_bytes(self._journal, payloads, PAYLOAD_SIZE))
        heads: npt.NDArray[np.void] = packed.view(HEAD).ravel()
        kinds = np.frombuffer(self._journal, np.uint8)[offsets] >> 6 if len(rels) else rels
        lengths = heads["embedded"].astype(np.int64)
        rows = np.flatnonzero(lengths)
        where = packed[:, : index_format.WHERE_SIZE].copy()
        written = 0
        fd = fs.open(self._store_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            size = fs.fstat(fd).st_size
            plan.created |= not size
            header = store_format.pack_header(plan.number, self._count)
            if pread_all(fs, fd, HEADER_SIZE, 0) != header:
                # Just made, or what a loss of power has left of that.
                remove_sums(fs, self._store_path)
                pwrite_all(fs, fd, header, 0)
                written += HEADER_SIZE
                if size < HEADER_SIZE:
                    size = HEADER_SIZE
                    append_sums(fs, self._store_path, [extent(header, 0)])
            if len(rows):
                framed = lengths[rows] + store_format.ENTRY_HEAD.size
                places = size + np.cumsum(framed) - framed
                where[rows] = index_format.pack_places(places, lengths[rows])
                starts = payloads[rows] + PAYLOAD_SIZE
                self._put(fd, size, starts, lengths[rows])
                written += int(framed.sum())
                size += int(framed.sum())
            if written:
                fs.fdatasync(fd)
        finally:
            fs.close(fd)
        locations = np.where(lengths, index_format.IN_QUEUE_STORE, index_format.IN_SHARED_STORE)
        slots = index_format.pack_slots(
            kinds != PUBLISH_TRANSIENT,
            locations.astype(np.uint8),
            where,
            heads["size"].astype(np.int64),
            heads["expiry"].astype(np.uint64),
        )
        return slots, written, size

    def _put(self, fd: int, size: int, starts: I64, lengths: I64) -> None:
        """Append records with their heads, from ``size`` on."""
        fs, view, at = self._fs, memoryview(self._journal), size
        sums: list[bytes] = []
        parts: list[bytes | memoryview] = []
        held = 0
        try:
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                record = view[start : start + length]
                parts += (store_format.pack_entry_head(record), record)
                held += store_format.ENTRY_HEAD.size + length
                if held >= _BATCH_BYTES:
                    at = self._put_batch(fd, at, parts, sums)
                    parts, held = [], 0
            self._put_batch(fd, at, parts, sums)
        except OSError as error:
            if error.errno in PASSING:
                # The part that was written may have taken the last of the disk.
                with suppress(OSError):
                    fs.truncate(fd, size)
            raise
        append_sums(fs, self._store_path, sums)

    def _put_batch(
        self, fd: int, at: int, parts: list[bytes | memoryview], sums: list[bytes]
    ) -> int:
        if not parts:
            return at
        data = b"".join(parts)
        pwrite_all(self._fs, fd, data, at)
        sums.append(extent(data, at))
        return at + len(data)

    # -- K.qi

    def _index(self, rels: I64, fresh: npt.NDArray[np.void]) -> int:
        """Write what has changed of ``K.qi``, durably; gives the bytes."""
        fs, plan, count = self._fs, self._plan, self._count
        fd = fs.open(self._index_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            size = fs.fstat(fd).st_size
            plan.created |= not size
            full = index_format.full_size(count)
            there = pread_all(fs, fd, full, 0)
            sound = _healed(there, count, self._index_path, [])
            slots = index_format.all_slots(sound, count)
            gone = (self._filed == ABSENT) | (self._states == ACKED) | (self._states == ABSENT)
            slots[gone] = np.zeros((), slots.dtype)
            slots[rels] = fresh
            wanted = index_format.pack_index(plan.number, count, slots, self._states == DELIVERED)
            if size != full:
                fs.truncate(fd, full)
            written = 0
            for start, end in _changes(there.ljust(full, b"\0"), wanted):
                pwrite_all(fs, fd, wanted[start:end], start)
                written += end - start
            fs.fdatasync(fd)
        finally:
            fs.close(fd)
        return written


def _changes(old: bytes, new: bytes) -> Iterator[tuple[int, int]]:
    """Give where ``new`` differs from ``old``, which is as long, in whole pieces."""
    pieces = -(-len(new) // _PIECE)
    rows = np.zeros((2, pieces * _PIECE), np.uint8)
    rows[0, : len(old)] = np.frombuffer(old, np.uint8)
    rows[1, : len(new)] = np.frombuffer(new, np.uint8)
    differ = (rows[0] != rows[1]).reshape(pieces, _PIECE).any(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], differ, [False])).astype(np.int8)))
    for start, end in edges.reshape(-1, 2).tolist():
        yield start * _PIECE, min(end * _PIECE, len(new))
