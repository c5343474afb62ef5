"""The tier of a run, in its header; how processes share the tests; CPU time and crash states at the
end."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import tempfile
from collections import Counter
from typing import Any

import pytest

from journal.compiled import COMPILED, build
from tests import effort

STATES = effort.by_tier(quick=12_000, all=130_000, nightly=130_000)
"""Distinct crash states that the workloads of tests/crash have in all, at least."""

effort.load_profile()
# Workers and child processes do the same as the process that started them.
os.environ.update(QINDEX_TIER=effort.TIER, QINDEX_ROTATION=effort.ROTATION)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell without job control starts what is in the background so, and its children inherit
    # it; tests interrupt theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_cpu_of_workers: list[float] = []


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have hypothesis try the same examples in each run of one rotation. Refuse to test another
    build than was asked for."""
    if getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = effort.SEED
    wanted = os.environ.get("QINDEX_COMPILE") == "require"
    if wanted and not os.environ.get("QINDEX_INTERPRETED") and build() != COMPILED:
        raise pytest.UsageError("QINDEX_COMPILE=require, but it is the sources that run")


def pytest_report_header() -> list[str]:
    lines = [
        f"effort: tier {effort.TIER}, rotation {effort.ROTATION} (tests/effort.py); "
        f"qindex is {build()}; stores are made in {tempfile.gettempdir()}"
    ]
    if effort.QUICK:
        lines.append(
            "quick: no real RabbitMQ or RocketMQ, no Spark; slices of the long tests; "
            "sh scripts/test.sh --all runs them all"
        )
    return lines


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.sharing import Scheduler

    return Scheduler(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, where processes share the tests. What is for the interpreted
    build says why it is skipped in the other one."""
    if build() == COMPILED:
        why = "replaces parts of modules that are compiled here: QINDEX_INTERPRETED=1 runs it"
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip(reason=why))
    _rotate(items)
    if hasattr(config, "workerinput"):
        from tests.sharing import in_order

        items[:] = in_order(items)


_SOME, _MANY = 4, 9
"""Cases of one test of which the quick tier runs a third, and a quarter."""


def _rotate(items: list[pytest.Item]) -> None:
    """Leave most of the cases of long tests, and of tests with many, to other commits' runs of the
    quick tier."""
    if not effort.QUICK:
        return
    cases = Counter(map(_name_of, items))
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("rotates")
        name = _name_of(item)
        count = cases[name]
        usual = 4 if count >= _MANY else 3 if count >= _SOME else 1
        slices = mark.args[0] if mark else usual
        if seen[name] % slices != effort.turn(slices, name):
            item.add_marker(pytest.mark.skip(reason="this case is another commit's"))
        seen[name] += 1


def _name_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Have no collection of garbage look through modules and collected tests again: they stay."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells what it took. The run fails if the crash explorer found too few states."""
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["cpu"] = _cpu()  # type: ignore[attr-defined]
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    explored = _explored(reporter) if reporter else []
    if _all_explored(explored) and sum(count for count, _ in explored) < STATES:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _cpu_of_workers.append(getattr(node, "workeroutput", {}).get("cpu", 0.0))


_LEFT = re.compile(
    r"another commit's|left to sh scripts/test\.sh --all$|: nightly$|QINDEX_INTERPRETED=1 runs it"
)
"""Reasons of what another run of the tests makes up for."""


def _fold_what_others_run(reporter: Any) -> None:
    """Count the cases that another commit, tier or build runs in one line. What this machine lacks
    stays in the list, each with its reason."""
    skipped = reporter.stats.pop("skipped", [])
    lacking = [one for one in skipped if not _LEFT.search(str(one.longrepr[2]))]
    if lacking:
        reporter.stats["skipped"] = lacking
    left = len(skipped) - len(lacking)
    if left:
        reporter.write_line(f"{left} cases are left to other commits, tiers or builds")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what the run took, and how many crash states were explored, and how fast."""
    _fold_what_others_run(terminalreporter)
    spent = sum(_cpu_of_workers or [_cpu()])
    terminalreporter.write_line(f"CPU time of the tests: {spent:,.0f} s")
    explored = _explored(terminalreporter)
    if explored:
        states = sum(count for count, _ in explored)
        seconds = sum(spent for _, spent in explored)
        terminalreporter.write_line(
            f"crash states: {states:,} distinct ones explored, "
            f"{states / max(seconds, 1e-9):,.0f} a second in each process"
        )
        if _all_explored(explored) and states < STATES:
            terminalreporter.write_line(f"FAILED: these are fewer than {STATES:,}")


def _cpu() -> float:
    """Seconds that this process, and the children it has waited for, have had of processors."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _explored(reporter: Any) -> list[tuple[int, float]]:
    """Give states and seconds of each workload that the crash explorer is done with."""
    return [
        value
        for report in reporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "crash states"
    ]


def _all_explored(explored: list[tuple[int, float]]) -> bool:
    from tests.crash.workloads import WORKLOADS

    return len(explored) == len(WORKLOADS)
