"""What compaction reclaims, what it leaves, and what it does while others are at work."""

from __future__ import annotations

import errno
import random
import threading
import time
from pathlib import Path

import pytest

from journal.errors import DamageError, StorageError
from msgstore import MessageStore
from tests.faulty_fs import FaultyFileSystem
from tests.msgstore.records import (
    message_id,
    open_store,
    rdq_names,
    record_of,
    write_numbers,
)
from tests.waiting import WAIT


def keep_only(store: MessageStore, kept: set[int], count: int) -> None:
    store.remove([message_id(number) for number in range(count) if number not in kept])


def assert_sound(store: MessageStore, kept: set[int]) -> None:
    assert len(store) == len(kept)
    for number in kept:
        assert store.read(message_id(number)) == record_of(number)


def test_dead_files_go_and_live_ones_stay(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(20))
        keep_only(store, set(range(5, 9)), 20)
        report = store.compact()
        assert rdq_names(tmp_path) == ["1.rdq"]
        assert report.bytes_copied == 0
        assert_sound(store, set(range(5, 9)))


def test_a_random_tenth_is_combined_to_little_more_than_itself(tmp_path: Path) -> None:
    kept = set(random.Random(5).sample(range(1000), 100))
    with open_store(tmp_path, file_size_limit=20_000) as store:
        write_numbers(store, range(1000))
        keep_only(store, kept, 1000)
        report = store.compact()
        stats = store.stats()
        assert stats.size <= 1.6 * stats.live
        assert stats.size == sum((tmp_path / name).stat().st_size for name in rdq_names(tmp_path))
        assert report.reclaimed > 0
        assert_sound(store, kept)
    with open_store(tmp_path, {message_id(number): 1 for number in kept}) as store:
        assert store.findings == []
        assert store.missing == set()
        assert_sound(store, kept)


def test_files_with_little_garbage_are_left_alone(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(20))
        store.remove([message_id(number) for number in range(0, 20, 4)])
        before = rdq_names(tmp_path)
        assert store.compact().files_written == 0
        assert rdq_names(tmp_path) == before


def test_the_ratio_is_what_decides(tmp_path: Path) -> None:
    with open_store(tmp_path, garbage_ratio=0.2) as store:
        write_numbers(store, range(20))
        store.remove([message_id(number) for number in range(0, 20, 4)])
        assert store.compact().files_written > 0
        assert_sound(store, {number for number in range(20) if number % 4})


def test_the_current_file_is_not_combined(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(3))
        store.remove([message_id(0), message_id(1)])
        assert store.compact().files_deleted == 0
        write_numbers(store, range(3, 4))
        assert_sound(store, {2, 3})


def test_many_small_remains_become_one(tmp_path: Path) -> None:
    with open_store(tmp_path, file_size_limit=1) as store:
        write_numbers(store, range(12))
    references = {message_id(number): 1 for number in range(12)}
    with open_store(tmp_path, references, file_size_limit=100_000) as store:
        store.compact()
        assert len(rdq_names(tmp_path)) == 2
        assert_sound(store, set(range(12)))


def test_a_message_bigger_than_a_file(tmp_path: Path) -> None:
    with open_store(tmp_path, file_size_limit=3000) as store:
        store.write(message_id(0), record_of(0, 2900))
        store.write(message_id(1), record_of(1, 2000))
        store.write(message_id(2), record_of(2, 50_000))
        store.remove([message_id(0)])
        store.compact()
        assert store.read(message_id(2)) == record_of(2, 50_000)


def test_an_empty_queue_leaves_an_empty_disk_without_a_call(tmp_path: Path) -> None:
    with open_store(tmp_path, background=True) as store:
        write_numbers(store, range(22))
        keep_only(store, set(), 22)
        deadline = time.monotonic() + WAIT
        while rdq_names(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert rdq_names(tmp_path) == []
        write_numbers(store, range(1))
        assert_sound(store, {0})


def test_a_message_at_a_time_does_not_make_a_file_at_a_time(tmp_path: Path) -> None:
    with open_store(tmp_path, background=True, file_size_limit=1 << 20) as store:
        for number in range(300):
            write_numbers(store, range(number, number + 1))
            store.remove([message_id(number)])
        assert store.stats().compaction.files_deleted <= 2


def test_acknowledgements_are_made_durable_before_anything_is_deleted(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    with open_store(tmp_path, before_reclaim=lambda: seen.append(rdq_names(tmp_path))) as store:
        write_numbers(store, range(20))
        before = rdq_names(tmp_path)
        keep_only(store, {0, 19}, 20)
        store.compact()
    assert seen
    assert set(before) <= set(seen[0])


def test_nothing_is_deleted_when_the_acknowledgements_can_not_be_saved(tmp_path: Path) -> None:
    def refuse() -> None:
        raise StorageError(tmp_path, "can't be synced", OSError(errno.EIO, "I/O error"))

    with open_store(tmp_path, before_reclaim=refuse) as store:
        write_numbers(store, range(20))
        keep_only(store, {0}, 20)
        before = set(rdq_names(tmp_path))
        with pytest.raises(StorageError):
            store.compact()
        assert before <= set(rdq_names(tmp_path))
        assert_sound(store, {0})


def test_removed_while_it_was_copied(tmp_path: Path) -> None:
    """The hook of the file system runs between the copy and the switch of the index."""

    class Meddling(FaultyFileSystem):
        def fdatasync(self, fd: int, /) -> None:
            if armed:
                store.remove([message_id(armed.pop())])
            super().fdatasync(fd)

    armed: list[int] = []
    with open_store(tmp_path, fs=Meddling()) as store:
        write_numbers(store, range(20))
        kept = {1, 6, 11, 16}
        keep_only(store, kept, 20)
        armed.append(6)
        store.compact()
        kept.discard(6)
        assert_sound(store, kept)
        with pytest.raises(KeyError):
            store.read(message_id(6))


def test_all_removed_while_they_were_copied(tmp_path: Path) -> None:
    class Meddling(FaultyFileSystem):
        def open(self, path: object, flags: int, mode: int = 0o666, /) -> int:
            if str(path).endswith(".tmp"):
                store.remove([message_id(1), message_id(6)])
            return super().open(str(path), flags, mode)

    with open_store(tmp_path, fs=Meddling()) as store:
        write_numbers(store, range(20))
        keep_only(store, {1, 6}, 20)
        store.compact()
        assert rdq_names(tmp_path) == []


def test_a_full_disk_in_the_middle(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    kept = {1, 6, 11, 16}
    with open_store(tmp_path, fs=fs) as store:
        write_numbers(store, range(20))
        keep_only(store, kept, 20)
        fs.fail("pwrite", errno.ENOSPC, short=100)
        with pytest.raises(StorageError) as error:
            store.compact()
        assert error.value.errno == errno.ENOSPC
        assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
        assert_sound(store, kept)
        write_numbers(store, range(20, 21))
        store.compact()
        assert_sound(store, {*kept, 20})


@pytest.mark.parametrize("operation", ["open", "fdatasync", "rename", "sync_dir", "unlink"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_any_failing_step(tmp_path: Path, operation: str, error: int) -> None:
    fs = FaultyFileSystem()
    kept = {1, 6, 11, 16}
    with open_store(tmp_path, fs=fs) as store:
        write_numbers(store, range(20))
        keep_only(store, kept, 20)
        fs.fail(operation, error, times=2, path=".tmp" if operation in {"open", "rename"} else "")
        with pytest.raises(StorageError):
            store.compact()
        fs.heal()
        assert_sound(store, kept)
    references = {message_id(number): 1 for number in kept}
    with open_store(tmp_path, references) as store:
        store.compact()
        assert_sound(store, kept)
        assert store.missing == set()
        assert store.stats().size <= 2 * store.stats().live


def test_a_file_whose_records_can_not_be_found_is_kept(tmp_path: Path) -> None:
    """Its headers rot away under the open store; the bodies can still be read by location."""
    with open_store(tmp_path) as store:
        write_numbers(store, range(20))
        keep_only(store, {3}, 20)
        location = store.locate(message_id(3))
        assert location is not None
        with (tmp_path / "0.rdq").open("r+b") as file:
            file.seek(location.offset)
            file.write(b"\xee" * 24)
        store.compact()
        assert rdq_names(tmp_path) == ["0.rdq"]
        assert store.read(message_id(3)) == record_of(3)
        store.remove([message_id(3)])
        store.compact()
        assert rdq_names(tmp_path) == []


def test_a_file_that_was_cut_under_the_store(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(20))
        keep_only(store, {3, 7}, 20)
        with (tmp_path / "0.rdq").open("r+b") as file:
            file.truncate(500)
        store.compact()
        assert store.read(message_id(7)) == record_of(7)
        with pytest.raises(DamageError):
            store.read(message_id(3))


def test_copying_is_as_slow_as_it_is_told_to_be(tmp_path: Path) -> None:
    with open_store(tmp_path, compaction_bytes_per_second=5000) as store:
        write_numbers(store, range(20))
        keep_only(store, {1, 6, 11, 16}, 20)
        started = time.monotonic()
        report = store.compact()
        assert time.monotonic() - started >= 0.9 * report.bytes_copied / 5000 > 0.1


def test_close_does_not_wait_for_a_slow_copy(tmp_path: Path) -> None:
    store = open_store(tmp_path, compaction_bytes_per_second=1, background=True)
    write_numbers(store, range(20))
    keep_only(store, {1, 6, 11, 16}, 20)
    time.sleep(0.2)
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < WAIT  # the copy takes longer
    assert not list(tmp_path.glob("*.tmp"))
    with open_store(tmp_path, {message_id(number): 1 for number in (1, 6, 11, 16)}) as store:
        assert_sound(store, {1, 6, 11, 16})


def test_publishers_are_slowed_while_compaction_is_behind(tmp_path: Path) -> None:
    gate = threading.Event()
    with open_store(
        tmp_path,
        file_size_limit=2000,
        background=True,
        before_reclaim=lambda: gate.wait(WAIT) and None,
    ) as store:
        for number in range(60):
            write_numbers(store, range(number, number + 1))
            store.remove([message_id(number)])
            if store.stats().stalled_seconds:
                break
        stats = store.stats()
        assert stats.stalled_seconds > 0.05
        assert stats.size < 2 * 2000 + 1000
        gate.set()


def test_a_failing_compaction_slows_nobody(tmp_path: Path) -> None:
    def refuse() -> None:
        raise RuntimeError("no")

    with open_store(
        tmp_path, file_size_limit=2000, background=True, before_reclaim=refuse
    ) as store:
        write_numbers(store, range(10))
        keep_only(store, set(), 10)
        deadline = time.monotonic() + WAIT
        while store.stats().last_error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.stats().last_error == "no"
        before = store.stats().stalled_seconds
        write_numbers(store, range(10, 60))
        assert store.stats().stalled_seconds == before


def test_a_reader_keeps_the_file_it_reads(tmp_path: Path) -> None:
    """The read has its location when compaction moves the record and deletes the file."""

    class Slow(FaultyFileSystem):
        def pread(self, fd: int, length: int, offset: int, /) -> bytes:
            if threading.current_thread() is reader:
                reading.set()
                moved.wait(WAIT)
            return super().pread(fd, length, offset)

    reading, moved = threading.Event(), threading.Event()
    got: list[bytes] = []
    with open_store(tmp_path, fs=Slow()) as store:
        write_numbers(store, range(20))
        keep_only(store, {1, 6, 11}, 20)
        reader = threading.Thread(target=lambda: got.append(store.read(message_id(1))))
        reader.start()
        reading.wait(WAIT)
        store.compact()
        assert not (tmp_path / "0.rdq").exists()
        moved.set()
        reader.join()
    assert got == [record_of(1)]
