"""What a scan of a file met that should not be there.

Readers never print and never guess in silence: they give findings, and the caller (open, verify,
repair, the command line) decides what a finding means.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Cause", "Finding"]


class Cause(enum.Enum):
    """Who can have done this."""

    CRASH = "crash"
    """A crash of the process or the machine leaves this; open repairs it without asking."""
    DAMAGE = "damage"
    """No crash leaves this (bit rot, a foreign file); open raises unless ``repair=True``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in one file.

    ``offset`` and ``length`` are in bytes; ``length`` 0 means that no bytes stand for it (a
    missing record). ``what`` says what is wrong, ``consequence`` what a user loses by it.
    """

    path: str
    offset: int
    length: int
    cause: Cause
    what: str
    consequence: str = ""

    def __str__(self) -> str:
        tail = f"; {self.consequence}" if self.consequence else ""
        return f"{self.path}: at offset {self.offset}, {self.length} bytes: {self.what}{tail}"
