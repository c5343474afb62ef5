"""seq_ids are never given twice, whatever was lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import qindex
from journal.errors import StorageError
from journal.fs.files import REAL, FileSystem, RealFileSystem
from journal.poison import Poison
from qindex.format.seq_ids import (
    FILE_NAME,
    SLOT_SIZE,
    SeqSlot,
    pack_slot,
    short_boot_id,
    sound_slots,
)
from qindex.index.seq_ids import RESERVE, SeqFile
from qindex.recovery.store_directory import read_marker
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import (
    OtherBootFileSystem,
    copy_live,
    drain,
    open_quietly,
    queue_directory,
)


def seq_file(directory: Path, fs: FileSystem = REAL) -> SeqFile:
    return SeqFile(fs, directory / FILE_NAME, Poison())


def test_a_slot_and_its_checksum() -> None:
    slot = SeqSlot(7, 9, b"b" * 16)
    packed = pack_slot(slot)
    assert (len(packed), packed[:32].hex()) == (
        SLOT_SIZE,
        "0000000000000007" + "0000000000000009" + "62" * 16,
    )
    assert list(sound_slots(bytes(SLOT_SIZE) + packed + packed[:-1])) == [slot]
    for bit in range(len(packed) * 8):
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        # One flipped bit is put right, two are not.
        assert list(sound_slots(bytes(flipped))) == [slot]
        flipped[((bit >> 3) + 9) % len(packed)] ^= 2
        assert list(sound_slots(bytes(flipped))) == []
    assert len(short_boot_id(b"")) == 16


def test_a_new_file_knows_nothing(tmp_path: Path) -> None:
    fresh = seq_file(tmp_path)
    assert (fresh.reserved, fresh.next_after_crash(5)) == (0, 5)


def test_the_floor_counts_in_the_same_run_and_the_reservation_in_another(tmp_path: Path) -> None:
    first = seq_file(tmp_path)
    first.reserve(0)
    first.raise_floor(10)
    first.raise_floor(5)
    again = seq_file(tmp_path)
    assert again.next_after_crash(0) == 10
    assert again.next_after_crash(12) == 12
    assert again.reserved == RESERVE
    other = seq_file(tmp_path, OtherBootFileSystem())
    assert other.next_after_crash(12) == RESERVE


def _incarnation(store: Path, queue: str) -> int:
    return seq_file(queue_directory(store, queue)).incarnation


def test_a_queue_has_an_incarnation_from_its_first_message_on(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        mine = queue._parts.state.incarnation
        assert mine
        assert _incarnation(tmp_path, "q") == 0
        queue.publish(b"one")
        assert _incarnation(tmp_path, "q") == mine
    killed = copy_live(tmp_path, tmp_path.with_name("killed"))
    for store in (tmp_path, killed):  # a copy of the files is the same queue
        with open_quietly(store) as engine:
            assert engine.queue("q")._parts.state.incarnation == mine
            engine.queue("q").purge()
            engine.delete_queue("q")
            engine.queue("q").publish(b"another")
        assert _incarnation(store, "q") not in (0, mine)


def test_a_queue_of_an_earlier_version_has_no_incarnation_and_gets_none(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish(b"one")
    path = queue_directory(tmp_path, "q") / FILE_NAME
    os.truncate(path, 4 * SLOT_SIZE)
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"two")
        queue._parts.state.index.seq_file.reserve(1 << 24)
        assert queue._parts.state.incarnation == 0
    assert _incarnation(tmp_path, "q") == 0
    assert not qindex.verify(tmp_path).findings
    qindex.repair(tmp_path, tmp_path.with_name("copy"))
    assert _incarnation(tmp_path.with_name("copy"), "q") == 0


def test_a_repaired_copy_takes_the_place_of_the_store(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "a") as engine:
        engine.queue("q").publish(b"one")
    qindex.repair(tmp_path / "a", tmp_path / "b")
    assert _incarnation(tmp_path / "a", "q") == _incarnation(tmp_path / "b", "q") != 0
    markers = [read_marker(REAL, str(tmp_path / name)) for name in "ab"]
    assert markers[0] == markers[1]
    assert markers[0] is not None
    assert markers[0].identity


def test_a_first_reservation_that_is_cut_short_leaves_the_incarnation(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    one = seq_file(tmp_path, fs)
    fs.fail("pwrite", errno.ENOSPC, after=1)
    with pytest.raises(StorageError):
        one.reserve(0)
    assert seq_file(tmp_path).unused
    assert seq_file(tmp_path).incarnate() == one.incarnation
    one.reserve(0)
    assert seq_file(tmp_path).incarnation == one.incarnation


def test_where_the_system_does_not_tell_its_runs_apart(tmp_path: Path) -> None:
    unknown = OtherBootFileSystem(b"")
    first = seq_file(tmp_path, unknown)
    first.reserve(0)
    first.raise_floor(10)
    assert seq_file(tmp_path, unknown).next_after_crash(0) == RESERVE


def test_a_torn_write_of_any_slot_never_takes_the_last_reservation(tmp_path: Path) -> None:
    """Whatever is written next may be torn; what was durable before it must stay."""
    path = tmp_path / FILE_NAME
    one = seq_file(tmp_path)
    needed = 0
    for step in range(12):
        before = path.read_bytes() if path.exists() else b""
        reserved = max((slot.reserved for slot in sound_slots(before)), default=0)
        if step % 3 == 0:
            needed += 100
            one.reserve(needed)
        elif step % 3 == 1:
            one.raise_floor(needed + step)
        else:
            one = seq_file(tmp_path)
        after = path.read_bytes()
        for at in range(0, len(after), SLOT_SIZE):
            if before[at : at + SLOT_SIZE] != after[at : at + SLOT_SIZE]:
                torn = after[: at + 20] + bytes(SLOT_SIZE - 20) + after[at + SLOT_SIZE :]
                if step % 3 == 0:  # floors are never synced: they may be gone as well
                    torn = torn[: 2 * SLOT_SIZE]
                path.write_bytes(torn)
                assert seq_file(tmp_path).reserved >= reserved
                path.write_bytes(after)


def test_a_reservation_that_fails_refuses_writes(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    one = seq_file(tmp_path, fs)
    fs.fail("fdatasync", errno.EIO)
    with pytest.raises(StorageError, match="can't be reserved"):
        one.reserve(0)
    assert one.reserved == 0


FILE_SYSTEMS: list[FileSystem] = [REAL, OtherBootFileSystem()]


@pytest.mark.parametrize("fs", FILE_SYSTEMS, ids=["same boot", "another boot"])
@pytest.mark.parametrize("flushed", [True, False])
def test_an_empty_queue_goes_on_counting(tmp_path: Path, fs: FileSystem, flushed: bool) -> None:
    store = tmp_path / "store"
    engine = open_quietly(store)
    queue = engine.queue("q")
    queue.publish_many([b"x"] * 20)
    drain(queue)
    if flushed:
        queue.flush()
    last = queue.publish(b"y")
    drain(queue)
    copy = copy_live(store, tmp_path / "copy")
    engine.close()
    for found in (copy, store):
        with open_quietly(found, fs=fs) as again:
            assert len(again.queue("q")) == 0
            assert again.queue("q").publish(b"z") > last


def test_seq_ids_go_on_after_the_journal_was_lost_with_the_power(tmp_path: Path) -> None:
    store = tmp_path / "store"
    engine = open_quietly(store)
    queue = engine.queue("q")
    queue.publish_many([b"x"] * 20)
    copy = copy_live(store, tmp_path / "copy")
    engine.close()
    (queue_directory(copy, "q") / "journal.jif").write_bytes(b"")
    given = set(range(20))
    for boot in (b"second", b"third", b"fourth"):
        with open_quietly(copy, fs=OtherBootFileSystem(boot)) as again:
            queue = again.queue("q")
            new = {queue.publish(b"y"), *queue.publish_many([b"z"] * 9)}
            assert not new & given
            given |= new
            drain(queue)
            queue.flush()
            lost = copy_live(copy, tmp_path / boot.decode())
        (queue_directory(lost, "q") / "journal.jif").write_bytes(b"")
        for path in queue_directory(lost, "q").glob("*.idx"):
            path.unlink()
        copy = lost


def test_seq_ids_of_damaged_messages_are_not_given_again(tmp_path: Path) -> None:
    """The last records of the journal are unreadable: nobody knows how far they went."""
    store = tmp_path / "store"
    engine = open_quietly(store)
    engine.queue("q").publish_many([b"some longer body %d" % at for at in range(5)])
    copy = copy_live(store, tmp_path / "copy")
    engine.close()
    path = queue_directory(copy, "q") / "journal.jif"
    content = bytearray(path.read_bytes())
    end = content.rindex(b"some longer body 4") + 18
    content[end // 5 * 3 : end] = b"\xa5" * (end - end // 5 * 3)
    path.write_bytes(content)
    with open_quietly(copy, repair=True) as again:
        assert again.queue("q").publish(b"new") >= 5


def test_reservations_are_renewed_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qindex.index.seq_ids.RESERVE", 20)
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        seqs = [queue.publish(b"x") for _ in range(50)]
        seqs += queue.publish_many([b"x"] * 70)
        seqs += [queue.publish(b"x", key="k") for _ in range(30)]
        assert seqs == list(range(150))
        path = queue_directory(tmp_path, "q") / FILE_NAME
        assert max(slot.reserved for slot in sound_slots(path.read_bytes())) >= 150


def test_a_reservation_that_fails_while_publishing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qindex.index.seq_ids.RESERVE", 8)
    fs = FaultyFileSystem()
    engine = open_quietly(tmp_path, fs=fs)
    queue = engine.queue("q")
    queue.publish_many([b"x"] * 3)
    fs.fail("fdatasync", errno.ENOSPC)
    with pytest.raises(StorageError, match="can't be reserved"):
        queue.publish_many([b"y"] * 30)
    assert len(queue) == 3
    with pytest.raises(qindex.WritesRefusedError):
        queue.publish(b"z")
    assert [one.body for one in queue.peek(9)] == [b"x"] * 3
    engine.close()
    with open_quietly(tmp_path) as again:
        assert len(again.queue("q")) == 3


def test_boot_id_is_read_from_the_system(tmp_path: Path) -> None:
    class Unreadable(RealFileSystem):
        @staticmethod
        def boot_id() -> bytes:
            return b""

    one = seq_file(tmp_path, Unreadable())
    one.reserve(3)
    assert one.reserved == 3 + RESERVE
