"""The result of :meth:`rocketstore.Store.get`: a status, the next offset, and the messages."""

from __future__ import annotations

import enum

from rocketstore.format import words
from rocketstore.format.commitlog_format import FIXED_SIZE, MESSAGE_MAGIC
from rocketstore.format.consumequeue_format import UNIT_SIZE
from rocketstore.format.message import BODY_AT, OTHER_HOSTS, StoredMessage


class GetStatus(enum.Enum):
    """The outcome of a request for messages: RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetResult:
    """The messages of one get. The next get starts at ``next_offset``; ``min_offset`` and
    ``max_offset`` bound the queue.

    :attr:`messages` are the messages. :attr:`bodies`, for a caller that needs only the sent bytes,
    is several times as fast.
    """

    __slots__ = (
        "_count", "_data", "_messages", "_units",
        "max_offset", "min_offset", "next_offset", "status",
    )  # fmt: skip

    def __init__(
        self, status: GetStatus, next_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.status: GetStatus = status
        self.next_offset: int = next_offset
        self.min_offset: int = min_offset
        self.max_offset: int = max_offset
        self._messages: list[StoredMessage] | None = []
        # A run of records that are one after another in the log, until somebody asks for them.
        self._data = self._units = b""
        self._count = 0

    def _hold(self, data: bytes, units: bytes, count: int) -> None:
        """Answer with ``count`` records: ``data`` is theirs, without gaps, and ``units`` begins
        with their units in the ConsumeQueue. None is smaller than a record can be."""
        self.status = GetStatus.FOUND
        self._data, self._units, self._count, self._messages = data, units, count, None

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages in the order of the queue."""
        if self._messages is None:
            self._messages = self._read_messages()
        return self._messages

    def _read_messages(self) -> list[StoredMessage]:
        data, units = self._data, self._units
        found = []
        end = 0
        for number in range(self._count):
            at, unit = end, number * UNIT_SIZE
            end = at + words.int32_at(units, unit + 8)
            raw = data[at:end]
            found.append(words.new_message(StoredMessage, raw, words.int64_at(units, unit)))
        return found

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in the order of the queue, their checksums checked.

        Raises :class:`journal.errors.DamageError` when one of them is damaged; :attr:`messages`
        gives the others then.
        """
        if self._count:
            return self._read_bodies()
        return [message.body for message in self.messages]

    def _read_bodies(self) -> list[bytes]:
        data, units = self._data, self._units
        found = []
        end = 0
        for number in range(self._count):
            at, unit = end, number * UNIT_SIZE
            size = words.int32_at(units, unit + 8)
            end = at + size
            length = words.int32_at(data, at + BODY_AT - 4)
            if 0 < length <= size - FIXED_SIZE and not data[at + 39] & OTHER_HOSTS:
                body = data[at + BODY_AT : at + BODY_AT + length]
                if (
                    words.body_sum(body) == words.int32_at(data, at + 8) & 0x7FFFFFFF
                    and words.int32_at(data, at + 4) == MESSAGE_MAGIC
                    and words.int64_at(data, at + 28) == words.int64_at(units, unit)
                ):
                    found.append(body)
                    continue
            # Rare and damaged messages.
            found.append(StoredMessage(data[at:end], words.int64_at(units, unit)).body)
        return found

    def __repr__(self) -> str:
        count = self._count if self._messages is None else len(self._messages)
        return f"<GetResult {self.status.name}, {count} messages, next_offset={self.next_offset}>"
