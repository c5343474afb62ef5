"""Message ids and body sizes of many records at once, where they have the very form that a node
writes for an ordinary message: one routing key, a body in one fragment.

A form is constant stretches, each followed by the length and the bytes of a binary. All records
are walked together, a stretch at a time, so that a record costs about half a microsecond; a record
of another form is left to :func:`qindex.format.rabbitmq.bridge.read_rabbitmq`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from journal.memory.arrays import I64, U8, Bools
from qindex.format.message_record import column, gather_bytes
from qindex.format.rabbitmq.record import MSG_ID_BYTES


class Usual(NamedTuple):
    """``found``: which records have a usual form; ``ids`` (shape ``(n, 16)``) and ``bodies``
    (sizes) are theirs. ``whole``: the form covers the record to its end."""

    found: Bools
    whole: Bools
    ids: U8
    bodies: I64


class _Form(NamedTuple):
    """``stretches``: each ends before the length of a binary; the body is that of number ``body``,
    the message id follows ``before_id``. ``ends``: the bytes that may follow it up to the end;
    none: any."""

    stretches: tuple[bytes, ...]
    body: int
    before_id: bytes
    ends: tuple[bytes, ...]


def _forms(wide: bool) -> list[_Form]:
    def atom(name: str) -> bytes:
        raw = name.encode()
        return b"d" + len(raw).to_bytes(2, "big") + raw if wide else b"w%c%b" % (len(raw), raw)

    content = b"h\x06" + atom("content") + b"a<" + atom("none") + b"m"
    body = atom("rabbit_framing_amqp_0_9_1") + b"l\0\0\0\1m"
    msg_id = b"m\0\0\0\x10"
    basic = (
        b"\x83h\x06" + atom("basic_message") + b"h\x04" + atom("resource") + b"m",
        atom("exchange") + b"m",
        b"l\0\0\0\1m",
        b"j" + content,
        body,
    )
    container = (b"\x83h\x04" + atom("mc") + atom("mc_amqpl") + content, body)
    id_first = [b"jt\0\0\0" + bytes((count,)) + atom("id") + msg_id for count in range(3, 9)]
    return [
        _Form(basic, 4, b"j" + msg_id, (atom("true"), atom("false"))),
        *(_Form(container, 1, before, ()) for before in id_first),
    ]


_FORMS: Final = [form for wide in (False, True) for form in _forms(wide)]


def read_usual(data: bytes | memoryview, starts: I64, lengths: I64) -> Usual:
    """Read the records at ``starts`` with ``lengths`` bytes, which lie within ``data``. O(records).

    A record that has a usual form may still be damaged after what the form covers.
    """
    count = len(starts)
    usual = Usual(
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
        np.zeros((count, MSG_ID_BYTES), np.uint8),
        np.full(count, -1, np.int64),
    )
    left = np.arange(count)
    for form in _FORMS:
        if not len(left):
            break
        rows = _walk(form, data, starts, starts + lengths, left, usual)
        left = np.setdiff1d(left, rows, assume_unique=True)
    return usual


def _walk(
    form: _Form, data: bytes | memoryview, starts: I64, ends: I64, rows: I64, usual: Usual
) -> I64:
    """Walk the form through the records ``rows``. Return the ones that have it."""
    at = starts[rows]
    bodies = np.zeros(len(rows), np.int64)
    for number, stretch in enumerate(form.stretches):
        keep = _stands(stretch, data, at, ends[rows], 4)
        rows, at, bodies = rows[keep], at[keep] + len(stretch), bodies[keep]
        sizes = column(gather_bytes(data, at, 4), 0, ">u4").astype(np.int64)
        if number == form.body:
            bodies = sizes
        at = at + 4 + sizes
    keep = _stands(form.before_id, data, at, ends[rows], MSG_ID_BYTES)
    rows, at, bodies = rows[keep], at[keep] + len(form.before_id), bodies[keep]
    ids = gather_bytes(data, at, MSG_ID_BYTES)
    at = at + MSG_ID_BYTES
    if form.ends:
        found = np.zeros(len(rows), np.bool_)
        for end in form.ends:
            found |= _stands(end, data, at, ends[rows], 0) & (at + len(end) == ends[rows])
        rows, ids, bodies = rows[found], ids[found], bodies[found]
        usual.whole[rows] = True
    usual.found[rows] = True
    usual.ids[rows] = ids
    usual.bodies[rows] = bodies
    return rows


def _stands(stretch: bytes, data: bytes | memoryview, at: I64, ends: I64, behind: int) -> Bools:
    """Return where ``stretch`` is, with ``behind`` bytes after it before the end."""
    found = at + len(stretch) + behind <= ends
    rows = np.flatnonzero(found)
    if len(rows):
        wanted = np.frombuffer(stretch, np.uint8)
        found[rows] = (gather_bytes(data, at[rows], len(stretch)) == wanted).all(axis=1)
    return found
