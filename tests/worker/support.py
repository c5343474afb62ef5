"""Run workers in threads of the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import qindex
from qindex.worker import Figures, Worker
from tests.waiting import WAIT

QUICK: dict[str, Any] = {"retries": 2, "backoff": "exponential:0.02:0.1"}


class Running:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.result: Figures | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.worker.run()
        except BaseException as error:
            self.error = error

    def join(self) -> Figures:
        self.thread.join(WAIT)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@contextmanager
def running(queue: qindex.AnyQueue, handler: Any, **options: Any) -> Iterator[Running]:
    """Have a worker run in the block, and stop it at its end."""
    found = Running(Worker(queue, handler, **options))
    try:
        yield found
    finally:
        found.worker.stop()
        found.thread.join(WAIT)


def letters(engine: qindex.AnyEngine, name: str = "q.failed") -> dict[bytes, dict[str, Any]]:
    """Give the dead letters by their bodies, each with the entry of its last death."""
    found = {}
    # A server moves letters beside its calls.
    for letter in engine.queue(name).consume(timeout=0.5):
        found[letter.body] = letter.headers["x-death"][0]
        letter.ack()
    return found


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
