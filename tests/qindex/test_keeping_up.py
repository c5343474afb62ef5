"""A consumer that keeps up with its publishers: messages are read one by one, not in arrays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import qindex
from msgstore import MessageStore
from qindex.index.index_reader import FEW
from qindex.queue.plain_queue import take_last

READ = MessageStore.read
_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"key": "k"},
    {"headers": {"h": 1}},
    {"ttl": 60.0},
    {"persistent": False},
)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 4000, 20_000, 70_000])
def test_each_message_comes_as_it_was_published(tmp_path: Path, size: int) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        for number in range(60):
            body = bytes([number]) * size
            before = time.time_ns()
            seq_id = queue.publish(body, **_KINDS[number % 7 if number % 7 < 5 else 0])
            delivery = queue.get(timeout=0)
            assert delivery is not None
            assert (delivery.body, delivery.seq_id, delivery.redelivered) == (body, seq_id, False)
            assert before <= delivery.timestamp <= time.time_ns()
            if number % 2:
                delivery.ack()
        assert queue.get(timeout=0) is None
    with qindex.open(tmp_path) as engine:
        left = engine.queue("q").get_many(100)
        assert [each.body for each in left] == [
            bytes([number]) * size for number in range(0, 60, 2) if number % 7 != 4
        ]
        assert all(each.redelivered for each in left)


def test_any_number_behind_across_segments_and_flushes(tmp_path: Path) -> None:
    with qindex.open(tmp_path, segment_entry_count=64) as engine:
        queue = engine.queue("q")
        published = expected = 0
        for behind in [*range(1, FEW + 3), 1, 2, FEW, 1, 100, 3]:
            for _ in range(behind):
                queue.publish(b"%d" % published)
                published += 1
            if behind % 5 == 0:
                queue.flush()
            while (delivery := queue.get(timeout=0)) is not None:
                assert delivery.body == b"%d" % expected
                expected += 1
                delivery.ack()
            assert expected == published


def test_batches_of_few(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2", b"3", b"4"])
        assert [each.body for each in queue.get_many(2)] == [b"0", b"1"]
        queue.publish(b"5")
        assert [each.body for each in queue.get_many(10)] == [b"2", b"3", b"4", b"5"]


def test_a_flipped_bit_is_not_handed_out(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"first")
        offset = queue._parts.state.index.positions[-1]
        journal = queue._parts.state.index.journal
        assert queue._parts.state.index.fetch_few(0) is not None
        end = journal.tell()
        for at in range(offset, end):
            for bit in range(8):
                journal.map[at] ^= 1 << bit
                try:
                    assert queue._parts.state.index.fetch_few(0) is None, f"byte {at - offset}"
                finally:
                    journal.map[at] ^= 1 << bit
        journal.map[end - 1] ^= 1
        delivery = queue.get(timeout=0)
        assert delivery is not None
        assert delivery.body == b"first"
        assert any("one flipped bit" in finding.what for finding in engine.findings)


@pytest.mark.parametrize("size", [0, 5000, 20_000, 200_000, 1_000_000])
def test_what_a_publish_hands_over_is_bounded(tmp_path: Path, size: int) -> None:
    count = 1000 if size <= 20_000 else 20
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"0")
        assert queue.get(timeout=0) is not None
        bodies = [b"%d" % number + bytes(size) for number in range(1, count)]
        for body in bodies:
            queue.publish(body)
        window = queue._parts.state.index.ahead.window
        assert len(window) < 200
        assert sum(map(len, window.bodies)) <= 1 << 19
        assert (len(window) > 1) == (size < 1_000_000)
        assert [each.body for each in queue.get_many(2000)] == bodies


def test_a_large_message_that_is_handed_over_is_not_read(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        for number in range(4):
            body = b"%d" % number + bytes(20_000)
            queue.publish(body)
            with patch.object(MessageStore, "read", autospec=True, side_effect=READ) as read:
                delivery = queue.get(timeout=0)
            assert delivery is not None
            assert delivery.body == body
            assert read.call_count == (number == 0)
            delivery.ack()
        assert stored_messages(engine) == 0


def stored_messages(engine: qindex.Engine) -> int:
    stats = engine._messages.stats()
    assert stats is not None
    return stats.messages


@pytest.mark.parametrize("size", [0, 20_000])
@pytest.mark.parametrize("step", ["flush", "purge", "rest", "last", "nack", "batch", "other kind"])
def test_between_publishes(tmp_path: Path, step: str, size: int) -> None:
    """Whatever happens between publishes that are handed over, all come once, and in order."""
    with qindex.open(tmp_path, background=False, segment_entry_count=16) as engine:
        queue = engine.queue("q")
        taken: list[bytes] = []
        expected: list[bytes] = []
        for number in range(100):
            body = b"%d" % number + bytes(size)
            queue.publish(body)
            expected.append(body)
            if number % 3 == 0:
                continue
            if number % 7 == 0:
                if step == "flush":
                    queue.flush()
                elif step == "purge":
                    dropped = queue.purge()
                    expected = expected[: len(expected) - dropped]
                elif step == "rest":
                    assert engine._roster.put_to_rest(queue._parts)
                elif step == "last":
                    last = take_last(queue)
                    assert last is not None
                    assert last.body == expected.pop()
                    last.ack()
                elif step == "nack":
                    given = queue.get(timeout=0)
                    assert given is not None
                    given.nack()
                elif step == "batch":
                    more = [b"%d+%d" % (number, each) for each in range(5)]
                    queue.publish_many(more)
                    expected += more
                else:
                    queue.publish(b"keyed", key="k")
                    expected.append(b"keyed")
            delivery = queue.get(timeout=0)
            if delivery is not None:
                taken.append(delivery.body)
                delivery.ack()
        while (delivery := queue.get(timeout=0)) is not None:
            taken.append(delivery.body)
            delivery.ack()
        assert taken == expected
        if size:
            assert stored_messages(engine) == 0
    with qindex.open(tmp_path) as engine:
        assert not len(engine.queue("q"))
