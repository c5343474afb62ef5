"""Stores whose segments are RabbitMQ's of version 2: what is written there, and what comes back."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

import qindex
from journal.errors import StorageError, UsageError
from journal.files import REAL, FileSystem
from qindex.format.rabbitmq import queue_index_v2 as index_format
from qindex.view.reader import StoreReader
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import queue_directory

COUNT = 16


def opened(path: Path, fs: FileSystem = REAL) -> qindex.Engine:
    engine: qindex.Engine = qindex.open(
        path,
        record_format="rabbitmq-4",
        background=False,
        segment_entry_count=COUNT,
        embed_below=600,
        fs=fs,
    )
    return engine


def fill(engine: qindex.Engine) -> list[bytes]:
    """100 messages, some of them large; of the first 60 every third stays, delivered."""
    chance = random.Random(5)
    queue = engine.queue("q")
    bodies = [b"%d:" % at + chance.randbytes(chance.choice((0, 90, 900))) for at in range(100)]
    for at, body in enumerate(bodies):
        queue.publish(body, headers={"n": at} if at % 2 else None)
        if at % 40 == 39:
            queue.flush()
    taken = queue.get_many(60)
    queue.ack_many([one for one in taken if one.seq_id % 3])
    return [body for at, body in enumerate(bodies) if at >= 60 or not at % 3]


def held(engine: qindex.Engine) -> list[tuple[bytes, bool]]:
    return [(one.body, one.redelivered) for one in engine.queue("q").peek(1000)]


def slots(directory: Path) -> int:
    """Count the entries that a node would find."""
    return sum(
        int(np.count_nonzero(index_format.slots(path.read_bytes(), COUNT)["status"]))
        for path in directory.glob("*.qi")
    )


def test_flags_of_delivery_are_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        left = fill(engine)
    expected = [(body, at < 20) for at, body in enumerate(left)]
    assert slots(queue_directory(tmp_path, "q")) == len(left)
    assert not list(queue_directory(tmp_path, "q").glob("*.idx"))
    assert not any(".qi" in path.name and path.suffix != ".qi" for path in tmp_path.rglob("*"))
    read = [(row.body, row.redelivered) for row in StoreReader(tmp_path).queue("q").entries()]
    assert read == expected
    assert qindex.verify(tmp_path).sound
    with qindex.open(tmp_path) as engine:
        assert engine.options.record_format == "rabbitmq-4"
        assert held(engine) == expected
        assert [dict(one.headers) for one in engine.queue("q").peek(3)] == [{}, {"n": 3}, {}]


def test_a_change_by_another_program_makes_all_redelivered(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        left = fill(engine)
    path = queue_directory(tmp_path, "q") / "4.qi"
    with path.open("r+b") as file:
        file.seek(index_format.HEADER_SIZE)
        file.write(bytes(index_format.ENTRY_SIZE))  # an acknowledgement by a node
    os.utime(path)
    os.utime(path, (path.stat().st_atime + 10, path.stat().st_mtime + 10))
    with opened(tmp_path) as engine:
        assert held(engine) == [(one, True) for one in left if not one.startswith(b"64:")]
        assert engine.findings == []


@pytest.mark.parametrize("trace", ["recovery.dets", "msg_store_persistent/clean.dot"])
def test_a_trace_of_a_node_makes_all_redelivered(tmp_path: Path, trace: str) -> None:
    """It may have delivered messages, and changed nothing."""
    with opened(tmp_path) as engine:
        left = fill(engine)
    (tmp_path / trace).write_bytes(b"")
    with opened(tmp_path) as engine:
        assert held(engine) == [(body, True) for body in left]
    assert not (tmp_path / trace).exists()


@pytest.mark.parametrize("trace", ["", "recovery.dets"])
def test_a_segment_that_is_missing_is_told_of_unless_a_node_had_the_store(
    tmp_path: Path, trace: str
) -> None:
    with opened(tmp_path) as engine:
        left = fill(engine)
    gone = queue_directory(tmp_path, "q") / "4.qi"
    gone.unlink()
    gone.with_suffix(".qs").unlink()
    if trace:
        (tmp_path / trace).write_bytes(b"")
    with opened(tmp_path) as engine:
        assert [one.path for one in engine.findings] == [str(gone)] * (not trace)
        expected = [one for one in left if not 64 <= int(one.split(b":")[0]) < 80]
        assert [body for body, _ in held(engine)] == expected


@pytest.mark.parametrize("after", range(11))
def test_a_disk_that_is_full_in_the_middle_of_a_flush(tmp_path: Path, after: int) -> None:
    """What a failed try has left in the slots is not there after the next one: messages that
    were acknowledged in between do not come back."""
    fs = FaultyFileSystem()
    engine = opened(tmp_path, fs)
    left = fill(engine)
    queue = engine.queue("q")
    fs.fail("pwrite", errno.ENOSPC, after=after, path="/q")
    fs.fail("pwrite", errno.ENOSPC, after=after, path=".q", short=40)
    with pytest.raises(StorageError):
        queue.flush()
    fs.heal()
    # None of these was in a segment when the flush began.
    taken = queue.get_many(1000)[20:35]
    assert [one.body for one in taken] == left[40:55]
    queue.ack_many(taken)
    queue.flush()
    del left[40:55]
    assert slots(queue_directory(tmp_path, "q")) == len(left)
    found = [(row.body, row.redelivered) for row in StoreReader(tmp_path).queue("q").entries()]
    assert [body for body, _ in found] == left
    engine.close()
    with opened(tmp_path) as engine:
        assert held(engine) == [(body, True) for body in left]


def test_the_form_is_settled_when_a_store_is_made(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "ours") as engine:
        engine.queue("q").publish(b"x")
    with pytest.raises(UsageError, match="another record_format"):
        qindex.open(tmp_path / "ours", record_format="rabbitmq-4")
    with opened(tmp_path / "theirs") as engine:
        engine.queue("q").publish(b"x")
    with qindex.open(tmp_path / "theirs") as engine:
        engine.queue("q").publish(b"y")
        assert held(engine) == [(b"x", False), (b"y", False)]
    assert len(list((tmp_path / "theirs").rglob("*.qi"))) == 1
    with pytest.raises(UsageError, match="no store with record_format"):
        qindex.follow(tmp_path / "theirs", "q")


def test_a_flipped_bit_of_the_index_is_put_right(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        left = fill(engine)
    expected = [(body, at < 20) for at, body in enumerate(left)]
    path = queue_directory(tmp_path, "q") / "3.qi"
    sound = path.read_bytes()
    stamp = path.stat().st_atime, path.stat().st_mtime
    for bit in range(0, 8 * len(sound), 577):
        flipped = bytearray(sound)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        path.write_bytes(flipped)
        os.utime(path, stamp)
        with opened(tmp_path) as engine:
            assert held(engine) == expected
        os.utime(path, stamp)
    path.write_bytes(sound)
