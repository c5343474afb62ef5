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
import os
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

# First: it sees that the packages below are ours.
import qindex._packages  # noqa: F401
from journal.compiled import build
from journal.errors import (
    ClosedError,
    DamageError,
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
from journal.files import REAL, FileSystem, PathLike, checked_path
from journal.findings import Cause, Finding

if TYPE_CHECKING:
    from qindex.engine.engine import Engine
    from qindex.engine.read_only import ReadOnlyEngine, ReadOnlyStats
    from qindex.following import Follower, Gap, QueueGoneError, follow
    from qindex.format.message import Message
    from qindex.format.settings import UNSET, QueueSettings
    from qindex.options import OpenOptions, Options
    from qindex.queue.delivering import Consumer
    from qindex.queue.delivery import Batch, Delivery
    from qindex.queue.queue import Queue
    from qindex.queue.stats import ByReason, EngineStats, QueueStats
    from qindex.tools.convert import convert
    from qindex.tools.repair import repair
    from qindex.tools.salvage import salvage
    from qindex.tools.saved import SaveReport
    from qindex.tools.verify import Report, verify
    from qindex.view.reader import QueueSummary

__all__ = [
    "UNSET",
    "Batch",
    "ByReason",
    "Cause",
    "ClosedError",
    "Consumer",
    "DamageError",
    "Delivery",
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
    "Report",
    "SaveReport",
    "StorageError",
    "StoreError",
    "UsageError",
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
    "Batch": "qindex.queue.delivery",
    "ByReason": "qindex.queue.stats",
    "Consumer": "qindex.queue.delivering",
    "Delivery": "qindex.queue.delivery",
    "Engine": "qindex.engine.engine",
    "EngineStats": "qindex.queue.stats",
    "Follower": "qindex.following",
    "Gap": "qindex.following",
    "Message": "qindex.format.message",
    "Options": "qindex.options",
    "Queue": "qindex.queue.queue",
    "QueueGoneError": "qindex.following",
    "QueueSettings": "qindex.format.settings",
    "QueueStats": "qindex.queue.stats",
    "QueueSummary": "qindex.view.reader",
    "ReadOnlyEngine": "qindex.engine.read_only",
    "ReadOnlyStats": "qindex.engine.read_only",
    "Report": "qindex.tools.verify",
    "SaveReport": "qindex.tools.saved",
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
    fs: FileSystem = REAL,
    read_only: Literal[False] = False,
    **options: Unpack[OpenOptions],
) -> Engine: ...


@overload
def open(
    directory: PathLike,
    *,
    fs: FileSystem = REAL,
    read_only: Literal[True],
    **options: Unpack[OpenOptions],
) -> ReadOnlyEngine: ...


@overload
def open(
    directory: PathLike,
    *,
    fs: FileSystem = REAL,
    read_only: bool,
    **options: Unpack[OpenOptions],
) -> Engine | ReadOnlyEngine: ...


def open(
    directory: PathLike,
    *,
    fs: FileSystem = REAL,
    read_only: bool = False,
    **options: Unpack[OpenOptions],
) -> Engine | ReadOnlyEngine:
    """Open the store in ``directory``; makes one where there is nothing.

    With ``read_only=True`` nothing is written and no lock is taken, beside a writer or not; the
    directory may also be a RabbitMQ virtual host's (see :mod:`qindex.view.reader`), and must be
    there.

    ``options``: see :class:`qindex.options.Options`. ``fs``: the file seam, for tests.
    Raises :class:`NotAStoreError` for a file or a directory of something else,
    :class:`LockedError` (with the pid) when another process has it open (``lock_timeout`` waits),
    :class:`DamageError` when it holds what no crash leaves (unless ``repair=True``),
    :class:`StorageError` when the system refuses, :class:`UsageError` for bad options.
    """
    from qindex.engine.engine import Engine
    from qindex.options import Options

    try:
        checked = Options(read_only=read_only, **options)
    except TypeError as error:
        raise UsageError(f"not an option of qindex.open: {error}") from error
    if read_only:
        from qindex.engine.read_only import ReadOnlyEngine

        return ReadOnlyEngine(directory, fs, segment_entry_count=checked.segment_entry_count)
    return Engine(os.path.abspath(checked_path(directory)), checked, fs)
