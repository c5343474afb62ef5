"""The writer of a journal's sum file: room, growth, what can't be written, calls cut short."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_digest

from journal.block_sums import BLOCK, check_room, check_sums, extent, extents, heal, without_room
from journal.findings import Cause, Kind
from journal.fs.files import RealFileSystem
from journal.sum_file import SumFile
from tests.faulty_fs import FaultyFileSystem
from tests.recording_fs import RecordingFileSystem, crash_states

DATA = bytes(range(1, 251)) * 400
STEP = 100


def extents_of(sums: bytes) -> list[tuple[int, int]]:
    return [(offset, length) for _, _, offset, length in extents(sums)]


def append(sums: SumFile, numbers: range) -> None:
    for at in range(numbers.start * STEP, numbers.stop * STEP, STEP):
        sums.append(extent(DATA[at : at + STEP], at))


def test_there_is_room_behind_the_last_extent_until_it_is_closed(tmp_path: Path) -> None:
    sums = SumFile(RealFileSystem(), tmp_path / "journal.jif")
    file = tmp_path / "journal.jif.sum"
    assert not file.exists()
    append(sums, range(3))
    content = file.read_bytes()
    assert len(content) == 4096
    assert without_room(content) == content[: 3 * 24]
    assert content[3 * 24 :].count(0) == 4096 - 3 * 24
    assert list(check_sums("journal.jif", DATA, without_room(content))) == []
    append(sums, range(3, 1000))
    sums.close()
    content = file.read_bytes()
    assert extents_of(content) == [(number * STEP, STEP) for number in range(1000)]
    assert without_room(content) == content
    assert heal(DATA, content).sound == len(DATA)


def test_what_stands_behind_a_head_of_zeros_does_not_count() -> None:
    first, second = extent(DATA[:STEP], 0), extent(DATA[STEP : 2 * STEP], STEP)
    assert without_room(b"") == b""
    assert without_room(first + bytes(16) + second[16:] + bytes(100)) == first
    assert without_room(first + second + bytes(7)) == first + second
    being_appended = first + bytes(16) + second[16:] + bytes(100)
    (torn,) = check_room("journal.jif", being_appended)
    assert (torn.offset, torn.length, torn.cause) == (24, 24, Cause.CRASH)
    assert list(check_room("journal.jif", first + bytes(100))) == []
    (flipped,) = check_room("journal.jif", first + bytes(50) + b"\x20" + bytes(50))
    assert (flipped.offset, flipped.length, flipped.kind) == (74, 1, Kind.CORRECTED)
    # Other bytes than zeros are no room: they are looked at.
    assert without_room(first + second[:8]) == first + second[:8]
    assert len(list(check_sums("journal.jif", DATA, first + b"?" * 16))) == 1


@pytest.mark.parametrize("operation", ["open", "fallocate", "mmap"])
def test_one_that_can_not_grow_goes_and_the_next_begins_anew(
    tmp_path: Path, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem()
    sums = SumFile(fs, tmp_path / "journal.jif")
    file = tmp_path / "journal.jif.sum"
    append(sums, range(170))
    fs.fail(operation, errno.ENOSPC)
    append(sums, range(170, 171))
    assert not file.exists()
    assert "can't be written" in caplog.text
    append(sums, range(171, 173))
    assert extents_of(file.read_bytes()) == [(171 * STEP, STEP), (172 * STEP, STEP)]
    sums.remove()
    assert not file.exists()
    append(sums, range(2))
    fs.fail("truncate", errno.EIO)
    sums.close()
    assert "can't be cut off" in caplog.text
    assert extents_of(file.read_bytes()) == [(0, STEP), (STEP, STEP)]


class _Interrupted(mmap.mmap):
    """A map in which a signal's handler raises after a store."""

    after = 0

    def __setitem__(self, key: Any, value: Any, /) -> None:
        super().__setitem__(key, value)
        type(self).after -= 1
        if type(self).after == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 2])
def test_a_call_that_is_cut_short_leaves_nothing_behind(tmp_path: Path, after: int) -> None:
    class InterruptedFileSystem(RealFileSystem):
        @staticmethod
        def mmap(fd: int, length: int, writable: bool, /) -> mmap.mmap:
            return _Interrupted(fd, length)

    sums = SumFile(InterruptedFileSystem(), tmp_path / "journal.jif")
    append(sums, range(2))
    _Interrupted.after = after
    with pytest.raises(KeyboardInterrupt):
        sums.append(extent(bytes(9000), 2 * STEP))
    content = (tmp_path / "journal.jif.sum").read_bytes()
    assert not any(content[2 * 24 :])
    append(sums, range(2, 4))
    sums.close()
    content = (tmp_path / "journal.jif.sum").read_bytes()
    assert extents_of(content) == [(number * STEP, STEP) for number in range(4)]


def test_sound_bytes_end_at_a_gap_and_at_a_block_that_does_not_hold() -> None:
    first, second, third = (extent(DATA[at : at + 9000], at) for at in (0, 9000, 18000))
    assert heal(DATA, first + second + third).sound == 27000
    assert heal(DATA, first + third).sound == 9000
    assert heal(DATA, second + third).sound == 0
    broken = bytearray(DATA)
    broken[13500] ^= 0x81
    healed = heal(bytes(broken), first + second + third)
    assert (healed.sound, healed.broken, healed.end) == (9000 + 4096, [9000 + 4096], 27000)
    flipped = bytearray(first + second + third)
    flipped[-1] ^= 1
    assert heal(DATA, bytes(flipped)).sound == 18000 + 8192


def test_every_crash_leaves_sums_that_hold(tmp_path: Path) -> None:
    """Of a process that dies they are those of the appends that returned; after a loss of power
    some may be missing, or not hold, and nothing is put right by them that was not wrong."""
    fs = RecordingFileSystem(tmp_path)
    sums = SumFile(fs, tmp_path / "journal.jif")
    append(sums, range(5))
    sums.close()
    whole = [(number * STEP, STEP) for number in range(5)]
    kept = []
    for state in crash_states(fs):
        content = state.files.get("journal.jif.sum", b"")
        found = extents_of(content)
        assert found == whole[: len(found)]
        assert heal(DATA, content, power_lost=True).fixed == []
        if state.how == "kill":
            kept.append(len(found))
            assert heal(DATA, content).broken == []
            assert extents_of(without_room(content)) == found
            assert list(check_sums("journal.jif", DATA, without_room(content))) == []
    assert set(kept) == set(range(6))


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_each_block_has_its_checksum_and_so_has_what_is_left(size: int) -> None:
    data = bytes(at * 7 % 251 for at in range(size))
    sums = [xxh3_64_digest(data[at : at + BLOCK]) for at in range(0, size, BLOCK)]
    for each in (data, bytearray(data), memoryview(data)):
        assert extent(each, 8192)[16:] == b"".join(sums)
