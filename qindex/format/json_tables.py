"""Headers and properties of many messages as JSON; for the interpreter.

The compiler never sees this file: it takes the same name from ``json_tables.pxd``, which needs a
tenth of the CPU of the unpacker and the encoder that are used here. This function exists twice, so
a test holds the two against each other.
"""

from __future__ import annotations

from array import array
from functools import lru_cache

from journal.fs.files import ReadBuffer
from journal.memory.arrays import I64
from journal.packed import unpack
from qindex.format.json_value import plain_json

JsonTables = tuple[bytes, "array[int]", bytes, "array[int]", bytearray]
_KEPT = 1024
_TWO = b"\x92"
_TABLE = frozenset((dict, type(None)))


def json_tables(data: ReadBuffer, starts: I64, ends: I64, /) -> JsonTables:
    """Return headers and properties as ``qindex cat --json`` prints them.

    The msgpack of both of each message is ``data[starts[i]:ends[i]]``. Returns the texts of all
    headers, and where each begins and the last one ends; the same of the properties; and a byte for
    each message that is 1 where the texts are right. Where it is 0 they are empty: the message has
    no table there, or (compiled) a rare kind of table. :func:`qindex.format.entries.read_entry`
    decodes it.
    Raises :class:`IndexError` for places outside of the data.
    """
    texts: tuple[list[bytes], list[bytes]] = ([], [])
    bounds = (array("i", [0]), array("i", [0]))
    sound = bytearray()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if not 0 <= start <= end <= len(data):
            raise IndexError("the tables lie outside of the data")
        both = _both(bytes(data[start:end]))
        sound.append(both is not None)
        for some, places, text in zip(texts, bounds, both or (b"", b""), strict=True):
            some.append(text)
            places.append(places[-1] + len(text))
    return b"".join(texts[0]), bounds[0], b"".join(texts[1]), bounds[1], sound


@lru_cache(maxsize=_KEPT)
def _both(packed: bytes) -> tuple[bytes, bytes] | None:
    try:
        headers, properties = unpack(_TWO + packed)
        if _TABLE.issuperset((type(headers), type(properties))):
            return plain_json(headers or {}).encode(), plain_json(properties or {}).encode()
    except (ValueError, TypeError):
        pass
    return None
