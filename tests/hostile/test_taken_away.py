"""What happens to an engine, and to readers, when the files are changed underneath."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import qindex
import rocketstore
from journal.errors import StorageError, StoreError, WritesRefusedError
from journal.fs.files import PathLike, RealFileSystem
from rocketstore.repair.inspection import inspect_file
from rocketstore.verify import verify as rocket_verify
from tests.hostile.stores import build
from tests.hostile.trial import confined
from tests.qindex.support import open_quietly, queue_directory

TAKEN = "taken away|No such file|symbolic link"


def _delete(store: Path) -> None:
    shutil.rmtree(store)


def _move(store: Path) -> None:
    store.rename(store.with_name("moved"))


def _replace(store: Path) -> None:
    store.rename(store.with_name("moved"))
    shutil.copytree(store.with_name("moved"), store)


def _delete_queue(store: Path) -> None:
    shutil.rmtree(queue_directory(store, "q"))


def _replace_queue(store: Path) -> None:
    place = queue_directory(store, "q")
    place.rename(store / "moved")
    shutil.copytree(store / "moved", place)


def _delete_journal(store: Path) -> None:
    (queue_directory(store, "q") / "journal.jif").unlink()


def _link_queue(store: Path) -> None:
    place = queue_directory(store, "q")
    place.rename(store.with_name("elsewhere"))
    place.symlink_to(store.with_name("elsewhere"))


@pytest.mark.parametrize(
    "change",
    [
        _delete,
        _move,
        _replace,
        _delete_queue,
        _replace_queue,
        _delete_journal,
        _link_queue,
    ],
)
def test_an_engine_notices_at_the_next_flush(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    store = tmp_path / "store"
    engine = open_quietly(store)
    queue = engine.queue("q")
    queue.publish_many([b"%d" % number for number in range(10)])
    change(store)
    with pytest.raises(StorageError, match=TAKEN) as caught:
        queue.flush()
    assert str(store) in str(caught.value)
    with pytest.raises(WritesRefusedError, match=TAKEN):
        queue.publish(b"lost")
    assert [one.body for one in queue.peek(3)] == [b"0", b"1", b"2"]  # reading goes on
    engine.close()


def test_a_directory_that_was_moved_and_moved_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with open_quietly(store) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        store.rename(tmp_path / "moved")
        (tmp_path / "moved").rename(store)
        queue.flush()
        assert len(queue) == 1


def test_readers_of_files_that_are_cut_while_they_read(tmp_path: Path) -> None:
    """Nothing that reads maps a file: a map of what is cut off kills the process."""
    store = tmp_path / "store"
    with open_quietly(store, segment_entry_count=16) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % number * 50 for number in range(40)])
        queue.publish(b"large" * 5000)
        queue.flush()
        queue.publish_many([b"%d" % number * 50 for number in range(40)])
        shutil.copytree(store, tmp_path / "copy")
    copy = tmp_path / "copy"
    files = [path for path in copy.rglob("*") if path.suffix in (".jif", ".idx", ".rdq")]
    assert len(files) >= 4
    with qindex.open(copy, read_only=True) as reading:
        looked = iter(reading.queue("q"))
        followed = iter(qindex.follow(copy, "q", timeout=0, events=False))
        assert next(looked).body == next(followed).body == b"0" * 50
        for path in files:
            os.truncate(path, path.stat().st_size // 3)
        seen = {one.body for one in looked} | {one.body for one in followed}
        assert seen < {b"%d" % number * 50 for number in range(40)} | {b"large" * 5000}
        assert not qindex.verify(copy).sound


def test_a_queue_that_was_moved_to_another_disk_by_a_link(tmp_path: Path) -> None:
    """Its deletion failed, and no open worked any more."""
    store = tmp_path / "store"
    with open_quietly(store) as engine:
        engine.queue("other").publish(b"y")
        engine.queue("q").publish(b"x")
    _link_queue(store)
    place = queue_directory(store, "q")
    uses: list[Callable[[], None]] = [
        lambda: open_quietly(store).close(),
        lambda: open_quietly(store, repair=True).close(),
        lambda: qindex.verify(store).findings.clear(),
        lambda: qindex.open(store, read_only=True).queue_names().clear(),
    ]
    for use in uses:
        with pytest.raises(StorageError, match="is a symbolic link, which is not followed"):
            use()
    place.unlink()
    (tmp_path / "elsewhere").rename(place)
    assert qindex.verify(store).sound
    with open_quietly(store) as engine:
        assert [one.body for one in engine.queue("q").peek(2)] == [b"x"]
        _link_queue(store)
        with pytest.raises(StorageError, match="symbolic link"):
            engine.delete_queue("q")
        assert os.listdir(tmp_path / "elsewhere")
        # The deletion has not begun: once it is moved back, all is as before.
        place.unlink()
        (tmp_path / "elsewhere").rename(place)
        assert [one.body for one in engine.queue("q").peek(2)] == [b"x"]
        engine.delete_queue("q")
    with open_quietly(store) as engine:
        assert engine.queue_names() == ["other"]


def test_a_link_in_place_of_a_queue_that_was_deleted(tmp_path: Path) -> None:
    """No open worked, though verify said that the next one removes it."""
    store = tmp_path / "store"
    with open_quietly(store) as engine:
        engine.queue("q").publish(b"x")
    _link_queue(store)
    place = queue_directory(store, "q")
    place.rename(f"{place}.deleted")
    outside = sorted(os.listdir(tmp_path / "elsewhere"))
    assert "the next open removes it" in str(qindex.verify(store).findings)
    with open_quietly(store) as engine:
        assert not engine.queue_names()
    assert not os.listdir(store / "queues")
    assert sorted(os.listdir(tmp_path / "elsewhere")) == outside


def _cut_all(store: Path) -> None:
    for folder, _, names in os.walk(store):
        for name in names:
            if name.isdigit():
                os.truncate(os.path.join(folder, name), 100)


def _ask(log: rocketstore.Store) -> int:
    """Ask everything that a reader may; gives how many answers were no error."""
    asks: list[Callable[[], object]] = [
        lambda: log.get("T", 0, 0, 100).messages,
        lambda: list(log.messages("T", 1)),
        lambda: log.query("T", "k3"),
        lambda: log.query("T", "k30", exact=False),
        lambda: log.lookup(0),
        lambda: log.at("T", 0, 15),
        lambda: log.offset_by_time("T", 0, 0),
        lambda: log.offset_by_time("T", 0, 0, as_rocketmq=True),
    ]
    answers = 0
    for ask in asks:
        with suppress(StoreError):
            ask()
            answers += 1
    return answers


def _cut_under_a_reader(store: Path) -> int:
    with rocketstore.open(store, read_only=True, background=False) as log:
        assert _ask(log) == 8
        _cut_all(store)
        _ask(log)
    return 1


def _cut_under_verify(store: Path) -> int:
    class Cuts(RealFileSystem):
        """Cuts all files once the log is read."""

        opened = 0

        @staticmethod
        def open(path: PathLike, flags: int, mode: int = 0o600, /) -> int:
            fd = RealFileSystem.open(path, flags, mode)
            if "commitlog" in os.fspath(path) and not Cuts.opened:
                Cuts.opened += 1
                _cut_all(store)
            return fd

    found = len(rocket_verify(store, fs=Cuts()))
    assert Cuts.opened
    return found


def _cut_under_inspect(store: Path) -> int:
    looks = [
        inspect_file(str(path))
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name.isdigit()
    ]
    rows = [next(look) for look in looks]
    _cut_all(store)
    return len(rows) + sum(1 for look in looks for _ in look)


def _cut_under_spark(store: Path) -> int:
    from pyspark_qindex.options import ROCKET_TABLES, read_options
    from pyspark_qindex.reading.read_parts import TableReader

    found = 0
    for include in ROCKET_TABLES:
        options = {"path": str(store), "include": include, "mode": "permissive"}
        reader = TableReader(read_options(options, ROCKET_TABLES))
        looks = [iter(reader.read(partition)) for partition in reader.partitions()]
        found += sum(1 for look in looks if next(look, None) is not None)
        _cut_all(store)
        for look in looks:
            found += sum(1 for _ in look)
    return found


@pytest.mark.parametrize(
    "look", [_cut_under_a_reader, _cut_under_verify, _cut_under_inspect, _cut_under_spark]
)
def test_readers_of_a_commitlog_that_is_cut_while_they_read(
    tmp_path: Path, look: Callable[[Path], int]
) -> None:
    if look is _cut_under_spark:
        pytest.importorskip("pyspark")
    answer, broken = confined(look, build("rocket closed", tmp_path / "store"))
    assert broken is None, answer
    assert answer.startswith("ok,"), answer
    assert answer != "ok, 0 findings"
