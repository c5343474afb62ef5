"""``PersistentQueue`` is ``asyncio.Queue``: CPython's own tests, and what persists."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import qindex
from qindex.aio.compat import PersistentLifoQueue, PersistentQueue
from qindex.compat import PersistentQueue as ThreadsQueue
from qindex.compat import UnreadableItemError
from qindex.queue.dead_letters import DeadLetters

ROOT = Path(__file__).parents[3]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(within())


@pytest.mark.parametrize("name", ["QueueBasicTests", "QueueGetTests", "QueuePutTests"])
def test_the_tests_of_the_standard_library_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    theirs = pytest.importorskip("test.test_asyncio.test_queues")
    made: list[PersistentQueue] = []

    class Made(PersistentQueue):
        def __init__(self, maxsize: int = 0) -> None:
            super().__init__(tempfile.mkdtemp(dir=tmp_path), maxsize)
            made.append(self)

    monkeypatch.setattr(asyncio, "Queue", Made)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(getattr(theirs, name))
    # What a repr shows of the items in memory: here there are none.
    kept = unittest.TestSuite(
        one
        for one in suite
        if not getattr(one, "_testMethodName", "").startswith(("test_repr", "test_str"))
    )
    result = unittest.TestResult()
    kept.run(result)

    async def close() -> None:
        for one in made:
            await one.close()

    run(close)
    assert not result.failures, result.failures[0][1]
    assert not result.errors, result.errors[0][1]
    assert result.testsRun >= 2
    assert not result.skipped


def test_what_is_not_done_comes_again_first(tmp_path: Path) -> None:
    async def first() -> None:
        async with await PersistentQueue.open(tmp_path) as jobs:
            for n in range(4):
                jobs.put_nowait(n)
            assert [await jobs.get(), jobs.get_nowait()] == [0, 1]
            jobs.task_done()
            await jobs.sync()

    async def second() -> None:
        async with PersistentQueue(tmp_path) as jobs:
            assert jobs.qsize() == 3
            assert [jobs.get_nowait() for _ in range(3)] == [1, 2, 3]
            with pytest.raises(asyncio.QueueEmpty):
                jobs.get_nowait()
            for _ in range(3):
                jobs.task_done()
            await jobs.join()
            with pytest.raises(ValueError, match="too many"):
                jobs.task_done()

    run(first)
    run(second)


def test_each_task_is_done_with_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with PersistentQueue(tmp_path, maxsize=2) as jobs:
            order: list[int] = []

            async def work() -> None:
                n = await jobs.get()
                await asyncio.sleep(0.02 * (3 - n))
                order.append(n)
                jobs.task_done()

            workers = [asyncio.create_task(work()) for _ in range(2)]
            await jobs.put(1)
            await jobs.put(2)
            await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            assert order == [2]
            for one in workers:
                one.cancel()

    async def again() -> None:
        async with PersistentQueue(tmp_path) as jobs:
            assert jobs.get_nowait() == 1
            assert jobs.empty()

    run(main)
    run(again)


def test_an_item_that_settles_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with PersistentQueue(tmp_path) as jobs:
            for n in range(3):
                await jobs.put(n)
            first, second = await jobs.take(), await jobs.take()
            second.done()
            first.give_back()
            with await jobs.take() as item:
                assert item == 0
            with pytest.raises(KeyError), await jobs.take() as item:
                raise KeyError
            with await jobs.take() as item:
                assert item == 2
            await jobs.join()

    run(main)


def test_waiting_for_room_and_cancellation(tmp_path: Path) -> None:
    async def main() -> None:
        async with PersistentQueue(tmp_path, maxsize=1) as jobs:
            await jobs.put(1)
            with pytest.raises(asyncio.QueueFull):
                jobs.put_nowait(2)
            cancelled = asyncio.create_task(jobs.put(2))
            waiting = asyncio.create_task(jobs.put(3))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert await jobs.get() == 1
            await waiting
            assert await jobs.get() == 3
            getting = asyncio.create_task(jobs.get())
            await asyncio.sleep(0)
            getting.cancel()
            await asyncio.sleep(0)
            await jobs.put(4)
            assert jobs.qsize() == 1

    run(main)


def test_close_wakes_those_who_wait(tmp_path: Path) -> None:
    async def main() -> None:
        jobs = PersistentQueue(tmp_path, maxsize=1)
        getting = [asyncio.create_task(jobs.get()) for _ in range(2)]
        other = PersistentQueue(tmp_path, maxsize=1, name="other")
        await other.put(1)
        putting = asyncio.create_task(other.put(2))
        joining = asyncio.create_task(other.join())
        await asyncio.sleep(0)
        await jobs.close()
        await other.close()
        await jobs.close()
        ends = await asyncio.gather(*getting, putting, joining, return_exceptions=True)
        assert {type(end) for end in ends} == {qindex.ClosedError}
        for call in (jobs.get_nowait, jobs.qsize, jobs.task_done, lambda: jobs.put_nowait(1)):
            with pytest.raises(qindex.ClosedError):
                call()
        qindex.open(tmp_path).close()

    run(main)


def test_one_object_uses_a_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with PersistentQueue(tmp_path) as jobs:
            for kind in (PersistentQueue, PersistentLifoQueue, ThreadsQueue):
                with pytest.raises(
                    qindex.UsageError, match="is open in this process as an asyncio"
                ):
                    kind(tmp_path)
            await jobs.put(1)
        async with PersistentLifoQueue(tmp_path) as stack:
            await stack.put(2)
            assert [await stack.get(), await stack.get()] == [2, 1]

    run(main)


def test_neither_a_get_from_the_back_nor_a_give_back_makes_the_loop_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[DeadLetters] = []

    def note(letters: DeadLetters, **_: bool) -> None:
        moved.append(letters)

    async def main() -> None:
        async with PersistentLifoQueue(tmp_path) as jobs:
            jobs.put_nowait("one")
            with monkeypatch.context() as patch:
                patch.setattr(DeadLetters, "move_waiting", note)
                taken = await jobs.take()
                taken.give_back()
            assert jobs.get_nowait() == "one"
            jobs.task_done()

    run(main)
    assert not moved


class Gone:
    """Is not there when its item is got."""


def test_an_item_that_can_not_be_read_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with PersistentQueue(tmp_path, maxsize=2) as jobs:
            await jobs.put(Gone())
            await jobs.put("after")
            putting = asyncio.create_task(jobs.put("last"))
            await asyncio.sleep(0)
            with monkeypatch.context() as patch:
                patch.delattr(sys.modules[__name__], "Gone")
                with pytest.raises(UnreadableItemError, match="Gone"):
                    await jobs.get()
            await putting  # there is room
            for expected in ("after", "last"):
                assert await jobs.get() == expected
                jobs.task_done()
            await jobs.join()
            assert len(jobs._engine.queue("queue.unreadable")) == 1

    run(main)


def test_a_cancelled_open_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.create_task(PersistentQueue.open(tmp_path))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        qindex.open(tmp_path).close()

    run(main)


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, sys\n"
        "from qindex.aio.compat import PersistentQueue\n"
        "async def main():\n"
        "    jobs = PersistentQueue(sys.argv[1])\n"
        "    for n in range(1000): await jobs.put(n)\n"
        "    for n in range(10): assert await jobs.get() == n\n"
        "    for n in range(7): jobs.task_done()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL

    async def main() -> None:
        async with PersistentQueue(tmp_path) as jobs:
            assert [jobs.get_nowait() for _ in range(993)] == list(range(7, 1000))
            assert jobs.empty()

    run(main)


def test_cancelled_tasks_are_cancelled_though_the_queue_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        jobs = await PersistentQueue.open(tmp_path, maxsize=1)
        jobs.put_nowait(0)
        putters = [asyncio.create_task(jobs.put(n)) for n in range(2)]
        await asyncio.sleep(0)
        assert await jobs.get() == 0
        getters = [asyncio.create_task(jobs.get()) for _ in range(4)]
        await asyncio.sleep(0.01)
        waiting = [task for task in getters + putters if not task.done()]
        assert waiting
        for task in waiting:
            task.cancel()
        await jobs.close()
        await asyncio.wait(waiting)
        assert all(task.cancelled() for task in waiting)

    run(main)
