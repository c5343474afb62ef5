"""Priorities from -100 to 100, as other libraries have them, in a queue whose lowest one is 0."""

from __future__ import annotations

LOWEST, HIGHEST = -100, 100
LEVELS = HIGHEST - LOWEST
"""The ``max_priority`` of such a queue."""


def level_of(priority: float | None) -> int:
    """Return the priority in the queue; what lies outside the range counts as its end.

    >>> level_of(None), level_of(-100), level_of(1000)
    (100, 0, 200)
    """
    return min(max(round(priority or 0), LOWEST), HIGHEST) - LOWEST
