"""Measure how far a follower in another process lags behind a publisher at full speed.

``python -m benchmarks.follow [--count N] [--dir DIR] [--json FILE]``: one process publishes ``N``
small messages one by one as fast as it can, another follows. The lag of a message is the time
from its publishing (its timestamp) to its being given; printed are percentiles and the rates, as
JSON lines and a table. Beside them stands what 99 % of the publisher's own calls took in the same
time, each 64th of which is timed: on a busy machine both wait for a processor.
The bar: 99 % of the messages within 200 ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter, time_ns

import numpy as np

import qindex

__all__ = ["main"]

_BAR_MS = 200.0
_PERCENTILES = (50, 90, 99, 99.9, 100)
_PUBLISH = """
import sys, time, qindex
clock = time.perf_counter
calls = []
with qindex.open(sys.argv[1]) as engine:
    publish = engine.queue("q").publish
    started = clock()
    for number in range(int(sys.argv[2])):
        if number & 63:
            publish(b"x" * 100)
        else:
            began = clock()
            publish(b"x" * 100)
            calls.append(clock() - began)
    took = clock() - started
calls.sort()
print(took, calls[len(calls) * 99 // 100])
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives 0 when the bar is met, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=2_000_000, help="messages")
    parser.add_argument("--dir", type=Path, help="where the store is made")
    parser.add_argument("--json", type=Path, help="write the JSON lines here, too")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        figures, met = _measure(directory, given.count)
    lines = [
        *(json.dumps({"figure": name, "value": value}) for name, value in figures.items()),
        json.dumps({"bar": "99 % of lags below 200 ms", "met": met}),
    ]
    print("\n".join(lines))
    for name, value in figures.items():
        print(f"{name:<24} {value:>14,.2f}")
    if given.json is not None:
        given.json.write_text("".join(line + "\n" for line in lines))
    return 0 if met else 1


def _measure(directory: str, count: int) -> tuple[dict[str, float], bool]:
    command = [sys.executable, "-c", _PUBLISH, directory, str(count)]
    # A list: of what is measured, this loop is to be the smallest part.
    lags: list[int] = []
    add = lags.append
    with (
        qindex.follow(directory, "q", wait=True, timeout=60) as follower,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child,
    ):
        first = follower.get(timeout=60)
        assert first is not None
        started = perf_counter()
        add(time_ns() - first.timestamp)
        for delivery in islice(follower, count - 1):
            add(time_ns() - delivery.timestamp)
        followed = perf_counter() - started
        published, call = map(float, child.communicate(timeout=60)[0].split())
    assert len(lags) == count
    figures = {f"lag_ms_p{p:g}": float(np.percentile(lags, p)) / 1e6 for p in _PERCENTILES}
    figures["publish_us_p99"] = call * 1e6
    figures["published_per_s"] = count / published
    figures["followed_per_s"] = count / followed
    figures["missed"] = float(follower.missed)
    return figures, figures["lag_ms_p99"] <= _BAR_MS


if __name__ == "__main__":
    sys.exit(main())
