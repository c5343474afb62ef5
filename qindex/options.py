"""The options of an engine, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from journal.errors import UsageError
from journal.schema import FILE_MODE, Int, Number, OneOf, Optional, Text

Durability = Literal["os", "fsync"]
Format = Literal["qindex", "rabbitmq"]


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of :func:`qindex.open`, for type checkers."""

    durability: Durability
    max_journal_entries: int
    flush_idle: float
    rest_idle: float
    memory_budget: int
    max_open_files: int | None
    embed_below: int
    max_message_bytes: int
    store_file_bytes: int
    garbage_ratio: float
    compaction_bytes_per_second: float | None
    background: bool
    lock_timeout: float
    mode: int | None
    repair: bool
    record_format: Format
    vhost: str
    segment_entry_count: int | None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an open engine. :func:`qindex.open` takes them and says what they mean."""

    durability: Durability = "os"
    max_journal_entries: int = 65_536
    flush_idle: float = 60.0
    rest_idle: float = 1.0
    memory_budget: int = 256 << 20
    max_open_files: int | None = None
    embed_below: int = 16_384
    max_message_bytes: int = 128 << 20
    store_file_bytes: int = 16 << 20
    garbage_ratio: float = 0.5
    compaction_bytes_per_second: float | None = None
    background: bool = True
    lock_timeout: float = 0.0
    mode: int | None = None
    repair: bool = False
    read_only: bool = False
    record_format: Format = "qindex"
    vhost: str = "/"
    segment_entry_count: int | None = None

    def __post_init__(self) -> None:
        """Raise :class:`UsageError` for a value that can't be right."""
        for name, shape in _SHAPES.items():
            value = getattr(self, name)
            if not shape.fits(value):
                how = _FOR_4X if value == "rabbitmq-4" else ""
                raise UsageError(f"{name} must be {shape.wanted}, not {value!r}{how}")


_FOR_4X = "; `qindex convert DIR --to 2 --out NEW` makes a directory that a node of 4.x starts from"
_SWITCH = OneOf((True, False))

_SHAPES = {
    "durability": OneOf(get_args(Durability)),
    "record_format": OneOf(get_args(Format)),
    "max_journal_entries": Int(1, 1 << 26),
    "flush_idle": Number(0.001, 1e9),
    "rest_idle": Number(0.001, 1e9),
    "memory_budget": Int(1 << 16, 1 << 50),
    "max_open_files": Optional(Int(64, 1 << 30)),
    "embed_below": Int(0, 1 << 31),
    "max_message_bytes": Int(0, (1 << 31) - 1),
    "store_file_bytes": Int(4096, 1 << 40),
    "garbage_ratio": Number(0.01, 1),
    "compaction_bytes_per_second": Optional(Number(1, 1e18)),
    "background": _SWITCH,
    "repair": _SWITCH,
    "read_only": _SWITCH,
    "lock_timeout": Number(0, 1e9),
    "mode": FILE_MODE,
    "vhost": Text(255),
    "segment_entry_count": Optional(Int(1, 1 << 14)),
}
