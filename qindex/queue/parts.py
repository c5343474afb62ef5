"""The parts of one queue, put together."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np

from journal.locks.calls import Calls
from qindex.format.message import Message
from qindex.format.priorities import SHIFT
from qindex.format.settings import QueueSettings
from qindex.index.messages import Messages
from qindex.index.queue_index import QueueIndex
from qindex.options import Options
from qindex.queue.dead_letters import DeadLetters, Mover
from qindex.queue.delivering import Deliverer
from qindex.queue.delivery import Delivery
from qindex.queue.expiry import Expirer
from qindex.queue.finding import Finder
from qindex.queue.flushing import Flusher
from qindex.queue.message_reader import MessageReader
from qindex.queue.outstanding import Outstanding
from qindex.queue.producing import Producer
from qindex.queue.room import Room
from qindex.queue.settling import Settler
from qindex.queue.state import QueueState
from qindex.queue.stats import QueueStats, by_reason
from qindex.queue.timer import Alarm


class QueueParts:
    """The parts of a queue over one state: one each produces, delivers, settles and flushes.

    ``request_flush``: asks the engine's background thread for a flush; ``None``: there is none.
    ``files``: the names in its directory. ``priority``: of the level of a priority queue that these
    are, and ``beside``: the level of priority 0, where these are another one.
    """

    __slots__ = (
        "_finder",
        "deliverer",
        "flusher",
        "letters",
        "producer",
        "room",
        "settler",
        "state",
    )

    def __init__(
        self,
        name: str,
        index: QueueIndex,
        options: Options,
        *,
        settings: QueueSettings,
        mover: Mover,
        alarm: Alarm,
        calls: Calls,
        messages: Messages | None = None,
        request_flush: Callable[[Flusher], bool] | None = None,
        files: Container[str] = (),
        beside: QueueParts | None = None,
        priority: int | None = None,
    ) -> None:
        self.state: QueueState = QueueState(
            name,
            index,
            options,
            settings=settings,
            alarm=alarm,
            calls=calls,
            messages=messages,
            beside=None if beside is None else beside.state,
            priority=priority,
        )
        state = self.state
        self.flusher: Flusher = Flusher(state, mover, request_flush)
        outstanding = Outstanding(state)
        reader = MessageReader(state)
        self.letters: DeadLetters = DeadLetters(state, outstanding, reader, mover)
        self.settler: Settler = Settler(state, self.flusher, outstanding, self.letters)
        self.deliverer: Deliverer = Deliverer(
            state, self.flusher, reader, self.letters, self.settler
        )
        self._finder: Finder | None = None
        self.room: Room = Room(state, self.letters, self.deliverer, self.settler)
        expirer = Expirer(state, self.flusher, self.deliverer, self.letters)
        self.producer: Producer = Producer(state, self.flusher, self.room, expirer)
        state.load_notes(files)

    def change_settings(self, settings: QueueSettings) -> None:
        self.state.change_settings(settings)

    @property
    def levels(self) -> Sequence[QueueParts]:
        """The levels of a priority queue, the highest first; this alone for any other queue."""
        return (self,)

    def level_for(self, message: Message) -> QueueParts:
        """Return the level that a message belongs to. No lock is held."""
        return self

    def place(self, message: Message, priority: int | None) -> tuple[QueueParts, Message]:
        """Return the level that a message belongs to which is published with this priority, if it
        is with any, and the message with it. No lock is held. Raises :class:`UsageError`."""
        if priority is not None:
            raise self.producer.without_priorities(priority)
        return self, message

    def level_at(self, seq_id: int) -> QueueParts | None:
        """Return the level that has given out a seq_id, if there is one."""
        return None if seq_id >> SHIFT else self

    @property
    def finder(self) -> Finder:
        """The index of the queue's keys, made when it is first used."""
        if self._finder is None:
            self._finder = Finder(self.state, self.letters.reader)
        return self._finder

    def find(self, key: str, most: int) -> list[Delivery]:
        with self.state.lock, self.state:
            return self.finder.find(key, most)

    def work_of_find(self, key: str) -> int:
        """Return how many entries :meth:`find` would read, at most."""
        with self.state.lock:
            return self.finder.work(key)

    def ready(self) -> int:
        """Count the messages that are ready. O(1)."""
        return self.state.ready()

    def out(self) -> int:
        """Count the messages that are with consumers. O(1)."""
        return self.state.index.out

    def sync_all(self) -> None:
        """Make messages and journals durable."""
        self.state.sync_all()

    def close(self) -> None:
        self.flusher.close()

    def is_in_call_here(self) -> bool:
        """Return whether the calling thread is in the middle of a call on this queue."""
        return self.state.lock.is_mine() or self.letters.is_moving_here()

    def purge(self) -> int:
        self.state.check_sync()
        with self.state.lock, self.state as state:
            state.await_flush()
            state.resume()
            index = state.index
            # This comes first: a purge that fails half-way must leave nothing here that is gone
            # there.
            returned = index.ahead.returned
            index.ahead.forget(0)
            for seq in returned:
                if seq in state.noted:
                    state.noted[seq].msg_id = None
            in_use = state.messages is not None and state.messages.in_use
            stored: list[bytes] | None = [] if in_use else None
            with index.poison.whole():
                try:
                    dropped = index.purge(stored)
                finally:
                    if stored:
                        state.release(stored)
                    state.count_ready_bytes()
                    state.room.notify_all()
                # Delayed messages that had come back are not among those that were read.
                noted = np.array(list(state.noted), np.int64)
                gone = noted[~index.are_there(noted)].tolist()
                for seq in gone:
                    state.noted[seq].msg_id = None  # its reference was released above
                state.forget(gone)
                if state.later is not None:
                    state.later.clear()
                index.ahead.forget(index.next_seq)
        if state.sync_each:
            state.sync_journal()
        return dropped

    def stats(self) -> QueueStats:
        with self.state.lock, self.state:
            return self.stats_held()

    def stats_held(self) -> QueueStats:
        """Return the figures of this level. Lock held."""
        state = self.state
        index, tally = state.index, state.tally
        sizes = [segment.file_size for segment in index.segments.values()]
        return QueueStats(
            name=state.name,
            ready=state.ready(),
            delayed=state.delayed(),
            pending=index.pending,
            next_due=None if state.later is None else state.later.next_due(),
            unacked=index.out,
            segments=len(sizes),
            segment_bytes=sum(sizes),
            journal_bytes=index.journal.end,
            journal_entries=index.dirty,
            next_seq_id=index.next_seq,
            published=index.next_seq - state.first_seq,
            acked=index.acks + index.dropped - tally.moved.total(),
            flushes=index.flushes,
            flushed_bytes=index.flushed_bytes,
            journal_syncs=index.journal.syncs,
            delivered=index.taken - tally.withheld,
            requeued=index.nacks,
            dropped=index.dropped,
            flush_durations=self.flusher.times.durations(),
            sync_durations=index.journal.sync_durations,
            redelivered=tally.again,
            refused=tally.refused,
            given_up=by_reason(tally.given_up),
            dead_letters=by_reason(tally.moved),
            settings=state.settings,
        )
