"""What the tests of moving messages share: a store with all kinds of messages, and its contents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgpack

import qindex
from qindex.format.envelope import make_envelope
from qindex.format.message import Message
from qindex.view.reader import StoreReader

__all__ = ["contents", "fill"]


def fill(directory: Path, count: int = 60) -> None:
    """Two queues with messages of all kinds: large, keyed, expiring, transient, delivered."""
    with qindex.open(directory, segment_entry_count=16) as engine:
        orders, audit = engine.queue("orders"), engine.queue("audit é")
        for n in range(count):
            headers: dict[str, Any] = {"n": n, "raw": b"\xff\x00", "when": msgpack.Timestamp(n, 7)}
            nested = {"f": 1.5, "list": [1, None, True], "inf": float("inf")}
            orders.publish(
                os.urandom(5) * (2000 if n % 10 == 0 else 1),
                key=f"key {n}" if n % 2 else None,
                headers=headers if n % 3 else None,
                properties=nested if n % 4 == 0 else None,
                ttl=3600.0 + n if n % 5 == 0 else None,
            )
        orders.publish_many([b"plain %d" % n for n in range(count)])
        audit.publish(b"")
        audit.publish("tëxt".encode(), headers={"$b": {"$base64": "x"}, "m": {1: "a"}})
        audit.publish_many([b"x"] * 5)
        for delivery in orders.get_many(7):
            if delivery.seq_id % 2:
                delivery.ack()
    # What was delivered and not acknowledged is now delivered before.


def contents(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All that is moved, by queue: in order, with everything but seq_ids and message ids."""
    found = {}
    for reader in StoreReader(directory).readers():
        rows = []
        for row in reader.entries():
            assert row.body is not None
            message = Message(row.body, row.key, row.headers, row.properties, row.timestamp)
            envelope = make_envelope(message) if row.key or row.headers or row.properties else b""
            rows.append((row.body, row.expiry, row.timestamp, row.redelivered, envelope))
        found[reader.name] = rows
    return found
