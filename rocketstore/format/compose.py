"""Compose the fields of a record from the arguments of a put: topic, queue id and properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from journal.errors import UsageError
from rocketstore.format.commitlog_format import COMMIT, TRANSACTION_MASK
from rocketstore.format.delay import MAX_LEVEL, SCHEDULE_TOPIC, delay_level, schedule
from rocketstore.format.properties import (
    DELAY,
    KEYS,
    PROPERTIES_MAX,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
    join_keys,
)


class Delivered(bytes):
    """Properties of a delayed message that is put where it belongs: their delay is over."""


def compose(
    topic: str,
    queue_id: int,
    properties: Mapping[str, str] | bytes | None,
    tags: str | None,
    keys: str | Iterable[str] | None,
    unique_key: str | None,
    delay: int | None,
    sys_flag: int,
) -> tuple[str, int, bytes, Mapping[str, str], int]:
    """Topic, queue, properties as bytes and by name, and level of delay of a message."""
    if isinstance(properties, bytes):
        data, found = take_raw(properties, tags, keys, unique_key, delay)
    else:
        data, found = b"", dict(properties) if properties else {}
        if tags:
            found[TAGS] = tags
        if keys:
            found[KEYS] = join_keys(keys)
        if unique_key:
            found[UNIQ_KEY] = unique_key
        if delay is not None:
            if not 1 <= delay <= MAX_LEVEL:
                raise UsageError(f"delay {delay}: a level from 1 to {MAX_LEVEL} is right")
            found[DELAY] = str(delay)
    level = 0
    if isinstance(properties, Delivered):
        return topic, queue_id, data, found, level
    if DELAY in found and sys_flag & TRANSACTION_MASK in (0, COMMIT):
        level = delay_level(found)
        if level and topic != SCHEDULE_TOPIC:
            topic, queue_id, found = schedule(found, level, topic, queue_id)
            data = b""
    return topic, queue_id, data or encode_properties(found), found, level


def take_raw(data: bytes, *named: object) -> tuple[bytes, dict[str, str]]:
    """Check properties given as bytes; return them, and by name. Raises :class:`UsageError`."""
    if any(named):
        raise UsageError("properties given as bytes can't be joined with tags, keys or a delay")
    if len(data) > PROPERTIES_MAX:
        raise UsageError(f"properties of {len(data)} bytes: the limit is {PROPERTIES_MAX}")
    if b"\0" in data:
        raise UsageError("properties hold NUL")
    return data, decode_properties(data)


def raw_properties(properties: Mapping[str, str] | bytes) -> bytes:
    """The bytes of properties given by name, or as bytes already. Raises :class:`UsageError`."""
    if isinstance(properties, bytes):
        return bytes(take_raw(properties)[0])
    return encode_properties(properties)


def join_properties(own: bytes, shared: bytes) -> bytes:
    """A message's own properties and those of its batch, as RocketMQ joins them."""
    if own and not own.endswith(b"\x02"):
        return own + b"\x02" + shared
    return own + shared
