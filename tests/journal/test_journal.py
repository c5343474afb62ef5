"""The writer of the journal: append, growth, emptying, the new file, the end."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from journal.errors import ClosedError, StorageError, WritesRefusedError
from journal.format import ACK, pack_action, pack_publish
from journal.fs.files import REAL, FileSystem
from journal.journal import Journal
from journal.poison import Poison
from journal.replay import Ending, walk_journal
from tests.faulty_fs import FaultyFileSystem
from tests.recording_fs import RecordingFileSystem, crash_states


def open_journal(
    directory: Path, *, position: int = 0, fs: FileSystem = REAL, poison: Poison | None = None
) -> Journal:
    return Journal(fs, directory / "journal.jif", poison or Poison(), position=position)


def acks(first: int, count: int) -> bytes:
    return b"".join(pack_action(ACK, seq) for seq in range(first, first + count))


def seqs_on_disk(directory: Path) -> list[int]:
    walk = walk_journal((directory / "journal.jif").read_bytes())
    assert walk.ending in (Ending.END, Ending.ZEROS, Ending.TORN)
    found: list[int] = walk.seqs.tolist()
    return found


def test_appends_are_in_the_file_at_once(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    assert journal.append(acks(0, 1)) == 0
    assert journal.append(acks(1, 3)) == 8
    assert seqs_on_disk(tmp_path) == [0, 1, 2, 3]
    assert journal.tell() == 32
    journal.close()
    assert (tmp_path / "journal.jif").read_bytes() == acks(0, 4)


@pytest.mark.parametrize("size", [1, 4096, 16 << 10, (64 << 10) - 8, 64 << 10, 1 << 20, 9 << 20])
def test_grows_as_needed(tmp_path: Path, size: int) -> None:
    journal = open_journal(tmp_path)
    body = os.urandom(size)
    first = pack_publish(1, True, bytes(16), 0, size, body)
    for at in range(3):
        assert journal.append(first) == at * len(first)
    journal.close()
    assert (tmp_path / "journal.jif").read_bytes() == first * 3


def test_room_is_made_when_the_map_is_full(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    assert journal.limit == len(journal.map)
    full = bytes(len(journal.map) + 1)
    journal.make_room(len(full))
    assert journal.limit >= len(full)
    journal.store(full)
    journal.close()
    assert (tmp_path / "journal.jif").stat().st_size == len(full)


@pytest.mark.parametrize(
    ("syncs", "count", "least", "most"), [(False, 4096, 6, 16), (True, 256, 14, 20)]
)
def test_zeros_are_written_ahead_in_few_pieces(
    tmp_path: Path, syncs: bool, count: int, least: int, most: int
) -> None:
    """A large journal makes few writes, each of which lets other threads run; where syncs come
    often they are small: a sync writes pages back in the pieces in which they were made."""
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    for _ in range(count):
        journal.append(bytes(1024))
        if syncs:
            journal.sync()
    assert least <= fs.calls["pwrite"] <= most
    journal.close()


def test_keeps_the_front_and_cuts_what_is_behind(tmp_path: Path) -> None:
    (tmp_path / "journal.jif").write_bytes(acks(0, 5) + b"torn")
    journal = open_journal(tmp_path, position=40)
    journal.append(acks(5, 1))
    journal.close()
    assert (tmp_path / "journal.jif").read_bytes() == acks(0, 6)


def test_a_small_journal_is_emptied_in_place(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    inode = (tmp_path / "journal.jif").stat().st_ino
    journal.append(acks(0, 10))
    journal.retire(journal.rebase(journal.tell(), None))
    assert (journal.tell(), seqs_on_disk(tmp_path)) == (0, [])
    journal.append(acks(7, 1))
    assert seqs_on_disk(tmp_path) == [7]
    assert (tmp_path / "journal.jif").stat().st_ino == inode
    journal.close()


def test_a_large_journal_is_replaced_by_a_small_one(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(bytes(3 << 20))
    journal.retire(journal.rebase(journal.tell(), None))
    journal.append(acks(1, 2))
    assert seqs_on_disk(tmp_path) == [1, 2]
    assert (tmp_path / "journal.jif").stat().st_size < 1 << 20
    journal.close()


@pytest.mark.parametrize("prepared", [0, 8, 24, 48])
def test_rebase_keeps_what_was_appended_behind(tmp_path: Path, prepared: int) -> None:
    journal = open_journal(tmp_path)
    journal.append(acks(0, 4))
    front = journal.tell()
    journal.append(acks(4, 6))
    ready = journal.prepare(front, front + prepared) if prepared else None
    journal.append(acks(10, 2))
    journal.retire(journal.rebase(front, ready))
    assert seqs_on_disk(tmp_path) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert journal.append(acks(12, 1)) == 64
    journal.sync()
    journal.close()
    assert (tmp_path / "journal.jif").read_bytes() == acks(4, 9)
    assert not (tmp_path / "journal.jif.new").exists()


def test_nothing_to_prepare(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(acks(0, 1))
    assert journal.prepare(8, 8) is None
    journal.close()


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("tail", [0, 3])
def test_every_crash_of_a_rebase_leaves_the_old_journal_or_the_new_one(
    tmp_path: Path, tail: int, synced: bool
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    recording = RecordingFileSystem(store)
    journal = open_journal(store, fs=recording)
    journal.append(acks(0, 4))
    front = journal.tell()
    journal.append(acks(4, tail))
    journal.sync()
    if not synced:
        journal.synced = 0
    first = len(recording.log)
    ready = journal.prepare(front, journal.tell())
    journal.retire(journal.rebase(front, ready))
    recording.note("rebased")
    journal.sync()
    recording.note("synced")
    old, new = list(range(4 + tail)), list(range(4, 4 + tail))
    states = 0
    for number, state in enumerate(crash_states(recording, first=first)):
        directory = state.build(tmp_path / f"state{number}")
        found = seqs_on_disk(directory)
        if state.how == "kill":
            assert found == (new if "rebased" in state.notes else found)
            assert found in (old, new)
        elif "synced" in state.notes or synced:
            # What was durable stays durable: in the old file, or in the new one.
            assert found in (old, new), state.how
        assert "synced" not in state.notes or found == new, state.how
        states += 1
    assert states > 4
    recording.forget_descriptors()


def test_full_disk_while_growing_changes_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    journal.append(acks(0, 3))
    fs.fail("fallocate", errno.ENOSPC)
    with pytest.raises(StorageError, match="can't grow") as caught:
        journal.append(bytes(1 << 20))
    assert caught.value.errno == errno.ENOSPC
    assert journal.tell() == 24
    journal.append(acks(3, 1))
    assert seqs_on_disk(tmp_path) == [0, 1, 2, 3]
    journal.close()


@pytest.mark.parametrize("operation", ["fallocate", "mmap"])
def test_an_error_after_emptying_refuses_writes(tmp_path: Path, operation: str) -> None:
    fs = FaultyFileSystem()
    poison = Poison()
    journal = open_journal(tmp_path, fs=fs, poison=poison)
    journal.append(acks(0, 3))
    fs.fail(operation, errno.EIO)
    journal.retire(journal.rebase(journal.tell(), None))
    assert poison.reason is not None
    with pytest.raises(WritesRefusedError):
        journal.append(acks(3, 1))
    with pytest.raises(WritesRefusedError):
        journal.append(acks(3, 1), reserve=True)
    assert seqs_on_disk(tmp_path) == []
    journal.close()


def fill(journal: Journal) -> int:
    """Append publishes until there is no room; gives how many."""
    record = pack_publish(1, True, bytes(range(16)), 0, 10, bytes(100))
    count = 0
    with suppress(StorageError):
        while True:
            journal.append(record)
            count += 1
    return count


@pytest.mark.parametrize("entries", [0, 1000])
def test_on_a_full_disk_there_is_room_for_acks_only(tmp_path: Path, entries: int) -> None:
    fs = FaultyFileSystem()
    journal = Journal(fs, tmp_path / "journal.jif", Poison(), entries=entries)
    fs.fail("fallocate", errno.ENOSPC, times=None)
    published = fill(journal)
    assert not journal.in_reserve
    settled = 0
    with suppress(StorageError):
        while True:
            journal.append(acks(settled, 1), reserve=True)
            settled += 1
    assert settled >= max(2 * published, 2 * entries)
    assert journal.in_reserve
    assert journal.reserve_left < 8
    assert journal.limit == 0
    with pytest.raises(StorageError, match="can't grow"):
        journal.make_room(100)
    fs.heal()
    journal.append(acks(settled, 1))
    assert not journal.in_reserve
    assert seqs_on_disk(tmp_path) == [1] * published + list(range(settled + 1))
    journal.append(acks(0, 1))
    journal.close()


def test_a_publish_never_uses_the_reserve(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    fs.fail("fallocate", errno.ENOSPC, times=None)
    fill(journal)
    while not journal.in_reserve:
        journal.append(acks(0, 1), reserve=True)
    end = journal.tell()
    for data in (acks(1, 1), bytes(100_000)):
        with pytest.raises(StorageError, match="can't grow"):
            journal.append(data)
    assert journal.tell() == end
    journal.append(acks(1, 2), reserve=True)
    journal.close()


def test_emptied_on_a_full_disk_it_takes_the_next_room_there_is(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    poison = Poison()
    journal = open_journal(tmp_path, fs=fs, poison=poison)
    journal.append(acks(0, 3))
    fs.fail("fallocate", errno.ENOSPC, times=None)
    journal.retire(journal.rebase(journal.tell(), None))
    for reserve in (False, True):
        with pytest.raises(StorageError, match="can't grow"):
            journal.append(acks(3, 1), reserve=reserve)
    assert journal.limit == journal.word_limit == 0
    journal.sync()
    assert (tmp_path / "journal.jif").stat().st_size == 0
    fs.heal()
    # There is one page, and no more.
    fs.fail("fallocate", errno.ENOSPC)
    journal.append(acks(3, 1), reserve=True)
    assert (tmp_path / "journal.jif").stat().st_size == 4096
    journal.append(acks(4, 1))
    assert poison.reason is None
    journal.close()
    assert (tmp_path / "journal.jif").read_bytes() == acks(3, 2)


def test_a_large_journal_is_emptied_in_place_on_a_full_disk(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    journal.append(bytes(3 << 20))
    fs.fail("fallocate", errno.ENOSPC)
    assert journal.rebase(journal.tell(), None) is None
    assert not (tmp_path / "journal.jif.new").exists()
    journal.append(acks(1, 2))
    assert seqs_on_disk(tmp_path) == [1, 2]
    journal.close()


@pytest.mark.parametrize("operation", ["open", "fallocate", "mmap", "pwrite"])
def test_no_room_for_a_new_file_changes_nothing(tmp_path: Path, operation: str) -> None:
    fs = FaultyFileSystem()
    poison = Poison()
    journal = open_journal(tmp_path, fs=fs, poison=poison)
    journal.append(acks(0, 6))
    fs.fail(operation, errno.ENOSPC)
    with pytest.raises(StorageError, match="can't be emptied"):
        journal.rebase(16, None)
    assert poison.reason is None
    assert not (tmp_path / "journal.jif.new").exists()
    journal.append(acks(6, 1), reserve=True)
    journal.retire(journal.rebase(16, None))
    assert seqs_on_disk(tmp_path) == [2, 3, 4, 5, 6]
    journal.close()


def test_room_that_was_taken_in_vain_is_given_back(tmp_path: Path) -> None:
    """As ext4 does it: a call that fails half-way keeps what it has taken."""
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    journal.append(acks(0, 3))
    size = (tmp_path / "journal.jif").stat().st_size
    real = fs.fallocate

    def half(fd: int, offset: int, length: int, /) -> None:
        real(fd, offset, length - 4096)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fs.fallocate = half  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="can't grow"):
        journal.append(bytes(1 << 20))
    assert (tmp_path / "journal.jif").stat().st_size == size
    del fs.fallocate
    assert seqs_on_disk(tmp_path) == [0, 1, 2]
    journal.close()


@pytest.mark.parametrize("operation", ["open", "fallocate", "mmap", "pwrite", "rename"])
def test_a_rebase_that_fails_leaves_the_records_readable(tmp_path: Path, operation: str) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    journal.append(acks(0, 6))
    fs.fail(operation, errno.EIO)
    with pytest.raises(StorageError, match="can't be emptied"):
        journal.rebase(16, None)
    assert journal.tell() == 48
    assert journal.map[:48] == acks(0, 6)
    with pytest.raises(WritesRefusedError):
        journal.append(acks(6, 1), reserve=True)
    journal.close()


def test_emptying_that_fails_leaves_the_records_readable(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    journal.append(acks(0, 6))
    fs.fail("truncate", errno.EIO)
    with pytest.raises(StorageError, match="can't be emptied"):
        journal.rebase(48, None)
    assert journal.map[:48] == acks(0, 6)
    assert seqs_on_disk(tmp_path) == [0, 1, 2, 3, 4, 5]
    journal.close()


@pytest.mark.parametrize("operation", ["open", "fallocate", "pwrite"])
def test_preparing_that_fails_changes_nothing(tmp_path: Path, operation: str) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    journal.append(acks(0, 6))
    fs.fail(operation, errno.ENOSPC)
    with pytest.raises(StorageError, match="can't be copied"):
        journal.prepare(16, 48)
    journal.append(acks(6, 1))
    journal.retire(journal.rebase(16, journal.prepare(16, 48)))
    assert seqs_on_disk(tmp_path) == [2, 3, 4, 5, 6]
    journal.close()


def test_a_bulk_append_that_fails_refuses_writes(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    journal.make_room(1 << 20)
    fs.fail("pwrite", errno.EIO, short=100)
    with pytest.raises(StorageError, match="append failed"):
        journal.append(bytes(200_000))
    assert journal.tell() == 0
    with pytest.raises(WritesRefusedError):
        journal.append(acks(0, 1), reserve=True)
    journal.close()


def test_opening_fails(tmp_path: Path) -> None:
    for operation in ("open", "fallocate", "mmap", "fstat"):
        fs = FaultyFileSystem()
        fs.fail(operation, errno.EIO)
        with pytest.raises(StorageError, match="can't be opened"):
            open_journal(tmp_path, fs=fs)
        assert fs.calls["close"] == (operation != "open")


def test_opening_after_writes_were_refused(tmp_path: Path) -> None:
    poison = Poison()
    poison.set(OSError("gone"))
    journal = open_journal(tmp_path, poison=poison)
    with pytest.raises(WritesRefusedError, match="gone"):
        journal.append(b"x", reserve=True)
    journal.close()


def test_after_close(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(acks(0, 1))
    journal.close()
    journal.close()
    for call in (
        lambda: journal.append(acks(1, 1)),
        lambda: journal.append(bytes(100_000)),
        lambda: journal.make_room(1),
    ):
        with pytest.raises(ClosedError):
            call()
    journal.sync()  # all of it is durable
    assert (tmp_path / "journal.jif").read_bytes() == acks(0, 1)


def test_close_without_cutting(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(acks(0, 1))
    journal.close(cut=False)
    assert (tmp_path / "journal.jif").stat().st_size >= 16 << 10


def test_close_that_fails_closes(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    journal = open_journal(tmp_path, fs=fs)
    fs.fail("truncate", errno.EIO)
    closed = fs.calls["close"]
    with pytest.raises(StorageError, match="can't be closed"):
        journal.close()
    assert fs.calls["close"] == closed + 1
    journal.close()
    assert fs.calls["close"] == closed + 1
