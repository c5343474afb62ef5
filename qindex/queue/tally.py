"""Counts of a queue beside its index: rare things, so that the common ones cost nothing."""

from __future__ import annotations

from collections import Counter

from qindex.queue.dead_letter import Reason
from qindex.queue.stats import ByReason


class Tally:
    """Counts of one queue since it was opened; its lock is held for every change.

    ``again``: deliveries of messages that had been delivered before. ``withheld``: messages
    taken off the queue as if for a delivery, and given to no consumer. ``given_up``: messages that
    left without a consumer's ack; ``moved``: those of them that are in the dead-letter queue.
    ``refused``: messages of publishes that found the queue full.
    """

    __slots__ = ("again", "given_up", "moved", "refused", "withheld")

    def __init__(self) -> None:
        self.again: int = 0
        self.withheld: int = 0
        self.refused: int = 0
        self.given_up: Counter[Reason] = Counter()
        self.moved: Counter[Reason] = Counter()


def by_reason(counts: Counter[Reason]) -> ByReason:
    """Return counts as the figures have them."""
    return ByReason(
        rejected=counts["rejected"],
        expired=counts["expired"],
        limit=counts["limit"],
        overflow=counts["overflow"],
    )
