"""Several threads on one store: nobody waits for ever, and each queue has its messages in order."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

import rocketstore
from journal.errors import ClosedError
from rocketstore import GetStatus
from tests.qindex.support import WAIT
from tests.qindex.test_threads import join, start
from tests.rocketstore.support import open_tiny

EACH = 1500


def test_publishers_consumers_and_the_keepers_work_side_by_side(tmp_path: Path) -> None:
    done = threading.Event()

    def publish(number: int) -> None:
        for turn in range(EACH):
            put = store.put("T", b"%d" % turn, queue_id=number, keys=f"k{number}.{turn}")
            assert put.queue_offset == turn
            if turn % 500 == 250:
                store.put("later", b"delayed", queue_id=number, delay=1, flag=turn)

    def consume(number: int) -> None:
        at = 0
        while at < EACH:
            answer = store.get("T", number, at, 1 + at % 3)
            if answer.status is GetStatus.FOUND:
                assert answer.bodies == [b"%d" % (at + one) for one in range(len(answer.bodies))]
                at = answer.next_offset
                store.commit_offset("G", "T", number, at)

    def keep() -> None:
        # What these do within their own calls takes the lock, or has it already.
        while not done.wait(0.002):
            store.deliver_due(1 << 60)
            store.checkpoint()
            store.sync()

    with open_tiny(tmp_path / "s") as store:
        keeper = start(keep)
        works = [partial(work, number) for number in (0, 1) for work in (publish, consume)]
        try:
            join(start(*works))
        finally:
            done.set()
            join(keeper)
        store.deliver_due(1 << 60)
        for number in (0, 1):
            assert [one.body for one in store.messages("later", number)] == [b"delayed"] * 3
            assert [one.queue_offset for one in store.query("T", f"k{number}.7")] == [7]
        assert store.consumer_offsets() == {"T@G": {0: EACH, 1: EACH}}
    with open_tiny(tmp_path / "s") as store:
        assert store.findings == []


def test_a_reader_gets_in_while_others_never_rest(tmp_path: Path) -> None:
    with rocketstore.open(tmp_path / "s", background=False) as store:
        store.put("T", b"first")
        served = threading.Event()

        def hog() -> None:
            while not served.is_set():
                store.put("T", b"more")
                store.get("T", 0, 0, 32)

        hogs = start(hog, hog, hog)
        try:
            for _ in range(20):
                assert store.get("T", 0, 0, 1).bodies == [b"first"]
        finally:
            served.set()
            join(hogs)


def test_a_store_that_is_closed_meanwhile_stays_closed(tmp_path: Path) -> None:
    store = rocketstore.open(tmp_path / "s", background=False)
    refused = threading.Semaphore(0)

    def put_on() -> None:
        while True:
            store.put("T", b"")

    def use() -> None:
        with pytest.raises(ClosedError):
            put_on()
        with pytest.raises(ClosedError):
            store.get("T", 0, 0)
        refused.release()

    users = start(use, use, use)
    while store.max_offset < 1 << 16:
        pass
    store.close()
    join(users)
    assert all(refused.acquire(timeout=WAIT) for _ in range(3))
