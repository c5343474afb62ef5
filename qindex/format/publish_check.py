"""Checks of publish records, whichever message record they embed.

Journals and segments hold records of two kinds, told apart by their first byte: ours, with a
checksum over the whole publish record (:mod:`qindex.format.message_record`), and RabbitMQ's Erlang
terms, which have none: there a record is sound when it decodes and names the same message id as its
index entry. An entry without an embedded record (its message is in the message store) has nothing
that could be checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from xxhash import xxh3_64_intdigest

from journal.block_sums import flipped_bit
from journal.format import PAYLOAD, PAYLOAD_SIZE, PUBLISH_HEAD_SIZE, TYPE_SHIFT
from journal.fs.files import ReadBuffer
from journal.memory.arrays import I64, U64, Bools
from qindex.format import message_record as record_format

_OURS = record_format.MAGIC[0]
_STARTS = re.compile(
    re.escape(record_format.MAGIC) + rb"|\x83h(?:\x06[dsvw]|\x04(?:[sw]|[dv]\0)\x02mc)"
)
_ROWS_BYTES = 4 << 20
_ROWS = 32
"""So many records of one length are worth a numpy array of their own."""

Correction = tuple[int, int, int]
"""Kind, seq_id and embedded length of a publish record whose head was damaged."""


def sound_publishes(data: ReadBuffer, payloads: I64, words: U64, embedded: I64) -> Bools:
    """Return which publish records of a journal or segment are sound.

    ``payloads``: offsets of the message ids in ``data``. ``words``: type and seq_id of each, as in
    a journal. ``embedded``: bytes of the embedded record, 0 for none. All of shape ``(n,)``; the
    records must lie within ``data``.
    """
    sound = np.ones(len(payloads), np.bool_)
    with_record = np.flatnonzero(embedded)
    if not len(with_record):
        return sound
    flat = np.frombuffer(data, np.uint8)
    ours = flat[payloads[with_record] + PAYLOAD_SIZE] == _OURS
    own = with_record[ours]
    order = own[np.argsort(embedded[own], kind="stable")]
    sizes = embedded[order]
    borders = np.flatnonzero(np.diff(sizes)) + 1
    for group in np.split(order, borders):
        if len(group) < _ROWS:
            for index, payload, word, size in zip(
                group.tolist(),
                payloads[group].tolist(),
                words[group].tolist(),
                embedded[group].tolist(),
                strict=True,
            ):
                sound[index] = record_format.embedded_is_sound(data, payload, word, size)
            continue
        row_length = int(embedded[group[0]]) + PUBLISH_HEAD_SIZE
        at_once = max(1, _ROWS_BYTES // row_length)
        for first in range(0, len(group), at_once):
            part = group[first : first + at_once]
            rows = record_format.gather_rows(data, payloads[part], words[part], row_length)
            sound[part] = record_format.verify_rows(rows)
    for index in with_record[~ours]:
        start = int(payloads[index])
        sound[index] = _rabbitmq_is_sound(data, start, int(words[index]), int(embedded[index]))
    return sound


def _rabbitmq_is_sound(data: ReadBuffer, payload: int, word: int, embedded: int) -> bool:
    # Imported here: a store of ours has no such record and need not load the decoder.
    from qindex.format.rabbitmq.bridge import read_rabbitmq
    from qindex.format.rabbitmq.term_format import TermError

    msg_id = bytes(data[payload : payload + 16])
    record = bytes(data[payload + PAYLOAD_SIZE : payload + PAYLOAD_SIZE + embedded])
    try:
        message, end = read_rabbitmq(record)
    except TermError:
        return False
    return message.msg_id == msg_id and end == embedded


def publish_starts(data: ReadBuffer, begin: int, head_size: int) -> Iterator[int]:
    """Yield the offsets, from ``begin`` on, where a publish record with an embedded one may start.

    ``head_size``: bytes of a publish record up to its embedded record, in this kind of file.
    """
    for match in _STARTS.finditer(data, begin + head_size):
        yield match.start() - head_size


def correct_head(
    data: ReadBuffer, payload: int, kinds: tuple[int, ...], seqs: tuple[int, ...]
) -> Correction | None:
    """Restore the head of one of our records from its checksum, or return None.

    Tries the record's own length in place of the head's length field, and each of ``kinds`` and
    ``seqs`` in place of the type and seq_id; the checksum says which is right.
    """
    start = payload + PAYLOAD_SIZE
    inner = record_format.embedded_length(data, start)
    if inner is None:
        return None
    msg_id, expiry, size, stated = PAYLOAD.unpack_from(data, payload)
    for length in dict.fromkeys((inner, stated)):
        if start + length > len(data):
            continue
        head = PAYLOAD.pack(msg_id, expiry, size, length)
        record = bytes(data[start : start + length])
        at = record_format.CHECK_OFFSET
        check = int.from_bytes(record[at : at + 8], "big")
        rest = b"".join((head, record[:at], bytes(8), record[at + 8 :]))
        for seq in seqs:
            for kind in kinds:
                word = (kind << TYPE_SHIFT | seq).to_bytes(8, "big")
                if xxh3_64_intdigest(word + rest) == check:
                    return kind, seq, length
    return None


def correct_bit(record: bytes) -> int | None:
    """Find the one flipped bit of a journal publish record of ours.

    Return its index (bit 0 is the highest of byte 0), or None when no single flip explains
    the checksum. 64 bits of checksum make a wrong answer a matter of 2**-49 at most.
    O(size squared): a quarter of a microsecond for each bit of a short record.
    """
    at = PUBLISH_HEAD_SIZE + record_format.CHECK_OFFSET
    check = int.from_bytes(record[at : at + 8], "big")
    blank = bytearray(record)
    blank[at : at + 8] = bytes(8)
    found = xxh3_64_intdigest(bytes(blank))
    if (found ^ check).bit_count() == 1:
        return at * 8 + 64 - (found ^ check).bit_length()
    return flipped_bit(blank, check)
