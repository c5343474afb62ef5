"""Publishing a single message whose record goes to the message store.

Of the usual kind: persistent, in our own format, to a queue without limits. The steps are those of
:meth:`qindex.queue.producing.Publisher._publish_all`, and of the index entry those of a plain
message's publish, written out in one function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from journal.errors import StoreError
from journal.format import ACTION_WORD, DELIVER_BITS, pack_publish
from qindex.format.entries import make_entry
from qindex.format.message import make_message
from qindex.format.message_record import NOTHING, join_front
from qindex.index.segment import PUBLISHED, Segment
from qindex.queue.cut_short import set_right

if TYPE_CHECKING:
    from qindex.queue.producing import Publisher

__all__ = ["append_stored", "publish_stored"]

_pack_word = ACTION_WORD.pack

_MOST_KEPT = 512 << 10
"""Bytes of messages that are kept for a consumer that keeps up."""


def publish_stored(
    queue: Publisher, body: bytes, stamp: int, middle: bytes, expiry: int, confirm: bool
) -> int:
    """Publish; gives the seq_id. ``stamp``: the time (nanoseconds), ``middle``: key, headers and
    properties, as the record has them, ``expiry``: microseconds since 1970, 0 for none. Raises as
    :meth:`Publisher.publish`."""
    assert queue._messages is not None
    queue._check_open()
    front = join_front(stamp, middle, len(body))
    try:
        msg_id = queue._messages.put(front, body)
        try:
            stamp = 0 if expiry or middle is not NOTHING else stamp
            seq = append_stored(queue, msg_id, body, expiry, stamp)
        except StoreError:
            queue._release([msg_id])
            raise
    except StoreError:
        raise
    except BaseException as error:
        # What was stored may have its entry or not.
        queue._cut_short(error)
        raise
    if confirm or queue._sync_each:
        queue._sync_each_all()
    return seq


def append_stored(queue: Publisher, msg_id: bytes, body: bytes, expiry: int, stamp: int) -> int:
    """Append the index entry of a message that is in the message store, to a queue without limits;
    gives its seq_id. ``stamp``: when the message was published (nanoseconds), or 0 where there is
    more to it than its body. Raises :class:`StorageError`; nothing has changed then."""
    with queue._lock:
        index = queue._index
        seq = index.next_seq
        tail = index.tail if seq < index.tail_end else index.roll()
        end = index.journal.tell()
        try:
            record = pack_publish(seq, True, msg_id, expiry, len(body), b"")
            index.positions.append(index.journal.append(record))
            tail.states[seq - tail.base] = PUBLISHED
            index.next_seq = seq + 1
            if stamp and seq == queue._next_fetch:
                _keep(queue, tail, seq, msg_id, body, stamp)
            if queue._waiting:
                queue._arrived.notify()
            if not seq & queue._check_mask:
                queue._tick()
        except BaseException:
            set_right(queue, seq, end)
            raise
        return seq


def _keep(
    queue: Publisher, tail: Segment, seq: int, msg_id: bytes, body: bytes, stamp: int
) -> None:
    """Let a consumer that keeps up have the message at once, and not from the message store."""
    window = queue._window
    kept = len(window.seqs)
    if kept >= window.most or window.segment is not tail or (kept + 1) * len(body) > _MOST_KEPT:
        return
    message = make_message(body, None, {}, {}, stamp)
    window.plain = False
    window.seqs.append(seq)
    window.bodies.append(body)
    window.extras.append(make_entry(msg_id, 0, len(body), message, stored=True))
    window.states.append(PUBLISHED)
    window.delivers.append(_pack_word(DELIVER_BITS | seq))
    queue._next_fetch = seq + 1
