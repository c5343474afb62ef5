"""For cron: how many orders wait, and how many have failed."""

from __future__ import annotations

import os

import qindex

with qindex.open(os.environ.get("ORDERS", "orders-data"), shared=True, linger=0) as engine:
    waiting = engine.queue("orders").stats()
    failed = len(engine.queue("failed-orders"))
    print(f"{waiting.ready} wait, {waiting.unacked} are with a worker, {failed} have failed")
