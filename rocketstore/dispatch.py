"""From records of the CommitLog to what ConsumeQueues and IndexFiles need of them, in columns.

One form for all that feeds them: puts, batches, recovery and rebuild.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from journal.errors import UsageError
from rocketstore.commitlog_format import COMMIT, TRANSACTION_MASK, encode_topic
from rocketstore.delay import SCHEDULE_TOPIC, deliver_time, level_of
from rocketstore.javahash import index_hash_many, tags_code
from rocketstore.properties import DELAY, TAGS, decode_properties, index_keys
from rocketstore.scan import Records

__all__ = ["DispatchBatch", "QueueKey", "from_records"]

QueueKey = tuple[str, int]
"""Topic and queue id."""
Int64Array = npt.NDArray[np.int64]


@dataclass(slots=True)
class DispatchBatch:
    """Consecutive messages of the log, in log order.

    ``queue_numbers`` gives for each message its place in ``queues``. ``key_hashes`` are the index
    hashes of all keys of all messages in order, ``key_messages`` the message that each is of.
    """

    queues: list[QueueKey]
    queue_numbers: Int64Array
    offsets: Int64Array
    sizes: Int64Array
    queue_offsets: Int64Array
    tags_codes: Int64Array
    store_times: Int64Array
    transactions: Int64Array
    key_hashes: npt.NDArray[np.int32]
    key_messages: Int64Array

    def __len__(self) -> int:
        return len(self.offsets)

    def by_queue(self) -> Iterator[tuple[QueueKey, Int64Array]]:
        """Each queue with the numbers of its messages: not those of open or undone
        transactions, which no ConsumeQueue has."""
        visible = (self.transactions == 0) | (self.transactions == COMMIT)
        for number, key in enumerate(self.queues):
            chosen = np.flatnonzero(visible & (self.queue_numbers == number))
            if len(chosen):
                yield key, chosen

    def units(self, chosen: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """What a ConsumeQueue keeps of these messages: ordinals, physical offsets, sizes, tag
        hash codes."""
        return (
            self.queue_offsets[chosen],
            self.offsets[chosen],
            self.sizes[chosen],
            self.tags_codes[chosen],
        )

    def tail(self, first: int) -> DispatchBatch:
        """The messages from number ``first`` on."""
        keys_from = int(np.searchsorted(self.key_messages, first))
        return DispatchBatch(
            self.queues,
            self.queue_numbers[first:],
            self.offsets[first:],
            self.sizes[first:],
            self.queue_offsets[first:],
            self.tags_codes[first:],
            self.store_times[first:],
            self.transactions[first:],
            self.key_hashes[keys_from:],
            self.key_messages[keys_from:] - first,
        )


def _queue_topic(topic: bytes) -> str:
    """The topic under which a message is queued: its own if that can be a directory's name. One
    damaged bit makes a slash of a letter, and nothing may be written outside of the store."""
    with contextlib.suppress(UsageError, UnicodeDecodeError):
        text = topic.decode()
        if encode_topic(text):
            return text
    text = topic.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")
    return text.translate({0: "?", ord("."): "?", ord("/"): "?"}) or "?"


def from_records(records: Records, start: int, *, delays: bool = True) -> DispatchBatch:
    """What the records of the file that begins at ``start`` ask for.

    ``delays=False`` gives messages of the schedule topic the hash of their tags, as the real
    store does while it recovers from a crash.
    """
    queues: list[QueueKey] = []
    numbers: dict[tuple[bytes, int], int] = {}
    names: list[str] = []
    queue_numbers: list[int] = []
    codes: list[int] = []
    keys: list[str] = []
    key_messages: list[int] = []
    columns = zip(records.topics, records.queue_ids.tolist(), records.properties, strict=True)
    for message, (topic, queue_id, data) in enumerate(columns):
        number = numbers.get((topic, queue_id))
        if number is None:
            number = numbers[topic, queue_id] = len(queues)
            names.append(_queue_topic(topic))
            queues.append((names[number], queue_id))
        queue_numbers.append(number)
        if not data:
            codes.append(0)
            continue
        properties = decode_properties(data)
        name = names[number]
        level = level_of(properties.get(DELAY, "")) if delays and name == SCHEDULE_TOPIC else 0
        if level:
            codes.append(deliver_time(level, int(records.store_times[message])))
        else:
            codes.append(tags_code(properties.get(TAGS)))
        for key in index_keys(properties):
            keys.append(f"{name}#{key}")
            key_messages.append(message)
    return DispatchBatch(
        queues=queues,
        queue_numbers=np.array(queue_numbers, np.int64),
        offsets=records.positions + start,
        sizes=records.sizes,
        queue_offsets=records.queue_offsets,
        tags_codes=np.array(codes, np.int64),
        store_times=records.store_times,
        transactions=records.sys_flags & TRANSACTION_MASK,
        key_hashes=index_hash_many(keys),
        key_messages=np.array(key_messages, np.int64),
    )
