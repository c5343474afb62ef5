"""The extent of a run: the whole run, and a short one that only shows that all of it works."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Sizes"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts are in messages. ``seconds`` bounds one measurement, of a slow contender."""

    seconds: float
    publish: int
    backlogs: tuple[int, ...]
    get_ack: int
    get_ack_backlogs: int
    batch: int
    publish_many: int
    get_batch: int
    get_many: int
    large: int
    fsync: int
    fsync_threads: int
    fsync_each: int
    fsync_many: int
    phases_fsync: int
    phases_os: int
    written: int
    at_rest: int
    slow_at_rest: int
    drain: int
    slow_drain: int
    drain_seconds: float
    million: int


FULL = Sizes(
    seconds=0.3,
    publish=200_000,
    backlogs=(1_000, 10_000, 100_000, 1_000_000),
    get_ack=100_000,
    get_ack_backlogs=50_000,
    batch=10_000,
    publish_many=1_000_000,
    get_batch=1_000,
    get_many=200_000,
    large=4_000,
    fsync=2_000,
    fsync_threads=16,
    fsync_each=500,
    fsync_many=500_000,
    phases_fsync=100,
    phases_os=500,
    written=20_000,
    at_rest=100_000,
    slow_at_rest=20_000,
    drain=50_000,
    slow_drain=3_000,
    drain_seconds=1.5,
    million=1_000_000,
)

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
    phases_os=100,
    written=2_000,
    at_rest=10_000,
    slow_at_rest=1_000,
    drain=10_000,
    slow_drain=300,
    drain_seconds=0.5,
    million=20_000,
)
