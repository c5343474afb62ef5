"""Print one file of a store: what it holds, and where it stops making sense."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from journal.errors import NotAStoreError, UsageError
from journal.files import REAL
from rocketstore.checkpoint_format import CHECKPOINT_SIZE, Checkpoint
from rocketstore.commitlog_format import BLANK
from rocketstore.consumequeue_format import UNIT_SIZE, count_valid, parse_units
from rocketstore.derived import load_derived
from rocketstore.index_file import IndexFile
from rocketstore.index_format import DEFAULT_ENTRIES, DEFAULT_SLOTS, file_size, find_geometry
from rocketstore.message import StoredMessage
from rocketstore.offsets import parse_fastjson
from rocketstore.scan import Stop, scan_records

__all__ = ["inspect_file"]

Row = dict[str, Any]


def inspect_file(
    path: str, *, slots: int | None = None, entries: int | None = None
) -> Iterator[Row]:
    """Rows of one file, known by its directory and name. The last row of a damaged file has
    ``"damage"``. Raises :class:`UsageError` for a file of no known kind."""
    if not os.path.exists(path):
        raise NotAStoreError(f"{path}: there is no such file")
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a directory, a file is right")
    name = os.path.basename(path)
    if name == "checkpoint":
        return _checkpoint(path)
    if name == "rocketstore.json":
        return _derived(path)
    if name.endswith((".json", ".bak")):
        return _json(path)
    if not (name.isascii() and name.isdigit()):
        raise UsageError(f"{path}: is no file of a RocketMQ store")
    if len(name) == 17:
        return _index(path, slots, entries)
    if len(name) != 20:
        raise UsageError(f"{path}: is no file of a RocketMQ store")
    parents = Path(path).resolve().parts
    if "consumequeue" in parents:
        return _consume_queue(path, int(name))
    return _commitlog(path, int(name))


def _commitlog(path: str, start: int) -> Iterator[Row]:
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            yield {"kind": "commitlog", "damage": "the file is empty"}
            return
        view = REAL.mmap(fd, size, False)
    finally:
        os.close(fd)
    position = 0
    while True:
        records, position, stop = scan_records(
            view, start, position, size, check_crc=True, limit=256
        )
        for at, length in zip(records.positions.tolist(), records.sizes.tolist(), strict=True):
            message = StoredMessage(view[at : at + length], start + at)
            yield {"kind": "record", "position": at, **message.to_dict()}
        if stop is not Stop.LIMIT:
            break
    yield _end_of_log(view, position, size, stop)


def _end_of_log(view: mmap.mmap, position: int, size: int, stop: Stop) -> Row:
    if stop is Stop.BLANK:
        return {"kind": "blank", "position": position, "size": BLANK.unpack_from(view, position)[0]}
    row: Row = {"kind": "end", "position": position, "size": size}
    if stop is Stop.BAD and view[position : position + 4] != bytes(4):
        row["damage"] = "no sound record stands here"
    return row


def _consume_queue(path: str, start: int) -> Iterator[Row]:
    data = Path(path).read_bytes()
    units = parse_units(data)
    valid = count_valid(units)
    first = start // UNIT_SIZE
    for number, unit in enumerate(units[:valid].tolist()):
        offset, size, code = (int(value) for value in unit)
        yield {
            "kind": "unit",
            "queue_offset": first + number,
            "offset": offset,
            "size": size,
            "tags_code": code,
            "pre_blank": size == 0x7FFFFFFF and offset == 0,
        }
    row: Row = {"kind": "end", "queue_offset": first + valid, "capacity": first + len(units)}
    if data[valid * UNIT_SIZE :].strip(b"\0"):
        row["damage"] = "bytes that are no unit follow"
    yield row


def _index(path: str, slots: int | None, entries: int | None) -> Iterator[Row]:
    if slots is None or entries is None:
        slots, entries = _geometry(path)
    if os.path.getsize(path) != file_size(slots, entries):
        yield {"kind": "index", "damage": f"not {file_size(slots, entries)} bytes long"}
        return
    file = IndexFile(REAL, path, slots, entries, writable=False)
    file.load()
    header = file.header
    yield {
        "kind": "header",
        "begin_timestamp": header.begin_timestamp,
        "end_timestamp": header.end_timestamp,
        "begin_offset": header.begin_offset,
        "end_offset": header.end_offset,
        "used_slots": header.used_slots,
        "index_count": header.count,
        "slots": slots,
        "entries": entries,
    }
    try:
        for number, entry in enumerate(file.entries_from(1, header.count - 1).tolist(), 1):
            key_hash, offset, seconds, previous = (int(value) for value in entry)
            yield {
                "kind": "entry",
                "number": number,
                "key_hash": key_hash,
                "offset": offset,
                "seconds": seconds,
                "previous": previous,
            }
        if not file.chains_are_sound():
            yield {"kind": "end", "damage": "slots and links do not agree with the entries"}
    finally:
        file.close()


def _geometry(path: str) -> tuple[int, int]:
    if os.path.getsize(path) == file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        return DEFAULT_SLOTS, DEFAULT_ENTRIES
    found = find_geometry(Path(path).read_bytes()) if os.path.getsize(path) >= 40 else None
    if found is None:
        raise UsageError(f"{path}: give its slots and entries, they can't be told from the file")
    return found


def _checkpoint(path: str) -> Iterator[Row]:
    data = Path(path).read_bytes()
    found = Checkpoint.parse(data)
    row: Row = {
        "kind": "checkpoint",
        "physical": found.physical,
        "logical": found.logical,
        "index": found.index,
    }
    if len(data) != CHECKPOINT_SIZE:
        row["damage"] = f"{len(data)} bytes long, not {CHECKPOINT_SIZE}"
    yield row


def _derived(path: str) -> Iterator[Row]:
    found = load_derived(REAL, path)
    if found is None:
        yield {"kind": "derived", "damage": "its checksum does not match"}
        return
    yield {
        "kind": "derived",
        "offset": found.offset,
        "queues": len(found.queues),
        "index_files": len(found.index),
        "sizes": list(found.sizes),
    }


def _json(path: str) -> Iterator[Row]:
    try:
        content = parse_fastjson(Path(path).read_text())
    except ValueError as error:
        yield {"kind": "json", "damage": str(error)}
        return
    yield {"kind": "json", "content": content}
