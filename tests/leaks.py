"""Objects that a call leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

__all__ = ["left_behind"]

_ROUNDS = 4


def left_behind(work: Callable[[], object], of: Sequence[object]) -> tuple[int, int]:
    """Do the work some times; gives how many blocks of memory there were more after it, and how
    many references more, or fewer, to one of the objects in ``of``: the least of all rounds.

    The interpreter counts the blocks of all threads, and one that another test has left may make
    some at any time. Objects of the work itself come with each round.
    """
    blocks, references = [], []
    for _ in range(_ROUNDS):
        counts = [sys.getrefcount(one) for one in of]
        before = sys.getallocatedblocks()
        work()
        blocks.append(sys.getallocatedblocks() - before)
        grown = zip(of, counts, strict=True)
        references.append(max(abs(sys.getrefcount(one) - count) for one, count in grown))
    return min(blocks), min(references)
