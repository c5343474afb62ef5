"""DETS version 9: the file in which a node keeps the terms of a clean stop (``recovery.dets``).

A DETS file is a hash table of Erlang tuples (all integers big-endian)::

    offset  bytes
         0      4  free list pointer
         4      4  cookie 00 ab cd ef
         8      4  1 = closed properly, 0 = open, or its process was killed
        12      4  type: 1 = set
        16      4  version 9
        20      4  M        24  4  Next = slots in use        28  4  position of the key
        32     12  ...      44 12  ...
        56    112  counters of the buddy system
       168     16  MD5 of bytes 12..168, or zeros
       184      4  base of the buddy system; the file's last 4 bytes + this = the file's size
       188    124  reserved
       312   1024  256 pointers to segment array parts
      1336   2048  the first such part: 512 pointers to segments
               ..  a segment: 256 slots of (u32 size, u32 pointer to a collection)

    a collection: all objects whose keys hash to one slot
        u32 size of the whole | u32 status | { u32 4 + n | n bytes, an external term } ...
        status 12 34 56 78 = in use, 03 ab cd ef = free

A file that was closed properly is read through its slots, which name exactly the objects that are
alive. A file that was not is searched for collections in use, as the node does to repair it. An
object may turn up there twice, and it can't be told which copy is the newer.

Source: the description of the layout in OTP's dets module, version 9(d), and files that RabbitMQ
3.10.8 on Erlang 25 wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from qindex.format.rabbitmq.term_format import Term, TermError, decode

COOKIE: Final = 0x00AB_CDEF
VERSION: Final = 9
TYPE_SET: Final = 1
ACTIVE: Final = 0x1234_5678

_MD5_FROM: Final = 12
_MD5_AT: Final = 168
_BASE_AT: Final = 184
_PARTS_AT: Final = 312
_PARTS: Final = 256
_PART_SEGMENTS: Final = 512
_SEGMENT_SLOTS: Final = 256
_OBJECTS_AT: Final = _PARTS_AT + 4 * _PARTS
_COLLECTION_HEAD: Final = 8

_U32 = Struct(">I")
_PAIR = Struct(">II")
_HEADER = Struct(">8I")


@dataclass(frozen=True, slots=True)
class DetsTable:
    """The content of a DETS file.

    ``objects`` are the tuples (in no order), ``closed_properly`` tells how they were found, and
    ``problems`` has a line for each place that could not be read.
    """

    objects: list[Term]
    closed_properly: bool
    problems: list[str]


def read_table(data: bytes) -> DetsTable:
    """Read all objects of a DETS file of type ``set``. O(size of the file).

    Raises :class:`TermError` where the file is not a DETS file at all, which is where a node would
    refuse it too; a bad object inside is a line in ``problems``.
    """
    slots, closed = _check_header(data)
    problems: list[str] = []
    found = _live_collections(data, slots, problems) if closed else _scanned_collections(data)
    objects: list[Term] = []
    for start, end in found:
        objects.extend(_objects(data, start, end, problems))
    return DetsTable(objects, closed, problems)


def _check_header(data: bytes) -> tuple[int, bool]:
    """Return the number of slots, and whether the file was closed properly."""
    if len(data) < _OBJECTS_AT + 4:
        raise TermError(f"no DETS file: {len(data)} bytes", 0)
    _free, cookie, closed, kind, version, _m, slots, _key = _HEADER.unpack_from(data)
    if cookie != COOKIE or version != VERSION:
        raise TermError(f"no DETS file of version {VERSION}: wrong cookie or version", 4)
    digest = data[_MD5_AT : _MD5_AT + 16]
    stated = hashlib.md5(data[_MD5_FROM:_MD5_AT], usedforsecurity=False).digest()
    if any(digest) and digest != stated:
        raise TermError("no sound DETS file: the checksum of its header is wrong", _MD5_AT)
    if kind != TYPE_SET:
        raise TermError(f"a DETS file of type {kind}, not a set", 12)
    if closed > 1:
        raise TermError(f"no sound DETS file: closed-properly field {closed}", 8)
    # The size at the end is written by a proper close alone.
    trailer = _U32.unpack_from(data, len(data) - 4)[0] + _U32.unpack_from(data, _BASE_AT)[0]
    return slots, closed == 1 and trailer == len(data)


def _live_collections(data: bytes, slots: int, problems: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of the objects of each used slot: ``(start, end)`` after the collection's
    head."""
    size = len(data)
    seen = 0
    for part in _pointers(data, _PARTS_AT, _PARTS):
        if seen >= slots:
            return
        for segment in _pointers(data, part, _PART_SEGMENTS):
            if seen >= slots:
                return
            in_segment = min(_SEGMENT_SLOTS, slots - seen)
            seen += in_segment
            if not _OBJECTS_AT <= segment <= size - _PAIR.size * in_segment:
                problems.append(f"a segment pointer leads to byte {segment}, outside of the file")
                continue
            for at in range(segment, segment + _PAIR.size * in_segment, _PAIR.size):
                length, start = _PAIR.unpack_from(data, at)
                if not length:
                    continue
                end = start + length
                if start < _OBJECTS_AT or end > size or length < _COLLECTION_HEAD:
                    problems.append(f"the slot at byte {at} leads outside of the file")
                elif _PAIR.unpack_from(data, start) != (length, ACTIVE):
                    problems.append(f"the slot at byte {at} leads to something else than objects")
                else:
                    yield start + _COLLECTION_HEAD, end
    if seen < slots:
        problems.append(f"has pointers to {seen} of {slots} slots")


def _pointers(data: bytes, at: int, count: int) -> Iterator[int]:
    """The pointers of a table at ``at``, up to the first zero."""
    for offset in range(at, min(at + 4 * count, len(data) - 3), 4):
        pointer = _U32.unpack_from(data, offset)[0]
        if not pointer:
            return
        yield pointer


def _scanned_collections(data: bytes) -> Iterator[tuple[int, int]]:
    """Positions of whatever carries the mark of a collection in use, as the slots would give."""
    mark = _U32.pack(ACTIVE)
    at = data.find(mark, _OBJECTS_AT + 4)
    while at >= 0:
        start = at + 4
        end = at - 4 + _U32.unpack_from(data, at - 4)[0]
        if start < end <= len(data):
            yield start, end
            start = end
        at = data.find(mark, start)


def _objects(data: bytes, start: int, end: int, problems: list[str]) -> Iterator[Term]:
    """The objects of one collection."""
    pos = start
    while pos < end:
        stop = pos + _U32.unpack_from(data, pos)[0] if pos + 4 <= end else 0
        if not pos + 4 < stop <= end:
            problems.append(f"an object at byte {pos} does not fit into its collection")
            return
        try:
            value, behind = decode(data[pos + 4 : stop])
        except TermError as error:
            problems.append(f"the object at byte {pos} is not a term: {error}")
        else:
            if behind == stop - pos - 4:
                yield value
            else:
                problems.append(f"the object at byte {pos} has bytes after its term")
        pos = stop
