"""The extent of a run: the whole run, and a short one that only shows that all of it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts are in messages. ``seconds`` bounds one measurement, of a slow contender."""

    seconds: float = 0.3
    publish: int = 200_000
    backlogs: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    get_ack: int = 100_000
    get_ack_backlogs: int = 50_000
    batch: int = 10_000
    publish_many: int = 1_000_000
    get_batch: int = 1_000
    get_many: int = 200_000
    large: int = 4_000
    fsync: int = 2_000
    fsync_threads: int = 16
    fsync_each: int = 500
    fsync_many: int = 500_000
    phases_fsync: int = 100
    written: int = 20_000
    at_rest: int = 100_000
    slow_at_rest: int = 20_000
    drain: int = 50_000
    slow_drain: int = 3_000
    drain_seconds: float = 1.5
    million: int = 1_000_000


FULL = Sizes()
QUICK = Sizes(
    seconds=0.03,
    publish=10_000,
    backlogs=(1_000, 10_000),
    get_ack=5_000,
    get_ack_backlogs=5_000,
    batch=10_000,
    publish_many=20_000,
    get_batch=1_000,
    get_many=10_000,
    large=500,
    fsync=100,
    fsync_threads=16,
    fsync_each=10,
    fsync_many=20_000,
    phases_fsync=50,
    written=2_000,
    at_rest=10_000,
    slow_at_rest=1_000,
    drain=10_000,
    slow_drain=300,
    drain_seconds=0.5,
    million=20_000,
)
