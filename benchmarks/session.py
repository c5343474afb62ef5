"""Drives the workers: one process for each contender, asked in turn, round by round."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import tasks
from benchmarks.program import child
from benchmarks.report import FLOOR, OURS, Report, Round, Sample
from qindex.compare.child import Child, ChildError
from qindex.compare.contender import Fifo

_ANSWER_SECONDS = 120.0


class Worker:
    """The process of one contender. ``prefix`` is a command to run it under, such as a tracer.

    All that it is asked for raises :class:`ChildError`.
    """

    def __init__(self, who: str, directory: Path, prefix: list[str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._who = who
        self._directory = directory
        self.child: Child = child(prefix or [], _ANSWER_SECONDS)

    def prepare(self, task: type[tasks.Task], parameters: Mapping[str, Any]) -> None:
        self.child.call(
            tasks.prepare,
            who=self._who,
            task=f"{task.__module__}:{task.__name__}",
            directory=self._directory,
            parameters=dict(parameters),
        )

    def measure(self) -> Round:
        samples = self.child.call(tasks.measure)
        return {name: Sample(**sample) for name, sample in samples.items()}

    def finish(self) -> None:
        self.child.call(tasks.finish)


def measure_once(
    who: str,
    directory: Path,
    task: type[tasks.Task],
    parameters: Mapping[str, Any],
    prefix: list[str] | None = None,
) -> Round:
    """Measure a task once, in a process that ends with it."""
    worker = Worker(who, directory, prefix)
    with worker.child:
        worker.prepare(task, parameters)
        return worker.measure()


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
        self._workers: dict[str, Worker] = {}

    def names(self, wanted: Callable[[type[Fifo]], bool]) -> list[str]:
        return [name for name, kind in self.contenders.items() if wanted(kind)]

    def comparable(self) -> list[str]:
        """The peers that survive a kill: the only ones to be held against."""
        return self.names(lambda kind: kind.name not in (OURS, FLOOR) and kind.kill_safe)

    def notes(self) -> dict[str, str]:
        return {name: kind.note for name, kind in self.contenders.items() if name != OURS}

    def fresh(self) -> Path:
        """Make a new directory on the disk under test."""
        self._directories += 1
        path = self.directory / f"run-{self._directories}"
        path.mkdir()
        return path

    def fail(self, who: str, what: str, error: ChildError) -> None:
        self.report.say(f"{what}: {who} left out: {error}")
        if who not in (name for name, _ in self.failed):
            self.report.say(error.trace)
        self.failed.append((who, what))

    def close(self) -> None:
        for worker in self._workers.values():
            worker.child.close()
        self._workers.clear()

    def interleave(
        self,
        what: str,
        task: type[tasks.Task],
        parameters: Mapping[str, Mapping[str, Any]],
        rounds: int = 0,
    ) -> dict[str, list[Round]]:
        """Prepare the task in each contender's worker, then measure in turn.

        ``parameters`` are those of each contender that takes part; ``rounds`` those of the
        session unless given. Returns the rounds of each sample that the task gives. A contender
        that raises is left out of this figure from then on.
        """
        result: dict[str, list[Round]] = {}
        taking_part = list(parameters)

        def ask(who: str, question: Callable[[Worker], Any]) -> Any:
            if who not in self._workers:
                self._workers[who] = Worker(who, self.directory / who)
            try:
                return question(self._workers[who])
            except ChildError as error:
                self.fail(who, what, error)
                taking_part.remove(who)
                # The next figure gets a new worker.
                worker = self._workers.pop(who)
                worker.child.kill()
                worker.child.close()
                shutil.rmtree(self.directory / who, ignore_errors=True)
                return {}

        for who, chosen in parameters.items():
            ask(who, lambda worker, chosen=chosen: worker.prepare(task, chosen))  # type: ignore[misc]
        for number in range(rounds or self.rounds):
            for who in list(taking_part):
                for key, sample in ask(who, Worker.measure).items():
                    measured = result.setdefault(key, [])
                    while len(measured) <= number:
                        measured.append({})
                    measured[number][who] = sample
        for who in list(taking_part):
            ask(who, Worker.finish)
        return result
