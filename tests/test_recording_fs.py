"""The instrument itself: what it says a crash can leave."""

from __future__ import annotations

import os
from pathlib import Path

from tests.recording_fs import RecordingFileSystem, crash_states


def contents(fs: RecordingFileSystem, name: str, *, first: int = 0) -> set[bytes | None]:
    return {state.files.get(name) for state in crash_states(fs, first=first)}


def test_what_is_not_synced_may_be_absent_cut_or_zero(tmp_path: Path) -> None:
    fs = RecordingFileSystem(tmp_path)
    fd = fs.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    fs.pwrite(fd, b"abcd", 0)
    fs.close(fd)
    assert contents(fs, "f") >= {None, b"", b"a", b"ab", b"abc", b"abcd", bytes(4)}


def test_what_is_synced_stays(tmp_path: Path) -> None:
    fs = RecordingFileSystem(tmp_path)
    fd = fs.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    fs.write(fd, b"abcd")
    fs.fdatasync(fd)
    end = len(fs.log)
    assert contents(fs, "f", first=end) == {None, b"abcd"}  # but its name may be lost
    fs.sync_dir(tmp_path)
    assert contents(fs, "f", first=end + 1) == {b"abcd"}
    fs.write(fd, b"ef")
    fs.close(fd)
    assert contents(fs, "f", first=end + 2) == {b"abcd", b"abcde", b"abcdef", b"abcd\0\0"}


def test_truncation_and_a_hole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcdef")
    fs = RecordingFileSystem(tmp_path)
    fd = fs.open(tmp_path / "f", os.O_RDWR)
    fs.truncate(fd, 2)
    fs.pwrite(fd, b"Z", 4)
    fs.close(fd)
    seen = contents(fs, "f")
    assert seen >= {b"abcdef", b"ab", b"ab\0\0Z"}
    assert b"abcdZf" not in seen  # what is written behind a cut is not there without it


def test_a_rename_is_done_or_not_and_nothing_between(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"1")
    (tmp_path / "new").write_bytes(b"2")
    fs = RecordingFileSystem(tmp_path)
    fs.rename(tmp_path / "old", tmp_path / "new")
    assert {tuple(sorted(state.files.items())) for state in crash_states(fs)} == {
        (("new", b"2"), ("old", b"1")),
        (("new", b"1"),),
    }


def test_a_removal_may_come_before_an_earlier_creation(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"1")
    fs = RecordingFileSystem(tmp_path)
    fs.close(fs.open(tmp_path / "new", os.O_RDWR | os.O_CREAT))
    fs.unlink(tmp_path / "old")
    names = {frozenset(state.files) for state in crash_states(fs)}
    assert names == {
        frozenset({"old"}),
        frozenset({"old", "new"}),
        frozenset({"new"}),
        frozenset(),
    }


def test_a_directory_that_is_lost_takes_its_files_along(tmp_path: Path) -> None:
    fs = RecordingFileSystem(tmp_path)
    fs.mkdir(tmp_path / "d")
    fd = fs.open(tmp_path / "d" / "f", os.O_RDWR | os.O_CREAT)
    fs.write(fd, b"x")
    fs.fdatasync(fd)
    fs.sync_dir(tmp_path / "d")
    end = len(fs.log)
    assert contents(fs, "d/f", first=end) == {None, b"x"}
    fs.sync_dir(tmp_path)
    fs.close(fd)
    assert contents(fs, "d/f", first=end + 1) == {b"x"}


def test_stores_into_a_map_are_seen_and_need_a_sync(tmp_path: Path) -> None:
    fs = RecordingFileSystem(tmp_path)
    fd = fs.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    fs.fallocate(fd, 0, 8192)
    fs.fdatasync(fd)
    fs.sync_dir(tmp_path)
    mapped = fs.mmap(fd, 8192, True)
    end = len(fs.log)
    mapped[5:8] = b"abc"
    mapped[5000:5001] = b"d"
    fs.note("stored")
    both = bytearray(8192)
    both[5:8], both[5000] = b"abc", ord("d")
    only_second = bytearray(8192)
    only_second[5000] = ord("d")
    seen = contents(fs, "f", first=end)
    assert {bytes(8192), bytes(both), bytes(only_second)} <= seen
    fs.fdatasync(fd)
    assert contents(fs, "f", first=len(fs.log)) == {bytes(both)}
    mapped.close()
    fs.close(fd)
    fs.forget_descriptors()


def test_notes_belong_to_what_came_before(tmp_path: Path) -> None:
    fs = RecordingFileSystem(tmp_path)
    fs.note("begin")
    fs.close(fs.open(tmp_path / "f", os.O_RDWR | os.O_CREAT))
    fs.note("end")
    seen = {(state.notes, "f" in state.files) for state in crash_states(fs)}
    assert seen == {
        ((), False),
        (("begin",), False),
        (("begin",), True),
        (("begin", "end"), True),
        (("begin", "end"), False),
    }


def test_a_state_can_be_built(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    fs = RecordingFileSystem(root)
    fs.mkdir(root / "d")
    fd = fs.open(root / "d" / "f", os.O_RDWR | os.O_CREAT)
    fs.write(fd, b"x")
    fs.close(fd)
    *_, last = (state for state in crash_states(fs) if state.how == "kill")
    built = last.build(tmp_path / "built")
    assert (built / "d" / "f").read_bytes() == b"x"
