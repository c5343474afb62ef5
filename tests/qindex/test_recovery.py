"""Opening what a crash left, and what is only damaged: findings, quarantine, repeated recovery."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
from pathlib import Path

import pytest

import qindex
from journal.findings import Cause, Kind
from journal.fs.files import REAL
from journal.journal import Journal
from journal.poison import Poison
from qindex.engine.opening import open_store
from qindex.format import layout
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import read_soundly
from qindex.view.reader import StoreReader
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import (
    copy_live,
    drain,
    journal_bytes,
    open_quietly,
    publish_record,
    queue_directory,
)


def crashed(tmp_path: Path, journal: bytes | None = None, *, count: int = 20) -> Path:
    """A store as a crash leaves it; its journal replaced, if one is given."""
    engine = open_quietly(tmp_path / "first")
    queue = engine.queue("q")
    queue.publish_many([b"%d" % at for at in range(count)])
    store = copy_live(tmp_path / "first", tmp_path / "store")
    engine.close()
    if journal is not None:
        directory = queue_directory(store, "q")
        (directory / "journal.jif").write_bytes(journal)
        (directory / "journal.jif.sum").unlink(missing_ok=True)
    return store


@pytest.fixture(params=["read", "mapped"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are read, and then mapped, as large ones are."""
    if request.param == "mapped":
        monkeypatch.setattr("journal.fs.files._MAPPED", 1)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_kill_loses_nothing_that_returned(tmp_path: Path, durability: str) -> None:
    engine = open_quietly(tmp_path / "first", durability=durability)
    queue = engine.queue("q")
    queue.publish(b"0")
    queue.publish(b"1", key="k", headers={"a": 1})
    queue.publish_many([b"2", b"3"])
    queue.ack_many(queue.get_many(1))
    with open_quietly(copy_live(tmp_path / "first", tmp_path / "copy")) as again:
        found = again.queue("q").get_many(9)
        assert found.bodies == [b"1", b"2", b"3"]
        assert (found[0].key, found[0].headers) == ("k", {"a": 1})
    engine.close()


def test_transient_messages_end_with_the_run(tmp_path: Path) -> None:
    for clean in (True, False):
        store = tmp_path / f"first{clean}"
        engine = open_quietly(store)
        queue = engine.queue("q")
        queue.publish_many([b"gone"] * 5, persistent=False)
        queue.publish(b"stays")
        queue.publish(b"gone", persistent=False)
        queue.flush()
        queue.publish(b"gone", persistent=False)
        queue.publish_many([b"stays too"])
        queue.get_many(3)
        assert len(queue) == 6
        if not clean:
            store = copy_live(store, tmp_path / "copy")
        engine.close()
        with open_quietly(store) as again:
            assert [body for _, body, _ in drain(again.queue("q"))] == [b"stays", b"stays too"]


@pytest.mark.parametrize("cut", [1, 7, 8, 39, 40, 41, 60, 70])
def test_a_torn_record_at_the_end_is_a_crash(tmp_path: Path, cut: int) -> None:
    torn = publish_record(2, b"a body of some length that is torn")[:cut]
    whole = publish_record(0, b"0") + publish_record(1, b"1")
    for tail in (b"", bytes(4096)):
        store = crashed(tmp_path / str(len(tail)), whole + torn + tail)
        with open_quietly(store) as engine:
            assert all(one.cause is Cause.CRASH for one in engine.findings)
            assert [body for _, body, _ in drain(engine.queue("q"))] == [b"0", b"1"]
            assert engine.queue("q").publish(b"next") >= 2


@pytest.mark.usefixtures("both_ways")
def test_damage_is_refused_then_set_aside(tmp_path: Path) -> None:
    bad = bytearray(publish_record(1, b"damaged beyond one bit"))
    bad[60:70] = b"##########"
    journal = publish_record(0, b"0") + bytes(bad) + publish_record(2, b"2")
    offset = len(publish_record(0, b"0"))
    store = crashed(tmp_path, journal)
    path = queue_directory(store, "q") / "journal.jif"
    for _ in range(2):
        with pytest.raises(qindex.DamageError, match="repair=True") as caught:
            open_quietly(store)
        assert (caught.value.path, caught.value.offset) == (str(path), offset)
        assert path.read_bytes() == journal
    with open_quietly(store, repair=True) as engine:
        [finding] = [one for one in engine.findings if one.cause is Cause.DAMAGE]
        assert (finding.path, finding.offset, finding.length) == (str(path), offset, len(bad))
        assert [body for _, body, _ in drain(engine.queue("q"))] == [b"0", b"2"]
    [kept] = (path.parent / "quarantine").iterdir()
    assert (kept.name, kept.read_bytes()) == (f"journal.jif.{offset}", bytes(bad))
    with open_quietly(store) as engine:
        assert engine.findings == []


def test_other_damage_at_the_same_place_is_kept_beside_the_first(tmp_path: Path) -> None:
    kept = set()
    store = crashed(tmp_path)
    directory = queue_directory(store, "q")
    for mark in (b"#" * 10, b"!" * 10, b"#" * 10):
        bad = bytearray(publish_record(0, b"damaged beyond one bit"))
        bad[60:70] = mark
        (store / "qindex.clean").unlink(missing_ok=True)
        (directory / "journal.jif").write_bytes(bytes(bad) + publish_record(1, b"good"))
        (directory / "journal.jif.sum").unlink(missing_ok=True)
        kept.add(bytes(bad))
        with open_quietly(store, repair=True) as engine:
            drain(engine.queue("q"))
    assert {path.read_bytes() for path in (directory / "quarantine").iterdir()} == kept


def test_one_flipped_bit_of_a_record_is_corrected(tmp_path: Path) -> None:
    record = publish_record(1, b"a body")
    neighbours = publish_record(0, b"0"), publish_record(2, b"2")
    for bit in range(0, len(record) * 8, 5):
        flipped = bytearray(record)
        flipped[bit >> 3] ^= 0x80 >> (bit & 7)
        data = neighbours[0] + bytes(flipped) + neighbours[1]
        reading = read_soundly("j", data, journal_layout(1000))
        assert reading.walk.seqs.tolist() == [0, 1, 2], bit
        assert bytes(reading.data) == neighbours[0] + record + neighbours[1]
        assert [one.cause for one in reading.findings] == [Cause.DAMAGE]


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_checksum_of_a_record_is_taken_unless_others_vouch_for_all_of_it(more: int) -> None:
    records = [publish_record(seq, b"a body") for seq in range(3)]
    records[1] = records[1][:-3] + b"#" + records[1][-2:]
    data, end = b"".join(records), len(records[0] + records[1])
    reading = read_soundly("j", data, journal_layout(1000), end + more)
    assert len(reading.findings) == (more < 0)
    data = data[:-3] + b"#" + data[-2:]
    assert read_soundly("j", data, journal_layout(1000), end + more).findings != []


@pytest.mark.parametrize("damage", ["one bit", "its body", "its length", "its end"])
@pytest.mark.parametrize("size", [100, 20_000])
def test_a_journal_kept_in_a_message_is_never_taken_for_messages(
    tmp_path: Path, damage: str, size: int
) -> None:
    """The body of a damaged message holds sound publish records of another queue."""
    inner = publish_record(7, b"inner") + journal_bytes(7, b"", "d") + publish_record(8, b"inner")
    body = inner + bytes(size)
    outer = bytearray(publish_record(3, body))
    if damage == "one bit":
        outer[80 + len(inner)] ^= 1
    elif damage == "its body":
        outer[75 + len(inner) : 95 + len(inner)] = b"#" * 20
    elif damage == "its length":
        outer[37] ^= 0x40
    else:
        outer[-30:] = b"#" * 30
    journal = publish_record(2, b"before") + bytes(outer) + publish_record(4, b"after")
    store = crashed(tmp_path, journal)
    with open_quietly(store, repair=True) as engine:
        found = [(seq, found) for seq, found, _ in drain(engine.queue("q"))]
    expected = [(2, b"before"), (4, b"after")]
    if damage == "its length" or (damage == "one bit" and size < 8000):
        expected.insert(1, (3, body))
    assert found == expected


def test_pages_that_never_reached_the_disk(tmp_path: Path) -> None:
    """A loss of power: a page of the journal is zero, what is behind is there."""
    journal = bytearray(b"".join(publish_record(seq, b"%d" % seq * 200) for seq in range(100)))
    journal[8192:12288] = bytes(4096)
    store = crashed(tmp_path, bytes(journal))
    with open_quietly(store) as engine:
        assert [one.what for one in engine.findings] == ["pages that were never written"]
        seqs = [seq for seq, _, _ in drain(engine.queue("q"))]
        assert seqs == sorted(seqs)
        assert len(seqs) > 80


@pytest.mark.parametrize(
    "operation",
    ["open", "write", "pwrite", "fdatasync", "truncate", "unlink", "sync_dir", "rename", "mkdir"],
)
@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_a_recovery_that_is_cut_short_is_done_again(
    tmp_path: Path, operation: str, after: int
) -> None:
    engine = open_quietly(tmp_path / "first")
    queue = engine.queue("q")
    queue.publish_many([b"%d" % at for at in range(30)])
    queue.flush()
    queue.ack_many(queue.get_many(11))
    queue.publish_many([b"%d" % at for at in range(30, 40)])
    store = copy_live(tmp_path / "first", tmp_path / "store")
    engine.close()
    fs = FaultyFileSystem()
    fs.fail(operation, errno.EIO, after=after)
    with contextlib.suppress(qindex.StorageError, qindex.WritesRefusedError):
        open_quietly(store, fs=fs).close()
    with open_quietly(store) as again:
        expected = [(at, b"%d" % at, False) for at in range(11, 40)]
        assert drain(again.queue("q")) == expected


def test_findings_are_logged_and_silent_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    store = crashed(tmp_path, publish_record(0, b"0") + b"\0\0\0\0\0\0\0\5torn")
    with caplog.at_level(logging.INFO, "qindex"), open_quietly(store) as engine:
        assert engine.findings
        assert any("torn" in record.getMessage() for record in caplog.records)
    assert logging.getLogger("qindex").handlers
    assert capfd.readouterr().err == ""


def test_what_a_damaged_message_costs_after_a_clean_close(tmp_path: Path) -> None:
    """Two bits flipped, no sum file: the message is named, set aside, and the rest goes on."""
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"body number %d" % at for at in range(6)])
        engine.flush()
    directory = queue_directory(tmp_path, "q")
    path = directory / "0.idx"
    for sums in directory.glob("*.sum"):
        sums.unlink()
    content = bytearray(path.read_bytes())
    at = content.index(b"body number 3")
    content[at : at + 4] = b"BODY"
    path.write_bytes(content)
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        bodies, errors = [], []
        for _ in range(20):
            try:
                delivery = queue.get(0)
            except qindex.DamageError as error:
                errors.append((error.path, error.offset))
                continue
            if delivery is None:
                break
            bodies.append(delivery.body)
            delivery.ack()
        assert bodies == [b"body number %d" % at for at in (0, 1, 2, 4, 5)]
        assert [found for found, _ in errors] == [str(path)]
        assert errors[0][1] <= at
        assert len(queue) == 0
        assert queue.publish(b"next") == 6


def test_a_deletion_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    engine = open_quietly(tmp_path, fs=fs)
    engine.queue("q").publish(b"x")
    engine.queue("stays").publish(b"y")
    fs.fail("unlink", errno.EIO)
    with pytest.raises(qindex.StorageError, match="can't be deleted"):
        engine.delete_queue("q")
    assert list(tmp_path.rglob("*.deleted"))
    assert engine.queue("q").publish(b"a new one") == 0
    engine.delete_queue("q")
    assert not list(tmp_path.rglob("*.deleted"))
    fs.fail("rmdir", errno.EIO)
    engine.queue("r")
    with pytest.raises(qindex.StorageError, match="can't be deleted"):
        engine.delete_queue("r")
    engine.close()
    with open_quietly(tmp_path) as engine:
        assert engine.queue_names() == ["stays"]
        assert not list(tmp_path.rglob("*.deleted"))


def test_a_deletion_that_failed_leaves_the_queue(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1"])
        queue.flush()
        queue.publish_many([b"2"])
        fs.fail("rename", errno.EIO)
        with pytest.raises(qindex.StorageError, match="can't be deleted"):
            engine.delete_queue("q")
        queue = engine.queue("q")
        assert [body for _, body, _ in drain(queue)] == [b"0", b"1", b"2"]
        assert queue.publish(b"3") == 3


def test_a_creation_that_was_cut_short(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    engine = open_quietly(tmp_path, fs=fs)
    for operation, after in (("mkdir", 0), ("write", 0), ("rename", 0)):
        fs.fail(operation, errno.ENOSPC, after=after)
        with pytest.raises(qindex.StorageError):
            engine.queue("q")
    engine.close()
    with open_quietly(tmp_path) as engine:
        assert engine.queue_names() in ([], ["q"])
        engine.queue("q").publish(b"x")
    with open_quietly(tmp_path) as engine:
        assert len(engine.queue("q")) == 1


def test_the_real_file_system_is_the_default(tmp_path: Path) -> None:
    with open_store(tmp_path, fs=REAL, background=False) as engine:
        assert repr(engine) == f"<Engine {str(tmp_path)!r}, 0 queues in use>"


@pytest.mark.parametrize("missing", ["behind", "before", "chunk"])
def test_a_batch_whose_process_died_while_it_was_copied(tmp_path: Path, missing: str) -> None:
    """The copy may have got anywhere, in any order, but for the first bytes: those come
    last. That is a crash, not damage; what was there before stays."""
    before = publish_record(0, b"0") + journal_bytes(0, b"", "d") + publish_record(1, b"1")
    batch = b"".join(publish_record(seq, b"%d" % seq * 60) for seq in range(2, 8))
    for number, at in enumerate(range(8, len(batch), 37)):
        copied = bytearray(batch)
        copied[:16] = bytes(16)
        if missing == "behind":
            copied[at:] = bytes(len(batch) - at)
        elif missing == "before":
            copied[:at] = bytes(at)
        else:
            copied[at : at + 32] = bytes(len(copied[at : at + 32]))
        store = crashed(tmp_path / str(number), before + bytes(copied) + bytes(4096))
        with open_quietly(store) as engine:
            assert all(one.cause is Cause.CRASH for one in engine.findings), at
            found = drain(engine.queue("q"))
            assert found[:2] == [(0, b"0", True), (1, b"1", False)]
            assert all(body == b"%d" % seq * 60 for seq, body, _ in found[2:])
            assert engine.queue("q").publish(b"next") >= 2


def test_the_start_of_an_append_is_stored_last(tmp_path: Path) -> None:
    """At the moment before, the file holds all of it but the first sixteen bytes."""
    journal = Journal(REAL, tmp_path / "journal.jif", Poison())
    journal.append(publish_record(0, b"0"))
    batch = publish_record(1, b"1") + publish_record(2, b"2")
    offset = journal.tell()
    seen: list[bytes] = []

    class Watched:
        """A map that tells what the file holds before each store."""

        def __setitem__(self, place: slice, data: bytes) -> None:
            seen.append((tmp_path / "journal.jif").read_bytes()[offset : offset + len(batch)])
            mapped[place] = data

    mapped = journal.map
    journal.map = Watched()  # type: ignore[assignment]
    assert journal.append(batch) == offset
    journal.map = mapped
    assert seen == [bytes(len(batch)), bytes(16) + batch[16:]]
    assert journal.tell() == offset + len(batch)
    journal.close()
    assert (tmp_path / "journal.jif").read_bytes()[offset:] == batch


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("synced", [False, True])
def test_a_flipped_bit_in_a_journal_is_put_right_by_an_open(tmp_path: Path, synced: bool) -> None:
    """It was found and could be put right, and the store was not opened without ``repair``."""
    bodies = [b"body %d" % number for number in range(12)]
    with open_quietly(tmp_path / "running") as engine:
        engine.queue("q").publish_many(bodies)
        if synced:
            engine.sync()
        shutil.copytree(tmp_path / "running", tmp_path / "killed")
    [path] = (tmp_path / "killed").rglob("journal.jif")
    content = path.read_bytes()
    for bit in range(0, len(content.rstrip(b"\0")) * 8, 97):
        flipped = bytearray(content)
        flipped[bit >> 3] ^= 0x80 >> (bit & 7)
        store = tmp_path / f"store-{bit}"
        shutil.copytree(tmp_path / "killed", store)
        next(store.rglob("journal.jif")).write_bytes(flipped)
        with open_quietly(store) as engine:
            assert [one.kind for one in engine.findings] == [Kind.CORRECTED]
            assert [one.body for one in engine.queue("q").peek(20)] == bodies
        assert qindex.verify(store).findings == []
        shutil.rmtree(store)


def test_a_node_leaves_the_checksums_of_the_journal_it_found(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "s", background=False) as engine:
        engine.queue("q").publish_many([b"%d" % number for number in range(20)])
    journal = queue_directory(tmp_path / "s", "q") / "journal.jif"
    assert journal.with_name("journal.jif.sum").stat().st_size
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 4])
    (tmp_path / "s" / layout.RECOVERY_TERMS).write_bytes(b"")
    shutil.copytree(tmp_path / "s", tmp_path / "node")
    (tmp_path / "node" / layout.MARKER).unlink()
    reader = StoreReader(tmp_path / "node", segment_entry_count=16_384).queue("q")
    assert [row.body for row in reader] == [b"0", b"1", b"2", b"3", b"4"]
    # The file's end was zeros written ahead. A node writes none, so they are reported.
    assert [one.kind for one in reader.findings] == [Kind.ZEROS]
    with qindex.open(tmp_path / "s") as engine:
        assert engine.queue("q").get_many(9).bodies == [b"0", b"1", b"2", b"3", b"4"]
        assert engine.findings == []
    assert not (tmp_path / "s" / layout.RECOVERY_TERMS).exists()
