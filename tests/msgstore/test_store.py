"""The store's interface, one call after another and from many threads."""

from __future__ import annotations

import doctest
import os
import random
import threading
import time
from pathlib import Path

import pytest

import msgstore.store
from journal.errors import ClosedError, DamageError, UsageError
from msgstore import MissingMessageError, StaleSnapshotError
from msgstore.handles import MAX_HANDLES
from tests.msgstore.records import (
    check,
    make_record,
    message_id,
    open_store,
    rdq_names,
    record_of,
    write_numbers,
)
from tests.waiting import WAIT


def test_the_example_runs() -> None:
    assert doctest.testmod(msgstore.store).failed == 0


def test_write_read_remove(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write(message_id(1), record_of(1), references=2)
        assert store.read(message_id(1)) == record_of(1)
        assert store.references(message_id(1)) == 2
        store.add_references(message_id(1), 3)
        assert store.references(message_id(1)) == 5
        store.remove([message_id(1)] * 4)
        assert message_id(1) in store
        store.remove([message_id(1)])
        assert message_id(1) not in store
        assert len(store) == 0
        with pytest.raises(MissingMessageError):
            store.read(message_id(1))
        with pytest.raises(MissingMessageError):
            store.add_references(message_id(1))


def test_a_known_message_is_not_written_again(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write(message_id(1), record_of(1))
        size = store.stats().size
        store.write(message_id(1), record_of(1), references=4)
        assert store.references(message_id(1)) == 5
        assert store.stats().size == size


@pytest.mark.parametrize("size", [0, 100, 300_000])
def test_a_record_in_parts_is_written_as_a_whole_one(tmp_path: Path, size: int) -> None:
    record = record_of(1, size)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with open_store(whole, file_size_limit=1 << 20) as store:
        store.write(message_id(1), record)
    with open_store(parts, file_size_limit=1 << 20) as store:
        store.write_new(message_id(1), (record[:3], record[3:7], record[7:]))
        assert store.references(message_id(1)) == 1
        assert store.read(message_id(1)) == record
    assert (whole / "0.rdq").read_bytes() == (parts / "0.rdq").read_bytes()


def test_remove_one_takes_one_reference(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write(message_id(1), record_of(1), references=2)
        store.remove_one(message_id(1))
        assert store.references(message_id(1)) == 1
        store.remove_one(message_id(1))
        assert store.stats().live == 0
        with pytest.raises(MissingMessageError):
            store.remove_one(message_id(1))
    with pytest.raises(ClosedError):
        store.remove_one(message_id(1))
    with pytest.raises(ClosedError):
        store.write_new(message_id(2), (record_of(2),))


def test_write_many_rolls_and_counts_like_write(tmp_path: Path) -> None:
    items = [(message_id(number), record_of(number), 1 + number % 3) for number in range(20)]
    items += [(message_id(3), record_of(3), 2), (message_id(40), record_of(40), 1)] * 2
    with open_store(tmp_path / "one") as store:
        store.write(message_id(5), record_of(5), 7)
        store.write_many(items)
        one = {number: store.references(message_id(number)) for number in range(41)}
        assert store.read_many([item[0] for item in items]) == [item[1] for item in items]
    with open_store(tmp_path / "two") as store:
        store.write(message_id(5), record_of(5), 7)
        for item in items:
            store.write(*item)
        assert {number: store.references(message_id(number)) for number in range(41)} == one
    assert rdq_names(tmp_path / "one") == rdq_names(tmp_path / "two")
    for name in rdq_names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_file_rolls_when_it_has_reached_the_limit(tmp_path: Path) -> None:
    with open_store(tmp_path, file_size_limit=500) as store:
        write_numbers(store, range(4), size=225)
        assert rdq_names(tmp_path) == ["0.rdq", "1.rdq"]
        # As the node does: the record that crosses the limit is the last of its file.
        assert (tmp_path / "0.rdq").stat().st_size >= 500


@pytest.mark.parametrize("size", [0, 1, 5000, (1 << 18) - 1, 1 << 18, (1 << 20) + 3])
def test_records_of_any_size(tmp_path: Path, size: int) -> None:
    record = make_record(message_id(1), os.urandom(size))
    with open_store(tmp_path) as store:
        store.write(message_id(1), record)
        store.write_many([(message_id(2), record_of(2), 1)])
        assert store.read(message_id(1)) == record
    with open_store(tmp_path, {message_id(1): 1, message_id(2): 1}) as store:
        assert store.read(message_id(1)) == record
        assert store.findings == []


def test_wrong_use_changes_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path, max_message_bytes=100) as store:
        for msg_id, record, references in [
            (b"short", b"", 1),
            (bytes(17), b"", 1),
            (bytes(16), bytes(101), 1),
            (bytes(16), b"", 0),
            (bytes(16), b"", 1 << 32),
        ]:
            with pytest.raises(UsageError):
                store.write(msg_id, record, references)
            with pytest.raises(UsageError):
                store.write_many([(bytes(16), b"", 1), (msg_id, record, references)])
        with pytest.raises(UsageError):
            store.add_references(bytes(16), 0)
        with pytest.raises(MissingMessageError) as error:
            store.remove([message_id(number) for number in range(9)])
        assert len(error.value.msg_ids) == 9
        assert "and 5 more" in str(error.value)
        assert store.stats().size == 0
    assert rdq_names(tmp_path) == []
    with pytest.raises(ClosedError):
        store.write(bytes(16), b"")
    with pytest.raises(ClosedError):
        store.read(bytes(16))
    with pytest.raises(UsageError):
        open_store(tmp_path, garbage_ratio=1.0)
    with pytest.raises(UsageError):
        open_store(tmp_path, max_message_bytes=1 << 33)


def test_the_known_ones_are_removed_when_some_are_unknown(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(3))
        with pytest.raises(MissingMessageError):
            store.remove([message_id(0), message_id(77), message_id(1)])
        assert len(store) == 1


def test_a_damaged_record_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(3))
        location = store.locate(message_id(1))
        assert location is not None
        with (tmp_path / "0.rdq").open("r+b") as file:
            file.seek(location.offset + 100)
            file.write(b"\x01")
        results = store.read_many([message_id(number) for number in range(4)])
        fd = store._state.handles.get(location.file).fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)  # the errors do not keep the file open
    assert results[0] == record_of(0)
    assert isinstance(results[1], DamageError)
    assert (results[1].path, results[1].offset) == (str(tmp_path / "0.rdq"), location.offset)
    assert results[2] == record_of(2)
    assert isinstance(results[3], MissingMessageError)


def test_a_snapshot_brings_everything_back_without_a_scan(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(20))
        store.add_references(message_id(4), 9)
        store.remove([message_id(number) for number in range(0, 20, 3)])
        store.sync()
        snapshot = store.snapshot()
        before = store.stats()
    with open_store(tmp_path, snapshot=snapshot) as store:
        after = store.stats()
        assert (after.size, after.live, after.messages) == (
            before.size,
            before.live,
            before.messages,
        )
        assert store.references(message_id(4)) == 10
        for number in range(20):
            assert (message_id(number) in store) == bool(number % 3)
        # And the store goes on where it was.
        write_numbers(store, range(20, 30))
        assert store.read(message_id(29)) == record_of(29)
        assert store.read(message_id(19)) == record_of(19)


def test_a_snapshot_of_other_files_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(10))
        snapshot = store.snapshot()
    for broken in (b"", b"\xc1", snapshot[:-1], snapshot[: len(snapshot) // 2]):
        with pytest.raises(StaleSnapshotError):
            open_store(tmp_path, snapshot=broken)
    with (tmp_path / "1.rdq").open("ab") as file:
        file.write(b"x")
    with pytest.raises(StaleSnapshotError, match=r"1\.rdq"):
        open_store(tmp_path, snapshot=snapshot)
    (tmp_path / "1.rdq").unlink()
    with pytest.raises(StaleSnapshotError, match=r"1\.rdq"):
        open_store(tmp_path, snapshot=snapshot)


def test_a_read_only_store_changes_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(10))
    with (tmp_path / "2.rdq").open("ab") as file:
        file.write(b"torn")
    before = {name: (tmp_path / name).read_bytes() for name in rdq_names(tmp_path)}
    references = {message_id(number): 1 for number in range(10)}
    with open_store(tmp_path, references, read_only=True) as store:
        assert store.read(message_id(9)) == record_of(9)
        for call in (
            lambda: store.write(message_id(1), b""),
            lambda: store.remove([message_id(1)]),
            store.sync,
            store.compact,
            store.snapshot,
        ):
            with pytest.raises(UsageError):
                call()
    assert {name: (tmp_path / name).read_bytes() for name in rdq_names(tmp_path)} == before
    missing = tmp_path / "nowhere"
    with open_store(missing, read_only=True) as store:
        assert len(store) == 0
    assert not missing.exists()


def test_erase_removes_records_and_nothing_else(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write_numbers(store, range(10))
    for name in ("7.rdt", "8.rdq.tmp", "clean.dot", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    msgstore.store.MessageStore.erase(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.dot", "notes.txt"]
    msgstore.store.MessageStore.erase(tmp_path / "nowhere")


def test_many_more_files_than_handles(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with open_store(tmp_path, file_size_limit=1) as store:
        write_numbers(store, range(200))
        assert len(rdq_names(tmp_path)) == 200
        store.sync()
        for number in range(200):
            assert store.read(message_id(number)) == record_of(number)
        # Those being written are beside the most.
        assert len(os.listdir("/proc/self/fd")) - before <= MAX_HANDLES + 4


def test_threads_write_read_and_remove_while_compaction_runs(tmp_path: Path) -> None:
    """Each thread owns its messages; what it reads is what it wrote, at any moment."""
    failures: list[BaseException] = []
    reclaims: list[int] = []
    store = open_store(
        tmp_path,
        file_size_limit=20_000,
        background=True,
        before_reclaim=lambda: reclaims.append(1),
    )

    def work(worker: int) -> None:
        chance = random.Random(worker)
        mine: dict[int, int] = {}
        try:
            for step in range(600):
                number = worker * 1_000_000 + step
                if step % 7 == 0:
                    batch = [(message_id(number + 500_000), record_of(number + 500_000), 1)]
                    store.write_many([*batch, (message_id(number), record_of(number), 2)])
                    mine[number + 500_000] = 1
                else:
                    store.write(message_id(number), record_of(number), 2)
                mine[number] = 2
                for old in chance.sample(sorted(mine), min(3, len(mine))):
                    assert store.read(message_id(old)) == record_of(old)
                while len(mine) > 40 or (mine and chance.random() < 0.3):
                    old = chance.choice(sorted(mine))
                    store.remove([message_id(old)])
                    mine[old] -= 1
                    if not mine[old]:
                        del mine[old]
                if step % 50 == 0:
                    store.sync()
            store.remove([message_id(old) for old, count in mine.items() for _ in range(count)])
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store) == 0
    deadline = time.monotonic() + WAIT
    while store.stats().size and time.monotonic() < deadline:
        time.sleep(0.05)
    stats = store.stats()
    store.close()
    assert stats.last_error is None
    assert (stats.size, stats.files) == (0, 0)
    assert rdq_names(tmp_path) == []
    assert reclaims
    assert stats.compaction.records_moved > 0


def test_the_check_sees_what_was_written() -> None:
    assert check(message_id(1), record_of(1)) is None
    assert check(message_id(2), record_of(1)) is not None
