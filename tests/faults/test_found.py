"""Defects that failing every call has found, each in its shortest form."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import qindex
from journal.errors import StorageError
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import copy_live, drain, open_quietly


def opened(path: Path, **options: Any) -> tuple[FaultyFileSystem, qindex.Engine, qindex.Queue]:
    fs = FaultyFileSystem()
    engine = open_quietly(path / "store", fs=fs, segment_entry_count=4, **options)
    return fs, engine, engine.queue("q")


def bodies_after_a_kill(path: Path) -> list[bytes]:
    copy = copy_live(path / "store", path / "copy")
    with open_quietly(copy) as engine:
        assert all(one.cause is qindex.Cause.CRASH for one in engine.findings)
        return [body for _, body, _ in drain(engine.queue("q"))]


def test_a_segment_that_a_failed_flush_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    """The flush wrote 0.idx and met a full disk at 1.idx; then all of segment 0 was acknowledged.
    Its file stayed, and its messages came back."""
    fs, engine, queue = opened(tmp_path)
    with engine:
        queue.publish_many([b"%d" % at for at in range(6)])
        fs.fail("open", errno.ENOSPC, path="1.idx")
        with pytest.raises(StorageError, match="No space left"):
            queue.flush()
        queue.ack_many(queue.get_many(4))
        queue.flush()
        assert bodies_after_a_kill(tmp_path) == [b"4", b"5"]


def test_a_segment_whose_file_a_failed_flush_removed_starts_anew(tmp_path: Path) -> None:
    """The flush removed 0.idx, and the directory could not be synced. The next publish came to
    stand behind a hole, and its reader got the bytes of the old file: another message's body."""
    fs, engine, queue = opened(tmp_path)
    with engine:
        queue.publish(b"first")
        queue.flush()
        queue.ack_many(queue.get_many(1))
        fs.fail("sync_dir", errno.EMFILE)
        with pytest.raises(StorageError, match="Too many open files"):
            queue.flush()
        queue.publish(b"other")
        queue.flush()
        assert bodies_after_a_kill(tmp_path) == [b"other"]
        assert [one.body for one in queue.get_many(5)] == [b"other"]


def test_what_was_read_of_a_failed_flush_is_forgotten(tmp_path: Path) -> None:
    """A flush that failed half-way had appended messages 1 and 2; they were read from there. The
    next one put message 2 in the place of 1, and the reader took the bytes that it knew."""
    fs, engine, queue = opened(tmp_path, embed_below=1 << 20)
    with engine:
        queue.publish(b"0")
        queue.flush()
        # So large that one is read at a time.
        queue.publish_many([b"1" * 600_000, b"2" * 600_000])
        fs.fail("fdatasync", errno.ENOSPC, path="0.idx")
        with pytest.raises(StorageError, match="No space left"):
            queue.flush()
        first = queue.get(0)
        second = queue.get(0)
        assert first is not None
        assert second is not None
        second.ack()
        queue.flush()
        assert [one.body[:1] for one in queue.get_many(5)] == [b"2"]


@pytest.mark.parametrize("error", [errno.EIO, errno.EINTR])
def test_an_error_of_close_is_one_of_ours(tmp_path: Path, error: int) -> None:
    fs, engine, queue = opened(tmp_path)
    queue.publish(b"x")
    queue.sync()
    fs.fail("close", error, path="journal.jif", after=1)  # the first is for the checksums
    with pytest.raises(StorageError, match="journal can't be closed"):
        engine.close()
    with open_quietly(tmp_path / "store") as again:
        assert [body for _, body, _ in drain(again.queue("q"))] == [b"x"]


def test_a_lock_file_whose_close_fails_is_given_back(tmp_path: Path) -> None:
    fs, engine, _ = opened(tmp_path)
    fs.fail("close", errno.EIO, path="qindex.lock")
    engine.close()
    open_quietly(tmp_path / "store").close()


def test_a_queue_whose_journal_does_not_close_is_deleted(tmp_path: Path) -> None:
    """It stayed in the engine, refused all calls, and could not be deleted either."""
    fs, engine, queue = opened(tmp_path)
    with engine:
        queue.publish(b"x")
        fs.fail("close", errno.EIO, path="journal.jif")
        engine.delete_queue("q")
        assert engine.queue_names() == []
        assert len(engine.queue("q")) == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("large", [False, True])
def test_a_sync_without_a_handle_can_be_tried_again(
    tmp_path: Path, number: int, large: bool
) -> None:
    """The application had used up its handles at the first sync, which opens the directory: all
    writes were refused until the store was opened anew, with handles free again."""
    fs, engine, queue = opened(tmp_path)
    with engine:
        queue.publish(b"x" * (10_000 if large else 10))
        for _ in range(2):
            fs.fail("sync_dir", number)
            with pytest.raises(StorageError):
                engine.sync()
        assert engine.stats().writes_refused is None
        before = fs.calls["sync_dir"]
        engine.sync()
        assert fs.calls["sync_dir"] > before
        queue.publish(b"next")
        engine.sync()


def test_seq_ids_that_could_not_be_reserved_for_want_of_a_handle(tmp_path: Path) -> None:
    fs, engine, queue = opened(tmp_path, durability="fsync")
    with engine:
        for failing in ("open", "sync_dir"):
            fs.fail(failing, errno.EMFILE)
            with pytest.raises(StorageError):
                queue.publish(b"refused or not durable")
        assert engine.stats().writes_refused is None
        queue.publish(b"x", confirm=True)
