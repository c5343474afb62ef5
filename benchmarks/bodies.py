"""The messages: 100 bytes each, all distinct, incompressible, and the same in every run."""

from __future__ import annotations

import random

BODY_BYTES = 100
RECORD_BYTES = 165
"""Bytes of one journal record of a 100-byte body: what the floor writes for each message."""

_BLOCK = 10_000


class Bodies:
    """The messages in order. Two of these give the same ones: one to publish, one to compare.

    A block of messages at a time is made, so that a million of them weigh nothing.
    """

    __slots__ = ("_block", "_next", "_pool")

    def __init__(self) -> None:
        self._block = 0
        self._pool: list[bytes] = []
        self._next = 0

    def take(self, count: int) -> list[bytes]:
        """Give the next ``count`` messages."""
        taken: list[bytes] = []
        while len(taken) < count:
            if self._next == len(self._pool):
                self._refill()
            end = min(len(self._pool), self._next + count - len(taken))
            taken += self._pool[self._next : end]
            self._next = end
        return taken

    def _refill(self) -> None:
        data = random.Random(self._block).randbytes(BODY_BYTES * _BLOCK)
        self._pool = [data[at : at + BODY_BYTES] for at in range(0, len(data), BODY_BYTES)]
        self._block += 1
        self._next = 0

    def check(self, delivered: list[bytes]) -> None:
        """Compare what a queue delivered with the next messages of this sequence.

        Raises :class:`RuntimeError`: a queue that delivers anything else is not being measured.
        """
        expected = self.take(len(delivered))
        if delivered != expected:
            at = next(i for i, body in enumerate(delivered) if body != expected[i])
            raise RuntimeError(f"message {at} of {len(delivered)} is not the one published")
