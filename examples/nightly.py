"""Makes a report each night, in as many processes as you like: each night's once.

``python nightly.py`` runs until SIGTERM. Every process has the schedule, a ticker and a worker; any
of them may be killed. ``qindex schedule nightly-data list`` shows when the next report is due.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import qindex


def report(job: qindex.Delivery) -> None:
    """Make the report of one night: here, a line in a file that has each night once."""
    instant = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=job.headers["qindex-instant"])
    path = os.environ.get("REPORTS", "reports")
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(out, f"{instant.isoformat()} {os.getpid()}\n".encode())
    os.close(out)


def main() -> None:
    """Schedule the reports, and make those that are due."""
    with qindex.open(os.environ.get("NIGHTLY", "nightly-data"), shared=True) as engine:
        every = float(os.environ.get("EVERY", "0"))
        if every:  # to see it work without waiting for the night
            engine.schedule("report", every=every, queue="reports", missed="all")
        else:
            engine.schedule("report", "30 2 * * *", timezone="Europe/Amsterdam", queue="reports")
        with qindex.Ticker(engine):
            engine.queue("reports").run(report, retries=5)


if __name__ == "__main__":
    main()
