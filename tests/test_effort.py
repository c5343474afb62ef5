"""The tiers: their slices cover all, a rotation repeats itself, and the header tells both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest, effort
from tests.crash.workloads import WORKLOADS
from tests.effort import Tier
from tests.sharing import Scheduler, in_order

ROOT = Path(__file__).parents[1]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("QINDEX_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("count", [1, 3, 4, 10])
def test_slices_cover_all_and_none_is_empty(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    for seed in range(200):
        monkeypatch.setattr(effort, "SEED", seed)
        some = effort.part(range(count), 4, "name")
        assert some
        assert list(some) == list(effort.part(range(count), 4, "name"))
        assert list(some) == list(range(count))[some[0] :: min(count, 4)]
        seen.update(some)
    assert seen == set(range(count))
    assert list(effort.part(range(count), 1)) == list(range(count))
    assert effort.part([], 4) == []


def test_two_names_take_different_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    same = 0
    for seed in range(100):
        monkeypatch.setattr(effort, "SEED", seed)
        same += effort.turn(10, "one") == effort.turn(10, "other")
    assert same < 50


@pytest.mark.parametrize("tier", Tier)
def test_each_tier_has_its_values(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "TIER", tier)
    assert effort.by_tier(quick="quick", all="all", nightly="nightly") == tier
    assert effort.examples(60) == {"quick": 15, "all": 60, "nightly": 3000}[tier]


def test_the_header_tells_tier_and_rotation() -> None:
    told = run("tests/journal/test_packed.py", QINDEX_TIER="quick", QINDEX_ROTATION="abc").stdout
    assert "effort: tier quick, rotation abc" in told
    assert "no Spark" in told
    assert "CPU time of the tests: " in told


@effort.not_quick("four runs of a test")
def test_a_rotation_repeats_itself_and_the_next_one_differs(tmp_path: Path) -> None:
    test = tmp_path / "test_drawn.py"
    test.write_text(
        "from hypothesis import given, strategies as st\n"
        "from tests import effort\n"
        "drawn = []\n"
        "@given(st.integers(0, 1 << 60))\n"
        "def test_draw(value):\n"
        "    drawn.append(value)\n"
        "def test_tell():\n"
        "    print('DRAWN', drawn, effort.chance('x').random())\n"
    )

    def drawn(rotation: str) -> list[str]:
        told = run("-s", "-c", "pyproject.toml", "--rootdir", ".", "-p", "tests.conftest",
                   str(test), QINDEX_ROTATION=rotation).stdout  # fmt: skip
        return [line for line in told.splitlines() if "DRAWN" in line]

    first = drawn("one")
    assert len(first) == 1
    assert drawn("one") == first
    assert drawn("two") != first


def test_a_tier_that_is_none_is_told() -> None:
    done = run("tests/journal/test_packed.py", QINDEX_TIER="fast")
    assert done.returncode != 0
    assert "'fast' is not a valid Tier" in done.stdout + done.stderr


def test_processes_share_the_workloads_one_by_one() -> None:
    ids = [f"tests/crash/test_explore.py::test_x[{one.name}]" for one in WORKLOADS]
    rest = ["tests/a.py::test_b[x::y]", "tests/a.py::test_c", "tests/spark/test_d.py::test_e"]
    split = Scheduler._split_scope
    groups = {split(None, one) for one in ids}  # type: ignore[arg-type]
    alone = {one for one in ids if not one.endswith((", os]", ", fsync]"))}
    assert alone < groups
    # The same in both durabilities is one group.
    assert len(groups - alone) * 2 == len(ids) - len(alone)
    assert [split(None, one) for one in rest] == ["tests/a.py", "tests/a.py", "tests/spark/"]  # type: ignore[arg-type]
    items = [SimpleNamespace(nodeid=one) for one in [*ids, *rest]]
    order = [one.nodeid for one in in_order(items)]  # type: ignore[arg-type]
    assert order == [rest[2], rest[0], rest[1], *ids]


@pytest.mark.parametrize(
    ("states", "workloads", "fails"),
    [(1, len(WORKLOADS), True), (10**6, len(WORKLOADS), False), (1, 3, False)],
)
def test_a_run_with_too_few_crash_states_fails(states: int, workloads: int, fails: bool) -> None:
    """Where all workloads were asked for."""
    report = SimpleNamespace(user_properties=[("crash states", (states, 1.0))])
    reporter = SimpleNamespace(stats={"passed": [report] * workloads})
    manager = SimpleNamespace(get_plugin=lambda name: reporter)
    session = SimpleNamespace(config=SimpleNamespace(pluginmanager=manager), exitstatus=0)
    conftest.pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert bool(session.exitstatus) == fails
