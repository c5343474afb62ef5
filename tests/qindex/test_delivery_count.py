"""How often a message was delivered, and what happens when that was too often."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import qindex
from journal.fs.files import REAL
from qindex.queue.notes.delivery_counts import (
    RECORD_SIZE,
    DeliveryCounts,
    pack_count,
    unpack_counts,
)
from qindex.queue.notes.entry_note import EntryNote
from qindex.queue.plain_queue import take_last
from tests.qindex.support import copy_live, open_quietly, queue_directory


def take(queue: qindex.Queue) -> qindex.Delivery:
    delivery = queue.get(0)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("settings", [{}, {"delivery_limit": 9}])
def test_it_is_counted(tmp_path: Path, settings: dict[str, int]) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", **settings)  # type: ignore[arg-type]
        queue.publish_many([b"0", b"1"])
        for count in (1, 2, 3):
            delivery = take(queue)
            assert (delivery.body, delivery.delivery_count) == (b"0", count)
            delivery.nack()
        batch = queue.get_many(5)
        assert [one.delivery_count for one in batch] == [4, 1]
        assert batch[0].delivery_count == 4
        batch[0].nack()
        last = take_last(queue)
        assert last is not None
        assert last.delivery_count == 5
        last.ack()
        assert last.delivery_count == 5


def test_peek_and_find_show_the_count_of_the_next_delivery(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=9)
        bodies = (b"counted", b"not counted", b"fresh")
        queue.publish_many([qindex.Message(body, "k") for body in bodies])
        queue.get().nack()
        queue.get().nack()
        counted, other = queue.get_many(2)
        other.nack(count=False)
        counted.nack()
        shown = [one.delivery_count for one in queue.peek(3)]
        assert shown == [one.delivery_count for one in queue.find("k")]
        assert shown == [one.delivery_count for one in queue.get_many(3)] == [4, 1, 1]


def test_over_restarts_without_a_limit(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1"])
        take(queue).nack()
        take(queue)
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        assert [one.delivery_count for one in queue.get_many(2)] == [2, 1]
        assert not (queue_directory(tmp_path, "q") / "qindex.deliveries").exists()


@pytest.mark.parametrize("many", [False, True])
def test_a_poison_message_ends_in_the_dead_letter_queue(tmp_path: Path, many: bool) -> None:
    """Each time it is delivered the process dies."""
    store = tmp_path / "0"
    with open_quietly(store) as engine:
        queue = engine.queue("q", delivery_limit=3, dead_letter="dead")
        queue.publish_many([b"poison", b"good"])
    seen = []
    for run in range(1, 6):
        with open_quietly(store) as engine:
            queue = engine.queue("q")
            delivery = next(iter(queue.get_many(1)), None) if many else queue.get(0)
            seen.append(None if delivery is None else (delivery.body, delivery.delivery_count))
            killed = copy_live(store, tmp_path / str(run))
        store = killed
    assert seen == [(b"poison", one) for one in (1, 2, 3)] + [(b"good", 1), (b"good", 2)]
    with open_quietly(store) as engine:
        [dead] = engine.queue("dead").peek(5)
        assert dead.body == b"poison"
        assert dead.headers["x-death"][0]["reason"] == "limit"


def test_a_limit_of_one(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=1, dead_letter="dead")
        queue.publish_many([b"0", b"1", b"2"])
        take(queue).nack()
        take(queue)
        assert len(queue) == 1
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        # A clean close took the second one back: it does not count.
        assert (take(queue).body, take(queue).body) == (b"1", b"2")
        assert [one.body for one in engine.queue("dead").peek(5)] == [b"0"]
        assert queue.stats().unacked == 2


def test_a_limit_without_a_dead_letter_queue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=2)
        queue.publish_many([b"0", b"x" * 20_000])
        for _ in range(2):
            for one in queue.get_many(2):
                one.nack()
        assert len(queue) == 0
        assert queue.stats().unacked == 0
    with open_quietly(tmp_path) as engine:
        assert engine.queue("q").peek(2) == []


def test_what_is_gone_leaves_the_file(tmp_path: Path) -> None:
    path = queue_directory(tmp_path, "q") / "qindex.deliveries"
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=5)
        queue.publish_many([b"0", b"1"])
        for _ in range(2):
            for one in queue.get_many(2):
                one.nack()
        take(queue).ack()
    assert unpack_counts(path.read_bytes()) == {1: 2}
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        delivery = take(queue)
        assert (delivery.body, delivery.delivery_count) == (b"1", 3)
        delivery.ack()
    assert unpack_counts(path.read_bytes()) == {}


def test_torn_and_damaged_records(tmp_path: Path) -> None:
    whole = pack_count(1, 2) + pack_count(2, 3) + pack_count(1, 4)
    assert unpack_counts(whole) == {1: 4, 2: 3}
    for cut in range(len(whole)):
        expected = [{}, {1: 2}, {1: 2, 2: 3}][cut // RECORD_SIZE]
        assert unpack_counts(whole[:cut]) == expected
        flipped = bytearray(whole)
        flipped[cut] ^= 0x10
        assert (
            unpack_counts(bytes(flipped))
            == [
                {1: 4, 2: 3},
                {1: 4},
                {1: 2, 2: 3},
            ][cut // RECORD_SIZE]
        )
    (tmp_path / "qindex.deliveries").write_bytes(whole[:-3])
    noted, counts = opened(tmp_path)
    assert counted(noted) == {1: 2, 2: 3}
    counts.note(7, 2)
    assert counted(opened(tmp_path)[0]) == {1: 2, 2: 3, 7: 2}


def opened(directory: Path) -> tuple[dict[int, EntryNote], DeliveryCounts]:
    noted: dict[int, EntryNote] = {}
    return noted, DeliveryCounts(REAL, str(directory), noted)


def counted(noted: Mapping[int, EntryNote]) -> dict[int, int]:
    return {seq: note.deliveries for seq, note in noted.items()}


def test_the_file_is_written_anew_when_it_has_grown(tmp_path: Path) -> None:
    noted, counts = opened(tmp_path)
    counts.note(8999, 2)
    for number in range(9000, 29_000):
        counts.note(number, 2)
        del noted[number]
        counts.note(number, None)
    size = (tmp_path / "qindex.deliveries").stat().st_size
    assert size <= RECORD_SIZE * 4100
    assert counted(opened(tmp_path)[0]) == {8999: 2}


def test_a_disk_that_is_full_costs_a_delivery_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=5)
        queue.publish(b"0")
        take(queue).nack()
        (queue_directory(tmp_path, "q") / "qindex.deliveries").mkdir()
        delivery = take(queue)
        assert delivery.delivery_count == 2
        delivery.ack()
        assert "can't be written" in caplog.text
        (queue_directory(tmp_path, "q") / "qindex.deliveries").rmdir()


@pytest.mark.parametrize("many", [False, True])
def test_a_count_outlives_damage_to_the_segment(tmp_path: Path, many: bool) -> None:
    """Damage took the deliver records of messages that have a count of 0: a clean close took them
    back. The second close counted down from there."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead", delivery_limit=5)
        queue.publish_many([b"message %d" % number * 4 for number in range(8)])
        assert len(queue.get_many(6)) == 6
        queue.flush()
    (segment,) = queue_directory(tmp_path, "q").glob("0.idx")
    data = segment.read_bytes()
    segment.write_bytes(data[:-12] + bytes(12))
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        taken = list(queue.get_many(8)) if many else [take(queue) for _ in range(8)]
        assert [one.delivery_count for one in taken] == [1] * 8
        for one in taken:
            one.nack()
        assert [one.delivery_count for one in queue.get_many(8)] == [2] * 8
    with open_quietly(tmp_path) as engine:
        assert [one.delivery_count for one in engine.queue("q").get_many(8)] == [2] * 8


def test_a_queue_without_limits_counts_over_its_rest(tmp_path: Path) -> None:
    """The message is read again, and not from among those that were given back."""
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        for count in range(1, 5):
            delivery = queue.get()
            assert delivery.delivery_count == count
            delivery.nack()
            assert engine._roster.put_to_rest(queue._parts)
