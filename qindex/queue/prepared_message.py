"""Messages that are ready to be appended, and the objects that take note of an append."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message ready to be appended. ``record``: the bytes that the index embeds (empty: none);
    ``stored``: those for the message store; ``sealed``: whether ``record`` needs no checksum."""

    msg_id: bytes
    size: int
    record: bytes
    stored: bytes | None
    sealed: bool


class Notes(Protocol):
    """Notes that are taken elsewhere of an append, with the queue's lock held."""

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        """The messages are about to get the seq_ids from ``first`` on."""

    def after(self) -> None:
        """They have them."""
