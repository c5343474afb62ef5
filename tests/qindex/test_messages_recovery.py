"""Opening queues and message store together: by the snapshot, without it, with parts missing."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import qindex
from journal.errors import DamageError
from journal.findings import Cause
from journal.fs.files import PathLike
from msgstore.format import encode
from qindex.format.message_record import encode_record, seal_stored
from tests.qindex.messages_support import (
    PERSISTENT,
    SyncLog,
    assert_counts,
    big,
    rdq_files,
    ready,
    store_of,
    stored,
)
from tests.qindex.support import OtherBootFileSystem, copy_live, drain, queue_directory

NAMES = ["a", "b", "c"]


def fill(engine: qindex.Engine) -> dict[str, list[bytes]]:
    """Messages in one, two and three queues, some acknowledged; gives what is left in each."""
    left: dict[str, list[bytes]] = {name: [] for name in NAMES}
    for number in range(40):
        names = NAMES[: number % 3 + 1]
        body = b"small %d" % number if number % 10 == 9 else big(number)
        engine.publish_to(names, body)
        for name in names:
            left[name].append(body)
    engine.queue("a").flush()
    for at, name in enumerate(NAMES):
        batch = engine.queue(name).get_many(12)
        engine.queue(name).ack_many([one for number, one in enumerate(batch) if number % 4 != at])
        keep = [one.body for number, one in enumerate(batch) if number % 4 == at]
        left[name] = keep + left[name][len(batch) :]
    return left


def assert_holds(directory: Path, left: dict[str, list[bytes]], **options: object) -> None:
    with stored(directory, **options) as engine:
        assert_counts(engine)
        assert {name: ready(engine, name) for name in NAMES} == left
        engine.compact()
        assert_counts(engine)
        for name in NAMES:
            assert [body for _, body, _ in drain(engine.queue(name))] == left[name]
        assert assert_counts(engine) == 0


# -- clean and dirty ------------------------------------------------------------------------------


def test_the_counts_are_right_after_a_clean_and_a_dirty_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with stored(store) as engine:
        left = fill(engine)
        killed = copy_live(store, tmp_path / "killed")
    for directory in (store, killed):
        copy = copy_live(directory, tmp_path / f"{directory.name} and cut from power")
        assert_holds(directory, left)
        assert_holds(copy, left, fs=OtherBootFileSystem())


def test_opening_by_the_snapshot_reads_no_message(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        left = fill(engine)
    fs = SyncLog()
    with stored(tmp_path, fs=fs) as engine:
        assert not [name for name in fs.opened if name.endswith((".rdq", ".idx"))]
        assert {name: ready(engine, name) for name in NAMES} == left
    assert not [name for name in fs.synced if name.endswith(".rdq")]


def test_open_and_close_again_and_again(tmp_path: Path) -> None:
    for turn in range(12):
        with stored(tmp_path) as engine:
            assert ready(engine) == [big(n) for n in range(max(0, turn - 3), turn)]
            engine.queue("q").publish(big(turn))
            if turn >= 3:
                with engine.queue("q").get(0) or pytest.fail("empty") as delivery:
                    assert delivery.body == big(turn - 3)
            if turn % 2:
                engine.compact()
        if turn % 3 == 2:
            (tmp_path / "qindex.clean").unlink()


def _grown(store: Path) -> None:
    path = rdq_files(store)[0]
    path.write_bytes(path.read_bytes() + encode(b"u" * 16, b"\x97unreferenced"))


def _another(store: Path) -> None:
    body = encode_record(qindex.Message(big(999)))
    data = encode(b"v" * 16, seal_stored(b"v" * 16, body))
    (store / PERSISTENT / "4711.rdq").write_bytes(data)


def _renamed(store: Path) -> None:
    path = rdq_files(store)[0]
    path.rename(path.with_name("1000.rdq"))


def _damaged_snapshot(store: Path) -> None:
    path = store / "qindex.clean"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("change", [_grown, _another, _renamed, _damaged_snapshot])
def test_a_snapshot_that_is_not_of_these_files_is_not_believed(
    tmp_path: Path, change: object
) -> None:
    assert callable(change)
    with stored(tmp_path) as engine:
        left = fill(engine)
    change(tmp_path)
    assert_holds(tmp_path, left)


def test_a_message_store_that_came_from_elsewhere_is_not_garbage(tmp_path: Path) -> None:
    """A snapshot that knows of no message store, and files of one: they are read, not deleted."""
    store, other = tmp_path / "store", tmp_path / "other"
    with stored(other) as engine:
        engine.queue("q").publish(big(1))
    with stored(store) as engine:
        engine.queue("q").publish(b"small")
    shutil.copytree(other / PERSISTENT, store / PERSISTENT)
    for name in ("journal.jif", "journal.jif.sum"):
        if (queue_directory(other, "q") / name).exists():
            shutil.copy(queue_directory(other, "q") / name, queue_directory(store, "q") / name)
    with stored(store, background=True) as engine:
        assert big(1) in ready(engine)


# -- parts that are missing or damaged ------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_without_the_store_directory_the_rest_is_delivered(tmp_path: Path, clean: bool) -> None:
    store = tmp_path / "store"
    with stored(store) as engine:
        left = fill(engine)
        killed = copy_live(store, tmp_path / "killed")
    directory = store if clean else killed
    shutil.rmtree(directory / PERSISTENT)
    lost = sum(not body.startswith(b"small") for bodies in left.values() for body in bodies)
    with stored(directory) as engine:
        told = [one for one in engine.findings if "is not in the message store" in one.what]
        assert len(told) == lost
        assert all(one.path.endswith(".idx") for one in told)
        assert all("the entry is dropped" in one.consequence for one in told)
        small = {name: [body for body in left[name] if body.startswith(b"small")] for name in NAMES}
        assert {name: ready(engine, name) for name in NAMES} == small
        engine.queue("a").publish(big(5))
        assert ready(engine, "a")[-1] == big(5)
    with stored(directory) as engine:  # what was dropped was dropped for good
        assert engine.findings == []
        assert ready(engine, "a") == [*small["a"], big(5)]


def test_without_one_file_the_messages_of_the_others_are_delivered(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish_many([big(n) for n in range(30)])
    files = rdq_files(tmp_path)
    assert len(files) >= 4
    data = files[1].read_bytes()
    gone = [n for n in range(30) if big(n) in data]
    files[1].unlink()
    with stored(tmp_path) as engine:
        told = [one for one in engine.findings if "is not in the message store" in one.what]
        assert [one.what.split(":")[0] for one in told] == [f"seq_id {n}" for n in gone]
        assert ready(engine) == [big(n) for n in range(30) if n not in gone]
        assert assert_counts(engine) == 30 - len(gone)


def test_a_damaged_record_is_named_at_open_and_set_aside_by_repair(tmp_path: Path) -> None:
    """A frame that makes no sense is found by the scan; the records around it are kept."""
    with stored(tmp_path) as engine:
        engine.queue("q").publish_many([big(n) for n in range(12)])
    (tmp_path / "qindex.clean").unlink()
    path = rdq_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    at = data.index(big(2)) - 50  # its frame, and the head of the record
    data[at : at + 90] = b"\x11" * 90
    path.write_bytes(data)
    with pytest.raises(DamageError) as caught:
        stored(tmp_path)
    assert caught.value.path == str(path)
    assert path.read_bytes() == data
    with stored(tmp_path, repair=True) as engine:
        assert ready(engine) == [big(n) for n in range(12) if n != 2]
        assert any("seq_id 2: its message" in one.what for one in engine.findings)
        assert assert_counts(engine) == 11
    assert list((tmp_path / PERSISTENT / "quarantine").iterdir())
    with stored(tmp_path) as engine:
        assert engine.findings == []
        assert ready(engine) == [big(n) for n in range(12) if n != 2]


def test_a_length_that_lies_loses_nothing(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish_many([big(n) for n in range(12)])
    (tmp_path / "qindex.clean").unlink()
    path = rdq_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "big")
    second = 8 + length + 1
    assert int.from_bytes(data[second : second + 8], "big") > 600
    data[second + 6] ^= 0x01  # now it claims to be longer, or shorter, by 256
    path.write_bytes(data)
    with pytest.raises(DamageError, match=f"at offset {second}"):
        stored(tmp_path)
    with stored(tmp_path, repair=True) as engine:
        assert ready(engine) == [big(n) for n in range(12)]
        assert assert_counts(engine) == 12


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with stored(store) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(7)])
        killed = copy_live(store, tmp_path / "killed")
        last = rdq_files(killed)[-1]
    data = last.read_bytes()
    for cut in (1, 9, 100, 500):
        copy = copy_live(killed, tmp_path / f"cut {cut}")
        (copy / PERSISTENT / last.name).write_bytes(data[:-cut])
        with stored(copy) as engine:
            assert ready(engine) == [big(n) for n in range(6)]
            engine.queue("q").publish(big(50))
            assert ready(engine) == [*(big(n) for n in range(6)), big(50)]
        assert_only(copy, [*(big(n) for n in range(6)), big(50)])


def assert_only(directory: Path, bodies: list[bytes]) -> None:
    (directory / "qindex.clean").unlink()
    with stored(directory) as engine:
        assert engine.findings == []
        assert ready(engine) == bodies


def test_what_nobody_refers_to_is_reclaimed(tmp_path: Path) -> None:
    """A power loss between a message and its entry leaves a message without one."""
    store = tmp_path / "store"
    with stored(store) as engine:
        engine.queue("q").publish_many([big(n) for n in range(9)])
        store_of(engine).write(b"o" * 16, seal_stored(b"o" * 16, bytes(2000)))
        killed = copy_live(store, tmp_path / "killed")
    with stored(killed) as engine:
        assert assert_counts(engine) == 9
        assert ready(engine) == [big(n) for n in range(9)]


def test_findings_of_a_crash_stop_nothing(tmp_path: Path) -> None:
    """A half-done compaction, a foreign file."""
    with stored(tmp_path) as engine:
        left = fill(engine)
    (tmp_path / "qindex.clean").unlink()
    (tmp_path / PERSISTENT / "77.rdq.tmp").write_bytes(rdq_files(tmp_path)[0].read_bytes()[:500])
    (tmp_path / PERSISTENT / "notes.txt").write_bytes(b"mine")
    with stored(tmp_path) as engine:
        assert {Path(one.path).name for one in engine.findings} == {"77.rdq.tmp", "notes.txt"}
        assert {one.cause for one in engine.findings} == {Cause.CRASH}
    assert (tmp_path / PERSISTENT / "notes.txt").read_bytes() == b"mine"
    assert not (tmp_path / PERSISTENT / "77.rdq.tmp").exists()
    assert_holds(tmp_path, left)


def test_nothing_is_deleted_before_the_indexes_are_recovered(tmp_path: Path) -> None:
    """Acks that a killed process left in a journal are on disk before their messages go."""
    store = tmp_path / "store"
    with stored(store) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(30)])
        queue.flush()
        queue.ack_many(queue.get_many(30))
        killed = copy_live(store, tmp_path / "killed")

    class Watching(SyncLog):
        """Notes deletions between the syncs."""

        def __init__(self) -> None:
            super().__init__()
            unlink = self.unlink

            def noted(path: object, /) -> None:
                if str(path).endswith(".rdq"):
                    self.synced.append("deleted")
                if str(path).endswith("journal.jif"):
                    self.synced.append("journal removed")
                unlink(path)  # type: ignore[arg-type]

            self.unlink = noted  # type: ignore[assignment]

    for _ in range(5):
        copy = copy_live(killed, tmp_path / "copy")
        fs = Watching()
        with stored(copy, fs=fs, background=True) as engine:
            engine.compact()
            assert rdq_files(copy) == []
        removed = fs.synced.index("journal removed")
        durable = fs.synced.index(f"{queue_directory(copy, 'q').name}/", removed)
        assert removed < durable < fs.synced.index("deleted")
        shutil.rmtree(copy)


def test_a_failed_open_leaves_no_thread_behind(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(30)])
        queue.ack_many(queue.get_many(25))
    (tmp_path / "qindex.clean").unlink()
    queue_path = queue_directory(tmp_path, "q")

    class Failing(SyncLog):
        def __init__(self) -> None:
            super().__init__()

            real = self.sync_dir

            def sync_dir(path: PathLike, /) -> None:
                if Path(path) == queue_path:
                    raise OSError(5, "no")
                real(path)

            self.sync_dir = sync_dir  # type: ignore[method-assign]

    (queue_path / "journal.jif").write_bytes((queue_path / "journal.jif").read_bytes() + b"\xc0")
    before = threading.active_count()
    with pytest.raises(qindex.StorageError):
        stored(tmp_path, fs=Failing(), background=True)
    assert threading.active_count() == before
    with stored(tmp_path) as engine:
        assert ready(engine) == [big(n) for n in range(25, 30)]
