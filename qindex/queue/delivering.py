"""Delivering: messages are read ahead, and handed out one by one or in batches."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator

from journal.background import Background
from journal.errors import DamageError, StoreError, UsageError
from journal.locks.call_lock import refuse_twice
from qindex.format.entries import Entry, is_only_stored, is_special, make_entry
from qindex.format.headers import DUE_HEADER, due_of, time_in
from qindex.index.read_ahead import Window
from qindex.index.segment import DELIVERED, HELD_AGAIN, PUBLISHED
from qindex.queue.dead_letters import DeadLetters
from qindex.queue.delivery import LOOKED_AT, Batch, Delivery, make_delivery
from qindex.queue.flushing import Flusher
from qindex.queue.message_reader import MessageReader
from qindex.queue.notes.delays import SEQ, DueTimes, make_key, now_us
from qindex.queue.notes.entry_note import next_count
from qindex.queue.notes.leases import check_lease
from qindex.queue.outstanding import seqs_of
from qindex.queue.settling import Settler
from qindex.queue.state import QueueState

_log = logging.getLogger("qindex.queue")

READ_AHEAD = 2048
_MAX_READ_AHEAD = 8192
_MAX_KEPT = 4096
"""Bytes of a body that a window keeps after its delivery: it may last for thousands of messages."""
_READ_TOGETHER = 64
"""Messages that are read from the message store in one go."""
_READ_AHEAD_SHARED = 480
"""The same while several threads use the queue: of 500 items and more numpy lets other threads run,
and each step of reading ahead would wait for the interpreter, with the queue's lock held."""


class Deliverer:
    """Hands out the messages of one queue."""

    def __init__(
        self,
        state: QueueState,
        flusher: Flusher,
        reader: MessageReader,
        letters: DeadLetters,
        settler: Settler,
    ) -> None:
        self.state = state
        self._flusher = flusher
        self._reader = reader
        self._letters = letters
        self._settler = settler
        # Damage that has ended a batch of messages before it; the next call raises it.
        self._owed: DamageError | None = None

    # -- one by one -----------------------------------------------------------------------------

    def get(self, lease: float | None = None) -> Delivery | None:
        """Take the next message, as :meth:`qindex.Queue.get`. Return None if none is
        ready."""
        if lease is not None:
            check_lease(lease)
        state = self.state
        lock = state.lock
        if lock.is_mine():
            refuse_twice()
        given: Delivery | None
        try:
            state.take()
            if state.draining:
                state.refuse_delivery()
            index = state.index
            ahead = index.ahead
            while True:
                window, at = ahead.window, ahead.at
                if ahead.returned or at == len(window.bodies):
                    given = None
                    if not self._available():
                        break
                    if ahead.returned or ahead.staged is not None:
                        given = self._take_returned(lease)
                        if given is None:
                            continue
                        break
                    window, at = ahead.window, ahead.at
                seq = window.seqs[at]
                extra = window.extras[at]
                if type(extra) is not int and is_special(extra):
                    admitted = self._admit(seq, extra)
                    if admitted is None:
                        ahead.at = at + 1
                        continue
                    window.extras[at] = extra = admitted
                    if admitted.message is None:
                        ahead.at = at + 1
                        raise self._damage_of(seq, window.bodies[at], admitted)
                    body = admitted.message.body
                else:
                    body = window.bodies[at]
                again = not index.deliver(seq)
                ahead.at = at + 1
                if len(body) > _MAX_KEPT:
                    window.let_go(at)
                given = Delivery.__new__(Delivery)
                given._queue = self._settler
                given.seq_id = seq
                given.body = body
                given.redelivered = again
                given._extra = extra
                if again:
                    state.tally.again += 1
                noted = state.watched or state.noted or lease is not None
                if noted and not self._hand_out(given, lease):
                    index.handed_out()
                    continue
                index.handed_out()
                break
            lock.release()
        except BaseException as error:
            try:
                state.leave(error)
            finally:
                lock.let_go()  # a signal's handler may have raised as leave began
            raise
        if state.to_move:
            self._letters.owe()
        return given

    def is_crowded(self) -> bool:
        """Return whether a get that found nothing has ended early: it owes a move of dead letters,
        and is to be called again once that is paid."""
        return self._letters.is_crowded()

    def _available(self) -> bool:
        """Return whether a message was given back, or is in the window. Read ahead if not."""
        state = self.state
        state.refuse_delivery()
        index = state.index
        ahead = index.ahead
        later = state.later
        if later is not None:
            self._stage(later)
        elif ahead.is_empty() and self._fill_few():
            return True
        letters = self._letters
        owed, self._owed = self._owed, None
        if owed is not None:
            raise owed
        while ahead.is_empty():
            if index.dirty > self._flusher.max_dirty:
                self._flusher.flush_due()  # deliveries count too
            if letters.is_crowded():
                # Nor may the lock be held for a million expired messages. The caller pays, and asks
                # again.
                letters.owe()
                return False
            if self._fill(_READ_AHEAD_SHARED if state.lock.is_shared() else READ_AHEAD):
                break
            if letters.holds_any():
                letters.owe()
            return False
        return True

    def _fill(self, most: int) -> bool:
        """Read ahead into an empty window; false when nothing is ready."""
        index = self.state.index
        if self.state.later is not None:
            return self._fill_in_order(self.state.later, most)
        window, index.ahead.next_fetch = index.fetch(index.ahead.next_fetch, most)
        if window is None:
            return False
        index.ahead.take(window, index.ahead.next_fetch)
        return True

    def _fill_in_order(self, later: DueTimes, most: int) -> bool:
        """Read ahead in a queue with delayed messages: those that are due come before the others
        that were published after that time."""
        index = self.state.index
        ahead = index.ahead
        if not ahead.go_on():
            window, ahead.next_fetch = index.fetch(ahead.next_fetch, most)
            if window is not None:
                window.room = 0  # the next published message may come after a delayed one
                ahead.take(window, ahead.next_fetch)
        later.bring()
        due = later.first_due()
        if due:
            at, count = ahead.at, len(ahead.window)
            end = self._published_by(due, ahead.window, at)
            if end == at:
                later.stage()
            if end < count:
                ahead.clip(end)
        return not ahead.is_empty()

    def _stage(self, later: DueTimes) -> None:
        """Stage a due message before the first message given back, if it comes before that."""
        ahead = self.state.index.ahead
        if ahead.returned and ahead.staged is None:
            later.bring()
            due = later.first_due()
            if due:
                seq, extra = ahead.first()
                if due < make_key(self._time_of(extra), seq):
                    later.stage()

    def _published_by(self, due: int, window: Window, at: int) -> int:
        """Return the index, from ``at`` on, of the first message that comes after the delayed one
        ``due``. It may be a lower one."""
        extras, seqs = window.extras, window.seqs
        for each in range(at, len(window)):
            extra = extras[each]
            stamp = extra // 1000 if type(extra) is int else self._publish_time(window, each)
            if make_key(stamp, seqs[each]) > due:
                return each
            if each - at == _READ_TOGETHER and not window.plain:
                return each  # no more messages of the message store are read at a time
        return len(window)

    def _publish_time(self, window: Window, at: int) -> int:
        """Return when a message was published, as :meth:`_time_of`. It has been read then."""
        extra = window.extras[at]
        if isinstance(extra, Entry):
            window.extras[at] = extra = self._reader.with_message(extra)
        return self._time_of(extra)

    def _time_of(self, extra: int | Entry) -> int:
        """Return when a message was published, in microseconds since 1970; 0 if it is damaged."""
        if isinstance(extra, int):
            return extra // 1000
        message = self._reader.with_message(extra).message
        if message is None:
            return 0
        return message.timestamp // 1000 or time_in(message.headers)

    def _fill_few(self) -> bool:
        """Read ahead the few messages that a consumer has left that keeps up with the publishers;
        false where there are none, or more work is to be done."""
        index = self.state.index
        few = index.fetch_few(index.ahead.next_fetch)
        if few is None:
            return False
        index.ahead.take(few, index.ahead.next_fetch + len(few.seqs))
        return True

    def _take_returned(self, lease: float | None) -> Delivery | None:
        """Deliver the first message that was given back; ``None`` when it may not be delivered."""
        index = self.state.index
        seq, body, extra = self._next_returned()
        try:
            return self._deliver(seq, body, extra, lease)
        except StoreError:
            if index.state_of(seq) in (PUBLISHED, DELIVERED):
                self.state.give_back(seq, body, extra)
            raise

    def _next_returned(self) -> tuple[int, bytes, int | Entry]:
        """Take the first message that was given back, or that was delayed and is due."""
        state = self.state
        seq, body, extra = state.index.ahead.take_returned()
        if self._was_due(seq):
            state.index.release(seq)
        return seq, body, extra

    def _deliver(
        self, seq: int, body: bytes, extra: int | Entry, lease: float | None
    ) -> Delivery | None:
        """Deliver a message that was read, from wherever it stood; ``None`` when it may not be
        delivered: it has expired, or was delivered too often. Lock held."""
        state = self.state
        index = state.index
        if not isinstance(extra, int):
            admitted = self._admit(seq, extra)
            if admitted is None:
                return None
            if admitted.message is None:
                raise self._damage_of(seq, body, admitted)
            extra, body = admitted, admitted.message.body
        # A message that was given back may be fresh: it could not be marked as delivered before.
        fresh = index.deliver(seq)
        given = make_delivery(self._settler, seq, body, not fresh, extra)
        state.tally.again += not fresh
        handed = self._hand_out(given, lease)
        index.handed_out()
        return given if handed else None

    def _hand_out(self, delivery: Delivery, lease: float | None) -> bool:
        """Count a delivery, and begin its lease; false when the message has been delivered too
        often, and must not be handed out. Lock held."""
        state = self.state
        seq = delivery.seq_id
        state.went_out(1, len(delivery.body))
        # That a message with a count was delivered may be missing from the journal: damage took it,
        # or there was no room for it.
        note = state.noted.get(seq)
        before = -1 if note is None else note.deliveries
        if delivery.redelivered or before >= 0:
            before = before if before >= 0 else 1
            if state.delivery_limit and before >= state.delivery_limit:
                delivery._queue = None
                self._letters.withhold(seq, delivery.message)
                return False
            delivery._count = before + 1
            if state.counts is not None:
                state.counts.note(seq, before + 1)
        if lease is not None:
            self._settler.lend(delivery, delivery.delivery_count, lease, delivery)
        return True

    def _admit(self, seq: int, extra: int | Entry) -> Entry | None:
        """See to an entry that is not plain: ``None`` when it had expired and was dropped, or is
        delayed, else the entry, with its message where that is in the message store. A damaged one
        is given with ``message`` ``None``. Raises :class:`StorageError`; nothing has changed then.
        """
        assert isinstance(extra, Entry)
        entry = self._reader.without_flipped_bits(seq, extra)
        if entry.expiry and entry.expiry <= now_us():
            self._letters.part_with_expired(seq, entry)
            return None
        entry = self._reader.with_message(entry)
        if entry.message is not None and DUE_HEADER in entry.message.headers:
            due = due_of(entry.message.headers)
            if due > now_us() and not self._was_due(seq):
                # The file of due times was lost, or the message came from elsewhere.
                self.state.delays().hold_again(seq, due)
                return None
        if entry.stored and entry.message is not None:
            self.state.note(seq).msg_id = entry.msg_id
        return entry

    def _was_due(self, seq: int) -> bool:
        """Return whether a message was delayed, and its time has come."""
        note = self.state.noted.get(seq)
        return note is not None and note.due > 0

    def _damage_of(self, seq: int, body: bytes, entry: Entry) -> StoreError:
        """Set a damaged entry aside, and drop it; return the error to be raised. Where that is not
        possible now, the entry stays."""
        try:
            return self._reader.drop_damaged(seq, entry)
        except StoreError:
            self.state.give_back(seq, body, entry)
            raise

    # -- in batches -----------------------------------------------------------------------------

    def get_many(self, most: int, *, lease: float | None = None) -> Batch:
        """Take messages, as :meth:`qindex.Queue.get_many`. The batch is empty if none
        is ready."""
        if not isinstance(most, int) or most < 1:
            raise UsageError(f"max_messages must be at least 1, not {most!r}")
        if lease is not None:
            check_lease(lease)
        with self.state.lock, self.state as state:
            ready = self._available()
            # The batch is made after this: a message that is given back meanwhile may be in it.
            batch = Batch(self._settler, state.index.nacks)
            # Once more, where all of them had been delivered too often.
            while ready and not batch:
                self.take_many(batch, most)
                ready = self.mark_out(batch, lease) and not self._letters.is_crowded()
                if batch:
                    self._flusher.tick()
        if state.to_move:
            self._letters.owe()
        return batch

    def take_many(self, batch: Batch, most: int) -> None:
        """Move messages that may be delivered into ``batch``, up to ``most``. An error ends it
        before its message, which raises it at the next call."""
        try:
            while len(batch) < most and self.take_some(batch, most - len(batch)):
                if self._letters.is_crowded():
                    break  # as in _available
        except StoreError as error:
            if not batch:
                raise
            if isinstance(error, DamageError):
                # A segment is read once: the next read would not find the damage again.
                self._owed = error

    def take_some(self, batch: Batch, most: int) -> bool:
        """Move the next messages that may be delivered into ``batch``, up to ``most``, or drop one
        that has expired. False when the batch has to end here."""
        index = self.state.index
        ahead = index.ahead
        if self.state.later is not None:
            self._stage(self.state.later)
        if ahead.returned or ahead.staged is not None:
            seq, body, extra = self._next_returned()
            goes_on = self._take_entry(batch, seq, body, extra)
            # A read ahead would find a message that is ready until its batch is marked as out.
            return goes_on and (not batch or seq < ahead.next_fetch)
        at = ahead.at
        if at == len(ahead.window.bodies):
            if not self._fill(min(max(most, READ_AHEAD), _MAX_READ_AHEAD)):
                return False
            if ahead.staged is not None:
                return True  # a delayed message comes next
            at = ahead.at
        window = ahead.window
        count = window.as_they_are(at, most)
        if count:
            part = slice(at, at + count)
            ahead.at = at + count
            batch._extend(
                window.seqs[part], window.bodies[part], window.states[part], window.extras[part]
            )
            return True
        if self._take_stored(batch, window, at, min(most, _READ_TOGETHER)):
            return True
        ahead.at = at + 1
        return self._take_entry(batch, window.seqs[at], window.bodies[at], window.extras[at])

    def _take_stored(self, batch: Batch, window: Window, at: int, most: int) -> bool:
        """Move messages into ``batch`` that are in the message store, sound, and need nothing else:
        up to ``most``; false when there are none, or not two."""
        state = self.state
        waiting: list[Entry] = []
        for extra in window.extras[at : at + most]:
            if not isinstance(extra, Entry) or not is_only_stored(extra):
                break
            waiting.append(extra)
        if state.messages is None or len(waiting) < 2:
            return False
        messages = state.messages.read_many([entry.msg_id for entry in waiting])
        taken = [
            make_entry(entry.msg_id, 0, entry.size, message, stored=True)
            for entry, message in zip(waiting, messages, strict=False)
        ]
        part = slice(at, at + len(taken))
        seqs = window.seqs[part]
        for seq, entry in zip(seqs, taken, strict=True):
            state.note(seq).msg_id = entry.msg_id
        state.index.ahead.at = part.stop
        bodies = [message.body for message in messages]
        batch._extend(seqs, bodies, window.states[part], taken)
        return bool(taken)

    def _take_entry(self, batch: Batch, seq: int, body: bytes, extra: int | Entry) -> bool:
        """Move one message into ``batch``, or drop it (expired); false when it is damaged and
        the batch has to end before it."""
        index = self.state.index
        if not isinstance(extra, int):
            try:
                admitted = self._admit(seq, extra)
            except StoreError:
                self.state.give_back(seq, body, extra)
                raise
            if admitted is None:
                return True
            if admitted.message is None:
                if batch:
                    # Its error is for the next call, and belongs to no message of this batch.
                    self.state.give_back(seq, body, admitted)
                    return False
                raise self._damage_of(seq, body, admitted)
            extra, body = admitted, admitted.message.body
        batch._extend(array("q", (seq,)), [body], bytes((index.state_of(seq),)), [extra])
        return True

    def mark_out(self, batch: Batch, lease: float | None) -> bool:
        """Mark the messages of a batch as out. Messages that were delivered too often are taken out
        of it, and it tells whether there were any. Lock held."""
        if not batch:
            return False
        state = self.state
        index = state.index
        try:
            fresh = index.deliver_many(seqs_of(batch))
        except StoreError:
            for seq, body, extra in zip(batch._seqs, batch.bodies, batch._extras, strict=True):
                state.give_back(seq, body, extra)
            raise
        state.tally.again += len(batch) - fresh
        if state.limits is not None:
            state.went_out(len(batch), sum(map(len, batch.bodies)))
        withheld = False
        if state.watched or state.noted or lease is not None:
            withheld = self._hand_out_all(batch, lease)
        index.handed_out()
        return withheld

    def _hand_out_all(self, batch: Batch, lease: float | None) -> bool:
        """Count the deliveries of a batch, and begin their leases; tells whether some messages were
        delivered too often, and were taken out of it. Lock held."""
        state = self.state
        again: dict[int, int] = {}
        counted = DELIVERED in batch._states or not state.noted.keys().isdisjoint(batch._seqs)
        for at, seq in enumerate(batch._seqs if counted else ()):
            note = state.noted.get(seq)
            before = -1 if note is None else note.deliveries
            if before < 0:
                if batch._states[at] != DELIVERED:
                    continue
                before = 1
            if state.delivery_limit and before >= state.delivery_limit:
                self._letters.withhold(seq, batch[at].message)
                again[seq] = 0
                continue
            again[seq] = before + 1
            if state.counts is not None:
                state.counts.note(seq, before + 1)
        batch._set_counts(again)
        if lease is not None:
            for delivery in batch:
                self._settler.lend(delivery, delivery.delivery_count, lease, None)
        return 0 in again.values()

    def expire_head(self) -> int:
        """Drop the messages at the head whose time is up, or let them go to the dead-letter queue.
        Return when the next one expires, in microseconds since 1970: 0 if it does not, or if there
        is none. That may be in the past: some are left for the next call. Lock held."""
        ahead = self.state.index.ahead
        while not ahead.is_empty() or self._fill(READ_AHEAD):
            seq, extra = ahead.first()
            expiry = 0 if isinstance(extra, int) else extra.expiry
            if not 0 < expiry <= now_us() or self._letters.is_crowded():
                return expiry
            if ahead.staged is not None:
                self.state.index.release(seq)
            admitted = self._admit(seq, extra)
            if admitted is not None:
                # The expiry came of a flipped bit, which is reported.
                ahead.replace_first(admitted)
                return admitted.expiry
            ahead.pass_first()
        return 0

    # -- looking, and the end ---------------------------------------------------------------------

    def wake_consumers(self) -> None:
        """Wake all waiters for a message or an ack, to check whether they were stopped."""
        state = self.state
        try:
            if state.lock.is_mine():
                refuse_twice()
            with state.lock.anyway:
                state.arrived.notify_all()
                state.settled.notify_all()
        except UsageError:
            # A handler, in the middle of a call that may be about to wait, or that holds what must
            # not be held while its thread waits for the queue.
            Background(self.wake_consumers, "qindex-stop").start()

    def drain(self) -> None:
        """Hand out no more messages."""
        self.state.draining = True
        self.wake_consumers()

    def is_drained(self) -> bool:
        """Return whether the queue hands out no more messages because its engine is closing."""
        return self.state.draining

    def peek(self, most: int) -> list[Delivery]:
        if not isinstance(most, int) or most < 0:
            raise UsageError(f"max_messages must be at least 0, not {most!r}")
        with self.state.lock, self.state:
            seen: list[Delivery] = []
            if not most:
                return seen
            # Messages that have expired after others are shown: they count as ready.
            for seq, body, again, extra in self._in_order(most):
                if not isinstance(extra, int):
                    extra = self._reader.with_message(extra)
                    if extra.message is None:
                        continue
                    body = extra.message.body
                shown = make_delivery(LOOKED_AT, seq, body, again, extra)
                shown._count = next_count(self.state.noted.get(seq))
                seen.append(shown)
                if len(seen) == most:
                    break
            return seen

    def _ahead(self, most: int) -> Iterator[tuple[int, bytes, bool, int | Entry]]:
        """Go through the ready messages, in order; none is taken. Lock held."""
        index = self.state.index
        ahead = index.ahead
        for seq in sorted(ahead.returned):
            body, extra = ahead.returned_by_seq[seq]
            yield seq, body, True, extra
        read = [(ahead.window, ahead.at)]
        if ahead.rest is not None:
            read.append((ahead.rest, ahead.rest_at))
        start = ahead.next_fetch
        while read:
            window, first = read.pop(0)
            for at in range(first, len(window)):
                again = window.states[at] == DELIVERED
                yield window.seqs[at], window.bodies[at], again, window.extras[at]
            if not read:
                following, start = index.fetch(start, min(max(most, 1), READ_AHEAD))
                if following is not None:
                    read.append((following, 0))

    def _in_order(self, most: int) -> Iterator[tuple[int, bytes, bool, int | Entry]]:
        """Go through the messages that are ready, with those that are due in their places. Lock
        held."""
        state = self.state
        due: list[int] = []
        if state.later is not None:
            state.later.take_back()
            state.later.bring()
            due = state.later.all_due()
        for one in self._ahead(most):
            while due and due[0] < make_key(self._time_of(one[3]), one[0]):
                yield self._held(due.pop(0) & SEQ)
            yield one
        for key in due:
            yield self._held(key & SEQ)

    def _held(self, seq: int) -> tuple[int, bytes, bool, int | Entry]:
        index = self.state.index
        body, extra = index.read_held(seq)
        return seq, body, index.state_of(seq) == HELD_AGAIN, extra

    # -- from the back ----------------------------------------------------------------------------

    def take_last(self) -> Delivery | None:
        with self.state.lock, self.state as state:
            state.refuse_delivery()
            index = state.index
            given: Delivery | None = None
            while index.live > index.out and (seq := index.last_ready()) is not None:
                given = self._take_one(seq)
                if given is not None:
                    break
        self._letters.owe()
        return given

    def take_at(self, seq: int, *, lease: float | None = None) -> Delivery | None:
        """See :meth:`qindex.Queue.get`, of the message with a seq_id."""
        if not isinstance(seq, int) or isinstance(seq, bool):
            raise UsageError(f"a seq_id is an int, not {seq!r}")
        if lease is not None:
            check_lease(lease)
        with self.state.lock, self.state as state:
            state.refuse_delivery()
            index = state.index
            given = None
            if 0 <= seq < index.next_seq and seq // index.entry_count in index.segments:
                if state.later is not None and index.is_held(seq):
                    state.later.take(seq)
                if index.state_of(seq) in (PUBLISHED, DELIVERED):
                    given = self._take_one(seq, lease)
        self._letters.owe()
        return given

    def _take_one(self, seq: int, lease: float | None = None) -> Delivery | None:
        """Deliver an entry that is ready, wherever it is; ``None`` as for :meth:`_deliver`."""
        index = self.state.index
        index.ahead.unread(seq)
        body, extra = index.read_one(seq)
        given = self._deliver(seq, body, extra, lease)
        self._flusher.tick()
        return given

    def peek_last(self) -> bytes | None:
        with self.state.lock, self.state as state:
            index = state.index
            below = index.next_seq
            now = now_us()
            while (seq := index.last_ready(below)) is not None:
                below = seq
                body, extra = index.read_one(seq)
                if isinstance(extra, int):
                    return body
                entry = self._reader.with_message(extra)
                if entry.message is not None and not 0 < entry.expiry <= now:
                    return entry.message.body
            return None
