"""The comparison's parent: rounds of all contenders in turn, each in a child process."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from journal.errors import StoreError, UsageError
from qindex.compare import tasks
from qindex.compare.child import Child, ChildError
from qindex.compare.contender import Contender
from qindex.compare.workload import Workload

_MAX_BACKLOG = 100_000
_QUICK_BACKLOG = 8_000
_MAX_BACKLOG_BYTES = 64 << 20
_LEAST_BACKLOG = 80
_LOOKED_UP = 20_000
_place = partial(TemporaryDirectory, ignore_cleanup_errors=True)


class ContenderError(StoreError):
    """A contender failed in its task; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run: ``rounds`` of each contender on a workload, in a directory."""

    workload: Workload
    kinds: Sequence[type[Contender]]
    directory: Path | None = None
    rounds: int = 3
    quick: bool = False

    def backlogs(self) -> list[int]:
        """Return the numbers of messages that the killed processes leave: each is the double of
        the one before."""
        most = _QUICK_BACKLOG if self.quick else _MAX_BACKLOG
        most = max(min(most, int(_MAX_BACKLOG_BYTES / self.workload.mean_bytes)), _LEAST_BACKLOG)
        return (
            [most // 4, most // 2, most] if self.quick else [most // 8, most // 4, most // 2, most]
        )


@dataclass
class Results:
    """By contender: its rounds, the reopenings of each backlog, the lookups."""

    loads: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    reopened: dict[str, dict[int, list[dict[str, Any]]]] = field(default_factory=dict)
    lookups: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Peers that failed, and why: their earlier figures are not comparison."""


def compare(plan: Plan, tell: Callable[[str, float], None]) -> Results:
    """Run all of a plan; ``tell(what, share done)`` before each step.

    Raises :class:`UsageError` if there is no such directory or too little room,
    :class:`ContenderError` if one of the two designs failed; a peer that fails is left out from
    then on. Whatever happens, no process and no file is left.
    """
    with _scratch(plan) as scratch:
        results = Results()
        done, all_steps = 0, plan.rounds * len(plan.kinds)
        for number in range(plan.rounds):
            # The first one meets the machine in another state: they take turns.
            shift = number % len(plan.kinds)
            for kind in [*plan.kinds[shift:], *plan.kinds[:shift]]:
                tell(f"round {number + 1} of {plan.rounds}: {kind.name}", done / all_steps)
                if kind.name not in results.failed:
                    _one_round(plan, kind, scratch, results)
                done += 1
        return results


def _one_round(plan: Plan, kind: type[Contender], scratch: Path, results: Results) -> None:
    try:
        _one_load(plan, kind, scratch, results)
        for backlog in plan.backlogs() if kind.kill_safe else ():
            _one_reopening(plan, kind, scratch, backlog, results)
    except ContenderError as error:
        # Without one of the two designs there is no comparison; a peer can be left out.
        if kind in plan.kinds[:2]:
            raise
        results.failed[kind.name] = str(error)


def _one_load(plan: Plan, kind: type[Contender], scratch: Path, results: Results) -> None:
    with _place(dir=scratch) as place, Child() as child:
        results.loads.setdefault(kind.name, []).append(_ask(child, tasks.load, plan, kind, place))
    if plan.workload.lookups:
        count = min(_LOOKED_UP, plan.backlogs()[-1])
        with _place(dir=scratch) as place, Child() as child:
            answer = _ask(child, tasks.lookup, plan, kind, f"{place}/store", count=count)
            results.lookups.setdefault(kind.name, []).append(answer)


def _one_reopening(
    plan: Plan, kind: type[Contender], scratch: Path, backlog: int, results: Results
) -> None:
    with _place(dir=scratch) as place:
        with Child() as child:
            _ask(child, tasks.fill, plan, kind, f"{place}/store", count=backlog)
            child.kill()
        with Child() as child:
            answer = _ask(child, tasks.reopen, plan, kind, f"{place}/store")
            results.reopened.setdefault(kind.name, {}).setdefault(backlog, []).append(answer)


def _ask(
    child: Child, task: Callable[..., Any], plan: Plan, kind: type[Contender], place: str,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    load = plan.workload.to_dict()
    try:
        return child.call(task, contender=kind.name, directory=place, workload=load, **more) or {}
    except ChildError as error:
        raise ContenderError(f"{kind.title}: {error}") from error


@contextlib.contextmanager
def _scratch(plan: Plan) -> Iterator[Path]:
    """A directory for all stores, gone in the end."""
    if plan.directory is not None and not plan.directory.is_dir():
        raise UsageError(f"{plan.directory}: no such directory")
    with _place(prefix="qindex-compare-", dir=plan.directory) as path:
        needed, free = plan.workload.space_bytes, shutil.disk_usage(path).free
        if free < needed:
            where = plan.directory or gettempdir()
            raise UsageError(
                f"{where}: {free >> 20:,} MiB are free, this workload wants {needed >> 20:,} MiB "
                "(--dir names another disk)"
            )
        yield Path(path).absolute()
