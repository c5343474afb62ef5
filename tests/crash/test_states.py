"""The instrument: which states the generator gives, and what the program makes of a failure."""

from __future__ import annotations

import os
import re

import pytest

from journal.journal import Journal
from tests.crash.__main__ import main
from tests.crash.disk import Data, Disk
from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Limits
from tests.crash.randomly import random_workload
from tests.crash.shrink import as_test, shrink
from tests.crash.states import Bounds, kill_states, power_states
from tests.memory_fs import MemoryFileSystem
from tests.recording_fs import RecordingFileSystem

_BOUNDS = Bounds(product=64, pairs=64, subset=3, moments=4)


def recorded(files: dict[str, bytes] | None = None) -> RecordingFileSystem:
    return RecordingFileSystem("/", MemoryFileSystem(files))


def after(fs: RecordingFileSystem) -> Disk:
    disk = fs.start.copy()
    for operation in fs.log:
        disk.take(operation)
    return disk


def powered_off(fs: RecordingFileSystem) -> list[dict[str, bytes]]:
    return [state.files for state in power_states(after(fs), _BOUNDS)]


def test_sectors_are_of_any_moment() -> None:
    fs = recorded({"f": bytes(2048)})
    fd = fs.open("/f", os.O_RDWR)
    fs.pwrite(fd, b"1" * 600, 0)
    fs.pwrite(fd, b"2" * 600, 600)
    seen = [files["f"] for files in powered_off(fs)]
    full = b"1" * 600 + b"2" * 600 + bytes(848)
    without_middle = full[:512] + bytes(512) + full[1024:]
    middle_before_the_second = full[:512] + b"1" * 88 + bytes(424) + full[1024:]
    assert {full, bytes(2048), without_middle, middle_before_the_second} <= set(seen)
    assert b"1" * 300 + bytes(1748) not in seen  # a sector is whole, or not there


def test_a_longer_file_is_cut_anywhere_or_zero_filled() -> None:
    fs = recorded({"f": b"old"})
    fd = fs.open("/f", os.O_RDWR | os.O_APPEND)
    fs.write(fd, b"abcdef")
    assert {files["f"] for files in powered_off(fs)} >= {
        b"old",
        b"olda",
        b"oldabcde",
        b"oldabcdef",
        b"old" + bytes(6),
    }


def test_what_was_cut_off_is_not_mixed_with_what_came_later() -> None:
    fs = recorded({"f": b"o" * 1024})
    fd = fs.open("/f", os.O_RDWR)
    fs.truncate(fd, 0)
    fs.fallocate(fd, 0, 1024)
    fs.pwrite(fd, b"n" * 1024, 0)
    assert all(not {*b"on"} <= {*files["f"]} for files in powered_off(fs))


def test_a_kill_cuts_only_what_was_under_way() -> None:
    fs = recorded({"f": b""})
    fd = fs.open("/f", os.O_RDWR)
    fs.pwrite(fd, b"a" * 100, 0)
    fs.pwrite(fd, b"b" * 100, 100)
    last = fs.log[-1]
    assert isinstance(last, Data)
    seen = {state.files["f"] for state in kill_states(after(fs), last)}
    assert all(content.startswith(b"a" * 100) for content in seen)
    assert {b"a" * 100 + b"b" * 100, b"a" * 100 + b"b"} <= seen
    assert len(list(kill_states(after(fs), None))) == 1


def test_names_are_done_each_for_itself_in_any_directory() -> None:
    fs = recorded({"d/old": b"1", "e/f": b"2"})
    fs.unlink("/d/old")
    fs.rename("/e", "/g")
    fs.close(fs.open("/g/new", os.O_RDWR | os.O_CREAT))
    seen = {frozenset(files) for files in powered_off(fs)}
    assert seen == {
        frozenset(named)
        for first in ({"d/old"}, set())
        for named in (
            first | {"e/f"},
            first | {"g/f"},
            first | {"e/f", "e/new"},
            first | {"g/f", "g/new"},
        )
    }


def test_a_renamed_directory_keeps_what_is_in_it() -> None:
    fs = recorded({"e/f": b"2"})
    fs.rename("/e", "/g")
    fs.sync_dir("/")
    fd = fs.open("/g/f", os.O_RDWR)
    fs.pwrite(fd, b"3", 0)
    fs.fdatasync(fd)
    assert powered_off(fs) == []
    (state,) = kill_states(after(fs), None)
    assert state.files == {"g/f": b"3"}


def test_equal_states_have_equal_keys() -> None:
    fs = recorded({"f": b"x"})
    fd = fs.open("/f", os.O_RDWR)
    fs.pwrite(fd, b"x", 0)
    assert len({state.key for state in power_states(after(fs), _BOUNDS)}) == 1


def test_a_seed_gives_one_workload() -> None:
    assert random_workload(7) == random_workload(7)
    assert random_workload(7) != random_workload(8)


@pytest.mark.rotates(3)
@pytest.mark.interpreted  # the owner's plan is replaced
def test_the_program_finds_shrinks_and_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--jobs", "1", "--states", "100", "--workload", "creation", "--quick"]) == 0
    assert re.search(r"distinct states in .* a second; 0 workloads failed", capsys.readouterr().out)

    monkeypatch.setattr(Journal, "is_durable", lambda self: True)
    workload = Workload("lossy", (("publish", "a"), ("publish", "a", "ttl"), ("close",)))
    limits = Limits(second=0)
    (failure,) = Explorer(limits).explore(workload).failures
    shortest = shrink(failure, limits, 60)
    assert len(shortest.workload.steps) < 3
    assert ("close",) in shortest.workload.steps
    text = as_test(shortest)
    assert "Workload(" in text
    assert "('close',)" in text
    made = eval("(" + text.split("\n", text.count("#"))[-1].strip().rstrip(",") + ")")
    assert made.steps == shortest.workload.steps
