"""Message ids of messages that are in the message store: they can be told from torn ones.

An index entry whose message is in the message store is 40 bytes without a checksum of its own
(RabbitMQ's format has no room for one), and a loss of power can leave a part of it, with zeros for
the rest. Taken at its word it would be the entry of another place in the queue, or have the id of
another message. So the id vouches for itself, and for the size of the body that is after it::

    0            6         10            16
    +------------+---------+-------------+
    | run        | count   | check       |   check: xxh3 of run, count, and the size (4 bytes,
    +------------+---------+-------------+   big-endian), its first 48 bits

``run``: random, anew with each engine. Ids that RabbitMQ made do not hold.
"""

from __future__ import annotations

import numpy as np
from xxhash import xxh3_64_digest

from journal.format import PAYLOAD_SIZE
from journal.fs.files import ReadBuffer
from journal.memory.arrays import I64, U8, Bools
from qindex.format.message_record import gather_bytes, row_sums

RUN_SIZE = 6
COUNTS = 1 << 32
"""Ids of one run."""
_CHECK_AT = 10
_ID_SIZE = 16
_SIZE_AT = 24
_CHECK_BITS = 48


def make_id(run: bytes, count: int, size: int) -> bytes:
    """Return the id of message ``count`` of a run, with a body of ``size`` bytes."""
    start = run + count.to_bytes(4, "big")
    return start + xxh3_64_digest(start + size.to_bytes(4, "big"))[:6]


def sound_ids(data: ReadBuffer, payloads: I64) -> Bools:
    """Return for entries whose message ids are at ``payloads`` whether id and size belong
    together. Shape ``(n,)``."""
    rows = np.ascontiguousarray(gather_bytes(data, payloads, PAYLOAD_SIZE))
    sizes = np.ascontiguousarray(rows[:, _SIZE_AT : _SIZE_AT + 4]).view(">u4").ravel()
    return vouches(rows[:, :_ID_SIZE], sizes.astype(np.int64))


def vouches(ids: U8, sizes: I64) -> Bools:
    """Return which ids (shape ``(n, 16)``) vouch for these sizes. Shape ``(n,)``."""
    packed = sizes.astype(">u4").view(np.uint8).reshape(-1, 4)
    sums = row_sums(np.ascontiguousarray(np.concatenate((ids[:, :_CHECK_AT], packed), axis=1)))
    checks = np.zeros((len(ids), 8), np.uint8)
    checks[:, 2:] = ids[:, _CHECK_AT:_ID_SIZE]
    holds: Bools = checks.view(">u8").ravel() == sums >> np.uint64(64 - _CHECK_BITS)
    return holds
