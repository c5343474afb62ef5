"""Small stores with something of everything, and ways to damage them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import qindex
from journal.fs.files import PathLike
from tests.qindex.support import queue_directory

__all__ = [
    "PUBLISHED",
    "Content",
    "Message",
    "content_of",
    "covers",
    "every",
    "fill",
    "flip",
    "killed_store",
    "make_store",
    "rich_files",
]

Message = tuple[int, bytes, str | None, str, float, bool]
Content = dict[str, list[Message]]
"""By queue: seq_id, body, key, headers, timestamp, and whether it is redelivered."""

ENTRIES = 16
PERSISTENT = "msg_store_persistent"

_SMALL = [b"order %03d" % number for number in range(24)]
_LARGE = [
    b"%03d large " % number + bytes((number,)) * (4500 + number * 331) for number in range(12)
]
_AUDIT = [b"audit %03d" % number for number in range(30)]
_KEYED, _LAST = b"with a key", b"the last one"
_MORE = [b"more %d" % number for number in range(9)]
PUBLISHED = frozenset([*_SMALL, *_LARGE, *_AUDIT, _KEYED, _LAST, *_MORE])
"""The bodies of all messages that a store may ever have held."""


def fill(engine: qindex.Engine) -> None:
    """Two queues with small and large messages, shared ones, delivered and acknowledged ones,
    garbage in the message store, four segments each."""
    orders = engine.queue("orders", message_ttl=1e6)
    audit = engine.queue("audit")
    orders.publish_many(_SMALL)
    for number, body in enumerate(_LARGE):
        engine.publish_to(["orders", "audit"], body, key=f"k-{number}", headers={"n": number})
    audit.publish(_KEYED, key="k", headers={"a": [1, 2]}, ttl=1e6)
    audit.publish_many(_AUDIT)
    batch = orders.get_many(30)
    orders.ack_many([one for one in batch if one.seq_id % 3 == 0])
    for one in batch:
        if one.seq_id % 3 == 1:
            orders.nack(one)
    orders.flush()
    audit.ack_many(audit.get_many(4))
    audit.publish(_LAST)


def make_store(path: Path) -> Path:
    """A store that was closed in order, with all in its segment files."""
    with _open(path) as engine:
        fill(engine)
        engine.flush()
    return path


def killed_store(path: Path) -> Path:
    """A store whose process was killed: both journals hold entries."""
    work = path.with_name(path.name + "-running")
    with _open(work) as engine:
        fill(engine)
        engine.queue("orders").publish_many(_MORE)
        shutil.copytree(work, path)
    shutil.rmtree(work)
    return path


def _open(path: PathLike) -> qindex.Engine:
    engine: qindex.Engine = qindex.open(
        path, background=False, segment_entry_count=ENTRIES, store_file_bytes=1 << 15
    )
    return engine


def content_of(directory: PathLike) -> Content:
    """What an engine delivers from a copy of the store."""
    copy = Path(shutil.copytree(directory, f"{directory}-read"))
    found: Content = {}
    with qindex.open(copy, background=False) as engine:
        for name in engine.queue_names():
            batch = engine.queue(name).get_many(10_000)
            found[name] = [
                (
                    one.seq_id,
                    one.body,
                    one.key,
                    repr(one.headers),
                    one.timestamp,
                    one.redelivered,
                )
                for one in batch
            ]
    shutil.rmtree(copy)
    return found


@dataclass(frozen=True)
class RichFiles:
    """One file of each kind."""

    segment: Path
    journal: Path
    sums: Path
    seq: Path
    settings: Path
    name: Path
    records: Path
    marker: Path
    snapshot: Path
    lock: Path


def rich_files(store: Path) -> RichFiles:
    orders = queue_directory(store, "orders")
    return RichFiles(
        segment=orders / "1.idx",
        journal=orders / "journal.jif",
        sums=orders / "1.idx.sum",
        seq=orders / "qindex.seq",
        settings=orders / "qindex.settings",
        name=orders / ".queue_name",
        records=store / PERSISTENT / "1.rdq",
        marker=store / "qindex.store",
        snapshot=store / "qindex.clean",
        lock=store / "qindex.lock",
    )


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def covers(finding: qindex.Finding, path: Path, offset: int) -> bool:
    """Whether the finding names this place: it lies within it, or (a place without a length)
    right there."""
    if finding.path != str(path):
        return False
    return finding.offset <= offset < finding.offset + max(finding.length, 1)


def every(path: Path, step: int) -> Iterator[tuple[int, int]]:
    """Offsets over a whole file, each with a bit to flip."""
    size = path.stat().st_size
    for at in range(0, size, step):
        yield at, 1 << (at // step % 8)
