"""A fleet of small stores of every kind, healthy, for jobs to work on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import qindex
import rocketstore
from tests.golden import golden, rocket_golden

__all__ = ["EMBEDDED", "LARGE", "make_fleet", "make_plain", "make_rocket", "make_stored"]

EMBEDDED = 600
LARGE = 20_000
"""Bytes of a body that goes to the message store."""
ROCKET_SIZES: dict[str, Any] = {
    "commitlog_file_size": 32_768,
    "consumequeue_file_size": 800,
    "index_slots": 50,
    "index_entries": 120,
}


def make_plain(path: Path, *, count: int = EMBEDDED, segment: int = 128) -> Path:
    """Embedded messages in two queues, some delivered, some acknowledged, flushed segments."""
    with qindex.open(path, segment_entry_count=segment, background=False) as engine:
        orders = engine.queue("orders")
        orders.publish_many([b"order %d" % number for number in range(count)])
        batch = orders.get_many(50)
        orders.ack_many(batch[:20])
        audit = engine.queue("audit/ü", message_ttl=86_400.0)
        for number in range(40):
            audit.publish(
                b"entry %d" % number,
                key=f"k{number % 7}",
                headers={"n": number, "raw": b"\x00\xff", "deep": {"a": [1, 2.5, None, True]}},
                properties={"content_type": "text/plain"},
                persistent=number % 5 != 0,
                ttl=3600.0 if number % 3 == 0 else None,
            )
        engine.flush()
    return path


def make_stored(path: Path, *, count: int = 60, compact: bool = False) -> Path:
    """Large messages, some in two queues, some acknowledged; two files in the message store."""
    with qindex.open(path, background=False, store_file_bytes=1 << 19) as engine:
        names = ["big", "copy"]
        for number in range(count):
            body = b"%06d" % number + os.urandom(LARGE)
            if number % 3:
                engine.queue("big").publish(body, key=f"b{number}")
            else:
                engine.publish_to(names, body, key=f"b{number}", headers={"n": number})
        engine.queue("big").ack_many(engine.queue("big").get_many(count // 3))
        engine.flush()
        if compact:
            engine.compact()
    return path


def make_drained(path: Path) -> Path:
    """Everything acknowledged, messages of the message store too."""
    with qindex.open(path, background=False) as engine:
        queue = engine.queue("drained")
        queue.publish_many([b"x" * 50] * 300)
        queue.publish(b"y" * LARGE)
        while batch := queue.get_many(100):
            queue.ack_many(batch)
    return path


def make_rocket(path: Path, *, count: int = 700) -> Path:
    """A RocketMQ store with several topics, queues, keys, delays, transactions, rolled files."""
    with rocketstore.open(path, background=False, **ROCKET_SIZES) as store:
        for number in range(count):
            sys_flag = {17: 4, 18: 8, 19: 12}.get(number % 40, 0)
            store.put(
                ("orders", "audit")[number % 2],
                b"message %d " % number * (1 + number % 5),
                queue_id=number % 3,
                keys=f"k{number} all" if number % 4 else None,
                tags=f"t{number % 3}" if number % 2 else None,
                properties={"colour": "blue"},
                delay=2 if number % 50 == 7 else None,
                sys_flag=sys_flag,
            )
    return path


def make_fleet(root: Path) -> dict[str, Path]:
    """About ten stores below ``root``, by name."""
    stores = {
        "plain": make_plain(root / "a" / "plain"),
        "stored": make_stored(root / "a" / "stored"),
        "compacted": make_stored(root / "a" / "compacted", compact=True),
        "drained": make_drained(root / "b" / "drained"),
        "fresh": root / "b" / "fresh",
        "rocket": make_rocket(root / "c" / "rocket"),
    }
    qindex.open(stores["fresh"], background=False).close()
    for name in ("a", "d1", "e1", "g1"):
        stores[f"rabbit-{name}"] = root / "rabbit" / name
        shutil.copytree(golden(name).vhost_dir, stores[f"rabbit-{name}"])
    for name, part in (("gen", "store"), ("delay", "store"), ("expire", "after")):
        stores[f"golden-{name}"] = root / "golden" / name
        shutil.copytree(rocket_golden(name) / part, stores[f"golden-{name}"])
    return stores
