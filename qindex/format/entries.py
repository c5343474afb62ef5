"""Turn index entries into messages: read, verify, decode, many at once.

Entries whose records are of one length and plain (neither key, headers nor properties) are handled
as rows of one numpy array; others one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from journal.errors import StoreError
from journal.findings import Kind
from journal.format import PAYLOAD, PAYLOAD_SIZE, PUBLISH_HEAD_SIZE, TYPE_SHIFT
from journal.fs.files import ReadBuffer
from journal.memory.arrays import I64, U64
from qindex.format import message_record as record_format
from qindex.format.headers import DUE_HEADER
from qindex.format.message import Message, in_the_making
from qindex.format.message_record import NOTHING
from qindex.format.publish_check import correct_bit

LONG_AGO = 1 << 50
"""Microseconds since 1970, in September 2005: no message expired then. No checksum covers the
expiry of an entry whose message is in the message store. A flipped bit in "never" makes a time
before this, which is taken for "never", or one far ahead."""
EXPIRED_LONG_AGO = "an expiry before 2006", "taken as none: the message stays", Kind.CORRECTED
"""What is wrong with such an entry, what follows, and the kind of the finding."""
_CORRECTABLE = 8 << 10
_NOT_HELD = "the checksum does not hold"


@dataclass(frozen=True, slots=True)
class Entry:
    """One index entry with its message.

    ``message`` is ``None`` where the message is in the message store (``stored``), or where it is
    damaged: then ``damage`` says how, and ``kind`` in a word. ``corrected``: one flipped bit was
    put right. ``expiry``: microseconds since 1970, 0 = never. ``size``: of the body, as the index
    has it.
    """

    msg_id: bytes
    expiry: int
    size: int
    message: Message | None
    stored: bool = False
    damage: str = ""
    corrected: bool = False
    kind: Kind = Kind.RECORD

    @property
    def expired_long_ago(self) -> bool:
        """Whether only a flipped bit explains the expiry; see :data:`LONG_AGO`."""
        return self.stored and 0 < self.expiry <= LONG_AGO


def is_special(extra: int | Entry) -> bool:
    """Return whether this (a plain message's timestamp) needs attention before it is handed out: it
    expires, is delayed, its message is in the message store, damaged, or was
    corrected."""
    if isinstance(extra, int):
        return False
    message = extra.message
    return (
        message is None
        or extra.stored
        or extra.expiry != 0
        or extra.corrected
        or DUE_HEADER in message.headers
    )


def is_only_stored(entry: Entry) -> bool:
    """Return whether the message is in the message store, unread, and there is nothing else to be
    seen to."""
    return (
        entry.stored
        and entry.message is None
        and not (entry.expiry or entry.damage or entry.corrected)
    )


_Open = in_the_making(Entry)


def make_entry(
    msg_id: bytes, expiry: int, size: int, message: Message | None, stored: bool = False
) -> Entry:
    """Make a sound entry, as its constructor does, in a third of the time."""
    made: Any = _Open()
    made.msg_id = msg_id
    made.expiry = expiry
    made.size = size
    made.message = message
    made.stored = stored
    made.damage = ""
    made.corrected = False
    made.kind = Kind.RECORD
    made.__class__ = Entry
    entry: Entry = made
    return entry


def decode_any(record: bytes, msg_id: bytes) -> Message:
    """Decode a record of either kind. Raises :class:`StoreError` with the reason."""
    if record[:1] == b"\x83":
        from qindex.format.rabbitmq.bridge import decode_rabbitmq

        return decode_rabbitmq(record, msg_id)
    return record_format.decode_record(record)


def read_unnamed(record: bytes, expiry: int, size: int) -> Entry:
    """Read an entry of RabbitMQ's version 2 with its record, which alone has the message id; zeros
    may follow it. ``size``: of the body, as the index has it. A damaged record gives an entry that
    says so."""
    from qindex.format.rabbitmq.bridge import message_of, read_rabbitmq

    try:
        message, _ = read_rabbitmq(record)
    except StoreError as error:
        return Entry(bytes(16), expiry, size, None, damage=str(error))
    return make_entry(message.msg_id, expiry, len(message.body), message_of(message))


def read_entry(data: ReadBuffer, payload: int, word: int) -> Entry:
    """Read one entry whose message id is at offset ``payload`` of ``data``.

    ``word``: its type and seq_id as in a journal. A damaged record gives an entry that says so.
    """
    msg_id, expiry, size, embedded = PAYLOAD.unpack_from(data, payload)
    if not embedded:
        return make_entry(msg_id, expiry, size, None, stored=True)
    head_end = payload + PAYLOAD_SIZE
    record = bytes(data[head_end : head_end + embedded])
    if len(record) < embedded:
        what = "the record is cut off"
        return Entry(msg_id, expiry, size, None, damage=what, kind=Kind.TORN)
    corrected = False
    ours = record[:3] == record_format.MAGIC or record[:1] != b"\x83"
    if ours and (
        record[:3] != record_format.MAGIC
        or not record_format.embedded_is_sound(data, payload, word, embedded)
    ):
        whole = bytearray(word.to_bytes(8, "big") + bytes(data[payload:head_end]) + record)
        bit = correct_bit(bytes(whole)) if len(whole) <= _CORRECTABLE else None
        if bit is None:
            return Entry(msg_id, expiry, size, None, damage=_NOT_HELD, kind=Kind.CHECKSUM)
        whole[bit >> 3] ^= 0x80 >> (bit & 7)
        fixed_word = int.from_bytes(whole[:8], "big")
        if fixed_word != word or len(whole) != PUBLISH_HEAD_SIZE + embedded:
            return Entry(msg_id, expiry, size, None, damage=_NOT_HELD, kind=Kind.CHECKSUM)
        msg_id, expiry, size, _ = PAYLOAD.unpack_from(whole, 8)
        record = bytes(whole[PUBLISH_HEAD_SIZE:])
        corrected = True
    try:
        message = decode_any(record, msg_id)
    except StoreError as error:
        return Entry(msg_id, expiry, size, None, damage=str(error))
    if corrected:
        return Entry(msg_id, expiry, size, message, corrected=True)
    return make_entry(msg_id, expiry, size, message)


def plain_entries(
    data: ReadBuffer,
    payloads: I64,
    words: U64,
    embedded: I64,
    *,
    verified: bool,
    middle: bytes = NOTHING,
) -> tuple[list[bytes], list[int]] | None:
    """Read entries that are all sound, plain, embedded, of one length, and never expire; or that
    have another ``middle``, all the same.

    Return bodies and timestamps (nanoseconds), or None when any entry is not of that kind:
    then each is for :func:`read_entry`. ``verified``: a scan found the records sound.
    About 0.2 us an entry, half of it to verify.
    """
    length = int(embedded[0])
    if length < record_format.PLAIN_HEAD_SIZE + 2 or (embedded != length).any():
        return None
    if int(payloads.max()) + PAYLOAD_SIZE + length > len(data):
        return None  # a length that a flipped bit has made too large
    row_length = PUBLISH_HEAD_SIZE + length
    rows = record_format.gather_rows(data, payloads, words, row_length)
    if not verified and not record_format.verify_rows(rows).all():
        return None
    if not record_format.all_plain(rows, middle):
        return None
    if record_format.column(rows, 24, "u8").any():
        return None
    size = record_format.plain_body_size(length, middle)
    if size <= 0:
        return None
    bodies: list[bytes] = record_format.column(rows, row_length - size, f"V{size}").tolist()
    return bodies, record_format.timestamps(rows)


Reader = Callable[[ReadBuffer, int, int, bool], tuple[bytes, "int | Entry"] | None]
"""A reader of some kinds of messages, as :func:`qindex.format.plain_record.read_plain` is of plain
ones."""


def read_one_by_one(
    data: ReadBuffer, payloads: I64, words: U64, read: Reader, *, verified: bool
) -> tuple[list[bytes], list[int | Entry]]:
    """Read entries of any kind, as :func:`plain_entries`. An entry that is not plain is returned
    whole in place of its timestamp. An entry that ``read`` does not know takes about 4 us."""
    bodies: list[bytes] = []
    extras: list[int | Entry] = []
    for payload, word in zip(payloads.tolist(), words.tolist(), strict=True):
        found = read(data, payload, word, verified)
        if found is not None:
            bodies.append(found[0])
            extras.append(found[1])
            continue
        entry = read_entry(data, payload, word)
        bodies.append(b"" if entry.message is None else entry.message.body)
        extras.append(entry)
    return bodies, extras


def journal_words(kinds: npt.NDArray[np.uint8], seqs: I64) -> U64:
    """Put type bits and seq_ids together as they are at the start of a journal record."""
    return (kinds.astype(np.uint64) << np.uint64(TYPE_SHIFT)) | seqs.astype(np.uint64)
