"""The engine: one store directory, its queues, its lock."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn, overload

from journal import format as journal_format
from journal.arguments import listed, refuse_pickling
from journal.compiled import build, log_once
from journal.errors import (
    ClosedError,
    DamageError,
    NotAStoreError,
    StorageError,
    StoreError,
    UsageError,
    WritesRefusedError,
    storage_errors,
)
from journal.findings import Cause, Finding, Kind
from journal.fs.beneath import beneath, follow, leave, make_store_directory
from journal.fs.files import FileSystem, make_dirs, replace_file
from journal.fs.together import together
from journal.locks.call_lock import CallLock, refuse_twice
from journal.locks.calls import Calls
from journal.locks.directory_lock import DirectoryLock
from journal.locks.lock_order import Rank
from journal.poison import Poison, was_tried
from journal.threads import check_unpatched
from msgstore import CompactionReport
from qindex.engine.housekeeper import Housekeeper
from qindex.engine.idle_queues import Roster
from qindex.engine.moves import Moves
from qindex.engine.transaction_recovery import finish_transactions
from qindex.engine.transactions import Transaction, Transactions
from qindex.format import layout
from qindex.format.message import Body, Message, message_of
from qindex.format.rabbitmq.names import MAX_PRIORITY, directory_name, format_queue_name
from qindex.format.segment import DEFAULT_ENTRY_COUNT
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.format.settings import (
    NO_SETTINGS,
    Overflow,
    QueueSettings,
    Unset,
    checked_name,
    settings_values,
)
from qindex.format.values import Serializer, coder_of
from qindex.index.file_budget import FileBudget
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import Segment
from qindex.index.seq_ids import SeqFile
from qindex.options import Options
from qindex.queue.delivery import Delivery
from qindex.queue.flushing import Flusher, close_together
from qindex.queue.parts import QueueParts
from qindex.queue.priorities import PriorityParts
from qindex.queue.queue import Queue
from qindex.queue.room import WouldWaitError
from qindex.queue.state import QueueState
from qindex.queue.stats import EngineStats
from qindex.queue.timer import Alarm
from qindex.queue.waiting import await_room, take_first
from qindex.queue.wake_ups import has_time
from qindex.recovery import store_directory
from qindex.recovery.damage import refuse_losses, report
from qindex.recovery.queue_directory import remove_queue_directory, stored_name
from qindex.recovery.settings_file import adopt_settings, read_settings
from qindex.recovery.snapshot import RestingQueue, write_snapshot
from qindex.recovery.store_recovery import StoreRecovery, remove_journal

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
        self._awake: dict[str, Queue] = {}
        # The directories' names of the queues that were looked up.
        self._hashes: dict[str, str] = {}
        self._resting: dict[str, RestingQueue] = {}
        self._queues_directory = os.path.join(directory, layout.QUEUES)
        self._housekeeper: Housekeeper | None = None
        budget = FileBudget(options.max_open_files)
        ask = self._ask_for_room if options.background else None
        order = self._poison.order
        self._lock.before_waiting = order.add(Rank.ENGINE, self._lock.is_mine)
        self._roster = Roster(budget.journals, ask, order)
        self._alarm = Alarm(order)
        self._moves = Moves(fs, directory, self._poison, self._parts_of, options, self._alarm)
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
        self._entry_count = marker.entry_count
        self._vhost = marker.vhost
        make_dirs(fs, self._queues_directory)
        self._recovery = StoreRecovery(
            fs,
            directory,
            self._entry_count,
            options,
            self._poison,
            self._before_reclaim,
        )
        opened = self._recovery.open()
        self._resting = opened.queues
        self._messages = opened.messages
        self.findings = opened.findings

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
            for parts in self._awake_parts():
                parts.state.index.journal.close(cut=False)
            self._messages.close()
            raise

    def _wake_expiring(self) -> None:
        """Open the queues with a ttl that hold messages: they expire though nobody asks for the
        queue. Of queues without settings nothing is read."""
        for hashed, resting in list(self._resting.items()):
            if not resting.has_settings or hashed not in self._resting:
                continue
            try:
                settings = read_settings(self._fs, resting.directory)
                is_plain = settings.max_priority is None
                if settings.message_ttl is None or (is_plain and not resting.live):
                    continue
                name = stored_name(self._fs, resting.directory, hashed, self.findings)
                priority = None if is_plain else 0
                if directory_name(self._vhost, checked_name(name), priority) == hashed:
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
            return self._parts_of(name) if self._is_there(checked_name(name)) else None

        hurt = {os.path.dirname(one.path) for one in self.findings if one.cause is Cause.DAMAGE}
        remove = finish_transactions(self._fs, self.directory, queue_of, hurt, self.findings)
        if remove is not None:
            for queue in self._awake_queues():
                queue._parts.flusher.sync()
            remove()

    def _is_there(self, raw: bytes) -> bool:
        """Return whether there is a queue of this name."""
        hashed = directory_name(self._vhost, raw)
        if hashed in self._awake or hashed in self._resting:
            return True
        return directory_name(self._vhost, raw, 0) in self._resting

    def _put_to_rest(self, hashed: str) -> None:
        """Close a queue that was in use."""
        parts = self._awake[hashed]._parts
        try:
            parts.close()
        finally:
            for level in parts.levels:
                self._roster.leave(level)
        self._rest_again(parts.levels)

    def _rest_again(self, levels: Iterable[QueueParts]) -> None:
        """Note the state of directories whose files are closed."""
        for level in levels:
            hashed = os.path.basename(level.state.index.directory)
            self._resting[hashed] = level.flusher.resting()

    def _before_reclaim(self) -> None:
        """Sync the acks before the message store deletes the messages they released. Otherwise a
        crash could lose an ack whose message is already gone."""
        self._poison.check()
        together(self._fs, lambda one: one.flusher.sync_if_open(), self._roster.unflushed())

    def _recover(self, path: str) -> RestingQueue:
        resting, findings = self._recovery.recover_one(path)
        self.findings += findings
        return resting

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
            known = self._awake.get(self._hashes.get(name, ""))
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
            hashed = self._hashes[name] = directory_name(self._vhost, raw)
            queue = self._awake.get(hashed)
            if queue is not None and max_priority is not None:
                queue = self._with_priorities(queue, max_priority)
            if queue is None:
                with storage_errors(self.directory, f"queue {name!r} can't be opened"):
                    parts = self._wake(name, raw, hashed, given)
                queue = self._awake[hashed] = Queue(parts, self)
            elif queue.settings.changed(**given) != queue.settings:
                self._change(queue, given)
            if coder is not None:
                queue._coder = coder
            return queue

    def _change(self, queue: Queue, given: dict[str, Any]) -> None:
        """Change the settings of a queue in use: first in its file, then in memory."""
        self._poison.check()
        state = queue._parts.state
        try:
            wanted = adopt_settings(
                self._fs, state.index.directory, given, repair=self.options.repair
            )
        except OSError as error:
            what = f"the settings of queue {queue.name!r} can't be changed"
            raise StorageError(self.directory, what, error) from error
        queue._parts.change_settings(wanted)

    def _wake(self, name: str, raw: bytes, hashed: str, given: dict[str, Any]) -> QueueParts:
        first = directory_name(self._vhost, raw, 0)
        if first in self._resting and hashed in self._resting:
            self._settle_both(name, raw, hashed, first)
        if first in self._resting:
            return self._wake_priorities(name, raw, given)
        if isinstance(given["max_priority"], int):
            return self._begin_priorities(name, raw, hashed, given)
        return self._wake_directory(name, raw, given)

    def _wake_directory(
        self,
        name: str,
        raw: bytes,
        given: dict[str, Any],
        *,
        priority: int | None = None,
        beside: QueueParts | None = None,
        next_seq: int = 0,
    ) -> QueueParts:
        """Open the directory of a queue, or of one priority of it; make it if there is none.
        ``beside``: that of priority 0. ``next_seq``: the first seq_id of a new directory."""
        fs = self._fs
        hashed = directory_name(self._vhost, raw, priority)
        path = os.path.join(self._queues_directory, hashed)
        resting = self._resting.get(hashed)
        if resting is None:
            if given["overflow"] is not None:
                # Otherwise a call that is refused below would leave a new queue.
                NO_SETTINGS.changed(**given).check_overflow()
            resting, names = self._make(path, self._queue_name_file(raw, priority))
            if next_seq > resting.next_seq:
                resting = replace(resting, next_seq=next_seq)
                SeqFile(fs, os.path.join(path, SEQ_FILE_NAME), self._poison).reserve(next_seq)
                names = fs.listdir(path)
            if beside is None:
                _log.info("%s: queue %r made", self.directory, name)
        else:
            names = fs.listdir(path)
            if layout.QUEUE_NAME not in names:
                # It was lost, and reported as damage at open: this caller knows the name.
                name_file = os.path.join(path, layout.QUEUE_NAME)
                replace_file(fs, name_file, self._queue_name_file(raw, priority))
        if resting.journal:
            resting = self._resume(resting, hashed)
        self._remove_journal(resting)
        if beside is None:
            repair = self.options.repair
            are_there = layout.SETTINGS in names
            settings = adopt_settings(fs, path, given, repair=repair, are_there=are_there)
        else:
            settings = beside.state.settings
        seq_path = os.path.join(path, SEQ_FILE_NAME)
        seq_file = SeqFile(fs, seq_path, self._poison, is_there=SEQ_FILE_NAME in names)
        segments = {
            number: Segment.unloaded(number, self._entry_count, unacked, size)
            for number, (unacked, size) in resting.segments.items()
        }
        index = QueueIndex(
            fs,
            path,
            self._entry_count,
            self._poison,
            segments=segments,
            next_seq=resting.next_seq,
            seq_file=seq_file,
        )
        index.findings = self.findings
        if resting.journal:
            index.take_over(resting.journal, resting.held, resting.sums)
            if index.live != resting.held:
                self._refuse_count(resting, hashed, index)
        self._resting.pop(hashed, None)
        ask = self._ask_flush if self.options.background else None
        parts = QueueParts(
            name,
            index,
            self.options,
            settings=settings,
            mover=self._moves,
            alarm=self._alarm,
            calls=self._calls,
            messages=self._messages,
            request_flush=ask,
            files=names,
            beside=beside,
            priority=priority,
        )
        index.before_waking = partial(self._roster.admit, parts)
        if resting.journal:
            self._roster.admit(parts)
        return parts

    # -- priority queues ------------------------------------------------------------------------

    def _wake_priorities(self, name: str, raw: bytes, given: dict[str, Any]) -> PriorityParts:
        """Open a priority queue: all directories that it has."""
        there = self._priorities_there(raw)
        path = self._resting[directory_name(self._vhost, raw, 0)].directory
        stored = self._settings_in(path).max_priority
        if stored is None:
            # A node has made it, with a directory for each priority that it has had a message of.
            asked = given["max_priority"]
            stored = max(1, *there, asked if isinstance(asked, int) else 0)
        held = sum(self._resting[directory_name(self._vhost, raw, one)].live for one in there)
        self._check_priorities(name, stored, given["max_priority"], held)
        given = {**given, "max_priority": given["max_priority"] or stored}
        made = {0: self._wake_directory(name, raw, given, priority=0)}
        self._wake_others(name, raw, made)
        return self._priority_parts(name, raw, made)

    def _settle_both(self, name: str, raw: bytes, plain: str, first: str) -> None:
        """Undo or finish what a crash has cut short as a queue became a priority queue: it has
        directories of both kinds. Raises :class:`UsageError` where both hold messages."""
        there = self._priorities_there(raw)
        path = self._resting[first].directory
        is_empty = there == [0] and not self._resting[first].live
        if is_empty and self._settings_in(path).max_priority is None:
            gone = first
        elif not self._resting[plain].live:
            gone = plain
        else:
            raise UsageError(
                f"queue {name!r} has messages in a directory without priorities and in others with "
                "priorities: export its messages, delete it, and import them"
            )
        del self._resting[gone]
        self._remove_directory(gone)

    def _priority_parts(self, name: str, raw: bytes, made: dict[int, QueueParts]) -> PriorityParts:
        def make(priority: int) -> QueueParts:
            with self._lock:
                level = parts.made(priority)
                if level is None:
                    parts.state.lock.check()
                    with storage_errors(self.directory, f"queue {name!r} can't be written"):
                        level = self._wake_directory(
                            name, raw, _NOTHING_GIVEN, priority=priority, beside=made[0]
                        )
                    parts.add(priority, level)
                return level

        parts = PriorityParts(made, make)
        return parts

    def _settings_in(self, path: str) -> QueueSettings:
        """Read the settings in a queue's directory. Raises :class:`DamageError`, unless the store
        is open for repair: then damaged ones are set aside."""
        return adopt_settings(self._fs, path, {}, repair=self.options.repair)

    def _priorities_there(self, raw: bytes) -> list[int]:
        """Return the priorities of which a queue that is not in use has a directory."""
        return [
            priority
            for priority in range(MAX_PRIORITY + 1)
            if directory_name(self._vhost, raw, priority) in self._resting
        ]

    @staticmethod
    def _check_priorities(
        name: str, stored: int | None, asked: int | Unset | None, held: int
    ) -> None:
        """Raise :class:`UsageError` where the ``max_priority`` of a queue can't be changed."""
        if asked is None or asked == stored:
            return
        if not isinstance(asked, int):
            raise UsageError(
                f"queue {name!r} is a priority queue: max_priority can't be taken away; delete the "
                "queue, and make it anew"
            )
        if held:
            was = f"max_priority={stored}" if stored else "no priorities"
            raise UsageError(
                f"queue {name!r} has {was}, and messages: {held}. max_priority can be set to "
                f"{asked} only while it is empty"
            )

    def _begin_priorities(
        self, name: str, raw: bytes, hashed: str, given: dict[str, Any]
    ) -> PriorityParts:
        """Make a priority queue, or make one of a queue without priorities that is empty."""
        plain = self._resting.get(hashed)
        next_seq = 0
        if plain is not None:
            self._check_priorities(name, None, given["max_priority"], plain.live)
            settings = settings_values(self._settings_in(plain.directory))
            given = {**settings, **{key: one for key, one in given.items() if one is not None}}
            given = {**_NOTHING_GIVEN, **given}
            next_seq = plain.next_seq
        made = {0: self._wake_directory(name, raw, given, priority=0, next_seq=next_seq)}
        if plain is not None:
            del self._resting[hashed]
            self._remove_directory(hashed)
        # There are others where the directory of priority 0 was lost.
        self._wake_others(name, raw, made)
        return self._priority_parts(name, raw, made)

    def _wake_others(self, name: str, raw: bytes, made: dict[int, QueueParts]) -> None:
        """Open the directories of the priorities above 0. If one can't be opened, the others are
        closed again."""
        try:
            for priority in self._priorities_there(raw):
                made[priority] = self._wake_directory(
                    name, raw, _NOTHING_GIVEN, priority=priority, beside=made[0]
                )
        except BaseException:
            close_together([level.flusher for level in made.values()])
            for level in made.values():
                self._roster.leave(level)
            self._rest_again(made.values())
            raise

    def _with_priorities(self, queue: Queue, max_priority: int | Unset) -> Queue | None:
        """Check that a queue in use may have this ``max_priority``. Return None if it must be
        opened again, as a priority queue."""
        parts = queue._parts
        state = parts.state
        if isinstance(parts, PriorityParts):
            held = sum(one.state.index.live for one in parts.levels)
            self._check_priorities(queue.name, parts.max_priority, max_priority, held)
            return queue
        if not isinstance(max_priority, int):
            return queue
        with state.lock, state:
            self._check_priorities(queue.name, None, max_priority, state.index.live)
        hashed = os.path.basename(state.index.directory)
        with storage_errors(self.directory, f"queue {queue.name!r} can't be closed"):
            self._put_to_rest(hashed)
        del self._awake[hashed]
        return None

    def _resume(self, resting: RestingQueue, hashed: str) -> RestingQueue:
        """Return the state of a queue whose journal is not empty, once the queue is sound. Raises
        :class:`DamageError` for a loss, once: the next call goes on with the rest."""
        resting, findings = self._recovery.resume(resting)
        remedy = "the bytes are quarantined; the next call goes on with the rest"
        self._take_note(resting, hashed, findings, remedy)
        return resting

    def _refuse_count(self, resting: RestingQueue, hashed: str, index: QueueIndex) -> None:
        """Report a sound journal that differs from the one of the clean close. Raises
        :class:`DamageError` once, as :meth:`_resume`."""
        path = os.path.join(resting.directory, journal_format.FILE_NAME)
        what = (
            f"the queue has {index.live} messages with it; it had {resting.held} at the clean close"
        )
        lost = "messages are missing, or acknowledged ones are back"
        found = Finding(path, 0, resting.journal, Cause.DAMAGE, what, lost, Kind.COUNT)
        report(found)
        if not self.options.repair:
            index.journal.close(cut=False)
        resting = replace(resting, held=index.live)
        self._take_note(resting, hashed, [found], "the next call continues with the rest")

    def _take_note(
        self, resting: RestingQueue, hashed: str, findings: list[Finding], remedy: str
    ) -> None:
        """Keep the findings of opening a queue. Raises :class:`DamageError` for a loss, unless the
        store is open for repair."""
        self._resting[hashed] = resting
        self.findings += findings
        self._messages.miscounted |= any(one.is_loss for one in findings)
        if not self.options.repair:
            refuse_losses(findings, remedy)

    def _queue_name_file(self, raw: bytes, priority: int | None) -> bytes:
        return format_queue_name(self._vhost, raw, priority)

    def _make(self, path: str, queue_name: bytes) -> tuple[RestingQueue, list[str]]:
        """Make the directory of a queue, durably; returns the names that are in it but for its own.
        Raises :class:`OSError`, :class:`StorageError`, :class:`WritesRefusedError`."""
        fs = self._fs
        self._poison.check()
        names: list[str] = []
        try:
            fs.mkdir(path)
        except FileExistsError:
            names = fs.listdir(path)
        if set(names) & {journal_format.FILE_NAME, SEQ_FILE_NAME}:
            # Its deletion was asked for and failed: it is still all there.
            resting = self._recover(path)
            return resting, fs.listdir(path)
        replace_file(fs, os.path.join(path, layout.QUEUE_NAME), queue_name)
        # Last, so that one commit of a journaling file system has the directory and the file.
        fs.sync_dir(self._queues_directory)
        return RestingQueue(path, 0), names

    def _remove_journal(self, resting: RestingQueue) -> None:
        """Remove the empty journal that recovery may have left to a queue, before anything is
        written. Raises :class:`StorageError`."""
        if not resting.journal_left or self._poison.reason is not None:
            return
        try:
            remove_journal(self._fs, resting.directory, [journal_format.FILE_NAME])
        except OSError as error:
            failure = StorageError(resting.directory, "the journal can't be removed", error)
            if was_tried(error):
                self._poison.set(failure)
            raise failure from error
        resting.journal_left = False

    def _parts_of(self, name: str) -> QueueParts:
        return self.queue(name)._parts

    def _ask_flush(self, queue: Flusher) -> bool:
        return self._housekeeper is not None and self._housekeeper.ask(queue)

    def _ask_for_room(self) -> None:
        if self._housekeeper is not None:
            self._housekeeper.ask_for_room()

    def _awake_queues(self) -> list[Queue]:
        return list(self._awake.values())

    def _awake_parts(self) -> list[QueueParts]:
        """Return the parts in use of every directory."""
        return [level for queue in self._awake_queues() for level in queue._parts.levels]

    def queue_names(self) -> list[str]:
        """Return the names of all queues.

        Returns:
            The names, sorted.
        """
        with self._lock:
            names = {queue.name for queue in self._awake.values()}
            for hashed, resting in self._resting.items():
                names.add(stored_name(self._fs, resting.directory, hashed, self.findings))
            return sorted(names)

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
            plain = directory_name(self._vhost, raw)
            queue = self._awake.get(plain)
            fs = self._fs
            levels: dict[str, QueueParts | RestingQueue] = {}
            if queue is not None:
                for level in queue._parts.levels:
                    levels[os.path.basename(level.state.index.directory)] = level
            elif self._is_there(raw):
                if plain in self._resting:
                    levels[plain] = self._resting[plain]
                if directory_name(self._vhost, raw, 0) in self._resting:
                    # That of priority 0 goes last: as long as it is there, so is the queue.
                    for priority in reversed(self._priorities_there(raw)):
                        hashed = directory_name(self._vhost, raw, priority)
                        levels[hashed] = self._resting[hashed]
            else:
                raise UsageError(f"there is no queue {name!r}")
            for hashed in levels:
                path = os.path.join(self._queues_directory, hashed)
                with storage_errors(path, "the queue can't be deleted"):
                    fs.listdir(path)  # Where that can't be had, the queue stays.
            count = 0
            stored: list[list[bytes]] = []
            for one in levels.values():
                if isinstance(one, RestingQueue):
                    count += one.live
                    stored.append(self._resting_ids(one))
                else:
                    count += one.ready() + one.out()
                    text = f"queue {name!r} was deleted"
                    stored.append(one.flusher.abandon(ClosedError, text))
                    self._roster.leave(one)
            self._awake.pop(plain, None)
            self._hashes.pop(name, None)
            for hashed in levels:
                self._resting.pop(hashed, None)
            for hashed, ids in zip(levels, stored, strict=True):
                path = os.path.join(self._queues_directory, hashed)
                with storage_errors(path, "the queue can't be deleted"):
                    self._remove_directory(hashed, ids)
        return count

    def _remove_directory(self, hashed: str, stored: Sequence[bytes] = ()) -> None:
        """Remove the directory of a queue, in which ``stored`` messages of the message store were.
        Raises :class:`OSError`, :class:`StorageError`."""
        fs = self._fs
        path = os.path.join(self._queues_directory, hashed)
        if hashed + layout.DELETED_SUFFIX in fs.listdir(self._queues_directory):
            # An earlier deletion of a queue of this name has failed half-way.
            remove_queue_directory(fs, path + layout.DELETED_SUFFIX)
        fs.rename(path, path + layout.DELETED_SUFFIX)
        fs.sync_dir(self._queues_directory)
        self._messages.remove(stored)
        remove_queue_directory(fs, path + layout.DELETED_SUFFIX)

    def _resting_ids(self, resting: RestingQueue) -> list[bytes]:
        """Return the ids of the messages that a queue has in the message store."""
        if not self._messages.in_use:
            return []
        try:
            loaded = self._recovery.load_one(resting.directory)
        except DamageError as error:
            # A damaged queue can also be deleted.
            _log.warning("%s: its messages stay in the message store until the next open", error)
            self._messages.miscounted = True
            return []
        self._messages.miscounted |= loaded.unacked != resting.live
        return [msg_id for _, msg_id in loaded.stored]

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
            lease: As in :meth:`qindex.queue.queue.Queue.get`.

        Returns:
            The delivery, whose `queue_name` says which queue it is from; None when no message came
            in time.

        Raises:
            UsageError: No queue is given, or one of another engine.
            DamageError: As :meth:`qindex.queue.queue.Queue.get`.

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
        for parts in self._awake_parts():
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
        for hashed in list(self._awake):
            try:
                self._put_to_rest(hashed)
            except (StoreError, OSError) as error:
                failure = failure or error
        try:
            for resting in self._resting.values():
                self._remove_journal(resting)
        except StorageError as error:
            failure = failure or error
        # No snapshot may keep the message store's counts where they can't be trusted.
        miscounted = self._messages.in_use and self._messages.miscounted
        if failure is None and self._poison.reason is None and not miscounted:
            self._messages.sync()
            message_store = self._messages.snapshot()
            write_snapshot(self._fs, self.directory, self._resting, message_store)
        if failure is None and self._poison.thread in _BACKGROUND:
            unflushed = sorted(
                queue.name for queue in self._awake.values() if queue._parts.flusher.unflushed()[0]
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
        return f"<Engine {self.directory!r}, {len(self._awake)} queues in use>"


def _unless_gone(call: Callable[[], None]) -> None:
    """Make each call, one for each queue, in turn; a queue that was deleted meanwhile is passed
    over."""
    with suppress(ClosedError):
        call()
