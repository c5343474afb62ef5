"""Queues and index files that are missing, cut, stale or torn are rebuilt from the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketstore import Store
from rocketstore.format.properties import index_keys
from tests import effort
from tests.rocketstore.support import Clock, open_tiny, store_files


@pytest.fixture(autouse=True)
def all_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """These stores have some 40 index files, and each query reads all of them: what is closed and
    opened again on the way has tests of its own (``test_many_index_files``)."""
    monkeypatch.setattr("rocketstore.index.index_service._OPEN_MAX", 100)


def fill(store: Store, count: int, *, first: int = 0) -> list[int]:
    """Puts over three queues, some without keys; gives their offsets."""
    offsets = []
    for number in range(first, first + count):
        topic = ("A", "B", "A")[number % 3]
        keys = f"k{number % 7} n{number}" if number % 4 else None
        put = store.put(
            topic,
            b"%d" % number,
            queue_id=number % 3 // 2,
            keys=keys,
            unique_key=f"{number:032X}" if number % 2 else None,
            tags=f"t{number % 5}",
        )
        offsets.append(put.offset)
    return offsets


def check(store: Store, offsets: list[int]) -> None:
    """Each message once by queue and once by each key; queues hold nothing else."""
    by_queue: dict[tuple[str, int], list[int]] = {}
    by_key: dict[tuple[str, str], list[int]] = {}
    for offset in offsets:
        message = store.lookup(offset)
        assert message is not None
        by_queue.setdefault((message.topic, message.queue_id), []).append(offset)
        for key in index_keys(message.properties):
            by_key.setdefault((message.topic, key), []).append(offset)
    for (topic, key), expected in by_key.items():
        hits = [hit.offset for hit in store.query(topic, key, 10_000)]
        assert [hits.count(offset) for offset in expected] == [1] * len(expected)
    for (topic, queue_id), expected in by_queue.items():
        assert [message.offset for message in store.messages(topic, queue_id)] == expected
    raw = [entry for file in store._parts.index.files for entry in _entries(file)]
    assert len(raw) == len(set(raw)), "an entry stands twice"


def _entries(file: object) -> list[tuple[int, int]]:
    entries = file.entries_from(1, file.header.count)  # type: ignore[attr-defined]
    return [(int(entry["hash"]), int(entry["offset"])) for entry in entries]


def derived_files(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in store_files(root) if not name.startswith("commitlog")}


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, list[int]]:
    clock = Clock(step=7)
    with open_tiny(tmp_path / "s", clock=clock) as store:
        offsets = fill(store, 200)
    return tmp_path / "s", offsets


def damage_missing_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "A" / "0")


def damage_all_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def damage_first_queue_file(root: Path) -> None:
    sorted((root / "consumequeue" / "A" / "0").iterdir())[0].unlink()


def damage_middle_queue_file(root: Path) -> None:
    sorted((root / "consumequeue" / "A" / "0").iterdir())[2].unlink()


def damage_last_queue_file(root: Path) -> None:
    sorted((root / "consumequeue" / "A" / "0").iterdir())[-1].unlink()


def damage_zeroed_queue_tail(root: Path) -> None:
    path = sorted((root / "consumequeue" / "B" / "0").iterdir())[-1]
    path.write_bytes(bytes(200))


def damage_missing_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def damage_first_index(root: Path) -> None:
    sorted((root / "index").iterdir())[0].unlink()


def damage_middle_index(root: Path) -> None:
    sorted((root / "index").iterdir())[5].unlink()


def damage_last_index(root: Path) -> None:
    sorted((root / "index").iterdir())[-1].unlink()


DAMAGES = [
    damage_missing_queue,
    damage_all_queues,
    damage_first_queue_file,
    damage_middle_queue_file,
    damage_last_queue_file,
    damage_zeroed_queue_tail,
    damage_missing_index,
    damage_first_index,
    damage_middle_index,
    damage_last_index,
]


@pytest.mark.parametrize("crashed", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[7:])
def test_rebuilt(damage: object, crashed: bool, filled: tuple[Path, list[int]]) -> None:
    root, offsets = filled
    undisturbed = derived_files(root)
    damage(root)  # type: ignore[operator]
    if crashed:
        (root / "abort").touch()
    with open_tiny(root) as store:
        check(store, offsets)
    assert derived_files(root) == undisturbed
    with open_tiny(root) as store:
        assert store.recovered.walked_from == store.max_offset
        more = fill(store, 30, first=200)
        check(store, offsets + more)


@pytest.mark.parametrize("seed", range(effort.by_tier(quick=3, all=40, nightly=400)))
def test_any_damage_to_derived_files(seed: int, filled: tuple[Path, list[int]]) -> None:
    """Bytes overwritten, files cut or gone, at random, without the note of a clean exit."""
    root, offsets = filled
    undisturbed = derived_files(root)
    chance = effort.chance(seed)
    (root / "config" / "rocketstore.json").unlink()
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    files = [path for path in files if "consumequeue" in path.parts or "index" in path.parts]
    for path in chance.sample(files, 6):
        data = bytearray(path.read_bytes())
        if chance.random() < 0.3:
            path.unlink()
            continue
        at = chance.randrange(len(data))
        for place in range(at, min(at + chance.choice((1, 4, 60, 1000)), len(data))):
            data[place] = chance.choice((0, 255, chance.randrange(256)))
        path.write_bytes(data)
    sizes = {"index_slots": 7, "index_entries": 12}
    with open_tiny(root, **sizes) as store:
        check(store, offsets)
    rebuilt = derived_files(root)
    assert {name: data for name, data in rebuilt.items() if name.startswith("c")} == {
        name: data for name, data in undisturbed.items() if name.startswith("c")
    }


def test_stale_queue_and_index_after_the_log_was_cut(filled: tuple[Path, list[int]]) -> None:
    """The log lost its last files: units and entries that point there go, and the freed offsets
    are used again."""
    root, offsets = filled
    logs = sorted((root / "commitlog").iterdir())
    for path in logs[-3:]:
        path.unlink()
    end = 4096 * (len(logs) - 3)
    (root / "abort").touch()
    with open_tiny(root, repair=True) as store:
        kept = [offset for offset in offsets if offset < end]
        assert len(kept) < len(offsets)
        check(store, kept)
        check(store, kept + fill(store, 40, first=500))


def test_prefix_of_queue_expired_is_kept(tmp_path: Path) -> None:
    """A queue all of whose messages have expired goes on counting where it was."""
    with open_tiny(tmp_path / "s") as store:
        for number in range(30):
            store.put("OLD", b"x" * 50, keys=f"k{number}")
        for _ in range(60):
            store.put("NEW", b"y" * 100)
        assert store.clean(now=4e9) > 1
        old = store.queues()["OLD", 0]
        assert old[1] == 30
        assert store.get("OLD", 0, 29).messages == []
    for without_note in (False, True):
        if without_note:
            (tmp_path / "s" / "config" / "rocketstore.json").unlink()
        with open_tiny(tmp_path / "s") as store:
            assert store.put("OLD", b"z").queue_offset == 30 + without_note
