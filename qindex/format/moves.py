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
from typing import Any

import msgpack
from xxhash import xxh3_64_digest

from journal.packed import unpack

__all__ = ["DONE", "Intent", "pack_intent", "unpack_moves"]

DONE = b"\1"
_HEAD = struct.Struct(">I8s")
_SHAPE = {
    "boot": bytes,
    "source": str,
    "target": str,
    "first": int,
    "seqs": list,
    "ids": list,
}


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
    """Give the frame of an intent; its last byte becomes :data:`DONE` when it is done."""
    packed: bytes = msgpack.packb(asdict(intent))
    return _HEAD.pack(len(packed), xxh3_64_digest(packed)) + packed + b"\0"


def unpack_moves(data: bytes) -> Iterator[tuple[Intent, bool]]:
    """Give the intents, in order, and whether each is noted as done."""
    at = 0
    while at + _HEAD.size < len(data):
        length, check = _HEAD.unpack_from(data, at)
        start, at = at + _HEAD.size, at + _HEAD.size + length + 1
        packed = data[start : at - 1]
        if not length or len(data) < at or xxh3_64_digest(packed) != check:
            return
        try:
            value = unpack(packed)
        except ValueError:
            return
        if not _is_frame(value):
            return
        yield Intent(**value), data[at - 1 : at] == DONE


def _is_frame(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == _SHAPE.keys()
        and all(isinstance(value[name], kind) for name, kind in _SHAPE.items())
        and all(isinstance(one, int) for one in value["seqs"])
        and all(isinstance(one, bytes) for one in value["ids"])
        and len(value["seqs"]) == len(value["ids"])
    )
