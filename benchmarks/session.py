"""Drives the contenders: a process for each, asked in turn, round by round."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.program import child
from benchmarks.report import FLOOR, OURS, Found, Report, Round, Sample
from qindex.compare.child import Child, ChildError
from qindex.compare.contender import Fifo

_ANSWER_SECONDS = 120.0

Task = Callable[..., Round]
"""Measures a contender once: ``task(who, directory, **parameters)``. It runs in a child process,
and may keep there what it needs in the next round."""


def measure_once(task: Task, who: str, directory: Path, **parameters: Any) -> Round:
    """Measure in a process that ends with it. Raises :class:`ChildError`."""
    with child(_ANSWER_SECONDS) as worker:
        return _ask(worker, task, who, directory, parameters)


def _ask(
    worker: Child, task: Task, who: str, directory: Path, parameters: Mapping[str, Any]
) -> Round:
    directory.mkdir(parents=True, exist_ok=True)
    found = worker.call(task, who=who, directory=directory, **parameters)
    return {name: Sample(**sample) for name, sample in found.items()}


class Session:
    """A run: who takes part, where, how often, and where the figures go.

    ``failed`` names the contenders that raised, with the figure; they are left out of that one.
    """

    def __init__(
        self, contenders: Mapping[str, type[Fifo]], directory: Path, rounds: int, report: Report
    ) -> None:
        self.contenders = contenders
        self.directory = directory
        self.rounds = rounds
        self.report = report
        self.failed: list[tuple[str, str]] = []
        self._directories = 0

    def names(self, wanted: Callable[[type[Fifo]], bool]) -> list[str]:
        return [name for name, kind in self.contenders.items() if wanted(kind)]

    def add(self, figure: str, rounds: list[Round], **options: Any) -> None:
        """Report a figure; the peers that survive a kill are the only ones to be held against."""
        peers = self.names(lambda kind: kind.name not in (OURS, FLOOR) and kind.kill_safe)
        notes = {name: kind.note for name, kind in self.contenders.items() if name != OURS}
        self.report.add(figure, rounds, **{"comparable": peers, "notes": notes, **options})

    def fresh(self) -> Path:
        """Make a new directory on the disk under test."""
        self._directories += 1
        path = self.directory / f"run-{self._directories}"
        path.mkdir()
        return path

    def fail(self, who: str, what: str, error: ChildError) -> None:
        self.report.say(f"{what}: {who} left out: {error}\n{error.trace}")
        self.failed.append((who, what))

    def interleave(
        self, what: str, task: Task, parameters: Mapping[str, Mapping[str, Any]], rounds: int = 0
    ) -> Found:
        """Measure in a new process for each contender, in turn.

        ``parameters`` are those of each contender that takes part; ``rounds`` those of the
        session unless given. Returns the rounds of each sample that the task gives. A contender
        that raises is left out of this figure from then on.
        """
        found = Found()
        with ExitStack() as stack:
            workers = {who: stack.enter_context(child(_ANSWER_SECONDS)) for who in parameters}
            for _ in range(rounds or self.rounds):
                for who, worker in list(workers.items()):
                    try:
                        samples = _ask(worker, task, who, self.directory / who, parameters[who])
                    except ChildError as error:
                        self.fail(who, what, error)
                        del workers[who]
                        continue
                    for key, sample in samples.items():
                        found.note(key, who, sample)
        for who in parameters:
            shutil.rmtree(self.directory / who, ignore_errors=True)
        return found

    def alone(
        self, what: str, task: Task, parameters: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Round]:
        """Measure each contender once, in a process that ends with it. One that dies by SIGKILL
        did what it was told, and has no samples; one that raises is left out."""
        found: dict[str, Round] = {}
        for who, given in parameters.items():
            try:
                found[who] = measure_once(task, who, self.fresh(), **given)
            except ChildError as error:
                if error.status == -signal.SIGKILL:
                    found[who] = {}
                else:
                    self.fail(who, what, error)
        return found
