"""Measure how far a follower in another process lags behind a publisher at full speed.

``python -m benchmarks.follow [--count N] [--dir DIR] [--json FILE]``: one process publishes ``N``
small messages one by one as fast as it can, another follows. The lag of a message is the time
from its publishing (its timestamp) to its being given; printed are percentiles and the rates, as
JSON lines and a table. The bar: 99 % of the messages within 50 ms. Beside it stands the 99th
percentile of a plain write that the publisher makes now and then, of as many bytes: the disk's
part in the lag.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter, time_ns

import numpy as np

import qindex
from benchmarks.contender import RECORD_BYTES
from benchmarks.measure import Bar

__all__ = ["main"]

_BAR_MS = 50.0
_PERCENTILES = (50, 90, 99, 99.9, 100)
_PUBLISH = f"""
import json, os, sys, qindex
from time import perf_counter
record, writes = bytes({RECORD_BYTES}), []
fd = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT)
with qindex.open(sys.argv[1]) as engine:
    publish = engine.queue("q").publish
    started = perf_counter()
    for number in range(int(sys.argv[2])):
        publish(b"x" * 100)
        if not number % 1000:
            before = perf_counter()
            os.write(fd, record)
            writes.append(perf_counter() - before)
    took = perf_counter() - started
print(json.dumps([took, writes]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=2_000_000, help="messages")
    parser.add_argument("--dir", type=Path, help="where the store is made")
    parser.add_argument("--json", type=Path, help="write the JSON lines here, too")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        figures = _measure(directory, given.count)
    bar = Bar.at_most("99 % of the lags of a follower", figures["lag_ms_p99"], _BAR_MS, "ms")
    lines = [
        *(json.dumps({"figure": name, "value": value}) for name, value in figures.items()),
        json.dumps(bar.to_json()),
    ]
    print("\n".join(lines))
    for name, value in figures.items():
        print(f"{name:<24} {value:>14,.2f}")
    if given.json is not None:
        given.json.write_text("".join(line + "\n" for line in lines))
    return 0


def _measure(directory: str, count: int) -> dict[str, float]:
    store, beside = os.path.join(directory, "store"), os.path.join(directory, "plain writes")
    command = [sys.executable, "-P", "-c", _PUBLISH, store, str(count), beside]
    # A list: of what is measured, this loop is to be the smallest part.
    lags: list[int] = []
    add = lags.append
    with (
        qindex.follow(store, "q", wait=True, timeout=60) as follower,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child,
    ):
        first = follower.get(timeout=60)
        assert first is not None
        started = perf_counter()
        add(time_ns() - first.timestamp)
        for delivery in islice(follower, count - 1):
            add(time_ns() - delivery.timestamp)
        followed = perf_counter() - started
        published, writes = json.loads(child.communicate(timeout=60)[0])
    assert len(lags) == count
    figures = {f"lag_ms_p{p:g}": float(np.percentile(lags, p)) / 1e6 for p in _PERCENTILES}
    figures["plain_write_ms_p99"] = float(np.percentile(writes, 99)) * 1e3
    figures["published_per_s"] = count / published
    figures["followed_per_s"] = count / followed
    figures["missed"] = float(follower.missed)
    return figures


if __name__ == "__main__":
    sys.exit(main())
