"""A store takes the path of a usual put that is written in C, where there is one.

Whatever else there is to be seen to it leaves to the method :meth:`rocketstore.Store.put`.
"""

from __future__ import annotations

import threading

from journal.compiled import described, load
from journal.poison import Poison
from rocketstore.commitlog import CommitLog
from rocketstore.commitlog_format import HEADERS, MESSAGE_MAGIC
from rocketstore.crc import crc32
from rocketstore.message import PutResult
from rocketstore.pending import PENDING_MAX, Pending
from rocketstore.properties import PROPERTIES_MAX
from rocketstore.put_path import STAMP_SIZE, Route

__all__ = ["COMPILED", "install"]

COMPILED = load("rocketstore")
"""The module, or ``None``."""


def install(store: type) -> None:
    """Put it in the place of the method of ``store``, the class."""
    if COMPILED is not None:
        COMPILED.install(
            {
                "Store": store,
                "CommitLog": CommitLog,
                "Pending": Pending,
                "Route": Route,
                "Poison": Poison,
                "PutResult": PutResult,
                "RLock": type(threading.RLock()),
                "crc32": crc32,
                "MAGIC": MESSAGE_MAGIC & 0xFFFFFFFF,
                "HEAD_SIZE": HEADERS[0].size,
                "STAMP_SIZE": STAMP_SIZE,
                "PROPERTIES_MAX": PROPERTIES_MAX,
                "PENDING_MAX": PENDING_MAX,
                "put": described(store.put),  # type: ignore[attr-defined]
            }
        )
