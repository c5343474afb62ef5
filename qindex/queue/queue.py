"""A queue: what a user touches. Publishing is in :mod:`qindex.queue.producing`, delivering and
settling in :mod:`qindex.queue.delivering`."""

from __future__ import annotations

from collections.abc import Iterator
from time import time_ns

from journal.errors import UsageError
from qindex.format.entries import Entry
from qindex.index.read_ahead import NOTHING_FETCHED, Fetched
from qindex.index.segment import DELIVERED
from qindex.queue.delivering import READ_AHEAD, Consumer
from qindex.queue.delivery import Delivery, make_delivery
from qindex.queue.producing import Publisher
from qindex.queue.stats import QueueStats
from qindex.queue.tally import by_reason

__all__ = ["Queue"]


class Queue(Publisher, Consumer):
    """One durable queue, first in, first out. Made by :meth:`qindex.engine.engine.Engine.queue`.

    Thread-safe. What is durable when a call returns, the engine's ``durability`` says; with
    ``confirm=True`` a publish is on disk when it returns, in any mode. All methods raise
    :class:`~journal.errors.ClosedError` after close, :class:`~journal.errors.ForkedError` in a
    forked child, and writing ones :class:`~journal.errors.StorageError` when the system refuses
    (full disk) and :class:`~journal.errors.WritesRefusedError` after a write or sync has failed.
    """

    def peek(self, most: int = 1) -> list[Delivery]:
        """Look at the next messages without taking them. O(most)."""
        if not isinstance(most, int) or most < 0:
            raise UsageError(f"the number of messages must be at least 0, not {most!r}")
        with self._lock:
            now = time_ns() // 1000
            seen: list[Delivery] = []
            if not most:
                return seen
            for seq, body, again, extra in self._ahead(most):
                if isinstance(extra, int):
                    seen.append(make_delivery(None, seq, body, again, extra))
                elif not 0 < extra.expiry <= now:
                    entry = self._with_message(extra)
                    if entry.message is not None:
                        seen.append(make_delivery(None, seq, entry.message.body, again, entry))
                if len(seen) == most:
                    break
            return seen

    def _ahead(self, most: int) -> Iterator[tuple[int, bytes, bool, int | Entry]]:
        """Go through what is ready, in order; nothing is taken. Lock held."""
        for seq in sorted(self._returned):
            body, extra = self._returned_by_seq[seq]
            yield seq, body, True, extra
        window: Fetched | None = self._window
        first, start = self._at, self._next_fetch
        while window is not None:
            for at in range(first, len(window)):
                again = window.states[at] == DELIVERED
                yield window.seqs[at], window.bodies[at], again, window.extras[at]
            first = 0
            window, start = self._index.fetch(start, min(max(most, 1), READ_AHEAD))

    def stats(self) -> QueueStats:
        """Give the queue's figures at this moment."""
        with self._lock:
            index, tally = self._index, self._tally
            sizes = [segment.file_size for segment in index.segments.values()]
            return QueueStats(
                name=self.name,
                ready=len(self),
                unacked=index.out,
                segments=len(sizes),
                segment_bytes=sum(sizes),
                journal_bytes=index.journal.tell(),
                journal_entries=index.dirty,
                next_seq_id=index.next_seq,
                published=index.next_seq - self._first_seq,
                acked=index.acks + index.dropped,
                flushes=index.flushes,
                flushed_bytes=index.flushed_bytes,
                journal_syncs=index.syncs,
                dead_lettered=tally.moved.total(),
                delivered=index.taken - tally.withheld,
                requeued=index.nacks,
                dropped=index.dropped,
                flush_durations=self._flush_times.durations(),
                sync_durations=index.sync_durations,
                redelivered=tally.again,
                refused=tally.refused,
                given_up=by_reason(tally.given_up),
                dead_letters=by_reason(tally.moved),
                settings=self.settings,
            )

    def purge(self) -> int:
        """Drop all ready messages; gives their number. Those with consumers stay theirs."""
        with self._lock:
            self._await_flush()
            # First, so that a purge that fails half-way leaves nothing here that is gone there.
            self._window = NOTHING_FETCHED
            self._at = 0
            returned, self._returned = self._returned, []
            self._returned_by_seq = {}
            self._next_fetch = 0
            for seq in returned:
                self._stored_out.pop(seq, None)
            in_use = self._messages is not None and self._messages.in_use
            stored: list[bytes] | None = [] if in_use else None
            with self._in_one_piece():
                try:
                    dropped = self._index.purge(stored)
                finally:
                    if stored:
                        self._release(stored)
                    self._recount()
                self._forget(returned)
                self._next_fetch = self._index.next_seq
        if self._sync_each:
            self._index.journal.sync()
        return dropped

    def _recount(self) -> None:
        """Count anew what is ready, after a purge or a part of one. Lock held."""
        limits = self._limits
        if limits is not None:
            limits.bytes = 0 if limits.max_bytes is None else self._index.ready_bytes()
            self._room.notify_all()
