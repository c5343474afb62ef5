"""A process that schedules at its start, as services do, and publishes what is due until SIGTERM.

``python ticker_child.py DIRECTORY SEED``. Before and after each step of a transaction it may kill
itself: between the steps it is so seldom that nobody else would hit these moments.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import qindex
from qindex.client.engine import SharedEngine

SCHEDULES = {"fast": 0.5, "slow": 1.0}
ONE_IN = 20


class Deadly:
    """A transaction whose steps kill the process now and then."""

    def __init__(self, inner: Any, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._inner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._perhaps()
            done = step(*arguments, **options)
            self._perhaps()
            return done

        return call

    def __enter__(self) -> Deadly:
        self._inner.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._perhaps()
        self._inner.__exit__(*ended)
        self._perhaps()

    def _perhaps(self) -> None:
        if not self._rng.randrange(ONE_IN):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    directory, seed = sys.argv[1:]
    rng = random.Random(seed)
    begin = SharedEngine.transaction
    SharedEngine.transaction = lambda engine: Deadly(begin(engine), rng)  # type: ignore
    ended = []
    tickers: list[qindex.Ticker] = []

    def end(*_: object) -> None:
        ended.append(True)
        for one in tickers:
            one.ask_to_stop()

    signal.signal(signal.SIGTERM, end)
    while not ended:
        try:
            with qindex.open(directory, shared=True, linger=5) as engine:
                for name, every in SCHEDULES.items():
                    engine.schedule(name, every=every, queue="ticks", missed="all")
                tickers[:] = [qindex.Ticker(engine)]
                if not ended:
                    tickers[0].run()
        except qindex.DisconnectedError:
            continue  # the server was killed before the ticker ran


if __name__ == "__main__":
    main()
