"""A flush in the background that the system refuses: who is told, and how often."""

from __future__ import annotations

import errno
import logging
import time
from pathlib import Path

import pytest

import qindex
from qindex.engine.opening import open_store
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import drain, wait_until

TICK = 0.01


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if "queue 'q'" in one.getMessage()]
    return [one for one in found if not one.endswith(" made")]


def test_close_tells_what_failed_in_the_background(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem()
    engine = open_store(tmp_path, fs=fs, flush_idle=TICK, rest_idle=TICK)
    engine.queue("fine").publish(b"x")
    engine.queue("fine").flush()
    fs.fail("fdatasync", errno.EIO, path="0.idx", times=None)
    with caplog.at_level(logging.INFO, "qindex.engine"):
        engine.queue("q").publish(b"y")
        wait_until(lambda: engine.stats().writes_refused is not None)
        time.sleep(20 * TICK)  # as many tries
    assert len(lines(caplog)) == 1
    with pytest.raises(qindex.WritesRefusedError, match=r"Input/output error.*whole: 'q'"):
        engine.close()
    engine.close()
    with qindex.open(tmp_path) as again:
        assert [body for _, body, _ in drain(again.queue("q"))] == [b"y"]


def test_what_ended_the_block_is_raised_and_not_what_close_says(tmp_path: Path) -> None:
    fs = FaultyFileSystem()

    def block() -> None:
        with open_store(tmp_path, fs=fs, flush_idle=TICK, rest_idle=TICK) as engine:
            fs.fail("fdatasync", errno.EIO, path="0.idx", times=None)
            engine.queue("q").publish(b"y")
            wait_until(lambda: engine.stats().writes_refused is not None)
            raise KeyError

    with pytest.raises(KeyError):
        block()


def test_a_full_disk_is_logged_when_it_begins_and_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem()
    with (
        caplog.at_level(logging.INFO, "qindex.engine"),
        open_store(tmp_path, fs=fs, flush_idle=TICK, rest_idle=TICK) as engine,
    ):
        queue = engine.queue("q")
        fs.fail("open", errno.ENOSPC, path="0.idx", times=None)
        queue.publish(b"y")
        wait_until(lambda: fs.calls["open"] > 20 and bool(lines(caplog)))
        fs.heal()
        wait_until(lambda: queue.stats().flushes > 0 and len(lines(caplog)) > 1)
    began, ended = lines(caplog)
    assert "No space left" in began
    assert "again" in ended
