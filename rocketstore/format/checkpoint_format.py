"""The ``checkpoint`` file of RocketMQ 4.9.3: three timestamps in 4,096 bytes.

::

    0   8   CommitLog: store timestamp (ms) of the last message known to be on disk
    8   8   ConsumeQueues: the same
    16  8   IndexFiles: the same
    24      zeros
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

CHECKPOINT_SIZE = 4096
_TIMES = struct.Struct(">qqq")
TIMES_SIZE = _TIMES.size
_SAFETY_MS = 3000


@dataclass(slots=True)
class Checkpoint:
    """The three times, in ms; 0 when never set."""

    physical: int = 0
    logical: int = 0
    index: int = 0

    @classmethod
    def parse(cls, data: bytes | None) -> Checkpoint:
        """Read a checkpoint; a missing or short file reads as zeros."""
        if data is None or len(data) < _TIMES.size:
            return cls()
        return cls(*_TIMES.unpack_from(data))

    def to_bytes(self) -> bytes:
        """The whole file."""
        return _TIMES.pack(self.physical, self.logical, self.index).ljust(CHECKPOINT_SIZE, b"\0")

    def safe_time(self, *, with_index: bool) -> int:
        """Up to this time all was on disk: the least of the times, 3 seconds back."""
        least = max(0, min(self.physical, self.logical) - _SAFETY_MS)
        return min(least, self.index) if with_index else least
