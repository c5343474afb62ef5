"""Threads of our own: started once, or not at all; nobody waits for one that was not started."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import qindex
from journal.background import Background
from tests.waiting import WAIT


def test_it_is_started_once() -> None:
    runs: list[bool] = []
    done = threading.Event()

    def run() -> None:
        runs.append(thread.is_mine())
        done.wait(WAIT)

    thread = Background(run, "ours")
    thread.join()  # it was not started
    assert not thread.is_mine()
    assert thread.start()
    assert thread.start()
    done.set()
    thread.join()
    assert runs == [True]
    assert not thread.is_mine()


def test_the_number_of_a_thread_that_has_ended_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = Background(lambda: None, "ended")
    assert ended.start()
    ended.join()
    # As if the system had given its number to this thread.
    monkeypatch.setattr(ended._thread, "_ident", threading.get_ident())
    assert not ended.is_mine()


class NoThreads:
    """A system without a thread left: ``left`` more can be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_out = True
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.is_out and thread.name.startswith(("qindex", "msgstore", "ours")):
                raise RuntimeError("can't start new thread")
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


def test_it_is_started_later_when_there_is_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> None:
    system = NoThreads(monkeypatch)
    ran = threading.Event()
    thread = Background(ran.set, "ours")
    assert not thread.start()
    thread.join()
    system.is_out = False
    assert thread.start()
    assert ran.wait(WAIT)
    thread.join()


def test_a_handler_that_raises_while_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        real(thread)
        raise KeyboardInterrupt

    ran = threading.Event()
    thread = Background(ran.set, "ours")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            thread.start()
    thread.join()
    assert ran.is_set(), "it runs, and is waited for"


def test_an_engine_that_gets_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish, leases, compaction and close do without; what a call did is done."""
    system = NoThreads(monkeypatch)
    options: dict[str, Any] = {"store_file_bytes": 64 << 10, "max_journal_entries": 16}
    with qindex.open(tmp_path, **options) as engine:
        queue = engine.queue("q")
        for _ in range(100):
            queue.publish(bytes(20_000))
        lent = queue.get(0, lease=0.01)
        assert lent is not None
        queue.ack_many(queue.get_many(60))
        system.is_out = False
        queue.publish(b"now they can be started")
        second = queue.get(0, lease=0.01)
        assert second is not None
        for _ in range(1000):
            back = queue.get(0)
            assert back is not None
            if back.seq_id in (lent.seq_id, second.seq_id):
                break
            back.nack()
            threading.Event().wait(0.01)
        else:
            raise AssertionError("its lease does not end")
        system.is_out = True
    assert not qindex.verify(tmp_path).findings


def test_an_engine_that_never_gets_one_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    NoThreads(monkeypatch)
    engine = qindex.open(tmp_path)
    engine.queue("q").publish(bytes(20_000))
    engine.queue("q").get(0, lease=5)
    engine.close()
    assert not qindex.verify(tmp_path).findings
