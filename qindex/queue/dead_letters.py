"""Messages on their way from one queue to its dead-letter queue.

They are marked as being moved, and wait here until the queue's lock is free, or until their target
has room again. :class:`Mover` moves them, in the order in which the queue parted with them: one
thread at a time moves those of a queue.

While their target is full, the first :data:`MAX_WAITING` of them are kept whole, if they are
small. Of the others the seq_id and the reason are kept, nine bytes; their messages are read again
when it is their turn.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any, NoReturn, Protocol, get_args

import numpy as np

from journal.errors import ClosedError, DamageError, StoreError
from journal.locks.call_lock import CallLock
from journal.locks.lock_order import Rank
from journal.memory.arrays import I64
from qindex.format.entries import Entry
from qindex.format.headers import DUE_HEADER, without_key
from qindex.format.message import Message
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import MOVING
from qindex.queue.dead_letter import Letter, NotMovedError, Reason
from qindex.queue.delivery import Batch, Delivery
from qindex.queue.message_reader import MessageReader
from qindex.queue.outstanding import Outstanding, seqs_of
from qindex.queue.state import Debt, QueueState

_log = logging.getLogger("qindex.queue")

MAX_WAITING = 1024
"""Messages of one queue that wait in memory for their dead-letter queue."""
_REASONS: tuple[Reason, ...] = get_args(Reason)
_RETRY = 1.0
"""Seconds until a move that failed is tried again."""
_MAX_BODY = 4096
"""A message that waits in memory beside others has a body of no more bytes."""
_MAX_BYTES = MAX_WAITING * _MAX_BODY
"""Bytes of bodies that are read again at a time: about so many, and one message more."""


class _BusyError(Exception):
    """Another thread moves the letters, and the calling one may not wait for it."""


def _refuse_to_wait() -> NoReturn:
    raise _BusyError


class Mover(Protocol):
    """Moves messages between the queues of an engine."""

    def is_behind(self) -> bool:
        """Return whether :meth:`settle` has anything to do."""

    def move(self, source: DeadLetters, letters: Sequence[Letter]) -> None:
        """Move messages, which are marked as being moved, to the source's dead-letter queue.

        Raises :class:`NotMovedError`. No queue's lock may be held.
        """

    def settle(self) -> None:
        """Do the remaining work of all moves."""


class Postponed:
    """seq_ids of messages that are marked as being moved, each with the reason, first come first.

    The queue's lock is held for every call.
    """

    def __init__(self) -> None:
        self._seqs = array("q")
        self._reasons = bytearray()

    def __len__(self) -> int:
        return len(self._seqs)

    def add(self, seq: int, reason: Reason) -> None:
        """Note one. Nine bytes."""
        self._seqs.append(seq)
        self._reasons.append(_REASONS.index(reason))

    def first(self, most: int) -> dict[int, Reason]:
        """Return up to ``most`` of the first, in ascending order; they stay until :meth:`drop`."""
        seqs = self._seqs[:most]
        end = next((at for at in range(1, len(seqs)) if seqs[at] < seqs[at - 1]), len(seqs))
        reasons = (_REASONS[one] for one in self._reasons[:end])
        return dict(zip(seqs[:end], reasons, strict=True))

    def drop(self, count: int) -> None:
        """Forget the first ``count``. O(all)."""
        del self._seqs[:count]
        del self._reasons[:count]


class DeadLetters:
    """The messages of one queue that go to its dead-letter queue, or nowhere where it has none.

    ``waiting``: in memory, the next to be moved. ``stuck``: the last move has failed.
    """

    def __init__(
        self,
        state: QueueState,
        outstanding: Outstanding,
        reader: MessageReader,
        mover: Mover,
    ) -> None:
        self.state = state
        self._outstanding = outstanding
        self.reader = reader
        self.mover = mover
        self.waiting: list[Letter] = []
        # What a thread moves just now.
        self._under_way: list[Letter] = []
        self._postponed = Postponed()
        self.stuck: bool = False
        # The thread that moves them has it, and no lock of a queue before it.
        self._turn = CallLock()
        self._turn.before_waiting = state.index.poison.order.checked(Rank.LETTERS, _refuse_to_wait)

    @property
    def name(self) -> str:
        """The name of the queue they are of."""
        return self.state.name

    @property
    def target(self) -> str | None:
        """The name of the dead-letter queue."""
        return self.state.settings.dead_letter

    def is_empty(self) -> bool:
        """Return whether none wait, and none are being moved."""
        return not (self.waiting or self._under_way or self._postponed)

    def holds_any(self) -> bool:
        """Return whether any wait in memory, or are being moved."""
        return bool(self.waiting or self._under_way)

    def is_crowded(self) -> bool:
        """Return whether so many wait in memory that they are to be moved before the queue parts
        with more."""
        return len(self.waiting) >= MAX_WAITING and not self.stuck

    def is_moving_here(self) -> bool:
        """Return whether the calling thread is moving them."""
        return self._turn.is_mine()

    # -- parting --------------------------------------------------------------------------------

    def withhold(self, seq: int, message: Message) -> None:
        """Part with a message that was taken for a delivery, and had its last one before."""
        tally = self.state.tally
        tally.withheld += 1
        tally.again -= 1
        tally.given_up["limit"] += 1
        self.part_with(seq, message, "limit")

    def part_with(self, seq: int, message: Message, reason: Reason) -> None:
        """Part with a message that is out: it goes to the dead-letter queue as soon as the lock is
        free, or nowhere. Lock held."""
        if self.target is None:
            self._outstanding.ack_all(np.array([seq]))
        else:
            self._let_wait(seq, message, reason)

    def part_with_batch(self, batch: Batch, reason: Reason) -> None:
        """The same for a batch that was taken for this."""
        tally = self.state.tally
        tally.withheld += len(batch)
        tally.again -= sum(delivery.redelivered for delivery in batch)
        tally.given_up[reason] += len(batch)
        if self.target is None:
            self._outstanding.ack_all(seqs_of(batch))
            return
        for delivery in batch:
            self._let_wait(delivery.seq_id, delivery.message, reason)

    def part_with_expired(self, seq: int, entry: Entry) -> None:
        """Part with a message whose time is up, and which is ready. Lock held."""
        state = self.state
        if self.target is None:
            self.reader.drop(seq, entry)
            state.tally.given_up["expired"] += 1
            return
        entry = self.reader.with_message(entry)
        if entry.message is None:
            path, offset = self.reader.set_aside(seq, entry)
            _log.error("%s: at offset %d: expired, and damaged: %s", path, offset, entry.damage)
            self.reader.drop(seq, entry)
            return
        state.index.deliver(seq)
        state.tally.withheld += 1
        state.tally.given_up["expired"] += 1
        state.went_out(1, entry.size)
        if entry.stored:
            state.note(seq).msg_id = entry.msg_id
        self._let_wait(seq, entry.message, "expired")
        state.index.handed_out()

    def _let_wait(self, seq: int, message: Message, reason: Reason) -> None:
        self.state.index.begin_move(seq)
        if self._keeps_in_memory(message):
            self.waiting.append(self._letter(seq, message, reason))
            self.state.to_move = True
        else:
            self._postponed.add(seq, reason)
            note = self.state.noted.get(seq)
            if note is not None:
                note.msg_id = None  # noted again when it is read again
                if note.deliveries < 0 and not note.due:
                    del self.state.noted[seq]

    def _keeps_in_memory(self, message: Message) -> bool:
        """Return whether a message may wait as it is. Lock held."""
        waiting = len(self.waiting)
        if self._postponed or waiting >= MAX_WAITING:
            return False
        return not waiting or len(message.body) <= _MAX_BODY

    def _letter(self, seq: int, message: Message, reason: Reason) -> Letter:
        persistent = seq not in self.state.index.transient
        if self.state.properties and not message.properties:
            message = replace(message, properties=dict(self.state.properties))
        return Letter(seq, message, reason, persistent, base=self.state.base)

    # -- moving ---------------------------------------------------------------------------------

    def reject(self, deliveries: Sequence[Delivery], *, cause: str = "") -> list[StoreError | None]:
        """Move messages to the dead-letter queue; they are there on return. Returns why not, for
        each that is not: it is as it was."""
        with self.state.calls.here():
            return self._reject(deliveries, lambda one: replace(one, cause=cause))

    def move_to(
        self,
        delivery: Delivery,
        target: str,
        headers: Mapping[str, Any] | None,
        due: int,
    ) -> StoreError | None:
        """Move a message to another queue, with these headers; as :meth:`reject`."""

        def moved(letter: Letter) -> Letter:
            message = letter.message
            kept = without_key(message.headers if headers is None else headers)
            kept.pop(DUE_HEADER, None)
            if due:
                kept[DUE_HEADER] = due
            message = replace(message, headers=kept)
            return replace(letter, message=message, target=target, due=due)

        with self.state.calls.here():
            return self._reject([delivery], moved)[0]

    def _reject(
        self, deliveries: Sequence[Delivery], made: Callable[[Letter], Letter]
    ) -> list[StoreError | None]:
        state = self.state
        failures: list[StoreError | None] = [None] * len(deliveries)
        letters: dict[int, Letter] = {}
        for at, delivery in enumerate(deliveries):
            try:
                with state.lock, state:
                    self._outstanding.seq_ids_of([delivery])
                    seq = delivery.seq_id - state.base
                    state.index.begin_move(seq)
                    letter = self._letter(seq, delivery.message, "rejected")
                    letters[at] = made(letter)
            except StoreError as error:
                failures[at] = error
        if not letters:
            return failures
        left: set[int] = set()
        try:
            self.mover.move(self, list(letters.values()))
        except NotMovedError as error:
            left = {one.seq_id for one in error.left}
            for at, letter in letters.items():
                if letter.seq_id in left or not left:
                    failures[at] = error.cause
        with state.lock.anyway:
            for at, letter in letters.items():
                if letter.seq_id in left:
                    state.index.undo_move(letter.seq_id)
                elif failures[at] is None:
                    deliveries[at]._queue = None
                    state.tally.given_up["rejected"] += letter.target is None
        return failures

    def owe(self) -> None:
        """Note that letters wait to be moved: whoever made the call does it."""
        owed = self.state.owed
        if not (self.is_empty() or self.stuck or self.is_moving_here() or self in owed):
            owed.append(self)

    def pay(self) -> list[Debt]:
        """Move one round of letters. The flush of their target that may be due now, and letters of
        its own, come before the next round: its journal would grow meanwhile."""
        goes_on = self.move_waiting()
        owed = self.state.take_owed()
        return [self, *owed] if goes_on else owed

    def is_asked_for(self) -> bool:
        """Leave the letters to the timer."""
        self.state.alarm.set(self, 0.0)
        return True

    def pressing(self) -> None:
        """Return None: nobody need wait for the letters."""

    def move_waiting(self, *, again: bool = False) -> bool:
        """Move the next letters that wait; ``again``: also when that has failed before. No lock
        held. Return whether more can be moved.

        Letters that can't be moved stay, and are tried again after a while. A thread that finds
        them under way in the middle of the move of another queue's leaves them to the timer: the
        other thread may be waiting for that one.
        """
        if self.is_empty() or (self.stuck and not again) or self.is_moving_here():
            return False
        try:
            with self._turn:
                # The thread that had the turn may have failed.
                return (again or not self.stuck) and self._move_next()
        except _BusyError:
            self.state.alarm.set(self, 0.0)
            return False

    def on_alarm(self) -> None:
        """Try again what could not be moved. The engine's timer calls it."""
        if self.move_waiting(again=True):
            self.owe()
        self.state.catch_up()

    def _move_next(self) -> bool:
        """Move the letters that wait in memory, or the next postponed ones. False if none are left,
        or if the move failed."""
        state = self.state
        with state.lock.anyway:
            letters, self.waiting = self.waiting, []
            state.to_move = False
            self._under_way = letters
            if not letters and state.lock.refusal is not None:
                return False
            if not letters:
                try:
                    letters = self._under_way = self._recall()
                except StoreError as error:
                    _log.error("queue %r: messages can't be read again: %s", self.name, error)
                    state.alarm.set(self, monotonic() + _RETRY)
                    return False
        if not letters:
            return bool(self._postponed)
        try:
            self.mover.move(self, letters)
        except NotMovedError as error:
            with state.lock.anyway:
                self.waiting = error.left + self.waiting
                state.to_move = bool(self.waiting)
                self._under_way = []
                self.stuck = bool(error.left)
            if isinstance(error.cause, ClosedError):
                return False
            log = _log.info if error.is_full else _log.error
            log("queue %r: messages can't be moved yet: %s", self.name, error)
            state.alarm.set(self, monotonic() + _RETRY)
            return False
        self._under_way = []
        self.stuck = False
        if len(letters) >= MAX_WAITING:
            # A get may have ended early, for it had parted with so many.
            with state.lock.anyway:
                state.arrived.notify()
        return not self.is_empty()

    def moved(self, letters: Sequence[Letter], *, dropped: bool = False) -> None:
        """Count messages as gone: they are in the dead-letter queue, or ``dropped`` by it."""
        with self.state.lock.anyway:
            if not dropped:
                given = (one.reason for one in letters if one.target is None)
                self.state.tally.moved.update(given)
            for one in letters:
                self.state.count_moved(one.seq_id)

    def end_moved(self, seqs: Sequence[int]) -> None:
        """Acknowledge messages that were moved. Raises :class:`ClosedError`."""
        state = self.state
        with state.lock, state, state.index.poison.whole():
            state.index.end_move(np.array(seqs, np.int64))
            if state.noted or state.settled.waiting:
                state.forget(seqs)

    def drop_all(self, seqs: Sequence[int]) -> None:
        """Acknowledge messages that nobody has, and that no consumer gets."""
        state = self.state
        index = state.index
        with state.lock, state:
            in_use = state.messages is not None and state.messages.in_use
            stored = []
            for seq in seqs if in_use else ():
                segment = index.segment_of(seq)
                stored += index.stored_ids(segment, np.array([seq - segment.base]))
            if state.later is not None:
                state.later.forget(seqs)
            index.drop(np.array(seqs, np.int64))
            for seq in seqs:
                state.noted.pop(seq, None)
            state.count_ready_bytes()
            state.release(stored)

    # -- reading again --------------------------------------------------------------------------

    def _recall(self) -> list[Letter]:
        """Read the next of the messages that were postponed again, as letters. Lock held.

        An unreadable message is set aside and dropped, as an unreadable message is on delivery.
        Raises :class:`StorageError`; messages that were not read are still postponed then.
        """
        postponed = self._postponed
        wanted = postponed.first(MAX_WAITING)
        seqs = np.array(list(wanted), np.int64)
        letters: list[Letter] = []
        size = 0
        for seq, body, extra in _read_again(self.state.index, seqs):
            message = self._message_of(seq, body, extra)
            if message is not None:
                letters.append(self._letter(seq, message, wanted[seq]))
                size += len(message.body)
            if size > _MAX_BYTES:
                postponed.drop(int(np.searchsorted(seqs, seq)) + 1)
                return letters
        postponed.drop(len(seqs))
        return letters

    def _message_of(self, seq: int, body: bytes, extra: int | Entry) -> Message | None:
        if isinstance(extra, int):
            return Message(body, timestamp=extra)
        entry = self.reader.with_message(extra)
        if entry.stored:
            self.state.note(seq).msg_id = entry.msg_id
        if entry.message is None:
            path, offset = self.reader.set_aside(seq, entry)
            what = "%s: at offset %d: not moved, for it is damaged: %s"
            _log.error(what, path, offset, entry.damage)
            self._outstanding.ack_all(np.array([seq]))
        return entry.message


def _read_again(index: QueueIndex, seqs: I64) -> Iterator[tuple[int, bytes, int | Entry]]:
    """Read those entries, in ascending order, that are still to be moved: body, and timestamp or
    entry, of each."""
    while len(seqs):
        with suppress(DamageError):  # reported; the sound entries are loaded
            index.segment_of(int(seqs[0]))
        segment = index.segment_of(int(seqs[0]))
        rels = seqs[seqs < segment.base + index.entry_count] - segment.base
        seqs = seqs[len(rels) :]
        rels = rels[np.frombuffer(segment.states, np.uint8)[rels] == MOVING]
        while len(rels):
            read, _ = index.read(segment, rels)
            yield from zip(read.seqs, read.bodies, read.extras, strict=True)
            rels = rels[len(read) :]
