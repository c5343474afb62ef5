"""The entries of a classic queue of version 2: ``K.qi`` says which there are, ``K.qs`` has the
small messages, and the store that all queues share has the others.

An entry counts as a node would take it at its next start. An entry may be too damaged for a node,
which stops there or drops the segment. Then its sound parts are returned, and the damage is a
finding. A message of ``K.qs`` is sound if its size equals the size in the index and its checksum
holds; if the node was set to write no checksums, its term has to decode.

After a kill, an entry may name a message that was never written, or is gone since: its
acknowledgement had not reached the index. A node drops it without a word; so does a reader here,
and only the check of a whole store mentions it.

Where ``K.qi`` is lost or cut, the messages of ``K.qs`` that no slot names are there all the same. A
salvage takes them in, after the others: some of them may have been acknowledged.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from journal.errors import StoreError
from journal.findings import Cause, Finding, Kind
from journal.format import PAYLOAD_SIZE, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT
from journal.fs.files import FileSystem, read_optional
from journal.memory.arrays import I64, U8, Bools
from qindex.format.message_record import gather_bytes
from qindex.format.rabbitmq import queue_index_v2 as index_format
from qindex.format.rabbitmq import queue_store_v2 as store_format
from qindex.format.rabbitmq.bridge import read_rabbitmq
from qindex.format.rabbitmq.container import states_more
from qindex.format.rabbitmq.queue_index_v2 import ENTRY_SIZE, HEADER_SIZE
from qindex.format.rabbitmq.usual_records import read_usual
from qindex.format.segment import file_number

HEAD = np.dtype([("id", "V16"), ("expiry", ">u8"), ("size", ">u4"), ("embedded", ">u4")])
"""The fixed fields of an entry of version 1."""
assert HEAD.itemsize == PAYLOAD_SIZE

_DROPPED = "the message is not delivered"
_LOST = "the message is lost"
ACKED_OR_LOST = "acknowledged just before the crash, or lost"
"""The consequence of an entry without a message, where a node was killed."""
_SHOWN = "the message is sound, and shown"
WRONG_SIZE = "figures are wrong", Kind.SIZE
ZERO_SIZE = "the entries after it may be lost", Kind.ZEROS
"""The consequence of a slot that is zero from its size on, and its kind."""
_TERM = b"\x83"


class Depth(enum.IntEnum):
    """The depth of a look at the messages of ``K.qs``."""

    COUNT = 0
    """Whether the file reaches so far."""
    READ = 1
    """And whether size and checksum hold."""
    DECODE = 2
    """And whether the record is one; returns message ids and the true sizes of bodies."""


@dataclass(frozen=True, slots=True)
class PinnedPair:
    """``K.qi`` and ``K.qs`` as they were: sizes in bytes, -1 where there is none; ``head``: the
    first bytes of ``K.qi``."""

    number: int
    size: int
    store_size: int
    head: bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of both."""
        return max(self.size, 0) + max(self.store_size, 0)


PinnedPairs = dict[int, PinnedPair]


def pin_pairs(fs: FileSystem, directory: str, names: list[str]) -> PinnedPairs:
    """Note the files of version 2 in a queue's directory; ``names``: all names in it. Raises
    :class:`OSError`."""
    found: PinnedPairs = {}
    sizes: dict[int, int] = {}
    for name in names:
        number = file_number(name, store_format.SUFFIX)
        if number is not None:
            sizes[number] = _size(fs, os.path.join(directory, name))
    for name in names:
        number = file_number(name, index_format.SUFFIX)
        if number is None:
            continue
        size, head = _head(fs, os.path.join(directory, name))
        if size >= 0:
            found[number] = PinnedPair(number, size, sizes.pop(number, -1), head)
    for number, size in sizes.items():
        found[number] = PinnedPair(number, -1, size, b"")
    return dict(sorted(found.items()))


def _size(fs: FileSystem, path: str) -> int:
    try:
        return fs.stat(path).st_size
    except FileNotFoundError:
        return -1


def _head(fs: FileSystem, path: str) -> tuple[int, bytes]:
    try:
        fd = fs.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1, b""
    try:
        return fs.fstat(fd).st_size, fs.pread(fd, HEADER_SIZE, 0)
    finally:
        fs.close(fd)


def entry_count_of(pairs: PinnedPairs) -> int:
    """Return how many entries a segment of the queue has: most of its headers say so, or else the
    default."""
    counts = [
        index_format.parse_header(pair.head, pair.number).entry_count for pair in pairs.values()
    ]
    known = [count for count in counts if count is not None]
    return max(set(known), key=known.count) if known else index_format.DEFAULT_ENTRY_COUNT


@dataclass(slots=True)
class Pair:
    """The entries of one segment; columns of shape ``(n,)``.

    ``base``: seq_id of its first slot, ``count``: its slots. ``rows``: the numbers of the slots
    that hold entries. ``heads``: the fixed fields as version 1 has them; the id of a message that
    is in ``store``, the bytes of ``K.qs``, is known only at :attr:`Depth.DECODE`. ``starts``: of
    the records in ``store``, of ``embedded`` bytes. ``kinds``: as in a journal. ``bodies``: true
    sizes of bodies, -1 where unknown, ``None`` where no record was decoded. ``unnamed``: so many of
    the last entries have no slot; see the module's text.
    """

    path: str
    base: int
    count: int
    rows: I64
    heads: npt.NDArray[np.void]
    starts: I64
    kinds: U8
    bodies: I64 | None
    store: bytes
    findings: list[Finding]
    unnamed: int = 0

    @property
    def seqs(self) -> I64:
        """The seq_ids of the entries, ascending."""
        return self.base + self.rows

    @property
    def slots(self) -> I64:
        """The offsets of the entries in ``K.qi``."""
        return HEADER_SIZE + ENTRY_SIZE * self.rows


def read_pair(
    fs: FileSystem,
    directory: str,
    pinned: PinnedPair,
    count: int,
    depth: Depth,
    *,
    clean: bool,
    ignored: I64 | None = None,
    rescue: bool = False,
) -> Pair:
    """Read a segment. ``count``: entries a segment, where its header does not tell. ``clean``: the
    node was stopped in order, so nothing may be missing. ``ignored``: seq_ids whose slots
    are not looked at. ``rescue``: take in what no slot names, where slots are lost. Raises
    :class:`OSError`.

    Memory: both files.
    """
    return _Reading(fs, directory, pinned, count, depth, clean, ignored, rescue).run()


@dataclass(slots=True)
class _Reading:
    fs: FileSystem
    directory: str
    pinned: PinnedPair
    count: int
    depth: Depth
    clean: bool
    ignored: I64 | None
    rescue: bool
    data: bytes = b""
    findings: list[Finding] = field(default_factory=list)

    @property
    def _index_path(self) -> str:
        return os.path.join(self.directory, index_format.file_name(self.pinned.number))

    @property
    def _store_path(self) -> str:
        return os.path.join(self.directory, store_format.file_name(self.pinned.number))

    def run(self) -> Pair:
        pinned = self.pinned
        if pinned.size >= 0:
            index = read_optional(self.fs, self._index_path) or b""
            self.data = index[: pinned.size]
        data = self.data
        header = index_format.parse_header(data, pinned.number)
        count = header.entry_count or self.count
        base = pinned.number * count
        slots = index_format.slots(data, count)
        self._judge_index(data, header.problem, count)
        rows = np.flatnonzero(slots["status"])
        if self.ignored is not None:
            rows = rows[~np.isin(base + rows, self.ignored)]
        entries = _Entries(slots[rows], rows, np.zeros(len(rows), np.bool_))
        self._judge_slots(entries)
        store = b""
        named = entries.named_in_store()
        if self.depth is not Depth.COUNT and named.any() and pinned.store_size >= 0:
            store = self._read_store()
            self._judge_store(store)
        self._find_records(entries, named, store)
        if self.depth is Depth.DECODE:
            self._decode(entries, store)
        pair = self._pair(entries, base, count, store)
        if self.rescue and pinned.store_size > HEADER_SIZE:
            self._rescue(pair, entries, store or self._read_store())
        return pair

    def _read_store(self) -> bytes:
        return read_optional(self.fs, self._store_path) or b""

    def _add(
        self, path: str, offset: int, length: int, cause: Cause, what: str, lost: str, kind: Kind
    ) -> None:
        self.findings.append(Finding(path, offset, length, cause, what, lost, kind))

    # -- the index ------------------------------------------------------------------------------

    def _judge_index(self, data: bytes, problem: str, count: int) -> None:
        path, size = self._index_path, len(data)
        if self.pinned.size < 0:
            if self.depth is Depth.DECODE:
                what, lost = "its index is gone", "all was acknowledged, or its entries are lost"
                cause = Cause.DAMAGE if self.clean else Cause.CRASH
                self._add(path, 0, 0, cause, what, lost, Kind.MISSING_FILE)
            return
        if problem:
            has_messages = self.pinned.store_size > HEADER_SIZE
            cause = Cause.CRASH if not any(data) and not has_messages else Cause.DAMAGE
            lost = "a node drops the segment" if size >= HEADER_SIZE else "its entries are lost"
            kind = Kind.TORN if size < HEADER_SIZE else Kind.CORRECTED
            if size >= HEADER_SIZE and not any(data[HEADER_SIZE : HEADER_SIZE + ENTRY_SIZE]):
                kind, lost = Kind.ZEROS, "the entries after it may be lost"
            self._add(path, 0, min(size, HEADER_SIZE), cause, problem, lost, kind)
        torn = (size - HEADER_SIZE) % ENTRY_SIZE if size > HEADER_SIZE else 0
        if torn and size <= HEADER_SIZE + count * ENTRY_SIZE:
            what, lost = "the file ends inside a slot", "its entry is lost"
            self._add(path, size - torn, torn, Cause.CRASH, what, lost, Kind.TORN)

    def _judge_slots(self, entries: _Entries) -> None:
        slots = entries.slots
        for name, field_name, allowed in (
            ("status", "status", slots["status"] == index_format.ENTRY),
            ("byte of flags", "flags", slots["flags"] <= index_format.PERSISTENT),
            ("unused byte", "zero", slots["zero"] == 0),
        ):
            for at in np.flatnonzero(~allowed).tolist():
                value = int(slots[field_name][at])
                what = f"the {name} of slot {int(entries.rows[at])} is {value}"
                self._slot(entries, at, what, "a node gives the queue up", Kind.CORRECTED)
        location = slots["location"]
        blank = (location == index_format.IN_MEMORY) & ~_any_bytes(slots["where"])
        kept = entries.is_persistent()
        for at in np.flatnonzero(blank & kept).tolist():
            what = f"slot {int(entries.rows[at])} says that its message is in memory alone"
            self._slot(entries, at, what, _LOST, Kind.ENTRY_WITHOUT_MESSAGE)
        for at in np.flatnonzero(blank & _is_status_alone(slots)).tolist():
            what = f"slot {int(entries.rows[at])} has a status, and zeros after it"
            self._slot(entries, at, what, _LOST, Kind.ZEROS)
        entries.gone |= blank
        odd = ~blank & (location != index_format.IN_SHARED_STORE)
        odd &= location != index_format.IN_QUEUE_STORE
        entries.odd = odd

    def _slot(self, entries: _Entries, at: int, what: str, lost: str, kind: Kind) -> None:
        offset = HEADER_SIZE + ENTRY_SIZE * int(entries.rows[at])
        self._add(self._index_path, offset, ENTRY_SIZE, Cause.DAMAGE, what, lost, kind)

    # -- the store ------------------------------------------------------------------------------

    def _judge_store(self, store: bytes) -> None:
        problem = store_format.parse_header(store, self.pinned.number).problem
        if problem:
            cause = Cause.DAMAGE if store else Cause.CRASH
            size = min(len(store), HEADER_SIZE)
            lost = "a node gives the queue up" if store else "its messages are not there"
            if store or self.depth is Depth.DECODE:
                kind = Kind.TORN if size < HEADER_SIZE else Kind.CORRECTED
                self._add(self._store_path, 0, size, cause, problem, lost, kind)

    def _find_records(self, entries: _Entries, named: Bools, store: bytes) -> None:
        """Find the records of the entries that are in ``K.qs``."""
        offsets, sizes, tails = index_format.places(entries.slots["where"])
        reach = max(self.pinned.store_size, 0) if self.depth is Depth.COUNT else len(store)
        head = store_format.ENTRY_HEAD.size
        there = named & (offsets >= HEADER_SIZE) & (offsets + head + sizes <= reach)
        if self.depth is Depth.COUNT:
            found = there & ~tails
        else:
            found = self._verified(entries, named, offsets, sizes, store)
            for at in np.flatnonzero(tails & found).tolist():
                what = f"slot {int(entries.rows[at])} has bytes after its place that are not zero"
                self._slot(entries, at, what, "a node drops it", Kind.CORRECTED)
        for at in np.flatnonzero(entries.odd).tolist():
            kind = int(entries.slots["location"][at])
            what = f"slot {int(entries.rows[at])} has a place of kind {kind}"
            how = Kind.CORRECTED if found[at] else Kind.RECORD
            self._slot(entries, at, what, "a node drops it", how)
        # A slot that names nothing in the queue's own store may name a message in the shared one.
        lost = named & ~found & ~entries.odd
        entries.gone |= lost
        entries.starts = np.where(found, offsets + head, 0)
        entries.lengths = np.where(found, entries.lengths_of(sizes), 0)

    def _verified(
        self, entries: _Entries, named: Bools, offsets: I64, sizes: I64, store: bytes
    ) -> Bools:
        found = np.zeros(len(named), np.bool_)
        true_sizes = sizes.copy()
        view = memoryview(store)
        whole = named & (offsets >= HEADER_SIZE)
        head = store_format.ENTRY_HEAD.size
        whole &= offsets + head + sizes <= len(store)
        rows = np.flatnonzero(whole)
        starts = offsets[rows] + head
        packed = np.ascontiguousarray(gather_bytes(store, offsets[rows], head))
        heads: npt.NDArray[np.void] = packed.view(store_format.HEADS).ravel()
        fits = (heads["size"] == sizes[rows]) & (heads["zero"] == 0)
        fits &= heads["flags"] <= store_format.HAS_CHECKSUM
        checked = fits & (heads["flags"] == store_format.HAS_CHECKSUM)
        spans = zip(starts[checked].tolist(), (starts + sizes[rows])[checked].tolist(), strict=True)
        checksum = store_format.checksum
        sums = np.array([checksum(view[start:stop]) for start, stop in spans], np.int64)
        fits[checked] = sums == heads["checksum"][checked]
        fits &= checked | (heads["checksum"] == 0)
        found[rows] = fits
        entries.checked[rows] = fits & checked
        for at in np.flatnonzero(named & ~found).tolist():
            true = self._judge_record(entries, at, int(offsets[at]), int(sizes[at]), view)
            if true is not None:
                found[at] = True
                true_sizes[at] = true
        entries.sizes = true_sizes
        return found

    def _judge_record(
        self, entries: _Entries, at: int, offset: int, size: int, view: memoryview
    ) -> int | None:
        """Judge a message of ``K.qs`` that is not as the index says; return its record's size where
        it is sound all the same."""
        head = store_format.ENTRY_HEAD.size
        row, path = int(entries.rows[at]), self._store_path
        seq = f"the message of slot {row}"
        kept = bool(entries.is_persistent()[at])
        start = offset + head
        whole = offset >= HEADER_SIZE and start <= len(view)
        if not whole or not any(view[offset:start]):
            # It had not been written, or the file was cut.
            if kept and (self.clean or self.depth is Depth.DECODE) and not entries.odd[at]:
                cause = Cause.DAMAGE if self.clean else Cause.CRASH
                what, kind = f"{seq} is not there", Kind.ENTRY_WITHOUT_MESSAGE
                lost = _LOST if self.clean else ACKED_OR_LOST
                self._add(path, max(offset, 0), 0, cause, what, lost, kind)
            return None
        stated, flags, crc, _ = store_format.ENTRY_HEAD.unpack_from(view, offset)
        for length in dict.fromkeys((size, stated)):
            record = view[start : start + length]
            checked = len(record) == length and (crc or flags & 1)
            if checked and store_format.checksum(record) == crc and _decodes(record):
                what = f"{seq} has a head that is not as it should be"
                self._add(path, offset, head, Cause.DAMAGE, what, _SHOWN, Kind.CORRECTED)
                return int(length)
        if stated == size and not flags & 1 and start + size <= len(view):
            what = f"{seq} has a checksum that a node does not look at, and does not have it"
            self._add(path, offset, head + size, Cause.DAMAGE, what, _SHOWN, Kind.CORRECTED)
            return size
        if entries.odd[at] or not kept:
            return None
        if start + size > len(view) and stated in (0, size):
            cause = Cause.DAMAGE if self.clean else Cause.CRASH
            if cause is Cause.DAMAGE or self.depth is Depth.DECODE:
                what = f"the file ends inside {seq}"
                self._add(path, offset, len(view) - offset, cause, what, _LOST, Kind.TORN)
            return None
        if stated == size:
            what, kind = f"{seq} does not have its checksum", Kind.CHECKSUM
        else:
            what, kind = f"{seq} has {stated} bytes here, {size} in the index", Kind.RECORD
        self._add(path, offset, head + size, Cause.DAMAGE, what, _LOST, kind)
        return None

    def _decode(self, entries: _Entries, store: bytes) -> None:
        """Fill in ids, lengths and sizes from the records."""
        view = memoryview(store)
        kept = entries.is_persistent()
        durable = bool(kept.any())
        stated = entries.slots["size"].tolist()
        rest = np.flatnonzero(entries.lengths)
        if len(rest):
            rest = self._decode_usual(entries, rest, view)
        for at in rest.tolist():
            start = int(entries.starts[at])
            stop = start + int(entries.lengths[at])
            offset = start - store_format.ENTRY_HEAD.size
            seq = f"the message of slot {int(entries.rows[at])}"
            try:
                message, end = read_rabbitmq(view[start:stop])
            except StoreError as error:
                entries.gone[at] = True
                what = f"{seq} can't be read: {error}"
                length = stop - offset
                if kept[at]:
                    self._add(
                        self._store_path, offset, length, Cause.DAMAGE, what, _LOST, Kind.RECORD
                    )
                continue
            entries.ids[at] = np.frombuffer(message.msg_id, np.uint8)
            entries.lengths[at] = end
            entries.bodies[at] = len(message.body)
            if stated[at] != len(message.body) and not states_more(view[start:stop]):
                what = f"slot {int(entries.rows[at])} has a size of {stated[at]}, its body has "
                what += f"{len(message.body)} bytes"
                lost, kind = WRONG_SIZE
                if not stated[at] and self._are_zeros_after(int(entries.rows[at])):
                    lost, kind = ZERO_SIZE
                self._slot(entries, at, what, lost, kind)
            # In a queue that is not durable no entry is persistent, whatever its message.
            if durable and message.persistent and not kept[at]:
                what = "the index has the message as transient, the message itself as persistent"
                self._slot(entries, at, what, _DROPPED, Kind.PERSISTENCE)

    def _are_zeros_after(self, row: int) -> bool:
        """Return whether a slot follows this one, and is all zero."""
        start = HEADER_SIZE + ENTRY_SIZE * (row + 1)
        return self.data[start : start + ENTRY_SIZE] == bytes(ENTRY_SIZE)

    def _decode_usual(self, entries: _Entries, rows: I64, view: memoryview) -> I64:
        """Decode those of ``rows`` that can be decoded together; return the others."""
        starts, lengths = entries.starts[rows], entries.lengths[rows]
        usual = read_usual(view, starts, lengths)
        last = np.frombuffer(view, np.uint8)[starts + lengths - 1]
        # A checksum that holds covers the bytes that the form does not; zeros at the end may not
        # be of the record.
        done = usual.found & (usual.whole | (entries.checked[rows] & (last != 0)))
        done &= entries.is_persistent()[rows]
        done &= usual.bodies == entries.slots["size"][rows]
        chosen = rows[done]
        entries.ids[chosen] = usual.ids[done]
        entries.bodies[chosen] = usual.bodies[done]
        others: I64 = rows[~done]
        return others

    # -- messages without a slot ----------------------------------------------------------------

    def _rescue(self, pair: Pair, entries: _Entries, store: bytes) -> None:
        """Take in the messages after the last message that a slot names, if slots are missing:
        there are fewer than messages, or the index ends inside one."""
        size = len(self.data)
        slots = max(size - HEADER_SIZE, 0) // ENTRY_SIZE
        torn = size < HEADER_SIZE or (size - HEADER_SIZE) % ENTRY_SIZE != 0
        named_end = int((entries.starts + entries.lengths).max(initial=HEADER_SIZE))
        found = list(_records_in(store))
        behind = [one for one in found if one[0] >= named_end]
        missing = behind if torn else behind[max(len(behind) - max(len(found) - slots, 0), 0) :]
        first = int(pair.rows[-1]) + 1 if len(pair.rows) else 0
        rescued = _Unnamed(store, missing[: pair.count - first])
        if not rescued.count:
            return
        what = f"no entry names its last {rescued.count} messages"
        lost = "they are saved; some of them may have been acknowledged"
        at = rescued.starts[0] - store_format.ENTRY_HEAD.size
        cause, kind = Cause.CRASH, Kind.MESSAGE_WITHOUT_ENTRY
        self._add(self._store_path, int(at), 0, cause, what, lost, kind)
        rows = first + np.arange(rescued.count)
        pair.rows = np.append(pair.rows, rows)
        # Two tables put together have the byte order of the machine.
        pair.heads = np.append(pair.heads, rescued.heads).astype(HEAD)
        pair.starts = np.append(pair.starts, rescued.starts)
        pair.kinds = np.append(pair.kinds, rescued.kinds)
        if pair.bodies is not None:
            pair.bodies = np.append(pair.bodies, rescued.heads["size"].astype(np.int64))
        pair.store = store
        pair.unnamed = rescued.count

    # -- what comes of it -----------------------------------------------------------------------

    def _pair(self, entries: _Entries, base: int, count: int, store: bytes) -> Pair:
        keep = np.flatnonzero(~entries.gone)
        slots, rows = entries.slots[keep], entries.rows[keep]
        lengths, starts = entries.lengths[keep], entries.starts[keep]
        heads = np.zeros(len(keep), HEAD)
        heads["id"] = np.ascontiguousarray(slots["where"])
        embedded = lengths > 0
        ids = np.ascontiguousarray(entries.ids[keep]).view("V16").ravel()
        heads["id"][embedded] = ids[embedded]
        heads["expiry"] = slots["expiry"]
        heads["size"] = slots["size"]
        heads["embedded"] = lengths
        kinds = np.where(entries.is_persistent()[keep], PUBLISH_PERSISTENT, PUBLISH_TRANSIENT)
        return Pair(
            self._index_path,
            base,
            count,
            rows.astype(np.int64),
            heads,
            starts,
            kinds.astype(np.uint8),
            entries.bodies[keep] if self.depth is Depth.DECODE else None,
            store,
            self.findings,
        )


class _Entries:
    """Slots with a status, in order. ``rows``: their numbers. ``gone``: they are not given;
    ``odd``: their kind of place is none. ``starts``, ``lengths``: of the records in ``K.qs``, 0 =
    not there. ``checked``: the checksum holds. ``bodies``: true sizes, -1 = unknown. Shape
    ``(n,)``, ``ids`` ``(n, 16)``."""

    def __init__(self, slots: npt.NDArray[np.void], rows: I64, none: Bools) -> None:
        count = len(rows)
        self.slots = slots
        self.rows = rows
        self.gone = none.copy()
        self.odd = none.copy()
        self.checked = none.copy()
        self.starts = np.zeros(count, np.int64)
        self.lengths = np.zeros(count, np.int64)
        self.sizes: I64 | None = None
        self.bodies = np.full(count, -1, np.int64)
        self.ids = np.zeros((count, 16), np.uint8)

    def is_persistent(self) -> Bools:
        """Which entries outlive a restart. Where the flags are none, they do: one message too many
        is better than one too few."""
        flags = self.slots["flags"]
        persistent: Bools = np.logical_or(flags & index_format.PERSISTENT != 0, flags > 1)
        return persistent

    def named_in_store(self) -> Bools:
        """Which entries say that their message is in ``K.qs``, or may mean it."""
        named: Bools = self.slots["location"] == index_format.IN_QUEUE_STORE
        return (named | self.odd) & ~self.gone

    def lengths_of(self, sizes: I64) -> I64:
        """Return the records' lengths as they were found, or else as the index says."""
        return sizes if self.sizes is None else self.sizes


class _Unnamed:
    """The messages of records that no slot names, in columns as :class:`Pair` has them."""

    def __init__(self, store: bytes, records: list[tuple[int, int]]) -> None:
        view = memoryview(store)
        rows, starts, kinds = [], [], []
        for start, length in records:
            try:
                message, end = read_rabbitmq(view[start : start + length])
            except StoreError:
                continue
            rows.append((message.msg_id, 0, len(message.body), end))
            starts.append(start)
            kinds.append(PUBLISH_PERSISTENT if message.persistent else PUBLISH_TRANSIENT)
        self.count = len(rows)
        self.heads = np.array(rows, HEAD)
        self.starts: I64 = np.array(starts, np.int64)
        self.kinds: U8 = np.array(kinds, np.uint8)


def _records_in(store: bytes) -> Iterator[tuple[int, int]]:
    """Find the records in the bytes of ``K.qs`` that have their checksums: where each starts, and
    its length. What lies between them is passed over."""
    head = store_format.ENTRY_HEAD
    view = memoryview(store)
    at = HEADER_SIZE
    while (start := store.find(_TERM, at + head.size)) >= 0:
        at = start - head.size
        size, flags, crc, zero = head.unpack_from(view, at)
        whole = size and not zero and flags == store_format.HAS_CHECKSUM
        record = view[start : start + size] if whole and start + size <= len(view) else view[:0]
        if record and store_format.checksum(record) == crc:
            yield start, size
            at = start + size
        else:
            at += 1


def _any_bytes(where: npt.NDArray[np.void]) -> Bools:
    rows = np.ascontiguousarray(where).view(np.uint8).reshape(-1, 16)
    return np.asarray(rows.any(axis=1), np.bool_)


def _is_status_alone(slots: npt.NDArray[np.void]) -> Bools:
    rows = np.ascontiguousarray(slots).view(np.uint8).reshape(-1, ENTRY_SIZE)
    return np.asarray(~rows[:, 1:].any(axis=1), np.bool_)


def _decodes(record: memoryview) -> bool:
    try:
        read_rabbitmq(record)
    except StoreError:
        return False
    return True
