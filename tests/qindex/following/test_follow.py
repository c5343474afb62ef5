"""A follower sees what is written, in order and each once, whatever the files go through."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

import qindex
from journal.format import NO_START, START_SIZE
from journal.fs.files import REAL, RealFileSystem
from qindex.following import follower as follower_module
from qindex.following.journal_tail import JournalTail
from qindex.following.start import follow_store
from tests.qindex.support import WAIT, journal_bytes, open_quietly, queue_directory


def drained(follower: qindex.Follower) -> list[tuple[int, bytes]]:
    """All that is there now."""
    found = []
    while (delivery := follower.get(timeout=0)) is not None:
        found.append((delivery.seq_id, delivery.body))
    return found


def numbered(first: int, stop: int) -> list[tuple[int, bytes]]:
    return [(seq, b"%d" % seq) for seq in range(first, stop)]


def publish(queue: qindex.Queue, first: int, stop: int) -> None:
    assert queue.publish_many([b"%d" % seq for seq in range(first, stop)]) == range(first, stop)


class Gaps(list[tuple[int, int]]):
    def __call__(self, gap: qindex.Gap) -> None:
        self.append((gap.first, gap.stop))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[qindex.Engine]:
    with open_quietly(tmp_path / "store") as engine:
        yield engine


def test_all_fields_of_a_message(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    with qindex.follow(engine.directory, "q") as follower:
        queue.publish(b"plain")
        queue.publish(b"x", key="k", headers={"a": 1}, properties={"b": [2]}, ttl=60)
        queue.publish(b"", persistent=False)
        queue.publish(b"large" * 2000, key="l")
        queue.publish(b"large" * 2000, persistent=False)
        expected = {one.seq_id: one for one in queue.peek(9)}
        found = [follower.get(timeout=WAIT) for _ in range(5)]
        assert follower.get(timeout=0) is None
    for seq, one in enumerate(found):
        assert one is not None
        same = expected[seq]
        assert (one.seq_id, one.body, one.key) == (seq, same.body, same.key)
        assert (one.headers, one.properties) == (same.headers, same.properties)
        assert (one.timestamp, one.expiry) == (same.timestamp, same.expiry)
        assert one.settled
        with pytest.raises(qindex.UsageError):
            one.ack()


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 3, 40])
def test_where_it_starts(engine: qindex.Engine, start: follower_module.Start) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 20)
    queue.flush()
    publish(queue, 20, 30)
    with qindex.follow(engine.directory, "q", start) as follower:
        first = {"earliest": 0, "latest": 30}.get(str(start), start)
        assert isinstance(first, int)
        assert drained(follower) == numbered(first, 30)
        publish(queue, 30, 50)
        assert drained(follower) == numbered(max(first, 30), 50)
        assert follower.missed == 0


@pytest.mark.parametrize("size", [1, 5, 40, 30_000])
def test_flushes_in_place_and_by_rename(tmp_path: Path, size: int) -> None:
    """The journal of 30,000 entries is larger than those that are emptied in place."""
    entries = 8 if size < 1000 else 1024
    with (
        open_quietly(tmp_path, segment_entry_count=entries) as engine,
        qindex.follow(tmp_path, "q", wait=True) as follower,
    ):
        queue = engine.queue("q")
        for round_ in range(4):
            publish(queue, round_ * size, (round_ + 1) * size)
            if round_ % 2:
                assert drained(follower) == numbered((round_ - 1) * size, (round_ + 1) * size)
            queue.flush()
        assert drained(follower) == []
        assert follower.missed == 0


def test_overtaken_by_flushes_it_reads_the_segments(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    gaps = Gaps()
    with qindex.follow(engine.directory, "q", on_gap=gaps) as follower:
        for at in range(0, 100, 10):
            publish(queue, at, at + 10)
            queue.flush()
        publish(queue, 100, 105)
        assert drained(follower) == numbered(0, 105)
    assert gaps == []


def test_what_was_acknowledged_and_removed_is_a_gap(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 4)
    gaps = Gaps()
    with qindex.follow(engine.directory, "q", on_gap=gaps) as follower:
        assert drained(follower) == numbered(0, 4)
        publish(queue, 4, 30)
        queue.ack_many(queue.get_many(25))
        queue.flush()
        publish(queue, 30, 31)
        expected = numbered(24, 31)  # of segments of 8, 0 to 2 are gone
        assert drained(follower) == [one for one in expected if one[0] != 24]
        assert gaps == [(4, 25)]
        assert follower.missed == 21


def test_a_gap_comes_in_its_place_and_only_when_it_is_certain(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    seen: list[object] = []
    with qindex.follow(engine.directory, "q", on_gap=seen.append) as follower:
        publish(queue, 0, 6)
        queue.ack_many(queue.get_many(6))
        queue.flush()
        seen += drained(follower)
        assert seen == []
        publish(queue, 6, 8)
        seen += drained(follower)
    assert seen == [qindex.Gap(0, 6), *numbered(6, 8)]


def test_earliest_is_silent_about_what_was_gone_before(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 40)
    queue.ack_many(queue.get_many(20))
    queue.flush()
    with qindex.follow(engine.directory, "q") as follower:
        assert [seq for seq, _ in drained(follower)] == list(range(20, 40))
        assert follower.missed == 0
    gaps = Gaps()
    with qindex.follow(engine.directory, "q", 10, on_gap=gaps) as follower:
        assert [seq for seq, _ in drained(follower)] == list(range(20, 40))
    assert gaps == [(10, 20)]


def test_earliest_tells_of_segments_that_vanish_while_it_reads(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 40)
    queue.flush()
    gaps = Gaps()
    with qindex.follow(engine.directory, "q", on_gap=gaps) as follower:
        first = follower.get(timeout=0)
        assert first is not None
        queue.ack_many(queue.get_many(24))
        queue.flush()
        assert [seq for seq, _ in drained(follower)] == [*range(1, 8), *range(24, 40)]
    assert gaps == [(8, 24)]


def test_acknowledged_messages_are_given_while_they_are_there(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 6)
    queue.ack_many(queue.get_many(5))
    with qindex.follow(engine.directory, "q") as follower:
        assert drained(follower) == numbered(0, 6)
    queue.flush()
    publish(queue, 6, 7)
    queue.ack_many(queue.get_many(2))
    with qindex.follow(engine.directory, "q") as follower:
        assert drained(follower) == numbered(5, 7)


def test_purge(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    gaps = Gaps()
    with qindex.follow(engine.directory, "q", on_gap=gaps) as follower:
        publish(queue, 0, 20)
        queue.flush()
        publish(queue, 20, 30)
        assert drained(follower) == numbered(0, 30)
        queue.purge()
        queue.flush()
        publish(queue, 30, 33)
        assert drained(follower) == numbered(30, 33)
    assert gaps == []


def test_restarts_of_the_engine(tmp_path: Path) -> None:
    engine = open_quietly(tmp_path)
    publish(engine.queue("q"), 0, 10)
    follower = qindex.follow(tmp_path, "q")
    assert drained(follower) == numbered(0, 10)
    for round_ in range(1, 4):
        publish(engine.queue("q"), round_ * 10, round_ * 10 + 5)
        engine.close()
        engine = open_quietly(tmp_path)
        publish(engine.queue("q"), round_ * 10 + 5, round_ * 10 + 10)
        assert drained(follower) == numbered(round_ * 10, round_ * 10 + 10)
    engine.close()
    assert drained(follower) == []
    assert follower.missed == 0
    follower.close()


def test_large_messages_through_compaction(tmp_path: Path) -> None:
    with open_quietly(tmp_path, store_file_bytes=100_000, garbage_ratio=0.2) as engine:
        queue = engine.queue("q")
        gaps = Gaps()
        with qindex.follow(tmp_path, "q", on_gap=gaps) as follower:
            bodies = [bytes([at]) * 20_000 for at in range(100)]
            queue.publish_many(bodies[:60])
            head = [follower.get(timeout=0) for _ in range(5)]
            batch = queue.get_many(60)
            queue.ack_many([one for one in batch if one.seq_id % 3])
            assert engine.compact() is not None
            queue.publish_many(bodies[60:])
            found = {one.seq_id: one.body for one in head if one is not None}
            while (one := follower.get(timeout=0)) is not None:
                assert one.seq_id not in found
                found[one.seq_id] = one.body
        assert {seq for seq in range(100) if seq % 3 == 0 or seq >= 60} <= set(found)
        assert all(bodies[seq] == body for seq, body in found.items())
        lost = {seq for first, stop in gaps for seq in range(first, stop)}
        assert set(found) | lost == set(range(100))
        assert not set(found) & lost


def test_a_deleted_queue(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 3)
    with qindex.follow(engine.directory, "q") as follower:
        assert follower.get(timeout=0) is not None
        publish(queue, 3, 5)
        engine.delete_queue("q")
        engine.queue("q").publish(b"of another queue")
        assert [one.seq_id for one in _until_gone(follower)] == [1, 2, 3, 4]
        with pytest.raises(qindex.QueueGoneError, match="'q' was deleted"):
            follower.get(timeout=0)


def _until_gone(follower: qindex.Follower) -> list[qindex.Delivery]:
    found: list[qindex.Delivery] = []
    with pytest.raises(qindex.QueueGoneError):
        found.extend(_noting(follower, found))
    return found


def _noting(follower: qindex.Follower, found: list[qindex.Delivery]) -> Iterator[qindex.Delivery]:
    for delivery in follower:
        found.append(delivery)
        yield from ()


def test_a_store_that_is_deleted(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "s") as engine:
        publish(engine.queue("q"), 0, 3)
    with qindex.follow(tmp_path / "s", "q") as follower:
        assert drained(follower) == numbered(0, 3)
        shutil.rmtree(tmp_path / "s")
        with pytest.raises(qindex.QueueGoneError):
            follower.get(timeout=WAIT)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(qindex.NotAStoreError):
        qindex.follow(tmp_path / "none", "q")
    with open_quietly(tmp_path / "s") as engine, pytest.raises(qindex.UsageError, match="no queue"):
        qindex.follow(engine.directory, "q")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(qindex.NotAStoreError):
        qindex.follow(tmp_path / "other", "q", wait=True)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_waiting_for_a_store_and_a_queue(tmp_path: Path, start: follower_module.Start) -> None:
    with qindex.follow(tmp_path / "s", "q", start, wait=True) as follower:
        assert follower.get(timeout=0) is None
        with open_quietly(tmp_path / "s") as engine:
            assert follower.get(timeout=0) is None
            publish(engine.queue("q"), 0, 3)
            assert drained(follower) == numbered(0, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"start": -1},
        {"start": "first"},
        {"start": True},
        {"timeout": -1},
        {"poll": 0},
        {"poll": "x"},
    ],
)
def test_wrong_use(engine: qindex.Engine, options: dict[str, object]) -> None:
    engine.queue("q")
    with pytest.raises(qindex.UsageError):
        qindex.follow(engine.directory, "q", **options)  # type: ignore[arg-type]


def test_iteration_ends_at_its_timeout_and_goes_on(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 3)
    with qindex.follow(engine.directory, "q", timeout=0.01) as follower:
        assert [one.seq_id for one in follower] == [0, 1, 2]
        publish(queue, 3, 6)
        for one in follower:
            assert one.seq_id == 3
            break
        assert [one.seq_id for one in follower] == [4, 5]
    with pytest.raises(qindex.ClosedError):
        list(follower)


@pytest.mark.parametrize("events", [True, False])
def test_stop_ends_a_wait(engine: qindex.Engine, events: bool) -> None:
    engine.queue("q")
    with qindex.follow(engine.directory, "q", poll=WAIT, events=events) as follower:
        threading.Timer(0.05, follower.stop).start()
        started = monotonic()
        assert list(follower) == []
        assert monotonic() - started < WAIT / 2


def test_stop_ends_a_batch_that_is_being_given(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    publish(queue, 0, 500)
    with qindex.follow(engine.directory, "q") as follower:
        found = []
        for one in follower:
            found.append(one.seq_id)
            if one.seq_id == 100:
                follower.stop()
        assert found == list(range(101))
        assert follower.get() is None


class SlowToClose(RealFileSystem):
    """Closes nothing before ``may_close`` is set."""

    def __init__(self) -> None:
        self.may_close = threading.Event()

    def close(self, fd: int, /) -> None:
        assert self.may_close.wait(WAIT)
        super().close(fd)


def test_a_journal_whose_pages_are_freed_is_not_waited_for(engine: qindex.Engine) -> None:
    queue = engine.queue("q")
    fs = SlowToClose()
    fs.may_close.set()
    with follow_store(engine.directory, "q", fs=fs) as follower:
        queue.publish_many([bytes(1 << 10)] * 2000)
        assert len(drained(follower)) == 2000
        fs.may_close.clear()
        queue.flush()
        publish(queue, 2000, 2003)
        assert drained(follower) == numbered(2000, 2003)
        assert not fs.may_close.is_set()
        fs.may_close.set()


def test_file_events_wake_one_that_polls_seldom(
    engine: qindex.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qindex.following.waker._IDLE", 0.0)
    queue = engine.queue("q")
    with qindex.follow(engine.directory, "q", poll=60) as follower:
        follower._waker._pause = 60.0
        timer = threading.Timer(0.3, queue.publish_many, [[b"x" * 1000] * 100])
        timer.start()
        started = monotonic()
        assert follower.get(timeout=WAIT) is not None
        assert monotonic() - started < WAIT / 2
        timer.join()


def test_without_file_events_it_polls(
    engine: qindex.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchdog.observers import Observer

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(Observer, "schedule", refuse)
    monkeypatch.setattr("qindex.following.waker._IDLE", 0.0)
    queue = engine.queue("q")
    with qindex.follow(engine.directory, "q", poll=0.01) as follower:
        assert follower.get(timeout=0.03) is None
        assert not follower._waker.watches
        queue.publish(b"0")
        assert drained(follower) == numbered(0, 1)


def test_a_record_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "whole") as engine:
        publish(engine.queue("q"), 0, 3)
        shutil.copytree(tmp_path / "whole", tmp_path / "copy")
    path = queue_directory(tmp_path / "copy", "q") / "journal.jif"
    whole = path.read_bytes()
    length = len(whole.rstrip(b"\0")) // 3
    for cut in range(length, 2 * length):
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        with qindex.follow(tmp_path / "copy", "q") as follower:
            assert drained(follower) == numbered(0, 1)
            with path.open("r+b") as file:
                file.write(whole)
            assert drained(follower) == numbered(1, 3)


def test_damage_in_the_journal_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "_DAMAGE_AFTER", 0.02)
    with open_quietly(tmp_path / "s") as engine:
        publish(engine.queue("q"), 0, 5)
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
    path = queue_directory(tmp_path / "copy", "q") / "journal.jif"
    data = bytearray(path.read_bytes())
    length = len(bytes(data).rstrip(b"\0")) // 5
    data[2 * length + 50 : 2 * length + 54] = b"\xff\x00\xff\x00"
    path.write_bytes(data)
    gaps = Gaps()
    with qindex.follow(tmp_path / "copy", "q", on_gap=gaps) as follower:
        assert drained(follower) == numbered(0, 2)
        assert [one.seq_id for one in iter(lambda: follower.get(timeout=0.5), None)] == [3, 4]
    assert gaps == [(2, 3)]


def test_an_error_of_the_gap_handler_loses_nothing(engine: qindex.Engine) -> None:
    queue = engine.queue("q")

    def refuse(gap: qindex.Gap) -> None:
        raise ValueError(str(gap))

    publish(queue, 0, 9)
    queue.ack_many(queue.get_many(8))
    queue.flush()
    with qindex.follow(engine.directory, "q", 0, on_gap=refuse) as follower:
        with pytest.raises(ValueError, match="seq_ids 0 to 7: acknowledged"):
            follower.get(timeout=0)
        assert drained(follower) == numbered(8, 9)
        assert follower.missed == 8


@pytest.mark.parametrize("known", [0, 9])
def test_an_append_under_way_is_waited_for(tmp_path: Path, known: int) -> None:
    """Until its start is there it looks like seq_id 0; one that is passed over would be missed."""
    path = tmp_path / "journal.jif"
    front = b"".join(journal_bytes(seq, b"%d" % seq, "p") for seq in range(7, 9))
    single = journal_bytes(9, b"", "p") + journal_bytes(10, b"ten", "p")
    room = bytes(4096)
    path.write_bytes(front + NO_START + single[START_SIZE:] + room)
    tail = JournalTail(REAL, str(tmp_path))
    tail.attach()
    piece = tail.read(known)
    assert piece is not None
    assert piece.seqs.tolist() == [seq for seq in (7, 8) if seq >= known]
    assert tail.read(known) is None
    with path.open("r+b") as file:
        file.seek(len(front))
        file.write(single[:START_SIZE])
    piece = tail.read(known)
    assert piece is not None
    assert piece.seqs.tolist() == [9, 10]
    tail.close()


def test_what_was_gone_before_it_came_to_a_new_queue_is_counted(tmp_path: Path) -> None:
    """It was asked for before the queue was made: nothing of it is passed over in silence."""
    gaps: list[qindex.Gap] = []
    with (
        qindex.follow(tmp_path / "s", "q", wait=True, on_gap=gaps.append) as follower,
        qindex.open(tmp_path / "s", segment_entry_count=64) as engine,
    ):
        queue = engine.queue("q")
        queue.publish_many([b"gone"] * 128)
        queue.ack_many(queue.get_many(128))
        queue.flush()
        queue.publish(b"there")
        delivery = follower.get(timeout=WAIT)
        assert delivery is not None
        assert (delivery.seq_id, delivery.body) == (128, b"there")
    assert follower.missed == sum(map(len, gaps)) == 128
