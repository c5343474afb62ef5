"""Run a handler for each message of a queue; redrive; schedules.

>>> import qindex, tempfile
>>> with qindex.open(tempfile.mkdtemp()) as engine:
...     mails = engine.queue("mails")
...     _ = mails.publish_many([b"ann", b"bob"])
...     mails.run(lambda mail: print(mail.body), until_empty=True).done
b'ann'
b'bob'
2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qindex.worker.outcomes import (
    Figures,
    HandlerError,
    NoHandlerError,
    ProcessDiedError,
    Reject,
    Retry,
    TimedOutError,
)
from qindex.worker.run import Worker

if TYPE_CHECKING:
    from qindex.worker.redriving import RedriveReport, redrive

__all__ = [
    "Figures",
    "HandlerError",
    "NoHandlerError",
    "ProcessDiedError",
    "RedriveReport",
    "Reject",
    "Retry",
    "TimedOutError",
    "Worker",
    "redrive",
]


def __getattr__(name: str) -> Any:
    if name in ("RedriveReport", "redrive"):  # they need numpy, as clients do not
        return getattr(importlib.import_module("qindex.worker.redriving"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
