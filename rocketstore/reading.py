"""Answers: messages of a queue, messages by key, offsets by time, as RocketMQ 4.9.3 gives them.

Plain functions over the parts of a store; the store holds its lock around them.
"""

from __future__ import annotations

import os
from functools import lru_cache

from rocketstore.format import words
from rocketstore.format.commitlog_format import BODY_LENGTH_AT, FIXED_SIZE
from rocketstore.format.consumequeue_format import UNIT, UNIT_SIZE
from rocketstore.format.javahash import hash_code, index_hash, topic_seed
from rocketstore.format.message import StoredMessage
from rocketstore.get_result import GetResult, GetStatus
from rocketstore.parts import Parts
from rocketstore.queues.consumequeue import ConsumeQueue

LONG_MAX = TIME_MAX = (1 << 63) - 1
"""The largest offset, and the latest time."""
MAX_MESSAGES = 32
MAX_BYTES = 256 << 10
_DISK_MESSAGES = 8
_DISK_BYTES = 64 << 10
_FILTER_BYTES = 16000
_QUERY_ROUNDS = 3
_PAGE_UNITS = 256
_KEYS_FIRST = b"KEYS\x01"
_PAIR_END, _SPACE = b"\x02 "


@lru_cache(maxsize=256)
def tag_codes(expression: str | None) -> frozenset[int] | None:
    """Hashes of the tags of ``"A || B"``; ``None`` for all messages (``"*"``, empty, ``None``)."""
    if expression is None or expression in ("", "*"):
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    return frozenset(hash_code(tag) for tag in tags if tag)


@lru_cache(maxsize=1)
def _near_bytes() -> int:
    """Bytes after the log's end in which the real store expects records to be in memory."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.4)


def get_messages(
    parts: Parts,
    topic: str,
    queue_id: int,
    offset: int,
    max_num: int,
    tags: str | None,
    most: int = MAX_MESSAGES,
    max_bytes: int = MAX_BYTES,
) -> GetResult:
    """Messages of a queue from an ordinal on: ``getMessage`` of the real store.

    ``most`` and ``max_bytes`` are its caps on one answer. Both are a quarter if the messages lie
    further before the log's end than 40 % of the machine's memory.
    """
    queue = parts.queues.get((topic, queue_id))
    maximum = queue.max_offset if queue is not None else 0
    minimum = queue.min_offset if queue is not None else 0
    if queue is None or maximum == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum)
    if offset < minimum:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
    if offset == maximum:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
    if offset > maximum:
        after = minimum if minimum == 0 else maximum
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, after, minimum, maximum)
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum)
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
    point to records that are one after another in the newest file, and they fit into the
    answer: one copy takes them all. Returns 0 when it is another case."""
    log = parts.commitlog
    if log.view is None or most < 1:
        return 0
    base = log.base
    count = min(most, len(data) // UNIT_SIZE)
    first = words.int64_at(data, 0)
    written = base + log.at
    if first < base or written - first > _near_bytes():
        return 0
    end = first
    for number in range(count):
        at = number * UNIT_SIZE
        size = words.int32_at(data, at + 8)
        if size < FIXED_SIZE or words.int64_at(data, at) != end or size > written - end:
            return 0
        end += size
    if end - first > max_bytes:
        return 0
    result._hold(words.piece(log.view, first - base, end - base), data, count)
    return count


def _walk_units(
    parts: Parts,
    data: bytes,
    codes: frozenset[int] | None,
    result: GetResult,
    most: int,
    max_bytes: int,
) -> int:
    """Add the messages of the units until the answer is full; return the units consumed."""
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
    far = commitlog.max_offset - _near_bytes()
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
    data = key.encode("utf-8", "replace")
    first_key = _KEYS_FIRST + data if " " not in key else None
    found: list[StoredMessage] = []
    seen: set[int] = set()
    log = parts.commitlog
    for file in reversed(parts.index.files):
        header = file.header
        # Times ascend within a file, and from one to the next unless the clock went back.
        if header.begin_timestamp > end or header.end_timestamp < begin or header.count <= 1:
            continue
        for offset in file.candidates(key_hash, begin, end):
            raw = None
            if offset not in seen:
                raw = log.read_record(offset)
            if raw is None:
                continue
            seen.add(offset)
            stored = words.int64_at(raw, 68 if raw[39] & 16 else 56)
            if begin <= stored <= end and _is_wanted(raw, field, key, first_key):
                found.append(words.new_message(StoredMessage, raw, offset))
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
    return topic_seed(topic), bytes((len(name) & 0xFF,)) + name


def _is_wanted(raw: bytes, field: bytes, key: str, first_key: bytes | None) -> bool:
    """Whether a record is of a topic and has a key; most can be told by a look at the bytes.

    ``first_key`` is how properties begin that name this key first.
    """
    at = BODY_LENGTH_AT[(raw[39] >> 4) & 3]
    if at + 4 > len(raw):
        return False
    at += 4 + words.int32_at(raw, at)
    if not raw.startswith(field, at):
        return False
    at += len(field) + 2
    if first_key is not None and raw.startswith(first_key, at):
        end = at + len(first_key)
        # KEYS is first, has this key first, and is not named again.
        if end == len(raw):
            return True
        after = raw[end]
        if after in (_PAIR_END, _SPACE) and _KEYS_FIRST not in raw[end:]:
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
    place, size = queue.place(unit)
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
        place, size = queue.place(first + middle)
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
