"""Dead letters: why and how messages get there, what they are told, and that none is in neither
queue, or in both, whatever happens in between."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import msgpack
import pytest
from xxhash import xxh3_64_digest

import qindex
from journal.fs.files import RealFileSystem
from qindex.format.message import Message
from qindex.format.transactions import (
    Acks,
    Noted,
    Published,
    pack_batch,
    pack_boot,
    pack_committed,
    read_transactions,
)
from qindex.queue.dead_letter import Letter, goes_round, with_death
from qindex.tools.repair import repair
from tests.qindex.support import (
    WAIT,
    OtherBootFileSystem,
    copy_live,
    drain,
    open_quietly,
)


def take(queue: qindex.Queue, timeout: float = 0) -> qindex.Delivery:
    delivery = queue.get(timeout)
    assert delivery is not None
    return delivery


def bodies(queue: qindex.Queue) -> list[bytes]:
    return [one.body for one in queue.peek(1000)]


def deaths(delivery: qindex.Delivery) -> list[tuple[str, str, int]]:
    return [(one["queue"], one["reason"], one["count"]) for one in delivery.headers["x-death"]]


def until(condition: Callable[[], bool]) -> None:
    end = monotonic() + WAIT
    while not condition():
        assert monotonic() < end
        threading.Event().wait(0.005)


# -- why, and what it is told -------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 20_000])
@pytest.mark.parametrize("record_format", ["qindex", "rabbitmq"])
def test_rejected(tmp_path: Path, size: int, record_format: str) -> None:
    with open_quietly(tmp_path, record_format=record_format) as engine:
        queue = engine.queue("orders", dead_letter="dead")
        queue.publish(b"before")
        queue.publish(b"x" * size, key="k", headers={"kind": "new"}, ttl=1e6)
        drain(engine.queue("orders"))
        queue.publish(b"x" * size, key="k", headers={"kind": "new"}, ttl=1e6)
        given = take(queue)
        start = int(time())
        given.reject()
        assert given.settled
        with pytest.raises(qindex.UsageError, match="settled"):
            given.reject()
        assert (len(queue), queue.stats().unacked, queue.stats().dead_letters.total) == (0, 0, 1)
        letter = take(engine.queue("dead"))
        assert letter.body == given.body
        assert letter.key == "k"
        assert letter.expiry is None
        if record_format == "qindex":
            assert letter.timestamp == given.timestamp
        [death] = letter.headers["x-death"]
        assert start <= death.pop("time") <= time()
        assert death == {"queue": "orders", "reason": "rejected", "seq_id": 2, "count": 1}
        assert letter.headers["kind"] == "new"
        assert letter.headers["x-first-death-queue"] == "orders"
        assert letter.headers["x-first-death-reason"] == "rejected"
        letter.ack()
        engine.sync()
        store = engine.stats().message_store
        assert store is None or store.messages == 0


def test_without_a_dead_letter_queue_it_is_dropped(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=1)
        queue.publish_many([b"0", b"1"])
        take(queue).reject()
        take(queue).nack()
        assert engine.queue_names() == ["q"]
        assert (queue.stats().acked, queue.stats().dead_letters.total) == (2, 0)
    with open_quietly(tmp_path) as engine:
        assert bodies(engine.queue("q")) == []


@pytest.mark.parametrize("take_all", [lambda q: q.get(0), lambda q: q.get_many(50) or None])
def test_expired(tmp_path: Path, take_all: Callable[[qindex.Queue], object]) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead", message_ttl=1e-6)
        dead = engine.queue("dead")
        for number in range(5):
            queue.publish(b"%d" % number * (1 if number % 2 else 20_000))
        assert take_all(queue) is None
        assert len(queue) == 0
        until = monotonic() + WAIT  # the timer may be moving some of them
        while len(dead) < 5 and monotonic() < until:
            sleep(0.005)
        letters = sorted(dead.peek(10), key=lambda one: one.body)
        assert [one.body[:1] for one in letters] == [b"0", b"1", b"2", b"3", b"4"]
        assert {deaths(one)[0] for one in letters} == {("q", "expired", 1)}


def test_expired_among_others(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead")
        for number in range(8):
            queue.publish(b"%d" % number, ttl=0 if number % 2 else None)
        assert take(queue).body == b"0"
        assert [one.body for one in queue.get_many(2)] == [b"2", b"4"]
        assert take(queue).body == b"6"
        assert queue.get(0) is None
        dead = engine.queue("dead")
        until = monotonic() + WAIT  # the timer may be moving some of them
        while len(dead) < 4 and monotonic() < until:
            sleep(0.005)
        assert sorted(bodies(dead)) == [b"1", b"3", b"5", b"7"]
        assert queue.stats().unacked == 4


def test_overflow(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=2, overflow="drop-head", dead_letter="dead")
        queue.publish_many([b"0", b"1" * 20_000, b"2", b"3"])
        engine.publish_to(["q", "other"], b"4" * 20_000)
        assert bodies(queue) == [b"3", b"4" * 20_000]
        letters = engine.queue("dead").peek(10)
        assert [one.body[:1] for one in letters] == [b"0", b"1", b"2"]
        assert {deaths(one)[0] for one in letters} == {("q", "overflow", 1)}
        assert [one["seq_id"] for letter in letters for one in letter.headers["x-death"]] == [
            0,
            1,
            2,
        ]


def test_transient_stays_transient(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish(b"gone", persistent=False)
        queue.publish(b"stays")
        for _ in range(2):
            take(queue).reject()
        assert bodies(engine.queue("dead")) == [b"gone", b"stays"]
    with open_quietly(tmp_path) as engine:
        assert bodies(engine.queue("dead")) == [b"stays"]


def test_it_gets_the_ttl_of_its_new_queue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="wait")
        engine.queue("wait", message_ttl=1e-6, dead_letter="q")
        queue.publish(b"again")
        take(queue).reject()
        assert engine.queue("wait").get(0) is None  # expired there: a retry after a while
        again = take(queue)
        assert deaths(again) == [("wait", "expired", 1), ("q", "rejected", 1)]
        again.reject()
        assert engine.queue("wait").get(0) is None
        again = take(queue)
        assert deaths(again) == [("wait", "expired", 2), ("q", "rejected", 2)]
        assert again.headers["x-first-death-queue"] == "q"


def test_a_loop_without_a_consumer_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("a", message_ttl=1e-6, dead_letter="b")
        engine.queue("b", message_ttl=1e-6, dead_letter="c")
        engine.queue("c", message_ttl=1e-6, dead_letter="a")
        engine.queue("a").publish(b"round")
        for name in "abc":
            assert engine.queue(name).get(0) is None
        assert [len(engine.queue(name)) for name in "abc"] == [0, 0, 0]
        assert "goes round" in caplog.text
        assert engine.queue("c").stats().unacked == 0


def test_overflow_in_a_ring_of_full_queues_ends(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        for name, following in ("ab", "bc", "ca"):
            engine.queue(name, max_length=2, overflow="drop-head", dead_letter=following)
        for number in range(20):
            engine.queue("a").publish(b"%d" % number)
        assert [bodies(engine.queue(name)) for name in "abc"] == [
            [b"18", b"19"],
            [b"16", b"17"],
            [b"14", b"15"],
        ]


def test_headers_that_somebody_made_up() -> None:
    made_up: Any
    for made_up in (5, "no list", [5, {"queue": 7}], [{"queue": "q", "reason": "expired"}], {}):
        message = Message(b"", headers={"x-death": made_up})
        dead = with_death(Letter(1, message, "expired", True), "q")
        assert dead.headers["x-death"][0]["count"] == 1
        goes_round(Letter(1, dead, "expired", True), "q")


def test_headers_that_leave_no_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead")
        large = {"h": "x" * ((1 << 20) - 20)}
        queue.publish(b"full", headers=large)
        take(queue).reject()
        letter = take(engine.queue("dead"))
        assert letter.headers == large
        assert "without headers" in caplog.text


# -- full, deleted, damaged ---------------------------------------------------------------------


@pytest.mark.parametrize("overflow", ["reject", "block"])
def test_a_full_dead_letter_queue(tmp_path: Path, overflow: Any) -> None:
    store = tmp_path / "0"
    with open_quietly(store) as engine:
        dead = engine.queue("dead", max_length=1, overflow=overflow)
        dead.publish(b"there")
        queue = engine.queue("q", dead_letter="dead", delivery_limit=2)
        queue.publish_many([b"0", b"1"])
        queue.publish(b"2", ttl=0)
        queue.publish(b"3")
        given = take(queue)
        with pytest.raises(qindex.QueueFullError, match="'dead' is full"):
            given.reject()
        assert not given.settled
        given.nack()
        take(queue).nack()  # the limit is reached: it waits, and is not delivered again
        assert take(queue).body == b"1"
        assert take(queue).body == b"3"  # and 2, expired, waits as well
        assert queue.get(0) is None
        assert queue.stats().unacked == 4
        killed = copy_live(store, tmp_path / "1")
        for body in (b"there", b"0"):  # one at a time: a letter may come as the one before goes
            letter = take(dead)
            assert letter.body == body
            letter.ack()
            until(lambda: len(dead) == 1)
        assert [one.body for one in dead.peek(2)] == [b"2"]
        assert queue.stats().unacked == 2
    with open_quietly(killed) as engine:
        assert len(engine.queue("q")) == 4


def test_overflow_into_a_full_queue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        dead = engine.queue("dead", max_length=1)
        dead.publish(b"there")
        queue = engine.queue("q", max_length=2, overflow="drop-head", dead_letter="dead")
        queue.publish_many([b"0", b"1", b"2"])
        with pytest.raises(qindex.QueueFullError, match="and so is its dead-letter queue"):
            queue.publish(b"no")
        take(dead).ack()
        queue.publish(b"3")
        assert bodies(dead) == [b"0"]
        assert queue.stats().unacked == 1  # 1, which waits
        take(dead).ack()
        until(lambda: bodies(dead) == [b"1"])
        assert bodies(queue) == [b"2", b"3"]


def test_a_deleted_dead_letter_queue_is_made_again(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"0", b"1", b"2"])
        take(queue).reject()
        engine.delete_queue("dead")
        take(queue).reject()
        assert bodies(engine.queue("dead")) == [b"1"]
        take(queue).reject()
        engine.delete_queue("q")
        assert bodies(engine.queue("dead")) == [b"1", b"2"]
    with open_quietly(tmp_path) as engine:
        assert bodies(engine.queue("dead")) == [b"1", b"2"]


class _Refusing(RealFileSystem):
    """The real file system; opening a file with one of these names fails, as on a full disk."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        real = RealFileSystem.open

        def opened(path: Any, flags: int, mode: int = 0o666) -> int:
            if os.path.basename(path) in self.names:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(path, flags, mode)

        self.open = opened  # type: ignore[method-assign]


def test_a_full_disk(tmp_path: Path) -> None:
    fs = _Refusing()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"0", b"1"])
        fs.names = {"qindex.transactions"}
        given = take(queue)
        with pytest.raises(qindex.StorageError, match="can't be noted"):
            given.reject()
        assert not given.settled
        assert len(engine.queue("dead")) == 0
        fs.names = set()
        given.reject()
        assert bodies(engine.queue("dead")) == [b"0"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_commit_that_fails_leaves_all_in_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    def fail(*_: object) -> bytes:
        raise qindex.StorageError("qindex.transactions", "no room", OSError(errno.ENOSPC, "full"))

    store = tmp_path / "0"
    with open_quietly(store, durability=durability) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"0", b"large" * 3000])
        given = list(queue.get_many(2))
        with monkeypatch.context() as patch:
            patch.setattr("qindex.engine.moves.pack_committed", fail)
            for one in given:
                with pytest.raises(qindex.StorageError, match="no room"):
                    one.reject()
                assert not one.settled
        dead = engine.queue("dead")
        assert (len(dead), dead.stats().pending, queue.stats().unacked) == (0, 0, 2)
        killed = copy_live(store, tmp_path / "1")
        for one in given:
            one.reject()
        assert bodies(dead) == [b"0", b"large" * 3000]
        engine.sync()
        assert not engine._moves.log._live
    with open_quietly(killed) as engine:
        assert (len(engine.queue("q")), len(engine.queue("dead"))) == (2, 0)


# -- crashes ------------------------------------------------------------------------------------


def _settled_by(store: Path, how: str) -> qindex.Engine:
    fs = OtherBootFileSystem() if how == "power" else RealFileSystem()
    return open_quietly(store, fs=fs)


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_after_a_kill_it_is_in_one_queue(tmp_path: Path, durability: str, how: str) -> None:
    store = tmp_path / "0"
    with open_quietly(store, durability=durability) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"%d" % number for number in range(6)])
        queue.publish(b"large" * 3000)
        for _ in range(3):
            take(queue).reject()
        queue.get_many(3)
        take(queue).reject()
        assert engine._moves.pending == (4 if durability == "os" else 0)
        killed = copy_live(store, tmp_path / "1")
    with _settled_by(killed, how) as engine:
        engine.queue("dead", max_length=50)  # it can be opened with settings of its own
        assert bodies(engine.queue("q")) == [b"3", b"4", b"5"]
        assert bodies(engine.queue("dead")) == [b"0", b"1", b"2", b"large" * 3000]
        assert not (killed / "qindex.transactions").exists()
        engine.compact()
    with open_quietly(killed) as engine:
        assert len(engine.queue("dead")) == 4


def test_after_a_kill_what_was_consumed_does_not_come_back(tmp_path: Path) -> None:
    store = tmp_path / "0"
    with open_quietly(store) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"0", b"1"])
        take(queue).reject()
        take(engine.queue("dead")).ack()
        engine.queue("dead").flush()
        killed = copy_live(store, tmp_path / "1")
    with open_quietly(killed) as engine:
        assert bodies(engine.queue("q")) == [b"1"]
        assert bodies(engine.queue("dead")) == []


def note_moves(store: Path, *moves: tuple[Published, bytes | None, Acks]) -> None:
    """Write the file of a killed process: of each move what it published, the run of the operating
    system in which it was committed (None: in none), and what it acknowledged."""
    frames = b""
    for number, (one, boot, acks) in enumerate(moves):
        frames += pack_batch(number, one.queue, one.first, one.ids)
        if boot is not None:
            frames += pack_committed(number, pack_boot(boot), acks)
    (store / "qindex.transactions").write_bytes(frames)


@pytest.mark.parametrize("boot", [None, b"another", b""])
def test_an_intent_alone_moves_nothing(tmp_path: Path, boot: bytes | None) -> None:
    """The crash came between the intent and the append; or power was lost, and the append."""
    with open_quietly(tmp_path) as engine:
        engine.queue("q", dead_letter="dead").publish_many([b"0", b"1"])
        engine.queue("dead").publish(b"other")
    for first in (0, 1):
        note_moves(tmp_path, (Published("dead", first, [b"m" * 16]), boot, [("q", [0])]))
        with open_quietly(tmp_path) as engine:
            assert bodies(engine.queue("q")) == [b"0", b"1"]
            assert bodies(engine.queue("dead")) == [b"other"]


def test_queues_that_are_gone(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish(b"0")
    boot = RealFileSystem.boot_id()
    note_moves(
        tmp_path,
        (Published("nowhere", 0, [b"m" * 16]), boot, [("q", [0])]),
        (Published("q", 0, [b"m" * 16]), boot, [("nowhere", [0])]),
        (Published("q", 0, [b"m" * 16] * 2), boot, [("q", [7, 1 << 60])]),
    )
    with open_quietly(tmp_path) as engine:
        assert engine.queue_names() == ["q"]
        assert bodies(engine.queue("q")) == [b"0"]


@pytest.mark.parametrize("boot", [RealFileSystem.boot_id(), b"another"])
@pytest.mark.parametrize("how", ["open", "repair"])
def test_moves_that_an_earlier_version_noted(tmp_path: Path, how: str, boot: bytes) -> None:
    store = tmp_path / "store"
    with open_quietly(store) as engine:
        engine.queue("q").publish_many([b"0", b"1", b"2"])
        dead = engine.queue("dead")
        dead.publish_many([b"0", b"other"])
        arrived = dead._parts.state.index.bytes_of(0)[8:24]
        copy_live(store, tmp_path / "killed")
    frames = b""
    for seq, msg_id, done in (
        (0, arrived, b"\0"),
        (1, b"consumed" * 2, b"\1"),
        (2, bytes(16), b"\0"),
    ):
        move = {"boot": boot, "source": "q", "target": "dead", "first": seq}
        packed = msgpack.packb(move | {"seqs": [seq], "ids": [msg_id]})
        frames += len(packed).to_bytes(4, "big") + xxh3_64_digest(packed) + packed + done
    store = tmp_path / "killed"
    (store / "qindex.moves").write_bytes(frames + b"\0\0\0\xfftorn")
    assert qindex.verify(store).damage == []
    if how == "repair":
        repair(store, tmp_path / "new")
        store = tmp_path / "new"
    with open_quietly(store) as engine:
        # Nobody can know any more what was consumed before power was lost.
        assert bodies(engine.queue("q")) == ([b"2"] if boot != b"another" else [b"1", b"2"])
        assert bodies(engine.queue("dead")) == [b"0", b"other"]
        assert not (store / "qindex.moves").exists()


def test_each_message_of_a_batch_counts_for_itself() -> None:
    """Power was lost, and a part of what was moved together."""
    ids = [b"%16d" % at for at in range(3)]
    data = pack_batch(5, "b", 7, ids) + pack_committed(5, pack_boot(b"run"), [("a", [1, 2, 3])])
    [(number, noted)] = read_transactions(data)[0].items()
    assert (number, noted) == (5, Noted([Published("b", 7, ids)], b"run", [("a", [1, 2, 3])]))
    assert list(noted.acked(lambda _: {7, 9})) == [("a", 1), ("a", 3)]
    # Of a transaction that publishes other than it acknowledges, all count or none.
    noted.acks.append(("c", [4]))
    assert list(noted.acked(lambda _: {7, 9})) == []
    assert len(list(noted.acked(lambda one: one.seqs))) == 4


def test_the_file_is_emptied_now_and_then(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish_many([b"x"] * 3500)
        path = tmp_path / "qindex.transactions"
        sizes = set()
        for _ in range(3500):
            take(queue).reject()
            sizes.add(path.stat().st_size)
        assert 0 in sizes
        assert max(sizes) <= 1 << 19
        for sync in (engine.sync, queue.sync, engine.queue("dead").sync):
            queue.publish(b"y")
            take(queue).reject()
            assert engine._moves.pending
            sync()
            assert not engine._moves.pending
    assert not path.exists()


def test_in_the_background_they_become_durable_by_themselves(tmp_path: Path) -> None:
    with qindex.open(tmp_path, flush_idle=0.01, rest_idle=0.01) as engine:
        queue = engine.queue("q", dead_letter="dead")
        queue.publish(b"x")
        take(queue).reject()
        until(lambda: not engine._moves.pending)


def test_moves_by_many_threads(tmp_path: Path) -> None:
    """Each queue is the other's dead-letter queue; all the time somebody takes and rejects."""
    with qindex.open(tmp_path) as engine:
        engine.queue("a", dead_letter="b").publish_many([b"%d" % number for number in range(100)])
        engine.queue("b", dead_letter="a")
        errors: list[BaseException] = []

        def reject(name: str) -> None:
            try:
                for _ in range(200):
                    delivery = engine.queue(name).get(0.05)
                    if delivery is not None:
                        delivery.reject()
            except qindex.StoreError as error:
                errors.append(error)

        threads = [threading.Thread(target=reject, args=(name,)) for name in "abab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert not errors
        there = bodies(engine.queue("a")) + bodies(engine.queue("b"))
        assert sorted(map(int, there)) == list(range(100))
    with qindex.open(tmp_path) as engine:
        there = bodies(engine.queue("a")) + bodies(engine.queue("b"))
        assert sorted(map(int, there)) == list(range(100))
