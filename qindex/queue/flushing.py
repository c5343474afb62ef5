"""The flush of one queue, its syncs, and its end."""

from __future__ import annotations

import logging
from _thread import get_ident
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import sleep

from journal.durations import Stopwatch
from journal.errors import ClosedError, StorageError, StoreError
from journal.format import ACTION_SIZE
from journal.poison import is_passing
from qindex.format.settings import NO_SETTINGS
from qindex.index.flush import write_plan
from qindex.queue.dead_letters import Mover
from qindex.queue.state import LOOK_AGAIN, Debt, QueueState
from qindex.recovery.snapshot import RestingQueue

_log = logging.getLogger("qindex.queue")

_BACKLOG_FACTOR = 16
"""A journal may grow to this many times max_journal_entries while a flush is under way; then
publishers wait for it."""
_BURST_FACTOR = 4
"""A flush that is due waits for a burst to end until the journal has this many times
max_journal_entries: threads of one interpreter get in each other's way."""
_PRESSING_FACTOR = 8
"""From so many times max_journal_entries on, publishers let a flush that is under way go on."""
_STAND_BACK = 5e-5
"""Seconds for which a thread that publishes lets the flush go on, once in :data:`_TICKS` ticks.

A flush reads, packs and writes in some ten steps a segment. Each step has to wait for the
interpreter's lock, which a busy thread releases every 5 ms only: without this the flush would fall
behind, until all calls wait for it.
"""
_TICKS = 4
_SEAL_AT_LEAST = 16 << 10
"""Checksums are taken of no fewer new bytes of a journal than this, but by a sync."""
_MAX_GARBAGE = 256 << 10
"""Bytes of a journal that a close keeps however few of its messages are still there."""


class Flusher:
    """Flushes one queue, and sees when a flush is due.

    ``request``: asks the engine's background thread for a flush, and returns whether there is one;
    ``None``: there is none.
    """

    def __init__(
        self,
        state: QueueState,
        mover: Mover,
        request: Callable[[Flusher], bool] | None = None,
    ) -> None:
        self.state = state
        self.request = request
        self.mover = mover
        self.times: Stopwatch = Stopwatch()
        # From this dirty_count on a failed flush is tried again.
        self._retry_at = 0
        options = state.options
        self.max_dirty: int = options.max_journal_entries
        # Once in 64 messages, where a flush comes so rarely that it makes no difference.
        self._usual_mask = 63 if options.max_journal_entries >= 4096 else 0
        state.check_mask = self._usual_mask
        self._ticks = 0
        self._pressing = options.max_journal_entries * _PRESSING_FACTOR

    # -- when -----------------------------------------------------------------------------------

    def tick(self, owed: list[Debt] | None = None) -> None:
        """Take checksums of the appended bytes, and see if a flush is due. Called once in a while,
        with the lock held. ``owed``: see :meth:`flush_due`.
        """
        state = self.state
        index = state.index
        journal = index.journal
        journal.seal(_SEAL_AT_LEAST)
        dirty = index.dirty
        if dirty > self.max_dirty or journal.in_reserve:
            self.flush_due(owed)
            dirty, journal = index.dirty, index.journal
        # On a full disk each action may be the one after which a flush makes room.
        state.check_mask = 0 if journal.in_reserve else self._usual_mask
        if state.flushing and state.check_mask and dirty > self._pressing:
            self._ticks += 1
            if not self._ticks % _TICKS:
                self._owe(owed)
        state.lock.choose()

    def is_due(self) -> bool:
        """Return whether the journal has more actions than it may, or no more room."""
        index = self.state.index
        return index.dirty > self.max_dirty or index.journal.in_reserve

    def can_wait(self) -> bool:
        """Return whether a flush that is due may wait for a burst of actions to end."""
        index = self.state.index
        return index.dirty < self.max_dirty * _BURST_FACTOR and not index.journal.in_reserve

    def is_pressed(self) -> bool:
        """Return whether the journal has grown so far that publishers wait for a flush."""
        index = self.state.index
        return index.dirty > self.max_dirty * _BACKLOG_FACTOR and index.poison.reason is None

    def pressing(self) -> QueueState | None:
        """See :meth:`qindex.queue.state.Debt.pressing`."""
        return self.state if self.is_pressed() else None

    def flush_due(self, owed: list[Debt] | None = None) -> None:
        """See to a flush: the journal has more actions than it may. Lock held.

        The caller's action is done. Nothing is flushed here, and nobody waits: what is to be done,
        or waited for, is noted in ``owed``, the queue's own list unless another one is given.
        """
        state = self.state
        index = state.index
        # The flush of a drained queue takes no room, whatever happened to the last one.
        drained = index.journal.in_reserve and not index.live
        too_early = index.dirty < self._retry_at and not drained
        if state.lock.refusal is not None or too_early:
            return
        if self.is_asked_for() and not self.is_pressed():
            return  # it comes, and nobody need wait for it
        self._owe(owed)

    def _owe(self, owed: list[Debt] | None) -> None:
        if owed is None:
            owed = self.state.owed
        if self not in owed:
            owed.append(self)

    def is_asked_for(self) -> bool:
        """Ask the background thread for a flush; false where there is none: whoever owes the flush
        has to do it."""
        return self.request is not None and self.request(self)

    def pay(self) -> list[Debt]:
        """Flush if nobody else does, or wait while publishers are to wait. No lock is held.

        A flush that fails is logged, and the next one tries again.
        """
        state = self.state
        if not self.is_asked_for():
            if not state.flushing and self.is_due():
                self._try_to_flush()
            return []
        if not self.is_pressed():
            if state.flushing and state.index.dirty > self._pressing:
                sleep(_STAND_BACK)
            return []
        with state.lock.anyway:
            while self.is_pressed() and not state.lock.is_over():
                if state.flushing == get_ident():
                    break
                if not state.flushed.wait(LOOK_AGAIN) and not state.flushing:
                    break
        return []

    def _try_to_flush(self) -> None:
        try:
            self.flush_now()
        except ClosedError:
            pass  # the end has come in between, and flushes it
        except StoreError as error:
            _log.error("flush of queue %r failed: %s", self.state.name, error)

    # -- flush and sync -------------------------------------------------------------------------

    def flush(self) -> None:
        """Flush, with all that returned before durable on return."""
        with self.state.calls.here():
            self.sync()
            self.flush_now()

    def flush_now(self) -> None:
        """Flush. The emptied journal need not be durable where its records were not."""
        state = self.state
        mine = False
        try:
            with state.lock, state:
                state.await_flush()
                state.check_open()
                state.flushing, mine = get_ident(), True
            # If it fails it is not tried again at each call, but after as many more actions.
            self._retry_at = state.index.dirty + self._patience()
            with self.times.running():
                self.write_and_empty()
            self._retry_at = 0
        except BaseException as error:
            if mine:
                self._cut_short(error)
            raise
        finally:
            if mine:
                # At once: a signal's handler may raise while the lock is taken.
                state.flushing = 0
                with state.lock.anyway:
                    state.flushed.notify_all()

    def _cut_short(self, error: BaseException) -> None:
        """Refuse writes from now on unless this is a StoreError: files were being exchanged."""
        if not isinstance(error, StoreError):
            self.state.index.poison.cut_short(error)

    def _patience(self) -> int:
        """Count the actions after which a failed flush is tried again: on a full disk when half of
        the free reserve is used."""
        journal = self.state.index.journal
        if not journal.in_reserve:
            return self.max_dirty
        return min(self.max_dirty, journal.reserve_left // (2 * ACTION_SIZE))

    def write_and_empty(self, *, held: bool = False) -> None:
        """Flush; ``held``: the queue's lock is held, and no append comes meanwhile."""
        index = self.state.index
        lock = nullcontext() if held else self.state.lock.anyway
        index.poison.check()
        with lock:
            if index.changing:
                self.state.rebuild()
            plan = index.plan()
        if plan is None:
            return
        try:
            index.journal.check_place()
            index.seq_file.raise_floor(plan.next_seq)
            index.flushed_bytes += write_plan(index.fs, plan)
            with lock:
                end = index.journal.end
            prepared = index.journal.prepare(plan.front, end)
        except StorageError as error:
            if not is_passing(error):
                index.poison.set(error)
            raise
        with lock:
            if index.changing:
                self.state.rebuild()
            old = index.finish(plan, prepared)
            for notes in self.state.notes():
                notes.note_published()
            index.trim_unused()
        index.journal.retire(old)
        index.poison.check()

    def seal(self) -> None:
        """Take checksums of all that was appended; the housekeeper calls it now and then."""
        with self.state.lock.anyway:
            if self.state.lock.refusal is None:
                self.state.index.journal.seal()

    def sync(self) -> None:
        """Make all that returned before durable against power loss. Concurrent callers share."""
        state = self.state
        with state.calls.here():
            state.lock.check()
            self.mover.settle()
            self.seal_and_sync()

    def seal_and_sync(self) -> None:
        """Take checksums of what the journal holds, and make it durable, with its messages."""
        with self.state.lock, self.state as state:
            state.index.journal.seal()
        state.sync_all()

    def sync_if_open(self) -> None:
        """Make the journal durable, if the queue is open; a closed one is durable."""
        if self.state.lock.refusal is None:
            self.state.sync_journal()

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse later calls, drop transient messages, and close the journal, which keeps what it
        holds: all while the lock is held, except for the wait for a flush under way. The engine
        calls it."""
        close_together([self])

    def close_held(self) -> None:
        """Do the part of :meth:`close` that comes after the refusal. Lock held."""
        state = self.state
        index = state.index
        state.await_flush()
        cut = True
        try:
            if index.poison.reason is None:
                if index.changing:
                    state.rebuild()
                state.forgive_outstanding()
                state.release(index.drop_transient())
                index.seq_file.raise_floor(index.next_seq)
                if index.damaged or self._retry_at or self._keeps_garbage():
                    # The next open need not meet damage of which nothing is left, nor the
                    # files of a flush that has failed half-way. A queue that short runs use
                    # would otherwise keep what each of them has consumed.
                    self.write_and_empty(held=True)
                for notes in state.notes():
                    notes.close()
        except StorageError as error:
            cut = not is_passing(error)  # its reserve lets the next open consume
            raise
        finally:
            index.journal.close(cut=cut)

    def _keeps_garbage(self) -> bool:
        """Return whether most of what the journal holds was consumed, and it is large."""
        index = self.state.index
        return index.journal.end >= _MAX_GARBAGE and 8 * index.live < index.dirty

    def abandon(self, kind: type[StoreError], text: str) -> list[bytes]:
        """Close without a flush: the queue's directory is about to be deleted. Returns the ids of
        its messages that are in the message store: they can't be acknowledged any more."""
        state = self.state
        stored: list[bytes] = []
        messages = state.messages
        with state.lock.anyway:
            state.lock.refuse(kind, text)
            state.notify_all()
            state.await_flush()
            try:
                if messages is not None and messages.in_use:
                    stored = state.index.all_stored_ids()
                    messages.miscounted |= state.index.lost_entries
            except StorageError as error:
                # A queue that can't be read can still be deleted.
                _log.warning("%s: its messages stay until the next open", error)
                if messages is not None:
                    messages.miscounted = True
            try:
                state.index.journal.close(cut=False)
            except StorageError as error:
                _log.warning("%s: it is to be deleted all the same", error)
        return stored

    def resting(self) -> RestingQueue:
        """Return the figures of a closed queue that the snapshot keeps."""
        index = self.state.index
        if self.state.messages is not None:
            self.state.messages.miscounted |= index.lost_entries
        return RestingQueue(
            index.directory,
            index.next_seq,
            {
                number: (segment.filed_unacked, segment.file_size)
                for number, segment in index.segments.items()
                if segment.file_size
            },
            has_settings=self.state.settings != NO_SETTINGS,
            journal=index.journal.end,
            held=index.live,
        )

    # -- for the background thread ----------------------------------------------------------------

    def actions(self) -> int:
        """Count the actions on the queue since it was opened. No lock: a figure of about this
        moment."""
        return self.state.index.actions

    def unflushed(self) -> tuple[int, int]:
        """Return the dirty_count, and the bytes of memory that the entries of the journal take. No
        lock: figures of about this moment."""
        index = self.state.index
        if not index.dirty:
            return 0, 0
        return index.dirty, index.journal.end + 8 * len(index.positions)


def close_together(flushers: Sequence[Flusher]) -> None:
    """Close the levels of a queue, which share one lock, in one hold of it; see
    :meth:`Flusher.close`. Raises what the first level raises that can't be closed in order, once
    all are closed."""
    state = flushers[0].state
    failure: StoreError | OSError | None = None
    with state.lock.anyway:
        if state.lock.refusal is not None:
            return
        # This comes first. Otherwise callers that fill the journal would start flush after flush.
        state.lock.refuse(ClosedError, f"queue {state.name!r} is closed")
        for one in flushers:
            one.state.notify_all()
        for one in flushers:
            try:
                one.close_held()
            except (StoreError, OSError) as error:
                failure = failure or error
    if failure is not None:
        raise failure
