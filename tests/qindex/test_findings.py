"""Damage that is met after a clean close is named, whether it could be put right or not."""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex


def _closed_store(path: Path) -> Path:
    """300 messages, of which the first 100 were delivered and every third of those acknowledged;
    gives the segment file."""
    with qindex.open(path, background=False) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"message %03d" % number for number in range(300)])
        for delivery in queue.get_many(100):
            if delivery.seq_id % 3 == 0:
                delivery.ack()
        engine.flush()
    (segment,) = path.glob("queues/*/0.idx")
    return segment


def _drain(engine: qindex.Engine) -> list[bytes]:
    return [delivery.body for delivery in engine.queue("q").get_many(1000)]


@pytest.mark.parametrize("from_end", [1, 2, 77, 150], ids=lambda at: f"step-{at}")
def test_a_flipped_bit_of_a_step_record(tmp_path: Path, from_end: int) -> None:
    """RabbitMQ's format has no checksum for these two bytes."""
    segment = _closed_store(tmp_path)
    data = bytearray(segment.read_bytes())
    data[-from_end] ^= 1
    segment.write_bytes(data)
    with qindex.open(tmp_path, background=False) as engine:
        expected = [b"message %03d" % n for n in range(300) if n >= 100 or n % 3]
        assert _drain(engine) == expected
        (finding,) = engine.findings
        assert (finding.path, finding.offset) == (str(segment), len(data) - from_end)


def test_two_flipped_bits_of_a_body(tmp_path: Path) -> None:
    """More than can be put right: the message is named and set aside, the others are delivered."""
    segment = _closed_store(tmp_path)
    segment.with_suffix(".idx.sum").unlink()
    data = bytearray(segment.read_bytes())
    at = data.index(b"message 150")
    data[at] ^= 0x18
    segment.write_bytes(data)
    with qindex.open(tmp_path, background=False) as engine:
        bodies: list[bytes] = []
        with pytest.raises(qindex.DamageError) as raised:
            bodies += _drain(engine)
        bodies += _drain(engine)
        assert len(bodies) == 266 - 1
        assert b"message 150" not in bodies
        assert raised.value.path == str(segment)
        assert abs(raised.value.offset - at) < 100
        assert any(finding.path == str(segment) for finding in engine.findings)
    assert list(segment.parent.glob("quarantine/*"))
