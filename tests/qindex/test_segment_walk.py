"""Walking a segment: where it stops, and runs read as single records are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.format import DELIVER
from journal.replay import Ending, Walk
from qindex.format.segment_walk import walk_segment
from tests.qindex.support import pack_segment_publish as pack_publish
from tests.qindex.support import pack_step

MSG_ID = b"0123456789abcdef"
COUNT = 500


def walk(data: bytes, *, most: int = 1 << 30, embedded: int = 1 << 32) -> Walk:
    return walk_segment(
        data,
        0,
        len(data),
        first_seq=COUNT,
        entry_count=COUNT,
        max_embedded=embedded,
        max_records=most,
    )


def listed(found: Walk) -> list[tuple[int, int, int, int]]:
    columns = (found.kinds, found.seqs, found.offsets, found.lengths)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def slowly(data: bytes, embedded: int = 1 << 32) -> tuple[list[tuple[int, int, int, int]], int]:
    found = []
    at = 0
    while at + 2 <= len(data):
        head = int.from_bytes(data[at : at + 2], "big")
        rel = head & 0x3FFF
        kind = DELIVER
        length = 2
        if head & 0x8000:
            if at + 34 > len(data):
                break
            size = int.from_bytes(data[at + 30 : at + 34], "big")
            kind, length = 0 if head & 0x4000 else 1, 34 + size
            if size > embedded or at + length > len(data):
                break
        elif not head & 0x4000:
            break
        if rel >= COUNT:
            break
        found.append((kind, COUNT + rel, at, length))
        at += length
    return found, at


RECORDS = [
    pack_publish(0, True, MSG_ID, 0, 3, b"abc"),
    pack_publish(7, False, MSG_ID, 0, 0, b""),
    pack_step(0),
    pack_step(7),
    pack_step(0),
]


@pytest.mark.parametrize("cut", range(len(b"".join(RECORDS)) + 1))
def test_torn_at_every_length(cut: int) -> None:
    borders = list(itertools.accumulate(map(len, RECORDS), initial=0))
    whole = max(border for border in borders if border <= cut)
    found = walk(b"".join(RECORDS)[:cut])
    assert (found.end, len(found)) == (whole, borders.index(whole))
    assert found.ending is (Ending.END if cut == whole else Ending.TORN)


@pytest.mark.parametrize(
    ("tail", "ending"),
    [
        (b"\0\0", Ending.ZEROS),
        (b"\0", Ending.TORN),
        (b"\x3f\xff", Ending.ZEROS),
        (pack_step(COUNT), Ending.LIMIT),
        (pack_publish(COUNT, True, MSG_ID, 0, 0, b""), Ending.LIMIT),
        (pack_publish(1, True, MSG_ID, 0, 0, b"12345"), Ending.LIMIT),
    ],
)
def test_where_it_stops(tail: bytes, ending: Ending) -> None:
    data = b"".join(RECORDS)
    found = walk(data + tail, embedded=4)
    assert (found.end, found.ending) == (len(data), ending)


def test_pauses() -> None:
    data = pack_step(1) * 300
    found = walk(data, most=10)
    assert found.ending is Ending.PAUSE
    assert 10 <= len(found) < 300


PIECE = st.builds(
    lambda rel, size, kind, run: b"".join(
        pack_step(rel + at)
        if kind == 2
        else pack_publish(rel + at, kind == 0, MSG_ID, 0, size, bytes(size))
        for at in range(run)
    ),
    st.integers(0, COUNT + 5),
    st.integers(0, 40),
    st.integers(0, 2),
    st.sampled_from([1, 1, 2, 30, 60]),
)


@given(st.lists(PIECE, max_size=6), st.binary(max_size=40), st.integers(0, 10_000))
def test_runs_are_read_as_single_records_are(pieces: list[bytes], tail: bytes, flip: int) -> None:
    data = bytearray(b"".join(pieces) + tail)
    if data:
        data[flip % len(data)] ^= 1 << flip % 8
    found = walk(bytes(data), embedded=50)
    assert (listed(found), found.end) == slowly(bytes(data), 50)
