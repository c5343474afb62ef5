"""``qindex.compat.PersistentQueue`` is ``queue.Queue``: CPython's own tests, and what persists."""

from __future__ import annotations

import json
import os
import queue as standard
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.compat import PersistentLifoQueue, PersistentQueue, UnreadableItemError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", [PersistentQueue, PersistentLifoQueue])
def test_the_tests_of_the_standard_library_pass(
    tmp_path: Path, kind: type[PersistentQueue]
) -> None:
    theirs = pytest.importorskip("test.test_queue")
    made: list[PersistentQueue] = []

    def make(maxsize: int = 0) -> PersistentQueue:
        made.append(kind(tempfile.mkdtemp(dir=tmp_path), maxsize))
        return made[-1]

    name = "PyQueueTest" if kind is PersistentQueue else "PyLifoQueueTest"
    base = getattr(theirs, name, None) or getattr(theirs, name.removeprefix("Py"))
    # Their fixture takes the class by its module; ours stands in its place.
    attributes = {"type2test": staticmethod(make), "queue": standard}
    case = type(kind.__name__ + "Test", (base,), attributes)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    for one in made:
        one.close()
    assert not result.failures, result.failures[0][1]
    assert not result.errors, result.errors[0][1]
    assert result.testsRun >= 5


def test_what_is_not_done_comes_again_first(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as jobs:
        for n in range(4):
            jobs.put({"n": n})
        assert jobs.get() == {"n": 0}
        assert jobs.get() == {"n": 1}
        jobs.task_done()
        assert jobs.qsize() == 2
    with PersistentQueue(tmp_path) as jobs:
        assert [jobs.get()["n"] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(standard.Empty):
            jobs.get_nowait()
        assert jobs.unfinished_tasks == 3
        for _ in range(3):
            jobs.task_done()
        jobs.join()
        with pytest.raises(ValueError, match="too many"):
            jobs.task_done()
    with PersistentQueue(tmp_path) as jobs:
        assert jobs.empty()


def test_a_thread_is_done_with_its_own(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as jobs:
        jobs.put("mine")
        jobs.put("yours")
        assert jobs.get() == "mine"

        def other() -> None:
            assert jobs.get() == "yours"
            jobs.task_done()

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    with PersistentQueue(tmp_path) as jobs:
        assert jobs.get() == "mine"
        assert jobs.empty()


def test_with_auto_done_an_item_is_gone_when_it_is_got(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path, auto_done=True) as jobs:
        jobs.put(1)
        assert jobs.get() == 1
    with PersistentQueue(tmp_path, auto_done=True) as jobs:
        assert jobs.empty()


class Json:
    @staticmethod
    def dumps(item: Any) -> bytes:
        return json.dumps(item).encode()

    @staticmethod
    def loads(data: bytes) -> Any:
        return json.loads(data)


def test_serializers(tmp_path: Path) -> None:
    with (
        PersistentQueue(tmp_path, name="b", serializer="bytes") as plain,
        PersistentQueue(tmp_path, name="j", serializer=Json) as texts,
    ):
        plain.put(b"\xff")
        with pytest.raises(TypeError):
            plain.put("text")
        texts.put({"a": [1]})
        assert plain.qsize() == 1
        assert plain.get() == b"\xff"
        assert texts.get() == {"a": [1]}
    wrong: Any = "json"
    with pytest.raises(qindex.UsageError, match="serializer"):
        PersistentQueue(tmp_path, serializer=wrong)


def test_a_full_queue_blocks_and_says_so(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path, 2) as jobs:
        jobs.put(1)
        jobs.put(2)
        assert jobs.full()
        with pytest.raises(standard.Full):
            jobs.put(3, timeout=0.01)
        with pytest.raises(standard.Full):
            jobs.put_nowait(3)
        putting = threading.Thread(target=jobs.put, args=(3,))
        putting.start()
        assert jobs.get() == 1
        putting.join()
        assert jobs.qsize() == 2


def test_another_process_is_refused_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, os, signal\n"
        "from qindex.compat import PersistentQueue\n"
        "q = PersistentQueue(sys.argv[1])\n"
        "for n in range(100): q.put(n)\n"
        "assert [q.get() for _ in range(10)] == list(range(10))\n"
        "for _ in range(7): q.task_done()\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    with pytest.raises(qindex.LockedError) as refused:
        PersistentQueue(tmp_path)
    assert refused.value.pid == child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with PersistentQueue(tmp_path) as jobs:
        assert [jobs.get() for _ in range(93)] == list(range(7, 100))
        assert jobs.empty()


def test_objects_of_one_name_are_one_queue(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path, 2) as one, PersistentQueue(tmp_path, 2) as other:
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(other.get()))
        waiting.start()
        one.put("a")
        waiting.join()
        assert got == ["a"]
        assert one.unfinished_tasks == other.unfinished_tasks == 1
        one.task_done()
        other.join()
        one.put("b")
        other.put("c")
        assert one.full()
        assert other.full()
        assert other.get() == "b"
        one.close()
        assert other.unfinished_tasks == 2
        other.task_done()
    with PersistentQueue(tmp_path) as again:
        assert [again.get() for _ in range(again.qsize())] == ["c"]


@pytest.mark.parametrize(
    "options",
    [{"maxsize": 3}, {"auto_done": True}, {"serializer": "bytes"}, {"kind": PersistentLifoQueue}],
)
def test_another_use_of_an_open_queue_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with PersistentQueue(tmp_path) as one:
        one.put(b"a")
        kind = options.pop("kind", PersistentQueue)
        with pytest.raises(qindex.UsageError, match="is open in this process as first in"):
            kind(tmp_path, **options)
        with PersistentQueue(tmp_path, name="another", **options):
            pass
        assert one.get() == b"a"


def test_use_after_close_is_refused(tmp_path: Path) -> None:
    jobs = PersistentQueue(tmp_path)
    with PersistentQueue(tmp_path, name="sibling") as sibling:
        jobs.put("a")
        taken = jobs.take()
        jobs.close()
        jobs.close()
        calls: list[Callable[[], object]] = [
            lambda: jobs.put("b"),
            jobs.get_nowait,
            jobs.take,
            jobs.qsize,
            jobs.task_done,
            jobs.join,
            jobs.retry_unreadable,
            taken.done,
        ]
        for call in calls:
            with pytest.raises(qindex.ClosedError):
                call()
        # What was taken and not done with comes again while the engine is still open.
        with PersistentQueue(tmp_path) as again:
            assert again.unfinished_tasks == 1
            assert again.get() == "a"
        assert sibling.empty()


def test_an_item_that_settles_itself(tmp_path: Path) -> None:
    """A dispatcher gets, workers finish out of order: task_done would settle the oldest."""
    with PersistentQueue(tmp_path) as jobs:
        for n in range(4):
            jobs.put(n)
        first, second = jobs.take(), jobs.take(timeout=1)
        worker = threading.Thread(target=second.done)
        worker.start()
        worker.join()
        assert second.settled
        assert not first.settled
        with jobs.take() as item:
            assert item == 2
        with pytest.raises(KeyError), jobs.take() as item:
            raise KeyError(item)
        with pytest.raises(qindex.UsageError):
            second.done()
        again = jobs.take(block=False)
        assert (again.item, again.redelivered) == (3, True)
        again.give_back()
        with pytest.raises(standard.Empty):
            [jobs.take(timeout=0.01) for _ in range(2)]
        assert jobs.unfinished_tasks == 2
    with PersistentQueue(tmp_path) as jobs:
        assert [jobs.get() for _ in range(2)] == [0, 3]
        assert jobs.empty()


class Gone:
    """Is not there when its items are got."""


@pytest.mark.parametrize("kind", [PersistentQueue, PersistentLifoQueue])
def test_an_item_that_can_not_be_read_is_set_aside(
    tmp_path: Path, kind: type[PersistentQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind(tmp_path, maxsize=3) as jobs:
        jobs.put("before")
        jobs.put(Gone())
        jobs.put("after")
        with monkeypatch.context() as patch:
            patch.delattr(sys.modules[__name__], "Gone")
            order = ["before", "after"] if kind is PersistentQueue else ["after", "before"]
            assert jobs.get() == order[0]
            with pytest.raises(UnreadableItemError, match=r"Gone.*'queue.unreadable'") as refused:
                jobs.get()
            assert b"Gone" in refused.value.body
            assert refused.value.delivery.seq_id == 1
            assert isinstance(refused.value.__cause__, AttributeError)
            assert jobs.get() == order[1]
            assert not jobs.full()
            jobs.task_done()
            jobs.task_done()
            jobs.join()  # what was set aside keeps nobody waiting
            assert jobs.retry_unreadable() == 0
    with kind(tmp_path) as jobs:
        assert jobs.empty()
        letter = jobs._engine.queue("queue.unreadable").peek()[0]
        assert letter.headers["x-first-death-queue"] == "queue"
        assert "Gone" in letter.headers["x-exception"]
        assert jobs.retry_unreadable() == 1
        assert isinstance(jobs.get(), Gone)
        assert jobs.retry_unreadable() == 0
        jobs.task_done()
        jobs.join()


def test_a_damaged_item_keeps_nobody_waiting(tmp_path: Path) -> None:
    with PersistentQueue(tmp_path) as jobs:
        jobs.put("x" * 1000)
        jobs.put("y")
        jobs._engine.flush()
    segment = next((tmp_path / "queues").glob("*/0.idx"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"x" * 900) + 50
    data[at : at + 8] = bytes(8)
    segment.write_bytes(data)
    with PersistentQueue(tmp_path) as jobs:
        with pytest.raises(qindex.DamageError):
            jobs.get()
        assert jobs.get() == "y"
        jobs.task_done()
        jobs.join()
