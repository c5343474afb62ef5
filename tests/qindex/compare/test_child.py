"""The driver of child processes: calls, errors, ends, and what a child does not run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from journal.errors import StoreError
from qindex.compare.child import Child, ChildError, Process
from tests.waiting import WAIT

_ROOT = Path(__file__).resolve().parents[3]


def add(one: int, other: int) -> int:
    print("a library that prints")
    return one + other


def fail(ours: bool) -> None:
    raise StoreError("no room") if ours else ValueError("no such thing")


def end() -> None:
    print("the last word", file=sys.stderr, flush=True)
    os._exit(3)


def wait(seconds: float) -> None:
    time.sleep(seconds)


def pid() -> int:
    return os.getpid()


def test_calls_and_what_they_raise() -> None:
    with Child(root=_ROOT) as child:
        assert child.call(add, one=1, other=2) == 3
        with pytest.raises(ChildError, match=r"^no room$"):
            child.call(fail, ours=True)
        with pytest.raises(ChildError, match=r"^ValueError: no such thing$") as raised:
            child.call(fail, ours=False)
        assert "Traceback" in raised.value.trace
        assert child.call(add, one=2, other=2) == 4


def test_a_child_that_ends() -> None:
    with Child(root=_ROOT) as child:
        with pytest.raises(ChildError, match=r"ended by itself \(3\): the last word") as ended:
            child.call(end)
        assert ended.value.status == 3


def test_a_child_that_is_killed() -> None:
    with Child(root=_ROOT) as child:
        assert child.call(pid) > 0
        assert child.kill() == -signal.SIGKILL
        with pytest.raises(ChildError, match="ended by itself"):
            child.call(pid)


def test_an_answer_that_does_not_come() -> None:
    with (
        Process([sys.executable, "-c", "input()"], patience=0.2) as process,
        pytest.raises(ChildError, match="no answer within"),
    ):
        process.answer()


def _raise_beside_a_child_at_work(numbers: list[int]) -> None:
    with Child(root=_ROOT) as child:
        numbers.append(child.call(pid))
        child.start(wait, seconds=WAIT)
        raise RuntimeError


def test_no_child_is_left_after_an_exception() -> None:
    numbers: list[int] = []
    with pytest.raises(RuntimeError):
        _raise_beside_a_child_at_work(numbers)
    with pytest.raises(ProcessLookupError):
        os.kill(numbers[0], 0)


def test_a_child_runs_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "struct", "numpy", "qindex", "journal", "tests"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    with Child(root=_ROOT) as child:
        assert child.call(add, one=1, other=2) == 3
        assert child.call(os.getcwd) == "/"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".py"] * 6
