"""Opening without a snapshot: what is found, put right, set aside, and refused."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from journal.errors import DamageError, StorageError
from journal.findings import Cause
from journal.fs.files import PathLike
from msgstore import MessageStore, MissingMessageError
from msgstore.format import encode
from tests.faulty_fs import FaultyFileSystem
from tests.msgstore.records import (
    make_record,
    message_id,
    open_store,
    rdq_names,
    record_of,
    write_numbers,
)

TEN = {message_id(number): 1 for number in range(10)}


def fill(directory: Path) -> None:
    """Ten messages of some 230 bytes in the files 0 (5 of them) and 1."""
    with open_store(directory) as store:
        write_numbers(store, range(10))
    assert rdq_names(directory) == ["0.rdq", "1.rdq"]


def framed(number: int) -> bytes:
    return encode(message_id(number), record_of(number))


def test_references_decide_what_is_live(tmp_path: Path) -> None:
    fill(tmp_path)
    wanted = {message_id(2): 3, message_id(7): 1, message_id(99): 1}
    with open_store(tmp_path, wanted) as store:
        assert len(store) == 2
        assert store.references(message_id(2)) == 3
        assert store.missing == {message_id(99)}
        assert store.stats().live == len(framed(2)) + len(framed(7))
        assert store.findings == []


def test_a_torn_tail_is_cut_and_appended_to(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "1.rdq"
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(framed(10)[:-1])
    (found,) = (store := open_store(tmp_path, TEN)).findings
    assert (found.cause, found.offset) == (Cause.CRASH, whole)
    assert path.stat().st_size == whole
    store.close()
    with path.open("r+b") as file:
        file.truncate(600)
    with open_store(tmp_path, TEN) as store:
        assert len(store.missing) == 10 - len(store) == 3
        size = path.stat().st_size
        write_numbers(store, range(20, 21))
        location = store.locate(message_id(20))
        assert location is not None
        assert (location.file, location.offset) == (1, size)


def test_a_missing_file(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "0.rdq").unlink()
    with open_store(tmp_path, TEN) as store:
        assert store.missing == {message_id(number) for number in range(5)}
        assert store.read(message_id(5)) == record_of(5)


def test_foreign_files_are_named_and_left_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "01.rdq").write_text("mine")
    (tmp_path / "5.rdq").mkdir()
    with open_store(tmp_path, TEN) as store:
        assert [Path(found.path).name for found in store.findings] == [
            "01.rdq",
            "5.rdq",
            "notes.txt",
        ]
        store.compact()
        # A name that is taken is never written to, whatever it stands for.
        write_numbers(store, range(10, 40))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "5.rdq").is_dir()


def test_damage_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "0.rdq"
    data = bytearray(path.read_bytes())
    data[len(framed(0)) + 4] ^= 0x40
    path.write_bytes(data)
    (tmp_path / "clean.dot").write_text("x")
    (tmp_path / "9.rdq.tmp").write_text("x")
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    with pytest.raises(DamageError) as error:
        open_store(tmp_path, TEN)
    assert error.value.offset == len(framed(0))
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before
    with open_store(tmp_path, TEN, read_only=True) as store:
        assert store.missing == set()
        assert [found.cause for found in store.findings].count(Cause.DAMAGE) == 1


def test_repair_sets_the_damage_aside_and_saves_the_rest(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "0.rdq"
    data = bytearray(path.read_bytes())
    offset = len(framed(0))
    data[offset : offset + 40] = b"\xee" * 40
    path.write_bytes(data)
    with open_store(tmp_path, TEN, repair=True) as store:
        assert store.missing == {message_id(1)}
        for number in set(range(10)) - {1}:
            assert store.read(message_id(number)) == record_of(number)
        store.compact()
    aside = tmp_path / "quarantine" / f"0.rdq.{offset}"
    assert aside.read_bytes() == b"\xee" * 40 + framed(1)[40:]
    references = {msg_id: 1 for msg_id in TEN if msg_id != message_id(1)}
    with open_store(tmp_path, references) as store:
        assert store.findings == []
        assert store.missing == set()


def test_a_length_that_lies_costs_nothing(tmp_path: Path) -> None:
    """It swallows the two records behind it, exactly; repair gets all three back."""
    fill(tmp_path)
    path = tmp_path / "0.rdq"
    data = path.read_bytes()
    lie = len(framed(0)) + len(framed(1)) + len(framed(2)) - 9
    path.write_bytes(struct.pack(">Q", lie) + data[8:])
    with pytest.raises(DamageError):
        open_store(tmp_path, TEN)
    with open_store(tmp_path, TEN, repair=True) as store:
        assert store.missing == set()
        for number in range(10):
            assert store.read(message_id(number)) == record_of(number)
        store.compact()
    with open_store(tmp_path, TEN) as store:
        assert store.findings == []


def test_a_flipped_bit_in_the_last_file_is_found_at_open(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "1.rdq"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError):
        open_store(tmp_path, TEN)
    with open_store(tmp_path, TEN, repair=True) as store:
        assert store.missing == {message_id(5)}


def test_the_sound_copy_is_chosen(tmp_path: Path) -> None:
    good, bad = framed(1), bytearray(framed(1))
    bad[60] ^= 1
    for first, second in ((good, bytes(bad)), (bytes(bad), good)):
        (tmp_path / "0.rdq").write_bytes(framed(0) + first)
        (tmp_path / "1.rdq").write_bytes(second + framed(2))
        (tmp_path / "2.rdq").write_bytes(framed(3))
        wanted = {message_id(number): 1 for number in range(4)}
        with open_store(tmp_path, wanted, read_only=True) as store:
            assert store.read(message_id(1)) == record_of(1)


def test_of_two_copies_in_a_file_the_last_counts(tmp_path: Path) -> None:
    later = make_record(message_id(0), b"later")
    (tmp_path / "0.rdq").write_bytes(framed(0) + framed(1) + encode(message_id(0), later))
    with open_store(tmp_path, {message_id(0): 1}) as store:
        assert store.read(message_id(0)) == later


def test_a_forged_record_in_a_body_does_not_replace_a_real_one(tmp_path: Path) -> None:
    forged = encode(message_id(0), make_record(message_id(0), b"forged"))
    carrier = encode(message_id(1), make_record(message_id(1), forged + b"x" * 50))
    broken = b"\xee" * 8 + carrier[8:-10] + b"\xee" * 10
    (tmp_path / "0.rdq").write_bytes(framed(0) + broken + framed(2))
    wanted = {message_id(0): 1, message_id(2): 1}
    with open_store(tmp_path, wanted, repair=True) as store:
        assert store.read(message_id(0)) == record_of(0)
        assert store.read(message_id(2)) == record_of(2)


def test_a_full_disk_while_records_are_moved_to_safety(tmp_path: Path) -> None:
    (tmp_path / "0.rdq").write_bytes(framed(0) + bytes(500) + framed(1))
    wanted = {message_id(0): 1, message_id(1): 1}
    for operation in ("open", "pwrite", "fdatasync", "rename", "sync_dir"):
        fs = FaultyFileSystem()
        where = "" if operation in {"sync_dir"} else ".tmp"
        fs.fail(operation, errno.ENOSPC, path=where)
        with pytest.raises(StorageError):
            open_store(tmp_path, wanted, fs=fs)
    with open_store(tmp_path, wanted) as store:
        assert store.missing == set()
        store.compact()
        assert store.read_many(wanted) == [record_of(0), record_of(1)]
    with open_store(tmp_path, wanted) as store:
        assert store.findings == []


@pytest.mark.parametrize("operation", ["open", "pread", "listdir", "stat"])
def test_a_disk_that_can_not_be_read(tmp_path: Path, operation: str) -> None:
    fill(tmp_path)
    fs = FaultyFileSystem()
    fs.fail(operation, errno.EIO)
    with pytest.raises(StorageError):
        open_store(tmp_path, TEN, fs=fs)
    fs.heal()
    with open_store(tmp_path, TEN, fs=fs) as store:
        assert store.missing == set()


def test_short_reads(tmp_path: Path) -> None:
    fill(tmp_path)
    fs = FaultyFileSystem()
    fs.shorten("pread", 11)
    with open_store(tmp_path, TEN, fs=fs) as store:
        assert store.missing == set()
        assert store.findings == []
        assert store.read(message_id(3)) == record_of(3)


def test_every_byte_of_a_store_flipped(tmp_path: Path) -> None:
    """Open raises or goes on; what can be read is right, and only the hit message is lost."""
    with open_store(tmp_path / "source", file_size_limit=150) as store:
        write_numbers(store, range(4), size=40)
    names = rdq_names(tmp_path / "source")
    wanted = {message_id(number): 1 for number in range(4)}
    contents = {name: (tmp_path / "source" / name).read_bytes() for name in names}
    for name in names:
        for position in range(len(contents[name])):
            target = tmp_path / "target"
            target.mkdir(exist_ok=True)
            for entry in target.iterdir():
                if entry.is_file():
                    entry.unlink()
            for other in names:
                (target / other).write_bytes(contents[other])
            damaged = bytearray(contents[name])
            damaged[position] ^= 1 << position % 8
            (target / name).write_bytes(damaged)
            refused = False
            try:
                open_store(target, wanted).close()
            except DamageError:
                refused = True
            with open_store(target, wanted, repair=True) as store:
                results = dict(zip(wanted, store.read_many(wanted), strict=True))
            wrong = [
                number
                for number in range(4)
                if results[message_id(number)] != record_of(number, 40)
            ]
            assert len(wrong) <= 1, (name, position)
            for number in wrong:
                assert isinstance(results[message_id(number)], Exception)
            assert refused or not wrong or isinstance(results[message_id(wrong[0])], DamageError), (
                name,
                position,
            )


def test_every_file_cut_at_every_length(tmp_path: Path) -> None:
    fill(tmp_path / "source")
    for name in ("0.rdq", "1.rdq"):
        whole = (tmp_path / "source" / name).read_bytes()
        other = "1.rdq" if name == "0.rdq" else "0.rdq"
        target = tmp_path / name
        target.mkdir()
        for length in range(0, len(whole), 7):
            (target / name).write_bytes(whole[:length])
            (target / other).write_bytes((tmp_path / "source" / other).read_bytes())
            with open_store(target, TEN) as store:
                there = length // len(framed(0))
                assert len(store) == 5 + there
                assert len(store.missing) == 5 - there


def test_a_reader_beside_a_compacting_writer(tmp_path: Path) -> None:
    """The file it is about to scan is combined with another and deleted: it looks again."""

    class Overtaken(FaultyFileSystem):
        def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:
            if pending:
                pending.pop().compact()
            return super().open(path, flags, mode)

    pending: list[MessageStore] = []
    with open_store(tmp_path) as writer:
        write_numbers(writer, range(20))
        kept = {message_id(number): 1 for number in (1, 6, 11, 16)}
        writer.remove(
            [message_id(number) for number in range(20) if message_id(number) not in kept]
        )
        pending.append(writer)
        with open_store(tmp_path, kept, fs=Overtaken(), read_only=True) as reader:
            assert pending == []
            assert reader.missing == set()
            assert reader.read_many(kept) == [record_of(number) for number in (1, 6, 11, 16)]
            # What is deleted after the reader has opened it stays readable; the rest is missing.
            writer.remove(list(kept))
            writer.compact()
            results = reader.read_many(kept)
            assert all(isinstance(result, bytes | MissingMessageError) for result in results)
