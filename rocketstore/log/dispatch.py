"""From records of the CommitLog to the columns that ConsumeQueues and IndexFiles are made of.

Puts, batches, recovery and rebuild all dispatch in this one form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from journal.errors import UsageError
from rocketstore.format.commitlog_format import COMMIT, TRANSACTION_MASK, encode_topic
from rocketstore.format.delay import SCHEDULE_TOPIC, deliver_time, level_of
from rocketstore.format.javahash import topic_seed
from rocketstore.format.key_columns import KeyColumns, keys_of_properties
from rocketstore.format.properties import DELAY, decode_properties
from rocketstore.log.scan import Heads, Records

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

    @classmethod
    def of(
        cls,
        queues: list[QueueKey],
        queue_numbers: Int64Array,
        offsets: Int64Array,
        heads: Records | Heads,
        keys: KeyColumns,
    ) -> DispatchBatch:
        """Return the batch of the records at physical ``offsets``; ``heads`` and ``keys`` are
        theirs, in the same order."""
        return cls(
            queues=queues,
            queue_numbers=queue_numbers,
            offsets=offsets,
            sizes=heads.sizes,
            queue_offsets=heads.queue_offsets,
            tags_codes=keys.tags_codes,
            store_times=heads.store_times,
            transactions=heads.sys_flags & TRANSACTION_MASK,
            key_hashes=keys.hashes,
            key_messages=keys.messages,
        )

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
        """Return the columns of a ConsumeQueue for these messages: ordinals, physical offsets,
        sizes, tag hash codes."""
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
    """Return the batch of the records of the file that begins at ``start``.

    ``delays=False`` gives messages of the schedule topic the hash of their tags, as the real
    store does while it recovers from a crash.
    """
    numbers: dict[tuple[bytes, int], int] = {}
    queue_numbers = np.array(
        [
            numbers.setdefault(key, len(numbers))
            for key in zip(records.topics(), records.queue_ids.tolist(), strict=True)
        ],
        np.int64,
    )
    queues = [(_queue_topic(topic), queue_id) for topic, queue_id in numbers]
    seeds = np.array([topic_seed(topic) for topic, _ in queues], np.int64)
    properties = records.properties()
    keys = keys_of_properties(properties, seeds[queue_numbers])
    if delays:
        for number, (topic, _) in enumerate(queues):
            if topic == SCHEDULE_TOPIC:
                _note_delays(records, properties, np.flatnonzero(queue_numbers == number), keys)
    return DispatchBatch.of(queues, queue_numbers, records.positions + start, records, keys)


def _note_delays(
    records: Records, properties: list[bytes], messages: Int64Array, keys: KeyColumns
) -> None:
    """Instead of their tags: when these messages are to be delivered."""
    for message in messages.tolist():
        level = level_of(decode_properties(properties[message]).get(DELAY, ""))
        if level:
            keys.tags_codes[message] = deliver_time(level, int(records.store_times[message]))
