"""Measure how far a follower in another process lags behind a publisher at full speed.

One process publishes small messages one by one as fast as it can, another follows. The lag of a
message is the time from its publishing (its timestamp) to its being given. The bar: 99 % of the
messages within 50 ms. Beside it stands the 99th percentile of a plain write that the publisher
makes now and then, of as many bytes: the disk's part in the lag.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import islice
from time import perf_counter, time_ns

import numpy as np

import qindex
from benchmarks.bodies import RECORD_BYTES
from benchmarks.program import child, common_parser, parse_common, reporting

_BAR_MS = 50.0
_PERCENTILES = (50, 90, 99, 99.9, 100)


def publish(store: str, beside: str, count: int) -> tuple[float, list[float]]:
    """Publish one by one; return the seconds of it, and those of the plain writes beside it."""
    record, writes = bytes(RECORD_BYTES), []
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT)
    with qindex.open(store) as engine:
        publish = engine.queue("q").publish
        started = perf_counter()
        for number in range(count):
            publish(b"x" * 100)
            if not number % 1000:
                before = perf_counter()
                os.write(fd, record)
                writes.append(perf_counter() - before)
        return perf_counter() - started, writes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    parser = common_parser("follow", __doc__)
    parser.add_argument("--count", type=int, default=2_000_000, help="messages")
    given = parse_common(parser, arguments)
    count = given.count
    # A list: of what is measured, this loop is to be the smallest part.
    lags: list[int] = []
    add = lags.append
    with reporting(given) as (report, directory):
        store = str(directory / "store")
        with qindex.follow(store, "q", wait=True, timeout=60) as follower, child() as publisher:
            publisher.start(publish, store=store, beside=directory / "plain writes", count=count)
            first = follower.get(timeout=60)
            assert first is not None
            started = perf_counter()
            add(time_ns() - first.timestamp)
            for delivery in islice(follower, count - 1):
                add(time_ns() - delivery.timestamp)
            followed = perf_counter() - started
            published, writes = publisher.result()
        assert len(lags) == count
        for percent in _PERCENTILES:
            report.add_one(f"lag_ms_p{percent:g}", float(np.percentile(lags, percent)) / 1e6, "ms")
        report.add_one("plain_write_ms_p99", float(np.percentile(writes, 99)) * 1e3, "ms")
        report.add_one("published_per_s", count / published, "msg/s", "high")
        report.add_one("followed_per_s", count / followed, "msg/s", "high")
        report.add_one("missed", follower.missed, "msg")
        report.hold_most("99 % of the lags of a follower", "lag_ms_p99", _BAR_MS, "ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
