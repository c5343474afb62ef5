"""The segment's bytes, held against the worked example of the module's text."""

from __future__ import annotations

import re

import pytest

from qindex.format import segment as segment_format
from qindex.format.segment import file_name, file_number
from qindex.index.segment import ABSENT, ACKED, DELIVERED, OUT, PUBLISHED, Segment, as_filed
from tests.qindex.support import pack_segment_publish as pack_publish
from tests.qindex.support import pack_step

MSG_ID = bytes(range(16))


def test_worked_example() -> None:
    text = segment_format.__doc__ or ""
    example = text[text.index("Worked example") :].partition("::")[2]
    spelled = example.replace("<16 bytes id>", MSG_ID.hex()).replace("00*8", "00" * 8)
    expected = bytes.fromhex(re.sub(r"\s+", "", spelled))
    assert pack_publish(5, True, MSG_ID, 0, 1, b"\x97\x01") + pack_step(5) * 2 == expected


def test_every_field_stands_where_the_diagram_says() -> None:
    record = pack_publish(0x3FFF, False, MSG_ID, 0x1112131415161718, 0x21222324, b"abc")
    assert record[:2].hex() == "bfff"
    assert record[2:18] == MSG_ID
    assert record[18:26].hex() == "1112131415161718"
    assert record[26:30].hex() == "21222324"
    assert record[30:34].hex() == "00000003"
    assert record[34:] == b"abc"
    assert pack_publish(0, True, MSG_ID, 0, 0, b"")[:2].hex() == "c000"
    assert pack_step(0x3FFF).hex() == "7fff"


@pytest.mark.parametrize("number", [0, 7, 10**15])
def test_names(number: int) -> None:
    assert file_number(file_name(number)) == number


@pytest.mark.parametrize(
    "name", ["", ".idx", "x.idx", "-1.idx", "1.idx.sum", "٣.idx", "1", "1.IDX", "00.idx"]
)
def test_names_of_something_else(name: str) -> None:
    assert file_number(name) is None


def test_counts_of_a_segment() -> None:
    segment = Segment(2, 8)
    assert (segment.base, segment.loaded, segment.dirty, segment.unacked) == (16, True, False, 0)
    segment.states[:5] = bytes((PUBLISHED, DELIVERED, ACKED, OUT, ABSENT))
    assert (segment.unacked, segment.outstanding, segment.dirty) == (3, 1, True)
    assert as_filed(segment.states)[:5] == bytes((1, 2, 3, 2, 0))
    segment.filed = bytearray(as_filed(segment.states))
    assert not segment.dirty
    segment.unload()
    assert (segment.loaded, segment.unacked, segment.outstanding) == (False, 3, 0)
    assert not segment.dirty
    known = Segment.unloaded(3, 8, 5, 100)
    assert (known.base, known.unacked, known.loaded) == (24, 5, False)


def test_a_drained_segment_with_a_file_is_dirty() -> None:
    segment = Segment(0, 4)
    segment.states = bytearray((ACKED, ACKED, ABSENT, ABSENT))
    segment.filed = bytearray(segment.states)
    assert not segment.dirty
    segment.file_size = 10
    assert segment.dirty
