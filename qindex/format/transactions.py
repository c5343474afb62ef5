"""The bytes of ``qindex.transactions``: what the transactions of a run have published, and which of
them are committed. A move of messages to another queue is a transaction.

::

    0        4              12             12 + length
    +--------+--------------+--------------+------+
    | length | xxh3 (8)     | msgpack      | 0xff |   one frame after the other
    +--------+--------------+--------------+------+

    [number, queue, first seq_id, [message id, ...]]       published, before it is in the queue
    [number, boot id, [[queue, [seq_id, ...]], ...]]       committed, with what it acknowledges

Integers are big-endian. The number is written as a msgpack uint 64, whatever it is, and any integer
is read. Zeros may follow the last frame: the file is extended ahead of need.

The boot id names the run of the operating system, empty if unknown, or is :data:`SYNCED`. A move of
several messages has all of them in one frame, and acknowledges as many, in the same order.

A transaction without a frame of its commit never happened. The last frame may be torn by a crash:
then the step that it announces had not begun. Any other frame whose checksum is wrong is damaged.
If there is one, no transaction is taken for uncommitted: a message too many is better than one too
few.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgpack
from xxhash import xxh3_64_digest

from journal.findings import Cause, Finding, Kind
from journal.memory import words
from journal.packed import unpack
from journal.schema import Bytes, Int, ListOf, Record, Row, Text, check
from qindex.format.layout import MAX_NAME_BYTES
from qindex.format.priorities import LOW, SHIFT

SYNCED = b"synced"
"""The boot id of a commit whose messages were durable before it."""
_HEAD = struct.Struct(">I8s")
_END = b"\xff"
_ROOM = bytes(4096)
_PUBLISHES, _COMMITS = b"\x94\xcf", b"\x93\xcf"
"""A list, and the type of its first item, the number."""
_LENGTH = struct.Struct(">I")
_NUMBER_OF = struct.Struct(">14xQ")
"""The number in a frame that was written here."""
_AROUND = _HEAD.size + 1
"""Bytes of a frame beside its content."""
_UINT64 = b"\xcf"
_ONE_ID = b"\x91\xc4\x10"
"""A list of one item, of 16 bytes."""
_ONE_ACK, _ONE_SEQ = b"\x91\x92", b"\x91\xcf"
"""A list of one item, a list of a name and of a list of one item, a seq_id."""
_NUMBER = Int(0, (1 << 64) - 1)
_NAME = Text(MAX_NAME_BYTES, least=1)
_SEQ = Int(0, (1 << 63) - 1)
_PUBLISHED = Row((_NUMBER, _NAME, _SEQ, ListOf(Bytes(16, 16))))
_COMMITTED = Row((_NUMBER, Bytes(0, 64), ListOf(Row((_NAME, ListOf(_SEQ))))))
_MOVE = Record(
    {
        "boot": Bytes(0, 64),
        "source": _NAME,
        "target": _NAME,
        "first": _SEQ,
        "seqs": ListOf(_SEQ),
        "ids": ListOf(Bytes(16, 16)),
    }
)
_pack = msgpack.Packer().pack

Acks = list[tuple[str, list[int]]]
"""seq_ids by the name of their queue."""


@dataclass(frozen=True, slots=True)
class Published:
    """Messages with these ids, which have the seq_ids ``first, first + 1, ...`` of ``queue``."""

    queue: str
    first: int
    ids: list[bytes]

    @property
    def seqs(self) -> range:
        """The seq_ids, with the priority in their top bits."""
        return range(self.first, self.first + len(self.ids))


@dataclass(slots=True)
class Noted:
    """The notes of one transaction. ``boot``: the run of the operating system in which it was
    committed, :data:`SYNCED`, or empty if unknown; None: it was not committed. ``acks``: what it
    acknowledges."""

    published: list[Published] = field(default_factory=list)
    boot: bytes | None = None
    acks: Acks = field(default_factory=list)

    def is_certain(self, boot: bytes) -> bool:
        """Return whether no loss of power can have taken what it has published."""
        return self.boot == SYNCED or (bool(boot) and self.boot == boot)

    def acked(self, there: Callable[[Published], Container[int]]) -> Iterator[tuple[str, int]]:
        """Yield queue and seq_id of each message that it acknowledges; ``there`` gives which
        seq_ids of those published have arrived. All must have arrived, but each message of a move
        counts for itself."""
        if len(self.published) == len(self.acks) == 1:
            one, (queue, seqs) = self.published[0], self.acks[0]
            if len(one.ids) == len(seqs):
                found = there(one)
                yield from ((queue, seq) for at, seq in enumerate(seqs, one.first) if at in found)
                return
        for one in self.published:
            found = there(one)
            if not all(seq in found for seq in one.seqs):
                return
        for queue, seqs in self.acks:
            yield from ((queue, seq) for seq in seqs)


def pack_name(queue: str) -> tuple[bytes, bytes]:
    """Return the name of a queue as :func:`pack_published` and :func:`pack_ack` take it."""
    name = _pack(queue)
    return name + _UINT64, _ONE_ACK + name + _ONE_SEQ


def pack_boot(boot: bytes) -> bytes:
    """Return the name of a run of the operating system as :func:`pack_committed` takes it."""
    packed: bytes = _pack(boot)
    return packed


def pack_published(number: int, name: bytes, seq_id: int, msg_id: bytes) -> bytes:
    """Return the frame of a message that a transaction is about to publish."""
    return words.join_frame(_PUBLISHES, number, name, seq_id, _ONE_ID, msg_id)


def pack_batch(number: int, queue: str, first: int, ids: list[bytes]) -> bytes:
    """Return the frame of messages that a transaction is about to publish together."""
    return _frame(_PUBLISHES, number, pack_name(queue)[0] + first.to_bytes(8, "big") + _pack(ids))


def pack_ack(number: int, boot: bytes, name: bytes, seq_id: int) -> bytes:
    """Return the frame of a commit that acknowledges one message."""
    return words.join_frame(_COMMITS, number, boot + name, seq_id, b"", b"")


def pack_committed(number: int, boot: bytes, acks: Acks) -> bytes:
    """Return the frame of any commit."""
    return _frame(_COMMITS, number, boot + _pack(acks))


def _frame(start: bytes, number: int, rest: bytes) -> bytes:
    packed: bytes = start + number.to_bytes(8, "big") + rest
    return _HEAD.pack(len(packed), xxh3_64_digest(packed)) + packed + _END


def frames_of(data: bytes, numbers: Container[int]) -> bytes:
    """Return the frames of these transactions among sound ones, all made here."""
    kept, at = [], 0
    while at < len(data):
        end = at + _AROUND + _LENGTH.unpack_from(data, at)[0]
        if _NUMBER_OF.unpack_from(data, at)[0] in numbers:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def read_transactions(data: bytes) -> tuple[dict[int, Noted], list[int]]:
    """Return the notes of each transaction, by its number, and the offsets of damaged frames.

    Where there are any, transactions without a commit have a ``boot`` that is empty.
    """
    found: dict[int, Noted] = {}
    damaged: list[int] = []
    for at, value in _values(data):
        if value is None:
            damaged.append(at)
            continue
        noted = found.setdefault(value[0], Noted())
        if len(value) == 4:
            noted.published.append(Published(*value[1:]))
        else:
            noted.boot = value[1]
            noted.acks = [(queue, seqs) for queue, seqs in value[2]]
    for noted in found.values() if damaged else ():
        noted.boot = noted.boot or b""
    return found, damaged


def read_noted(data: bytes, moves: bytes) -> list[Noted]:
    """Return all that ``qindex.transactions`` has noted, and a ``qindex.moves`` before it."""
    return [*_read_moves(moves), *read_transactions(data)[0].values()]


def _read_moves(data: bytes) -> Iterator[Noted]:
    """Yield the moves in a file ``qindex.moves``, which earlier versions wrote, as transactions.

    Its frames end with a byte that became 1 when the messages were in the target. In another move
    each message that has arrived counts. Reading ends at the first frame that is not sound.
    """
    at = 0
    while at + _HEAD.size < len(data):
        length, digest = _HEAD.unpack_from(data, at)
        start, at = at + _HEAD.size, at + _AROUND + length
        packed = data[start : at - 1]
        if not length or len(data) < at or xxh3_64_digest(packed) != digest:
            return
        try:
            value = unpack(packed)
            check(value, _MOVE)
        except ValueError:
            return
        published = Published(value["target"], value["first"], value["ids"])
        boot = value["boot"] if data[at - 1] == 1 else b""
        yield Noted([published], boot, [(value["source"], value["seqs"])])


def damage_in(path: str, data: bytes) -> list[Finding]:
    """Return the findings of damaged frames in the file ``path``."""
    lost = "messages of transactions that were not committed may be there, and acknowledged ones"
    what, kind = "a damaged record of transactions", Kind.CHECKSUM
    return [
        Finding(path, at, 0, Cause.DAMAGE, what, lost, kind) for at in read_transactions(data)[1]
    ]


def pending_in(data: bytes, queue: str, priority: int) -> frozenset[int]:
    """Return the seq_ids that transactions without a commit have given out in the directory of a
    priority of a queue."""
    return frozenset(_pending(data).get((queue, priority), ()))


@lru_cache(1)
def _pending(data: bytes) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for noted in read_transactions(data)[0].values():
        for one in noted.published if noted.boot is None else ():
            first = one.first & LOW
            seqs = found.setdefault((one.queue, one.first >> SHIFT), [])
            seqs += range(first, first + len(one.ids))
    return found


def _values(data: bytes) -> Iterator[tuple[int, list[Any] | None]]:
    """Yield offset and content of each frame; None for a damaged one. O(n) without damage."""
    end = len(data)
    while data.endswith(_ROOM, 0, end):  # the room after the frames: 8 MiB at most
        end -= len(_ROOM)
    data = data[:end].rstrip(b"\0")
    at = 0
    while at + _HEAD.size < len(data):
        packed, end = _frame_at(data, at)
        if packed is None:
            following = _next_sound(data, at + 1)
            if following < 0 and _is_torn(data, at, end):
                return
            yield at, None
            at = following if following > 0 else len(data)
            continue
        try:
            value = unpack(packed)
            is_commit = isinstance(value, list) and len(value) == 3
            check(value, _COMMITTED if is_commit else _PUBLISHED)
            yield at, value
        except ValueError:
            yield at, None
        at = end


def _frame_at(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return what the frame at an offset holds, None if it is not sound, and its end."""
    length, digest = _HEAD.unpack_from(data, at)
    start, end = at + _HEAD.size, at + _HEAD.size + length + 1
    packed = data[start : end - 1]
    is_sound = length and data[end - 1 : end] == _END and xxh3_64_digest(packed) == digest
    return (packed if is_sound else None), end


def _is_torn(data: bytes, at: int, end: int) -> bool:
    """Whether a crash can have left the last frame as it is: without all of its first 16 bytes,
    which are stored last, or without its end. ``data`` ends with the last byte that is not zero. A
    frame whose length or last byte was damaged still has its checksum."""
    start = at + _HEAD.size
    if not all(data[start : start + len(_COMMITS)]):
        return True
    if data[end - 1 : end] == _END:
        return False
    digest = data[at + _LENGTH.size : start]
    # All before the last byte, or with another length: no byte is missing.
    has_end = len(data) >= end and xxh3_64_digest(data[start : end - 1]) == digest
    return not has_end and xxh3_64_digest(data[start:-1]) != digest


def _next_sound(data: bytes, start: int) -> int:
    """Return the offset of the next sound frame, or -1. O(n)."""
    heads = range(start, len(data) - _HEAD.size)
    return next((at for at in heads if _frame_at(data, at)[0] is not None), -1)
