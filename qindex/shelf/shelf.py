"""The shelf: the queues of a store that are in use, and those at rest.

It finds a queue by its name, makes it, wakes it, puts it to rest, recovers it, removes it. What a
call does with a queue it does not know.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from journal import format as journal_format
from journal.errors import (
    ClosedError,
    DamageError,
    StorageError,
    StoreError,
    UsageError,
    storage_errors,
)
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, make_dirs, replace_file
from journal.fs.together import together
from journal.locks.call_lock import CallLock
from journal.locks.calls import Calls
from journal.poison import Poison, was_tried
from qindex.format import layout
from qindex.format.rabbitmq.names import MAX_PRIORITY, directory_name, format_queue_name
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.format.settings import (
    NO_SETTINGS,
    QueueSettings,
    Unset,
    checked_name,
    settings_values,
)
from qindex.index.messages import Messages
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import Segment
from qindex.index.seq_ids import SeqFile
from qindex.options import Options
from qindex.queue.dead_letters import Mover
from qindex.queue.flushing import Flusher, close_together
from qindex.queue.parts import QueueParts
from qindex.queue.priorities import PriorityParts
from qindex.queue.timer import Alarm
from qindex.recovery.damage import refuse_losses, report
from qindex.recovery.queue_directory import remove_queue_directory, stored_name
from qindex.recovery.settings_file import adopt_settings, read_settings
from qindex.recovery.snapshot import RestingQueue
from qindex.recovery.store_recovery import StoreRecovery, remove_journal
from qindex.shelf.idle_queues import Roster

_log = logging.getLogger("qindex.engine")

_NOTHING_GIVEN: dict[str, Any] = dict.fromkeys(one.name for one in fields(QueueSettings))


class Shelf:
    """The queues of one store, by the names of their directories.

    ``awake``: those in use. ``resting``: the state of the others. The engine's ``lock`` is held for
    every call, except while the store is opened and closed.

    ``mover``, ``alarm``, ``calls``, ``ask_flush``: what a queue in use needs of its engine.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        options: Options,
        poison: Poison,
        lock: CallLock,
        roster: Roster,
        mover: Mover,
        alarm: Alarm,
        calls: Calls,
        ask_flush: Callable[[Flusher], bool] | None,
    ) -> None:
        self.directory = directory
        self.options: Options = options
        self._fs = fs
        self._poison = poison
        self._lock = lock
        self._roster = roster
        self._mover = mover
        self._alarm = alarm
        self._calls = calls
        self._ask_flush = ask_flush
        self.awake: dict[str, QueueParts] = {}
        self.resting: dict[str, RestingQueue] = {}
        self._queues_directory = os.path.join(directory, layout.QUEUES)

    def recover(self, marker: layout.StoreMarker) -> None:
        """Read the clean close's snapshot, or recover all queues. Raises as an open."""
        self._entry_count = marker.entry_count
        self._vhost = marker.vhost
        make_dirs(self._fs, self._queues_directory)
        self._recovery = StoreRecovery(
            self._fs,
            self.directory,
            self._entry_count,
            self.options,
            self._poison,
            self._before_reclaim,
        )
        opened = self._recovery.open()
        self.resting = opened.queues
        self.messages: Messages = opened.messages
        self.findings: list[Finding] = opened.findings

    def _before_reclaim(self) -> None:
        """Sync the acks before the message store deletes the messages they released. Otherwise a
        crash could lose an ack whose message is already gone."""
        self._poison.check()
        together(self._fs, lambda one: one.flusher.sync_if_open(), self._roster.unflushed())

    # -- finding --------------------------------------------------------------------------------

    def find(self, name: str, raw: bytes, given: dict[str, Any]) -> QueueParts:
        """Return the queue of this name, with the settings that are ``given``; make it if there is
        none. ``raw``: the name's bytes."""
        hashed = directory_name(self._vhost, raw)
        parts = self.awake.get(hashed)
        if parts is not None and given["max_priority"] is not None:
            parts = self._with_priorities(parts, given["max_priority"])
        if parts is None:
            with storage_errors(self.directory, f"queue {name!r} can't be opened"):
                parts = self.awake[hashed] = self._wake(name, raw, hashed, given)
        elif parts.state.settings.changed(**given) != parts.state.settings:
            self._change(parts, given)
        return parts

    def names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        names = {parts.state.name for parts in self.awake.values()}
        for hashed, resting in self.resting.items():
            names.add(stored_name(self._fs, resting.directory, hashed, self.findings))
        return sorted(names)

    def levels(self) -> list[QueueParts]:
        """Return the parts in use of every directory."""
        return [level for parts in list(self.awake.values()) for level in parts.levels]

    def expiring(self, hashed: str, resting: RestingQueue) -> str | None:
        """Return the name of a queue at rest whose messages expire though nobody asks for it; None
        for any other. Raises :class:`StoreError`, :class:`OSError`."""
        # Of queues without settings nothing is read.
        if not resting.has_settings or hashed not in self.resting:
            return None
        settings = read_settings(self._fs, resting.directory)
        is_plain = settings.max_priority is None
        if settings.message_ttl is None or (is_plain and not resting.live):
            return None
        name = stored_name(self._fs, resting.directory, hashed, self.findings)
        priority = None if is_plain else 0
        its_own = directory_name(self._vhost, checked_name(name), priority)
        return name if its_own == hashed else None

    def has(self, raw: bytes) -> bool:
        """Return whether there is a queue of this name."""
        hashed = directory_name(self._vhost, raw)
        if hashed in self.awake or hashed in self.resting:
            return True
        return directory_name(self._vhost, raw, 0) in self.resting

    def _change(self, parts: QueueParts, given: dict[str, Any]) -> None:
        """Change the settings of a queue in use: first in its file, then in memory."""
        self._poison.check()
        state = parts.state
        try:
            wanted = adopt_settings(
                self._fs, state.index.directory, given, repair=self.options.repair
            )
        except OSError as error:
            what = f"the settings of queue {state.name!r} can't be changed"
            raise StorageError(self.directory, what, error) from error
        parts.change_settings(wanted)

    # -- waking ---------------------------------------------------------------------------------

    def _wake(self, name: str, raw: bytes, hashed: str, given: dict[str, Any]) -> QueueParts:
        first = directory_name(self._vhost, raw, 0)
        if first in self.resting and hashed in self.resting:
            self._settle_both(name, raw, hashed, first)
        if first in self.resting:
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
        resting = self.resting.get(hashed)
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
        self.resting.pop(hashed, None)
        parts = QueueParts(
            name,
            index,
            self.options,
            settings=settings,
            mover=self._mover,
            alarm=self._alarm,
            calls=self._calls,
            messages=self.messages,
            request_flush=self._ask_flush,
            files=names,
            beside=beside,
            priority=priority,
        )
        index.before_waking = partial(self._roster.admit, parts)
        if resting.journal:
            self._roster.admit(parts)
        return parts

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
        self.resting[hashed] = resting
        self.findings += findings
        self.messages.miscounted |= any(one.is_loss for one in findings)
        if not self.options.repair:
            refuse_losses(findings, remedy)

    def _recover(self, path: str) -> RestingQueue:
        resting, findings = self._recovery.recover_one(path)
        self.findings += findings
        return resting

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

    # -- priority queues ------------------------------------------------------------------------

    def _wake_priorities(self, name: str, raw: bytes, given: dict[str, Any]) -> PriorityParts:
        """Open a priority queue: all directories that it has."""
        there = self._priorities_there(raw)
        path = self.resting[directory_name(self._vhost, raw, 0)].directory
        stored = self._settings_in(path).max_priority
        if stored is None:
            # A node has made it, with a directory for each priority that it has had a message of.
            asked = given["max_priority"]
            stored = max(1, *there, asked if isinstance(asked, int) else 0)
        held = sum(self.resting[directory_name(self._vhost, raw, one)].live for one in there)
        self._check_priorities(name, stored, given["max_priority"], held)
        given = {**given, "max_priority": given["max_priority"] or stored}
        made = {0: self._wake_directory(name, raw, given, priority=0)}
        self._wake_others(name, raw, made)
        return self._priority_parts(name, raw, made)

    def _settle_both(self, name: str, raw: bytes, plain: str, first: str) -> None:
        """Undo or finish what a crash has cut short as a queue became a priority queue: it has
        directories of both kinds. Raises :class:`UsageError` where both hold messages."""
        there = self._priorities_there(raw)
        path = self.resting[first].directory
        is_empty = there == [0] and not self.resting[first].live
        if is_empty and self._settings_in(path).max_priority is None:
            gone = first
        elif not self.resting[plain].live:
            gone = plain
        else:
            raise UsageError(
                f"queue {name!r} has messages in a directory without priorities and in others with "
                "priorities: export its messages, delete it, and import them"
            )
        del self.resting[gone]
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
            if directory_name(self._vhost, raw, priority) in self.resting
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
        plain = self.resting.get(hashed)
        next_seq = 0
        if plain is not None:
            self._check_priorities(name, None, given["max_priority"], plain.live)
            settings = settings_values(self._settings_in(plain.directory))
            given = {**settings, **{key: one for key, one in given.items() if one is not None}}
            given = {**_NOTHING_GIVEN, **given}
            next_seq = plain.next_seq
        made = {0: self._wake_directory(name, raw, given, priority=0, next_seq=next_seq)}
        if plain is not None:
            del self.resting[hashed]
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

    def _with_priorities(self, parts: QueueParts, max_priority: int | Unset) -> QueueParts | None:
        """Check that a queue in use may have this ``max_priority``. Return None if it must be
        opened again, as a priority queue."""
        state = parts.state
        if isinstance(parts, PriorityParts):
            held = sum(one.state.index.live for one in parts.levels)
            self._check_priorities(state.name, parts.max_priority, max_priority, held)
            return parts
        if not isinstance(max_priority, int):
            return parts
        with state.lock, state:
            self._check_priorities(state.name, None, max_priority, state.index.live)
        hashed = os.path.basename(state.index.directory)
        with storage_errors(self.directory, f"queue {state.name!r} can't be closed"):
            self._put_to_rest(hashed)
        del self.awake[hashed]
        return None

    # -- rest and removal -----------------------------------------------------------------------

    def close(self) -> Exception | None:
        """Put all queues to rest. Return the first error, if any."""
        failure: Exception | None = None
        for hashed in list(self.awake):
            try:
                self._put_to_rest(hashed)
            except (StoreError, OSError) as error:
                failure = failure or error
        try:
            for resting in self.resting.values():
                self._remove_journal(resting)
        except StorageError as error:
            failure = failure or error
        return failure

    def _put_to_rest(self, hashed: str) -> None:
        """Close a queue that was in use."""
        parts = self.awake[hashed]
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
            self.resting[hashed] = level.flusher.resting()

    def remove(self, name: str, raw: bytes) -> int:
        """Remove a queue, and return how many messages it held. Raises :class:`UsageError` where
        there is none, :class:`StorageError`."""
        plain = directory_name(self._vhost, raw)
        parts = self.awake.get(plain)
        fs = self._fs
        levels: dict[str, QueueParts | RestingQueue] = {}
        if parts is not None:
            for level in parts.levels:
                levels[os.path.basename(level.state.index.directory)] = level
        elif self.has(raw):
            if plain in self.resting:
                levels[plain] = self.resting[plain]
            if directory_name(self._vhost, raw, 0) in self.resting:
                # That of priority 0 goes last: as long as it is there, so is the queue.
                for priority in reversed(self._priorities_there(raw)):
                    hashed = directory_name(self._vhost, raw, priority)
                    levels[hashed] = self.resting[hashed]
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
        self.awake.pop(plain, None)
        for hashed in levels:
            self.resting.pop(hashed, None)
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
        self.messages.remove(stored)
        remove_queue_directory(fs, path + layout.DELETED_SUFFIX)

    def _resting_ids(self, resting: RestingQueue) -> list[bytes]:
        """Return the ids of the messages that a queue has in the message store."""
        if not self.messages.in_use:
            return []
        try:
            loaded = self._recovery.load_one(resting.directory)
        except DamageError as error:
            # A damaged queue can also be deleted.
            _log.warning("%s: its messages stay in the message store until the next open", error)
            self.messages.miscounted = True
            return []
        self.messages.miscounted |= loaded.unacked != resting.live
        return [msg_id for _, msg_id in loaded.stored]
