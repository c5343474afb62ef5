"""Moving messages to a dead-letter queue: in one of the two queues at any time, whatever crashes.

One move, of one or more messages (*commit point*: 2):

1. An intent goes to ``qindex.moves``, with the seq_ids that the messages will have in the target.
2. The messages are appended to the target, and the intent is marked as done. The target's lock is
   held meanwhile: nobody takes a message before it is noted where it is.
3. The target is synced, then they are acknowledged in the source, then the source is synced.
4. Without any move under way the file of intents is emptied.

With ``durability="fsync"`` all of it is done on return, the intent synced first; what threads ask
for while one does this waits, and is then done as one move. Otherwise 3 and 4
wait for many moves at a time: for :data:`_MOST_PENDING` of them, the engine's idle time, a sync, or
the close; the source's entries stay unacknowledged meanwhile, so that no loss of power can take
the message from both queues. :mod:`qindex.engine.move_recovery` finishes at open
what a crash cut short.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, islice
from time import monotonic

from journal.errors import ClosedError, QueueFullError, StorageError, StoreError, storage_errors
from journal.fs.files import FileSystem, pwrite_all, unlink_if_there
from journal.locks.call_lock import CallLock
from journal.locks.lock_order import Rank
from journal.locks.sync import GroupCommit
from journal.poison import Poison
from qindex.engine.frame_file import FrameFile
from qindex.engine.transaction_log import Noted, TransactionLog
from qindex.format import layout
from qindex.format.message import Message
from qindex.format.moves import DONE, Intent, pack_intent
from qindex.options import Options
from qindex.queue.dead_letter import Letter, NotMovedError, goes_round, with_death
from qindex.queue.dead_letters import DeadLetters
from qindex.queue.parts import QueueParts
from qindex.queue.prepared_message import Prepared
from qindex.queue.producing import Producer
from qindex.queue.state import QueueState
from qindex.queue.timer import Alarm

_log = logging.getLogger("qindex.moves")

_MOST_PENDING = 1024
"""Messages that were moved and are not yet acknowledged in their source, at the most."""


class _Request:
    """One call of :meth:`Moves.move`: where to (``target``), what is ``left``, and why
    (``error``)."""

    __slots__ = ("error", "left", "source", "target")

    def __init__(self, source: DeadLetters, letters: list[Letter]) -> None:
        self.source = source
        self.target: QueueParts | None = None
        self.left = letters
        self.error: StoreError | None = None


class _Pending:
    """Entries of one source that are to be acknowledged once ``targets`` are durable."""

    __slots__ = ("seqs", "targets")

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.targets: list[QueueState] = []


class Moves:
    """All moves of one engine, and what is left to do of the transactions that are committed.
    Thread-safe; no queue's lock may be held.

    ``queue_of`` gives a queue by its name. ``lock``: held for each move, and for each commit.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_alarmed",
        "_asked",
        "_background",
        "_closed",
        "_file",
        "_fs",
        "_idle",
        "_pending",
        "_queue_of",
        "_rounds",
        "_server",
        "_unsettled",
        "boot",
        "fsync",
        "lock",
        "log",
        "pending",
        "poison",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        poison: Poison,
        queue_of: Callable[[str], QueueParts],
        options: Options,
        alarm: Alarm,
    ) -> None:
        self._fs = fs
        self.poison: Poison = poison
        self._queue_of = queue_of
        self.fsync: bool = options.durability == "fsync"
        self._background = options.background
        self._idle = options.rest_idle
        self._alarm = alarm
        self.boot: bytes = fs.boot_id()
        path = os.path.join(directory, layout.MOVES)
        self._file = FrameFile(fs, path, poison, "a move", durable=self.fsync)
        self.log: TransactionLog = TransactionLog(fs, directory, poison, durable=self.fsync)
        self.lock: CallLock = CallLock()
        # What threads ask for, and which of them is doing all of it.
        self._asked: deque[_Request] = deque()
        self._rounds = GroupCommit(self._serve_all)
        order = poison.order
        self.lock.before_waiting = order.add(Rank.MOVES, self.lock._is_owned)
        self._rounds.before_waiting = order.add(Rank.MOVE_ROUND, self._rounds.is_mine)
        self._server: int | None = None
        self._pending: dict[DeadLetters, _Pending] = {}
        # An alarm is set, to settle.
        self._alarmed: bool = False
        # The transactions whose acks, or drops, are among them.
        self._unsettled: list[Noted] = []
        self.pending: int = 0
        """Messages that were moved, and whose source and target are to be made durable."""
        self._closed = False

    def is_mine(self) -> bool:
        """Return whether the calling thread is in the middle of a move."""
        return self.lock.is_mine() or self._rounds.is_mine()

    def move(self, source: DeadLetters, letters: Sequence[Letter], *, waits: bool = True) -> None:
        """Move messages of ``source``, which are marked as being moved, to its dead-letter queue.

        On return they are there, or dropped, if they would go round in a loop; and they count no
        more in the source. Those that were not moved when this raises: :attr:`NotMovedError.left`.
        Where each move is synced, threads that come at a time share the syncs.
        """
        request = _Request(source, list(letters))
        if self.fsync and self._server != threading.get_ident():
            self._asked.append(request)
            self._rounds.commit()
        else:
            # Or a move for the sake of which room is made for another one.
            self._serve([request])
        if request.error is not None:
            raise NotMovedError(request.left, request.error) from request.error
        if request.target is not None:
            request.target.room.keep_within(waits)
        self.settle_later(waits, _MOST_PENDING)

    def _serve_all(self) -> None:
        """Do what was asked for by now: one round of :attr:`_rounds`."""
        requests = []
        while self._asked:
            requests.append(self._asked.popleft())
        self._server = threading.get_ident()
        try:
            self._serve(requests)
        finally:
            self._server = None

    def _serve(self, requests: Sequence[_Request]) -> None:
        """Do moves, those of a source together; notes in each what is left of it, and why."""
        by_source: dict[tuple[int, str | None, int], list[_Request]] = {}
        for one in requests:
            first = one.left[0] if one.left else None
            way = (None, 0) if first is None else (first.target, first.due)
            by_source.setdefault((id(one.source), *way), []).append(one)
        for alike in by_source.values():
            error = self._move_all(alike)
            if isinstance(error, QueueFullError) and len(alike) > 1:
                # What does not fit keeps nobody else's out.
                for one in alike:
                    one.error = self._move_all([one])
            else:
                for one in alike:
                    one.error = error if one.left else None
        if self.fsync:
            try:
                self.settle()
            except StoreError as error:
                for one in requests:
                    one.error = one.error or error

    def _move_all(self, requests: Sequence[_Request]) -> StoreError | None:
        """Move what is left of these, all of one source; gives why anything still is."""
        source = requests[0].source
        left = [letter for one in requests for letter in one.left]
        name = (left[0].target if left else None) or source.target
        assert name is not None
        try:
            target = self._queue_of(name)
            for one in requests:
                one.target = target
            left = self._drop_rounds(source, left, name)
            # Where the last try has failed, one of them is tried first.
            most, growing = (1, True) if source.stuck else (_MOST_PENDING, False)
            while left:
                some = self._next(target, left, most)
                try:
                    self._move_some(source, target.level_for(some[0].message), some)
                except QueueFullError:
                    if len(some) == 1:
                        raise
                    # There may be room for some of them.
                    most, growing = len(some) // 2, False
                    continue
                left = left[len(some) :]
                if growing:
                    most = min(2 * most, _MOST_PENDING)
        except StoreError as error:
            return error
        finally:
            seqs = {one.seq_id for one in left}
            for one in requests:
                one.left = [letter for letter in one.left if letter.seq_id in seqs]
        return None

    @staticmethod
    def _drop_rounds(source: DeadLetters, letters: list[Letter], name: str) -> list[Letter]:
        """Drop the letters that go round in a loop; gives the others."""
        rounds = [one for one in letters if one.target is None and goes_round(one, name)]
        if not rounds:
            return letters
        for one in rounds:
            _log.warning(
                "queue %r: seq_id %d goes round between dead-letter queues: dropped",
                source.name,
                one.seq_id,
            )
        source.moved(rounds, dropped=True)
        seqs = [one.seq_id for one in rounds]
        source.end_moved(seqs)
        dropped = set(seqs)
        return [one for one in letters if one.seq_id not in dropped]

    def on_alarm(self) -> None:
        """Settle. The engine's timer calls it."""
        self._alarmed = False
        self.settle()

    @staticmethod
    def _next(target: QueueParts, left: list[Letter], most: int) -> list[Letter]:
        """Return the first of these, equally persistent and of one level of the target, ``most`` at
        the most."""
        _, group = next(
            groupby(left, lambda one: (one.persistent, id(target.level_for(one.message))))
        )
        return list(islice(group, most))

    def _move_some(self, source: DeadLetters, target: QueueParts, letters: list[Letter]) -> None:
        producer = target.producer
        items = [_prepared(producer, source.name, one) for one in letters]
        seqs = [one.seq_id for one in letters]
        persistent = letters[0].persistent
        held = target.room.take(items, 0, True)
        known = [one.base + one.seq_id for one in letters]
        intent = Intent(self.boot, source.name, target.state.name, 0, known, [])
        note = _Note(self, intent, target.state.base)
        with self.lock:
            try:
                if self._closed:
                    raise ClosedError("the engine is closed")
                self.poison.check()
                expiry = producer.expiry(None)
                producer.store_and_append(
                    items, expiry, persistent, held=held, notes=note, due=letters[0].due
                )
            finally:
                target.room.give_back(held)
            source.moved(letters)
            self._add_pending(source, seqs, [target.state])

    # -- transactions ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what a commit has to raise now. :attr:`lock` held."""
        if self._closed:
            raise ClosedError("the engine is closed")
        if self.poison.reason is not None:
            self.poison.check()

    def settle_with(
        self, noted: Noted, source: DeadLetters, seqs: list[int], targets: list[QueueState]
    ) -> None:
        """Acknowledge entries of ``source``, which a transaction counts as gone, once ``targets``
        are durable, and forget the transaction once the source is. :attr:`lock` held."""
        self._add_pending(source, seqs, targets)
        unsettled = self._unsettled
        if not unsettled or unsettled[-1] is not noted:
            unsettled.append(noted)

    def settle_later(self, waits: bool, most: int) -> None:
        """See to it that :meth:`settle` is called in a while; ``waits``: or now, if it has ``most``
        entries to acknowledge, or transactions to forget."""
        if waits and max(self.pending, len(self._unsettled)) >= most:
            self.settle()
        elif not self._alarmed and (self._background or not waits):
            self._alarmed = True
            self._alarm.set(self, monotonic() + self._idle)

    def _add_pending(self, source: DeadLetters, seqs: list[int], targets: list[QueueState]) -> None:
        pending = self._pending.get(source)
        if pending is None:
            pending = self._pending[source] = _Pending()
        pending.seqs += seqs
        for target in targets:
            if target not in pending.targets:
                pending.targets.append(target)
        self.pending += len(seqs)

    # -- the file -------------------------------------------------------------------------------

    def announce(self, intent: Intent) -> None:
        """Note what is about to be done; durably if all is to be."""
        self._file.append(pack_intent(intent))

    def conclude(self) -> None:
        """Note that what was announced last is done. The byte is there already: this can't meet a
        full disk."""
        file = self._file
        assert file.fd is not None
        try:
            pwrite_all(self._fs, file.fd, DONE, file.end - 1)
        except OSError as error:
            failure = StorageError(file.path, "a move can't be noted", error)
            self.poison.set(failure)
            raise failure from error

    # -- making durable -------------------------------------------------------------------------

    def is_behind(self) -> bool:
        """Return whether :meth:`settle` has anything to do."""
        return bool(self._pending) or self.log.unsynced

    def settle(self) -> None:
        """Do what is left of all moves: sync targets, acknowledge in the sources, sync them."""
        if self._pending:
            with self.lock:
                self._settle()
        if self.log.unsynced:
            self.log.sync()

    def _settle(self) -> None:
        pending = dict(self._pending)
        if self._unsettled:
            self.log.sync()
        for target in dict.fromkeys(target for one in pending.values() for target in one.targets):
            _sync(target)
        for source, one in pending.items():
            try:
                source.end_moved(one.seqs)
            except ClosedError as error:
                _log.info("%s", error)  # it was deleted, and its messages with it
            # The next one may fail, and is tried again then.
            del self._pending[source]
            self.pending -= len(one.seqs)
        for source in pending:
            _sync(source.state)
        settled, self._unsettled = self._unsettled, []
        self.log.end_all(settled)
        self._file.empty(_log)

    def close(self) -> None:
        """Settle all, and take no more moves. Raises :class:`StorageError`: then the file stays,
        and the next open settles."""
        with self.lock:
            self._closed = True
            try:
                if self._pending and self.poison.reason is None:
                    self._settle()
            finally:
                was_open = self._file.close_file()
            if was_open and not self._pending:
                # If that fails, it says nothing that is wrong: the next open finds all of it done.
                with storage_errors(self._file.path, "can't be removed"):
                    unlink_if_there(self._fs, self._file.path)
            self.log.close()


class _Note:
    """Notes one move: :class:`qindex.queue.prepared_message.Notes`."""

    def __init__(self, moves: Moves, intent: Intent, base: int) -> None:
        """``base``: what stands before the seq_ids of the target in those that users know."""
        self._base = base
        self._moves = moves
        self._intent = intent

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        """Announce the move."""
        ids = [item.msg_id for item in items]
        self._moves.announce(replace(self._intent, first=self._base + first, ids=ids))

    def after(self) -> None:
        """Conclude it."""
        self._moves.conclude()


def _sync(queue: QueueState) -> None:
    try:
        queue.sync_all()
    except ClosedError as error:
        _log.info("%s", error)  # it was deleted


def _prepared(target: Producer, source: str, letter: Letter) -> Prepared:
    """Encode a letter for its queue; as it was, where the headers of its death do not fit."""
    if letter.target is not None:
        return target.prepared(letter.message, letter.persistent)
    message: Message = with_death(letter, source)
    try:
        return target.prepared(message, letter.persistent)
    except StoreError as error:
        _log.warning(
            "queue %r: seq_id %d goes to its dead-letter queue without headers that tell why: %s",
            source,
            letter.seq_id,
            error,
        )
        return target.prepared(letter.message, letter.persistent)
