"""Moves of messages to another queue, and the rest of the work of committed transactions.

A move is a transaction (:mod:`qindex.engine.transactions`): some messages are published in the
target, and as many are acknowledged in the source.

1. The messages that are about to come are noted in ``qindex.transactions``, and appended to the
   target as pending: nobody is given them.
2. With ``durability="fsync"`` the target is synced.
3. The acks of the source are noted (*commit point*). The messages become ready in the target, and
   no longer count in the source.
4. The acks reach the journal of the source, once the file and the target are durable.
5. The source is synced, and the move is forgotten.

With ``durability="fsync"`` 4 is done on return, and what threads ask for while one moves waits, and
is then done together: they share the syncs. Otherwise 4 waits for many moves at a time: for
:data:`_MAX_PENDING` of them, the engine's idle time, a sync, or the close. So does 5, always. The
source's entries stay unacknowledged until 4, so that no loss of power takes a message from both
queues. :mod:`qindex.engine.transaction_recovery` finishes at open what a crash cut short.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from time import monotonic
from typing import Protocol

from journal.errors import ClosedError, QueueFullError, StoreError
from journal.fs.files import FileSystem
from journal.locks.call_lock import CallLock
from journal.locks.lock_order import Rank
from journal.locks.sync import GroupCommit
from journal.poison import Poison
from qindex.engine.transaction_log import Noted, TransactionLog
from qindex.format.message import Message
from qindex.format.transactions import SYNCED, pack_batch, pack_boot, pack_committed
from qindex.options import Options
from qindex.queue.dead_letter import Letter, NotMovedError, goes_round, with_death
from qindex.queue.dead_letters import DeadLetters
from qindex.queue.parts import QueueParts
from qindex.queue.prepared_message import Prepared
from qindex.queue.producing import Producer
from qindex.queue.room import Room, WouldWaitError
from qindex.queue.state import Debt, QueueState
from qindex.queue.timer import Alarm

_log = logging.getLogger("qindex.moves")

_MAX_PENDING = 1024
"""Messages that were moved and are not yet acknowledged in their source, at the most."""


class _Request:
    """One call of :meth:`Moves.move`: its ``letters``, their ``target``, the letters ``left``, and
    why they are left (``error``)."""

    __slots__ = ("error", "left", "letters", "source", "target")

    def __init__(self, source: DeadLetters, letters: Sequence[Letter]) -> None:
        self.source = source
        self.letters = letters
        self.target: QueueParts | None = None
        self.left = list(letters)
        self.error: StoreError | None = None

    def keep(self, seqs: Container[int]) -> None:
        """Note which letters are left."""
        self.left = [one for one in self.letters if one.seq_id in seqs]

    def take_back(self, moves: Sequence[_Move], error: StoreError) -> None:
        """Note that moves have failed."""
        failed = [one.letters for one in moves if one.source is self.source]
        self.keep({letter.seq_id for letters in [self.left, *failed] for letter in letters})
        self.error = self.error or error


class _Move:
    """Letters of one source on their way. It takes notes of their append to their target.

    ``seqs``: the seq_ids that they have there, in their level; empty before.
    """

    __slots__ = ("_round", "letters", "seqs", "source", "target")

    def __init__(
        self, one_round: _Round, source: DeadLetters, target: QueueParts, letters: Sequence[Letter]
    ) -> None:
        self._round = one_round
        self.source = source
        self.target = target
        self.letters = letters
        self.seqs = range(0)

    @property
    def state(self) -> QueueState:
        """The level of the target that the letters are in."""
        return self.target.state

    def before(self, first: int, items: Sequence[Prepared]) -> None:
        """Announce the messages."""
        state = self.target.state
        ids = [item.msg_id for item in items]
        self._round.announce(state.name, state.base + first, ids)

    def after(self) -> None:
        """Keep them from all readers."""
        index = self.target.state.index
        self.seqs = range(index.next_seq - len(self.letters), index.next_seq)
        for seq in self.seqs:
            index.pend(seq)
        self._round.moves.append(self)

    def take_back(self) -> None:
        """Drop them if they are there: what follows their append has failed."""
        if self in self._round.moves:
            self._round.moves.remove(self)
            self.drop()

    def admit(self) -> None:
        """Let them be delivered."""
        state, due = self.target.state, self.letters[0].due
        with state.lock, state:
            for seq in self.seqs:
                state.admit(seq, due)

    def drop(self) -> None:
        """Drop them, as nobody has seen them. Raises :class:`StoreError`."""
        self.target.letters.drop_all(self.seqs)


class _Round:
    """Moves that are done together: one transaction. ``moves``: those already in their target."""

    __slots__ = ("log", "moves", "noted")

    def __init__(self, log: TransactionLog) -> None:
        self.log = log
        self.noted: Noted = log.begin()
        self.moves: list[_Move] = []

    def announce(self, queue: str, first: int, ids: list[bytes]) -> None:
        """Note which messages come. Raises :class:`StorageError`."""
        self.log.note(self.noted, pack_batch(self.noted.number, queue, first, ids))

    def commit(self, boot: bytes) -> None:
        """Note that they are moved. Raises :class:`StorageError`."""
        acks = [
            (move.source.name, [one.base + one.seq_id for one in move.letters])
            for move in self.moves
        ]
        self.log.note(self.noted, pack_committed(self.noted.number, boot, acks))


class Undoable(Protocol):
    """The messages that a transaction has published in one queue."""

    @property
    def state(self) -> QueueState:
        """The state of the queue."""

    def drop(self) -> None:
        """Drop it, as nobody has seen it. Raises :class:`StoreError`."""


class _Pending:
    """Entries of one source that are to be acknowledged once ``targets`` are durable."""

    __slots__ = ("seqs", "targets")

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.targets: list[QueueState] = []


class Moves:
    """All moves of one engine, and the rest of the work of committed transactions. Thread-safe; no
    queue's lock may be held.

    ``queue_of`` gives a queue by its name. ``lock``: held for each move, and for each commit.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_alarmed",
        "_asked",
        "_background",
        "_closed",
        "_idle",
        "_pending",
        "_queue_of",
        "_rounds",
        "_server",
        "_unsettled",
        "_unsynced",
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
        self.poison: Poison = poison
        self._queue_of = queue_of
        self.fsync: bool = options.durability == "fsync"
        self._background = options.background
        self._idle = options.rest_idle
        self._alarm = alarm
        # The run of the operating system, as frames of commits have it.
        self.boot: bytes = pack_boot(SYNCED if self.fsync else fs.boot_id())
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
        # The transactions whose acks are among them, or in the journals of these queues, where they
        # are to be made durable; likewise their drops.
        self._unsettled: list[Noted] = []
        self._unsynced: dict[QueueState, None] = {}
        self.pending: int = 0
        """Messages that are to be acknowledged in their source."""
        self._closed = False

    def is_mine(self) -> bool:
        """Return whether the calling thread is in the middle of a move."""
        return self.lock.is_mine() or self._rounds.is_mine()

    def move(self, source: DeadLetters, letters: Sequence[Letter]) -> None:
        """Move messages of ``source``, which are marked as being moved, to its dead-letter queue.

        On return they are there, or dropped, if they would go round in a loop; and they count no
        more in the source. The messages not moved when this raises: :attr:`NotMovedError.left`.
        Where each move is synced, threads that come at a time share the syncs.
        """
        request = _Request(source, letters)
        if self.fsync and self._server != threading.get_ident():
            self._asked.append(request)
            self._rounds.commit()
        else:
            # Or a move for the sake of which room is made for another one.
            self._serve([request])
        if self.follow_up(_MAX_PENDING) and self not in source.state.owed:
            source.state.owed.append(self)
        if request.error is not None:
            raise NotMovedError(request.left, request.error) from request.error
        if request.target is not None:
            request.target.room.keep_within()
            source.state.owed += request.target.state.take_owed()

    def _serve_all(self) -> None:
        """Do the moves requested by now: one round of :attr:`_rounds`."""
        requests = []
        while self._asked:
            requests.append(self._asked.popleft())
        self._server = threading.get_ident()
        try:
            self._serve(requests)
        finally:
            self._server = None

    def _serve(self, requests: Sequence[_Request]) -> None:
        """Do moves, those of a source together. Notes in each request its letters left, and why."""
        by_source: dict[tuple[int, str | None, int], list[_Request]] = {}
        for one in requests:
            first = one.left[0] if one.left else None
            way = (None, 0) if first is None else (first.target, first.due)
            by_source.setdefault((id(one.source), *way), []).append(one)
        one_round = _Round(self.log)
        moves = one_round.moves
        try:
            for alike in by_source.values():
                error = self._move_all(alike, one_round)
                if isinstance(error, QueueFullError) and len(alike) > 1:
                    # What does not fit keeps nobody else's out.
                    for one in alike:
                        one.error = self._move_all([one], one_round)
                else:
                    for one in alike:
                        one.error = error if one.left else None
            if moves:
                self._commit(one_round)
            else:
                self.log.end_all((one_round.noted,))
        except StoreError as failure:
            self.undo(one_round.noted, moves)
            for one in requests:
                one.take_back(moves, failure)
        except BaseException as failure:
            if moves:
                # The messages in its targets can be neither committed nor dropped now.
                self.poison.cut_short(failure)
            raise

    def _move_all(self, requests: Sequence[_Request], one_round: _Round) -> StoreError | None:
        """Append the letters left of these requests, all of one source, to their target; returns
        why any letter still is left."""
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
            most, growing = (1, True) if source.stuck else (_MAX_PENDING, False)
            while left:
                some = self._next(target, left, most)
                level = target.level_for(some[0].message)
                try:
                    self._append(_Move(one_round, source, level, some))
                except QueueFullError:
                    if len(some) == 1:
                        raise
                    # There may be room for some of them.
                    most, growing = len(some) // 2, False
                    continue
                left = left[len(some) :]
                if growing:
                    most = min(2 * most, _MAX_PENDING)
        except StoreError as error:
            return error
        finally:
            seqs = {one.seq_id for one in left}
            for one in requests:
                one.keep(seqs)
        return None

    @staticmethod
    def _drop_rounds(source: DeadLetters, letters: list[Letter], name: str) -> list[Letter]:
        """Drop the letters that go round in a loop; returns the others."""
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

    def _append(self, move: _Move) -> None:
        """Append letters to their target, where nobody is given them yet. Raises
        :class:`StoreError`; then they are not there."""
        target, letters = move.target, move.letters
        producer = target.producer
        items = [_prepared(producer, move.source.name, one) for one in letters]
        held = _take_room(target.room, items)
        try:
            with self.lock:
                self.check()
                if letters[0].due:
                    with target.state.lock, target.state:
                        target.state.delays()
                expiry, persistent = producer.expiry(None), letters[0].persistent
                # A flush of the target is owed by whoever made the call on the source.
                owed = move.source.state.owed
                producer.store_and_append(
                    items, expiry, persistent, held=held, notes=move, owed=owed
                )
        except StoreError:
            move.take_back()
            raise
        finally:
            target.room.give_back(held)

    def _commit(self, one: _Round) -> None:
        """Commit moves. Raises :class:`StoreError`: then they are to be undone, or writes are
        refused from now on."""
        with self.lock:
            self.check()
            targets = dict.fromkeys(move.state for move in one.moves)
            for target in targets:
                target.lock.check()  # it may have been deleted
                if self.fsync:
                    target.sync_all()
            one.commit(self.boot)
            try:
                for move in one.moves:
                    move.admit()
                    move.source.moved(move.letters)
                    seqs = [letter.seq_id for letter in move.letters]
                    self.settle_with(one.noted, move.source, seqs, [move.state])
            except StoreError as error:
                self.poison.cut_short(error)
                raise

    # -- transactions ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error that refuses commits now, if any. :attr:`lock` held."""
        if self._closed:
            raise ClosedError("the engine is closed")
        if self.poison.reason is not None:
            self.poison.check()

    def settle_with(
        self, noted: Noted, source: DeadLetters, seqs: list[int], targets: list[QueueState]
    ) -> None:
        """Acknowledge entries of ``source``, which a transaction counts as gone, once ``targets``
        are durable, and forget the transaction once the source is. :attr:`lock` held."""
        pending = self._pending.get(source)
        if pending is None:
            pending = self._pending[source] = _Pending()
        pending.seqs += seqs
        for target in targets:
            if target not in pending.targets:
                pending.targets.append(target)
        self.pending += len(seqs)
        self._forget_later(noted)

    def _forget_later(self, noted: Noted) -> None:
        unsettled = self._unsettled
        if not unsettled or unsettled[-1] is not noted:
            unsettled.append(noted)

    def undo(self, noted: Noted, parts: Iterable[Undoable]) -> None:
        """Drop the messages that an uncommitted transaction has published. Messages that can't be
        dropped are left for the next open."""
        self.log.end_one(noted)
        whole = True
        dropped: dict[QueueState, None] = {}
        for part in parts:
            try:
                part.drop()
            except ClosedError as error:
                _log.info("%s", error)  # it was deleted, and its messages with it
            except StoreError as error:
                whole = False
                _log.error("what a transaction published is dropped by the next open: %s", error)
            else:
                dropped[part.state] = None
        if not (dropped and whole):
            if whole:
                self.log.end_all((noted,))
            return
        try:
            with self.lock:
                self._unsynced.update(dropped)
                self._forget_later(noted)
        except StoreError as error:
            _log.error("what follows a rollback is left for later: %s", error)

    def follow_up(self, most: int) -> bool:
        """Do what follows a commit or a rollback, which no error may deny: it is logged. The rest
        is done in a while. Return whether it is owed now: there are ``most`` entries to
        acknowledge, or transactions to forget."""
        try:
            if self.fsync and self._pending:
                with self.lock:
                    self._acknowledge()
        except StoreError as error:
            _log.error("what follows a commit is left for later: %s", error)
            self._settle_later()
            return False
        if max(self.pending, len(self._unsettled)) >= most:
            return True
        if self._background:
            self._settle_later()
        return False

    def _settle_later(self) -> None:
        if not self._alarmed:
            self._alarmed = True
            self._alarm.set(self, monotonic() + self._idle)

    def pay(self) -> list[Debt]:
        """Settle; an error is logged."""
        try:
            self.settle()
        except StoreError as error:
            _log.error("what follows a commit is left for later: %s", error)
            self._settle_later()
        return []

    def is_asked_for(self) -> bool:
        """Leave it to the timer."""
        self._alarm.set(self, 0.0)
        return True

    def pressing(self) -> None:
        """Return None: nobody need wait for it."""

    # -- making durable -------------------------------------------------------------------------

    def is_behind(self) -> bool:
        """Return whether :meth:`settle` has anything to do for the sake of durability."""
        return bool(self._pending) or self.log.unsynced

    def settle(self) -> None:
        """Do the remaining work of all moves and transactions."""
        if self._pending or self._unsettled:
            with self.lock:
                self._settle()
        if self.log.unsynced:
            self.log.sync()

    def _settle(self) -> None:
        if self._pending:
            self.log.sync()
            targets = [target for one in self._pending.values() for target in one.targets]
            for target in dict.fromkeys(targets):
                _sync(target)
            self._acknowledge()
        for state in self._unsynced:
            _sync(state)
        self._unsynced.clear()
        settled, self._unsettled = self._unsettled, []
        self.log.end_all(settled)

    def _acknowledge(self) -> None:
        """Acknowledge in the sources the messages that are in their targets, durably."""
        for source, one in list(self._pending.items()):
            try:
                source.end_moved(one.seqs)
            except ClosedError as error:
                _log.info("%s", error)  # it was deleted, and its messages with it
            self._unsynced[source.state] = None
            # The next one may fail, and is tried again then.
            del self._pending[source]
            self.pending -= len(one.seqs)

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Settle all, keep it so during a block that deletes a queue, and forget it durably: the
        acknowledgements must not count for a new queue of this name. Raises :class:`StoreError`."""
        with self.lock:
            self._settle()
            yield
            self.log.forget_ended()

    def close(self) -> None:
        """Settle all, and take no more moves. Raises :class:`StorageError`: then the file stays,
        and the next open settles."""
        with self.lock:
            self._closed = True
            try:
                if self.poison.reason is None:
                    self._settle()
            finally:
                self.log.close()


def _take_room(room: Room, items: Sequence[Prepared]) -> list[Prepared]:
    """Take room for letters. Raises :class:`QueueFullError`: the timer tries the move again."""
    try:
        return room.take(items)
    except WouldWaitError as full:
        if not (full.is_stuck and room.free_head()):
            raise QueueFullError(str(full)) from None
    return room.take(items)


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
