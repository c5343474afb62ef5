"""A record that is damaged between the flush that wrote it and the read: one error, and on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from journal.findings import Kind
from qindex.index import index_reader
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


def _taken_away(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _replaced(path: Path) -> None:
    path.write_bytes(b"of another program " * 1000)


TAKEN = pytest.mark.parametrize("take", [_taken_away, _cut, _replaced])


def _drained(queue: qindex.Queue) -> tuple[list[bytes], list[qindex.DamageError]]:
    bodies: list[bytes] = []
    errors: list[qindex.DamageError] = []
    while True:
        try:
            batch = queue.get_many(50)
        except qindex.DamageError as error:
            errors.append(error)
            continue
        if not batch:
            return bodies, errors
        bodies += batch.bodies
        queue.ack_many(batch)


@TAKEN
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_that_is_taken_away(
    tmp_path: Path, take: Callable[[Path], None], number: int
) -> None:
    """Nothing of it was in memory: thousands of messages were gone without a word."""
    bodies = [b"%d" % n for n in range(60)]
    with open_quietly(tmp_path, segment_entry_count=20) as engine:
        engine.queue("q").publish_many(bodies)
        engine.flush()
    path = queue_directory(tmp_path, "q") / f"{number}.idx"
    with open_quietly(tmp_path) as engine:
        take(path)
        got, errors = _drained(engine.queue("q"))
        assert [one.path for one in errors] == [str(path)]
        lost = [body for body in bodies if body not in got]
        assert f"{len(lost)} of 20 messages are lost" in str(errors[0])
        assert lost
        assert set(lost) <= set(bodies[20 * number : 20 * number + 20])
        assert str(path) in [one.path for one in engine.findings if one.is_loss]
        assert len(engine.queue("q")) == 0


@TAKEN
def test_a_segment_that_is_taken_away_while_it_is_read(
    tmp_path: Path, take: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too large to be kept in memory."""
    monkeypatch.setattr(index_reader, "_KEPT_BYTES", 1)
    monkeypatch.setattr(index_reader, "_WINDOW_BYTES", 100_000)
    with open_quietly(tmp_path, segment_entry_count=4096) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % n + bytes(4000) for n in range(100)])
        queue.flush()
        queue.get(0)
        path = queue_directory(tmp_path, "q") / "0.idx"
        take(path)
        got, errors = _drained(queue)
        assert len(got) + len(errors) == 99
        assert errors
        assert {one.path for one in errors} == {str(path)}
        assert any(one.is_loss for one in engine.findings)


def test_a_flush_that_finds_its_segment_taken_away(tmp_path: Path) -> None:
    with open_quietly(tmp_path, background=False, segment_entry_count=4096) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 10)
        queue.flush()
        path = queue_directory(tmp_path, "q") / "0.idx"
        path.unlink()
        queue.publish(b"y")
        queue.flush()
        assert [one.kind for one in engine.findings] == [Kind.MISSING_FILE]
        assert str(path) == engine.findings[0].path
    assert not qindex.verify(tmp_path).sound


@TAKEN
def test_nobody_reads_a_segment_that_is_taken_away(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"x"] * 10)
        engine.flush()
        take(queue_directory(tmp_path, "q") / "0.idx")
    assert not qindex.verify(tmp_path).sound
    with open_quietly(tmp_path, repair=True) as engine:
        assert any(one.is_loss for one in engine.findings)


@TAKEN
def test_a_file_of_the_message_store_that_is_taken_away(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    """A queue stood still at the first message of a file that was deleted."""
    bodies = [b"%d" % n + bytes(20_000) for n in range(40)]
    with open_quietly(tmp_path, store_file_bytes=1 << 16) as engine:
        engine.queue("q").publish_many(bodies)
    with open_quietly(tmp_path, store_file_bytes=1 << 16) as engine:
        path = tmp_path / "msg_store_persistent" / "1.rdq"
        take(path)
        got, errors = _drained(engine.queue("q"))
        assert errors
        assert {one.path for one in errors} == {str(path)}
        assert len(got) + len(errors) == len(bodies)
        assert len([one for one in engine.findings if one.path == str(path)]) == len(errors)
