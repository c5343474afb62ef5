"""Hypothesis strategies that make near misses of real files."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

__all__ = ["near_misses"]

_TELLING = (
    b"\0",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\0\0\0\0\0\0\0\0",
    b"\x3f\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"l\xff\xff\xff\xfe",
    b"\x97\x01\xcf",
    b"\x83h\x06",
    b"\0" * 64,
)
"""Lengths that promise gigabytes, ends of number ranges, beginnings of records."""

_CHANGE = st.tuples(
    st.sampled_from(["flip", "put", "insert", "cut", "drop", "repeat", "end"]),
    st.integers(0, 1 << 16),
    st.integers(0, 1 << 16),
    st.sampled_from(_TELLING) | st.binary(min_size=1, max_size=12),
)


def _changed(data: bytes, changes: Sequence[tuple[str, int, int, bytes]]) -> bytes:
    content = bytearray(data)
    for what, first, second, piece in changes:
        at = first % (len(content) + 1)
        length = second % 200
        if what == "flip" and at < len(content):
            content[at] ^= 1 << (second & 7)
        elif what == "put":
            content[at : at + len(piece)] = piece
        elif what == "insert":
            content[at:at] = piece
        elif what == "cut":
            del content[at:]
        elif what == "drop":
            del content[at : at + length]
        elif what == "repeat":
            content[at:at] = content[at : at + length]
        elif what == "end":
            content += piece
    return bytes(content)


def near_misses(corpus: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Give real inputs with up to five changes, joins of two of them, and mere noise."""
    real = st.sampled_from(corpus)
    joined = st.builds(
        lambda one, other, at: one[: at % (len(one) + 1)] + other,
        real,
        real,
        st.integers(0, 1 << 16),
    )
    changed = st.builds(_changed, real | joined, st.lists(_CHANGE, min_size=1, max_size=5))
    return changed | st.binary(max_size=100)
