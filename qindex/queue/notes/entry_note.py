"""The notes of a queue on one entry until it is acknowledged, beside its state in the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qindex.format.entries import Entry
    from qindex.queue.delivery import Delivery


@dataclass(slots=True)
class Lease:
    """A lease, with all that gives its message back: ``delivery`` loses it (``None``: one of a
    batch, which finds out by itself); ``count``: how often the message was delivered, this time
    included."""

    ends: float
    seq_id: int
    body: bytes
    extra: int | Entry
    count: int
    delivery: Delivery | None


class EntryNote:
    """The note on one entry. Most entries have none: a plain first delivery needs no note.

    ``nacked_at``: the number of the nack that gave the entry back last. It tells an older batch
    that the entry is not its own any more. 0: it was not given back.
    ``lapsed_at``: the number of the nack at which its lease ran out; -1: none did.
    ``deliveries``: how often it was delivered, as far as this is counted; -1: it is not.
    ``forgiven``: it is with a consumer, and this delivery does not count.
    ``due``: when it was due, in microseconds since 1970; 0: it was not delayed, or waits for it.
    ``msg_id``: its id in the message store, if it was delivered from there.
    ``lease``: the lease of its delivery.
    """

    __slots__ = ("deliveries", "due", "forgiven", "lapsed_at", "lease", "msg_id", "nacked_at")

    def __init__(self) -> None:
        self.nacked_at: int = 0
        self.lapsed_at: int = -1
        self.deliveries: int = -1
        self.forgiven: bool = False
        self.due: int = 0
        self.msg_id: bytes | None = None
        self.lease: Lease | None = None


def next_count(note: EntryNote | None) -> int:
    """Return the count of the next delivery of an entry; 0 where it is not noted."""
    return 0 if note is None else note.deliveries + 1
