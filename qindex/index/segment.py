"""One segment of a queue in memory: the state of each of its entries, and their places.

A segment holds ``entry_count`` entries (16,384). For each there is one byte of state, now
(``states``) and as its file has it (``filed``). Where the two differ the journal has the entry's
actions, and the next flush must append them. From both, counts are taken with numpy when they are
asked for, so that publish and ack pay for no counter.

A segment that is neither written to nor read from gives its maps back (:meth:`Segment.unload`)
and keeps its number of unacknowledged entries; its file holds the rest. If its file lacks
something, or it will be written to again, it keeps a packed copy (:meth:`Segment.pack`).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from journal.fs.files import ReadBuffer
from journal.memory.arrays import I64, Bools

ABSENT = 0
"""Not published, or published and acknowledged without ever reaching a segment file."""
PUBLISHED = 1
"""Published, never delivered."""
DELIVERED = 2
"""Delivered before (in an earlier run, or requeued), and ready again."""
ACKED = 3
OUT = 4
"""Delivered to a consumer of this run that has not yet acknowledged. Files know it as DELIVERED."""

MOVING = 5
"""On its way to the dead-letter queue, or there, and not yet acknowledged here. Files know it as
DELIVERED."""

HELD = 6
"""Published, never delivered, and delayed. Files know it as PUBLISHED."""
HELD_AGAIN = 7
"""Delivered before, and delayed. Files know it as DELIVERED."""

PENDING = 8
"""Published by a transaction that is not committed. Files know it as PUBLISHED."""

_AS_FILED = bytes(
    [ABSENT, PUBLISHED, DELIVERED, ACKED, DELIVERED, DELIVERED, PUBLISHED, DELIVERED, PUBLISHED]
)
_FILED_TABLE = _AS_FILED + bytes(range(len(_AS_FILED), 256))
_RELEASED_TABLE = bytes([*range(HELD), PUBLISHED, DELIVERED, *range(PENDING, 256)])

_NUMBERED_AT_ONCE = 1 << 14


def count_held(states: bytearray) -> int:
    """Count the entries of a state map that are published and not acknowledged. 3 us for 16,384."""
    # ``bytearray.count`` looks at each byte by itself: three times as long, for each of two states.
    view = np.frombuffer(states, np.uint8)
    return int(np.count_nonzero((view != ABSENT) & (view != ACKED)))


def as_filed(states: bytes | bytearray) -> bytes | bytearray:
    """Return a copy of a state map as a file would have it."""
    return states.translate(_FILED_TABLE)


class Segment:
    """State of one segment; the owner (the queue index) holds the lock.

    ``base``: seq_id of its first entry. ``states``, ``filed``: one byte an entry, both ``None``
    while unloaded. ``offsets``, ``lengths``: where in the file each entry's publish record is
    (-1: nowhere), loaded when the segment is read from. ``file_size``: bytes in the file, 0 for
    none. ``verified``: the file's bytes as a scan found them sound, while it is being read.
    ``packed``: both maps, compressed, of a segment that is not loaded; empty where the file alone
    has them. ``held``: the delayed entries of a segment that is not loaded, as numbers of four
    bytes.
    """

    __slots__ = (
        "base",
        "file_size",
        "filed",
        "held",
        "lengths",
        "number",
        "offsets",
        "packed",
        "states",
        "stored_unacked",
        "verified",
    )

    states: bytearray
    filed: bytearray

    def __init__(self, number: int, entry_count: int) -> None:
        self.number: int = number
        self.base: int = number * entry_count
        self.file_size: int = 0
        self.stored_unacked: int = 0
        self.offsets: I64 | None = None
        self.lengths: I64 | None = None
        self.verified: ReadBuffer = b""
        self.packed: bytes = b""
        self.held: bytes = b""
        self.states = bytearray(entry_count)
        self.filed = bytearray(entry_count)

    @classmethod
    def unloaded(cls, number: int, entry_count: int, unacked: int, file_size: int) -> Segment:
        """Make a segment of which only the counts are known."""
        segment = cls(number, 0)
        segment.base = number * entry_count
        segment.stored_unacked = unacked
        segment.file_size = file_size
        return segment

    @property
    def loaded(self) -> bool:
        """Return whether the state maps are in memory."""
        return bool(self.states)

    @property
    def dirty(self) -> bool:
        """Return whether the file lacks anything: a state, or its deletion. O(entry_count) in C."""
        if not self.states:
            return False
        return as_filed(self.states) != self.filed or (self.file_size > 0 and not self.unacked)

    @property
    def unacked(self) -> int:
        """Entries published less acknowledged. O(entry_count) in C."""
        if not self.states:
            return self.stored_unacked
        return count_held(self.states)

    @property
    def filed_unacked(self) -> int:
        """Entries that the file has as published and not acknowledged. O(entry_count) in C."""
        self.unpack()
        return count_held(self.filed) if self.states else self.stored_unacked

    @property
    def outstanding(self) -> int:
        """Entries that are with a consumer, being moved, or of a transaction under way."""
        return self.states.count(OUT) + self.states.count(MOVING) + self.pending

    @property
    def pending(self) -> int:
        """Entries of transactions that are not committed."""
        return self.states.count(PENDING)

    def hold(self, rels: I64) -> Bools:
        """Delay those of these entries that are ready, and return which are delayed now."""
        if not self.states:
            self.held += rels.astype(np.uint32).tobytes()
            return np.ones(len(rels), np.bool_)
        states = np.frombuffer(self.states, np.uint8)
        now = states[rels]
        fresh, again = rels[now == PUBLISHED], rels[now == DELIVERED]
        states[fresh] = HELD
        states[again] = HELD_AGAIN
        now = states[rels]
        held: Bools = (now == HELD) | (now == HELD_AGAIN)
        return held

    def release_all(self) -> None:
        """Make all delayed entries ready."""
        self.unpack()
        self.held = b""
        self.states = self.states.translate(_RELEASED_TABLE)

    def _held_entries(self) -> bytes:
        if not self.states.count(HELD) and not self.states.count(HELD_AGAIN):
            return b""
        states = np.frombuffer(self.states, np.uint8)
        return np.flatnonzero(states >= HELD).astype(np.uint32).tobytes()

    def acknowledge(self, seq: int) -> None:
        """Mark an entry of a loaded segment as acknowledged: recovery drops it, before the queue
        has an owner."""
        self.states[seq - self.base] = ACKED

    def load(
        self, filed: bytearray, offsets: I64 | None = None, lengths: I64 | None = None
    ) -> None:
        """Take over what a scan of the file gave; the states are those of the file. Without
        ``offsets`` and ``lengths`` nothing is known of where the records are in it."""
        self.filed = filed
        self.states = bytearray(filed)
        self.offsets = offsets
        self.lengths = lengths
        if self.held:
            held, self.held = self.held, b""
            self.hold(np.frombuffer(held, np.uint32).astype(np.int64))

    def pack(self) -> None:
        """Compress the maps to a hundred bytes or so. Only for a segment with nothing outstanding.
        About 50 us."""
        # A call that is cut short in here leaves one or the other: no step is in neither.
        self.packed = zlib.compress(self.states + self.filed, 1)
        self._drop_maps()

    def unpack(self) -> bool:
        """Load what :meth:`pack` kept, and return whether there was anything. The places of the
        records in the file are not known then. About 10 us."""
        if self.states or not self.packed:
            return False
        maps = zlib.decompress(self.packed)
        half = len(maps) // 2
        self.filed = bytearray(maps[half:])
        self.states = bytearray(maps[:half])
        self.packed = b""
        return True

    def unload(self) -> None:
        """Release the maps. Only for a segment that is not dirty and has nothing outstanding."""
        self.packed = b""
        self.held = self._held_entries()
        self._drop_maps()

    def _drop_maps(self) -> None:
        self.stored_unacked = self.unacked
        self.states = bytearray()
        self.filed = bytearray()
        self.offsets = None
        self.lengths = None
        self.verified = b""


class Segments(dict[int, Segment]):
    """The segments of a queue by number, gone through in ascending order.

    A queue has few, most often one, and thousands of queues have theirs; nearly always a new
    one comes last. So it is a plain dict that is sorted anew when one does not.
    """

    __slots__ = ()

    def __init__(self, segments: Mapping[int, Segment] = MappingProxyType({})) -> None:
        super().__init__(sorted(segments.items()))

    def __setitem__(self, number: int, segment: Segment) -> None:
        is_last = not self or number >= next(reversed(self))
        super().__setitem__(number, segment)
        if not is_last:
            items = sorted(self.items())
            self.clear()
            self.update(items)

    def following(self, number: int) -> int | None:
        """Return the lowest number from this one on. O(n)."""
        return next((each for each in self if each >= number), None)


def segment_numbers(seqs: I64, entry_count: int) -> list[int]:
    """Return the numbers of the segments that these seq_ids are in, ascending, each once.

    O(n), and more only for seq_ids out of order. (``numpy.unique`` imports more of numpy at its
    first call, which here would be in the middle of somebody's ack.)
    """
    found: set[int] = set()
    # No more at a time than the processor's cache takes.
    for at in range(0, len(seqs), _NUMBERED_AT_ONCE):
        some = seqs[at : at + _NUMBERED_AT_ONCE]
        first, last = int(some.min()) // entry_count, int(some.max()) // entry_count
        found.update((first, last))
        if last - first > 1:
            numbers = some // entry_count
            found.update(numbers[np.flatnonzero(numbers[1:] != numbers[:-1])].tolist())
            found.add(int(numbers[-1]))
    return sorted(found)
