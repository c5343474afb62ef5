"""``rebuild``: queues and index from the log alone, beside the store or in its place."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.errors import DamageError, LockedError, NotAStoreError, UsageError
from rocketstore.repair import derived_files
from rocketstore.repair.derived_files import STAGING, rebuild_in_place
from rocketstore.verify import verify
from tests.rocketstore.support import TINY, open_tiny, store_files

PLACES = ("0", "1", "index", "vouch", "abort")


def fill(store: rocketstore.Store, count: int = 101) -> None:
    for number in range(count):
        keys = f"k{number} all" if number % 3 else None
        store.put("t", b"body %d" % number, queue_id=number % 2, keys=keys)


def make(path: Path) -> Path:
    with open_tiny(path) as store:
        fill(store)
    return path


def derived(root: Path) -> dict[str, bytes]:
    """Queues and index; of the index the names do not count."""
    (root / "commitlog").mkdir(exist_ok=True)
    return {name: data for name, data in store_files(root) if not name.startswith("commitlog")}


def spoil(root: Path) -> None:
    """Queue 0 has a wrong unit, queue 1 is gone, an IndexFile is zeros."""
    path = sorted((root / "consumequeue" / "t" / "0").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[27] ^= 1
    path.write_bytes(data)
    shutil.rmtree(root / "consumequeue" / "t" / "1")
    index = sorted((root / "index").iterdir())[2]
    index.write_bytes(bytes(index.stat().st_size))


def test_beside_the_store(tmp_path: Path) -> None:
    root = make(tmp_path / "s")
    wanted = derived(root)
    spoil(root)
    before = sorted(store_files(root))
    result = rocketstore.rebuild(root, tmp_path / "out")
    assert derived(tmp_path / "out") == wanted
    assert sorted(store_files(root)) == before
    was = {file.name: file.was for file in result.files}
    assert (was["consumequeue/t/0"], was["consumequeue/t/1"]) == ("different", "missing")
    assert sorted(was.values()).count("different") == 2
    assert (result.messages, sum(file.entries for file in result.files[:2])) == (101, 101)
    assert stat.S_IMODE((tmp_path / "out" / "index").stat().st_mode) == 0o700
    with pytest.raises(UsageError, match="holds files of a store"):
        rocketstore.rebuild(root, tmp_path / "out")
    with pytest.raises(NotAStoreError):
        rocketstore.rebuild(tmp_path / "nowhere", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_in_place(tmp_path: Path) -> None:
    root = make(tmp_path / "s")
    wanted = derived(root)
    spoil(root)
    rebuild_in_place(root)
    assert derived(root) == wanted
    assert not (root / STAGING).exists()
    assert not (root / "abort").exists()
    assert verify(root) == []
    with open_tiny(root) as store:
        assert store.recovered.walked_from == store.max_offset
        with pytest.raises(LockedError):
            rebuild_in_place(root)


def test_what_is_identical_stays_where_it_is(tmp_path: Path) -> None:
    root = make(tmp_path / "s")
    before = {path: path.stat().st_ino for path in root.rglob("*") if path.is_dir()}
    assert {file.was for file in rebuild_in_place(root).files} == {"identical"}
    assert {path: path.stat().st_ino for path in root.rglob("*") if path.is_dir()} == before


def test_a_store_of_a_group_stays_one(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_tiny(root, mode=0o660) as store:
        fill(store)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}
    spoil(root)
    rebuild_in_place(root)
    index = root / "index"
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in index.iterdir()} == dict.fromkeys(
        index.iterdir(), 0o660
    )
    for path in (index, root / "consumequeue" / "t" / "1"):
        assert stat.S_IMODE(path.stat().st_mode) == modes[path]


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_crash_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, abort: bool
) -> None:
    """Whatever step does not happen any more: the next open has all messages."""
    root = make(tmp_path / "s")
    wanted = derived(root)
    spoil(root)
    if abort:
        (root / "abort").touch()
    exchange, vouch = derived_files._exchange, derived_files._vouch

    def no_exchange(fs: Any, staged: str, to: str, aside: str) -> None:
        if os.path.basename(to) == place:
            if os.path.exists(to):
                fs.rename(to, aside)
            raise KeyboardInterrupt
        exchange(fs, staged, to, aside)

    def no_vouch(*given: Any) -> None:
        if place == "vouch":
            raise KeyboardInterrupt
        vouch(*given)
        if place == "abort":
            raise KeyboardInterrupt

    monkeypatch.setattr(derived_files, "_exchange", no_exchange)
    monkeypatch.setattr(derived_files, "_vouch", no_vouch)
    monkeypatch.setattr(derived_files, "_remove_tree", lambda *given: None)
    with pytest.raises(KeyboardInterrupt):
        rebuild_in_place(root)
    monkeypatch.undo()
    assert (root / "abort").exists()
    note = json.loads((root / "config" / "rocketstore.json").read_text())
    assert ("sizes_only" in note["derived"]) == (place != "abort")
    again = shutil.copytree(root, tmp_path / "again")
    with rocketstore.open(root, background=False) as opened:
        assert opened.queues() == {("t", 0): (0, 51), ("t", 1): (0, 50)}
    assert derived(root) == wanted
    rebuild_in_place(again)
    assert derived(again) == wanted
    assert not (again / STAGING).exists()
    assert (again / "abort").exists()


def test_a_queue_whose_messages_are_all_expired_keeps_its_end(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_tiny(root) as store:
        for _ in range(15):
            store.put("old", b"x" * 100)
        for _ in range(60):
            store.put("new", b"x" * 100)
    sorted((root / "commitlog").iterdir())[0].unlink()
    rocketstore.rebuild(root, tmp_path / "out")
    assert (tmp_path / "out" / "consumequeue" / "old" / "0").is_dir()
    rebuild_in_place(root)
    with open_tiny(root) as store:
        assert store.put("old", b"next").queue_offset == 15


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    root = make(tmp_path / "s")
    hole, gap, cut = (shutil.copytree(root, tmp_path / name) for name in ("hole", "gap", "cut"))
    log = [path.name for path in sorted((root / "commitlog").iterdir())]
    data = bytearray((hole / "commitlog" / log[0]).read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size] ^= 0x55
    (hole / "commitlog" / log[0]).write_bytes(data)
    (gap / "commitlog" / log[1]).unlink()
    os.truncate(cut / "commitlog" / log[1], 1000)
    for store, why in (
        (hole, f"at offset {size}: there is no record here"),
        (gap, f"{log[1]}: at offset 0: this file"),
        (cut, f"{log[1]}: at offset 0: is 1000 bytes long"),
    ):
        before = sorted(store_files(store))
        with pytest.raises(DamageError, match=why):
            rocketstore.rebuild(store, tmp_path / f"{store.name}-out")
        with pytest.raises(DamageError, match=why):
            rebuild_in_place(store)
        assert sorted(store_files(store)) == before
        assert not (store / STAGING).exists()


@pytest.mark.rotates(2)
def test_beside_a_writer(tmp_path: Path) -> None:
    """The files are those of one moment: a prefix of each queue."""
    root = tmp_path / "s"
    stop = threading.Event()
    with rocketstore.open(root, flush_interval=0.01, **TINY) as store:

        def put() -> None:
            while not stop.wait(0.01):  # or a slow rebuild would meet an ever larger store
                fill(store, 20)

        fill(store)
        writer = threading.Thread(target=put)
        writer.start()
        try:
            made = [rocketstore.rebuild(root, tmp_path / f"out-{number}") for number in range(5)]
        finally:
            stop.set()
            writer.join()
    assert all(result.messages >= 101 for result in made)
    whole = derived(root)
    for number, result in enumerate(made):
        found = derived(tmp_path / f"out-{number}")
        assert sum(file.entries for file in result.files[:2]) == result.messages
        for name, data in found.items():
            if name.startswith("consumequeue"):
                assert whole[name].startswith(data.rstrip(b"\0"))
