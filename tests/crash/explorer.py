"""The explorer: every state of a recorded workload is opened, recovery is crashed in its turn, and
what is found is held against the promises of the moment.

A state is known by a hash of its names and bytes. It is opened once, however many moments of the
workload it belongs to; what was found is held against the promises of each of these moments.
Workloads may share what opening gave (:class:`Known`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tests.crash.disk import Data, Disk, Name, Note, Operation
from tests.crash.driver import ALL_ARE_DUE, Workload, record
from tests.crash.ledger import Outcome, Promise, violations
from tests.crash.opening import Opened, open_as_user, verified
from tests.crash.states import Bounds, State, kill_states, power_states
from tests.memory_fs import MemoryFileSystem
from tests.recording_fs import RecordingFileSystem

__all__ = ["Explorer", "Failure", "Known", "Limits", "Report"]

_BOOTS = (b"one boot", b"another boot", b"a third boot")
Promises = dict[str, Promise]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far to go. ``bounds``: of one point. ``power``: at one of so many points a loss of power
    is tried; the death of the process is at each. ``second``: of each so many steps of a recovery
    one is crashed (0: none). ``goes_on``: one of so many states is used further. ``verify``: one of
    so many states is verified before it is opened. ``turn``: which
    ones these are. ``seconds``: of CPU for a workload, at the most. ``failures``: after so many a
    workload is given up."""

    bounds: Bounds = field(default_factory=Bounds)
    power: int = 1
    second: int = 1
    goes_on: int = 16
    verify: int = 16
    turn: int = 0
    seconds: float = 1e9
    failures: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A state that breaks a promise: where, how it came about, what it breaks."""

    workload: Workload
    point: int
    operation: str
    how: str
    what: tuple[str, ...]

    def __str__(self) -> str:
        broken = "\n    ".join(self.what)
        return (
            f"{self.workload.name}, after operation {self.point} ({self.operation}), "
            f"{self.how}:\n    {broken}"
        )


@dataclass(slots=True)
class Report:
    """What came of one workload: points, states that were new, all that were opened, failures."""

    workload: Workload
    points: int = 0
    distinct: int = 0
    opened: int = 0
    checks: int = 0
    seconds: float = 0.0
    complete: bool = True
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Second:
    """A crash of a recovery: ``how`` it came about, the key of its state, and which run of the
    system opens that."""

    how: str
    key: int
    boot: int


@dataclass(slots=True)
class Known:
    """What opening gave, by a state's key and the run of the system that opened it.

    For workloads whose options differ in their durability alone, one after the other: many of
    their states are the same to the byte, and an open reads no durability. Each is held against
    the promises of both. ``seconds``: the crashes of its recovery.
    """

    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    seconds: dict[tuple[int, int], list[_Second]] = field(default_factory=dict)


class Explorer:
    """Explores workloads, and knows what it has seen.

    ``distinct``: states with different names or bytes, in all. ``known``: what an explorer of
    other workloads has opened, and is not opened again.
    """

    def __init__(self, limits: Limits, known: Known | None = None) -> None:
        self.limits = limits
        self._shared = known
        self.explored: list[Workload] = []
        self._seen: set[int] = set()
        self._outcomes: dict[tuple[int, int, bool], tuple[tuple[str, Outcome], ...]] = {}
        self._interned: dict[Outcome, Outcome] = {}

    @property
    def distinct(self) -> int:
        return len(self._seen)

    @property
    def keys(self) -> Set[int]:
        """Of the distinct states."""
        return self._seen

    def explore(self, workload: Workload) -> Report:
        """Explore one workload until it is done, or its time is up, or it has failed enough.

        The engine's log, of what it repairs, is off meanwhile.
        """
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with mock.patch("qindex.queue.run_clock.time_ns", return_value=ALL_ARE_DUE):
                return self._explore(workload)
        finally:
            logging.disable(before)

    def _explore(self, workload: Workload) -> Report:
        report = Report(workload)
        started, cpu = time.perf_counter(), time.process_time()
        self.explored.append(workload)
        before = len(self._seen)
        self._outcomes.clear()
        self._known = Known() if self._shared is None else self._shared
        fs, driver = record(workload)
        if driver.problems:
            found = tuple(driver.problems)
            report.failures.append(Failure(workload, 0, "", "without any crash", found))
        disk = fs.start.copy()
        promises: Promises = {}
        checked: set[tuple[int, bool, int]] = set()
        for point, operation in enumerate(fs.log, 1):
            disk.take(operation)
            if isinstance(operation, Note):
                assert isinstance(operation.what, dict)
                promises = operation.what
                disk.notes.clear()
            elif not isinstance(operation, Data | Name):
                continue  # a sync takes possibilities away, and promises nothing yet
            report.points += 1
            for state in self._states(disk, operation, report.points):
                seen = (state.key, state.kill, id(promises))
                if seen in checked:
                    continue
                checked.add(seen)
                what = self._check(state, promises, workload.options, report)
                if what is not None:
                    how, found = what
                    label = f"{state.how}{how}"
                    name = str(operation)[:120]
                    report.failures.append(Failure(workload, point, name, label, found))
                    if len(report.failures) >= self.limits.failures:
                        break
            out_of_time = time.process_time() - cpu > self.limits.seconds
            if out_of_time or len(report.failures) >= self.limits.failures:
                report.complete = False
                break
        # The promises are kept alive by the log, so that their ids are theirs alone.
        del fs
        report.distinct = len(self._seen) - before
        report.seconds = time.perf_counter() - started
        return report

    def _states(self, disk: Disk, operation: Operation, point: int) -> Iterator[State]:
        yield from kill_states(disk, operation if isinstance(operation, Data) else None)
        if self._is_chosen(point, self.limits.power):
            yield from power_states(disk, self.limits.bounds)

    def _is_chosen(self, number: int, one_of: int) -> bool:
        return (number + self.limits.turn) % one_of == 0

    def _check(
        self, state: State, promises: Promises, options: dict[str, Any], report: Report
    ) -> tuple[str, tuple[str, ...]] | None:
        report.checks += 1
        key = (state.key, 0, state.kill)
        outcomes = self._outcomes.get(key)
        if outcomes is None:
            outcomes = self._outcomes[key] = tuple(self._open(state, options, report))
        for how, outcome in outcomes:
            later_power = "into recovery" in how and not how.endswith(", kill")
            found = violations(promises, outcome, state.kill, later_power)
            if found:
                return how, tuple(found)
        return None

    def _open(
        self, state: State, options: dict[str, Any], report: Report
    ) -> Iterator[tuple[str, Outcome]]:
        """Open a state, and each that a crash of its recovery leaves; gives the different
        outcomes, with the way to the first of each kind."""
        boot = 0 if state.kill else 1
        self._seen.add(state.key)
        known = self._remembered(state.key, boot)
        given = self._opened(state, boot, options, report) if known is None else known
        found: dict[Outcome, str] = {}
        for how, outcome in given:
            found.setdefault(outcome, how)
        for outcome, how in found.items():
            yield how, self._interned.setdefault(outcome, outcome)

    def _remembered(self, key: int, boot: int) -> list[tuple[str, Outcome]] | None:
        """Give what :meth:`_opened` would, or ``None`` where not all of it is known."""
        known = self._known
        if (key, boot) not in known.seconds:
            return None
        given = [("", known.outcomes[key, boot])]
        new = [one for one in known.seconds[key, boot] if one.key not in self._seen]
        for one in new:
            outcome = known.outcomes.get((one.key, one.boot))
            if outcome is None:
                return None
            given.append((one.how, outcome))
        self._seen.update(one.key for one in new)
        return given

    def _opened(
        self, state: State, boot: int, options: dict[str, Any], report: Report
    ) -> Iterator[tuple[str, Outcome]]:
        memory = MemoryFileSystem(state.files, state.directories, boot=_BOOTS[boot])
        fs = RecordingFileSystem("/", memory)
        report.opened += 1
        steps = 0
        wrong = verified(memory) if self._is_chosen(state.key, self.limits.verify) else ""
        try:
            opened = Opened(open_as_user(fs, options), options)
        except Exception as error:
            outcome = Outcome(error=f"open: {type(error).__name__}: {error}")
        else:
            steps = len(fs.log)
            outcome = opened.look()
            if not outcome.error and self._is_chosen(state.key, self.limits.goes_on):
                outcome = self._goes_on(fs, opened, outcome)
        if wrong:
            outcome = Outcome(error=wrong)
        self._known.outcomes[state.key, boot] = outcome
        yield "", outcome
        seconds = self._known.seconds[state.key, boot] = []
        if steps and self.limits.second:
            yield from self._second(fs, steps, state.key, boot, options, report, seconds)

    def _goes_on(self, fs: RecordingFileSystem, opened: Opened, outcome: Outcome) -> Outcome:
        problem = opened.goes_on(fs)
        return Outcome(error=problem) if problem else outcome

    def _second(
        self,
        fs: RecordingFileSystem,
        steps: int,
        key: int,
        boot: int,
        options: dict[str, Any],
        report: Report,
        seconds: list[_Second],
    ) -> Iterator[tuple[str, Outcome]]:
        """Crash the recovery behind each of its steps, once in one way, and recover again.
        ``seconds`` gets all of these crashes."""
        disk = fs.start.copy()
        for step in range(1, steps + 1):
            disk.take(fs.log[step - 1])
            if not self._is_chosen(key + step, self.limits.second):
                continue
            state = self._second_state(disk, key + step)
            how = f"; then, {step} operations into recovery, {state.how}"
            again = boot if state.kill else boot + 1
            seconds.append(_Second(how, state.key, again))
            if state.key in self._seen:
                continue
            self._seen.add(state.key)
            outcome = self._known.outcomes.get((state.key, again))
            if outcome is None:
                outcome = self._open_second(state, again, options, report)
                self._known.outcomes[state.key, again] = outcome
            yield how, outcome

    def _open_second(
        self, state: State, boot: int, options: dict[str, Any], report: Report
    ) -> Outcome:
        report.opened += 1
        memory = MemoryFileSystem(state.files, state.directories, boot=_BOOTS[boot])
        try:
            return Opened(open_as_user(memory, options), options).look()
        except Exception as error:
            return Outcome(error=f"open: {type(error).__name__}: {error}")

    @staticmethod
    def _second_state(disk: Disk, way: int) -> State:
        """One of the ways in which things are after a crash: all done; nothing that was pending;
        names without data; data without names."""
        if way % 4 == 0:
            return next(kill_states(disk, None))
        simple = disk.copy()
        simple.data = [] if way % 4 in (1, 2) else disk.data
        simple.changes = [] if way % 4 in (1, 3) else disk.changes
        state = next(kill_states(simple, None))
        how = ("", "nothing pending done", "names done alone", "data done alone")[way % 4]
        return State(how, False, state.files, state.directories, state.key)
