"""The stores that are tampered with, on a real disk: ours, a RabbitMQ node's, RocketMQ's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import qindex
import rocketstore
from qindex.format import layout
from qindex.format.headers import DUE_FILE, KEYS_FILE
from qindex.format.transactions import pack_batch, pack_boot, pack_committed
from tests.golden import golden

__all__ = ["KINDS", "OURS", "ROCKET", "build", "names_of"]

OURS = ("killed", "closed")
ROCKET = ("rocket killed", "rocket closed")
_OPTIONS = {
    "background": False,
    "segment_entry_count": 16,
    "store_file_bytes": 1 << 15,
}


def _fill(path: Path) -> qindex.Engine:
    """Open a store with something of everything: embedded and stored messages, segments, a journal
    with checksums, settings, delivery counts."""
    engine: qindex.Engine = qindex.open(path, **_OPTIONS)  # type: ignore[call-overload]
    orders = engine.queue("orders", delivery_limit=5, dead_letter="failed")
    engine.queue("failed")
    orders.publish_many([b"order %03d" % number for number in range(24)])
    for number in range(6):
        engine.publish_to(["orders", "failed"], bytes((number,)) * 6000, key=f"k{number}")
    orders.publish(b"later, and once", delay=3600, unique="bill 7")
    with engine.transaction() as together:
        together.publish("orders", b"with another")
        together.publish("failed", b"with the first")
    for one in orders.get_many(10):
        if one.seq_id % 2:
            one.nack()
        else:
            one.ack()
    for _ in range(2):
        orders.nack(orders.get_many(1)[0])
    orders.flush()
    orders.publish_many([b"more %03d" % number for number in range(5)])
    engine.sync()
    return engine


def _killed(path: Path) -> None:
    work = path.with_name(path.name + "-running")
    engine = _fill(work)
    shutil.copytree(work, path)
    engine.close()
    shutil.rmtree(work)
    move = pack_batch(1, "failed", 0, [bytes(16)])
    move += pack_committed(1, pack_boot(b""), [("orders", [1])])
    (path / layout.TRANSACTIONS).write_bytes(move)


def _closed(path: Path) -> None:
    _fill(path).close()


def _node(path: Path) -> None:
    shutil.copytree(golden("e1_fanout_clean").vhost_dir, path)
    for folder, _, names in os.walk(path):
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o644)


def _rocket(path: Path, *, close: bool) -> None:
    work = path if close else path.with_name(path.name + "-running")
    store = rocketstore.open(
        work,
        commitlog_file_size=1 << 16,
        consumequeue_file_size=20 * 100,
        index_slots=50,
        index_entries=100,
        background=False,
    )
    for number in range(40):
        store.put("T", b"body %d" % number, keys=f"k{number}", queue_id=number % 2)
    store.commit_offset("group", "T", 0, 3)
    store.checkpoint()
    store.put("T", b"the last one")
    if not close:
        shutil.copytree(work, path)
    store.close()
    if not close:
        shutil.rmtree(work)


KINDS: dict[str, Callable[[Path], None]] = {
    "killed": _killed,
    "closed": _closed,
    "node": _node,
    "rocket killed": lambda path: _rocket(path, close=False),
    "rocket closed": lambda path: _rocket(path, close=True),
}


def build(kind: str, path: Path) -> Path:
    """Make a store of that kind at ``path``."""
    KINDS[kind](path)
    return path


def names_of(kind: str, store: Path) -> tuple[list[str], list[str]]:
    """Give the files and the directories that a store of this kind has, or may have for a while,
    relative to it."""
    files, directories = [], []
    for folder, inner, names in os.walk(store):
        where = os.path.relpath(folder, store)
        files += [os.path.normpath(os.path.join(where, name)) for name in names]
        directories += [os.path.normpath(os.path.join(where, name)) for name in inner]
    if kind in OURS:
        queues = [one for one in directories if one.startswith("queues/")]
        directories += [one + layout.DELETED_SUFFIX for one in queues]
        files += [
            "qindex.import",
            "qindex.import.tmp",
            "qindex.store.tmp",
            "qindex.clean.tmp",
            "qindex.clean",
            layout.TRANSACTIONS,
            *layout.SERVER_FILES,
        ]
        files += [one + "/journal.jif.new" for one in queues]
        files += [f"{one}/{name}" for one in queues for name in (DUE_FILE, KEYS_FILE)]
        files += [one + "/1.idx.tmp" for one in queues] + [one + "/7.idx" for one in queues]
        files += ["msg_store_persistent/9.rdq", "msg_store_persistent/9.rdq.tmp"]
        directories += ["quarantine"]
    if kind in ROCKET:
        files += ["abort", "checkpoint.tmp", "config/consumerOffset.json.bak"]
        directories += ["quarantine"]
    return sorted(set(files)), sorted(set(directories))
