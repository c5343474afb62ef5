"""The scanner against everything that can have happened to a file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.findings import Cause
from journal.fs.files import REAL
from msgstore.format import encode
from msgstore.scan import FileScan, scan_file
from tests.effort import examples
from tests.msgstore.records import check, make_record, message_id, record_of

FRAMED = [encode(message_id(number), record_of(number, 50 + 30 * number)) for number in range(5)]
TOTAL = [len(framed) for framed in FRAMED]


def scan(path: Path, data: bytes, *, verify: bool = False) -> FileScan:
    path.write_bytes(data)
    return scan_file(REAL, path, check=check, max_record=1 << 20, verify=verify)


def numbers(result: FileScan) -> list[int]:
    known = {message_id(number): number for number in range(100)}
    return [known.get(msg_id, -1) for msg_id, _, _ in result.records]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.rdq"


def test_a_whole_file(path: Path) -> None:
    result = scan(path, b"".join(FRAMED))
    assert numbers(result) == [0, 1, 2, 3, 4]
    assert [record[1:] for record in result.records] == [
        (sum(TOTAL[:index]), TOTAL[index]) for index in range(5)
    ]
    assert result.gaps == []
    assert result.end == result.size == sum(TOTAL)
    assert result.orderly
    assert result.searched == 5


def test_an_empty_file(path: Path) -> None:
    result = scan(path, b"")
    assert (result.records, result.gaps, result.end) == ([], [], 0)


def test_every_torn_tail_is_a_crash(path: Path) -> None:
    for cut in range(1, TOTAL[1]):
        result = scan(path, FRAMED[0] + FRAMED[1][:cut])
        assert numbers(result) == [0], cut
        assert [(gap.offset, gap.length, gap.cause) for gap in result.gaps] == [
            (TOTAL[0], cut, Cause.CRASH)
        ]
        assert result.end == TOTAL[0]
        assert result.orderly


@pytest.mark.parametrize("zeros", [1, 7, 8, 23, 24, 25, 4096, 3 << 20])
def test_zeros_at_the_end_and_between(path: Path, zeros: int) -> None:
    result = scan(path, FRAMED[0] + bytes(zeros))
    assert numbers(result) == [0]
    assert [gap.cause for gap in result.gaps] == [Cause.CRASH]
    result = scan(path, FRAMED[0] + bytes(zeros) + FRAMED[1] + FRAMED[2])
    assert numbers(result) == [0, 1, 2]
    assert [(gap.offset, gap.length, gap.cause) for gap in result.gaps] == [
        (TOTAL[0], zeros, Cause.CRASH)
    ]
    assert result.searched == 1
    assert not result.orderly


def test_a_write_cut_at_any_byte_with_the_next_one_whole(path: Path) -> None:
    for cut in range(TOTAL[1]):
        hole = FRAMED[1][:cut] + bytes(TOTAL[1] - cut)
        result = scan(path, FRAMED[0] + hole + FRAMED[2])
        assert numbers(result) == [0, 2], cut
        assert [gap.cause for gap in result.gaps] == [Cause.CRASH]


def test_a_wrong_end_byte_is_skipped_when_zero_and_rescued_when_not(path: Path) -> None:
    zero = scan(path, FRAMED[0][:-1] + b"\0" + FRAMED[1])
    assert numbers(zero) == [1]
    assert [gap.cause for gap in zero.gaps] == [Cause.CRASH]
    other = scan(path, FRAMED[0][:-1] + b"\xfe" + FRAMED[1])
    assert sorted(numbers(other)) == [0, 1]
    assert [(gap.offset, gap.cause) for gap in other.gaps] == [(0, Cause.DAMAGE)]
    last = scan(path, FRAMED[0] + FRAMED[1][:-1] + b"\xfe")
    assert numbers(last) == [0, 1]
    assert [gap.cause for gap in last.gaps] == [Cause.DAMAGE]


@pytest.mark.parametrize("lie", [0, 1, 15, 16, 17, 300, 1 << 20, 1 << 31, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_length_that_lies_loses_nothing(path: Path, lie: int, place: int) -> None:
    parts = [*FRAMED]
    parts[place] = struct.pack(">Q", lie) + parts[place][8:]
    result = scan(path, b"".join(parts), verify=True)
    assert sorted(numbers(result)) == [0, 1, 2, 3, 4]
    assert [gap.cause for gap in result.gaps] == [Cause.DAMAGE]
    assert result.gaps[0].offset == sum(TOTAL[:place])
    rescued = next(record for record in result.records if record[0] == message_id(place))
    assert rescued[2] == TOTAL[place]
    assert not result.orderly


def test_a_length_that_swallows_the_next_record_is_found_when_verifying(path: Path) -> None:
    both = struct.pack(">Q", TOTAL[0] + TOTAL[1] - 9) + FRAMED[0][8:]
    data = both + FRAMED[1] + FRAMED[2]
    assert numbers(scan(path, data)) == [0, 2]
    assert sorted(numbers(scan(path, data, verify=True))) == [0, 1, 2]


def test_a_flipped_bit_in_a_body_is_found_when_verifying(path: Path) -> None:
    damaged = bytearray(FRAMED[1])
    damaged[40] ^= 1
    data = FRAMED[0] + bytes(damaged) + FRAMED[2]
    assert scan(path, data).gaps == []
    result = scan(path, data, verify=True)
    assert numbers(result) == [0, 2]
    (gap,) = result.gaps
    assert (gap.path, gap.offset, gap.cause) == (str(path), TOTAL[0], Cause.DAMAGE)


def test_a_sector_that_never_reached_the_disk_is_a_crash(path: Path) -> None:
    framed = bytearray(encode(message_id(7), record_of(7, 3000)))
    framed[1024:1536] = bytes(512)
    result = scan(path, bytes(framed) + FRAMED[0], verify=True)
    assert numbers(result) == [0]
    assert [gap.cause for gap in result.gaps] == [Cause.CRASH]


@pytest.mark.parametrize("front", range(10))
@pytest.mark.parametrize("lost", ["before", "behind"])
def test_a_lost_sector_at_a_length(path: Path, front: int, lost: str) -> None:
    """The border of two sectors runs through the header, and one of the two is lost."""
    first = encode(message_id(0), make_record(message_id(0), b"x" * (1024 - front - 30)))
    assert len(first) == 1024 - front
    data = bytearray(first + encode(message_id(1), record_of(1, 2000)) + FRAMED[2])
    start = len(first) if lost == "before" else 1024
    data[start : 1024 if lost == "before" else 1536] = bytes(front if lost == "before" else 512)
    result = scan(path, bytes(data), verify=True)
    assert {0, 2} <= set(numbers(result))
    assert all(gap.cause is Cause.CRASH for gap in result.gaps)


@pytest.mark.parametrize("start", [512, 513, 1020])
def test_a_flipped_length_near_a_sector_is_damage_all_the_same(path: Path, start: int) -> None:
    first = encode(message_id(0), make_record(message_id(0), b"x" * (start - 30)))
    second = bytearray(encode(message_id(1), record_of(1, 2000)))
    for position, bit in ((7, 1), (6, 2), (5, 4), (-1, 8)):
        damaged = bytearray(second)
        damaged[position] ^= bit
        result = scan(path, first + bytes(damaged) + FRAMED[2])
        assert sorted(numbers(result)) == [0, 1, 2]
        assert [gap.cause for gap in result.gaps] == [Cause.DAMAGE]


def test_records_inside_a_body_are_not_taken_for_records(path: Path) -> None:
    """A message may hold a whole .rdq file; only behind a gap it is looked into."""
    inner = message_id(50)
    outer = encode(inner, b"\x97" + FRAMED[3] * 3)
    result = scan(path, FRAMED[0] + outer + FRAMED[1])
    assert [record[0] for record in result.records] == [
        message_id(0),
        inner,
        message_id(1),
    ]
    assert result.searched == 3


def test_a_hostile_body_can_not_stall_a_search(path: Path) -> None:
    """Thousands of headers that each promise a long record with an end byte in place."""
    size = 1 << 20
    fake = struct.pack(">Q16s", size // 2, b"f" * 16) + b"\x97"
    body = (fake * (size // len(fake) + 1))[: size // 2] + b"\xff" * (size // 2)
    checked = 0

    def count(msg_id: bytes, record: bytes) -> str | None:
        nonlocal checked
        checked += len(record)
        return check(msg_id, record)

    path.write_bytes(bytes(100) + body)
    result = scan_file(REAL, path, check=count, max_record=1 << 20)
    assert result.records == []
    assert 0 < checked <= 65 * result.size


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=200), at=st.integers(0, 4))
def test_anything_between_two_records(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("scan") / "0.rdq"
    result = scan(path, b"".join(FRAMED[:at]) + data + b"".join(FRAMED[at:]), verify=True)
    assert [number for number in numbers(result) if number >= 0] == [0, 1, 2, 3, 4]


def test_every_flipped_byte_leaves_the_other_records(path: Path) -> None:
    whole = b"".join(FRAMED)
    starts = [sum(TOTAL[:index]) for index in range(6)]
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        result = scan(path, bytes(damaged), verify=True)
        hit = next(index for index in range(5) if position < starts[index + 1])
        assert set(range(5)) - {hit} <= set(numbers(result)), position
        assert [gap.cause for gap in result.gaps] == [Cause.DAMAGE], position
