"""qindex: an embedded, persistent message queue.

>>> import qindex, tempfile
>>> with qindex.open(tempfile.mkdtemp()) as engine:
...     orders = engine.queue("orders")
...     seq_id = orders.publish(b"first", key="o-17")
...     with orders.get(timeout=1.0) as delivery:
...         print(delivery.body, delivery.key)
b'first' o-17
"""

from __future__ import annotations

import os
from typing import Any

from journal.errors import (
    ClosedError,
    DamageError,
    ForkedError,
    LockedError,
    NotAStoreError,
    StorageError,
    StoreError,
    UsageError,
    WritesRefusedError,
)
from journal.files import REAL, FileSystem, PathLike
from journal.findings import Cause, Finding
from qindex.delivery import Batch, Delivery
from qindex.engine import Engine
from qindex.message import Message
from qindex.options import Options
from qindex.queue import Queue
from qindex.stats import EngineStats, QueueStats

__all__ = [
    "Batch",
    "Cause",
    "ClosedError",
    "DamageError",
    "Delivery",
    "Engine",
    "EngineStats",
    "Finding",
    "ForkedError",
    "LockedError",
    "Message",
    "NotAStoreError",
    "Options",
    "Queue",
    "QueueStats",
    "StorageError",
    "StoreError",
    "UsageError",
    "WritesRefusedError",
    "open",
]

__version__ = "0.1.0"


def open(directory: PathLike, *, fs: FileSystem = REAL, **options: Any) -> Engine:
    """Open the store in ``directory``; makes one where there is nothing.

    ``options``: see :class:`qindex.options.Options`. ``fs``: the file seam, for tests.
    Raises :class:`NotAStoreError` for a file or a directory of something else,
    :class:`LockedError` (with the pid) when another process has it open,
    :class:`DamageError` when it holds what no crash leaves (unless ``repair=True``),
    :class:`StorageError` when the system refuses, :class:`UsageError` for bad options.
    """
    try:
        checked = Options(**options)
    except TypeError as error:
        raise UsageError(f"not an option of qindex.open: {error}") from error
    return Engine(os.path.abspath(os.fspath(directory)), checked, fs)
