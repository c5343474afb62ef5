"""Messages expire by a timer: nobody has to read the queue."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from time import monotonic, sleep

import pytest

import qindex
from qindex.engine.opening import open_store
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import WAIT


def wait_for(queue: qindex.Queue, ready: int) -> None:
    until = monotonic() + WAIT
    while len(queue) != ready:
        assert monotonic() < until, queue.stats()
        sleep(0.005)


@pytest.mark.parametrize("background", [True, False])
def test_a_delay_line_works_without_a_reader(tmp_path: Path, background: bool) -> None:
    with qindex.open(tmp_path, background=background) as engine:
        done = engine.queue("done")
        line = engine.queue("line", message_ttl=0.05, dead_letter="done")
        line.publish(b"single")
        line.publish_many([b"a", b"b"])
        line.publish(b"large" * 2000)
        bodies: list[bytes] = []
        while len(bodies) < 4:
            delivery = done.get(timeout=WAIT)
            assert delivery is not None
            assert delivery.headers["x-first-death-reason"] == "expired"
            bodies.append(delivery.body)
            delivery.ack()
        assert bodies == [b"single", b"a", b"b", b"large" * 2000]
        assert (len(line), line.peek(10), line.stats().given_up.expired) == (0, [], 4)


def test_ready_counts_what_peek_shows(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"stays")
        queue.publish(b"expires behind it", ttl=0.01)
        sleep(0.03)
        assert len(queue) == len(queue.peek(10)) == 2
        queue.ack(queue.get())
        wait_for(queue, 0)
        assert queue.peek(10) == []


def test_what_expired_while_the_store_was_closed_leaves_after_the_open(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q", message_ttl=0.2).publish_many([b"a", b"b"])
    sleep(0.25)
    with qindex.open(tmp_path) as engine:
        wait_for(engine.queue("q"), 0)


@pytest.mark.parametrize("killed", [True, False])
def test_a_delay_line_works_after_an_open_though_nobody_asks_for_it(
    tmp_path: Path, killed: bool
) -> None:
    with qindex.open(tmp_path / "a") as engine:
        engine.queue("line", message_ttl=0.2, dead_letter="done").publish(b"late")
        engine.queue("done", delivery_limit=3)
        if killed:
            shutil.copytree(tmp_path / "a", tmp_path / "b")
    with qindex.open(tmp_path / ("b" if killed else "a")) as engine:
        with engine.queue("done").get(WAIT) or pytest.fail("nothing came") as delivery:
            assert delivery.body == b"late"
        assert [one.name for one in engine.stats().queues] == ["done", "line"]


def test_a_queue_that_cannot_be_read_keeps_no_other_from_being_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("line", message_ttl=60).publish(b"kept")
        engine.queue("other").publish(b"sound")
    fs = FaultyFileSystem()
    fs.fail("open", errno.EIO, times=None, path="qindex.settings")
    with open_store(tmp_path, fs=fs) as engine:
        assert "its messages expire once it is used" in caplog.text
        assert [one.body for one in engine.queue("other").peek()] == [b"sound"]
        with pytest.raises(qindex.StorageError):
            engine.queue("line")
        fs.heal()
        assert [one.body for one in engine.queue("line").peek()] == [b"kept"]


def test_a_message_that_was_given_back_expires(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", message_ttl=0.1)
        queue.publish(b"a")
        queue.get().nack()
        wait_for(queue, 0)


def test_a_message_that_expired_at_its_consumer_leaves_when_it_comes_back(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", message_ttl=0.05, dead_letter="done")
        queue.publish(b"a")
        delivery = queue.get()
        sleep(0.3)  # the timer finds nothing that is ready
        delivery.nack()
        wait_for(queue, 0)
        wait_for(engine.queue("done"), 1)


def test_a_shorter_ttl_than_one_before_is_kept(tmp_path: Path) -> None:
    """Whether the one before was settled, or moved on."""
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"for an hour", ttl=3600.0)
        queue.ack(queue.get())
        queue.publish(b"a", ttl=0.05)
        wait_for(queue, 0)


def test_a_queue_without_a_ttl_starts_no_timer(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"a", key="k")
        queue.publish_many([b"b"])
        queue.get().ack()
        assert engine._alarm._times == {}
