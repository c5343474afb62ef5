"""A record that is damaged between the flush that wrote it and the read: one error, and on."""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex
from tests.qindex.support import open_quietly, queue_directory


@pytest.mark.parametrize("ttl", [None, 1e6])
@pytest.mark.parametrize("damaged", [0, 4, 9])
def test_the_rest_of_the_queue_goes_on(tmp_path: Path, ttl: float | None, damaged: int) -> None:
    bodies = [b"%08d" % n + bytes(1000) for n in range(10)]
    with open_quietly(tmp_path, background=False, segment_entry_count=100) as engine:
        queue = engine.queue("q")
        queue.publish_many(bodies, ttl=ttl)
        queue.flush()
        path = queue_directory(tmp_path, "q") / "0.idx"
        data = bytearray(path.read_bytes())
        at = data.index(bodies[damaged][:8])
        data[at : at + 16] = b"damaged damaged "
        path.write_bytes(data)
        got: list[bytes] = []
        errors: list[qindex.DamageError] = []
        for _ in bodies:
            try:
                delivery = queue.get(0)
            except qindex.DamageError as error:
                errors.append(error)
            else:
                assert delivery is not None
                got.append(delivery.body)
                delivery.ack()
        assert got == bodies[:damaged] + bodies[damaged + 1 :]
        assert [one.path for one in errors] == [str(path)]
        assert f"seq_id {damaged} " in str(errors[0])
        assert queue.get(0) is None
        assert queue.stats().unacked == 0
        asides = (path.parent / "quarantine").iterdir()
        assert any(b"damaged damaged " in one.read_bytes() for one in asides)
    with open_quietly(tmp_path) as engine:
        assert len(engine.queue("q")) == 0
