"""A real process, killed again and again in the middle of its work."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from journal.findings import Cause
from tests.msgstore.records import message_id, open_store, record_of
from tests.msgstore.victim import promised
from tests.waiting import WAIT

ROUNDS = 5


def test_sigkill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    directory, log = tmp_path / "store", tmp_path / "log"
    removed = 0
    for round_ in range(ROUNDS):
        before = log.stat().st_size if log.exists() else 0
        command = [sys.executable, "-m", "tests.msgstore.victim"]
        process = subprocess.Popen([*command, str(directory), str(log), str(round_ * 10**6)])
        deadline = time.monotonic() + WAIT
        # The round's pace differs, so that it is hit at other places of its work.
        while time.monotonic() < deadline and process.poll() is None:
            if log.exists() and log.stat().st_size > before + 20_000:
                break
            time.sleep(0.005)
        time.sleep(0.013 * round_)
        process.kill()
        assert process.wait() == -9
        kept = promised(log)
        removed += log.read_bytes().count(b"r ")
        with open_store(
            directory, {message_id(number): 1 for number in kept}, read_only=True
        ) as store:
            assert store.missing == set()
            assert [found for found in store.findings if found.cause is Cause.DAMAGE] == []
            for number in kept:
                assert store.read(message_id(number)) == record_of(number, 700)
    assert removed > 1000
