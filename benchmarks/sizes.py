"""The extent of a run: the whole run, and a short one that only shows that all of it works."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


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

    def quick(self) -> Sizes:
        """The same, a twentieth of it, at the two smallest backlogs."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        less = {
            name: value // 20 if isinstance(value, int) else value / 10
            for name, value in kept.items()
            if name not in ("backlogs", "batch", "get_batch", "fsync_threads")
        }
        return replace(self, backlogs=self.backlogs[:2], **less)
