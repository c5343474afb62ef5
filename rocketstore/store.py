"""The store: one CommitLog for all topics, ConsumeQueues that point into it, IndexFiles by key.

A put copies its record into the log and notes it; queues and index follow in batches, at the
latest when somebody reads (so a reader sees every put that returned) or when the background
thread comes round. They hold nothing that the log does not tell, so the units and entries that a
crash takes from them are put again at open.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self, Unpack

from journal.arguments import refuse_pickling
from journal.errors import ClosedError, StorageError, UsageError, storage_errors
from journal.findings import Finding
from journal.fs.beneath import beneath, follow, leave, make_store_directory
from journal.fs.files import FileSystem, PathLike, checked_path, names_in
from journal.locks.call_lock import check_alone, refuse_twice
from journal.threads import check_unpatched
from rocketstore import reading
from rocketstore.batch_putter import BatchPutter
from rocketstore.checkpointer import Checkpointer
from rocketstore.dispatcher import Dispatcher
from rocketstore.format.commitlog_format import ROLLBACK, TRANSACTION_MASK, parse_message_id
from rocketstore.format.message import BatchResult, PutResult, StoredMessage
from rocketstore.get_result import GetResult, GetStatus
from rocketstore.housekeeping import Housekeeping
from rocketstore.layout import Paths, is_store, look
from rocketstore.lock import StoreLock
from rocketstore.log.dispatch import QueueKey
from rocketstore.log.filler_format import is_filler
from rocketstore.log_sync import LogSync
from rocketstore.options import Options
from rocketstore.parts import Parts
from rocketstore.putter import PutFields, Putter
from rocketstore.queues.offsets import ConsumerOffsets, DelayOffsets
from rocketstore.reading import (
    LONG_MAX,
    MAX_BYTES,
    MAX_MESSAGES,
    TIME_MAX,
    get_messages,
    query_exact,
    query_message,
)
from rocketstore.repair.full_recovery import Rebuilt
from rocketstore.state import StoreState


def open_store(path: PathLike, **options: Any) -> Store:
    """Open a store directory, and make one if there is none.

    Args:
        path: The directory.
        options: The fields of :class:`Options`.

    Returns:
        The store.

    Raises:
        LockedError: A process has it open.
        NotAStoreError: It holds something else.
        DamageError: It is damaged beyond what recovery repairs.
        StorageError: The system refused.
        UsageError: An option is wrong.
    """
    try:
        chosen = Options(**options)
    except TypeError as error:
        raise UsageError(str(error)) from error
    check_unpatched()
    return Store(checked_path(path), chosen)


class Store:
    """An open store; :func:`rocketstore.open` makes one. Thread-safe. A context manager.

    When a put returns with ``durability="os"``, the record is in the operating system and survives
    the death of the process; with ``"fsync"`` it is on disk.
    """

    def __init__(self, path: str, options: Options) -> None:
        outside = options.fs
        options = replace(options, fs=beneath(outside, path, hold=True))
        self.path = path
        self.options = options
        paths = Paths(path)
        self._state = StoreState(options, paths)
        self._file_lock: StoreLock | None = None
        look(options.fs, paths, options)
        if not options.read_only:
            self._file_lock = self._take_lock(outside, paths)
        try:
            self._open(options, paths)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise StorageError(error.filename or path, "can't be opened", error) from error
            raise
        if options.background and not options.read_only:
            self._housekeeping.start()

    def _take_lock(self, outside: FileSystem, paths: Paths) -> StoreLock:
        with storage_errors(self.path, "can't be created"):
            fs = self.options.fs
            if is_store(names_in(fs, self.path)):
                follow(fs, paths.commitlog)
            else:
                make_store_directory(outside, fs, self.path, self.options.mode)
        return StoreLock(fs, paths.lock)

    def _open(self, options: Options, paths: Paths) -> None:
        state = self._state
        state.open()
        writable = not options.read_only
        self._offsets = ConsumerOffsets(options.fs, paths.consumer_offset, writable=writable)
        self._local_offsets = ConsumerOffsets(options.fs, paths.local_offset, writable=writable)
        self._dispatcher = Dispatcher(state)
        self._log_sync = LogSync(state)
        self._putter = Putter(state, self._dispatcher, self._log_sync)
        self._batch_putter = BatchPutter(state, self._dispatcher, self._log_sync)
        delays = DelayOffsets(options.fs, paths.delay_offset)
        tables = (self._offsets, self._local_offsets, delays)
        self._checkpointer = Checkpointer(state, self._dispatcher, self._log_sync, tables)
        self._housekeeping = Housekeeping(
            state, self._dispatcher, self._log_sync, self._putter, self._checkpointer, delays
        )
        if options.read_only:
            state.refuse(UsageError(f"{self.path}: is open for reading only"))
        elif options.recovery == "full":
            self._checkpointer.checkpoint()

    @property
    def recovered(self) -> Rebuilt:
        """The work of recovery at open."""
        return self._state.recovered

    @property
    def _parts(self) -> Parts:
        return self._state.parts

    # Writing

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        unique_key: str | None = None,
        **fields: Unpack[PutFields],
    ) -> PutResult:
        """Store one message, which is found by queue and key from now on. O(size).

        Args:
            topic: The topic.
            body: The body.
            queue_id: The queue's number in the topic.
            tags: A tag that consumers can ask for.
            keys: One key, keys separated by spaces, or several.
            unique_key: RocketMQ's UNIQ_KEY.
            fields: What few messages have: ``properties`` (bytes are stored as they are), ``delay``
                (a level from 1 to 18, after which it is delivered to its topic), ``flag``,
                ``sys_flag``, ``born_timestamp``, ``born_host``, ``store_host``,
                ``reconsume_times``, ``prepared_transaction_offset``, and ``wait``: False, or the
                property WAIT=false, does not wait for the disk under ``durability="fsync"``.

        Returns:
            Where the message is.

        Raises:
            UsageError: Input is over a limit.
            StorageError: The disk is full; nothing was stored.
            WritesRefusedError: An earlier write failed.

        Example:
            >>> store.put("orders", b"paid", keys="o-17", tags="new").queue_offset
            0
        """
        return self._putter.put(topic, body, queue_id, tags, keys, unique_key, fields)

    def put_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        queue_id: int = 0,
        tags: str | Sequence[str] | None = None,
        keys: str | Sequence[str] | None = None,
        unique_keys: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | bytes | tuple[str, int] | None = None,
        wait: bool = True,
    ) -> BatchResult:
        """Store many messages of one topic and queue, in order, with one copy and one sync.

        The result is what as many :meth:`put` calls would store with one clock reading.

        Args:
            topic: The topic.
            bodies: The bodies.
            queue_id: The queue's number in the topic.
            tags: One for all, or one for each message.
            keys: One for all, or one text for each message; a space separates several keys.
            unique_keys: One for each message.
            properties: Properties of all messages.
            flag: RocketMQ's flag of all messages.
            born_timestamp: Milliseconds since 1970. None: now.
            born_host: The publisher's address. None: this host's.
            wait: Wait for the disk under ``durability="fsync"``.

        Returns:
            Where the messages are.

        Raises:
            StoreError: As :meth:`put`. All input is checked before anything is stored, but a disk
                that fills up in the middle leaves the first messages stored.
        """
        return self._batch_putter.put_many(
            topic, bodies, queue_id, tags, keys, unique_keys, properties, flag, born_timestamp,
            born_host, wait,
        )  # fmt: skip

    def put_batch(
        self,
        topic: str,
        messages: Sequence[tuple[int, bytes, Mapping[str, str] | bytes]],
        *,
        queue_id: int = 0,
        properties: Mapping[str, str] | bytes | None = None,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | bytes | tuple[str, int] | None = None,
        store_host: str | bytes | tuple[str, int] | None = None,
        wait: bool = True,
    ) -> BatchResult:
        """Store a batch as RocketMQ's clients do: all in one file, or nothing.

        Together the messages have at most ``max_message_size`` bytes. No transactions, no delays.

        Args:
            topic: The topic.
            messages: ``(flag, body, properties)`` of each.
            queue_id: The queue's number in the topic.
            properties: Properties of the batch, added to each message's.
            sys_flag: RocketMQ's bits of all messages.
            born_timestamp: Milliseconds since 1970. None: now.
            born_host: The publisher's address. None: this host's.
            store_host: The store's address. None: this host's.
            wait: Wait for the disk under ``durability="fsync"``.

        Returns:
            Where the messages are.

        Raises:
            StoreError: As :meth:`put`.
        """
        return self._batch_putter.put_batch(
            topic, messages, queue_id, properties, sys_flag, born_timestamp, born_host, store_host,
            wait,
        )  # fmt: skip

    def sync(self) -> None:
        """Make every put that returned durable against power loss.

        Raises:
            StorageError: The system refused.
            WritesRefusedError: An earlier sync failed.
        """
        check_alone(self._state.lock)
        self._state.check_writable()
        self._log_sync.commit()

    # Reading: every answer holds every put that returned before the question. On a full disk the
    # queues may lack the last ones: what they have is read, and a call that needs more is refused.

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_num: int = 32,
        tags: str | None = None,
        *,
        most: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
    ) -> GetResult:
        """Return messages of a queue with RocketMQ's status and next offset. O(messages).

        Args:
            topic: The topic.
            queue_id: The queue's number in the topic.
            offset: The ordinal of the first one.
            max_num: How many are wanted.
            tags: ``"A || B"``, matched by hash.
            most: RocketMQ's cap on the messages of one answer.
            max_bytes: RocketMQ's cap on the bytes of one answer.

        Returns:
            The messages, the status, and the offset to ask for next.

        Example:
            >>> store.get("orders", 0, 0).messages[0].body
            b'paid'
        """
        state = self._state
        if state.lock.is_mine():
            refuse_twice()
        try:
            state.take()
            missing = self._dispatcher.catch_up_or_less()
            found = get_messages(
                state.parts, topic, queue_id, offset, max_num, tags, most, max_bytes
            )
            if missing is not None and found.status is not GetStatus.FOUND:
                raise missing
        except BaseException:
            state.lock.let_go()
            raise
        state.lock.release()
        return found

    def lookup(self, offset: int | str) -> StoredMessage | None:
        """Return the message at a place in the log, or None if no record is there. O(1).

        A filler of a hole in the log is not a message.

        As from every call, the body of a record that says that it is elsewhere raises
        :class:`DamageError`.

        Args:
            offset: A physical offset, or an offset message id.

        Returns:
            The message, or None.
        """
        if isinstance(offset, str):
            offset = parse_message_id(offset)[1]
        if offset < 0:
            raise UsageError(f"offset {offset}: it must not be negative")
        if offset > LONG_MAX:
            return None
        state = self._state
        with state.lock:
            if state.changing or state.refusal is not None:
                state.begin_read()
            raw = state.commitlog.read_record(offset)
        if raw is None:
            return None
        message = StoredMessage(raw, offset)
        if raw[39] & TRANSACTION_MASK == ROLLBACK and is_filler(
            message.topic.encode(), ROLLBACK, len(raw)
        ):
            return None
        return message

    def query(
        self,
        topic: str,
        key: str,
        max_num: int = 32,
        begin: int = 0,
        end: int = TIME_MAX,
        *,
        exact: bool = True,
    ) -> list[StoredMessage]:
        """Return messages by key (one of KEYS, or the UNIQ_KEY), oldest first.

        The cost is the length of the key's chain, not the size of the store.

        Args:
            topic: The topic.
            key: The key.
            max_num: The most messages to return; the newest are taken.
            begin: Stored at or after this time, milliseconds since 1970.
            end: Stored at or before this time.
            exact: Only messages that really have the key, each once. False: what RocketMQ answers,
                at most 64, with hash twins and duplicates among them, and times in seconds.

        Returns:
            The messages, oldest first.
        """
        if not isinstance(key, str) or (exact and not key):
            raise UsageError("the key is empty or no text")
        if max_num < 0:
            raise UsageError(f"max_num {max_num}: it must not be negative")
        if begin < -LONG_MAX or begin > LONG_MAX or end > LONG_MAX or end < -LONG_MAX:
            raise UsageError(f"times {begin} to {end}: the limit is {LONG_MAX} ms")
        state = self._state
        found: list[StoredMessage] = []
        if state.lock.is_mine():
            refuse_twice()
        try:
            state.take()
            self._dispatcher.catch_up()
            if exact and max_num:
                found = query_exact(state.parts, topic, key, max_num, begin, end)
            elif max_num:
                found = query_message(state.parts, topic, key, max_num, begin, end)
        except BaseException:
            state.lock.let_go()
            raise
        state.lock.release()
        return found

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, *, as_rocketmq: bool = False
    ) -> int:
        """Return the ordinal of a queue's first message stored at or after a time, or its end.

        Args:
            topic: The topic.
            queue_id: The queue's number in the topic.
            timestamp: Milliseconds since 1970.
            as_rocketmq: Answer as 4.9.3 does: the nearest unit within one file, which it picks by
                modification time.

        Returns:
            The ordinal.
        """
        ask = reading.offset_by_time_as_rocketmq if as_rocketmq else reading.offset_by_time
        with self._state.lock:
            self._dispatcher.catch_up()
            return ask(self._parts, topic, queue_id, timestamp)

    def at(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """Return the message with an ordinal in a queue, or None if it is not there (any more).

        Args:
            topic: The topic.
            queue_id: The queue's number in the topic.
            queue_offset: The ordinal.

        Returns:
            The message, or None.
        """
        with self._state.lock:
            missing = self._dispatcher.catch_up_or_less()
            found = reading.message_at(self._parts, topic, queue_id, queue_offset)
        if found is None and missing is not None:
            raise missing
        return found

    def messages(self, topic: str, queue_id: int, offset: int = 0) -> Iterator[StoredMessage]:
        """Yield all messages of a queue, those put meanwhile too. Changes nothing.

        Args:
            topic: The topic.
            queue_id: The queue's number in the topic.
            offset: The ordinal of the first one.

        Yields:
            The messages, in order.
        """
        while True:
            with self._state.lock:
                missing = self._dispatcher.catch_up_or_less()
                page, after = reading.scan_page(self._parts, topic, queue_id, offset)
            yield from page
            if after <= max(offset, 0):
                if missing is not None:
                    raise missing
                return
            offset = after

    def queues(self) -> dict[QueueKey, tuple[int, int]]:
        """Return the queues that have messages.

        Returns:
            The min and max offset by ``(topic, queue id)``.
        """
        with self._state.lock:
            self._dispatcher.catch_up()
            return {
                key: (queue.min_offset, queue.max_offset)
                for key, queue in sorted(self._parts.queues.items())
                if queue.max_offset
            }

    @property
    def min_offset(self) -> int:
        """First physical offset of the log; -1 if it is empty."""
        return self._state.commitlog.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset after the last record."""
        state = self._state
        with state.lock:
            if state.changing and state.refusal is None:
                state.read_again()
            return state.commitlog.max_offset

    @property
    def findings(self) -> list[Finding]:
        """Damage and crash traces that open found: repaired, or reported.

        A read-only store does not compare its files at open. The first use of this verifies it:
        O(bytes of the log). Raises :class:`StorageError`.
        """
        state, parts = self._state, self._state.parts
        is_closed = isinstance(state.refusal, ClosedError)
        if self.options.read_only and not parts.verified and not is_closed:
            from rocketstore.verify import findings_of  # few readers ask

            found = findings_of(self.options, state.paths)
            parts.findings[:] = dict.fromkeys([*parts.findings, *found])
            parts.verified = True
        return list(parts.findings)

    # Consumers

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, broadcast: bool = False
    ) -> None:
        """Note the next offset that a group will ask for.

        It is kept in ``config/consumerOffset.json``, which the background thread,
        :meth:`checkpoint` and :meth:`close` write.

        Args:
            group: The consumer group.
            topic: The topic.
            queue_id: The queue's number in the topic.
            offset: The next ordinal.
            broadcast: Keep it for a consumer that gets every message, in ``localOffset.json``.
        """
        with self._state.lock:
            self._state.check_writable()
            self._offsets_of(broadcast).commit(group, topic, queue_id, offset)

    def fetch_offset(
        self, group: str, topic: str, queue_id: int, *, broadcast: bool = False
    ) -> int:
        """Return the offset that was committed last, or -1.

        Args:
            group: The consumer group.
            topic: The topic.
            queue_id: The queue's number in the topic.
            broadcast: As in :meth:`commit_offset`.

        Returns:
            The next ordinal of the group, or -1.
        """
        with self._state.lock:
            self._state.check_open()
            return self._offsets_of(broadcast).fetch(group, topic, queue_id)

    def consumer_offsets(self) -> dict[str, dict[int, int]]:
        """Return the committed offsets of all groups.

        Returns:
            The next offset by queue id, by ``topic@group``.
        """
        with self._state.lock:
            return {name: dict(offsets) for name, offsets in self._offsets.table.items()}

    def _offsets_of(self, broadcast: bool) -> ConsumerOffsets:
        return self._local_offsets if broadcast else self._offsets

    # Housekeeping

    def deliver_due(self, now: int | None = None) -> int:
        """Put delayed messages whose time has come into their topics.

        After a crash, or a call that Ctrl-C ended, one may be delivered again. None is lost.

        Args:
            now: Milliseconds since 1970. None: the clock's.

        Returns:
            How many messages were delivered.
        """
        self._state.check_writable()
        return self._housekeeping.deliver_due(self.options.clock() if now is None else now)

    def clean(self, now: float | None = None) -> int:
        """Delete expired files of the log now, with what points to them in queues and index.

        Args:
            now: Seconds since 1970. None: the clock's.

        Returns:
            How many log files were deleted. Without a ``retention`` option RocketMQ's 72 hours
            hold.
        """
        check_alone(self._state.lock)
        self._state.check_writable()
        return self._housekeeping.clean(now, manual=True)

    def rebuild_index(self) -> None:
        """Delete all index files and build them anew from the log. O(bytes of the log)."""
        with self._state.lock:
            self._dispatcher.rebuild_index()
        self._checkpointer.checkpoint()

    def checkpoint(self) -> None:
        """Sync log, queues and index, and note it, so that the next open starts from here."""
        check_alone(self._state.lock)
        self._state.check_writable()
        self._checkpointer.checkpoint()

    def close(self) -> None:
        """Sync all, write the checkpoint, remove ``abort``, release the lock. Can be repeated. In
        a forked child it changes nothing: the store is its parent's. Nor does it at the end of the
        interpreter, where only finalizers run: nothing is lost, and the next open recovers."""
        state = self._state
        if state.lock.is_inherited():
            if self._file_lock is not None:
                self._file_lock.let_go()
            return
        if sys.is_finalizing():
            # As a killed process leaves it: threads were stopped wherever they were, perhaps with
            # locks taken, and nothing can be imported any more.
            state.refuse(ClosedError(f"{self.path}: the interpreter has ended"))
            return
        if isinstance(state.refusal, ClosedError):
            # A close before may have been cut short after its refusal.
            self._release()
            return
        check_alone(state.lock)
        self._checkpointer.check_outside()
        self._housekeeping.stop()
        with self._checkpointer.alone(), state.lock:
            if isinstance(state.refusal, ClosedError):
                return
            try:
                if not self.options.read_only and state.poison.reason is None:
                    self._checkpointer.checkpoint_alone(closing=True)
                clean = state.refusal is None and state.poison.reason is None
                self._refuse_calls()
                # Only after calls are refused: no call may change a store without its ``abort``.
                if clean:
                    self._remove_abort()
            finally:
                try:
                    # Whatever has ended this before, a signal's handler in the call above included.
                    self._refuse_calls()
                finally:
                    self._release()

    def _refuse_calls(self) -> None:
        self._state.refuse(ClosedError(f"{self.path}: the store is closed"))

    def _remove_abort(self) -> None:
        fs, paths = self.options.fs, self._state.paths
        with storage_errors(paths.abort, "can't be removed"):
            fs.unlink(paths.abort)
            fs.sync_dir(paths.root)

    def _release(self) -> None:
        """Close all files, and give the lock of the directory back. Can be repeated."""
        try:
            self._state.close_files()
        finally:
            if self._file_lock is not None:
                self._file_lock.release()
            leave(self.options.fs)

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
