"""get, ack, nack, reject: order, flags, batches."""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex
from tests.qindex.support import copy_live, drain, open_quietly


def bodies(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


def test_first_in_first_out_across_segments_and_flushes(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        for body in bodies(0, 30):
            queue.publish(body)
            if len(body) % 2 == 0 and body.endswith(b"5"):
                queue.flush()
        queue.publish_many(bodies(30, 60))
        assert [body for _, body, _ in drain(queue)] == bodies(0, 60)


def test_a_requeued_message_returns_to_its_place(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 6))
        taken = [queue.get(0) for _ in range(4)]
        for at in (2, 0, 1):
            delivery = taken[at]
            assert delivery is not None
            queue.nack(delivery)
            assert delivery.settled
        assert (len(queue), queue.stats().unacked) == (5, 1)
        assert [(one.seq_id, one.redelivered) for one in queue.peek(9)] == [
            (0, True),
            (1, True),
            (2, True),
            (4, False),
            (5, False),
        ]
        assert [(seq, again) for seq, _, again in drain(queue)] == [
            (0, True),
            (1, True),
            (2, True),
            (4, False),
            (5, False),
        ]


def test_dropping_instead_of_requeueing(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 2))
        delivery = queue.get(0)
        assert delivery is not None
        delivery.reject()
        assert [body for _, body, _ in drain(queue)] == [b"1"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_after_a_restart_what_was_delivered_comes_first_and_says_so(
    tmp_path: Path, clean: bool, flushed: bool
) -> None:
    store = tmp_path / "store"
    engine = open_quietly(store)
    queue = engine.queue("q")
    queue.publish_many(bodies(0, 20))
    taken = queue.get_many(10)
    queue.ack_many([one for one in taken if one.seq_id % 3 == 0])
    if flushed:
        queue.flush()
    if clean:
        engine.close()
        found = store
    else:
        found = copy_live(store, tmp_path / "copy")
    with open_quietly(found) as again:
        assert drain(again.queue("q")) == [
            (seq, b"%d" % seq, seq < 10) for seq in range(20) if seq >= 10 or seq % 3
        ]
    engine.close()


def test_batches(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 25))
        batch = queue.get_many(10)
        assert batch.bodies == bodies(0, 10)
        assert batch.seq_ids == list(range(10))
        assert [one.body for one in batch[3:5]] == [b"3", b"4"]
        assert batch[-1].seq_id == 9
        assert repr(batch) == "<Batch of 10 deliveries>"
        batch[0].ack()
        assert (batch[0].settled, batch[1].settled) == (True, False)
        with pytest.raises(qindex.UsageError, match="settled already"):
            queue.ack_many(batch)
        queue.ack_many(batch[1:])
        assert queue.get_many(100).bodies == bodies(10, 25)
        assert len(queue.get_many(100)) == 0


@pytest.mark.parametrize(
    "part",
    [
        slice(0, 20),
        slice(3, 9),
        slice(6, 18),
        slice(None, None, 3),
        slice(None, None, -1),
        slice(19, 2, -5),
        slice(5, 5),
        slice(-1, None),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_a_slice_of_a_batch(tmp_path: Path, part: slice, listed: bool) -> None:
    """It is a batch of those deliveries, and is settled as they are."""
    store = tmp_path / "0"
    engine = open_quietly(store)
    queue = engine.queue("q")
    queue.publish_many(bodies(0, 20))
    for one in queue.get_many(20)[::4]:
        one.nack()
    engine.close()
    with open_quietly(store) as engine:
        queue = engine.queue("q")
        batch = queue.get_many(20)
        within = batch[part]
        assert isinstance(within, qindex.Batch)
        assert (within.seq_ids, within.bodies) == (batch.seq_ids[part], batch.bodies[part])
        each = [(one.seq_id, one.body, one.redelivered, one.delivery_count) for one in batch]
        assert [
            (one.seq_id, one.body, one.redelivered, one.delivery_count) for one in within
        ] == each[part]
        assert repr(within) == f"<Batch of {len(range(20)[part])} deliveries>"
        queue.ack_many(list(within) if listed else within)
        left = [seq for seq in range(20) if seq not in range(20)[part]]
        assert [one.seq_id for one in batch if not one.settled] == left
        if len(within):
            with pytest.raises(qindex.UsageError, match="settled already"):
                queue.ack_many(within)
            with pytest.raises(qindex.UsageError, match="settled already"):
                queue.ack_many(batch)
        killed = copy_live(store, tmp_path / "1")
    with open_quietly(killed) as engine:
        assert drain(engine.queue("q")) == [(seq, b"%d" % seq, True) for seq in left]


def test_parts_of_batches_are_put_together_to_a_list(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 12))
        first, batch = queue.get(0), queue.get_many(11)
        assert first is not None
        together = [first] + batch[:2] + batch[4:6] + [batch[10]]
        assert isinstance(together, list)
        assert [one.seq_id for one in together] == [0, 1, 2, 5, 6, 11]
        with pytest.raises(qindex.UsageError, match="stands twice"):
            queue.ack_many(together + batch[5:7])
        queue.ack_many(together)
        assert [one.seq_id for one in batch if not one.settled] == [3, 4, 7, 8, 9, 10]


def test_a_slice_of_a_batch_is_of_its_queue_and_its_time(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 6))
        batch = queue.get_many(6)
        with pytest.raises(qindex.UsageError, match="belongs to queue 'q'"):
            engine.queue("other").ack_many(batch[1:3])
        within = batch[1:4]
        batch[2].nack()
        again = queue.get(0)
        assert again is not None
        with pytest.raises(qindex.UsageError, match="settled already"):
            queue.ack_many(within)
        queue.ack_many(within[::2])
        assert [one.settled for one in batch] == [False, True, True, True, False, False]


def test_a_batch_whose_message_was_given_back_is_not_its_owner_any_more(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 3))
        batch = queue.get_many(3)
        batch[1].nack()
        again = queue.get(0)
        assert again is not None
        assert (again.seq_id, again.redelivered) == (1, True)
        with pytest.raises(qindex.UsageError, match="settled already"):
            queue.ack_many(batch)
        with pytest.raises(qindex.UsageError, match="settled already"):
            queue.ack(batch[1])
        assert batch[1].settled
        assert not again.settled
        queue.ack_many([batch[0], again, batch[2]])
        assert (len(queue), queue.stats().unacked) == (0, 0)


def test_ack_up_to(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 20))
        taken = [queue.get(0) for _ in range(12)]
        assert queue.ack_up_to(-1) == 0
        assert queue.ack_up_to(8) == 9
        assert queue.ack_up_to(8) == 0
        assert [one.settled for one in taken if one is not None] == [True] * 9 + [False] * 3
        assert queue.ack_up_to(1 << 62) == 3
        assert (len(queue), queue.stats().unacked) == (8, 0)


def test_leaving_the_block_after_ack_up_to(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 2))
        with queue.get(0) as delivery:  # type: ignore[union-attr]
            assert delivery is not None
            queue.ack_up_to(delivery.seq_id)
        assert len(queue) == 1


def test_the_block_acks_on_success_and_requeues_on_an_exception(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        with pytest.raises(RuntimeError, match="mine"), queue.get(0) as delivery:  # type: ignore[union-attr]
            raise RuntimeError("mine")
        assert len(queue) == 1
        with queue.get(0) as delivery:  # type: ignore[union-attr]
            assert delivery is not None
            assert delivery.redelivered
        assert (len(queue), queue.stats().unacked) == (0, 0)
        queue.publish(b"y")
        with queue.get(0) as delivery:  # type: ignore[union-attr]
            assert delivery is not None
            delivery.ack()
        assert queue.get(0) is None


def test_peek_takes_nothing(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 30))
        assert queue.peek(0) == []
        assert [one.body for one in queue.peek()] == [b"0"]
        assert [one.body for one in queue.peek(100)] == bodies(0, 30)
        peeked = queue.peek(1)[0]
        assert peeked.settled
        with pytest.raises(qindex.UsageError):
            peeked.ack()
        taken = queue.get(0)
        assert taken is not None
        assert [one.body for one in queue.peek(3)] == bodies(1, 4)
        taken.nack()
        assert [one.body for one in queue.peek(2)] == bodies(0, 2)
        assert [body for _, body, _ in drain(queue)] == bodies(0, 30)


def test_what_a_delivery_tells(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"plain")
        queue.publish(b"rich", key="k", headers={"a": [1, {"b": None}]}, properties={"p": 1.5})
        plain, rich = queue.get_many(2)
        assert (plain.key, plain.headers, plain.properties, plain.expiry) == (None, {}, {}, None)
        assert plain.timestamp > 1.6e18
        assert (rich.key, rich.headers) == ("k", {"a": [1, {"b": None}]})
        assert (rich.properties, rich.body) == ({"p": 1.5}, b"rich")
        assert rich.message.key == "k"
        assert rich.timestamp >= plain.timestamp
        assert repr(rich) == "<Delivery seq_id=1, 4 bytes>"


@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 257, 65_535, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("flushed", [True, False])
def test_bodies_of_every_kind_of_length(tmp_path: Path, size: int, flushed: bool) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    store = tmp_path / "store"
    engine = open_quietly(store)
    queue = engine.queue("q")
    queue.publish(body)
    queue.publish_many([body, body, b"\0" * size])
    queue.publish(body, key="k")
    if flushed:
        queue.flush()
    expected = [body, body, body, b"\0" * size, body]
    with open_quietly(copy_live(store, tmp_path / "copy")) as copied:
        assert [found for _, found, _ in drain(copied.queue("q"))] == expected
    assert queue.get_many(9).bodies == expected
    engine.close()


def test_purge_leaves_what_consumers_have(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 40))
        queue.flush()
        queue.publish_many(bodies(40, 45))
        taken = queue.get_many(3)
        taken[1].nack()
        assert queue.purge() == 43
        assert (len(queue), queue.stats().unacked) == (0, 2)
        assert queue.get(0) is None
        assert queue.publish(b"new") == 45
        queue.ack_many([taken[0], taken[2]])
        queue.flush()
        assert drain(queue) == [(45, b"new", False)]
    with open_quietly(tmp_path) as engine:
        assert drain(engine.queue("q")) == []


def test_purge_after_a_segment_went_out_of_use(tmp_path: Path) -> None:
    """A drained segment that was the tail has a map, and no file."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies(0, 8))
        drain(queue)
        queue.flush()
        queue.publish(b"8")
        queue.flush()
        assert queue.purge() == 1
        assert (len(queue), queue.publish(b"9")) == (0, 9)


def test_a_purged_store_stays_purged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_quietly(store) as engine:
        engine.queue("q").publish_many(bodies(0, 40))
    with open_quietly(store) as engine:
        queue = engine.queue("q")
        assert queue.purge() == 40
        with open_quietly(copy_live(store, tmp_path / "copy")) as copied:
            assert drain(copied.queue("q")) == []
            assert copied.queue("q").publish(b"x") >= 40
