"""State maps of segments: packed and loaded again; the segments of a queue in their order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qindex.index.segment import ACKED, DELIVERED, PUBLISHED, Segment, Segments

COUNT = 64


@given(st.binary(min_size=COUNT, max_size=COUNT).map(lambda raw: bytes(one % 4 for one in raw)))
def test_what_is_packed_is_loaded_again(states: bytes) -> None:
    segment = Segment(3, COUNT)
    places = np.arange(COUNT, dtype=np.int64)
    segment.load(bytearray(states), places, places)
    unacked = segment.unacked
    segment.pack()
    assert not segment.loaded
    assert segment.unacked == unacked
    assert segment.unpack()
    assert (bytes(segment.states), bytes(segment.filed)) == (states, states)
    assert segment.offsets is None  # to be found in the file
    assert not segment.unpack()


def test_one_that_was_unloaded_has_nothing_packed() -> None:
    segment = Segment(0, COUNT)
    segment.states[0] = PUBLISHED
    segment.filed[0] = PUBLISHED
    segment.unload()
    assert not segment.unpack()
    assert segment.unacked == 1


def test_packed_maps_are_small() -> None:
    segment = Segment(0, 16_384)
    segment.states[100:200] = bytes([DELIVERED]) * 100
    segment.states[:100] = bytes([ACKED]) * 100
    segment.filed = bytearray(segment.states)
    segment.pack()
    assert len(segment.packed) < 200


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20))))
def test_segments_are_gone_through_in_order(steps: list[tuple[bool, int]]) -> None:
    segments = Segments({7: Segment(7, 1), 5: Segment(5, 1)})
    there = {5, 7}
    for adds, number in steps:
        if adds:
            segments[number] = Segment(number, 1)
            there.add(number)
        elif number in there:
            del segments[number]
            there.remove(number)
        assert list(segments) == sorted(there)
        assert [one.number for one in segments.values()] == sorted(there)
        assert segments.following(number) == min((n for n in there if n >= number), default=None)
