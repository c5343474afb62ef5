"""Drives the contenders: a process for each, asked in turn, round by round."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.program import child, fresh
from benchmarks.report import FLOOR, OURS, Report
from benchmarks.stopwatch import Found, Round, Sample
from qindex.compare.child import Child, ChildError
from qindex.compare.contender import Fifo

_ANSWER_SECONDS = 120.0

Task = Callable[..., Round]
"""Measures a contender once: ``task(who, directory, **given)``. It runs in a child process,
and may keep there what it needs in the next round."""


def _ask(worker: Child, task: Task, who: str, directory: Path, given: Mapping[str, Any]) -> Round:
    directory.mkdir(parents=True, exist_ok=True)
    found = worker.call(task, who=who, directory=directory, **given)
    return {name: Sample(**sample) for name, sample in found.items()}


class Session:
    """A run: who takes part, where, how often, and where the figures go.

    A ``quick`` one only shows that all of it works, by a twentieth of the messages. ``seconds``
    bound one measurement, of a slow contender. ``failed`` names the contenders that raised, with
    the task; they are left out of that one.
    """

    def __init__(
        self,
        contenders: Mapping[str, type[Fifo]],
        directory: Path,
        rounds: int,
        report: Report,
        *,
        quick: bool = False,
    ) -> None:
        self.contenders = contenders
        self.directory = directory
        self.rounds = rounds
        self.report = report
        self.quick = quick
        self.seconds = 0.03 if quick else 0.3
        self.failed: list[tuple[str, str]] = []

    def count(self, whole: int) -> int:
        return whole // 20 if self.quick else whole

    def names(self, wanted: Callable[[type[Fifo]], bool] = lambda kind: True) -> list[str]:
        return [name for name, kind in self.contenders.items() if wanted(kind)]

    def add(self, figure: str, rounds: list[Round], **options: Any) -> None:
        """Report a figure; the peers that survive a kill are the only ones to be held against."""
        peers = self.names(lambda kind: kind.name not in (OURS, FLOOR) and kind.kill_safe)
        notes = {name: kind.note for name, kind in self.contenders.items() if name != OURS}
        self.report.add(figure, rounds, **{"comparable": peers, "notes": notes, **options})

    def fail(self, who: str, task: Task, error: ChildError) -> None:
        self.report.say(f"{task.__name__}: {who} left out: {error}\n{error.trace}")
        self.failed.append((who, task.__name__))

    def rate(self, figure: str, task: Task, who: Iterable[str], **given: Any) -> None:
        """Measure and report the one rate that a task gives."""
        found = self.interleave(task, who, seconds=self.seconds, **given)
        for rounds in found.values():
            self.add(figure, rounds)

    def ours(self, task: Task, rounds: int, **given: Any) -> Found:
        """Measure the engine alone, if it takes part."""
        return self.interleave(task, self.names(lambda kind: kind.name == OURS), rounds, **given)

    def interleave(self, task: Task, who: Iterable[str], rounds: int = 0, **given: Any) -> Found:
        """Measure in a new process for each contender, in turn; in as many rounds as the session
        has, unless they are given. Returns the rounds of each sample that the task gives. A
        contender that raises is left out from then on."""
        found = Found()
        with ExitStack() as stack:
            workers = {name: stack.enter_context(child(_ANSWER_SECONDS)) for name in who}
            places = {name: self.directory / name for name in workers}
            for _ in range(rounds or self.rounds):
                for name, worker in list(workers.items()):
                    try:
                        samples = _ask(worker, task, name, places[name], given)
                    except ChildError as error:
                        self.fail(name, task, error)
                        del workers[name]
                        continue
                    for key, sample in samples.items():
                        found.note(key, name, sample)
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)
        return found

    def alone(self, task: Task, who: Iterable[str], **given: Any) -> dict[str, Round]:
        """Measure each contender once, in a process that ends with it. One that dies by SIGKILL
        did what it was told, and has no samples; one that raises is left out."""
        found: dict[str, Round] = {}
        for name in who:
            try:
                with child(_ANSWER_SECONDS) as worker, fresh(self.directory) as place:
                    found[name] = _ask(worker, task, name, place, given)
            except ChildError as error:
                if error.status == -signal.SIGKILL:
                    found[name] = {}
                else:
                    self.fail(name, task, error)
        return found
