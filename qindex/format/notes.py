"""The bytes of notes: a number for each of some entries of a queue, in a file beside it.

``qindex.due`` has due times (:mod:`qindex.format.headers`), ``qindex.keys`` hashes of unique keys
(:mod:`qindex.format.headers`). Both repeat what the messages say, so that an open need not read
these. A file holds records of 20 bytes, big-endian::

    0          8          16         20
    +----------+----------+----------+
    | seq_id   | value    | check    |      value: below 2^62
    +----------+----------+----------+      check: the low half of xxh3 (64 bits) of bytes 0 to 15

The last record of a seq_id counts. Two kinds of values make marks instead:

* :data:`NOTED`: every message with a lower seq_id that was published with such a number has its
  record before this one. After a crash, only the messages from there on are read.
* :data:`CLOSED` plus a count: a clean close wrote the whole file. ``seq_id`` is the queue's next
  one, and the count that of its messages. If both still hold, each record has its message.

Zeros and a torn record at the end are what a crash may leave.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from journal.memory.arrays import I64, U64
from qindex.format.message_record import row_sums

MAX_VALUE = 1 << 62
NOTED = (1 << 64) - 1
CLOSED = 1 << 63

_FIELDS = struct.Struct(">QQ")
_RECORD = np.dtype([("seq_id", ">u8"), ("value", ">u8"), ("check", ">u4")])
_FIELDS_SIZE = _FIELDS.size
RECORD_SIZE = _RECORD.itemsize


def pack_note(seq_id: int, value: int) -> bytes:
    """Return one record."""
    fields = _FIELDS.pack(seq_id, value)
    return fields + (xxh3_64_intdigest(fields) & 0xFFFF_FFFF).to_bytes(4, "big")


def unpack_note(record: bytes) -> tuple[int, int]:
    """Return the fields of one record, whatever its check."""
    seq_id, value = _FIELDS.unpack_from(record)
    return seq_id, value


def pack_noted(next_seq: int) -> bytes:
    """Return the mark that all numbers below ``next_seq`` are in the file."""
    return pack_note(next_seq, NOTED)


def pack_notes(seq_ids: I64, values: I64) -> bytes:
    """Return the records of many messages."""
    records = np.zeros(len(seq_ids), _RECORD)
    records["seq_id"] = seq_ids
    records["value"] = values
    records["check"] = _checks(records)
    return records.tobytes()


def _checks(records: npt.NDArray[np.void]) -> U64:
    rows = np.frombuffer(records.tobytes(), np.uint8).reshape(len(records), RECORD_SIZE)
    return row_sums(rows[:, :_FIELDS_SIZE].copy()) & np.uint64(0xFFFF_FFFF)


@dataclass(slots=True)
class Notes:
    """The content of a queue's file.

    ``seq_ids``, ``values``: of each message that it names, once. ``noted``: seq_ids below this were
    all noted. ``closed``: next seq_id and count of messages at the clean close that ends the file,
    if one does. ``damaged``: offsets of records whose check does not hold. ``end``: of the last
    whole record.
    """

    seq_ids: I64
    values: I64
    noted: int = 0
    closed: tuple[int, int] | None = None
    damaged: list[int] = field(default_factory=list)
    end: int = 0


def read_notes(data: bytes) -> Notes:
    """Read the file of a queue. About 0.1 us a record."""
    records = np.frombuffer(data[: len(data) - len(data) % RECORD_SIZE], _RECORD)
    known = (_checks(records) == records["check"]) & (records["seq_id"] < CLOSED)
    blank = (records["seq_id"] == 0) & (records["value"] == 0) & (records["check"] == 0)
    damaged = np.flatnonzero(~known & ~blank)
    sound = np.flatnonzero(known)
    end = (int(sound[-1]) + 1) * RECORD_SIZE if len(sound) else 0
    seq_ids = records["seq_id"][sound].astype(np.uint64)
    values = records["value"][sound].astype(np.uint64)
    is_mark = values >= MAX_VALUE
    marks, noted = np.flatnonzero(is_mark), 0
    closed = None
    if len(marks):
        noted = int(seq_ids[marks].max())
        last = int(values[-1])
        if is_mark[-1] and last != NOTED:
            closed = int(seq_ids[-1]), last - CLOSED
    # The last record of a seq_id counts: np.unique keeps the first, so they are turned round.
    own = seq_ids[~is_mark][::-1].astype(np.int64)
    seqs, first = np.unique(own, return_index=True)
    latest = values[~is_mark][::-1].astype(np.int64)[first]
    # A record that a crash has left half written at the very end is not damage.
    torn = len(damaged) and int(damaged[-1]) * RECORD_SIZE >= end
    places = (damaged[:-1] if torn else damaged) * RECORD_SIZE
    return Notes(seqs, latest, noted, closed, places.tolist(), end)
