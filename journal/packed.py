"""msgpack of bytes that somebody else may have written, in memory in proportion to them.

An array's head claims a count, and the unpacker makes room for it before it looks for the elements:
five bytes ask for as much as the whole input would justify, and heads nest. So counts are believed
up to a bound at first; an input that claims more has to hold what it claims, which a walk that
builds nothing finds out.
"""

from __future__ import annotations

from typing import Any

import msgpack

_MODEST = 128
"""Elements of one array or map that are believed at sight: a megabyte if nested to the limit."""


def unpack(data: bytes | memoryview) -> Any:
    """Return the one value that ``data`` holds. Maps may have any keys that can be hashed.

    O(length) in time and memory. Raises :class:`ValueError` for anything else.
    """
    try:
        try:
            return msgpack.unpackb(
                data, strict_map_key=False, max_array_len=_MODEST, max_map_len=_MODEST
            )
        except ValueError as error:
            if "exceeds max_" not in str(error):
                raise
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(data))
        unpacker.feed(data)
        unpacker.skip()
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:
        raise ValueError(f"no msgpack: {str(error) or type(error).__name__}") from error
