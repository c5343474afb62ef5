"""What is to be confirmed is appended once in a turn of the loop: in order, and whole or not."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.aio.engine import open_store
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import WAIT, CountingFileSystem, copy_live, drain, open_quietly

Main = Callable[[], Coroutine[Any, Any, Any]]


def run(main: Main) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main(), WAIT)

    return asyncio.run(bounded())


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_ten_thousand_share_a_sync_and_keep_their_order(tmp_path: Path, durability: str) -> None:
    fs = CountingFileSystem()
    store = tmp_path / "0"

    async def main() -> None:
        async with open_store(store, fs=fs, durability=durability, flush_idle=1e6) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"first", confirm=True)
            before = fs.calls["fdatasync"]
            calls = (queue.publish(b"%d" % n, confirm=True) for n in range(10_000))
            assert await asyncio.gather(*calls) == list(range(1, 10_001))
            assert fs.calls["fdatasync"] - before <= 2
            copy_live(store, tmp_path / "1")

    run(main)
    with open_quietly(tmp_path / "1") as engine:
        bodies = [body for _, body, _ in drain(engine.queue("q"))]
    assert bodies == [b"first", *(b"%d" % n for n in range(10_000))]


def test_calls_of_all_kinds_in_one_turn_keep_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            other = await engine.queue("other")
            calls: list[Coroutine[Any, Any, Any]] = []
            wanted: list[bytes] = []

            def add(body: bytes, call: Coroutine[Any, Any, Any]) -> None:
                wanted.append(body)
                calls.append(call)

            for n in range(3):
                add(b"a%d" % n, queue.publish(b"a%d" % n, confirm=True))
                add(b"b%d" % n, queue.publish(b"b%d" % n))
                add(b"c%d" % n, queue.publish(b"c%d" % n, confirm=True))
                add(b"d%d" % n, queue.publish(b"d%d" % n, key="k", confirm=True))
                add(b"e%d" % n, queue.publish(b"e%d" % n, confirm=True))
                add(b"f%d" % n, queue.publish_many([b"f%d" % n]))
                calls.append(other.publish(b"other", confirm=True))
            ends = await asyncio.gather(*calls)
            got = [body for _, body, _ in drain(queue._queue)]
            assert got == wanted
            seqs = [end[0] if isinstance(end, range) else end for end in ends]
            assert [seq for at, seq in enumerate(seqs) if at % 7 != 6] == list(range(18))
            assert len(other) == 3
            # And behind them comes what another thread appends for this loop.
            first = asyncio.create_task(queue.publish(b"first", confirm=True))
            both = asyncio.create_task(engine.publish_to(["other", "q"], b"second"))
            large = asyncio.create_task(queue.publish(b"3" * 100_000, confirm=True))
            await asyncio.gather(first, both, large)
            assert drain(queue._queue)[0][1] == b"first"

    run(main)


def test_who_waits_for_a_message_gets_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
            await asyncio.sleep(0.01)
            await asyncio.gather(*(queue.publish(b"%d" % n, confirm=True) for n in range(3)))
            got = await asyncio.gather(*waiting)
            assert sorted(one.body for one in got if one is not None) == [b"0", b"1", b"2"]

    run(main)


def test_cancelled_before_and_after_it_began(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"first", confirm=True)
            never = asyncio.create_task(queue.publish(b"never", confirm=True))
            never.cancel()
            begun = [asyncio.create_task(queue.publish(b"%d" % n, confirm=True)) for n in range(4)]
            await asyncio.sleep(0)
            for task in begun[::2]:
                task.cancel()
            ends = await asyncio.gather(never, *begun, return_exceptions=True)
            assert [type(end) for end in ends[::2]] == [asyncio.CancelledError, int, int]
            assert ends[2::2] == [2, 4]
            got = [body for _, body, _ in drain(queue._queue)]
            assert got == [b"first", b"0", b"1", b"2", b"3"]

    run(main)


def test_a_batch_that_fails_is_told_to_all_of_it(tmp_path: Path) -> None:
    fs = FaultyFileSystem()

    async def main() -> None:
        async with open_store(tmp_path, fs=fs, background=False) as engine:
            queue = await engine.queue("q")
            other = await engine.queue("other")
            await queue.publish(b"first", confirm=True)
            fs.fail("fdatasync", errno.EIO)
            ends = await asyncio.gather(
                *(queue.publish(b"%d" % n, confirm=True) for n in range(200)),
                return_exceptions=True,
            )
            fs.heal()
            assert all(isinstance(end, qindex.StoreError) for end in ends)
            # After that nothing is appended any more, and each is told.
            ends = await asyncio.gather(
                *(queue.publish(b"no", confirm=True) for _ in range(200)),
                *(other.publish(b"no", confirm=True) for _ in range(200)),
                return_exceptions=True,
            )
            assert {type(end) for end in ends} == {qindex.WritesRefusedError}
            assert len(other) == 0

    run(main)


def test_a_full_disk_refuses_a_batch_as_a_whole(tmp_path: Path) -> None:
    fs = FaultyFileSystem()

    async def main() -> None:
        async with open_store(tmp_path, fs=fs, background=False) as engine:
            queue = await engine.queue("q")
            await queue.publish(b"first", confirm=True)
            fs.fail("fallocate", errno.ENOSPC)
            fs.fail("pwrite", errno.ENOSPC)
            ends = await asyncio.gather(
                *(queue.publish(bytes(3000), confirm=True) for _ in range(500)),
                return_exceptions=True,
            )
            fs.heal()
            assert {type(end) for end in ends} == {qindex.StorageError}
            assert len(queue) == 1
            assert await queue.publish(b"second", confirm=True) == 1

    run(main)


def test_a_closed_engine_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q")
        last = [asyncio.create_task(queue.publish(b"%d" % n, confirm=True)) for n in range(3)]
        await asyncio.sleep(0)
        await engine.close()
        assert await asyncio.gather(*last) == [0, 1, 2]
        ends = await asyncio.gather(
            *(queue.publish(b"no", confirm=True) for _ in range(3)), return_exceptions=True
        )
        assert {type(end) for end in ends} == {qindex.ClosedError}

    run(main)
    with open_quietly(tmp_path) as engine:
        assert len(engine.queue("q")) == 3


def test_loops_in_several_threads(tmp_path: Path) -> None:
    """Each loop has what it notes for itself, and the order of its own calls."""
    with open_quietly(tmp_path) as plain:
        face = qindex.aio.Engine(plain)
        failures: list[BaseException] = []

        def work(name: str) -> None:
            async def main() -> None:
                queue = await face.queue("q")
                for start in range(0, 300, 30):
                    await asyncio.gather(
                        *(
                            queue.publish(f"{name}{n:04}".encode(), confirm=n % 3 != 0)
                            for n in range(start, start + 30)
                        )
                    )

            try:
                run(main)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert not failures
        got = [body.decode() for _, body, _ in drain(plain.queue("q"))]
        for name in "abc":
            mine = [one for one in got if one[0] == name]
            assert mine == [f"{name}{n:04}" for n in range(300)]
        asyncio.run(face.close())


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_window_of_a_unique_key_is_synced_with_its_message(
    tmp_path: Path, durability: str
) -> None:
    fs = CountingFileSystem()

    async def main() -> None:
        async with open_store(tmp_path, fs=fs, durability=durability, flush_idle=1e6) as engine:
            queue = await engine.queue("q")
            confirm = durability == "os"
            await queue.publish(b"x", unique="first", window=60, confirm=confirm)
            before = fs.calls["fdatasync"]
            await queue.publish(b"x", unique="none", confirm=confirm)
            without = fs.calls["fdatasync"] - before
            await queue.publish(b"x", unique="one", window=60, confirm=confirm)
            # The journal, and the file of the keys.
            assert fs.calls["fdatasync"] - before - without == without + 1

    run(main)
