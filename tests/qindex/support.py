"""What the tests of the engine share: opening, copying as a crash would, files made by hand."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import qindex
from journal.format import ACK, DELIVER, pack_action, pack_publish
from journal.fs.files import PathLike, RealFileSystem
from qindex.engine.opening import open_store
from qindex.format.message import Message
from qindex.format.message_record import encode_record, seal_embedded
from qindex.format.rabbitmq.names import directory_name
from qindex.format.segment import NEXT_STEP, PERSISTENT, PUBLISH, PUBLISH_HEAD
from tests.waiting import WAIT, wait_until

__all__ = [
    "WAIT",
    "CountingFileSystem",
    "GateFileSystem",
    "OtherBootFileSystem",
    "copy_live",
    "drain",
    "journal_bytes",
    "open_quietly",
    "publish_record",
    "queue_directory",
    "segment_bytes",
    "wait_until",
]


class CountingFileSystem(RealFileSystem):
    """The real file system; ``calls`` counts the syncs of files and of directories."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.fdatasync = self._counted("fdatasync", RealFileSystem.fdatasync)  # type: ignore[assignment]
        self.sync_dir = self._counted("sync_dir", RealFileSystem.sync_dir)  # type: ignore[method-assign]

    def _counted(self, name: str, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted(what: Any) -> None:
            self.calls[name] += 1
            call(what)

        return counted


class OtherBootFileSystem(RealFileSystem):
    """The real file system in another run of the operating system."""

    def __init__(self, boot: bytes = b"another boot") -> None:
        self.boot_id = lambda: boot  # type: ignore[method-assign]


class GateFileSystem(RealFileSystem):
    """The real file system; ``before`` is called with each operation's name and path or fd."""

    def __init__(self, before: Callable[[str, object], None]) -> None:
        for name in ("open", "write", "pwrite", "fdatasync", "unlink", "rename", "sync_dir"):
            setattr(self, name, self._gated(name, getattr(RealFileSystem, name), before))

    @staticmethod
    def _gated(
        name: str, call: Callable[..., Any], before: Callable[[str, object], None]
    ) -> Callable[..., Any]:
        def gated(*arguments: Any) -> Any:
            before(name, arguments[0])
            return call(*arguments)

        return gated


def open_quietly(directory: PathLike, **options: Any) -> qindex.Engine:
    """Open without a background thread, with small segments: flushes come when a test says."""
    settings: dict[str, Any] = {"background": False, "segment_entry_count": 8}
    engine: qindex.Engine = open_store(directory, **{**settings, **options})
    return engine


def copy_live(source: PathLike, target: PathLike) -> Path:
    """Copy a store as it is now: what the death of its process would leave."""
    shutil.copytree(source, target)
    return Path(target)


def queue_directory(store: PathLike, name: str) -> Path:
    return Path(os.fspath(store)) / "queues" / directory_name("/", name.encode())


def drain(queue: qindex.Queue) -> list[tuple[int, bytes, bool]]:
    """Take and acknowledge all that is ready: seq_id, body, redelivered."""
    found: list[tuple[int, bytes, bool]] = []
    while True:
        batch = queue.get_many(100)
        if not batch:
            return found
        found += [(one.seq_id, one.body, one.redelivered) for one in batch]
        queue.ack_many(batch)


def publish_record(seq_id: int, body: bytes, *, persistent: bool = True) -> bytes:
    """A sound journal publish record, as an engine would write it."""
    msg_id = b"testtest" + seq_id.to_bytes(8, "big")
    record = encode_record(Message(body, timestamp=1_000_000_000))
    return seal_embedded(pack_publish(seq_id, persistent, msg_id, 0, len(body), record))


def journal_bytes(seq_id: int, body: bytes, actions: str) -> bytes:
    """The journal records of one entry: ``actions`` of ``p`` (publish), ``d``, ``a``."""
    records = {
        "p": publish_record(seq_id, body),
        "d": pack_action(DELIVER, seq_id),
        "a": pack_action(ACK, seq_id),
    }
    return b"".join(records[action] for action in actions)


def pack_segment_publish(
    rel: int, persistent: bool, msg_id: bytes, expiry: int, size: int, record: bytes
) -> bytes:
    """A publish record as a segment has it (see journal.format.pack_publish)."""
    head = PUBLISH | (PERSISTENT if persistent else 0) | rel
    return PUBLISH_HEAD.pack(head, msg_id, expiry, size, len(record)) + record


def pack_step(rel: int) -> bytes:
    """A next-step record: delivered, or (the second of the rel) acknowledged."""
    return (NEXT_STEP | rel).to_bytes(2, "big")


def segment_bytes(seq_id: int, body: bytes, actions: str, entry_count: int) -> bytes:
    """The same as a segment file has them: a publish record, and a step for each of the rest."""
    rel = seq_id % entry_count
    head = (0xC000 | rel).to_bytes(2, "big")
    records = {
        "p": head + publish_record(seq_id, body)[8:],
        "d": pack_step(rel),
        "a": pack_step(rel),
    }
    return b"".join(records[action] for action in actions)
