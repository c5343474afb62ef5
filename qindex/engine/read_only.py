"""``qindex.open(directory, read_only=True)``: the reading half of the interface, and no lock.

Any number of these may be open beside a writer in another process. Every call reads the files
anew, so it sees the writer's latest work; only the directory's name is remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

from journal.errors import ClosedError, UsageError
from journal.findings import Finding
from journal.fs.files import REAL, FileSystem, PathLike
from qindex.format.entries import Entry
from qindex.format.message import Message
from qindex.format.settings import QueueSettings
from qindex.queue.delivery import LOOKED_AT, Delivery, make_delivery
from qindex.view.reader import QueueReader, QueueSummary, Row, StoreReader

if TYPE_CHECKING:
    from qindex.worker.schedules import Schedule

_log = logging.getLogger("qindex.engine")


@dataclass(frozen=True, slots=True)
class ReadOnlyStats:
    """All queues of a store at one moment, as its files tell, sorted by name."""

    directory: str
    queues: tuple[QueueSummary, ...]


class ReadOnlyQueue:
    """One queue, to look at. Made by :meth:`ReadOnlyEngine.queue`.

    Its deliveries show what a :class:`qindex.queue.delivery.Delivery` shows; they are settled from
    the start. Messages without a body that can be given (damaged, or gone from the message store)
    are left out, and logged.
    """

    def __init__(self, engine: ReadOnlyEngine, reader: QueueReader) -> None:
        self.name: str = reader.name
        self._engine = engine
        self._reader = reader

    @property
    def findings(self) -> list[Finding]:
        """Findings of the last look."""
        return self._reader.findings

    def __iter__(self) -> Iterator[Delivery]:
        """Yield the messages in order of delivery: those ready, and those with consumers."""
        self._engine._check_open()
        for row in self._reader.entries():
            if row.body is None:
                _log.warning("%r: seq_id %d: %s", self.name, row.seq_id, row.error or row.location)
            else:
                yield _delivery(row, row.body)

    def peek(self, max_messages: int = 1) -> list[Delivery]:
        """Look at the next messages. O(size of the journal, and of the segments they are in)."""
        if not isinstance(max_messages, int) or max_messages < 0:
            raise UsageError(f"max_messages must be at least 0, not {max_messages!r}")
        return list(islice(self, max_messages))

    def __len__(self) -> int:
        """Messages held, those with consumers of the writer included. O(size of the files)."""
        self._engine._check_open()
        return self._reader.summary().messages

    def __bool__(self) -> bool:
        """A queue is true, empty or not."""
        return True

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings; none in a RabbitMQ directory. Raises :class:`DamageError`."""
        self._engine._check_open()
        return self._reader.settings()

    def stats(self) -> QueueSummary:
        """Return the figures that the queue's files tell. O(size of the files)."""
        self._engine._check_open()
        return self._reader.summary()

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        self._engine._refuse()

    def find(self, key: str, max_messages: int = 100) -> list[Delivery]:
        """Look at the messages with a key. Reads the queue up to the last message it returns."""
        return list(islice((one for one in self if one.key == key), max_messages))

    publish = _refuse
    publish_many = _refuse
    reserve = _refuse
    get = _refuse
    get_many = _refuse
    consume = _refuse
    ack = _refuse
    ack_many = _refuse
    ack_up_to = _refuse
    nack = _refuse
    reject = _refuse
    extend_lease = _refuse
    purge = _refuse
    flush = _refuse
    sync = _refuse
    cancel = _refuse
    move = _refuse
    configure = _refuse
    run = _refuse
    redrive = _refuse

    def __repr__(self) -> str:
        return f"<ReadOnlyQueue {self.name!r}>"


class ReadOnlyEngine:
    """A store opened read-only; a context manager that closes itself.

    ``reader``: the :class:`qindex.view.reader.StoreReader` underneath, which shows more than a
    delivery does. Raises :class:`NotAStoreError` for a file, a missing directory or one of
    something else, :class:`StorageError` when the system refuses.
    """

    def __init__(
        self, directory: PathLike, fs: FileSystem = REAL, *, segment_entry_count: int | None = None
    ) -> None:
        self.reader: StoreReader = StoreReader(
            directory, fs, segment_entry_count=segment_entry_count
        )
        self.directory: str = self.reader.directory
        self._closed = False

    @property
    def findings(self) -> list[Finding]:
        """Findings in the store beside its queues' own files."""
        return self.reader.findings

    def queue(self, name: str) -> ReadOnlyQueue:
        """Return the queue of this name.

        Args:
            name: The name of the queue.

        Returns:
            The queue, to look at.

        Raises:
            UsageError: There is no such queue.
        """
        self._check_open()
        if not isinstance(name, str):
            raise UsageError(f"a queue's name must be a str, not {type(name).__name__}")
        return ReadOnlyQueue(self, self.reader.queue(name))

    def queue_names(self) -> list[str]:
        """Return the names of all queues.

        Returns:
            The names, sorted.
        """
        self._check_open()
        return self.reader.queue_names()

    def stats(self) -> ReadOnlyStats:
        """Return the figures of all queues. O(size of the store's index files).

        Returns:
            The figures that the files show at this moment.
        """
        self._check_open()
        return ReadOnlyStats(self.directory, tuple(self.reader.queues()))

    @property
    def _refusal(self) -> str:
        return f"{self.directory}: opened read-only"

    def _check_open(self) -> None:
        """Raise :class:`ClosedError` after :meth:`close`."""
        if self._closed:
            raise ClosedError(f"{self.directory}: the engine is closed")

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        """Raise the :class:`UsageError` of every method that would write."""
        self._check_open()
        raise UsageError(self._refusal)

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules by name, to look at.

        Returns:
            The schedules as they are at this moment.
        """
        from qindex.worker.schedules import QUEUE, by_name

        return by_name(self.queue(QUEUE)) if QUEUE in self.queue_names() else {}

    get = _refuse
    schedule = _refuse
    publish_to = _refuse
    transaction = _refuse
    delete_queue = _refuse
    compact = _refuse
    sync = _refuse
    flush = _refuse

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self, drain: float = 0) -> None:
        """Refuse further calls.

        Args:
            drain: Ignored, because nothing is outstanding.
        """
        self._closed = True

    def __enter__(self) -> ReadOnlyEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReadOnlyEngine {self.directory!r}>"


def _delivery(row: Row, body: bytes) -> Delivery:
    message = Message(body, row.key, row.headers, row.properties, row.timestamp)
    entry = Entry(row.msg_id, row.expiry, row.size, message)
    return make_delivery(LOOKED_AT, row.seq_id, body, row.redelivered, entry)
