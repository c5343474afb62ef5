"""A consumer that keeps up with its publishers: messages are read one by one, not in arrays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.index_reader import FEW
from qindex.plain import read_plain

_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"key": "k"},
    {"headers": {"h": 1}},
    {"ttl": 60.0},
    {"persistent": False},
)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 4000, 5000, 70_000])
def test_each_message_comes_as_it_was_published(tmp_path: Path, size: int) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        for number in range(60):
            body = bytes([number]) * size
            before = time.time()
            seq_id = queue.publish(body, **_KINDS[number % 7 if number % 7 < 5 else 0])
            delivery = queue.get(timeout=0)
            assert delivery is not None
            assert (delivery.body, delivery.seq_id, delivery.redelivered) == (body, seq_id, False)
            assert before <= delivery.timestamp <= time.time()
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
        offset = queue._index.positions[-1]
        journal = queue._index.journal
        assert read_plain(journal.map, offset, 0) is not None
        end = journal.tell()
        for at in range(offset, end):
            for bit in range(8):
                journal.map[at] ^= 1 << bit
                try:
                    assert read_plain(journal.map, offset, 0) is None, f"byte {at - offset}"
                finally:
                    journal.map[at] ^= 1 << bit
        journal.map[end - 1] ^= 1
        delivery = queue.get(timeout=0)
        assert delivery is not None
        assert delivery.body == b"first"
        assert any("one flipped bit" in finding.what for finding in engine.findings)
