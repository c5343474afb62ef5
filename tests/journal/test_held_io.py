"""Reads and writes that keep the interpreter's lock: what they give, and raise, is what those of
``os`` do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal import held_io
from journal.compiled import load
from journal.files import REAL
from tests.ways import needs_compiled

pytestmark = needs_compiled

compiled: Any = load("journal")
LIMIT = held_io.MOST_BYTES


class Calls:
    """What was left to the functions of ``os``."""

    def __init__(self) -> None:
        self.reads = self.writes = 0

    def pread(self, *arguments: Any) -> bytes:
        self.reads += 1
        return os.pread(*arguments)

    def pwrite(self, *arguments: Any) -> int:
        self.writes += 1
        return os.pwrite(*arguments)


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    compiled.use(made.pread, made.pwrite, LIMIT, held_io.LONGEST, held_io.PAUSE_AFTER)
    yield made
    compiled.use(os.pread, os.pwrite, LIMIT, held_io.LONGEST, held_io.PAUSE_AFTER)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_the_seam_has_them() -> None:
    assert REAL.pread is compiled.pread
    assert REAL.pwrite is compiled.pwrite


@pytest.mark.parametrize("size", [0, 1, 4096, 70_000, LIMIT])
def test_little_is_read_and_written_at_once(fd: int, calls: Calls, size: int) -> None:
    data = os.urandom(size)
    for offset in (0, 5, 1 << 33):
        assert compiled.pwrite(fd, data, offset) == size
        assert os.pread(fd, size, offset) == data
        assert compiled.pread(fd, size, offset) == data
    assert calls.writes == 0
    # Not every file system tells whether something is in memory.
    assert calls.reads in (0, 3)


def test_much_is_left_to_os(fd: int, calls: Calls) -> None:
    data = os.urandom(LIMIT + 1)
    assert compiled.pwrite(fd, data, 0) == len(data)
    assert compiled.pread(fd, len(data), 0) == data
    assert (calls.writes, calls.reads) == (1, 1)


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda data: memoryview(data)[:]])
def test_any_buffer_is_written(fd: int, kind: Any) -> None:
    assert compiled.pwrite(fd, kind(b"some bytes"), 3) == 10
    assert os.pread(fd, 100, 0) == b"\0\0\0some bytes"


def test_a_read_at_the_end_is_short(fd: int, calls: Calls) -> None:
    os.pwrite(fd, b"0123456789", 0)
    assert compiled.pread(fd, 100, 4) == b"456789"
    assert compiled.pread(fd, 100, 10) == b""
    assert compiled.pread(fd, 100, 1000) == b""
    assert calls.reads == 3


def outcome(function: Any, *arguments: Any) -> object:
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), getattr(error, "errno", None)


def test_what_is_wrong_is_told_as_os_does(fd: int, tmp_path: Path) -> None:
    os.pwrite(fd, b"0123456789", 0)
    closed = os.open(tmp_path / "file", os.O_RDONLY)
    os.close(closed)
    reader, writer = os.pipe()
    for arguments in [
        (closed, 4, 0),
        (-1, 4, 0),
        (1 << 40, 4, 0),
        (1 << 80, 4, 0),
        (fd, -1, 0),
        (fd, 4, -1),
        (fd, 4, 1 << 70),
        (fd, 1 << 70, 0),
        (fd, "4", 0),
        (fd, 4.0, 0),
        (fd, 4, None),
        (fd, True, 0),
        (fd, 4),
        (fd, 4, 0, 0),
        (),
        (reader, 4, 0),
        (tmp_path, 4, 0),
    ]:
        expected = outcome(os.pread, *arguments)
        assert outcome(compiled.pread, *arguments) == expected, arguments
    with open(tmp_path / "file", "rb") as read_only:
        for arguments in [
            (closed, b"abc", 0),
            (read_only.fileno(), b"abc", 0),
            (-1, b"abc", 0),
            (1 << 80, b"abc", 0),
            (fd, "abc", 0),
            (fd, 3, 0),
            (fd, None, 0),
            (fd, memoryview(b"abcdef")[::2], 0),
            (fd, b"abc", -1),
            (fd, b"abc", 1 << 70),
            (fd, b"abc", "0"),
            (fd, b"abc"),
            (),
            (writer, b"abc", 0),
        ]:
            expected = outcome(os.pwrite, *arguments)
            assert outcome(compiled.pwrite, *arguments) == expected, arguments
    os.close(reader)
    os.close(writer)
    assert os.pread(fd, 100, 0) == b"0123456789"


def test_after_a_write_that_waited_some_are_left_to_os(fd: int, calls: Calls) -> None:
    compiled.use(calls.pread, calls.pwrite, LIMIT, 0, 3)  # each of them has waited
    left = []
    for number in range(9):
        assert compiled.pwrite(fd, b"%d" % number, number) == 1
        left.append(calls.writes)
    assert left == [0, 1, 2, 3, 3, 4, 5, 6, 6]
    assert os.pread(fd, 100, 0) == b"012345678"


def test_a_write_that_fails_leaves_no_pause(fd: int, calls: Calls, tmp_path: Path) -> None:
    with open(tmp_path / "file", "rb") as read_only:
        for _ in range(3):
            with pytest.raises(OSError, match="Bad file descriptor"):
                compiled.pwrite(read_only.fileno(), b"abc", 0)
    assert calls.writes == 3
    assert compiled.pwrite(fd, b"abc", 0) == 3
    assert calls.writes == 3


def test_threads_write_and_read_what_they_wrote(fd: int) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            data = bytes([number, turn % 256]) * 3000
            offset = (number * 300 + turn) * 6000
            if (
                compiled.pwrite(fd, data, offset) != 6000
                or compiled.pread(fd, 6000, offset) != data
            ):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
