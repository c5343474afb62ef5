"""The order in which a thread takes the locks of a store (:mod:`journal.lock_order`)."""

from __future__ import annotations

from enum import IntEnum


class Place(IntEnum):
    """The places in the order."""

    GROUP = 0
    """Leading a group commit."""
    CHECKPOINT = 1
    SYNC = 2
    """Held while the disk works."""
    STORE = 3
