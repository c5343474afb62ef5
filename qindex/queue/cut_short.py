"""Set right what a call has left that was cut short in the middle.

A signal's handler may raise (Ctrl-C), behind any call that is made and at the start of any
function, and memory may run out. In the paths of single messages, and where a batch is published,
what depends on each other is set without a call in between, and what came before it is taken back
here: either it is done, or it is not. Elsewhere what the call had done is for recovery to judge,
as after a crash at that point, and no more writes are taken
(:meth:`journal.poison.Poison.cut_short`). All is called with the queue's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qindex.index.read_ahead import Fetched
from qindex.index.segment import ABSENT, DELIVERED, PUBLISHED

if TYPE_CHECKING:
    from qindex.queue.queue_core import QueueCore

__all__ = ["count_anew", "put_back", "set_batch_right", "set_right"]


def set_right(queue: QueueCore, seq: int, end: int) -> None:
    """Of a publish of ``seq``; ``end``: where the journal ended before (-1: nothing was
    written)."""
    index, window = queue._index, queue._window
    if index.next_seq == seq:
        if end >= 0:
            index.journal.take_back(end)
        del index.positions[seq - index.positions_base :]
        return
    others = (window.bodies, window.extras, window.states, window.delivers)
    whole = min(len(window.seqs), *(len(column) for column in others))
    del window.seqs[whole:]
    for column in others:
        del column[whole:]
    if whole and window.seqs[-1] == seq:
        queue._next_fetch = seq + 1
    queue._arrived.notify()


def set_batch_right(queue: QueueCore, seq: int, count: int, end: int) -> None:
    """Of a publish of ``count`` messages from ``seq`` on; ``end``: where the journal ended
    before."""
    index = queue._index
    if index.next_seq >= seq + count:
        queue._arrived.notify(count)
        return
    index.journal.take_back(end)
    index.next_seq = seq
    index.tail_end = 0  # the tail may be a later one by now
    del index.positions[seq - index.positions_base :]
    index.transient.difference_update(range(seq, seq + count))
    every = index.entry_count
    for number in range(seq // every, (seq + count - 1) // every + 1):
        segment = index.segments.get(number)
        if segment is not None and segment.loaded:
            first = max(seq - segment.base, 0)
            stop = min(seq + count - segment.base, every)
            segment.states[first:stop] = bytes((ABSENT,)) * (stop - first)


def put_back(queue: QueueCore, window: Fetched, at: int, fresh: bool) -> None:
    """Of a delivery of the message at ``at`` of the window, which stays the next one; ``fresh``: it
    was not delivered before."""
    index = queue._index
    end = index.journal.tell()
    deliver = window.delivers[at]
    again = not fresh or index.journal.map[end - len(deliver) : end] == deliver
    window.states[at] = DELIVERED if again else PUBLISHED
    window.segment.states[window.seqs[at] - window.base] = window.states[at]
    queue._at = at
    index.taken -= 1


def count_anew(queue: QueueCore) -> None:
    """Of an ack: its message may have kept its reference in the message store. The next open counts
    them, as after a crash."""
    if queue._messages is not None:
        queue._messages.miscounted = True
