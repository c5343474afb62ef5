"""A process that schedules at its start, as services do, and publishes what is due until SIGTERM.

``python ticker_child.py DIRECTORY``
"""

from __future__ import annotations

import signal
import sys

import qindex

SCHEDULES = {"fast": 0.25, "slow": 0.5}


def main() -> None:
    directory = sys.argv[1]
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
