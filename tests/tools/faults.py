"""Faults to plant in a store of :mod:`tests.tools.stores`, and what is to be found of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgpack
from xxhash import xxh3_64_digest

from journal.findings import Kind
from journal.fs.files import REAL
from msgstore.scan import scan_file
from qindex.format.rabbitmq.names import directory_name
from qindex.index.messages import check_record
from tests.qindex.support import queue_directory
from tests.tools.stores import PERSISTENT, flip, rich_files

__all__ = ["FAULTS", "Fault"]

State = Literal["clean", "killed"]
LOST_BY_SWAP = 22
"""Both segments hold what others should: their checksums cover the seq_ids."""
BOTH: tuple[State, ...] = ("clean", "killed")


@dataclass(frozen=True)
class Fault:
    """``plant`` damages the store and gives the file that is to be named; ``kind``: how.

    ``offset``: where in it, ``None`` where a test need not say. ``lost``: messages that can't be
    saved any more, of both queues. ``incomplete``: something else is (a name, settings);
    ``is_note``: a crash may have done it. ``states``: without the snapshot of a store that was
    closed, some can't be told.
    """

    name: str
    plant: Callable[[Path], Path]
    kind: Kind
    offset: int | None = 0
    lost: int = 0
    states: tuple[State, ...] = BOTH
    incomplete: bool = False
    is_note: bool = False

    @property
    def complete(self) -> bool:
        return not self.lost and not self.incomplete


def _unlink(which: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def plant(store: Path) -> Path:
        path = which(store)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        return path

    return plant


def _cut(which: Callable[[Path], Path], by: int) -> Callable[[Path], Path]:
    def plant(store: Path) -> Path:
        path = which(store)
        path.write_bytes(path.read_bytes()[:-by])
        return path

    return plant


def _put(inner: str, data: bytes = b"what is this") -> Callable[[Path], Path]:
    def plant(store: Path) -> Path:
        path = store / inner.replace("ORDERS", directory_name("/", "orders"))
        path.write_bytes(data)
        return path

    return plant


def _flip(which: Callable[[Path], Path], at: int) -> Callable[[Path], Path]:
    def plant(store: Path) -> Path:
        flip(which(store), at)
        return which(store)

    return plant


def _zero(which: Callable[[Path], Path], at: int, length: int = 512) -> Callable[[Path], Path]:
    def plant(store: Path) -> Path:
        path = which(store)
        data = bytearray(path.read_bytes())
        data[at : at + length] = bytes(length)
        path.write_bytes(data)
        return path

    return plant


def _copy(source: Callable[[Path], Path], name: str) -> Callable[[Path], Path]:
    def plant(store: Path) -> Path:
        path = source(store)
        return Path(shutil.copy(path, path.with_name(name)))

    return plant


def _swap(one: Callable[[Path], Path], other: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def plant(store: Path) -> Path:
        first, second = one(store), other(store)
        data = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)
        return first

    return plant


def _without_second_record(store: Path) -> Path:
    """Cut a record out of a file of the message store; the entries that name it stay."""
    path = _records(store)
    data = path.read_bytes()
    scan = scan_file(REAL, path, check=check_record)
    _, offset, total = scan.records[1]
    path.write_bytes(data[:offset] + data[offset + total :])
    return queue_directory(store, "orders") / "2.idx"


def _count_one_more(store: Path) -> Path:
    """Let the snapshot say that a segment has one message more than it has."""
    path = rich_files(store).snapshot
    value = msgpack.unpackb(path.read_bytes()[:-8])
    for name, _, segments in value["queues"]:
        if name == queue_directory(store, "orders").name:
            segments[1][1] += 1
    packed = msgpack.packb(value)
    path.write_bytes(packed + xxh3_64_digest(packed))
    return rich_files(store).segment


def _both_without_entries(store: Path) -> Path:
    """Remove each segment that has an entry of a message in the message store."""
    for name in ("orders", "audit"):
        for path in queue_directory(store, name).glob("[0-9].idx"):
            path.unlink()
    return _records(store)


def _one_without_entries(store: Path) -> Path:
    """Remove a segment of one of the queues that share messages."""
    _unlink(_audit("0.idx"))(store)
    return _records(store)


def _first_segment(store: Path) -> Path:
    return rich_files(store).segment.with_name("0.idx")


def _segment(store: Path) -> Path:
    return rich_files(store).segment


def _records(store: Path) -> Path:
    return rich_files(store).records


def _of(name: str) -> Callable[[Path], Path]:
    def which(store: Path) -> Path:
        path: Path = getattr(rich_files(store), name)
        return path

    return which


def _audit(inner: str) -> Callable[[Path], Path]:
    return lambda store: queue_directory(store, "audit") / inner


FAULTS = [
    Fault("missing-rdq", _unlink(_records), Kind.MISSING_FILE, lost=10, states=("clean",)),
    Fault("missing-idx", _unlink(_segment), Kind.MISSING_FILE, lost=12),
    Fault("missing-queue", _unlink(_audit("")), Kind.MISSING_FILE, lost=40, states=("clean",)),
    Fault("missing-marker", _unlink(_of("marker")), Kind.MISSING_FILE),
    Fault("missing-name", _unlink(_of("name")), Kind.MISSING_FILE, incomplete=True),
    Fault("missing-seq", _unlink(_of("seq")), Kind.MISSING_FILE),
    Fault("entry-without-message", _without_second_record, Kind.ENTRY_WITHOUT_MESSAGE, lost=2),
    Fault(
        "message-without-entry",
        _both_without_entries,
        Kind.MESSAGE_WITHOUT_ENTRY,
        lost=66,
        states=("clean",),
    ),
    Fault("refcount", _one_without_entries, Kind.REFCOUNT, lost=12, states=("clean",)),
    Fault("count", _count_one_more, Kind.COUNT, states=("clean",), incomplete=True),
    Fault("cut-idx", _cut(_segment, 3), Kind.TORN, 629, incomplete=True),
    Fault("cut-rdq", _cut(_records, 100), Kind.TORN, None, lost=2),
    Fault("cut-sums", _cut(_of("sums"), 5), Kind.TORN, 24, is_note=True),
    Fault("cut-seq", _cut(_of("seq"), 7), Kind.TORN, 160, states=("clean",)),
    Fault("torn-seq", _cut(_of("seq"), 7), Kind.TORN, 160, states=("killed",), is_note=True),
    Fault("cut-marker", _cut(_of("marker"), 4), Kind.CHECKSUM),
    Fault("cut-snapshot", _cut(_of("snapshot"), 4), Kind.CHECKSUM, states=("clean",)),
    Fault("cut-settings", _cut(_of("settings"), 1), Kind.CHECKSUM, incomplete=True),
    Fault("zeros-in-rdq", _zero(_records, 7168), Kind.CHECKSUM, 6884, lost=2),
    Fault("zeros-in-idx", _zero(_segment, 0, 60), Kind.RECORD, lost=1),
    Fault("zero-marker", _zero(_of("marker"), 0, 92), Kind.CHECKSUM),
    Fault("copied-rdq", _copy(_records, "9.rdq"), Kind.DUPLICATE_FILE),
    Fault("copied-idx", _copy(_segment, "9.idx"), Kind.RECORD, incomplete=True),
    Fault("swapped-idx", _swap(_segment, _first_segment), Kind.RECORD, None, lost=LOST_BY_SWAP),
    Fault("flip-idx", _flip(_segment, 40), Kind.CORRECTED, 40),
    Fault("flip-step", _flip(_segment, 631), Kind.CORRECTED, 631),
    Fault("flip-rdq", _flip(_records, 9000), Kind.CHECKSUM, 6884, lost=2),
    Fault("flip-seq", _flip(_of("seq"), 9), Kind.CORRECTED, 9),
    Fault("flip-settings", _flip(_of("settings"), 9), Kind.CHECKSUM, incomplete=True),
    Fault("flip-name", _flip(_of("name"), 9), Kind.NAME),
    Fault("flip-lock", _flip(_of("lock"), 0), Kind.RECORD),
    Fault("foreign-in-root", _put("notes.txt"), Kind.FOREIGN_FILE),
    Fault("foreign-queue", _put("queues/notes.txt"), Kind.FOREIGN_FILE),
    Fault("foreign-in-queue", _put("queues/ORDERS/00.idx"), Kind.FOREIGN_FILE),
    Fault("foreign-in-store", _put(f"{PERSISTENT}/1.rdq.bak"), Kind.FOREIGN_FILE),
]
