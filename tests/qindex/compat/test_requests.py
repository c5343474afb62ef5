"""Many small queues of requests in one: order, nothing lost or doubled, and few files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

import qindex
from qindex.compat import requests as module
from qindex.compat import shared
from qindex.compat.requests import UNREADABLE, WAITING, Popped, Requests
from tests.qindex.support import copy_live


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 3)
    monkeypatch.setattr(module, "_SPARE", 24)
    monkeypatch.setattr(module, "_SPREAD", 2)
    monkeypatch.setattr(module, "_MOVED_AT_ONCE", 4)


class Store:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            qindex.open(path, segment_entry_count=16).close()
        self.engine = shared.acquire(path)
        self.requests = shared.join(self.engine, WAITING, Requests)
        self.requests.start(self.engine)

    def close(self) -> None:
        shared.leave(self.engine, WAITING, self.requests)
        shared.release(self.engine)


@pytest.mark.parametrize("newest", [True, False], ids=["lifo", "fifo"])
@pytest.mark.parametrize("seed", range(6))
def test_against_a_model(tmp_path: Path, newest: bool, seed: int) -> None:
    rng = random.Random(seed)
    names = [f"domain-{n}/0" for n in range(8)]
    model: dict[str, list[bytes]] = {name: [] for name in names}
    working: list[tuple[str, bytes, Popped]] = []
    path = tmp_path / "0"
    store = Store(path)
    for step in range(1, 1500):
        name = rng.choice(names[: rng.choice((2, 8))])
        waiting = store.requests.named(name)
        action = rng.random()
        if action < 0.5:
            body = b"%d" % step
            store.requests.push(waiting, body)
            model[name].append(body)
        elif action < 0.85:
            assert store.requests.peek(waiting, newest=newest) == (
                model[name][-1 if newest else 0] if model[name] else None
            )
            popped = store.requests.pop(waiting, newest=newest)
            if not model[name]:
                assert popped is None
                continue
            body = model[name].pop(-1 if newest else 0)
            assert popped is not None
            assert popped.delivery.body == body
            working.append((name, body, popped))
        elif working:
            _, _, popped = working.pop(rng.randrange(len(working)))
            store.requests.done(popped)
        assert len(waiting) == len(model[name])
        if step % 300 == 0:
            # What was being worked on comes again, in its old place or before it.
            if rng.random() < 0.5:
                path = copy_live(path, tmp_path / f"{step}")
            store.close()
            store = Store(path)
            for one, body, _ in working:
                model[one].append(body)
            working.clear()
            for one, bodies in model.items():
                bodies.sort(key=int)
                assert len(store.requests.named(one)) == len(bodies)
    for name, bodies in model.items():
        waiting = store.requests.named(name)
        left = []
        while (popped := store.requests.pop(waiting, newest=newest)) is not None:
            left.append(popped.delivery.body)
            store.requests.done(popped)
        assert left == (bodies[::-1] if newest else bodies)
    for _, _, popped in working:
        store.requests.done(popped)
    assert store.requests.leftover() == []
    assert set(store.engine.queue_names()) == {WAITING}
    assert len(store.engine.queue(WAITING)) == 0
    store.close()


def test_what_waits_for_long_keeps_few_segments(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    old = store.requests.named("old/0")
    for body in (b"1", b"2", b"3"):
        store.requests.push(old, body)
    for n in range(1000):
        waiting = store.requests.named(f"{n}/0")
        store.requests.push(waiting, b"x")
        popped = store.requests.pop(waiting, newest=True)
        assert popped is not None
        store.requests.done(popped)
        store.requests.retire(waiting)
    assert list(store.requests.waiting) == ["old/0"]
    together = store.engine.queue(WAITING)
    together.flush()
    assert together.stats().next_seq_id > 1003
    assert together.stats().segments <= 5
    store.close()
    store = Store(tmp_path / "store")
    old = store.requests.named("old/0")
    left = [store.requests.pop(old, newest=False) for _ in range(3)]
    assert [one.delivery.body for one in left if one] == [b"1", b"2", b"3"]
    store.close()


class KilledBeforeAck:
    """A queue whose process dies in a move: behind the publish, before the ack."""

    def __init__(self, queue: qindex.Queue) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def ack_many(self, _batch: object) -> None:
        pass


def test_a_move_that_a_crash_cut_short(tmp_path: Path) -> None:
    """The message is there twice, and served once, in its old place."""
    store = Store(tmp_path / "store")
    old = store.requests.named("old/0")
    for body in (b"1", b"2"):
        store.requests.push(old, body)
    together = store.engine.queue(WAITING)
    store.requests._move_some(cast(qindex.Queue, KilledBeforeAck(together)))
    killed = copy_live(tmp_path / "store", tmp_path / "killed")
    store.close()
    store = Store(killed)
    assert len(store.engine.queue(WAITING)) == 2
    popped = store.requests.pop(store.requests.named("old/0"), newest=False)
    assert popped is not None
    assert popped.delivery.body == b"1"
    store.close()


def test_a_queue_of_its_own_goes_when_it_is_empty_and_settled(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    waiting = store.requests.named("big/0")
    waiting.users = 1
    for n in range(10):
        store.requests.push(waiting, b"%d" % n)
    assert "big/0" in store.engine.queue_names()
    popped = [store.requests.pop(waiting, newest=True) for _ in range(10)]
    waiting.users = 0
    store.requests.retire(waiting)
    assert "big/0" in store.engine.queue_names()  # they are being worked on
    for one in popped:
        assert one is not None
        store.requests.done(one)
    assert store.engine.queue_names() == [WAITING]
    store.close()


def test_damaged_requests_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "store")
    waiting = store.requests.named("a/0")
    for body in (b"1" * 500, b"2" * 500, b"3" * 500):
        store.requests.push(waiting, body)
    store.engine.flush()
    store.close()
    segment = next((tmp_path / "store" / "queues").glob("*/0.idx"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"2" * 400) + 9
    data[at : at + 8] = bytes(8)
    segment.write_bytes(data)
    store = Store(tmp_path / "store")
    assert "1 requests are damaged" in caplog.text
    waiting = store.requests.named("a/0")
    popped = [store.requests.pop(waiting, newest=True) for _ in range(3)]
    assert [one and one.delivery.body[:1] for one in popped] == [b"3", b"1", None]
    store.close()


def test_set_aside(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    waiting = store.requests.named("a/0")
    store.requests.push(waiting, b"bad")
    popped = store.requests.pop(waiting, newest=True)
    assert popped is not None
    store.requests.set_aside(popped, "KeyError: 'x'")
    letter = store.engine.queue(UNREADABLE).peek()[0]
    assert letter.body == b"bad"
    assert letter.key == "a/0"
    assert letter.headers["x-exception"] == "KeyError: 'x'"
    store.close()


def test_take_at(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_entry_count": 16, "max_journal_entries": 40}
    rng = random.Random(1)
    with qindex.open(tmp_path, **options) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % n for n in range(300)])
        queue.publish(b"gone", ttl=0)
        queue.publish(b"large" * 4000)
        left = set(range(302)) - {300}
        while left:
            seq = rng.choice(sorted(left))
            delivery = queue.get(seq_id=seq)
            assert delivery is not None
            assert delivery.seq_id == seq
            assert delivery.body == (b"large" * 4000 if seq == 301 else b"%d" % seq)
            assert queue.get(seq_id=seq) is None  # it is out
            if rng.random() < 0.3:
                delivery.nack()
                if rng.random() < 0.2:
                    first = queue.get(0)
                    assert first is not None
                    assert first.seq_id == min(left)
                    first.nack()
                continue
            delivery.ack()
            left.remove(seq)
            assert queue.get(seq_id=seq) is None
        assert queue.get(seq_id=300) is None  # expired
        assert queue.get(seq_id=302) is None
        assert queue.get(seq_id=-1) is None
        assert len(queue) == 0
