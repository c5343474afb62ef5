"""Delayed messages of one queue: when each is due, in memory and on disk.

A delayed message has its entry in the index, which no read returns (*held*), and its due time here.
When it is due it takes its place among the ready messages: they are delivered in the order of the
times at which they became ready. That is the due time of a delayed message and the publish time of
any other. :meth:`qindex.queue.delivering.Deliverer` merges the two orders.

The clock is that of :mod:`qindex.queue.run_clock`: it does not jump while the process runs. After a
restart due times count by the wall clock, so a clock that was set shifts them by as much.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from random import random
from time import monotonic
from types import TracebackType
from typing import Protocol

import numpy as np
from sortedcontainers import SortedList

from journal.errors import StorageError, StoreError, UsageError
from journal.locks.patience import PatientLock
from journal.memory.arrays import I64
from qindex.format.entries import Entry
from qindex.format.headers import DUE_FILE, due_of, parse_backoff
from qindex.format.notes import pack_note
from qindex.index.messages import Messages
from qindex.index.queue_index import QueueIndex
from qindex.index.segment import OUT
from qindex.queue import run_clock
from qindex.queue.notes.entry_note import EntryNote
from qindex.queue.notes.notes_file import NotesFile
from qindex.queue.timer import Alarm
from qindex.queue.wake_ups import Bell

_log = logging.getLogger("qindex.queue")

_MAX_SECONDS = 1e10
SHIFT = 64
SEQ = (1 << SHIFT) - 1
"""A key is a number that orders messages: a time in microseconds since 1970, and in the low 64 bits
the seq_id."""
_LONGEST_SLEEP = 60.0
_MAX_SPARE = 1 << 14
"""Records of messages that are gone; the file is written anew when it has more than these, and more
than half of its records."""


def now_us() -> int:
    """Return the time by which messages become due, in microseconds since 1970 UTC."""
    return run_clock.time_ns() // 1000


def due_time(delay: float | None, at: datetime | None) -> int:
    """Return when a message is due: microseconds since 1970 UTC, 0 for at once.

    Raises :class:`UsageError` for values that can't be right, or for both.
    """
    if delay is None:
        return 0 if at is None else _due_at(at)
    if at is not None:
        raise UsageError("a message has either a delay or an at, not both")
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise UsageError(f"delay must be a number of seconds, not {delay!r}")
    if not 0 <= delay < _MAX_SECONDS:
        raise UsageError(f"delay must be seconds from 0 to 1e10, not {delay!r}")
    return now_us() + int(delay * 1e6) if delay else 0


def _due_at(at: datetime) -> int:
    if not isinstance(at, datetime):
        raise UsageError(f"at must be a datetime, not {at!r}")
    if at.tzinfo is None or at.utcoffset() is None:
        raise UsageError(f"at must have a time zone, as datetime.now(timezone.utc) has: {at!r}")
    due = int(at.timestamp() * 1e6)
    return due if due > now_us() else 0


def pause_before(backoff: str, attempts: int) -> float:
    """Return the seconds until the next attempt, after so many have failed.

    The pause doubles with each attempt, up to the longest one; a random part of its second half is
    left out, so that messages that failed together do not come back together.
    """
    base, cap = parse_backoff(backoff)
    doubled = base * 2.0 ** min(max(attempts - 1, 0), 1000)
    return min(doubled, cap) * (0.5 + 0.5 * random())


def make_key(due: int, seq: int) -> int:
    """Return the key of a message."""
    return due << SHIFT | seq


class Delaying(Protocol):
    """The queue whose messages are delayed: a :class:`qindex.queue.state.QueueState`."""

    index: QueueIndex
    messages: Messages | None
    alarm: Alarm
    arrived: Bell
    lock: PatientLock
    noted: dict[int, EntryNote]

    def note(self, seq: int) -> EntryNote:
        """Return the note on an entry, which is made if there is none."""

    def __enter__(self) -> object:
        """Begin a critical section, with the lock held."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """End it."""


class DueTimes:
    """The delayed messages of one queue, whose lock is held for every call.

    The notes of messages that were due and are with consumers have their due times.
    """

    def __init__(self, state: Delaying) -> None:
        self._state = state
        self._index: QueueIndex = state.index
        # Keys, in order.
        self._waiting: SortedList[int] = SortedList()
        self._due: SortedList[int] = SortedList()
        # Published with a delay, and not yet in the file.
        self._unnoted: list[int] = []
        # Messages that have a later due time in the file.
        self._noted: set[int] = set()
        self._alarm_at = 0
        lost = "a message that was given back with a delay may be due at once"
        self._file = NotesFile(state.index, DUE_FILE, "due times", lost)

    def __len__(self) -> int:
        """Messages that are not due yet."""
        return len(self._waiting)

    def next_due(self) -> int | None:
        """Return when the next message is due, in microseconds since 1970, or None."""
        return self._waiting[0] >> SHIFT if self._waiting else None

    def _is_held(self, seq: int) -> bool:
        with suppress(StoreError):
            return self._index.is_held(seq)
        return False

    # -- waiting --------------------------------------------------------------------------------

    def hold(self, seq: int, due: int) -> None:
        """Delay an entry that was just published."""
        self._unnoted.append(self.hold_again(seq, due))

    def hold_again(self, seq: int, due: int) -> int:
        """Delay an entry that came back, or of which the file says nothing; return its key."""
        self._index.hold(seq)
        key = make_key(due, seq)
        self._waiting.add(key)
        if not 0 < self._alarm_at <= due:
            self._set_alarm(due)
        return key

    def hold_batch(self, seqs: range, due: int) -> None:
        """Delay entries that were just published together."""
        for seq in seqs:
            self.hold(seq, due)

    def cancelled(self, seq: int, due: int) -> None:
        """Take note that a message, which was published with this due time, was dropped before it
        was delivered."""
        key = make_key(due, seq)
        self._waiting.discard(key)
        self._due.discard(key)

    def take(self, seq: int) -> None:
        """Let a delayed message be delivered before it is due. O(delayed messages)."""
        self.take_back()
        self.bring()
        # Its key goes: given back with another delay, the message would have two.
        for keys in (self._waiting, self._due):
            for key in [each for each in keys if each & SEQ == seq]:
                keys.remove(key)
                self._state.note(seq).due = key >> SHIFT
        self._index.release(seq)

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget messages that are about to be dropped. O(delayed messages), if any of them is
        delayed."""
        held = {seq for seq in seqs if self._is_held(seq)}
        if held:
            kept = [key for key in self._waiting if key & SEQ not in held]
            self._waiting = SortedList(kept)

    def clear(self) -> None:
        """Forget all messages but those with consumers: the queue was purged."""
        self._waiting, self._due = SortedList(), SortedList()
        self._forget_unnoted()

    # -- due ------------------------------------------------------------------------------------

    def bring(self) -> int:
        """Count the messages as ready whose time has come, and return how many these are."""
        now = now_us()
        waiting = self._waiting
        before = len(waiting)
        while waiting and waiting[0] >> SHIFT <= now:
            key = waiting.pop(0)
            if self._is_held(key & SEQ):
                self._due.add(key)
        return before - len(waiting)

    def first_due(self) -> int:
        """Return the key of the first message that is due, and not read yet; 0 for none."""
        due = self._due
        while due and not self._index.is_held(due[0] & SEQ):
            due.pop(0)
        return due[0] if due else 0

    def all_due(self) -> list[int]:
        """Return the keys of all messages that are due and not read yet, in order."""
        return [key for key in self._due if self._is_held(key & SEQ)]

    def stage(self) -> None:
        """Read the first message that is due, and let it be delivered next."""
        index = self._index
        key = self._due[0]
        seq = key & SEQ
        body, extra = index.read_held(seq)
        self._due.pop(0)
        self._state.note(seq).due = key >> SHIFT
        index.ahead.staged = seq, body, extra

    def give_back(self, seq: int, extra: int | Entry) -> bool:
        """Take a message back that was due; False if it was not delayed."""
        note, due = self._state.noted.get(seq), 0
        if note is not None:
            due, note.due = note.due, 0
        if not due and isinstance(extra, Entry) and extra.message is not None:
            # It was out as a call was cut short, and the file had nothing of it yet.
            due = due_of(extra.message.headers)
        if not due:
            return False
        self._index.hold(seq)
        self._due.add(make_key(due, seq))
        self._index.ahead.put_off()
        return True

    def take_back(self) -> None:
        """Take back the message that was read and not delivered: the reading begins anew."""
        ahead = self._index.ahead
        if ahead.staged is not None:
            self.give_back(ahead.staged[0], ahead.staged[2])
            ahead.staged = None

    def on_alarm(self) -> None:
        """Wake consumers for due messages. The engine's timer calls it."""
        state = self._state
        with state.lock, state:
            self._alarm_at = 0
            count = self.bring()
            if count:
                state.arrived.notify(count)
            self._set_alarm(self._waiting[0] >> SHIFT if self._waiting else 0)

    def _set_alarm(self, due: int) -> None:
        if due:
            self._alarm_at = due
            left = max(due - now_us(), 0) / 1e6
            # A clock that stood still while the machine slept is read again soon enough.
            self._state.alarm.set(self, monotonic() + min(left, _LONGEST_SLEEP))

    # -- the file -------------------------------------------------------------------------------

    def begin(self, *, durably: bool) -> None:
        """Make the file. Raises :class:`StorageError`; nothing has changed then."""
        self._file.begin(durably=durably)

    def note(self, seq: int, due: int) -> None:
        """Write the due time of a message that is given back. Raises :class:`StorageError`;
        nothing has changed then."""
        if self._file.records > 2 * (len(self._waiting) + len(self._state.noted)) + _MAX_SPARE:
            self._rewrite()
        self._file.append(pack_note(seq, due))
        if self._unnoted:
            self._noted.add(seq)

    def note_published(self) -> None:
        """Write what the file lacks: a flush has moved the messages to segments. Where that fails,
        the next open looks for them."""
        if not self._unnoted:
            return
        dues, seqs = _split(key for key in self._unnoted if key & SEQ not in self._noted)
        try:
            self._file.note_published(seqs, dues)
        except StorageError as error:
            _log.warning("%s", error)
            return
        self._forget_unnoted()

    def _forget_unnoted(self) -> None:
        self._unnoted, self._noted = [], set()

    def close(self) -> None:
        """Write the whole file, for a clean close. A failure costs the next open some time."""
        try:
            self._rewrite(closed=True)
        except StorageError as error:
            _log.warning("%s", error)

    def sync(self) -> None:
        """Make the file durable. Raises :class:`StorageError`."""
        self._file.sync()

    def _rewrite(self, *, closed: bool = False) -> None:
        noted = self._state.noted.items()
        out = [make_key(note.due, seq) for seq, note in noted if note.due]
        dues, seqs = _split([*self._waiting, *self._due, *out])
        there = self._index.are_there(seqs)
        self._file.rewrite(seqs[there], dues[there], closed=closed)
        self._forget_unnoted()

    # -- opening --------------------------------------------------------------------------------

    def load(self) -> None:
        """Take over what the file and the messages say. Raises :class:`StorageError`."""
        index = self._index
        found, closed = self._file.read()
        self._due = SortedList()
        self._forget_unnoted()
        for seq, note in self._state.noted.items():
            if note.due and index.state_of(seq) != OUT:
                note.due = 0
        index.release_all()
        seqs, dues = found.seq_ids, found.values
        if not closed:
            index.bring_all(seqs)
            there = index.are_there(seqs)
            seqs, dues = seqs[there], dues[there]
            fresh_seqs, fresh_dues = self._file.find(found.noted, self._state.messages, due_of)
            fresh = ~np.isin(fresh_seqs, seqs)
            self._unnoted = _join(fresh_seqs[fresh], fresh_dues[fresh])
            seqs = np.concatenate((seqs, fresh_seqs[fresh]))
            dues = np.concatenate((dues, fresh_dues[fresh]))
        held = index.hold_many(seqs)
        out = ~held & index.are_there(seqs)  # with consumers
        # If a call was cut short, the file may lack the messages that are with consumers.
        for seq, due in zip(seqs[out].tolist(), dues[out].tolist(), strict=True):
            note = self._state.note(seq)
            note.due = note.due or due
        self._waiting = SortedList(_join(seqs[held], dues[held]))
        self.bring()
        self._set_alarm(self._waiting[0] >> SHIFT if self._waiting else 0)


def _split(keys: Iterable[int]) -> tuple[I64, I64]:
    """Return the due times and the seq_ids of keys."""
    keys = list(keys)
    dues = np.array([key >> SHIFT for key in keys], np.int64)
    return dues, np.array([key & SEQ for key in keys], np.int64)


def _join(seqs: I64, dues: I64) -> list[int]:
    # Through memoryviews: lists of the numbers would take more memory than the keys.
    return [make_key(due, seq) for seq, due in zip(seqs.data, dues.data, strict=True)]
