"""Several faults at once, at random: the tools come to an end, what they make is sound, and
nothing is in it that was not published."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

import qindex
from tests.golden import golden
from tests.tools.faults import State
from tests.tools.stores import Content, content_of

SEEDS = int(os.environ.get("QINDEX_DAMAGE_SEEDS", "6"))


def damage(directory: Path, chance: random.Random) -> None:
    """Flip, zero, cut, delete, swap, copy, append: one to four times."""
    for _ in range(chance.randint(1, 4)):
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        path, other = chance.choice(files), chance.choice(files)
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data) or 1)
        match chance.randrange(8):
            case 0 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            case 2:
                del data[at:]
            case 3:
                path.unlink()
                continue
            case 4:
                other_data = other.read_bytes()
                other.write_bytes(data)
                data = bytearray(other_data)
            case 5:
                path = path.with_name(f"{chance.randrange(5)}{path.suffix}")
            case 6:
                data += chance.randbytes(chance.randrange(1, 300))
            case _:
                data[at : at + 40] = chance.randbytes(len(data[at : at + 40]))
        path.write_bytes(data)


def bodies(content: Content) -> set[bytes]:
    return {message[1] for message in chain(*content.values())}


@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_store_of_ours(
    state: State,
    seed: int,
    copy_of: Callable[[State], Path],
    contents: dict[State, Content],
    tmp_path: Path,
) -> None:
    store, new = copy_of(state), tmp_path / "new"
    damage(store, random.Random(seed))
    try:
        report = qindex.verify(store)
        saved = qindex.repair(store, new)
    except qindex.NotAStoreError:
        assert not (store / "qindex.store").exists()
        return
    assert qindex.verify(new).findings == []
    now = content_of(new)
    assert bodies(now) <= bodies(contents[state])
    if not report.findings:
        assert bodies(now) == bodies(contents[state])
    assert saved.messages == sum(map(len, now.values()))


@pytest.mark.parametrize("scenario", ["b", "e1", "g1"])
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_a_node_s_directory(scenario: str, seed: int, tmp_path: Path) -> None:
    store = golden(scenario)
    vhost = Path(shutil.copytree(store.vhost_dir, tmp_path / "vhost"))
    damage(vhost, random.Random(seed))
    qindex.verify(vhost)
    saved = qindex.salvage(vhost, tmp_path / "new")
    theirs = qindex.salvage(vhost, tmp_path / "theirs", format="rabbitmq")
    assert qindex.verify(tmp_path / "new").findings == []
    assert qindex.verify(tmp_path / "theirs").sound
    assert theirs.messages == saved.messages
