"""Moving messages to a dead-letter queue: in one of the two queues at any time, whatever crashes.

One move, of one or more messages (*commit point*: 2):

1. An intent goes to ``qindex.moves``, with the seq_ids that the messages will have in the target.
2. The messages are appended to the target, and the intent is marked as done. The target's lock is
   held meanwhile: nobody takes a message before it is noted where it is.
3. The target is synced, then they are acknowledged in the source, then the source is synced.
4. Without any move under way the file of intents is emptied.

With ``durability="fsync"`` all of it is done on return, the intent synced first. Otherwise 3 and 4
wait for many moves at a time: for :data:`_MOST_PENDING` of them, the engine's idle time, a sync, or
the close; the source's entries stay unacknowledged meanwhile, so that no loss of power can take
the message from both queues. :mod:`qindex.unmoved` finishes at open
what a crash cut short.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, islice
from time import monotonic
from typing import TYPE_CHECKING

from journal.errors import ClosedError, QueueFullError, StorageError, StoreError
from journal.files import FileSystem, close_quietly, pwrite_all, unlink_if_there
from journal.poison import Poison
from qindex import layout
from qindex.alarm import Alarm
from qindex.dead_letter import Letter, NotMovedError, goes_round, with_death
from qindex.limits import give_room_back, keep_within, take_room
from qindex.message import Message
from qindex.move_format import DONE, Intent, pack_intent
from qindex.options import Options
from qindex.publisher import Notes, Prepared, Publisher
from qindex.waits import CALLER

if TYPE_CHECKING:
    from qindex.queue import Queue

__all__ = ["Moves"]

_log = logging.getLogger("qindex.moves")

_MOST_PENDING = 1024
"""Messages that were moved and are not yet acknowledged in their source, at the most."""


class Moves:
    """All moves of one engine. Thread-safe; no queue's lock may be held.

    ``queue_of`` gives a queue by its name.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        poison: Poison,
        queue_of: Callable[[str], Queue],
        options: Options,
        alarm: Alarm,
    ) -> None:
        self._fs = fs
        self._path = os.path.join(directory, layout.MOVES)
        self._poison = poison
        self._queue_of = queue_of
        self._fsync = options.durability == "fsync"
        self._background = options.background
        self._idle = options.flush_idle
        self._alarm = alarm
        self._boot = fs.boot_id()
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._end = 0
        self._pending: list[tuple[Queue, list[int], Queue]] = []
        self.pending = 0
        """Messages that were moved, and whose source and target are to be made durable."""
        self._closed = False

    def move(self, source: Queue, letters: Sequence[Letter]) -> None:
        """Move messages of ``source``, which are marked as being moved, to its dead-letter queue.

        On return they are there, or dropped, if they would go round in a loop; and they count no
        more in the source. Those that were not moved when this raises: :attr:`NotMovedError.left`.
        """
        name = source.settings.dead_letter
        assert name is not None
        left = list(letters)
        try:
            target = self._queue_of(name)
            rounds = [one for one in left if goes_round(one, name)]
            for one in rounds:
                _log.warning(
                    "queue %r: seq_id %d goes round between dead-letter queues: dropped",
                    source.name,
                    one.seq_id,
                )
            if rounds:
                source._moved([one.seq_id for one in rounds])
                source._end_moved([one.seq_id for one in rounds])
                left = [one for one in left if one not in rounds]
            most = _MOST_PENDING
            while left:
                some = self._next(left, most)
                try:
                    self._move_some(source, target, some)
                except QueueFullError:
                    if len(some) == 1:
                        raise
                    most = 1  # there may be room for some of them
                    continue
                left = left[len(some) :]
            if self._fsync:
                self.settle()
        except StoreError as error:
            raise NotMovedError(left, error) from error
        keep_within(target)
        if self.pending >= _MOST_PENDING and CALLER.waits:
            self.settle()
        elif self._background or not CALLER.waits:
            self._alarm.set(self, monotonic() + self._idle)

    def _on_alarm(self) -> None:
        self.settle()

    @staticmethod
    def _next(left: list[Letter], most: int) -> list[Letter]:
        """Give the first of these, equally persistent, ``most`` at the most."""
        _, group = next(groupby(left, lambda one: one.persistent))
        return list(islice(group, most))

    def _move_some(self, source: Queue, target: Queue, letters: list[Letter]) -> None:
        items = [_prepared(target, source.name, one) for one in letters]
        seqs = [one.seq_id for one in letters]
        persistent = letters[0].persistent
        if target._limits is not None:
            take_room(target, items, 0)
        ids = [item.msg_id for item in items]
        note = _Note(self, Intent(self._boot, source.name, target.name, 0, seqs, ids))
        with self._lock:
            try:
                self._append(target, items, persistent, note)
            except BaseException:
                give_room_back(target, items)
                raise
            source._moved(seqs)
            self._pending.append((source, seqs, target))
            self.pending += len(seqs)

    def _append(
        self,
        target: Queue,
        items: Sequence[Prepared],
        persistent: bool,
        note: Notes,
    ) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")
        self._poison.check()
        stored: list[bytes] = []
        try:
            stored = target._store_records(items, 1, persistent)
            expiry = target._expiry(None)
            target._append_entries(items, expiry, persistent, notes=note, reserved=True)
        except BaseException:
            target._release(stored)
            raise

    # -- the file -------------------------------------------------------------------------------

    def announce(self, intent: Intent) -> None:
        """Note what is about to be done; durably if all is to be."""
        frame = pack_intent(intent)
        fs = self._fs
        syncing = False
        try:
            if self._fd is None:
                self._fd = fs.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                if self._fsync:
                    fs.sync_dir(os.path.dirname(self._path))
            pwrite_all(fs, self._fd, frame, self._end)
            if self._fsync:
                syncing = True
                fs.fdatasync(self._fd)
        except OSError as error:
            failure = StorageError(self._path, "a move can't be noted", error)
            if syncing:
                self._poison.set(failure)
            raise failure from error
        self._end += len(frame)

    def conclude(self) -> None:
        """Note that what was announced last is done. The byte is there already: this can't meet a
        full disk."""
        assert self._fd is not None
        try:
            pwrite_all(self._fs, self._fd, DONE, self._end - 1)
        except OSError as error:
            failure = StorageError(self._path, "a move can't be noted", error)
            self._poison.set(failure)
            raise failure from error

    # -- making durable -------------------------------------------------------------------------

    def settle(self) -> None:
        """Do what is left of all moves: sync targets, acknowledge in the sources, sync them."""
        if self.pending:
            with self._lock:
                self._settle()

    def _settle(self) -> None:
        pending = self._pending
        for target in {id(one): one for _, _, one in pending}.values():
            _sync(target)
        sources = {id(one): one for one, _, _ in pending}
        for source, seqs, _ in pending:
            try:
                source._end_moved(seqs)
            except ClosedError as error:
                _log.info("%s", error)  # it was deleted, and its messages with it
        for source in sources.values():
            _sync(source)
        self._pending = []
        self.pending = 0
        if self._fd is not None:
            try:
                self._fs.truncate(self._fd, 0)
            except OSError as error:
                # What stays is of moves that are done: it says nothing wrong, and more follows it.
                _log.warning("%s: can't be emptied: %s", self._path, error)
                return
            self._end = 0

    def close(self) -> None:
        """Settle all, and take no more moves. Raises :class:`StorageError`: then the file stays,
        and the next open settles."""
        with self._lock:
            self._closed = True
            try:
                if self._pending and self._poison.reason is None:
                    self._settle()
            finally:
                fd, self._fd = self._fd, None
                if fd is not None:
                    close_quietly(self._fs, fd, self._path)
            if fd is not None and not self._pending:
                try:
                    unlink_if_there(self._fs, self._path)
                except OSError as error:
                    # It says nothing that is wrong: the next open finds all of it done.
                    raise StorageError(self._path, "can't be removed", error) from error


class _Note:
    """Notes one move: :class:`qindex.publisher.Notes`."""

    def __init__(self, moves: Moves, intent: Intent) -> None:
        self._moves = moves
        self._intent = intent

    def before(self, first: int) -> None:
        """Announce the move."""
        self._moves.announce(replace(self._intent, first=first))

    def after(self) -> None:
        """Conclude it."""
        self._moves.conclude()


def _sync(queue: Publisher) -> None:
    try:
        queue._sync_all()
    except ClosedError as error:
        _log.info("%s", error)  # it was deleted


def _prepared(target: Publisher, source: str, letter: Letter) -> Prepared:
    """Encode a letter for its queue; as it was, where the headers of its death do not fit."""
    message: Message = with_death(letter, source)
    try:
        return target._prepared(message, letter.persistent)
    except StoreError as error:
        _log.warning(
            "queue %r: seq_id %d goes to its dead-letter queue without headers that tell why: %s",
            source,
            letter.seq_id,
            error,
        )
        return target._prepared(letter.message, letter.persistent)
