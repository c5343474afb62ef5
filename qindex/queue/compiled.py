"""The part of queues that is written in C (:mod:`journal.compiled`), set up for the layout of
records."""

from __future__ import annotations

from xxhash import xxh3_64_digest

from journal.compiled import load
from journal.findings import Kind
from journal.format import DELIVER_BITS
from qindex.format import plain_record as plain
from qindex.format.entries import Entry
from qindex.format.message import Message
from qindex.format.message_record import MAGIC
from qindex.format.segment import STEP_SIZE

__all__ = ["COMPILED", "read_run", "read_sound"]

COMPILED = load("qindex")
"""The module, or ``None``."""

if COMPILED is not None:
    COMPILED.use_layout(
        {
            "PLAIN_HEADS": plain.PLAIN_HEADS,
            "plain_parts": plain.plain_parts,
            "xxh3_64_digest": xxh3_64_digest,
            "CHECK_START": plain.CHECK_START,
            "STEP_SIZE": STEP_SIZE,
            "DELIVER_BITS": DELIVER_BITS,
            "MAGIC": MAGIC,
            "RECORD": Kind.RECORD,
            "Entry": Entry,
            "Message": Message,
        }
    )

read_run = plain.read_run if COMPILED is None else COMPILED.read_run
read_sound = plain.read_plain if COMPILED is None else COMPILED.read_sound
