"""Findings: things in a file that should not be there.

Readers never print and never guess in silence: they give findings, and the caller (open, verify,
repair, the command line) decides what a finding means.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

__all__ = ["Cause", "Finding", "Kind"]


class Cause(enum.Enum):
    """The possible author of a finding."""

    CRASH = "crash"
    """A crash of the process or the machine leaves this; open repairs it without asking. Findings
    that are not damage at all (:attr:`Kind.OPEN_TO_OTHERS`) also have this cause."""
    DAMAGE = "damage"
    """No crash leaves this (bit rot, a foreign file); open raises unless ``repair=True``."""


class Kind(enum.StrEnum):
    """The kind of a finding, a word that stays the same; docs/operations.md explains each."""

    CHECKSUM = "checksum"
    """Bytes that do not have their checksum."""
    CORRECTED = "corrected"
    """A flipped bit that a checksum put right: nothing is lost."""
    RECORD = "record"
    """Bytes that are not a record, or a record that does not decode."""
    STEP = "step"
    """A deliver or ack that can't be right."""
    TORN = "torn"
    """A record, or a file, that is cut off."""
    ZEROS = "zeros"
    """Zeros where something else should be."""
    UNFINISHED = "unfinished"
    """The leftovers of an operation that was cut short."""
    ENTRY_WITHOUT_MESSAGE = "entry-without-message"
    MESSAGE_WITHOUT_ENTRY = "message-without-entry"
    REFCOUNT = "refcount"
    """A message with other references than it has index entries."""
    COUNT = "count"
    """Another number of entries, messages or bytes than is written down elsewhere."""
    SIZE = "size"
    """An entry's size is not that of its message's body."""
    DUPLICATE_MSG_ID = "duplicate-msg-id"
    DUPLICATE_SEQ_ID = "duplicate-seq-id"
    DUPLICATE_FILE = "duplicate-file"
    GAP = "gap"
    """seq_ids, or offsets, that do not follow one another where they must."""
    SEQ_RANGE = "seq-range"
    """A seq_id that was never given out."""
    PERSISTENCE = "persistence"
    """Index and message differ in whether the message is persistent."""
    NAME = "name"
    """A name that does not belong where it is."""
    MISSING_FILE = "missing-file"
    FOREIGN_FILE = "foreign-file"
    UNREADABLE = "unreadable"
    """A file that the system does not let us read."""
    MISMATCH = "mismatch"
    """A file that follows from another one, and does not agree with it."""
    OPEN_TO_OTHERS = "open-to-others"
    """A store that other users of the machine can read or write: a note, no damage."""
    CONFIG = "config"
    """A file that says how others are to be read, and makes no sense."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in one file.

    ``offset`` and ``length`` are in bytes; ``length`` 0 means that the finding has no bytes (a
    missing record). ``what`` describes the damage, ``consequence`` what a user loses by it.
    """

    path: str
    offset: int
    length: int
    cause: Cause
    what: str
    consequence: str = ""
    kind: Kind = Kind.RECORD

    @property
    def is_loss(self) -> bool:
        """Whether it is damage that was not put right: no crash explains it, and something may be
        lost by it."""
        return self.cause is Cause.DAMAGE and self.kind is not Kind.CORRECTED

    def __str__(self) -> str:
        tail = f"; {self.consequence}" if self.consequence else ""
        return f"{self.path}: at offset {self.offset}, {self.length} bytes: {self.what}{tail}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding ready for JSON."""
        return {
            "path": self.path,
            "offset": self.offset,
            "length": self.length,
            "kind": self.kind.value,
            "cause": self.cause.value,
            "what": self.what,
            "consequence": self.consequence,
        }
