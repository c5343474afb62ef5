"""The bytes of ``qindex.moves``: which messages are on their way to a dead-letter queue.

::

    0        4              12                            12 + length
    +--------+--------------+-----------------------------+------+
    | length | xxh3 (8)     | msgpack, ``length`` bytes   | done |   one frame after the other
    +--------+--------------+-----------------------------+------+

    {"boot": bytes, "source": name, "target": name, "first": seq_id in the target,
     "seqs": [seq_id in the source, ...], "ids": [message id in the target, ...]}

``done`` is 0 when the frame is written, and becomes 1 when the messages are in the target. Integers
are big-endian. Reading ends at the first frame that is not whole: a crash has torn it, and the move
it was to announce had not begun.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import msgpack
from xxhash import xxh3_64_digest

from journal.packed import unpack
from journal.schema import Bytes, Int, ListOf, Record, Text, check
from qindex.format.layout import MAX_NAME_BYTES

DONE = b"\1"
_HEAD = struct.Struct(">I8s")
_MOST = (1 << 63) - 1
"""The seq_ids of a priority queue have the priority in their top bits."""
_NAME = Text(MAX_NAME_BYTES, least=1)
_SHAPE = Record(
    {
        "boot": Bytes(0, 64),
        "source": _NAME,
        "target": _NAME,
        "first": Int(0, _MOST),
        "seqs": ListOf(Int(0, _MOST)),
        "ids": ListOf(Bytes(16, 16)),
    }
)


@dataclass(frozen=True, slots=True)
class Intent:
    """Messages ``seqs`` of queue ``source`` are to be ``first, first + 1, ...`` of ``target``,
    with the message ids ``ids``. ``boot``: the run of the operating system in which it was
    written, empty if unknown."""

    boot: bytes
    source: str
    target: str
    first: int
    seqs: list[int]
    ids: list[bytes]


def pack_intent(intent: Intent) -> bytes:
    """Return the frame of an intent; its last byte becomes :data:`DONE` when it is done."""
    packed: bytes = msgpack.packb(asdict(intent))
    return _HEAD.pack(len(packed), xxh3_64_digest(packed)) + packed + b"\0"


def unpack_moves(data: bytes) -> Iterator[tuple[Intent, bool]]:
    """Yield the intents, in order, and whether each is noted as done.

    Raises :class:`ValueError`, after those before it, for a whole frame that we did not write.
    """
    at = 0
    while at + _HEAD.size < len(data):
        length, digest = _HEAD.unpack_from(data, at)
        start, at = at + _HEAD.size, at + _HEAD.size + length + 1
        packed = data[start : at - 1]
        if not length or len(data) < at or xxh3_64_digest(packed) != digest:
            return
        try:
            value = unpack(packed)
            check(value, _SHAPE)
            if len(value["seqs"]) != len(value["ids"]):
                raise ValueError("fields 'seqs' and 'ids' differ in length")
        except ValueError as error:
            raise ValueError(f"at offset {start}: {error}") from error
        yield Intent(**value), data[at - 1 : at] == DONE


def sound_moves(data: bytes) -> tuple[list[tuple[Intent, bool]], str | None]:
    """Return the intents up to a frame that we did not write, and what is wrong with that, if there
    is one."""
    moves: list[tuple[Intent, bool]] = []
    try:
        moves.extend(unpack_moves(data))
    except ValueError as error:
        return moves, str(error)
    return moves, None
