"""Several faults at once, at random: the tools come to an end, what they make is sound, and
nothing is in it that was not published."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

import qindex
from tests.damage.harms import several
from tests.effort import by_tier, chance
from tests.golden import golden
from tests.tools.faults import State
from tests.tools.stores import Content, content_of

SEEDS = by_tier(quick=2, all=6, nightly=200)


def damage(directory: Path, rng: random.Random) -> None:
    """Flip, zero, cut, delete, swap, copy, append: one to four times."""
    files = {str(one): one.read_bytes() for one in directory.rglob("*") if one.is_file()}
    harmed = several(files, rng)
    for path in files.keys() - harmed.keys():
        Path(path).unlink()
    for path, content in harmed.items():
        Path(path).write_bytes(content)


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
    damage(store, chance(state, seed))
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
    damage(vhost, chance(scenario, seed))
    qindex.verify(vhost)
    saved = qindex.salvage(vhost, tmp_path / "new")
    theirs = qindex.salvage(vhost, tmp_path / "theirs", format="rabbitmq")
    assert qindex.verify(tmp_path / "new").findings == []
    assert qindex.verify(tmp_path / "theirs").sound
    assert theirs.messages == saved.messages
