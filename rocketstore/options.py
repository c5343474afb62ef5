"""The options of a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from journal.errors import UsageError
from journal.fs.files import REAL, FileSystem
from journal.schema import FILE_MODE, Int, Number, Optional
from rocketstore.retention import Retention

Durability = Literal["os", "fsync"]
Recovery = Literal["full", "compatible"]

COMMITLOG_FILE_SIZE = 1 << 30
MAX_MESSAGE_SIZE = 4 << 20


def clock_ms(time_ns: Callable[[], int] = time.time_ns) -> int:
    """The time now, in ms since 1970."""
    return time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """Keyword arguments of :func:`rocketstore.open`.

    Sizes that are ``None`` are found from the files; a new store takes RocketMQ's own defaults
    (1 GiB, 6,000,000 bytes, 5,000,000 slots, 20,000,000 entries).

    ``durability``: ``"os"`` (a put that returned survives the death of the process) or
    ``"fsync"`` (it survives power loss; callers share a sync). ``recovery``: ``"full"`` rebuilds
    whatever of queues and index disagrees with the log, ``"compatible"`` does what RocketMQ
    4.9.3 does. ``repair`` reads the whole log and sets aside what no crash explains. Without
    ``create`` the directory must hold a store already. ``background`` runs a
    thread that syncs every ``flush_interval`` seconds, records a checkpoint every
    ``checkpoint_interval``, delivers delayed messages and applies ``retention``.
    ``mode``: of the files of a store that is being made, as in :class:`qindex.Options`: ``None``
    (0o600, for this user alone), 0o640, 0o644, 0o660 (for the directory's group) or 0o664.
    """

    commitlog_file_size: int | None = None
    consumequeue_file_size: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None
    durability: Durability = "os"
    recovery: Recovery = "full"
    repair: bool = False
    read_only: bool = False
    create: bool = True
    index: bool = True
    index_safe: bool = False
    background: bool = True
    flush_interval: float = 0.5
    checkpoint_interval: float = 10.0
    retention: Retention | None = None
    mode: int | None = None
    store_host: str | tuple[str, int] = ("127.0.0.1", 10911)
    max_message_size: int = MAX_MESSAGE_SIZE
    clock: Callable[[], int] = clock_ms
    name_clock: Callable[[], int] = clock_ms
    fs: FileSystem = field(default=REAL, repr=False)

    def __post_init__(self) -> None:
        if self.durability not in ("os", "fsync"):
            raise UsageError(f"durability {self.durability!r}: 'os' or 'fsync' are right")
        if self.recovery not in ("full", "compatible"):
            raise UsageError(f"recovery {self.recovery!r}: 'full' or 'compatible' are right")
        for name, shape in _NUMBERS.items():
            value = getattr(self, name)
            if not shape.fits(value):
                raise UsageError(f"{name} is {value!r}: {shape.wanted} is right")


_SECONDS = Number(1e-6, 1e9)
_NUMBERS = {
    "commitlog_file_size": Optional(Int(1024, 1 << 40)),
    "consumequeue_file_size": Optional(Int(20, 1 << 40)),
    "index_slots": Optional(Int(1, (1 << 31) - 1)),
    "index_entries": Optional(Int(2, (1 << 31) - 1)),
    "mode": FILE_MODE,
    "max_message_size": Int(1, (1 << 31) - 1),
    "flush_interval": _SECONDS,
    "checkpoint_interval": _SECONDS,
}
