"""Deliveries that nobody lost or refused do not count towards ``delivery_limit``; and leases that
ran out are told."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from time import monotonic, sleep

import pytest

import qindex
import qindex.aio
from qindex.queue import waiting
from tests.qindex.support import WAIT


def test_three_clean_closes_count_for_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        with qindex.open(tmp_path) as engine:
            queue = engine.queue("q", delivery_limit=2, dead_letter="dead")
            if not len(queue):
                queue.publish_many([b"a", b"b", b"c"])
            held = queue.get_many(3)
            assert held.bodies == [b"a", b"b", b"c"]
            assert [one.delivery_count for one in held] == [1, 1, 1]
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.get().nack()
        assert queue.get().delivery_count == 2
        assert not len(engine.queue("dead"))


@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_end_of_the_program_in_a_with_block(tmp_path: Path, ended: type[BaseException]) -> None:
    for run in range(2):
        with qindex.open(tmp_path) as engine:
            queue = engine.queue("q", delivery_limit=5)
            if not run:
                queue.publish(b"a")
                with pytest.raises(ended), queue.get():
                    raise ended
            again = queue.get()
            assert again.delivery_count == (2 if ended is ValueError else 1)


def test_a_cancellation_in_an_async_with_block(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q", delivery_limit=5)
            await queue.publish(b"a")
            held = asyncio.Event()

            async def handle() -> None:
                delivery = await queue.get()
                assert delivery is not None
                async with delivery:
                    held.set()
                    await asyncio.sleep(WAIT)

            task = asyncio.create_task(handle())
            await held.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            again = await queue.get()
            assert again is not None
            assert again.delivery_count == 1

    asyncio.run(main())


def test_a_lease_that_ran_out(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b"])
        held = queue.get(lease=0.02)
        batch = queue.get_many(1, lease=0.02)
        until = monotonic() + WAIT
        while len(queue) < 2:
            assert monotonic() < until
            sleep(0.005)
        for call in (
            held.ack,
            held.nack,
            lambda: held.extend_lease(1),
            lambda: queue.ack(held),
            lambda: queue.ack_many(batch),
            batch[0].ack,
        ):
            with pytest.raises(qindex.LeaseExpiredError, match="has run out"):
                call()
        assert len(queue) == 2
        again = queue.get()
        assert again.redelivered
        again.ack()
        with pytest.raises(qindex.UsageError, match="settled already"):
            again.ack()


def test_a_lease_that_runs_out_in_its_with_block_is_a_warning(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"a")
        held = queue.get(lease=0.02)
        held.__enter__()
        until = monotonic() + WAIT
        while not len(queue):
            assert monotonic() < until
            sleep(0.005)
        with pytest.warns(RuntimeWarning, match="seq_id 0 ran out"):
            held.__exit__(None, None, None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with queue.get(lease=60.0):
                pass


def test_extend_does_not_shorten(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"a")
        held = queue.get(lease=60.0)
        with pytest.raises(qindex.UsageError, match="would shorten"):
            held.extend_lease(1.0)
        held.extend_lease(120.0)
        held.ack()


def test_a_full_prefetch_waits_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "LONG_HELD", 0.01)
    with qindex.open(tmp_path) as engine, caplog.at_level(logging.WARNING, "qindex"):
        queue = engine.queue("q")
        queue.publish_many([b"%d" % number for number in range(10)])
        taken: list[qindex.Delivery] = []
        warned = threading.Event()

        def settle() -> None:
            while not any("prefetch" in one.getMessage() for one in caplog.records):
                sleep(0.005)
            sleep(0.05)
            warned.set()
            while len(taken) < 10:
                queue.ack_up_to(10)
                sleep(0.005)

        settler = threading.Thread(target=settle)
        settler.start()
        for delivery in queue.consume(prefetch=3, timeout=0):
            assert len(taken) < 3 or warned.is_set()
            taken.append(delivery)
        settler.join(WAIT)
        assert [one.body for one in taken] == [b"%d" % number for number in range(10)]
        assert sum("prefetch" in one.getMessage() for one in caplog.records) >= 1


def test_a_restart_that_overlaps_waits_for_the_lock(tmp_path: Path) -> None:
    program = (
        "import qindex, sys, time; engine = qindex.open(sys.argv[1]); print('open', flush=True); "
        "sys.stdin.readline(); engine.close()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(qindex.LockedError, match=str(holder.pid)):
        qindex.open(tmp_path)
    with pytest.raises(qindex.LockedError):
        qindex.open(tmp_path, lock_timeout=0.05)
    holder.stdin.write("\n")
    holder.stdin.flush()
    with qindex.open(tmp_path, lock_timeout=WAIT) as engine:
        engine.queue("q").publish(b"a")
    assert holder.wait(WAIT) == 0
