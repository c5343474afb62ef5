"""Sends mails with huey, from consumers that may be killed.

Start as many consumers as you like, with threads or processes, and enqueue from anywhere:

    huey_consumer huey_mails.huey --workers 4
    python -c "import huey_mails; huey_mails.send('ann@example.com')"

A mail whose consumer is killed is sent by another one. A mail that can't be sent is tried three
times, with a pause. Urgent mails go first.
"""

from __future__ import annotations

import os
import time

from huey import crontab

from qindex.compat.huey import QindexHuey

huey = QindexHuey("mails", directory=os.environ.get("MAILS", "mails-data"))


def note(line: str) -> None:
    """Write a line into the file of sent mails. It is there whole or not at all."""
    path = os.environ.get("SENT", "mails-sent")
    sent = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(sent, f"{line}\n".encode())
    os.close(sent)


@huey.task(retries=2, retry_delay=1)
def send(address: str) -> str:
    """Send a mail."""
    time.sleep(float(os.environ.get("SECONDS", "0.01")))
    if "@" not in address:
        raise ValueError(f"{address!r} is no address")
    note(address)
    return f"sent to {address}"


@huey.task(priority=50)
def send_urgently(address: str) -> str:
    """Send a mail before all that wait."""
    note(f"urgent {address}")
    return f"sent to {address}"


@huey.periodic_task(crontab(minute="0", hour="6"))
def send_summary() -> None:
    """Send a summary at six, once, however many consumers there are."""
    note("summary")
