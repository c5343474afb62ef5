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
from journal.findings import Kind
from journal.format import FILE_NAME
from tests.damage.harms import several
from tests.effort import by_tier, chance
from tests.golden import golden
from tests.tools.faults import State
from tests.tools.stores import PUBLISHED, Content, content_of

SEEDS = by_tier(quick=2, all=6, nightly=200)


def damage(directory: Path, rng: random.Random) -> set[str]:
    """Flip, zero, cut, delete, swap, copy, append: one to four times. Give the names of the files
    that are gone."""
    files = {str(one): one.read_bytes() for one in sorted(directory.rglob("*")) if one.is_file()}
    harmed = several(files, rng)
    gone = files.keys() - harmed.keys()
    for path in gone:
        Path(path).unlink()
    for path, content in harmed.items():
        Path(path).write_bytes(content)
    return {Path(path).name for path in gone}


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
    gone = damage(store, chance(state, seed))
    try:
        report = qindex.verify(store)
        saved = qindex.repair(store, new)
    except qindex.NotAStoreError:
        assert not (store / "qindex.store").exists()
        return
    made = qindex.verify(new)
    # Where damage changed the size as well, a message id does not show that it is one of ours.
    unsure = any(one.kind is Kind.SIZE for one in report.findings)
    assert [
        one for one in made.findings if not (unsure and one.kind is Kind.DUPLICATE_MSG_ID)
    ] == []
    now = content_of(new)
    assert saved.messages == made.figures.entries
    # Where it changed the expiry as well, a message may have expired.
    assert saved.messages == sum(map(len, now.values())) or unsure
    # Where the record of an ack is lost, its message is there again.
    assert bodies(now) <= PUBLISHED
    # That a journal is gone can be told after a clean close alone.
    if not report.findings and (state == "clean" or FILE_NAME not in gone):
        assert bodies(now) == bodies(contents[state])


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
