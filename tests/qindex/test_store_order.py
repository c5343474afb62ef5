"""No instruction of a publish leaves half of it: its start is stored last, and at once.

A child stores a record while this process has it run one instruction at a time, and looks into the
journal behind each: in the build that runs here, whatever the compiler has made of the order. What
a kill would have left there is then opened.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import qindex
from journal.format import FILE_NAME, START_SIZE
from qindex.format.publish_records import plain_record

_TRACE_ME, _STEP, _KILL = 0, 9, 8
_BODY = bytes(range(1, 101))
_NOT_PERMITTED = 77

PROGRAM = f"""
import ctypes, os, signal, sys
from journal.fs.files import REAL
from journal.journal import Journal
from journal.poison import Poison
journal = Journal(REAL, sys.argv[1], Poison())
record = bytes.fromhex(sys.argv[2])
if ctypes.CDLL(None).ptrace({_TRACE_ME}, 0, None, None):
    sys.exit({_NOT_PERMITTED})
os.kill(os.getpid(), signal.SIGSTOP)
journal.store(record)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def steps_of_a_store(path: Path, record: bytes) -> list[bytes]:
    """Give what stands in the place of the record, each time that an instruction has changed it,
    beginning with nothing."""
    trace = ctypes.CDLL(None).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), record.hex()])
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == _NOT_PERMITTED
        pytest.skip("this system lets no process trace its child")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as there:
            seen = [there[: len(record)]]
            assert os.WSTOPSIG(status) == signal.SIGSTOP
            while True:
                assert not trace(_STEP, child.pid, None, None)
                _, status = os.waitpid(child.pid, 0)
                assert os.WIFSTOPPED(status)
                if there[: len(record)] != seen[-1]:
                    seen.append(there[: len(record)])
                if os.WSTOPSIG(status) == signal.SIGSTOP:
                    return seen
    finally:
        trace(_KILL, child.pid, None, None)
        child.kill()
        child.wait()


@pytest.mark.parametrize("flushed", [0, 5], ids=["seq_id 0", "first one after a flush"])
def test_a_kill_behind_any_instruction_leaves_all_of_a_publish_or_none(
    tmp_path: Path, flushed: int
) -> None:
    record = plain_record(flushed, 7, _BODY, 1 << 60)
    states = steps_of_a_store(tmp_path / FILE_NAME, record)
    assert states[0] == bytes(len(record))
    assert states[-1] == record
    assert len(states) > 2
    for state in states[:-1]:
        assert state[:START_SIZE] == bytes(START_SIZE)

    store, killed = tmp_path / "store", tmp_path / "killed"
    with qindex.open(store, background=False) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"before"] * flushed)
        queue.flush()
        for state in states:
            shutil.copytree(store, killed)
            (folder,) = (killed / "queues").iterdir()
            (folder / FILE_NAME).write_bytes(state + bytes(4096))
            with qindex.open(killed) as opened:
                found = [each.body for each in opened.queue("q").peek(flushed + 2)]
                assert found == [b"before"] * flushed + [_BODY] * (state == record)
            shutil.rmtree(killed)
