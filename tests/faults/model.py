"""What an engine has promised by the calls that returned, and what it may have done by those that
raised.

Bodies start with a number that rises with each message, so that a body tells its place.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

import qindex

__all__ = ["Fate", "QueueModel", "Sent", "number_of"]

_DIGITS = 6


class Fate(enum.Enum):
    """What the model knows of one thing that may have happened to a message."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


def number_of(body: bytes) -> int:
    """Give the number that a body starts with."""
    return int(body[:_DIGITS])


@dataclass
class Sent:
    """One message. ``there``: whether it was published."""

    body: bytes
    there: Fate = Fate.YES
    delivered: Fate = Fate.NO
    acked: Fate = Fate.NO
    transient: bool = False


@dataclass
class QueueModel:
    """One queue. ``highest``: of the seq_ids that were given out. ``failed``: a deletion has
    failed, its object is of no use any more. ``halves``: what was in it at each of those."""

    name: str
    sent: dict[int, Sent] = field(default_factory=dict)
    highest: int = -1
    failed: bool = False
    halves: list[set[int]] = field(default_factory=list)

    def published(self, bodies: Iterable[bytes], seqs: Iterable[int], *, transient: bool) -> None:
        """A publish has returned."""
        for body, seq in zip(bodies, seqs, strict=True):
            assert seq > self.highest, f"{self.name}: seq_id {seq} was given out before"
            self.highest = seq
            self.sent[number_of(body)] = Sent(body, transient=transient)

    def may_have_published(self, bodies: Iterable[bytes], *, transient: bool) -> None:
        """A publish has raised."""
        for body in bodies:
            self.sent[number_of(body)] = Sent(body, Fate.MAYBE, transient=transient)

    def restarted(self) -> None:
        """The engine was opened again: transient messages have ended."""
        for sent in self.sent.values():
            if sent.transient:
                sent.acked = Fate.YES

    def took(self, deliveries: Iterable[qindex.Delivery]) -> None:
        """Deliveries came: they must be right, whatever failed before."""
        for one in deliveries:
            sent = self.sent[number_of(one.body)]
            assert one.body == sent.body
            assert sent.acked is not Fate.YES, f"{self.name}: {one.body[:20]!r} was acknowledged"
            if one.redelivered:
                assert sent.delivered is not Fate.NO, f"{self.name}: {one.body[:20]!r} is new"
            sent.there = Fate.YES
            sent.delivered = Fate.YES

    def may_have_delivered(self) -> None:
        """A delivery has raised: any message may have been marked."""
        for sent in self.sent.values():
            if sent.delivered is Fate.NO:
                sent.delivered = Fate.MAYBE

    def settled(self, bodies: Iterable[bytes], acked: Fate) -> None:
        """Acks have returned, or raised (``MAYBE``)."""
        for body in bodies:
            sent = self.sent[number_of(body)]
            if sent.acked is not Fate.YES:
                sent.acked = acked

    def delete(self, done: Fate) -> None:
        """The queue was deleted, or may have been: then all of it is there, or nothing."""
        if done is Fate.MAYBE:
            self.halves.append(self._must())
        self.settled([sent.body for sent in self.sent.values()], done)
        self.highest = -1

    def _must(self) -> set[int]:
        return {
            number
            for number, sent in self.sent.items()
            if sent.there is Fate.YES and sent.acked is Fate.NO and not sent.transient
        }

    def holds(self, found: list[tuple[int, bytes, bool]]) -> None:
        """Compare with all that a queue held after a restart: seq_id, body, redelivered."""
        where = f"queue {self.name}"
        numbers = [number_of(body) for _, body, _ in found]
        assert numbers == sorted(set(numbers)), f"{where}: out of order: {numbers}"
        seqs = [seq for seq, _, _ in found]
        assert seqs == sorted(set(seqs)), f"{where}: seq_ids out of order: {seqs}"
        for _, body, redelivered in found:
            sent = self.sent.get(number_of(body))
            assert sent is not None, f"{where}: {body[:20]!r} was never published there"
            assert sent.body == body, f"{where}: {body[:20]!r} is not what was published"
            assert not sent.transient, f"{where}: {body[:20]!r} was transient"
            assert sent.acked is not Fate.YES, f"{where}: {body[:20]!r} was acknowledged"
            if sent.delivered is not Fate.MAYBE:
                delivered = sent.delivered is Fate.YES
                assert redelivered == delivered, f"{where}: {body[:20]!r}: {redelivered=}"
        lost = self._must().difference(numbers)
        assert not lost, f"{where}: lost {sorted(lost)}"
        for half in self.halves:
            assert len(half.intersection(numbers)) in (0, len(half)), f"{where}: deleted in part"
