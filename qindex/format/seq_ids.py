"""The bytes of ``qindex.seq``: what keeps seq_ids from ever being given twice, and tells a queue
from a later one of its name.

A queue whose messages were all acknowledged leaves no trace of the seq_ids it gave out: segments
are deleted and the journal is emptied. This file keeps two numbers:

* ``floor``: seq_ids below it have been given out. Written before each flush empties the journal;
  in the operating system, so it counts after the death of the process.
* ``reserved``: no seq_id at or above it has been given out. Written and synced ahead of need, so
  it counts after a loss of power.

Which of the two counts, ``boot`` tells: the identity of the operating system's run in which the
slot was written. The file is five slots of 40 bytes, big-endian::

    0       8          16      32         40
    +-------+----------+-------+----------+
    | floor | reserved | boot  | checksum |   xxh3 of the 32 bytes before it
    +-------+----------+-------+----------+

Both numbers only ever rise, so the highest in any sound slot counts. Slots 0 and 1 are written in
turn by reservations, each synced before the next, 2 and 3 in turn by floors, never synced: a torn
write of a floor can't harm a reservation, and one of a reservation not the one before it.

Slot 4 is written once, with the first reservation, and holds the queue's *incarnation*: 64 random
bits, in place of ``boot``, after eight zeros. Where they and the name are equal, the queue is the
same one, and a seq_id means the same message. A queue that has given out no seq_id has none yet. A
queue of an earlier version has none either, and gets none: its file ends with slot 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from xxhash import xxh3_64_digest, xxh3_64_intdigest, xxh3_128_digest

from journal.block_sums import flipped_bit
from journal.format import MAX_SEQ_ID

FILE_NAME = "qindex.seq"
_SLOT = struct.Struct(">QQ16s")
_CHECK_SIZE = 8
_NEVER_WRITTEN = (bytes(_CHECK_SIZE), b"")
CHECK_START = _SLOT.size
SLOT_SIZE = _SLOT.size + _CHECK_SIZE
RESERVE_SLOTS = (0, 1)
FLOOR_SLOTS = (2, 3)
INCARNATION_SLOT = 4
_HIGHEST = 2 * MAX_SEQ_ID
"""A reservation reaches past the highest seq_id that its caller requests."""
FILE_SIZE = SLOT_SIZE * (INCARNATION_SLOT + 1)


class SeqSlot(NamedTuple):
    """One slot."""

    floor: int
    reserved: int
    boot: bytes


@cache
def short_boot_id(boot_id: bytes) -> bytes:
    """Return the 16 bytes that identify a run of the operating system."""
    return xxh3_128_digest(boot_id)


def pack_slot(slot: SeqSlot) -> bytes:
    """Return the bytes of a slot."""
    body = _SLOT.pack(slot.floor, slot.reserved, slot.boot)
    return body + xxh3_64_digest(body)


def incarnation_slot(incarnation: int) -> SeqSlot:
    """Return the slot that holds a queue's incarnation."""
    return SeqSlot(0, 0, incarnation.to_bytes(16, "big"))


def incarnation_of(slot: SeqSlot) -> int:
    """Return the incarnation that :func:`incarnation_slot` put into a slot."""
    return int.from_bytes(slot.boot[8:], "big")


def sound_slots(data: bytes) -> Iterator[SeqSlot]:
    """Yield the sound slots of a file, see :func:`sound_slot`."""
    for at in range(0, len(data) - SLOT_SIZE + 1, SLOT_SIZE):
        slot = sound_slot(data, at)
        if slot is not None:
            yield slot


def sound_slot(data: bytes, at: int) -> SeqSlot | None:
    """Return the slot at offset ``at`` of a file if its checksum matches, or does with one bit
    flipped back: an empty queue may have no other trace of its seq_ids. A slot whose numbers can't
    be seq_ids is not one of ours."""
    check = data[at + _SLOT.size : at + SLOT_SIZE]
    if check in _NEVER_WRITTEN:
        return None  # a slot that was never written
    body = _healed(data[at : at + _SLOT.size], check) if len(check) == _CHECK_SIZE else None
    if body is None:
        return None
    slot = SeqSlot(*_SLOT.unpack(body))
    return slot if max(slot.floor, slot.reserved) <= _HIGHEST else None


def _healed(body: bytes, check: bytes) -> bytes | None:
    wanted = int.from_bytes(check, "big")
    if (xxh3_64_intdigest(body) ^ wanted).bit_count() <= 1:
        return body
    healed = bytearray(body)
    return None if flipped_bit(healed, wanted) is None else bytes(healed)
