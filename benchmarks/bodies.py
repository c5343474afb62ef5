"""The messages: 100 bytes each, all distinct, and the same in every run."""

from __future__ import annotations

import random
from functools import cache
from itertools import cycle, islice

from qindex.compare import load
from qindex.compare.workload import Workload

BODY_BYTES = 100
RECORD_BYTES = 165
"""Bytes of one journal record of a 100-byte body: what the floor writes for each message."""


class Bodies:
    """The messages in order. Two of these give the same ones: one to publish, one to compare."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> list[bytes]:
        """Give the next ``count`` messages."""
        first, make = self._next, _bodies().make
        self._next += count
        return [make(number, 0) for number in range(first, self._next)]

    def check(self, delivered: list[bytes]) -> None:
        """Compare what a queue delivered with the next messages of this sequence.

        Raises :class:`RuntimeError`: a queue that delivers anything else is not being measured.
        """
        expected = self.take(len(delivered))
        if delivered != expected:
            at = next(i for i, body in enumerate(delivered) if body != expected[i])
            raise RuntimeError(f"message {at} of {len(delivered)} is not the one published")


@cache
def _bodies() -> load.Bodies:
    return load.Bodies(Workload(sizes=f"fixed:{BODY_BYTES}"), 0)


def large_bodies(size: int, count: int) -> list[bytes]:
    """Messages of a size, of which every 64 are the same: many must not fill the memory."""
    few = [random.Random(number).randbytes(size) for number in range(64)]
    return list(islice(cycle(few), count))
