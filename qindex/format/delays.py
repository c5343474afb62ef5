"""Delays in bytes: the header of a delayed message, the setting for back-off, and the file
``qindex.due`` of a queue.

A message that was published with a delay says so itself, in the header :data:`DUE_HEADER`. (It is
not RabbitMQ's ``x-delay``: a node with the plugin for delayed messages would act on that.) The file
repeats these times, so that an open need not read the messages. The due time of a message that was
given back with a delay is in the file alone. It holds records of 20 bytes, big-endian::

    0          8          16         20
    +----------+----------+----------+
    | seq_id   | due      | check    |      due: microseconds since 1970 UTC, below 2^62
    +----------+----------+----------+      check: the low half of xxh3 (64 bits) of bytes 0 to 15

The last record of a seq_id counts. Two values of ``due`` make marks instead:

* :data:`NOTED`: every message with a lower seq_id that was published with a delay has its record
  before this one. After a crash, only the messages from there on are read.
* :data:`CLOSED` plus a count: a clean close wrote the whole file. ``seq_id`` is the queue's next
  one, and the count that of its messages. If both still hold, each record has its message.

Zeros and a torn record at the end are what a crash may leave.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from journal.memory.arrays import I64, U64
from qindex.format.message_record import row_sums

FILE_NAME = "qindex.due"
DUE_HEADER = "qindex-due"
"""When a message may be delivered, in microseconds since 1970 UTC."""
MAX_DUE = 1 << 62
NOTED = (1 << 64) - 1
CLOSED = 1 << 63

_FIELDS = struct.Struct(">QQ")
_RECORD = np.dtype([("seq_id", ">u8"), ("due", ">u8"), ("check", ">u4")])
_FIELDS_SIZE = _FIELDS.size
RECORD_SIZE = _RECORD.itemsize
_DUE_START = b"\xc0\x81\xaa" + DUE_HEADER.encode() + b"\xcf"
_BACKOFF = re.compile(r"exponential:(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
_MOST_SECONDS = 1e10


def due_of(headers: Mapping[str, Any]) -> int:
    """Return the due time that the headers of a message state, or 0 if they state none."""
    due = headers.get(DUE_HEADER)
    return due if type(due) is int and 0 < due < MAX_DUE else 0


def due_middle(due: int) -> bytes:
    """Return what a record has between timestamp and body, for a message with a due time and
    neither key nor other headers; see :func:`qindex.format.message_record.encode_middle`."""
    return _DUE_START + due.to_bytes(8, "big") + b"\xc0"


def parse_backoff(text: str) -> tuple[float, float]:
    """Return the first pause and the longest one, in seconds, of ``exponential:BASE:CAP``.

    Raises :class:`ValueError`.
    """
    found = _BACKOFF.fullmatch(text)
    if found is None:
        raise ValueError("must be exponential:BASE:CAP, both in seconds")
    base, cap = float(found[1]), float(found[2])
    if not 0 < base <= cap <= _MOST_SECONDS:
        raise ValueError("needs 0 < BASE <= CAP <= 1e10")
    return base, cap


def pack_due(seq_id: int, due: int) -> bytes:
    """Return one record."""
    fields = _FIELDS.pack(seq_id, due)
    return fields + (xxh3_64_intdigest(fields) & 0xFFFF_FFFF).to_bytes(4, "big")


def unpack_due(record: bytes) -> tuple[int, int]:
    """Return the fields of one record, whatever its check."""
    seq_id, due = _FIELDS.unpack_from(record)
    return seq_id, due


def pack_noted(next_seq: int) -> bytes:
    """Return the mark that all due times below ``next_seq`` are in the file."""
    return pack_due(next_seq, NOTED)


def pack_dues(seq_ids: I64, dues: I64) -> bytes:
    """Return the records of many messages."""
    records = np.zeros(len(seq_ids), _RECORD)
    records["seq_id"] = seq_ids
    records["due"] = dues
    records["check"] = _checks(records)
    return records.tobytes()


def _checks(records: npt.NDArray[np.void]) -> U64:
    rows = np.frombuffer(records.tobytes(), np.uint8).reshape(len(records), RECORD_SIZE)
    return row_sums(rows[:, :_FIELDS_SIZE].copy()) & np.uint64(0xFFFF_FFFF)


@dataclass(slots=True)
class DueRecords:
    """What the file of a queue says.

    ``seq_ids``, ``dues``: of each message that it names, once. ``noted``: seq_ids below this were
    all noted. ``closed``: next seq_id and count of messages at the clean close that ends the file,
    if one does. ``damaged``: offsets of records whose check does not hold. ``end``: of the last
    whole record.
    """

    seq_ids: I64
    dues: I64
    noted: int = 0
    closed: tuple[int, int] | None = None
    damaged: list[int] = field(default_factory=list)
    end: int = 0


def read_dues(data: bytes) -> DueRecords:
    """Read the file of a queue. About 0.1 us a record."""
    records = np.frombuffer(data[: len(data) - len(data) % RECORD_SIZE], _RECORD)
    known = _checks(records) == records["check"]
    blank = (records["seq_id"] == 0) & (records["due"] == 0) & (records["check"] == 0)
    damaged = np.flatnonzero(~known & ~blank)
    sound = np.flatnonzero(known)
    end = (int(sound[-1]) + 1) * RECORD_SIZE if len(sound) else 0
    seq_ids = records["seq_id"][sound].astype(np.uint64)
    dues = records["due"][sound].astype(np.uint64)
    is_mark = dues >= MAX_DUE
    marks, noted = np.flatnonzero(is_mark), 0
    closed = None
    if len(marks):
        noted = int(seq_ids[marks].max())
        last = int(dues[-1])
        if is_mark[-1] and last != NOTED:
            closed = int(seq_ids[-1]), last - CLOSED
    # The last record of a seq_id counts: np.unique keeps the first, so they are turned round.
    own = seq_ids[~is_mark][::-1].astype(np.int64)
    seqs, first = np.unique(own, return_index=True)
    latest = dues[~is_mark][::-1].astype(np.int64)[first]
    # A record that a crash has left half written at the very end is no damage.
    torn = len(damaged) and int(damaged[-1]) * RECORD_SIZE >= end
    places = (damaged[:-1] if torn else damaged) * RECORD_SIZE
    return DueRecords(seqs, latest, noted, closed, places.tolist(), end)
