"""``K.qi``: the index of a classic queue of version 2, RabbitMQ 3.10 to 4.3.

It holds the entries of seq_ids K*C .. K*C+C-1, where C is 4,096 unless the node was told
otherwise. All integers are big-endian::

    0    4  "RCQI"          4    1  version, 2
    5    8  K*C             13   8  K*C + C          21  43  zeros
    64      C slots of 32 bytes, that of seq_id K*C + i at 64 + 32*i; the file ends after the
            highest slot written so far

    slot   0   1  status: 1 = an entry, 0 = never written, or acknowledged
           1   1  flags: bit 0 = persistent
           2   1  zero
           3   1  where the message is:  1 = in the message store   2 = in K.qs   0 = in memory
           4  16  its id                 or  u64 offset in K.qs, u32 size, u32 zero
          20   4  bytes of the body, for statistics
          24   8  expiry, microseconds since 1970, 0 = never

An acknowledgement writes 32 zeros; recovery after a kill only zeroes the status of what it drops.
There is no checksum here: a status that turned to 0 looks like an acknowledgement.

The first entry of a queue whose message is in ``0.qs``, 210 bytes after the header there::

    01 01 00 02  00 00 00 00 00 00 00 40  00 00 00 d2  00 00 00 00  00 00 00 14  00 .. 00

Source: files written by RabbitMQ 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from journal.memory.arrays import I64
from qindex.format.message_record import column

MAGIC: Final = b"RCQI"
VERSION: Final = 2
HEADER_SIZE: Final = 64
ENTRY_SIZE: Final = 32
DEFAULT_ENTRY_COUNT: Final = 4096
MAX_ENTRY_COUNT: Final = 1 << 20
"""More entries a segment are taken for a damaged header."""
SUFFIX: Final = ".qi"

ENTRY: Final = 1
"""The status of a slot that holds an entry."""
PERSISTENT: Final = 1
IN_MEMORY: Final = 0
IN_SHARED_STORE: Final = 1
IN_QUEUE_STORE: Final = 2

SLOTS: Final = np.dtype(
    [
        ("status", "u1"),
        ("flags", "u1"),
        ("zero", "u1"),
        ("location", "u1"),
        ("where", "V16"),
        ("size", ">u4"),
        ("expiry", ">u8"),
    ]
)
assert SLOTS.itemsize == ENTRY_SIZE

_HEADER = Struct(">4sBQQ43x")
assert _HEADER.size == HEADER_SIZE


class Header(NamedTuple):
    """``entry_count``: C, ``None`` where the header does not tell. ``problem``: why a node would
    not take the file, or what else is wrong; empty: nothing."""

    entry_count: int | None
    problem: str


def parse_header(data: bytes | bytearray, number: int, magic: bytes = MAGIC) -> Header:
    """Read the first bytes of file ``number``. Raises nothing."""
    if len(data) < HEADER_SIZE:
        return Header(None, f"{len(data)} bytes of a header of {HEADER_SIZE}")
    found, version, first, end = _HEADER.unpack_from(data)
    count = end - first
    fits = 0 < count <= MAX_ENTRY_COUNT and first == number * count
    if found != magic:
        return Header(count if fits else None, f"starts with {found!r}, not with {magic!r}")
    if version != VERSION:
        return Header(count if fits else None, f"is of version {version}, not of {VERSION}")
    if not fits:
        return Header(None, f"its header says seq_ids {first} to {end} for file {number}")
    if any(data[21:HEADER_SIZE]):
        return Header(count, "its header has bytes that should be zero")
    return Header(count, "")


def pack_header(number: int, entry_count: int, magic: bytes = MAGIC) -> bytes:
    """Write the header of file ``number``."""
    first = number * entry_count
    return _HEADER.pack(magic, VERSION, first, first + entry_count)


def slots(data: bytes | bytearray, entry_count: int) -> npt.NDArray[np.void]:
    """The whole slots of a file, at most ``entry_count`` of them. Shape ``(n,)``."""
    count = min(max(len(data) - HEADER_SIZE, 0) // ENTRY_SIZE, entry_count)
    return np.frombuffer(data, SLOTS, count, HEADER_SIZE if count else 0)


def pack_slots(
    persistent: npt.NDArray[np.bool_],
    locations: npt.NDArray[np.uint8],
    where: npt.NDArray[np.uint8],
    sizes: npt.NDArray[np.int64],
    expiry: npt.NDArray[np.uint64],
) -> npt.NDArray[np.void]:
    """Make slots that hold entries; columns of shape ``(n,)``, ``where`` of ``(n, 16)``."""
    packed = np.zeros(len(persistent), SLOTS)
    packed["status"] = ENTRY
    packed["flags"] = np.where(persistent, PERSISTENT, 0)
    packed["location"] = locations
    packed["where"] = np.ascontiguousarray(where).view("V16").ravel()
    packed["size"] = sizes
    packed["expiry"] = expiry
    return packed


def places(where: npt.NDArray[np.void]) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """Offset and size in ``K.qs`` that each ``where`` names (-1: an offset that can't be), and
    whether bytes after them are not zero. Shape ``(n,)``."""
    rows = np.ascontiguousarray(where).view(np.uint8).reshape(-1, 16)
    offsets = column(rows, 0, ">u8").astype(np.uint64)
    far = offsets >= np.uint64(1 << 62)
    sizes = column(rows, 8, ">u4").astype(np.int64)
    return np.where(far, -1, offsets.astype(np.int64)), sizes, column(rows, 12, ">u4") != 0


def pack_places(offsets: I64, sizes: I64) -> npt.NDArray[np.uint8]:
    """Return places in ``K.qs`` as slots have them. Shape ``(n, 16)``."""
    rows = np.zeros((len(offsets), 16), np.uint8)
    rows[:, :8] = offsets.astype(">u8").view(np.uint8).reshape(-1, 8)
    rows[:, 8:12] = sizes.astype(">u4").view(np.uint8).reshape(-1, 4)
    return rows


def file_name(number: int) -> str:
    """The name of file ``number``."""
    return f"{number}{SUFFIX}"
