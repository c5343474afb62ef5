"""The ConsumeQueue file of RocketMQ 4.9.3: an array of 20-byte units.

Unit ``n`` of a queue is at byte ``20 * n`` of the queue's address space, which is cut into
files of equal size (300,000 units), each named by its first byte in 20 digits::

    offset  size  field
    0       8     physical offset of the record in the CommitLog
    8       4     size of the record
    12      8     tagsCode: hash of the TAGS property; in SCHEDULE_TOPIC_XXXX the time to deliver

A unit with size 0 is unwritten. Units before the first one of a queue that does not begin at the
start of a file are *pre-blank*: offset 0, size 0x7FFFFFFF, tagsCode 0.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

UNIT = struct.Struct(">qiq")
UNIT_SIZE = UNIT.size
DEFAULT_UNITS = 300_000
UNIT_DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
PRE_BLANK = UNIT.pack(0, 0x7FFFFFFF, 0)
MAX_UNIT = ((1 << 63) - 1) // UNIT_SIZE - DEFAULT_UNITS
"""Beyond it a unit's position is not a 64-bit number, and its file's name no 20 digits."""
DEFAULT_FILE_SIZE = DEFAULT_UNITS * UNIT_SIZE

Units = npt.NDArray[np.void]


def round_file_size(size: int) -> int:
    """A file holds whole units: the size is rounded up."""
    return -(-size // UNIT_SIZE) * UNIT_SIZE


def parse_units(data: bytes) -> Units:
    """The whole units at the start of ``data``, as a structured array (no copy)."""
    return np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_SIZE)


def build_units(
    offsets: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike, count: int
) -> bytes:
    """The bytes of ``count`` units."""
    units = np.empty(count, UNIT_DTYPE)
    units["offset"] = offsets
    units["size"] = sizes
    units["tags_code"] = tags_codes
    return units.tobytes()


def count_valid(units: Units) -> int:
    """The number of units before the first unwritten one."""
    bad = (units["offset"] < 0) | (units["size"] <= 0)
    return int(bad.argmax()) if bad.any() else len(units)
