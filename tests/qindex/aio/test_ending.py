"""An engine that nobody closed gives its directory back: at the end of its loop, or when it is
given up."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path

import pytest

import qindex
import qindex.aio
from tests.waiting import WAIT


def closed_soon(directory: Path) -> qindex.Engine:
    """Open the store; waits while a thread still closes it."""
    for _ in range(500):
        try:
            engine: qindex.Engine = qindex.open(directory)
        except qindex.LockedError:
            time.sleep(0.02)
        else:
            return engine
    raise AssertionError("the lock was not given back")


def test_at_the_end_of_its_loop(tmp_path: Path) -> None:
    kept = []

    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q")
        await queue.publish(b"x", confirm=True)
        kept.append((engine, queue))
        waiting = asyncio.ensure_future(queue.get_many(5, 60))
        await asyncio.sleep(0.01)
        kept.append(waiting)  # type: ignore[arg-type]

    with pytest.warns(ResourceWarning, match="was not closed"):
        asyncio.run(main())
    assert kept[0][0].closed
    with qindex.open(tmp_path) as engine:
        assert not engine.findings
        assert engine.queue("q").publish(b"y") == 1


def test_when_it_is_given_up(tmp_path: Path) -> None:
    """A loop that is closed without the end that asyncio.run makes."""

    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        await (await engine.queue("q")).publish(b"x", confirm=True)

    def use() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        use()
    with closed_soon(tmp_path) as engine:
        assert not engine.findings
        assert len(engine.queue("q")) == 1


def test_given_up_in_its_loop_it_is_closed_when_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next open was refused, as long as a thread was at the close."""
    close = qindex.Engine.close

    def close_slowly(engine: qindex.Engine) -> None:
        time.sleep(0.3)
        close(engine)

    monkeypatch.setattr(qindex.Engine, "close", close_slowly)

    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        await (await engine.queue("q")).publish(b"x", confirm=True)

    with pytest.warns(ResourceWarning, match="was not closed"):
        asyncio.run(main())
    with qindex.open(tmp_path) as engine:
        assert not engine.findings
        assert len(engine.queue("q")) == 1


def test_a_queue_alone_keeps_it(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await qindex.aio.open(tmp_path)
        queue = await engine.queue("q")
        del engine
        gc.collect()
        await queue.publish(b"x", confirm=True)
        delivery = await queue.get(0)
        assert delivery is not None
        await delivery.ack()

    with pytest.warns(ResourceWarning, match="was not closed"):
        asyncio.run(main())
    closed_soon(tmp_path).close()


def test_another_loop_uses_it(tmp_path: Path) -> None:
    opened, used, ended = threading.Event(), threading.Event(), threading.Event()
    kept: list[qindex.aio.Engine] = []

    async def owner() -> None:
        kept.append(await qindex.aio.open(tmp_path))
        opened.set()
        while not used.is_set():
            await asyncio.sleep(0.005)

    async def other() -> None:
        queue = await kept[0].queue("q")
        await queue.publish(b"x", confirm=True)
        used.set()
        while not ended.is_set():
            await asyncio.sleep(0.005)
        await queue.publish(b"y", confirm=True)
        await kept[0].close()

    def own() -> None:
        asyncio.run(owner())
        ended.set()

    thread = threading.Thread(target=own)
    thread.start()
    assert opened.wait(WAIT)
    asyncio.run(other())
    thread.join(WAIT)
    with qindex.open(tmp_path) as engine:
        assert len(engine.queue("q")) == 2


def test_closed_in_time_nothing_is_said(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            await engine.queue("q")

    asyncio.run(main())
    gc.collect()
    assert not [one for one in recwarn if one.category is ResourceWarning]
