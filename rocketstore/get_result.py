"""The result of :meth:`rocketstore.Store.get`: a status, the next offset, and the messages."""

from __future__ import annotations

import enum

from rocketstore.bodies import usual_bodies
from rocketstore.commitlog_format import FIXED_SIZE, MESSAGE_MAGIC
from rocketstore.crc import crc32
from rocketstore.message import BODY_AT, FRAME, OTHER_HOSTS, StoredMessage

__all__ = ["GetResult", "GetStatus"]

_new_tuple = tuple.__new__


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
    """``next_offset`` is where to go on; ``min_offset`` and ``max_offset`` bound the queue.

    The messages are :attr:`messages`; where only what was sent is wanted, :attr:`bodies` is
    several times as fast.
    """

    __slots__ = (
        "_data", "_messages", "_places", "_sizes",
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
        # A run of records that stand one after another in the log, until somebody asks for them.
        self._data = b""
        self._places: tuple[int, ...] = ()
        self._sizes: tuple[int, ...] = ()

    def _hold(self, data: bytes, places: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        """Answer with these records: ``data`` is theirs, without gaps; their physical offsets and
        their sizes, none smaller than a record can be."""
        self.status = GetStatus.FOUND
        self._data, self._places, self._sizes, self._messages = data, places, sizes, None

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages in the order of the queue."""
        if self._messages is None:
            data, base = self._data, self._places[0]
            self._messages = [
                _new_tuple(StoredMessage, (data[place - base : place - base + size], place))
                for place, size in zip(self._places, self._sizes, strict=True)
            ]
        return self._messages

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in the order of the queue, their checksums checked.

        Raises :class:`journal.errors.DamageError` when one of them is damaged; :attr:`messages`
        gives the others then.
        """
        if not self._places:
            return [message.body for message in self.messages]
        usual = usual_bodies(self._data, self._places, self._sizes)
        if usual is not None:
            return usual
        data, frame, check = self._data, FRAME, crc32
        at = 0
        found = []
        for place, size in zip(self._places, self._sizes, strict=True):
            magic, crc, offset, flags, length = frame(data, at)
            body = data[at + BODY_AT : at + BODY_AT + length]
            if (
                (check(body) ^ crc) & 0x7FFFFFFF
                or magic != MESSAGE_MAGIC
                or offset != place
                or flags & OTHER_HOSTS
                or not 0 < length <= size - FIXED_SIZE
            ):
                # The rare ones, and those that are damaged.
                body = StoredMessage(data[at : at + size], place).body
            found.append(body)
            at += size
        return found

    def __repr__(self) -> str:
        count = len(self._places) if self._messages is None else len(self._messages)
        return f"<GetResult {self.status.name}, {count} messages, next_offset={self.next_offset}>"
