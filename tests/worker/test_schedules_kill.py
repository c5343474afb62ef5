"""Many processes run tickers on one store, they and the server are killed at any moment, and each
instant is published once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

import qindex
from qindex.worker.cron import SECOND
from qindex.worker.schedules import INSTANT_HEADER, KEY, QUEUE, SCHEDULE_HEADER
from tests.effort import ROTATION, by_tier, chance
from tests.server.support import WAIT, end_server, log_of, server_pid
from tests.worker.ticker_child import SCHEDULES

PROCESSES = by_tier(quick=4, all=8, nightly=8)
KILLS = by_tier(quick=8, all=20, nightly=200)

T = TypeVar("T")


class Tickers:
    """Processes that run tickers, each started again when it was killed, or has killed itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started = 0
        self.died = 0
        self.running = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        child = Path(__file__).with_name("ticker_child.py")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        seed = f"{ROTATION} {self._started}"
        return subprocess.Popen(
            [sys.executable, "-P", os.fspath(child), os.fspath(self._directory), seed],
            env=environment,
        )

    def kill(self, at: int) -> None:
        self.running[at].kill()
        self.running[at].wait(WAIT)
        self.revive()

    def revive(self) -> None:
        """Start those again that have died."""
        for at, process in enumerate(self.running):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL
                self.died += 1
                self.running[at] = self._start()

    def kill_all(self) -> None:
        for process in self.running:
            process.kill()
            process.wait(WAIT)


@pytest.fixture
def tickers(tmp_path: Path) -> Iterator[Tickers]:
    started = Tickers(tmp_path / "data")
    yield started
    started.kill_all()


def until(found: Callable[[], T | None], directory: Path) -> T:
    """Ask until there is an answer, whichever servers are killed meanwhile."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            answer = found()
        except qindex.DisconnectedError:
            answer = None
        if answer is not None:
            return answer
        assert time.monotonic() < deadline, log_of(directory)
        time.sleep(0.01)


def test_each_instant_is_published_once(tmp_path: Path, tickers: Tickers) -> None:
    directory = tmp_path / "data"
    rng = chance("tickers")
    with qindex.open(directory, shared=True, linger=5) as engine:
        ticks = until(lambda: engine.queue("ticks"), directory)

        def has(count: int) -> int | None:
            tickers.revive()
            return len(ticks) if len(ticks) >= count else None

        count = until(partial(has, 2), directory)
        for number in range(KILLS):
            time.sleep(rng.random() * 0.3)
            if number % 4 == 3:
                os.kill(server_pid(directory), signal.SIGKILL)
            else:
                tickers.kill(rng.randrange(PROCESSES))
            count = until(partial(has, count + rng.choice([1, 2, 4])), directory)
        tickers.kill_all()
        found = until(lambda: ticks.get_many(1 << 20) or None, directory)
        for name, every in SCHEDULES.items():
            instants = [
                one.headers[INSTANT_HEADER] for one in found if one.headers[SCHEDULE_HEADER] == name
            ]
            steps = {later - one for one, later in pairwise(instants)}
            assert steps == {round(every * SECOND)}, name
        assert list(engine.schedules()) == list(SCHEDULES)
        assert len(engine.queue(QUEUE).find(KEY)) == len(SCHEDULES)
    assert tickers.died >= KILLS // 4 * 3
    end_server(directory)


def test_many_schedule_the_same_name_at_once(tmp_path: Path) -> None:
    """Each sees one of the definitions; one schedule is left, and nothing of the others."""
    directory = tmp_path / "data"
    engines = [qindex.open(directory, shared=True, linger=0) for _ in range(4)]
    failures: list[BaseException] = []

    def work(at: int) -> None:
        try:
            for number in range(by_tier(quick=10, all=50, nightly=500)):
                made = engines[at].schedule(
                    "s", every=1000 + number % 3, queue="q", body=b"%d" % at
                )
                if number % 5 == 4:
                    made.pause()
                    made.resume()
        except BaseException as error:
            failures.append(error)

    with qindex.Ticker(engines[0]):
        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    assert failures == []
    assert list(engines[0].schedules()) == ["s"]
    assert len(engines[1].queue(QUEUE).find(KEY)) == 1
    for engine in engines:
        engine.close()
    end_server(directory)
