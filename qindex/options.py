"""The options of an engine, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from journal.errors import UsageError
from journal.schema import FILE_MODE, Int, Number, OneOf, Optional, Text

Durability = Literal["os", "fsync"]
Format = Literal["qindex", "rabbitmq"]


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of :func:`qindex.open`, for type checkers; see :class:`Options`."""

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
    """The options of an engine; all are keyword arguments of :func:`qindex.open`.

    ``durability``: what is safe when a call returns. ``"os"``: the operating system has it, the
    death of the process loses nothing. ``"fsync"``: it is on disk; concurrent callers share a
    sync.

    ``max_journal_entries``: a queue is flushed when it has more actions since its last flush.
    ``flush_idle``: seconds without an action after which a queue is flushed. ``rest_idle``: seconds
    without an action after which a queue rests: no file is open for it, and its journal stays as it
    is. ``memory_budget``: bytes that unflushed entries of all queues in use may take before the
    largest is flushed. ``max_open_files``: file handles that the engine may hold, three for a queue
    in use (one on Python 3.13 and later). When more queues are in use than that allows, those that
    were not used for longest rest. ``None``: half of what the process may have open
    (``RLIMIT_NOFILE``), at most 4,096. A publish to a queue at rest costs some 50 us more.
    ``embed_below``: message records of fewer bytes are embedded in the index, others go to the
    message store, as do those of 4,096 bytes and more that ``publish_to`` publishes to several
    queues. ``max_message_bytes``: the largest body taken. ``store_file_bytes``: size at
    which a file of the message store rolls. ``garbage_ratio``: share of dead bytes in the message
    store above which its files are compacted; ``compaction_bytes_per_second`` bounds what that
    copies (``None``: unbounded). ``background``: a thread flushes; without it
    the call that fills the journal does.

    ``lock_timeout``: seconds to wait for another process that has the directory open, as where a
    service is restarted and the old process still ends.
    ``mode``: of the files of a store that is being made, 0o600, 0o640, 0o644, 0o660 or 0o664,
    whatever the umask. ``None``: 0o600, so that only this user can use the store. With 0o660 all
    members of the directory's group can, whose later opens follow it. A store that is there keeps
    its modes whatever is said here.
    ``repair``: open a damaged directory: damaged bytes are set aside in quarantine files.
    ``read_only``: look, don't touch; any number may, beside a writer.
    ``record_format``: of messages that are published: ours, or RabbitMQ's (then a node of 3.10 to
    3.13 can take the queue directories over; for one of 4.x, see
    :func:`qindex.tools.convert.convert`). ``vhost``: the virtual host in names and records.
    ``segment_entry_count``: of a directory that is being made. With ``read_only``, of a virtual
    host's directory that has lost its ``.config``.
    """

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
