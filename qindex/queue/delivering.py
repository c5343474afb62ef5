"""Delivering: the half of a queue that consumers use; settling is in :mod:`qindex.queue.settling`.

Messages are read ahead, a window at a time; the path of a single delivery is written out in one
function.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time_ns

import numpy as np

from journal.call_lock import refuse_twice
from journal.errors import DamageError, UsageError
from journal.findings import Cause, Finding, Kind
from journal.format import DELIVER
from msgstore.errors import MissingMessageError
from qindex.format.entries import Entry, is_only_stored, is_special, make_entry
from qindex.index.quarantine import quarantine
from qindex.index.segment import OUT, PUBLISHED
from qindex.queue.acknowledging import ascending
from qindex.queue.cut_short import put_back
from qindex.queue.delivery import Batch, Delivery, make_delivery
from qindex.queue.leases import check_lease
from qindex.queue.postponed import MOST_WAITING
from qindex.queue.settling import Settler
from qindex.queue.wake_ups import time_left

__all__ = ["READ_AHEAD", "Consumer"]

_log = logging.getLogger("qindex.queue")

_LONG_AGO = 1 << 50
"""Microseconds since 1970, in September 2005: no message expired then."""
READ_AHEAD = 2048
_MOST_READ_AHEAD = 8192
_READ_TOGETHER = 64
"""Messages that are read from the message store in one go."""
_READ_AHEAD_SHARED = 480
"""The same while several threads use the queue: of 500 items and more numpy lets other threads run,
and each step of reading ahead would wait for the interpreter, with the queue's lock held."""


class Consumer(Settler):
    """What hands messages out."""

    def get(self, timeout: float | None = None, *, lease: float | None = None) -> Delivery | None:
        """Take the next message; waits for one up to ``timeout`` seconds (``None``: for ever).

        Gives ``None`` when there was none in time. The message stays in the queue until it is
        acknowledged; after a crash it is delivered again, with ``redelivered`` true. ``lease``:
        seconds in which it is to be settled; then it returns to its place in the queue by itself.
        Raises :class:`DamageError` when the next message is damaged: it names file and offset,
        the bytes are set aside in a quarantine file, and the next call goes on behind it.
        O(1), whatever the backlog.
        """
        if lease is not None:
            check_lease(lease)
        lock = self._lock
        given: Delivery | None
        if lock.is_mine():
            refuse_twice()
        try:
            take = lock.take
            if not take():
                lock.stand_in_line()
            while True:
                window = self._window
                at = self._at
                if self._returned or at == len(window.seqs):
                    given = None
                    if (self._returned or not self._fill_few()) and not self._available(timeout):
                        break
                    if self._returned:
                        given = self._take_returned(lease)
                        if given is None:
                            continue
                        break
                    window = self._window
                    at = self._at
                seq = window.seqs[at]
                extra = window.extras[at]
                if extra.__class__ is not int and is_special(extra):
                    self._at = at + 1
                    admitted = self._admit(seq, window.bodies[at], extra)
                    if admitted is None:
                        continue
                    extra, body = admitted, self._body(seq, admitted)
                    self._at = at
                else:
                    body = window.bodies[at]
                index = self._index
                states = window.segment.states
                rel = seq - window.base
                fresh = states[rel] == PUBLISHED
                # Before the write: behind a call a signal's handler may raise, and what has been
                # taken by then can be told, and put back.
                states[rel] = OUT
                self._at = at + 1
                index.taken += 1
                try:
                    if fresh:
                        try:
                            index.journal.write(window.delivers[at])
                        except ValueError:
                            index.journal.append(window.delivers[at], reserve=True)
                    given = Delivery()
                except BaseException:
                    put_back(self, window, at, fresh)
                    raise
                given._queue = self
                given.seq_id = seq
                given.body = body
                given.redelivered = not fresh
                given._extra = extra
                if not fresh:
                    self._tally.again += 1
                if (self._watched or lease is not None) and not self._hand_out(given, lease):
                    continue
                break
            lock.release()
        except BaseException:
            lock.let_go()
            raise
        return given

    def _available(self, timeout: float | None) -> bool:
        """Wait until something is given back or in the window; false when the time is up."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._returned and self._at == len(self._window.seqs):
            if self._index.dirty > self._max_dirty:
                # Deliveries count too; a flush may let others in, who fill the window.
                self._flush_due()
                if self._returned or self._at < len(self._window.seqs):
                    break
            if len(self._to_move) >= MOST_WAITING and self._move_unlocked():
                continue
            if self._fill(_READ_AHEAD_SHARED if self._real_lock.is_shared() else READ_AHEAD):
                break
            if self._to_move and self._move_unlocked():
                continue
            left = time_left(deadline)
            if left is not None and left <= 0:
                return False
            self._waiting += 1
            try:
                self._arrived.wait(left)
            finally:
                self._waiting -= 1
            self._check_open()
        return True

    def _fill(self, most: int) -> bool:
        """Read ahead into an empty window; false when nothing is ready."""
        fetched, self._next_fetch = self._index.fetch(self._next_fetch, most)
        if fetched is None:
            return False
        self._window = fetched
        self._at = 0
        return True

    def _fill_few(self) -> bool:
        """Read ahead what a consumer has left who keeps up; false where there is nothing, or more
        to be seen to."""
        few = self._index.fetch_few(self._next_fetch)
        if few is None:
            return False
        self._next_fetch += len(few.seqs)
        self._window = few
        self._at = 0
        return True

    def _take_returned(self, lease: float | None) -> Delivery | None:
        """Deliver the first of what was given back; ``None`` when it may not be delivered."""
        seq = self._returned[0]
        index = self._index
        try:
            heapq.heappop(self._returned)
            body, extra = self._returned_by_seq[seq]
            if not isinstance(extra, int):
                admitted = self._admit(seq, body, extra)
                del self._returned_by_seq[seq]
                if admitted is None:
                    return None
                body = self._body(seq, admitted)
                self._returned_by_seq[seq] = body, admitted
                extra = admitted
            segment = index.segment_of(seq)
            # If so, it is here because it could not be marked as delivered before.
            fresh = segment.states[seq - segment.base] == PUBLISHED
            given = make_delivery(self, seq, body, not fresh, extra)
            if fresh:
                index.append_actions(DELIVER, np.array([seq]))
        except BaseException:
            if seq in self._returned_by_seq and seq not in self._returned:
                heapq.heappush(self._returned, seq)
            raise
        del self._returned_by_seq[seq]
        self._tally.again += not fresh
        segment.states[seq - segment.base] = OUT
        index.taken += 1
        return given if self._hand_out(given, lease) else None

    def _admit(self, seq: int, body: bytes, extra: int | Entry) -> Entry | None:
        """See to an entry that is not plain: ``None`` when it had expired and was dropped, else
        the entry, with its message where that is in the message store. A damaged one is given
        with ``message`` ``None``.
        """
        assert isinstance(extra, Entry)
        index = self._index
        try:
            if extra.corrected:
                path, offset = index.where(seq)
                what, consequence = "one flipped bit", "corrected from the checksum: none lost"
                kind = Kind.CORRECTED
                index.report([Finding(path, offset, 1, Cause.DAMAGE, what, consequence, kind)])
                extra = replace(extra, corrected=False)
            if 0 < extra.expiry <= _LONG_AGO and extra.stored:
                # The one field of such an entry that nothing vouches for, and a flipped bit in
                # "never" is a time long ago, or ahead.
                path, offset = index.where(seq)
                what, consequence = "an expiry before 2006", "taken as none: the message stays"
                index.report([Finding(path, offset, 8, Cause.DAMAGE, what, consequence)])
                extra = replace(extra, expiry=0)
            if extra.expiry and extra.expiry <= time_ns() // 1000:
                self._expire(seq, extra)
                return None
            extra = self._with_message(extra)
            if extra.stored and extra.message is not None:
                self._stored_out[seq] = extra.msg_id
            return extra
        except BaseException:
            self._give_back(seq, body, extra)
            raise

    def _with_message(self, entry: Entry) -> Entry:
        """Read the message of an entry from the message store, if it is there; where it can't be
        had, ``damage`` tells why."""
        if not entry.stored or entry.message is not None or entry.damage:
            return entry
        if self._messages is None:
            what, kind = "it is in a message store, and there is none", Kind.ENTRY_WITHOUT_MESSAGE
            return replace(entry, damage=what, kind=kind)
        msg_id = entry.msg_id
        try:
            message = self._messages.read(msg_id)
        except MissingMessageError as error:
            return replace(entry, damage=str(error), kind=Kind.ENTRY_WITHOUT_MESSAGE)
        except DamageError as error:
            return replace(entry, damage=str(error), kind=Kind.CHECKSUM)
        return make_entry(msg_id, entry.expiry, entry.size, message, stored=True)

    def _expire(self, seq: int, entry: Entry) -> None:
        """Drop an entry whose time is up, or let it go to the dead-letter queue."""
        if self.settings.dead_letter is None:
            self._drop_one(seq, entry)
            self._tally.given_up["expired"] += 1
            return
        entry = self._with_message(entry)
        if entry.message is None:
            path, offset = self._set_aside(seq, entry)
            _log.error("%s: at offset %d: expired, and damaged: %s", path, offset, entry.damage)
            self._drop_one(seq, entry)
            return
        index = self._index
        segment = index.segment_of(seq)
        if segment.states[seq - segment.base] == PUBLISHED:
            index.append_actions(DELIVER, np.array([seq]))
        index.taken += 1
        self._tally.withheld += 1
        self._tally.given_up["expired"] += 1
        self._went_out(1, entry.size)
        if entry.stored:
            self._stored_out[seq] = entry.msg_id
        self._set_moving(seq, entry.message, "expired")

    def _drop_one(self, seq: int, entry: Entry) -> None:
        self._index.drop(np.array([seq]))
        self._went_out(1, entry.size)
        if entry.stored:
            self._stored_out.pop(seq, None)
            self._release([entry.msg_id])
        if seq in self._returns:
            self._forget((seq,))

    def _set_aside(self, seq: int, entry: Entry) -> tuple[str, int]:
        """Copy the bytes of a damaged message into a quarantine file; gives its file and offset."""
        index = self._index
        path, offset = index.where(seq)
        data = index.bytes_of(seq)
        if entry.stored and self._messages is not None:
            # A message that is gone leaves its entry alone to be set aside.
            with suppress(MissingMessageError):
                path, offset, data = self._messages.raw(entry.msg_id)
        if data:  # else it was set aside when the file was read
            quarantine(index.fs, path, offset, data)
        return path, offset

    def _body(self, seq: int, entry: Entry) -> bytes:
        """Give the body of an entry that is about to be delivered.

        Raises :class:`DamageError` for a damaged one, after setting its bytes aside.
        """
        if entry.message is not None:
            return entry.message.body
        try:
            path, offset = self._set_aside(seq, entry)
            self._drop_one(seq, entry)
        except BaseException:
            self._give_back(seq, b"", entry)
            raise
        what = f"the message with seq_id {seq} is damaged: {entry.damage}"
        aside = "set aside in quarantine"
        finding = Finding(path, offset, 0, Cause.DAMAGE, what, aside, entry.kind)
        self._index.report([finding])
        error = DamageError(path, offset, what)
        _log.error("%s", error)
        raise error

    def get_many(
        self, most: int, timeout: float | None = 0, *, lease: float | None = None
    ) -> Batch:
        """Take up to ``most`` messages at once, in order.

        Waits up to ``timeout`` seconds for the first one only (default: not at all); gives an
        empty batch when there is none. ``lease`` as in :meth:`get`, of each of them. A damaged
        message ends the batch before it; the next call raises its :class:`DamageError`. One append
        to the journal for the batch.
        """
        if not isinstance(most, int) or most < 1:
            raise UsageError(f"the number of messages must be at least 1, not {most!r}")
        if lease is not None:
            check_lease(lease)
        with self._lock:
            ready = self._available(timeout)
            # Made after the waiting: what was given back meanwhile may be a part of it.
            batch = Batch(self, self._index.nacks)
            # Again, where all of them had been delivered too often.
            while ready and not batch:
                try:
                    while len(batch) < most and self._take_into(batch, most - len(batch)):
                        pass
                finally:
                    self._mark_out(batch)
                    ready = self._is_tracked(lease) and self._hand_out_all(batch, lease)
        if self._to_move:
            self._move_waiting()
        return batch

    def _is_tracked(self, lease: float | None) -> bool:
        """Tell whether deliveries are to be looked at one by one."""
        return self._watched or bool(self._returns) or lease is not None

    def _take_into(self, batch: Batch, most: int) -> bool:
        """Move messages that may be delivered into ``batch``; false when it has to end here."""
        if self._returned:
            seq = heapq.heappop(self._returned)
            body, extra = self._returned_by_seq.pop(seq)
            return self._take_entry(batch, seq, extra, body)
        at = self._at
        if at == len(self._window.seqs):
            if not self._fill(min(max(most, READ_AHEAD), _MOST_READ_AHEAD)):
                return False
            at = 0
        window = self._window
        count = window.as_they_are(at, most)
        if count:
            part = slice(at, at + count)
            self._at = at + count
            batch._extend(
                window.seqs[part], window.bodies[part], window.states[part], window.extras[part]
            )
            return True
        if self._take_stored(batch, at, min(most, _READ_TOGETHER)):
            return True
        self._at = at + 1
        return self._take_entry(batch, window.seqs[at], window.extras[at], window.bodies[at])

    def _take_stored(self, batch: Batch, at: int, most: int) -> bool:
        """Move messages into ``batch`` that are in the message store, sound, and have nothing else
        to be seen to: up to ``most``; false when there are none, or not two."""
        window = self._window
        waiting: list[Entry] = []
        for extra in window.extras[at : at + most]:
            if not isinstance(extra, Entry) or not is_only_stored(extra):
                break
            waiting.append(extra)
        if self._messages is None or len(waiting) < 2:
            return False
        messages = self._messages.read_many([entry.msg_id for entry in waiting])
        taken = [
            make_entry(entry.msg_id, 0, entry.size, message, stored=True)
            for entry, message in zip(waiting, messages, strict=False)
        ]
        part = slice(at, at + len(taken))
        seqs = window.seqs[part]
        self._stored_out.update(zip(seqs, (entry.msg_id for entry in taken), strict=True))
        self._at = part.stop
        bodies = [message.body for message in messages]
        batch._extend(seqs, bodies, window.states[part], taken)
        return bool(taken)

    def _take_entry(self, batch: Batch, seq: int, extra: int | Entry, body: bytes) -> bool:
        """Move one message into ``batch``, or drop it (expired); false when it is damaged and
        the batch has to end before it."""
        if not isinstance(extra, int):
            admitted = self._admit(seq, body, extra)
            if admitted is None:
                return True
            if batch and admitted.message is None:
                # Its error is for the next call, and belongs to no message of this batch.
                self._give_back(seq, body, admitted)
                return False
            extra, body = admitted, self._body(seq, admitted)
        segment = self._index.segment_of(seq)
        batch._extend((seq,), (body,), bytes((segment.states[seq - segment.base],)), (extra,))
        return True

    def _mark_out(self, batch: Batch) -> None:
        if not batch:
            return
        seqs = ascending(batch.seq_ids)
        index = self._index
        try:
            fresh = seqs[index.states_of(seqs) == PUBLISHED]
            index.append_actions(DELIVER, fresh)
        except BaseException:
            for seq, body, extra in zip(batch.seq_ids, batch.bodies, batch._extras, strict=True):
                self._give_back(seq, body, extra)
            raise
        try:
            index.set_states(seqs, OUT)
            index.taken += len(batch)
            self._tally.again += len(seqs) - len(fresh)
            if self._limits is not None:
                self._went_out(len(batch), sum(map(len, batch.bodies)))
        except BaseException as error:
            self._cut_short(error)
            raise
        self._tick()

    def consume(
        self, prefetch: int = 100, timeout: float | None = None, *, lease: float | None = None
    ) -> Iterator[Delivery]:
        """Yield messages as they come; ends when none came for ``timeout`` seconds.

        At most ``prefetch`` of those it gave are unacknowledged at a time: then it waits for an
        ack (by another thread), up to ``timeout`` seconds too, before it gives the next.
        ``lease`` as in :meth:`get`, of each of them.
        """
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch must be at least 1, not {prefetch!r}")
        given: list[Delivery] = []
        while True:
            if len(given) >= prefetch:
                given = self._await_settled(given, timeout)
                if len(given) >= prefetch:
                    return
            delivery = self.get(timeout, lease=lease)
            if delivery is None:
                return
            given.append(delivery)
            yield delivery

    def _await_settled(self, given: list[Delivery], timeout: float | None) -> list[Delivery]:
        """Wait until one of these is settled, or the time is up; gives those that are not."""
        deadline = None if timeout is None else monotonic() + timeout
        with self._lock:
            while True:
                held = [delivery for delivery in given if not delivery.settled]
                left = time_left(deadline)
                if len(held) < len(given) or (left is not None and left <= 0):
                    return held
                self._holding += 1
                try:
                    self._settled.wait(left)
                finally:
                    self._holding -= 1
                self._check_open()
