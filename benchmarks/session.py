"""Drives the workers: one process for each contender, asked in turn, round by round."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.children import module_command
from benchmarks.contender import Contender
from benchmarks.measure import Report, Sample

__all__ = ["Round", "Session", "Worker", "WorkerDied", "WorkerError"]

_ROOT = Path(__file__).resolve().parent.parent
_ANSWER_SECONDS = 120.0

Round = dict[str, Sample]
"""The sample of each contender that was measured, in one round."""


class WorkerError(Exception):
    """The contender raised; the message is its traceback."""


class WorkerDied(WorkerError):
    """The process ended without an answer. ``status`` is its exit status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"the worker ended without an answer (status {status})")


class Worker:
    """A worker process. ``prefix`` is a command to run it under, such as a tracer."""

    def __init__(self, who: str, directory: Path, prefix: Iterable[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [*prefix, *module_command("worker", who, os.path.abspath(directory))],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that a tracer is ended together with what it traces
        )
        self._unread = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def make(self, task: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask({"task": task, "parameters": dict(parameters)})

    def measure(self) -> dict[str, Any]:
        return self._ask({"call": "measure"})

    def finish(self) -> dict[str, Any]:
        return self._ask({"call": "finish"})

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerDied(self._process.wait()) from None
        answer = json.loads(self._line())
        if "error" in answer:
            raise WorkerError(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                self.kill()
                raise WorkerError(f"no answer within {_ANSWER_SECONDS:.0f} s")
            data = os.read(fd, 1 << 16)
            if not data:
                raise WorkerDied(self._process.wait())
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Let the process end by itself; kill it if it will not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it died first, as some tasks have it do
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


class Session:
    """A run: who takes part, where, how often, and where the figures go.

    ``failed`` names the contenders that raised, with the figure; they are left out of that one.
    """

    def __init__(
        self,
        contenders: Mapping[str, type[Contender]],
        directory: Path,
        rounds: int,
        report: Report,
    ) -> None:
        self.contenders = contenders
        self.directory = directory
        self.rounds = rounds
        self.report = report
        self.failed: list[tuple[str, str]] = []
        self._directories = 0
        self._workers: dict[str, Worker] = {}

    def names(self, wanted: Callable[[type[Contender]], bool]) -> list[str]:
        return [name for name, kind in self.contenders.items() if wanted(kind)]

    def comparable(self) -> list[str]:
        """Give the peers that survive a kill: the only ones to be held against."""
        return self.names(lambda kind: kind.role == "peer" and kind.kill_safe)

    def notes(self) -> dict[str, str]:
        return {name: kind.note for name, kind in self.contenders.items()}

    def fresh(self) -> Path:
        """Make a new directory on the disk under test."""
        self._directories += 1
        path = self.directory / f"run-{self._directories}"
        path.mkdir()
        return path

    def fail(self, who: str, what: str, error: WorkerError) -> None:
        self.report.say(f"{what}: {who} left out: {str(error).strip().splitlines()[-1]}")
        if who not in (name for name, _ in self.failed):
            self.report.say(str(error))
        self.failed.append((who, what))

    def worker(self, who: str) -> Worker:
        """Give the contender's worker, which serves it for the whole run."""
        if who not in self._workers:
            self._workers[who] = Worker(who, self.directory / who)
        return self._workers[who]

    def drop(self, who: str) -> None:
        """End a worker that failed; the next figure gets a new one."""
        worker = self._workers.pop(who, None)
        if worker is not None:
            worker.kill()
            worker.end()
            shutil.rmtree(self.directory / who, ignore_errors=True)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()

    def interleave(
        self, what: str, task: str, parameters: Mapping[str, Mapping[str, Any]], rounds: int = 0
    ) -> dict[str, list[Round]]:
        """Prepare the task in each contender's worker, then measure in turn.

        ``parameters`` are those of each contender that takes part; ``rounds`` those of the
        session unless given. Returns the rounds of each sample that the task gives. A contender
        that raises is left out of this figure from then on.
        """
        result: dict[str, list[Round]] = {}
        taking_part = [
            who
            for who, chosen in parameters.items()
            if self._ask(who, what, partial(Worker.make, task=task, parameters=chosen)) is not None
        ]
        for number in range(rounds or self.rounds):
            for who in list(taking_part):
                samples = self._ask(who, what, Worker.measure)
                if samples is None:
                    taking_part.remove(who)
                    continue
                for key, sample in samples.items():
                    measured = result.setdefault(key, [])
                    while len(measured) <= number:
                        measured.append({})
                    measured[number][who] = Sample.from_json(sample)
        for who in taking_part:
            self._ask(who, what, Worker.finish)
        return result

    def _ask(
        self, who: str, what: str, ask: Callable[[Worker], dict[str, Any]]
    ) -> dict[str, Any] | None:
        try:
            return ask(self.worker(who))
        except WorkerError as error:
            self.fail(who, what, error)
            self.drop(who)
            return None
