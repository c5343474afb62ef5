"""Nobody takes the engine's locks in another order than docs/architecture.md says."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

import qindex
from journal.locks.call_lock import CallLock
from journal.locks.lock_order import LockOrder, Rank
from qindex.options import Durability
from tests.schedules.strict_order import WrongOrderError, strict_order

pytestmark = pytest.mark.interpreted
LARGE = bytes(20_000)


def test_it_finds_locks_in_another_order() -> None:
    order = LockOrder()
    with strict_order():
        locks = [CallLock(), CallLock()]
        for lock, rank in zip(locks, (Rank.ENGINE, Rank.QUEUE), strict=True):
            lock.before_waiting = order.add(rank, lock.is_mine)
        engine, queue = locks
        with engine, queue:
            pass
        with queue, pytest.raises(WrongOrderError), engine:
            pass


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_mixed_load(tmp_path: Path, durability: Durability) -> None:
    with strict_order():
        mixed_load(tmp_path, durability)


def mixed_load(directory: Path, durability: Durability) -> None:
    wrong: list[BaseException] = []
    engine = qindex.open(
        directory,
        durability=durability,
        max_journal_entries=64,
        max_open_files=64,
        store_file_bytes=64 << 10,
        flush_idle=0.01,
        rest_idle=0.01,
    )
    engine.queue("dead", max_length=50, overflow="drop-head")
    queues = [engine.queue("a", dead_letter="dead", delivery_limit=2), engine.queue("b")]

    def work(number: int) -> None:
        try:
            for turn in range(60):
                queue = queues[(turn + number) % 2]
                body = LARGE if turn % 3 else b"small"
                queue.publish(body, confirm=turn % 20 == 0)
                queue.publish_many([b"one", b"two"])
                engine.publish_to(["a", "b"], body)
                with suppress(qindex.LeaseExpiredError):
                    if delivery := queue.get(0, lease=0.01 if turn % 5 == 0 else None):
                        (delivery.nack if turn % 4 else delivery.reject)()
                    queue.ack_many(queue.get_many(3))
                if turn % 25 == 24:
                    [engine.sync, engine.flush, engine.compact, engine.stats][number % 4]()
        except qindex.ClosedError:
            pass
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    engine.close()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    report = qindex.verify(directory)
    assert not report.findings
