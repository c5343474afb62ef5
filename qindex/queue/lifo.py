"""Taking messages from the back: what a stack needs (:mod:`qindex.compat.queuelib`).

The engine is made for reading forward; here one entry at a time is read, the newest one that is
ready. A queue should be used from one end at a time: a message that is given back after this has
passed it comes before those read from the front.
"""

from __future__ import annotations

import heapq
from time import time_ns

import numpy as np

from journal.format import DELIVER
from qindex.format.entries import Entry
from qindex.index.queue_index import QueueIndex
from qindex.index.read_ahead import NOTHING_FETCHED
from qindex.index.segment import DELIVERED, OUT, PUBLISHED
from qindex.queue.delivering import Consumer
from qindex.queue.delivery import Delivery, make_delivery

__all__ = ["peek_last", "take_last"]


def take_last(queue: Consumer) -> Delivery | None:
    """Take the newest message that is ready, or give ``None``; it is settled as any other.

    Raises as :meth:`qindex.queue.delivering.Consumer.get`. O(1): about 50 us.
    """
    with queue._lock:
        index = queue._index
        while (seq := _last_ready(index)) is not None:
            _unread(queue, seq)
            body, extra = _read(index, seq)
            if isinstance(extra, Entry):
                admitted = queue._admit(seq, body, extra)
                if admitted is None:
                    continue
                extra, body = admitted, queue._body(seq, admitted)
            segment = index.segment_of(seq)
            fresh = segment.states[seq - segment.base] == PUBLISHED
            if fresh:
                index.append_actions(DELIVER, np.array([seq]))
            segment.states[seq - segment.base] = OUT
            index.taken += 1
            queue._tick()
            given = make_delivery(queue, seq, body, not fresh, extra)
            if queue._hand_out(given, None):
                return given
        queue._move_unlocked()
        return None


def peek_last(queue: Consumer) -> bytes | None:
    """Give the body of the newest message that is ready, or ``None``; nothing is changed.

    One that is damaged or expired is passed over.
    """
    with queue._lock:
        index = queue._index
        below = index.next_seq
        now = time_ns() // 1000
        while (seq := _last_ready(index, below)) is not None:
            below = seq
            body, extra = _read(index, seq)
            if isinstance(extra, int):
                return body
            entry = queue._with_message(extra)
            if entry.message is not None and not 0 < entry.expiry <= now:
                return entry.message.body
        return None


def _last_ready(index: QueueIndex, below: int | None = None) -> int | None:
    """Give the highest seq_id (under ``below``) of an entry that is ready."""
    if index.live == index.out:
        return None
    for number in reversed(index.segments):
        segment = index.segments[number]
        if below is not None and segment.base >= below:
            continue
        if not segment.loaded:
            if not segment.stored_unacked:
                continue
            index.load(segment)
        end = len(segment.states) if below is None else below - segment.base
        rel = max(segment.states.rfind(PUBLISHED, 0, end), segment.states.rfind(DELIVERED, 0, end))
        if rel >= 0:
            seq: int = segment.base + rel
            return seq
    return None


def _read(index: QueueIndex, seq: int) -> tuple[bytes, int | Entry]:
    fetched, _ = index.fetch(seq, 1)
    assert fetched is not None
    assert fetched.seqs[0] == seq
    return fetched.bodies[0], fetched.extras[0]


def _unread(queue: Consumer, seq: int) -> None:
    """See that nobody who reads forward comes by this entry in what was read ahead."""
    if queue._returned_by_seq.pop(seq, None) is not None:
        queue._returned.remove(seq)
        heapq.heapify(queue._returned)
    if seq < queue._next_fetch:
        window, at = queue._window, queue._at
        if at < len(window.seqs):
            queue._next_fetch = window.seqs[at]
        queue._window = NOTHING_FETCHED
        queue._at = 0
