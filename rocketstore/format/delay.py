"""Delayed messages: levels, and where a delayed message waits.

A message with property DELAY is stored in topic SCHEDULE_TOPIC_XXXX, queue ``level - 1``, with its
own topic and queue in REAL_TOPIC and REAL_QID; the ConsumeQueue unit then carries the time to
deliver it in place of the tag hash. When that time has come it is put again where it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from journal.errors import UsageError
from rocketstore.format.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAY_SECONDS = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200
)  # fmt: skip
"""Seconds of levels 1 to 18."""
MAX_LEVEL = len(DELAY_SECONDS)
_LEVEL = re.compile(r"[0-9]{1,10}")


def deliver_time(level: int, store_timestamp: int) -> int:
    """When a message of this level, stored at this time (ms), is due (ms): a 64-bit number, which
    a damaged time can make wrap around."""
    due = store_timestamp + DELAY_SECONDS[min(level, MAX_LEVEL) - 1] * 1000
    return (due + (1 << 63)) % (1 << 64) - (1 << 63)


def is_due(due: int, level: int, now: int) -> bool:
    """Return whether a message of this level is to be delivered now (ms). A message that is due
    later than its level allows was stored while the clock was ahead: RocketMQ delivers it at
    once."""
    return due <= now or due > now + DELAY_SECONDS[level - 1] * 1000


def level_of(text: str) -> int:
    """Return the level that a stored DELAY property asks for; 0 if its text is not a level."""
    return int(text) if _LEVEL.fullmatch(text) else 0


def delay_level(properties: Mapping[str, str]) -> int:
    """The level a message asks for, at most 18; 0 for none. Raises :class:`UsageError`."""
    text = properties.get(DELAY)
    if text is None:
        return 0
    try:
        level = int(text)
    except ValueError as error:
        raise UsageError(f"property DELAY is {text!r}: a level from 1 to 18 is right") from error
    return min(max(level, 0), MAX_LEVEL)


def schedule(
    properties: Mapping[str, str], level: int, topic: str, queue_id: int
) -> tuple[str, int, dict[str, str]]:
    """Topic, queue and properties under which a message waits. The stored level is clamped."""
    changed = dict(properties)
    changed[DELAY] = str(level)
    changed[REAL_TOPIC] = topic
    changed[REAL_QUEUE_ID] = str(queue_id)
    return SCHEDULE_TOPIC, level - 1, changed
