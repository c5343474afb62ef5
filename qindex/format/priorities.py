"""Priorities: which directory of a queue a message belongs to, and its seq_id in the whole queue.

A priority queue has one directory for each priority, as RabbitMQ's has. Each of them is a queue of
its own on disk: it counts its seq_ids from 0, and its files hold these. A user sees one queue, so
the priority is in the top bits of the seq_ids that a user gets::

    bit 63   62 ... 55        54 ... 0
         0 | priority (8)  |  seq_id in the directory of that priority

The seq_ids of priority 0 are those of a queue without priorities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SHIFT: Final = 55
LOW: Final = (1 << SHIFT) - 1
PROPERTY: Final = "priority"
"""RabbitMQ's property of a message that tells its priority."""


def split_seq_id(seq_id: int) -> tuple[int, int]:
    """Return the priority of a message, and its seq_id in the directory of that priority."""
    return seq_id >> SHIFT, seq_id & LOW


def properties_of(seq_id: int) -> dict[str, int]:
    """Return the properties of a message of which its record has no others."""
    priority = seq_id >> SHIFT
    return {PROPERTY: priority} if priority else {}


def priority_of(properties: Mapping[str, Any], highest: int) -> int:
    """Return the priority that a message with these properties has in a queue whose highest one is
    ``highest``: by RabbitMQ's rule a higher one counts as the highest, and none as 0."""
    found = properties.get(PROPERTY)
    if type(found) is not int or found < 0:
        return 0
    return min(found, highest)
