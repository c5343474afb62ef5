"""Answers: messages of a queue, messages by key, offsets by time, as RocketMQ 4.9.3 gives them.

Plain functions over the parts of a store; the store holds its lock around them.
"""

from __future__ import annotations

import enum
import os
import struct
from dataclasses import dataclass
from functools import lru_cache

from rocketstore.commitlog_format import BODY_LENGTH_AT
from rocketstore.consumequeue import ConsumeQueue
from rocketstore.consumequeue_format import UNIT, UNIT_SIZE
from rocketstore.javahash import hash_code, index_hash
from rocketstore.message import StoredMessage
from rocketstore.parts import Parts

__all__ = [
    "TIME_MAX",
    "GetResult",
    "GetStatus",
    "get_messages",
    "message_at",
    "offset_by_time",
    "offset_by_time_as_rocketmq",
    "query_exact",
    "query_message",
    "scan_page",
    "tag_codes",
]

TIME_MAX = (1 << 63) - 1
MAX_MESSAGES = 32
MAX_BYTES = 256 << 10
_DISK_MESSAGES = 8
_DISK_BYTES = 64 << 10
_FILTER_BYTES = 16000
_QUERY_ROUNDS = 3
_PAGE_UNITS = 256
_long = struct.Struct(">q").unpack_from
_KEYS_FIRST = b"KEYS\x01"
_int = struct.Struct(">i").unpack_from


class GetStatus(enum.Enum):
    """What became of a request for messages: RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class GetResult:
    """``next_offset`` is where to go on; ``min_offset`` and ``max_offset`` bound the queue."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage]


@lru_cache(maxsize=256)
def tag_codes(expression: str | None) -> frozenset[int] | None:
    """Hashes of the tags of ``"A || B"``; ``None`` for all messages (``"*"``, empty, ``None``)."""
    if expression is None or expression in ("", "*"):
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    return frozenset(hash_code(tag) for tag in tags if tag)


@lru_cache(maxsize=1)
def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def get_messages(
    parts: Parts,
    topic: str,
    queue_id: int,
    offset: int,
    max_num: int,
    tags: str | None,
    *,
    most: int = MAX_MESSAGES,
    max_bytes: int = MAX_BYTES,
) -> GetResult:
    """Messages of a queue from an ordinal on: ``getMessage`` of the real store.

    ``most`` and ``max_bytes`` are its caps on one answer; both are a quarter when the messages
    lie further behind the log's end than 40 % of the machine's memory.
    """
    queue = parts.queues.get((topic, queue_id))
    maximum = queue.max_offset if queue is not None else 0
    minimum = queue.min_offset if queue is not None else 0
    if queue is None or maximum == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum, [])
    if offset < minimum:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum, [])
    if offset == maximum:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum, [])
    if offset > maximum:
        after = minimum if minimum == 0 else maximum
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, after, minimum, maximum, [])
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum, [])
    codes = tag_codes(tags)
    window = max(_FILTER_BYTES, max_num * UNIT_SIZE) // UNIT_SIZE
    # Without a filter no more units than messages are needed (and one to see that it is full).
    step = min(window, max_num + 1) if codes is None else window
    data = queue.read(offset, max(step, 1))
    if not data:
        result.status = GetStatus.OFFSET_FOUND_NULL
        result.next_offset = queue.next_file_unit(offset)
        return result
    if codes is None:
        consumed = _take_all(parts, data, result, min(most, max_num), max_bytes)
        if consumed:
            result.next_offset = offset + consumed
            return result
    consumed = _walk_units(parts, data, codes, result, min(most, max_num), max_bytes)
    within = min(window, queue.next_file_unit(offset) - offset)
    if consumed * UNIT_SIZE == len(data) and consumed < within:
        rest = queue.read(offset + consumed, within - consumed)
        consumed += _walk_units(parts, rest, codes, result, min(most, max_num), max_bytes)
    result.next_offset = offset + consumed
    return result


def _take_all(parts: Parts, data: bytes, result: GetResult, most: int, max_bytes: int) -> int:
    """The usual case of :func:`_walk_units`, several times faster: all units that are wanted
    point into the newest file and fit into the answer. Gives 0 when it is another case."""
    log = parts.commitlog
    view, base = log.view, log.base
    if view is None or most < 1:
        return 0
    units = list(UNIT.iter_unpack(data[: most * UNIT_SIZE]))
    sizes = sum([size for _, size, _ in units])
    first, last = units[0][0], units[-1]
    within = base <= first and last[0] + last[1] <= log.max_offset
    if not within or sizes > max_bytes or sizes < 0:
        return 0
    if log.max_offset - first > _memory_bytes() * 0.4:
        return 0
    new = tuple.__new__
    result.messages = [
        new(StoredMessage, (view[place - base : place - base + size], place))
        for place, size, _ in units
    ]
    result.status = GetStatus.FOUND
    return len(units)


def _walk_units(
    parts: Parts,
    data: bytes,
    codes: frozenset[int] | None,
    result: GetResult,
    most: int,
    max_bytes: int,
) -> int:
    """Add the messages of the units until the answer is full; gives the units consumed."""
    commitlog = parts.commitlog
    read, view = commitlog.read, commitlog.view
    base, written = commitlog.base, commitlog.at
    new = tuple.__new__
    messages = result.messages
    add = messages.append
    total = sum(message.size for message in messages)
    count = len(messages)
    skip_to = -1
    consumed = 0
    far = commitlog.max_offset - int(_memory_bytes() * 0.4)
    for place, size, code in UNIT.iter_unpack(data):
        if place < skip_to:
            consumed += 1
            continue
        if count:
            if count >= most or total + size > max_bytes:
                break
            if place < far and (count >= _DISK_MESSAGES or total + size > _DISK_BYTES):
                break
        if codes is not None and _as_int(code) not in codes:
            consumed += 1
            continue
        consumed += 1
        # Most reads are of the newest file; a call for each would cost as much as the rest.
        at = place - base
        raw = view[at : at + size] if view and 0 <= at <= written - size else read(place, size)
        if raw is None:
            if not count:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
            skip_to = commitlog.next_file(place)
            continue
        skip_to = -1
        add(new(StoredMessage, (raw, place)))
        count += 1
        total += size
    if count:
        result.status = GetStatus.FOUND
    return consumed


def _as_int(code: int) -> int:
    """Java's ``(int)`` of a long."""
    code &= 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


def query_message(
    parts: Parts, topic: str, key: str, max_num: int, begin: int, end: int
) -> list[StoredMessage]:
    """Messages by key as the real ``queryMessage`` gives them: hash twins and duplicates too."""
    key_hash = index_hash(key, _topic_parts(topic)[0])
    found: list[StoredMessage] = []
    last = end
    for _ in range(_QUERY_ROUNDS):
        offsets = parts.index.query_offsets(key_hash, max_num, begin, last)
        if not offsets:
            break
        offsets.sort()
        for number, offset in enumerate(offsets):
            raw = parts.commitlog.read_record(offset)
            if raw is None:
                continue
            message = StoredMessage(raw, offset)
            if number == 0:
                last = message.store_timestamp
            found.append(message)
        if found or last < begin:
            break
    return found


def query_exact(
    parts: Parts, topic: str, key: str, max_num: int, begin: int, end: int
) -> list[StoredMessage]:
    """The newest messages of a topic that really have the key and were stored from ``begin`` to
    ``end`` (ms, inclusive), each once, in the order they were stored."""
    seed, field = _topic_parts(topic)
    key_hash = index_hash(key, seed)
    data = key.encode(errors="replace")
    found: list[StoredMessage] = []
    seen: set[int] = set()
    read = parts.commitlog.read_record
    for file in reversed(parts.index.files):
        header = file.header
        if header.begin_timestamp > end or header.count <= 1:
            continue
        if header.end_timestamp < begin:
            break
        for offset in file.candidates(key_hash, begin, end):
            raw = read(offset) if offset not in seen else None
            seen.add(offset)
            if raw is None:
                continue
            stored = _long(raw, 68 if raw[39] & 16 else 56)[0]
            if begin <= stored <= end and _is_wanted(raw, field, key, data):
                found.append(StoredMessage(raw, offset))
                if len(found) >= max_num:
                    break
        if len(found) >= max_num:
            break
    found.reverse()
    return found


@lru_cache(maxsize=4096)
def _topic_parts(topic: str) -> tuple[int, bytes]:
    """The hash of ``topic#``, to which a key's is added, and the topic's field in a record."""
    name = topic.encode(errors="replace")
    return hash_code(f"{topic}#"), bytes((len(name) & 0xFF,)) + name


def _is_wanted(raw: bytes, field: bytes, key: str, data: bytes) -> bool:
    """Whether a record is of a topic and has a key; most can be told by a look at the bytes."""
    at = BODY_LENGTH_AT[(raw[39] >> 4) & 3]
    at += 4 + _int(raw, at)[0]
    if not raw.startswith(field, at):
        return False
    at += len(field) + 2
    if raw.startswith(_KEYS_FIRST + data, at) and b" " not in data:
        end = at + len(_KEYS_FIRST) + len(data)
        # KEYS stands first, has this one key, and is not named again.
        if raw[end : end + 1] in (b"", b"\x02", b" ") and raw.find(_KEYS_FIRST, end) < 0:
            return True
    return StoredMessage(raw, 0).has_key(key)


def offset_by_time(parts: Parts, topic: str, queue_id: int, timestamp: int) -> int:
    """Ordinal of the queue's first message stored at or after a time (ms); the queue's end if
    there is none. O(log n) reads of the log."""
    queue = parts.queues.get((topic, queue_id))
    if queue is None:
        return 0
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        if _stored(parts, queue, middle) < timestamp:
            low = middle + 1
        else:
            high = middle
    return low


def _stored(parts: Parts, queue: ConsumeQueue, unit: int) -> int:
    place, size, _ = UNIT.unpack(queue.read(unit, 1))
    return parts.commitlog.store_time(place, size)


def offset_by_time_as_rocketmq(parts: Parts, topic: str, queue_id: int, timestamp: int) -> int:
    """``getOffsetInQueueByTime`` of 4.9.3: within the first file modified at or after the time
    (else the last), the unit stored nearest to it. Depends on the files' modification times."""
    queue = parts.queues.get((topic, queue_id))
    if queue is None or not queue.starts:
        return 0
    start = queue.starts[-1]
    for candidate in queue.starts:
        modified = parts.fs.stat(queue.path(candidate)).st_mtime_ns // 1_000_000
        if modified >= timestamp:
            start = candidate
            break
    first = start // UNIT_SIZE
    low = max(queue.min_logic - start, 0) // UNIT_SIZE
    high = (min(queue.wrote, start + queue.file_size) - start) // UNIT_SIZE - 1
    minimum = parts.commitlog.min_offset
    left = right = -1
    left_time = right_time = -1
    target = -1
    while low <= high:
        middle = (low + high) // 2
        place, size, _ = UNIT.unpack(queue.read(first + middle, 1))
        if place < minimum:
            low = middle + 1
            left = middle
            continue
        stored = parts.commitlog.store_time(place, size)
        if stored < 0:
            return 0
        if stored == timestamp:
            target = middle
            break
        if stored > timestamp:
            high = middle - 1
            right, right_time = middle, stored
        else:
            low = middle + 1
            left, left_time = middle, stored
    if target < 0:
        if left_time == -1:
            target = right
        elif right_time == -1:
            target = left
        else:
            nearer_left = abs(timestamp - left_time) <= abs(timestamp - right_time)
            target = left if nearer_left else right
    if target < 0:
        return first - 1 if first else 0
    return first + target


def message_at(parts: Parts, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
    """The message with an ordinal in a queue, if the log still has it."""
    queue = parts.queues.get((topic, queue_id))
    data = queue.read(queue_offset, 1) if queue is not None and queue_offset >= 0 else b""
    if not data:
        return None
    place, size, _ = UNIT.unpack(data)
    raw = parts.commitlog.read(place, size) if place >= parts.commitlog.min_offset else None
    return StoredMessage(raw, place) if raw is not None else None


def scan_page(
    parts: Parts, topic: str, queue_id: int, offset: int
) -> tuple[list[StoredMessage], int]:
    """Some messages of a queue from an ordinal on, and where to go on; the same ordinal at its
    end."""
    queue = parts.queues.get((topic, queue_id))
    if queue is None:
        return [], offset
    offset = max(offset, queue.min_offset)
    data = queue.read(offset, _PAGE_UNITS)
    found = []
    for place, size, _ in UNIT.iter_unpack(data):
        raw = parts.commitlog.read(place, size)
        if raw is not None:
            found.append(StoredMessage(raw, place))
    return found, offset + len(data) // UNIT_SIZE
