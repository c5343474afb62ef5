"""qindex: an embedded, persistent message queue.

>>> import qindex, tempfile
>>> with qindex.open(tempfile.mkdtemp()) as engine:
...     orders = engine.queue("orders")
...     seq_id = orders.publish(b"first", key="o-17")
...     with orders.get() as delivery:
...         print(delivery.body, delivery.key)
b'first' o-17
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

# First: it sees that the packages below are ours.
import qindex._packages  # noqa: F401
from journal.compiled import build
from journal.errors import (
    ClosedError,
    DamageError,
    DisconnectedError,
    DuplicateError,
    ForkedError,
    LeaseExpiredError,
    LockedError,
    NotAStoreError,
    QueueFullError,
    StorageError,
    StoreError,
    UsageError,
    WritesRefusedError,
)
from journal.findings import Cause, Finding
from journal.fs.files import PathLike

if TYPE_CHECKING:
    from qindex.client.engine import SharedEngine
    from qindex.client.faces import AnyEngine, AnyQueue
    from qindex.client.shared_queue import SharedConsumer, SharedQueue
    from qindex.engine.engine import Engine
    from qindex.engine.read_only import ReadOnlyEngine, ReadOnlyStats
    from qindex.engine.transactions import Transaction
    from qindex.following import Follower, Gap, QueueGoneError, follow
    from qindex.format.message import Message
    from qindex.format.settings import UNSET, QueueSettings
    from qindex.options import Durability, Format, OpenOptions, Options
    from qindex.queue.delivery import Batch, Delivery
    from qindex.queue.plain_queue import Queue
    from qindex.queue.stats import ByReason, EngineStats, QueueStats
    from qindex.queue.waiting import Consumer
    from qindex.tools.convert import convert
    from qindex.tools.repair import repair
    from qindex.tools.salvage import salvage
    from qindex.tools.saved import SaveReport
    from qindex.tools.verify import VerifyReport, verify
    from qindex.view.reader import QueueSummary
    from qindex.worker.schedules import Schedule
    from qindex.worker.ticking import Ticker

__all__ = [
    "UNSET",
    "AnyEngine",
    "AnyQueue",
    "Batch",
    "ByReason",
    "Cause",
    "ClosedError",
    "Consumer",
    "DamageError",
    "Delivery",
    "DisconnectedError",
    "DuplicateError",
    "Engine",
    "EngineStats",
    "Finding",
    "Follower",
    "ForkedError",
    "Gap",
    "LeaseExpiredError",
    "LockedError",
    "Message",
    "NotAStoreError",
    "Options",
    "Queue",
    "QueueFullError",
    "QueueGoneError",
    "QueueSettings",
    "QueueStats",
    "QueueSummary",
    "ReadOnlyEngine",
    "ReadOnlyStats",
    "SaveReport",
    "Schedule",
    "SharedConsumer",
    "SharedEngine",
    "SharedQueue",
    "StorageError",
    "StoreError",
    "Ticker",
    "Transaction",
    "UsageError",
    "VerifyReport",
    "WritesRefusedError",
    "convert",
    "follow",
    "open",
    "repair",
    "salvage",
    "verify",
]

__version__ = "0.1.0"
__build__: str = build()
"""Which build runs: "compiled" or "interpreted" (docs/operations.md, "Compiled, or not")."""

# Where the names are that need numpy: a program that imports qindex and opens nothing (a command
# line that prints its help) should not wait for it.
_LATER = {
    "UNSET": "qindex.format.settings",
    "AnyEngine": "qindex.client.faces",
    "AnyQueue": "qindex.client.faces",
    "Batch": "qindex.queue.delivery",
    "ByReason": "qindex.queue.stats",
    "Consumer": "qindex.queue.waiting",
    "Delivery": "qindex.queue.delivery",
    "Engine": "qindex.engine.engine",
    "EngineStats": "qindex.queue.stats",
    "Follower": "qindex.following",
    "Gap": "qindex.following",
    "Message": "qindex.format.message",
    "Options": "qindex.options",
    "Queue": "qindex.queue.plain_queue",
    "QueueGoneError": "qindex.following",
    "QueueSettings": "qindex.format.settings",
    "QueueStats": "qindex.queue.stats",
    "QueueSummary": "qindex.view.reader",
    "ReadOnlyEngine": "qindex.engine.read_only",
    "ReadOnlyStats": "qindex.engine.read_only",
    "SaveReport": "qindex.tools.saved",
    "Schedule": "qindex.worker.schedules",
    "SharedConsumer": "qindex.client.shared_queue",
    "SharedEngine": "qindex.client.engine",
    "SharedQueue": "qindex.client.shared_queue",
    "Ticker": "qindex.worker.ticking",
    "Transaction": "qindex.engine.transactions",
    "VerifyReport": "qindex.tools.verify",
    "convert": "qindex.tools.convert",
    "follow": "qindex.following",
    "repair": "qindex.tools.repair",
    "salvage": "qindex.tools.salvage",
    "verify": "qindex.tools.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__", "__build__", "__version__"]


# Silent by default: without this, Python prints warnings of a program that set up no logging.
logging.getLogger("qindex").addHandler(logging.NullHandler())


@overload
def open(
    directory: PathLike,
    *,
    read_only: Literal[False] = False,
    shared: Literal[False] = False,
    **options: Unpack[OpenOptions],
) -> Engine: ...
@overload
def open(
    directory: PathLike, *, read_only: Literal[True], **options: Unpack[OpenOptions]
) -> ReadOnlyEngine: ...
@overload
def open(
    directory: PathLike,
    *,
    shared: Literal[True],
    linger: float = 10.0,
    **options: Unpack[OpenOptions],
) -> SharedEngine: ...
@overload
def open(
    directory: PathLike,
    *,
    shared: bool,
    linger: float = 10.0,
    **options: Unpack[OpenOptions],
) -> Engine | SharedEngine: ...
@overload
def open(
    directory: PathLike, *, read_only: bool, **options: Unpack[OpenOptions]
) -> Engine | ReadOnlyEngine: ...
def open(
    directory: PathLike,
    *,
    read_only: bool = False,
    shared: bool = False,
    linger: float = 10.0,
    durability: Durability = "os",
    repair: bool = False,
    lock_timeout: float = 0.0,
    mode: int | None = None,
    background: bool = True,
    max_journal_entries: int = 65_536,
    flush_idle: float = 60.0,
    rest_idle: float = 1.0,
    memory_budget: int = 256 << 20,
    max_open_files: int | None = None,
    max_message_bytes: int = 128 << 20,
    embed_below: int = 16_384,
    store_file_bytes: int = 16 << 20,
    garbage_ratio: float = 0.5,
    compaction_bytes_per_second: float | None = None,
    record_format: Format = "qindex",
    vhost: str = "/",
    segment_entry_count: int | None = None,
) -> Engine | ReadOnlyEngine | SharedEngine:
    """Open the store in ``directory``, and make one if there is nothing.

    Args:
        directory: A directory of qindex's, or an empty or missing one. With ``read_only`` it must
            exist and may also be a RabbitMQ virtual host's (see :mod:`qindex.view.reader`).
        read_only: Write nothing and take no lock. Works beside a writer.
        shared: Let other processes have it open as well, each with ``shared=True``. The first
            starts a server in the background, which has the store open; the others find it.
            The options are those of the first. Linux only (docs/processes.md).
        linger: Seconds after which such a server ends when its last client has gone.
        durability: What is safe when a call returns. ``"os"``: the operating system has it, and the
            death of the process loses nothing. ``"fsync"``: it is on disk. Concurrent callers
            share a sync.
        repair: Open a damaged directory too. Damaged bytes go to quarantine files.
        lock_timeout: Seconds to wait for another process that has the directory open, such as the
            old process of a service that restarts.
        mode: Mode of the files of a new store, whatever the umask: 0o600, 0o640, 0o644, 0o660 or
            0o664. None: 0o600, so that only this user can use the store. With 0o660 all members of
            the directory's group can, and their opens keep it so. Other stores keep their modes.
        background: Flush in a thread. Without it, the call that fills the journal flushes.
        max_journal_entries: A queue is flushed when it has more actions since its last flush.
        flush_idle: Seconds without an action after which a queue is flushed.
        rest_idle: Seconds without an action after which a queue rests. A resting queue keeps its
            journal and has no open file. The next publish to it costs about 50 us more.
        memory_budget: Bytes of memory for the unflushed entries of all queues in use. Above it, the
            largest is flushed.
        max_open_files: File handles that the engine may hold. A queue in use takes three, one on
            Python 3.13 and later. Above it, the queues that were not used for longest rest. None:
            half of the process's limit (``RLIMIT_NOFILE``), at most 4,096.
        max_message_bytes: The largest body that a publish takes.
        embed_below: Message records of fewer bytes are embedded in the index. Others go to the
            message store, as do those of at least 4,096 bytes that ``publish_to`` publishes to
            several queues.
        store_file_bytes: Size at which a file of the message store rolls.
        garbage_ratio: Share of dead bytes in the message store above which its files are compacted.
        compaction_bytes_per_second: Limit on what compaction copies. None: no limit.
        record_format: Format of published messages: ``"qindex"``, or ``"rabbitmq"`` so that a node
            of 3.10 to 3.13 can take over the queue directories. For nodes of 4.x see
            :func:`qindex.convert`.
        vhost: The virtual host in names and records.
        segment_entry_count: Entries of a segment in a new directory. None: 16,384. With
            ``read_only``, those of a virtual host's directory that has lost its ``.config``.

    Returns:
        The engine, a context manager that closes itself.

    Raises:
        NotAStoreError: ``directory`` is a file, or holds something else.
        LockedError: Another process has it open; the error has its pid. With ``shared``: a
            process has it open that does not share it.
        DisconnectedError: With ``shared``: no server can be started, or it ends at once, or the
            store is for ``qindex serve``, which does not run.
        DamageError: It holds what no crash leaves, and ``repair`` is false.
        StorageError: The system refuses.
        UsageError: An option has a wrong value.
    """
    options: OpenOptions = {
        "durability": durability,
        "repair": repair,
        "lock_timeout": lock_timeout,
        "mode": mode,
        "background": background,
        "max_journal_entries": max_journal_entries,
        "flush_idle": flush_idle,
        "rest_idle": rest_idle,
        "memory_budget": memory_budget,
        "max_open_files": max_open_files,
        "max_message_bytes": max_message_bytes,
        "embed_below": embed_below,
        "store_file_bytes": store_file_bytes,
        "garbage_ratio": garbage_ratio,
        "compaction_bytes_per_second": compaction_bytes_per_second,
        "record_format": record_format,
        "vhost": vhost,
        "segment_entry_count": segment_entry_count,
    }
    if not isinstance(shared, bool):
        raise UsageError(f"shared must be True or False, not {shared!r}")
    if shared:
        if read_only:
            raise UsageError("read_only=True needs no shared=True: it works beside any writer")
        from qindex.client.engine import SharedEngine

        return SharedEngine(directory, dict(options), linger)
    from qindex.engine.opening import open_store

    return open_store(directory, read_only=read_only, **options)
