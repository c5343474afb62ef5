"""What both halves of a queue share: its state, its lock, its flush, its end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from time import sleep
from typing import TYPE_CHECKING

from journal.call_lock import refuse_twice
from journal.durations import Stopwatch
from journal.errors import ClosedError, ForkedError, StorageError, StoreError, UsageError
from journal.format import ACTION_SIZE
from journal.patience import PatientLock
from journal.poison import PASSING
from qindex.format.entries import Entry
from qindex.format.message_record import plain_body_size
from qindex.format.settings import QueueSettings
from qindex.index.flush import write_plan
from qindex.index.messages import Messages
from qindex.index.queue_index import QueueIndex
from qindex.index.read_ahead import NOTHING_FETCHED
from qindex.index.segment import Segment
from qindex.options import Options
from qindex.queue.dead_letter import Letter
from qindex.queue.delivery_counts import DeliveryCounts
from qindex.queue.guards import RefusingLock
from qindex.queue.leases import Leases
from qindex.queue.limits import Limits
from qindex.queue.postponed import Postponed
from qindex.queue.tally import Tally
from qindex.queue.timer import Alarm
from qindex.queue.wake_ups import CALLER, Bell
from qindex.recovery.queue_recovery import RestingQueue

if TYPE_CHECKING:
    from qindex.engine.moves import Moves

__all__ = ["QueueCore"]

_log = logging.getLogger("qindex.queue")

_BACKLOG_FACTOR = 16
"""A journal may grow to this many times max_journal_entries while a flush is under way; then
publishers wait for it."""
_BURST_FACTOR = 4
"""A flush that is due waits for a burst to end until the journal has this many times
max_journal_entries: threads of one interpreter get in each other's way."""

_PRESSING_FACTOR = 8
"""From so many times max_journal_entries on a flush under way is let go on: before, the burst that
it got in the way of may end."""
_STAND_BACK = 5e-5
"""Seconds for which a thread that ticks lets it go on, once in :data:`_TICKS` ticks."""
_TICKS = 4

_LOOK_AGAIN = 1.0
"""Seconds after which who waits for a flush looks whether it is over: one that a signal's handler
has cut short may not have told."""

_SEAL_AT_LEAST = 4096
"""Checksums are taken of no fewer new bytes of a journal than this, but by a sync."""


class QueueCore:
    """State of one queue. ``live - out`` messages are ready, ``out`` are with consumers."""

    # The attributes that the paths of single messages touch are slots: they are found at once.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_ack_segment",
        "_arrived",
        "_at",
        "_check_mask",
        "_flushing",
        "_holding",
        "_id_high",
        "_index",
        "_limits",
        "_lock",
        "_most_embedded",
        "_most_plain",
        "_nacked_at",
        "_next_fetch",
        "_returned",
        "_stored_out",
        "_sync_each",
        "_tally",
        "_ticks",
        "_to_move",
        "_waiting",
        "_watched",
        "_window",
    )

    def __init__(
        self,
        name: str,
        index: QueueIndex,
        options: Options,
        *,
        settings: QueueSettings,
        moves: Moves,
        alarm: Alarm,
        messages: Messages | None = None,
        request_flush: Callable[[QueueCore], None] | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.message_ttl = settings.message_ttl
        self._index = index
        self._options = options
        self._request_flush = request_flush
        self._messages = messages
        self._real_lock = PatientLock()
        self._lock: PatientLock | RefusingLock = self._real_lock
        self._arrived = Bell(self._real_lock)
        self._flushed = Bell(self._real_lock)
        self._settled = Bell(self._real_lock)
        # How many wait for a message, and how many for an ack.
        self._waiting = 0
        self._holding = 0
        # The thread that flushes; 0: none.
        self._flushing = 0
        self._flush_times = Stopwatch()
        # The dirty_count from which on a flush that has failed is tried again.
        self._retry_at = 0
        # Bodies up to this size are embedded, those of messages with neither key, headers nor
        # properties; and where such a message has nothing else to be seen to.
        self._most_embedded = self._most_plain = -1
        is_limited = settings.max_length is not None or settings.max_bytes is not None
        if options.record_format == "qindex":
            most = options.max_message_bytes
            if messages is not None:
                most = min(most, plain_body_size(options.embed_below - 1))
            self._most_embedded = most
            if settings.message_ttl is None and not is_limited:
                self._most_plain = most
        self._sync_each = options.durability == "fsync"
        self._max_dirty = options.max_journal_entries
        # The single-message paths tick once in 64 messages, where a flush comes so rarely that it
        # makes no difference.
        self._usual_mask = 63 if options.max_journal_entries >= 4096 else 0
        self._check_mask = self._usual_mask
        self._ticks = 0
        self._pressing = options.max_journal_entries * _PRESSING_FACTOR
        # Message ids are unique among all queues and runs: eight random bytes, and the seq_id.
        self._id_high = int.from_bytes(os.urandom(8), "big")
        self._first_seq = index.next_seq
        # Read ahead; the entry at ``_at`` is the next one.
        self._window = NOTHING_FETCHED
        self._at = 0
        self._next_fetch = 0
        # Given back, a heap of seq_ids: they come before everything in the window.
        self._returned: list[int] = []
        self._returned_by_seq: dict[int, tuple[bytes, int | Entry]] = {}
        # When (which nack of this run) an entry was given back, until it is acknowledged: tells a
        # batch from before that the entry is no longer its own. 0: it was not, and its ack has
        # something else to see to (a lease, a count).
        self._nacked_at: dict[int, int] = {}
        # Message ids of delivered messages that are in the message store, until the ack.
        self._stored_out: dict[int, bytes] = {}
        self._ack_segment = Segment(0, 0)
        self._prepare_limits(is_limited, moves, alarm)

    def _prepare_limits(self, is_limited: bool, moves: Moves, alarm: Alarm) -> None:
        """Set up what only some queues use; ``_watched``: deliveries are to be looked at."""
        settings = self.settings
        self._moves = moves
        self._alarm = alarm
        self._room = Bell(self._real_lock)
        self._limits: Limits | None = None
        if is_limited:
            size = 0 if settings.max_bytes is None else self._index.ready_bytes()
            self._limits = Limits(settings, size)
        self._leases = Leases()
        self._delivery_limit = settings.delivery_limit or 0
        # How often messages that came back were delivered before.
        self._returns: dict[int, int] = {}
        self._counts: DeliveryCounts | None = None
        if settings.delivery_limit is not None:
            self._counts = DeliveryCounts(self._index.fs, self._index.directory)
            self._returns = self._counts.loaded
            # So that the ack of one of them comes by what is noted here.
            self._nacked_at = dict.fromkeys(self._returns, 0)
        # What is to be moved, once the lock is free; stuck: the last try has failed.
        self._to_move: list[Letter] = []
        self._postponed = Postponed()
        self._stuck = False
        self._tally = Tally()
        self._watched = is_limited or self._delivery_limit > 0 or settings.dead_letter is not None

    def _check_open(self) -> None:
        """Raise what the queue raises since it was closed or forked. Lock held or not."""
        if isinstance(self._lock, RefusingLock):
            self._lock.__enter__()

    def _release(self, msg_ids: Iterable[bytes]) -> None:
        """Take this queue's references to messages in the message store back. Their acks are in
        the journal; the store asks for their sync before it deletes anything."""
        if self._messages is not None:
            self._messages.remove(msg_ids)

    def _sync_all(self) -> None:
        """Make messages and journal durable, in this order: an index entry is never there
        without its message."""
        if self._messages is not None:
            self._messages.sync()
        self._index.journal.sync()

    def _sync_each_journal(self) -> None:
        """Make what the caller has just done durable, as the engine's durability asks for. An
        event loop's thread is spared: the asyncio twin sees to it."""
        if CALLER.waits and CALLER.syncs:
            self._index.journal.sync()

    def _sync_each_all(self) -> None:
        """The same with messages that may be in the message store."""
        if CALLER.waits and CALLER.syncs:
            self._sync_all()

    def _sync_journal(self) -> None:
        """Make the journal durable, if the queue is open; one that was closed is."""
        if not isinstance(self._lock, RefusingLock):
            self._index.journal.sync()

    def _check_size(self, size: int) -> None:
        if size > self._options.max_message_bytes:
            raise UsageError(
                f"a body may have at most {self._options.max_message_bytes} bytes "
                f"(max_message_bytes), not {size}"
            )

    def __len__(self) -> int:
        """Messages that are ready: waiting, not with a consumer. O(1)."""
        index = self._index
        # Each is counted under the lock, and read without: a get may come in between.
        return max(index.live - index.out, 0)

    def __bool__(self) -> bool:
        """A queue is true, empty or not."""
        return True

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, {len(self)} ready, {self._index.out} unacked>"

    # -- flushing -------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Once in a while: take checksums of what was appended, see if a flush is due; locked."""
        index = self._index
        index.journal.seal(_SEAL_AT_LEAST)
        if self._is_due():
            self._flush_due()
        # On a full disk each action may be the one after which a flush makes room.
        self._check_mask = 0 if index.journal.in_reserve else self._usual_mask
        if self._flushing and self._check_mask and index.dirty > self._pressing:
            self._stand_back()
        self._real_lock.choose()

    def _tick_on_loop(self) -> None:
        """The same on the thread of an event loop, which waits for nothing."""
        CALLER.waits = False
        try:
            self._tick()
        finally:
            CALLER.waits = True

    def _stand_back(self) -> None:
        """Let a flush go on.

        It reads, packs and writes in some ten steps a segment, and each has to wait for the
        interpreter, which a busy thread lets go of every 5 ms only: without this the flush would
        fall behind, until all wait for it. An event loop, too, can spare as long as some ten
        publishes take. Lock held; not while it stands back.
        """
        self._ticks += 1
        if self._ticks % _TICKS:
            return
        lock = self._real_lock
        try:
            lock.release()
            lock.give_up()
            sleep(_STAND_BACK)
        finally:
            lock.retake()

    def _seal(self) -> None:
        """Take checksums of all that was appended; the housekeeper calls it now and then."""
        with self._real_lock:
            if not isinstance(self._lock, RefusingLock):
                self._index.journal.seal()

    def _flush_due(self) -> None:
        """See to a flush: the journal has more actions than it may. Lock held.

        What the caller did is done; a flush that fails is logged, and the next one tries again.
        """
        index = self._index
        # The flush of a drained queue takes no room, whatever happened to the last one.
        drained = index.journal.in_reserve and not index.live
        too_early = index.dirty < self._retry_at and not drained
        if isinstance(self._lock, RefusingLock) or too_early:
            return
        if self._request_flush is None:
            if not self._flushing and CALLER.waits:
                try:
                    self._real_lock.release()
                    self._flush()
                except StoreError as error:
                    _log.error("flush of queue %r failed: %s", self.name, error)
                finally:
                    self._real_lock.retake()
            return
        self._request_flush(self)
        while CALLER.waits and self._is_pressed() and self._flushing != get_ident():
            if not self._flushed.wait(_LOOK_AGAIN) and not self._flushing:
                break

    def _is_pressed(self) -> bool:
        """Tell whether the journal has grown so far that publishers wait for a flush."""
        limit = self._max_dirty * _BACKLOG_FACTOR
        return self._index.dirty > limit and self._index.poison.reason is None

    def flush(self) -> None:
        """Bring the journal into the segment files and empty it. All that returned before is
        durable on return, as after :meth:`sync`.

        Publishers and consumers go on meanwhile. Raises :class:`StorageError`: a full disk leaves
        all as it was; after any other failure no more writes are taken.
        """
        self.sync()
        self._flush()

    def _flush(self) -> None:
        """Flush; what of it was not durable in the journal need not be in its emptied state."""
        me, mine = get_ident(), False
        try:
            with self._real_lock:
                self._await_flush()
                self._check_open()
                self._flushing, mine = me, True
            # If it fails it is not tried again at each call, but after as many more actions.
            self._retry_at = self._index.dirty + self._patience()
            with self._flush_times.running():
                self._flush_now()
            self._retry_at = 0
        except BaseException as error:
            if mine:
                self._cut_short(error)
            raise
        finally:
            if mine:
                # At once: a signal's handler may raise while the lock is taken.
                self._flushing = 0
                with self._real_lock:
                    self._flushed.notify_all()

    def _await_flush(self) -> None:
        """Wait until no flush is under way. Lock held, though not meanwhile."""
        while self._flushing:
            if self._flushing == get_ident():
                refuse_twice()
            self._flushed.wait(_LOOK_AGAIN)

    @contextmanager
    def _in_one_piece(self) -> Iterator[None]:
        """What is done here is done whole, or writes are refused from then on."""
        try:
            yield
        except BaseException as error:
            self._cut_short(error)
            raise

    def _cut_short(self, error: BaseException) -> None:
        """Refuse writes from now on, if this is no error of ours, see :meth:`Poison.cut_short`."""
        if not isinstance(error, StoreError):
            self._index.poison.cut_short(error)

    def _patience(self) -> int:
        """Count the actions after which a flush that fails is tried again: on a full disk when
        half of what is left of the reserve is used."""
        journal = self._index.journal
        if not journal.in_reserve:
            return self._max_dirty
        return min(self._max_dirty, journal.reserve_left // (2 * ACTION_SIZE))

    def _flush_now(self, *, held: bool = False) -> None:
        """Flush; ``held``: the queue's lock is held, and nobody appends meanwhile."""
        index = self._index
        lock = nullcontext() if held else self._real_lock
        index.poison.check()
        with lock:
            plan = index.plan()
        if plan is None:
            return
        try:
            index.seq_file.raise_floor(plan.next_seq)
            index.flushed_bytes += write_plan(index.fs, plan)
            with lock:
                end = index.journal.tell()
            prepared = index.journal.prepare(plan.front, end)
        except StorageError as error:
            if error.errno not in PASSING:
                index.poison.set(error)
            raise
        with lock:
            old = index.finish(plan, prepared)
            index.trim((self._window.segment, self._ack_segment), self._next_fetch)
        index.journal.retire(old)
        index.poison.check()

    def sync(self) -> None:
        """Make all that returned before durable against power loss. Concurrent callers share."""
        self._check_open()
        self._moves.settle()
        with self._lock:
            self._index.journal.seal()
        self._sync_all()

    # -- the end --------------------------------------------------------------------------------

    def _shut(self, lock: RefusingLock) -> None:
        """Refuse all that comes; wake those who wait, they will see it."""
        with self._real_lock:
            self._lock = lock
            self._arrived.notify_all()
            self._settled.notify_all()
            self._flushed.notify_all()
            self._room.notify_all()

    def _close(self) -> None:
        """Drop transient messages, flush, and close the journal. The engine calls it."""
        if isinstance(self._lock, RefusingLock):
            return
        # First, or those who fill the journal would start one flush after the other.
        self._shut(RefusingLock(ClosedError, f"queue {self.name!r} is closed"))
        with self._real_lock:
            self._await_flush()
        index = self._index
        try:
            if index.poison.reason is None:
                with self._real_lock:
                    index.drop_transient()
                self._flush_now()
        finally:
            # Under the lock: who waited for it since before the end may be appending.
            with self._real_lock:
                index.journal.close()

    def _abandon(self, lock: RefusingLock) -> list[bytes]:
        """Close without a flush: the queue's directory is about to be deleted. Gives the ids of
        its messages that are in the message store: nobody can acknowledge them any more."""
        self._shut(lock)
        stored: list[bytes] = []
        with self._real_lock:
            self._await_flush()
            try:
                if self._messages is not None and self._messages.in_use:
                    stored = self._index.all_stored_ids()
                    self._messages.miscounted |= self._index.lost_entries
            except StorageError as error:
                # What can't be read can still be deleted.
                _log.warning("%s: its messages stay until the next open", error)
                if self._messages is not None:
                    self._messages.miscounted = True
            try:
                self._index.journal.close(cut=False)
            except StorageError as error:
                _log.warning("%s: it is to be deleted all the same", error)
        return stored

    def _rest(self) -> RestingQueue:
        """Give what the snapshot keeps of a queue that was closed."""
        index = self._index
        if self._messages is not None:
            self._messages.miscounted |= index.lost_entries
        return RestingQueue(
            index.directory,
            index.next_seq,
            {
                number: (segment.unacked, segment.file_size)
                for number, segment in index.segments.items()
                if segment.unacked
            },
        )

    def _actions(self) -> int:
        """Count what was done to the queue since it was opened; no lock, about this moment."""
        return self._index.actions

    def _is_due(self) -> bool:
        """Tell whether the journal has more actions than it may, or no more room."""
        index = self._index
        return index.dirty > self._max_dirty or index.journal.in_reserve

    def _can_wait(self) -> bool:
        """Tell whether a flush that is due may wait for a burst of actions to end."""
        index = self._index
        return index.dirty < self._max_dirty * _BURST_FACTOR and not index.journal.in_reserve

    def _unflushed(self) -> tuple[int, int, int]:
        """Give the dirty_count, the next seq_id, and the bytes of memory that the entries of
        the journal take. No lock: figures of about this moment."""
        index = self._index
        if not index.dirty:
            return 0, 0, 0
        return index.dirty, index.next_seq, index.journal.tell() + 8 * len(index.positions)

    def _forked(self) -> None:
        """In a forked child: refuse everything. No lock is taken: its holder was left behind."""
        self._lock = RefusingLock(
            ForkedError,
            f"queue {self.name!r} was opened by another process; open the store in the child",
        )
        self._real_lock = PatientLock()
