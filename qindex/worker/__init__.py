"""Run a handler for each message of a queue: in threads, coroutines or processes.

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

from qindex.worker.outcomes import (
    Figures,
    HandlerError,
    NoHandlerError,
    ProcessDiedError,
    Reject,
    Retry,
    TimedOutError,
)
from qindex.worker.redrive import RedriveReport, redrive
from qindex.worker.run import Worker

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
