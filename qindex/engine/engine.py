"""The engine: one store directory, its queues, its lock."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn, overload

from journal.arguments import listed, refuse_pickling
from journal.compiled import build, log_once
from journal.errors import (
    ClosedError,
    NotAStoreError,
    StorageError,
    StoreError,
    UsageError,
    WritesRefusedError,
)
from journal.findings import Cause, Finding
from journal.fs.beneath import beneath, follow, leave, make_store_directory
from journal.fs.files import FileSystem, replace_file
from journal.fs.together import together
from journal.locks.call_lock import CallLock, refuse_twice
from journal.locks.calls import Calls
from journal.locks.directory_lock import DirectoryLock
from journal.locks.lock_order import Rank
from journal.poison import Poison
from journal.threads import check_unpatched
from msgstore import CompactionReport
from qindex.engine.housekeeper import Housekeeper
from qindex.engine.moves import Moves
from qindex.engine.transaction_recovery import finish_transactions
from qindex.engine.transactions import Transaction, Transactions
from qindex.format import layout
from qindex.format.message import Body, Message, message_of
from qindex.format.segment import DEFAULT_ENTRY_COUNT
from qindex.format.settings import (
    NO_SETTINGS,
    Overflow,
    QueueSettings,
    Unset,
    checked_name,
)
from qindex.format.values import Serializer, coder_of
from qindex.index.file_budget import FileBudget
from qindex.options import Options
from qindex.queue.delivery import Delivery
from qindex.queue.flushing import Flusher
from qindex.queue.parts import QueueParts
from qindex.queue.plain_queue import Queue
from qindex.queue.room import WouldWaitError
from qindex.queue.state import QueueState
from qindex.queue.stats import EngineStats
from qindex.queue.timer import Alarm
from qindex.queue.waiting import await_room, take_first
from qindex.queue.wake_ups import has_time
from qindex.recovery import store_directory
from qindex.recovery.snapshot import write_snapshot
from qindex.shelf.idle_queues import Roster
from qindex.shelf.shelf import Shelf

if TYPE_CHECKING:
    from qindex.worker.schedules import Missed, Schedule

_log = logging.getLogger("qindex.engine")

LOOK = 0.01
"""Seconds between two looks for messages that are out, while the engine waits for their acks."""
_LOCKED_REMEDY = "lock_timeout= waits for it, and read_only=True reads the store meanwhile"
_SERVER_REMEDY = "it is a server: shared=True uses it, and read_only=True only reads the store"
_NOTHING_GIVEN: dict[str, Any] = dict.fromkeys(one.name for one in fields(QueueSettings))
_BACKGROUND = frozenset({"qindex-housekeeper", "qindex-alarm", "msgstore-compaction"})
"""Threads whose failures are logged, and raised by a close of the engine."""


@contextmanager
def unmasked(error: BaseException | None) -> Iterator[None]:
    """Close an engine at the end of a block that ``error`` has ended. An earlier refusal of writes
    is logged then, so that ``error`` itself is raised."""
    try:
        yield
    except WritesRefusedError as refused:
        if error is None:
            raise
        _log.error("%s", refused)


class Engine:
    """An open store. Made by :func:`qindex.open`; a context manager that closes itself.

    ``findings``: those of the recovery when the store was opened, if it had not been closed
    cleanly, and damage that was met since.
    """

    def __init__(self, directory: str, options: Options, fs: FileSystem) -> None:
        check_unpatched()
        self.directory = directory
        self.options: Options = options
        self.findings: list[Finding] = []
        outside, fs = fs, beneath(fs, directory, hold=True)
        self._fs = fs
        self._poison = Poison()
        self._lock = CallLock(directory)
        self._calls = Calls(directory)
        self._closing = CallLock(directory)
        # Of the queues in use, by their names.
        self._queues: dict[str, Queue] = {}
        self._housekeeper: Housekeeper | None = None
        budget = FileBudget(options.max_open_files)
        ask = self._ask_for_room if options.background else None
        order = self._poison.order
        self._lock.before_waiting = order.add(Rank.ENGINE, self._lock.is_mine)
        self._roster = Roster(budget.journals, ask, order)
        self._alarm = Alarm(order)
        self._moves = Moves(fs, directory, self._poison, self._parts_of, options, self._alarm)
        self._shelf = Shelf(
            fs,
            directory,
            options,
            self._poison,
            self._lock,
            self._roster,
            self._moves,
            self._alarm,
            self._calls,
            self._ask_flush if options.background else None,
        )
        self._transactions = Transactions(self._moves, self._lock, self._calls, self._parts_of)
        self._directory_lock = self._enter(outside)
        try:
            self._open()
            self._begin()
        except OSError as error:
            self._directory_lock.release()
            raise StorageError(directory, "the store can't be opened", error) from error
        except BaseException:
            self._directory_lock.release()
            raise
        _log.debug("%s: open; this build of qindex is %s", directory, build())
        log_once(_log)

    # -- opening --------------------------------------------------------------------------------

    def _enter(self, outside: FileSystem) -> DirectoryLock:
        """Make the directory if need be (``outside``: to do so with), see that it is ours or free,
        and lock it."""
        fs, directory = self._fs, self.directory
        try:
            try:
                names = fs.listdir(directory)
            except FileNotFoundError:
                names = []
            if store_directory.is_empty_store(names):
                make_store_directory(outside, fs, directory, self.options.mode)
            elif layout.MARKER in names:
                follow(fs, os.path.join(directory, layout.MARKER))
                store_directory.refuse_version2(
                    directory, store_directory.read_marker(fs, directory)
                )
            elif not store_directory.find_marker(fs, directory):
                store_directory.refuse_vhost(fs, directory)
            path = os.path.join(directory, layout.LOCK)
            remedy = _SERVER_REMEDY if layout.SERVER_SOCKET in names else _LOCKED_REMEDY
            return DirectoryLock(fs, path, self.options.lock_timeout, remedy=remedy)
        except NotADirectoryError as error:
            raise NotAStoreError(f"{directory}: is a file, not a store directory") from error
        except OSError as error:
            raise StorageError(directory, "the store can't be opened", error) from error

    def _open(self) -> None:
        fs, directory, options = self._fs, self.directory, self.options
        marker = store_directory.read_marker(fs, directory)
        if marker is None:
            count = options.segment_entry_count or DEFAULT_ENTRY_COUNT
            identity = layout.new_identity()
            marker = layout.StoreMarker(count, options.vhost, identity=identity)
            replace_file(fs, os.path.join(directory, layout.MARKER), layout.pack_marker(marker))
        self._shelf.recover(marker)
        self._messages = self._shelf.messages
        self.findings = self._shelf.findings

    def _begin(self) -> None:
        """Finish what a crash cut short, and start what runs by itself."""
        options = self.options
        try:
            self._finish_transactions()
            self._wake_expiring()
            if options.background:
                self._housekeeper = Housekeeper(
                    self._roster,
                    flush_idle=options.flush_idle,
                    rest_idle=options.rest_idle,
                    budget=options.memory_budget,
                    order=self._poison.order,
                )
            self._alarm.begin()
        except BaseException:
            self._alarm.stop()
            for parts in self._shelf.levels():
                parts.state.index.journal.close(cut=False)
            self._messages.close()
            raise

    def _wake_expiring(self) -> None:
        """Open the queues with a ttl that hold messages: they expire though nobody asks for the
        queue."""
        for hashed, resting in list(self._shelf.resting.items()):
            try:
                name = self._shelf.expiring(hashed, resting)
                if name is not None:
                    self.queue(name)
            except (StoreError, OSError) as error:
                # The next call that opens this queue raises it; the other queues can be used.
                _log.warning(
                    "%s: its messages expire once it is used: %s", resting.directory, error
                )

    def _finish_transactions(self) -> None:
        """Finish the transactions and moves that a crash cut short. The queues they touch stay
        open: closing them would need room on the disk."""

        def queue_of(name: str) -> QueueParts | None:
            return self._parts_of(name) if self._shelf.has(checked_name(name)) else None

        hurt = {os.path.dirname(one.path) for one in self.findings if one.cause is Cause.DAMAGE}
        remove = finish_transactions(self._fs, self.directory, queue_of, hurt, self.findings)
        if remove is not None:
            for queue in self._awake_queues():
                queue._parts.flusher.sync()
            remove()

    # -- queues ---------------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        message_ttl: float | Unset | None = None,
        max_length: int | Unset | None = None,
        max_bytes: int | Unset | None = None,
        overflow: Overflow | Unset | None = None,
        delivery_limit: int | Unset | None = None,
        dead_letter: str | Unset | None = None,
        backoff: str | Unset | None = None,
        max_priority: int | Unset | None = None,
        serializer: str | Serializer | None = None,
    ) -> Queue:
        """Return the queue of this name, and make it if there is none.

        Settings are kept with the queue. None leaves a setting as it is, :data:`qindex.UNSET`
        removes it, and a change applies at once (docs/limits.md). A new queue is there after a
        crash.

        Args:
            name: The queue's name, up to 255 bytes.
            message_ttl: Seconds after which a message is dropped once it is at the head.
            max_length: The most messages.
            max_bytes: The most bytes of bodies.
            overflow: What a publish to a full queue does: ``"reject"``, ``"block"`` or
                ``"drop-head"``.
            delivery_limit: Deliveries after which a message is a dead letter.
            dead_letter: The queue that gets dead letters. Without it they are dropped.
            backoff: The pause before the next delivery, ``"exponential:BASE:CAP"`` in seconds.
            max_priority: 1 to 255 makes it a priority queue. It can be set only while the queue is
                empty.
            serializer: What this process publishes values with: ``"json"``, ``"msgpack"``,
                ``"unsafe-pickle"``, or an object with ``dumps`` and ``loads``. It is not kept with
                the queue.

        Returns:
            The queue, the same object for each call with its name.

        Raises:
            UsageError: The name or a setting is wrong.
            StorageError: The system refused.

        Example:
            >>> orders = engine.queue("orders", delivery_limit=5, dead_letter="failed")
            >>> orders.settings.delivery_limit
            5
        """
        if (
            message_ttl is None
            and max_length is None
            and max_bytes is None
            and overflow is None
            and delivery_limit is None
            and dead_letter is None
            and backoff is None
            and max_priority is None
            and serializer is None
            and name.__class__ is str
        ):
            # A program may look a queue up for each message.
            known = self._queues.get(name)
            if known is not None:
                self._lock.check()
                return known
        raw = checked_name(name)
        coder = None if serializer is None else coder_of(serializer)
        given = {
            "message_ttl": message_ttl,
            "max_length": max_length,
            "max_bytes": max_bytes,
            "overflow": overflow,
            "delivery_limit": delivery_limit,
            "dead_letter": dead_letter,
            "backoff": backoff,
            "max_priority": max_priority,
        }
        NO_SETTINGS.changed(**given)
        if dead_letter == name:
            raise UsageError(f"queue {name!r} can't be its own dead-letter queue")
        if max_priority is not None:
            # A queue that becomes a priority queue is to have nothing that is still to be durable.
            self._moves.settle()
        with self._lock:
            parts = self._shelf.find(name, raw, given)
            queue = self._queues.get(name)
            if queue is None or queue._parts is not parts:
                queue = self._queues[name] = Queue(parts, self)
            if coder is not None:
                queue._coder = coder
            return queue

    def _parts_of(self, name: str) -> QueueParts:
        return self.queue(name)._parts

    def _ask_flush(self, queue: Flusher) -> bool:
        return self._housekeeper is not None and self._housekeeper.ask(queue)

    def _ask_for_room(self) -> None:
        if self._housekeeper is not None:
            self._housekeeper.ask_for_room()

    def _awake_queues(self) -> list[Queue]:
        return list(self._queues.values())

    def queue_names(self) -> list[str]:
        """Return the names of all queues.

        Returns:
            The names, sorted.
        """
        with self._lock:
            return self._shelf.names()

    def delete_queue(self, name: str) -> int:
        """Delete a queue and its messages.

        A crash after the deletion began finishes it at the next open. The :class:`Queue` can't be
        used any more.

        Args:
            name: The name of the queue.

        Returns:
            The number of messages it held, which are lost.

        Raises:
            UsageError: There is no such queue.
            StorageError: The system refused; the queue stays.
        """
        raw = checked_name(name)
        with self._calls.here():
            count = self._delete_queue(name, raw)
        _log.info("%s: queue %r deleted, with %d messages", self.directory, name, count)
        return count

    def _delete_queue(self, name: str, raw: bytes) -> int:
        self._moves.settle()
        with self._lock, self._moves.forgetting():
            try:
                return self._shelf.remove(name, raw)
            finally:
                if not self._shelf.has(raw):
                    self._queues.pop(name, None)

    @overload
    def get(
        self, queues: Sequence[Queue | str], timeout: None = None, *, lease: float | None = None
    ) -> Delivery: ...
    @overload
    def get(
        self, queues: Sequence[Queue | str], timeout: float | None, *, lease: float | None = None
    ) -> Delivery | None: ...
    def get(
        self,
        queues: Sequence[Queue | str],
        timeout: float | None = None,
        *,
        lease: float | None = None,
    ) -> Delivery | None:
        """Take the next message of the first of several queues that has one.

        A message of a queue that comes earlier in the list is taken first. Where none has a
        message, the call sleeps until one comes to any of them.

        Args:
            queues: Queues of this engine, or their names.
            timeout: Seconds to wait for a message. None: for ever.
            lease: As in :meth:`qindex.Queue.get`.

        Returns:
            The delivery, whose `queue_name` says which queue it is from; None when no message came
            in time.

        Raises:
            UsageError: No queue is given, or one of another engine.
            DamageError: As :meth:`qindex.Queue.get`.

        Example:
            >>> delivery = engine.get(["urgent", "mail"], timeout=5)
        """
        sources = self._sources(queues)

        def take() -> tuple[QueueState, Delivery] | None:
            for one in sources:
                found = one.deliverer.get(lease)
                while found is None and one.deliverer.is_crowded() and one.state.catch_up():
                    found = one.deliverer.get(lease)
                if found is not None:
                    return one.state, found
            return None

        waits = has_time(timeout)
        taken = take()
        if taken is not None or not waits:
            given = None if taken is None else taken[1]
        else:
            given = take_first([one.state for one in sources], take, timeout)
        for one in sources:
            if one.state.owed:
                one.state.catch_up()
        return given

    def _sources(self, queues: Sequence[Queue | str]) -> list[QueueParts]:
        """Return the queues of a call, each once. Raises :class:`UsageError`."""
        if isinstance(queues, Queue):
            raise UsageError("queues must be a list, not a queue: use queue.get()")
        sources: dict[QueueParts, None] = {}
        for one in listed(queues, "queues"):
            queue = one if isinstance(one, Queue) else self.queue(one)
            if queue._parts.state.calls is not self._calls:
                raise UsageError(f"queue {queue.name!r} is of another engine")
            sources[queue._parts] = None
        if not sources:
            raise UsageError("get needs at least one queue")
        return list(sources)

    def publish_to(
        self,
        queues: Sequence[str],
        body: Body | Message,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
        timeout: float | None = None,
    ) -> list[int]:
        """Publish one message to several queues.

        All queues have the message or none has it, also after a crash (see :meth:`transaction`). A
        message for the message store is written once, with a reference for each queue. A small one
        is embedded in each.

        Args:
            queues: The names of the queues, each once.
            body: Bytes, or a Message with its own key, headers and properties.
            key: A key for ``find`` and for consumers.
            headers: Headers, kept with their types.
            properties: RabbitMQ's properties.
            ttl: Seconds after which the message is dropped once it is at the head.
            persistent: Keep the message beyond the engine's run.
            confirm: Wait until the message is on disk.
            timeout: Seconds to wait for room with ``overflow="block"``. None: forever.

        Returns:
            Its seq_id in each queue, in their order.

        Raises:
            UsageError: A name occurs twice, or a value can't be stored; none has the message.
            QueueFullError: One of the queues is full; none has the message.
            StorageError: The system refused; none has the message.

        Example:
            >>> engine.publish_to(["invoices", "audit"], b"order 17")
            [0, 0]
        """
        message = message_of(body, key, headers, properties, 0)
        names = listed(queues, "queues")
        while True:
            try:
                return self._publish_to(names, message, ttl, persistent, confirm)
            except WouldWaitError as full:
                timeout = await_room(full, timeout)

    def _publish_to(
        self,
        names: Sequence[str],
        message: Message,
        ttl: float | None = None,
        persistent: bool = True,
        confirm: bool = False,
    ) -> list[int]:
        """See :meth:`publish_to`. Raises :class:`WouldWaitError`."""
        if not names or len(set(names)) != len(names):
            raise UsageError("publish_to needs queue names, each once")
        with self._calls.here():
            with self.transaction() as tx:
                seqs = tx._publish_to(names, message, ttl, persistent)
            if confirm:
                for name in names:
                    self.queue(name).sync()
        tx.catch_up()
        return seqs

    def transaction(self) -> Transaction:
        """Return a transaction: publishes and acks in several queues, all of them or none.

        It is used in a ``with`` block, whose end commits. An exception in it rolls back. After a
        crash at any moment the transaction has happened whole or not at all. No other thread sees
        a part of it, and readers of the files see its messages once they are committed.

        Returns:
            A transaction, with :meth:`~qindex.Transaction.publish` and
            :meth:`~qindex.Transaction.ack`.

        Raises:
            ClosedError: The engine was closed.

        Example:
            >>> delivery = orders.get()
            >>> with engine.transaction() as tx:
            ...     seq_id = tx.publish("invoices", delivery.body)
            ...     tx.ack(delivery)
        """
        return Transaction(self._transactions)

    # -- schedules ------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        cron: str | None = None,
        *,
        queue: str,
        every: float | None = None,
        body: Body = b"",
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        timezone: str | None = None,
        missed: Missed = "once",
    ) -> Schedule:
        """Publish a message at set times, durably.

        A :class:`qindex.Ticker` in any process publishes the messages. Each is published once for
        each instant of the schedule, however many tickers run and whichever of them die. Its
        headers ``qindex-schedule`` and ``qindex-instant`` have the schedule's name and the instant
        in microseconds since 1970 UTC.

        A name that is scheduled already gets the new definition. It keeps its next instant where
        ``cron``, ``every`` and ``timezone`` are as before. The same definition changes nothing, so
        that programs may schedule at each start.

        Args:
            name: The name of the schedule, unique in the store.
            cron: A cron expression: minute, hour, day, month and weekday. It needs the extra
                ``worker``.
            queue: The name of the queue that gets the messages.
            every: Seconds between two messages, at least 0.1, instead of ``cron``. The first one
                comes after this many seconds.
            body: The body of each message.
            key: The key of each message.
            headers: The headers of each message.
            timezone: The time zone of ``cron``, as ``"Europe/Amsterdam"``. None: UTC.
            missed: What becomes of instants that passed while no ticker ran, or while the queue was
                full. ``"once"``: one message, for the latest. ``"all"``: one for each of them, up
                to the latest 100. ``"skip"``: none, unless the latest is less than a minute ago.

        Returns:
            The schedule, which can be paused and removed.

        Raises:
            UsageError: An argument is wrong, or a cron expression can't be read.

        Example:
            >>> pulse = engine.schedule("pulse", every=60, queue="jobs", body=b"ping")
            >>> pulse.paused
            False
        """
        from qindex.worker import schedules

        return schedules.schedule(
            self,
            name,
            cron,
            queue=queue,
            every=every,
            body=body,
            key=key,
            headers=headers,
            timezone=timezone,
            missed=missed,
        )

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of the store by name.

        Returns:
            The schedules as they are at this moment, in the order of their names.

        Example:
            >>> list(engine.schedules())
            ['pulse']
        """
        from qindex.worker import schedules

        return schedules.schedules(self)

    # -- the whole store ------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all calls that returned before, on all queues, durable against power loss."""
        with self._calls.here():
            self._moves.settle()
            self._messages.sync()
            self._sync_queues()

    def flush(self) -> None:
        """Bring the journals of all queues into their segment files, durably on return."""
        with self._calls.here():
            for queue in self._roster.unflushed():
                _unless_gone(queue.flusher.flush)

    def _sync_queues(self) -> None:
        """Sync all queues, many at a time."""
        together(
            self._fs, lambda one: _unless_gone(one.flusher.seal_and_sync), self._roster.unflushed()
        )

    def stats(self) -> EngineStats:
        """Return the figures of the store, and of the queues used since it was opened.

        Returns:
            The figures at this moment.
        """
        with self._lock:
            queues = self._awake_queues()
            return EngineStats(
                directory=self.directory,
                queues=tuple(sorted((queue.stats() for queue in queues), key=lambda one: one.name)),
                dirty_bytes=sum(one._parts.flusher.unflushed()[1] for one in queues),
                writes_refused=self._poison.reason,
                message_store=self._messages.stats(),
                build=build(),
            )

    def compact(self) -> CompactionReport | None:
        """Reclaim the space of dead messages in the message store now.

        A background thread does it otherwise.

        Returns:
            A report of the reclaimed space. None if there is no message store.

        Raises:
            StorageError: The system refused; nothing is lost.
        """
        with self._calls.here():
            return self._messages.compact()

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is just being closed, or was opened before a fork."""
        return self._lock.is_over()

    def close(self, drain: float = 0) -> None:
        """Sync, leave a snapshot that makes the next open quick, and release the lock.

        New calls are refused: the engine's at once, a queue's when its turn to close comes. Calls
        that wait for something raise :class:`~journal.errors.ClosedError`; close waits for the
        others under way. A second close waits for the first. Transient messages end here.

        After an error the engine is closed all the same, as when a signal's handler raises; the
        next open recovers. In a forked child, where the store is its parent's, and in finalizers at
        the end of the interpreter, it changes nothing.

        Args:
            drain: Seconds to wait first until all outstanding messages are settled. Meanwhile
                ``get`` raises :class:`~journal.errors.ClosedError`, ``consume`` ends, and all other
                calls work.

        Raises:
            StorageError: The system refused.
            WritesRefusedError: A write failed earlier, in the background. The error names the
                queues that are not all on disk.
            UsageError: A handler or finalizer called it in the middle of another call of its
                thread; nothing was done.
        """
        if self._lock.is_inherited():
            self._directory_lock.let_go()
            return
        if sys.is_finalizing():
            # A finalizer calls this at the end of the interpreter. Its threads were stopped
            # wherever they were, perhaps with locks taken, and nothing can be imported any more.
            # The disk is as a killed process leaves it.
            self._lock.refuse(ClosedError, f"{self.directory}: the interpreter has ended")
            return
        if self._closing.is_mine():
            return
        self._refuse_inside()
        if has_time(drain):
            deadline = monotonic() + drain
            while not self.closed and not self._is_drained() and monotonic() < deadline:
                sleep(LOOK)
        with self._closing:
            if not self.closed:
                self._close()

    def _is_drained(self) -> bool:
        """Hand out no more messages from now on. Return whether all that are out are settled."""
        queues = [queue._parts for queue in self._awake_queues()]
        for parts in queues:
            if not parts.deliverer.is_drained():
                parts.deliverer.drain()
        return not any(parts.out() for parts in queues)

    def _refuse_inside(self) -> None:
        """Refuse to close in the middle of a call, which would have to be waited for."""
        inside = self._lock.is_mine() or self._calls.is_mine() or self._moves.is_mine()
        held = any(one._parts.is_in_call_here() for one in self._awake_queues())
        if inside or held or self._is_own_thread():
            refuse_twice()

    def _is_own_thread(self) -> bool:
        housekeeper = self._housekeeper
        return (
            (housekeeper is not None and housekeeper.is_mine())
            or self._alarm.is_mine()
            or self._messages.is_this_thread()
        )

    def _close(self) -> None:
        """The end, in one order: no call begins any more; those under way end; the threads end;
        queues are synced and closed; the snapshot; the lock of the directory."""
        text = f"{self.directory}: the engine is closed"
        try:
            with self._lock:
                self._lock.refuse(ClosedError, text)
            self._calls.refuse(ClosedError, text)
            self._await_calls()
            self._stop_threads()
            self._close_files()
        except BaseException as error:
            if not isinstance(error, StoreError | OSError):
                self._poison.cut_short(error)
                # In any case: nothing may write once the directory's lock is given back.
                self._await_calls()
                self._stop_threads()
            raise
        finally:
            # No function of ours is called: a signal's handler may raise as it begins.
            if self._lock.refusal is not None:
                try:
                    self._messages.close()
                finally:
                    try:
                        self._directory_lock.release()
                    finally:
                        self._directory_lock.release()  # if one has raised there
                        leave(self._fs)

    def _await_calls(self) -> None:
        """Wait for the calls under way. Calls that wait for something give up."""
        for parts in self._shelf.levels():
            with parts.state.lock.anyway:
                parts.state.notify_all()
        # While queues close, the acks of messages that would be deleted may not be durable.
        self._messages.rest()
        self._calls.wait()

    def _check_open(self) -> None:
        with self._lock:
            pass

    def _stop_threads(self) -> None:
        if self._housekeeper is not None:
            self._housekeeper.stop()
        self._alarm.stop()

    def _close_files(self) -> None:
        """Close the queues, and leave a snapshot if all went well."""
        failure: Exception | None = None
        try:
            self._transactions.roll_back()
            self._moves.close()
            if self._poison.reason is None:
                self._messages.sync()
                self._sync_queues()
        except (StoreError, OSError) as error:
            failure = error
        at_rest = self._shelf.close()
        failure = failure or at_rest
        # No snapshot may keep the message store's counts where they can't be trusted.
        miscounted = self._messages.in_use and self._messages.miscounted
        if failure is None and self._poison.reason is None and not miscounted:
            self._messages.sync()
            message_store = self._messages.snapshot()
            write_snapshot(self._fs, self.directory, self._shelf.resting, message_store)
        if failure is None and self._poison.thread in _BACKGROUND:
            unflushed = sorted(
                queue.name for queue in self._awake_queues() if queue._parts.flusher.unflushed()[0]
            )
            held = ", ".join(map(repr, unflushed)) or "none"
            failure = WritesRefusedError(
                f"{self.directory}: closed, and a write or sync had failed in the background "
                f"({self._poison.reason}); queues that may not be on disk whole: {held}"
            )
        if failure is not None:
            raise failure

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with unmasked(error):
            self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"<Engine {self.directory!r}, {len(self._queues)} queues in use>"


def _unless_gone(call: Callable[[], None]) -> None:
    """Make each call, one for each queue, in turn; a queue that was deleted meanwhile is passed
    over."""
    with suppress(ClosedError):
        call()
