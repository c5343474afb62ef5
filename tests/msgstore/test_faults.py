"""Full disks, I/O errors and failing syncs while the store writes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from journal.errors import StorageError, WritesRefusedError
from journal.poison import Poison
from tests.faulty_fs import FaultyFileSystem
from tests.msgstore.records import make_record, message_id, open_store, record_of, write_numbers


@pytest.mark.parametrize("short", [0, 1, 24, 100])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EINTR])
def test_a_full_disk_records_nothing_and_passes(tmp_path: Path, short: int, error: int) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs) as store:
        write_numbers(store, range(2))
        size = (tmp_path / "0.rdq").stat().st_size
        fs.fail("pwrite", error, short=short)
        with pytest.raises(StorageError) as caught:
            store.write(message_id(2), record_of(2))
        assert caught.value.errno == error
        assert message_id(2) not in store
        assert (tmp_path / "0.rdq").stat().st_size == size
        write_numbers(store, range(3, 5))
        store.sync()
    wanted = {message_id(number): 1 for number in (0, 1, 3, 4)}
    with open_store(tmp_path, wanted) as store:
        assert store.findings == []
        assert store.missing == set()


@pytest.mark.parametrize("call", range(3))
def test_a_big_record_is_cut_back_wherever_it_fails(tmp_path: Path, call: int) -> None:
    """It goes out in three writes: header, record, end byte."""
    fs = FaultyFileSystem()
    record = make_record(message_id(9), bytes(1 << 18))
    with open_store(tmp_path, fs=fs, file_size_limit=1 << 20) as store:
        write_numbers(store, range(2))
        size = (tmp_path / "0.rdq").stat().st_size
        fs.fail("pwrite", errno.ENOSPC, after=call, short=5)
        with pytest.raises(StorageError):
            store.write(message_id(9), record)
        assert (tmp_path / "0.rdq").stat().st_size == size
        store.write(message_id(9), record)
        assert store.read(message_id(9)) == record


def test_of_a_batch_all_or_nothing_counts(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs) as store:
        store.write(message_id(0), record_of(0), 1)
        store.write(message_id(7), record_of(7), 2)
        fs.fail("pwrite", errno.ENOSPC, after=1)
        items = [(message_id(number), record_of(number), 3) for number in range(12)]
        with pytest.raises(StorageError):
            store.write_many(items)
        assert len(store) == 2
        assert store.references(message_id(0)) == 1
        assert store.references(message_id(7)) == 2
        store.write_many(items)
        assert store.references(message_id(7)) == 5
        assert store.read_many([item[0] for item in items]) == [item[1] for item in items]


def test_an_io_error_ends_writing_not_reading(tmp_path: Path) -> None:
    fs, poison = FaultyFileSystem(), Poison()
    with open_store(tmp_path, fs=fs, poison=poison) as store:
        write_numbers(store, range(2))
        fs.fail("pwrite", errno.EIO)
        with pytest.raises(StorageError):
            store.write(message_id(2), record_of(2))
        assert poison.reason is not None
        with pytest.raises(WritesRefusedError):
            store.write(message_id(2), record_of(2))
        with pytest.raises(WritesRefusedError):
            store.write_many([(message_id(2), record_of(2), 1)])
        with pytest.raises(WritesRefusedError):
            store.sync()
        assert store.read(message_id(1)) == record_of(1)
        store.remove([message_id(1)])


def test_a_partial_append_that_can_not_be_cut_ends_writing(tmp_path: Path) -> None:
    fs, poison = FaultyFileSystem(), Poison()
    with open_store(tmp_path, fs=fs, poison=poison) as store:
        write_numbers(store, range(2))
        fs.fail("pwrite", errno.ENOSPC, short=50)
        fs.fail("truncate", errno.EIO)
        with pytest.raises(StorageError):
            store.write(message_id(2), record_of(2))
        with pytest.raises(WritesRefusedError):
            store.write(message_id(2), record_of(2))
    with open_store(tmp_path, {message_id(0): 1, message_id(1): 1}) as store:
        assert store.missing == set()
        assert len(store.findings) == 1


@pytest.mark.parametrize("operation", ["fdatasync", "sync_dir"])
def test_a_failed_sync_is_never_followed_by_a_good_one(tmp_path: Path, operation: str) -> None:
    fs, poison = FaultyFileSystem(), Poison()
    with open_store(tmp_path, fs=fs, poison=poison) as store:
        write_numbers(store, range(12))
        fs.fail(operation, errno.EIO)
        with pytest.raises(StorageError):
            store.sync()
        for _ in range(2):
            with pytest.raises(WritesRefusedError):
                store.sync()
        with pytest.raises(WritesRefusedError):
            store.write(message_id(20), record_of(20))
        assert store.read(message_id(11)) == record_of(11)


def test_a_file_that_can_not_be_opened_to_be_synced_is_synced_later(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs, file_size_limit=1) as store:
        write_numbers(store, range(100))
        fs.fail("open", errno.EACCES, path="3.rdq")
        with pytest.raises(StorageError):
            store.sync()
        before = fs.calls["fdatasync"]
        store.sync()
        assert fs.calls["fdatasync"] > before
        assert fs.calls["sync_dir"] >= 1


def test_sync_covers_every_file_once_and_the_directory(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs) as store:
        write_numbers(store, range(22))
        fs.calls.clear()
        store.sync()
        assert fs.calls["fdatasync"] == 5
        assert fs.calls["sync_dir"] == 1
        store.sync()
        assert fs.calls["fdatasync"] == 5
        write_numbers(store, range(22, 23))
        store.sync()
        assert fs.calls["fdatasync"] == 6
        assert fs.calls["sync_dir"] == 1


def test_no_room_for_a_new_file(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs, file_size_limit=1) as store:
        write_numbers(store, range(1))
        for error in (errno.ENOSPC, errno.EACCES):
            fs.fail("open", error, path="1.rdq")
            with pytest.raises(StorageError):
                store.write(message_id(1), record_of(1))
            assert message_id(1) not in store
        write_numbers(store, range(1, 3))
        assert store.read(message_id(2)) == record_of(2)


def test_out_of_descriptors(tmp_path: Path) -> None:
    """Idle handles are closed before an open is given up."""
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs, file_size_limit=1) as store:
        write_numbers(store, range(40))
        closed = fs.calls["close"]
        fs.fail("open", errno.EMFILE, path="40.rdq")
        write_numbers(store, range(40, 41))
        assert fs.calls["close"] > closed + 30
        fs.fail("open", errno.EMFILE, times=2)
        with pytest.raises(StorageError):
            store.read(message_id(3))
        assert store.read(message_id(3)) == record_of(3)


def test_a_read_error_is_an_error_of_that_read(tmp_path: Path) -> None:
    fs, poison = FaultyFileSystem(), Poison()
    with open_store(tmp_path, fs=fs, poison=poison) as store:
        write_numbers(store, range(2))
        fs.fail("pread", errno.EIO)
        with pytest.raises(StorageError):
            store.read(message_id(0))
        assert store.read(message_id(0)) == record_of(0)
        assert poison.reason is None
        write_numbers(store, range(2, 3))


def test_short_writes_are_continued(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    fs.shorten("pwrite", 7)
    with open_store(tmp_path, fs=fs) as store:
        write_numbers(store, range(12))
        store.write_many([(message_id(20), record_of(20), 1), (message_id(21), record_of(21), 1)])
        store.remove([message_id(number) for number in (0, 1, 2, 5, 6, 7)])
        store.compact()
    wanted = {message_id(number): 1 for number in (3, 4, 8, 9, 10, 11, 20, 21)}
    with open_store(tmp_path, wanted) as store:
        assert store.missing == set()
        assert store.findings == []
        assert store.read(message_id(21)) == record_of(21)


def test_an_interrupt_in_an_append_leaves_no_trace(tmp_path: Path) -> None:
    class Interrupted(FaultyFileSystem):
        armed = False

        def pwrite(self, fd: int, data: object, offset: int, /) -> int:
            assert isinstance(data, bytes)
            done = super().pwrite(fd, data, offset)
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt
            return done

    fs = Interrupted()
    with open_store(tmp_path, fs=fs) as store:
        write_numbers(store, range(1))
        size = (tmp_path / "0.rdq").stat().st_size
        fs.armed = True
        with pytest.raises(KeyboardInterrupt):
            write_numbers(store, range(1, 2))
        assert (tmp_path / "0.rdq").stat().st_size == size
        write_numbers(store, range(1, 3))
        assert store.read(message_id(2)) == record_of(2)
