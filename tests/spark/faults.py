"""Faults, one of each kind, planted into healthy stores; each says what an audit must find."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import qindex
from journal.format import pack_publish
from qindex.format import layout
from qindex.format.message import Message
from qindex.format.message_record import encode_record, seal_embedded
from qindex.format.rabbitmq.names import directory_name
from qindex.format.segment import NEXT_STEP, PUBLISH_HEAD_SIZE
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from rocketstore.format.commitlog_format import MESSAGE_MAGIC
from rocketstore.format.index_format import HEADER_SIZE
from tests.spark.fleet import ROCKET_SIZES, make_plain, make_rocket, make_stored

__all__ = ["FAULTS", "Fault", "Planted"]


@dataclass(frozen=True)
class Planted:
    """What must be found: a finding of this kind, in a file whose path (relative to the store)
    starts so, at this offset (``None``: any)."""

    kind: str
    file: str
    offset: int | None = None
    cause: str = "damage"


@dataclass(frozen=True)
class Fault:
    """``make`` makes a healthy store, ``plant`` damages it."""

    make: Callable[[Path], Path]
    plant: Callable[[Path], Planted]


def _queue(root: Path, name: str) -> Path:
    return root / layout.QUEUES / directory_name("/", name)


def _flip(path: Path, at: int, mask: int = 0x55) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def _inside(root: Path, path: Path) -> str:
    return os.path.relpath(path, root)


def _drop_sums(path: Path) -> None:
    path.with_name(path.name + ".sum").unlink(missing_ok=True)


# -- queue stores ---------------------------------------------------------------------------------


def entry_checksum(root: Path) -> Planted:
    path = _queue(root, "orders") / "2.idx"
    at = path.read_bytes().index(b"order 300")
    _flip(path, at)
    _flip(path, at + 3, 0x0F)
    return Planted("checksum", _inside(root, path))


def segment_gone(root: Path) -> Planted:
    path = _queue(root, "orders") / "3.idx"
    path.unlink()
    return Planted("missing-file", _inside(root, path), 0)


def acks_added(root: Path) -> Planted:
    """Two messages less than the snapshot counts."""
    path = _queue(root, "orders") / "2.idx"
    steps = b"".join(struct.pack(">H", NEXT_STEP | rel) for rel in (5, 5, 6, 6))
    path.write_bytes(path.read_bytes() + steps)
    return Planted("count", _inside(root, path))


def seq_id_from_nowhere(root: Path) -> Planted:
    path = _queue(root, "orders") / "9.idx"
    shutil.copy(_queue(root, "orders") / "0.idx", path)
    return Planted("foreign-file", _inside(root, path))


def duplicate_msg_id(root: Path) -> Planted:
    """An entry, sound in itself, with the message id of another one of its queue."""
    path = _queue(root, "orders") / "2.idx"
    data = bytearray(path.read_bytes())
    length = len(data) // 128
    first, second = 10, 40
    msg_id = bytes(data[first * length + 2 : first * length + 18])
    at = second * length
    record = encode_record(Message(b"order %d" % (2 * 128 + second), timestamp=1))
    assert length == PUBLISH_HEAD_SIZE + len(record)
    body = b"order %d" % (2 * 128 + second)
    packed = pack_publish(2 * 128 + second, True, msg_id, 0, len(body), record)
    data[at + 2 : at + length] = seal_embedded(packed)[8:]
    path.write_bytes(data)
    _drop_sums(path)
    return Planted("duplicate-msg-id", _inside(root, path), at)


def snapshot_damaged(root: Path) -> Planted:
    _flip(root / SNAPSHOT, 20)
    return Planted("checksum", SNAPSHOT, 0)


def settings_damaged(root: Path) -> Planted:
    path = _queue(root, "audit/ü") / layout.SETTINGS
    _flip(path, 3)
    return Planted("checksum", _inside(root, path), 0)


def marker_damaged(root: Path) -> Planted:
    _flip(root / layout.MARKER, 5)
    return Planted("checksum", layout.MARKER, 0)


def name_damaged(root: Path) -> Planted:
    path = _queue(root, "orders") / layout.QUEUE_NAME
    path.write_bytes(b"no name\n")
    return Planted("name", _inside(root, path))


def foreign_file(root: Path) -> Planted:
    path = _queue(root, "orders") / "core.4711"
    path.write_bytes(b"x")
    return Planted("foreign-file", _inside(root, path))


def journal_gap(root: Path) -> Planted:
    """A store that was killed, whose journal lacks a record."""
    path = _queue(root, "orders") / "journal.jif"
    data = path.read_bytes()
    length = len(data) // 50
    assert len(data) == 50 * length
    path.write_bytes(data[: 20 * length] + data[21 * length :])
    _drop_sums(path)
    return Planted("gap", _inside(root, path), 20 * length)


def make_killed(path: Path) -> Path:
    """What a kill leaves: 50 messages in the journal of a store that was never closed."""
    live = path.with_name(path.name + "-live")
    engine = qindex.open(live, background=False)
    engine.queue("orders").publish_many([b"m%04d" % number for number in range(50)])
    shutil.copytree(live, path)
    engine.close()
    shutil.rmtree(live)
    journal = _queue(path, "orders") / "journal.jif"
    data = journal.read_bytes()
    journal.write_bytes(data[: data.rindex(b"m0049") + 5])
    _drop_sums(journal)
    return path


def stored_record(root: Path) -> Planted:
    path = root / "msg_store_persistent" / "1.rdq"
    _flip(path, 2000)
    return Planted("checksum", _inside(root, path), 0)


def entry_without_message(root: Path) -> Planted:
    (root / "msg_store_persistent" / "1.rdq").unlink()
    return Planted("entry-without-message", _inside(root, _queue(root, "big")))


def message_without_entry(root: Path) -> Planted:
    path = _queue(root, "big") / "0.idx"
    steps = b"".join(struct.pack(">H", NEXT_STEP | rel) for rel in (50, 50))
    path.write_bytes(path.read_bytes() + steps)
    return Planted("message-without-entry", "msg_store_persistent")


def refcount(root: Path) -> Planted:
    path = _queue(root, "copy") / "0.idx"
    steps = b"".join(struct.pack(">H", NEXT_STEP | rel) for rel in (19, 19))
    path.write_bytes(path.read_bytes() + steps)
    return Planted("refcount", "msg_store_persistent")


# -- RocketMQ stores ------------------------------------------------------------------------------


def _log(root: Path, number: int = 0) -> Path:
    return sorted((root / "commitlog").iterdir())[number]


def _records(path: Path) -> list[int]:
    """Where the records of a CommitLog file begin."""
    data = path.read_bytes()
    found, at = [], 0
    while struct.unpack_from(">ii", data, at)[1] == MESSAGE_MAGIC:
        found.append(at)
        at += struct.unpack_from(">i", data, at)[0]
    return found


def body_checksum(root: Path) -> Planted:
    path = _log(root)
    at = _records(path)[7]
    _flip(path, path.read_bytes().index(b"message", at))
    return Planted("checksum", _inside(root, path), at)


def record_size(root: Path) -> Planted:
    path = _log(root, 1)
    at = _records(path)[5]
    _flip(path, at)
    return Planted("record", _inside(root, path), at)


def physical_offset(root: Path) -> Planted:
    path = _log(root)
    at = _records(path)[9]
    _flip(path, at + 35)
    return Planted("record", _inside(root, path), at)


def store_time(root: Path) -> Planted:
    path = _log(root, 1)
    at = _records(path)[3]
    data = bytearray(path.read_bytes())
    data[at + 56 : at + 64] = (1).to_bytes(8, "big")
    path.write_bytes(data)
    return Planted("record", _inside(root, path), at)


def queue_offset(root: Path) -> Planted:
    """A message says that it has another place in its queue."""
    path = _log(root)
    at = _records(path)[12]
    data = bytearray(path.read_bytes())
    value = struct.unpack_from(">q", data, at + 20)[0]
    struct.pack_into(">q", data, at + 20, value + 2)
    path.write_bytes(data)
    return Planted("gap", _inside(root, path), at)


def log_file_gone(root: Path) -> Planted:
    path = _log(root, 1)
    path.unlink()
    return Planted("missing-file", _inside(root, path), 0)


def _unit_file(root: Path) -> Path:
    return sorted((root / "consumequeue" / "orders" / "0").iterdir())[0]


def unit_elsewhere(root: Path) -> Planted:
    path = _unit_file(root)
    _flip(path, 7 * 20 + 7, 0x01)
    return Planted("mismatch", _inside(root, path), 7 * 20)


def unit_of_another_message(root: Path) -> Planted:
    path = _unit_file(root)
    data = path.read_bytes()
    path.write_bytes(data[:100] + data[120:140] + data[120:])
    return Planted("mismatch", _inside(root, path), 100)


def unit_code(root: Path) -> Planted:
    path = _unit_file(root)
    _flip(path, 3 * 20 + 19)
    return Planted("mismatch", _inside(root, path), 3 * 20)


def units_cut(root: Path) -> Planted:
    path = sorted((root / "consumequeue" / "orders" / "0").iterdir())[-1]
    data = path.read_bytes()
    used = len(data.rstrip(b"\0")) // 20
    at = (used - 1) * 20
    path.write_bytes(data[:at] + bytes(len(data) - at))
    return Planted("mismatch", _inside(root, path), at)


def _index_file(root: Path) -> Path:
    return sorted((root / "index").iterdir())[1]


def _entry(number: int) -> int:
    return HEADER_SIZE + 4 * int(ROCKET_SIZES["index_slots"]) + 20 * number


def index_entry(root: Path) -> Planted:
    path = _index_file(root)
    _flip(path, _entry(9) + 11, 0x03)
    return Planted("mismatch", _inside(root, path), 0)


def index_hash(root: Path) -> Planted:
    path = _index_file(root)
    _flip(path, _entry(11) + 2)
    return Planted("mismatch", _inside(root, path), 0)


def index_count(root: Path) -> Planted:
    path = _index_file(root)
    _flip(path, 35, 0x01)
    return Planted("mismatch", _inside(root, path), 0)


def index_begin(root: Path) -> Planted:
    path = _index_file(root)
    _flip(path, 23, 0x01)
    return Planted("mismatch", _inside(root, path), 0)


def index_slot(root: Path) -> Planted:
    path = _index_file(root)
    data = bytearray(path.read_bytes())
    slot = next(at for at in range(HEADER_SIZE, _entry(0), 4) if any(data[at : at + 4]))
    data[slot : slot + 4] = (1).to_bytes(4, "big")
    path.write_bytes(data)
    return Planted("mismatch", _inside(root, path))


def index_gone(root: Path) -> Planted:
    path = sorted((root / "index").iterdir())[-1]
    path.unlink()
    return Planted("mismatch", "index", 0, "crash")


def rocket_stranger(root: Path) -> Planted:
    path = root / "consumequeue" / "orders" / "note.txt"
    path.write_text("x")
    return Planted("foreign-file", _inside(root, path), 0)


_PLAIN = (
    entry_checksum,
    segment_gone,
    acks_added,
    seq_id_from_nowhere,
    duplicate_msg_id,
    snapshot_damaged,
    settings_damaged,
    marker_damaged,
    name_damaged,
    foreign_file,
)
_STORED = (stored_record, entry_without_message, message_without_entry, refcount)
_ROCKET = (
    body_checksum,
    record_size,
    physical_offset,
    store_time,
    queue_offset,
    log_file_gone,
    unit_elsewhere,
    unit_of_another_message,
    unit_code,
    units_cut,
    index_entry,
    index_hash,
    index_count,
    index_begin,
    index_slot,
    index_gone,
    rocket_stranger,
)

FAULTS: dict[str, Fault] = {
    **{plant.__name__: Fault(make_plain, plant) for plant in _PLAIN},
    **{plant.__name__: Fault(make_stored, plant) for plant in _STORED},
    **{plant.__name__: Fault(make_rocket, plant) for plant in _ROCKET},
    "journal_gap": Fault(make_killed, journal_gap),
}
