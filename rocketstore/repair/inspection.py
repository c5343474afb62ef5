"""Print one file of a store: its records, and where it stops making sense."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from journal.errors import NotAStoreError, UsageError
from journal.fs.files import REAL, FileSystem, read_file
from rocketstore.format.checkpoint_format import CHECKPOINT_SIZE, Checkpoint
from rocketstore.format.commitlog_format import BLANK_MAGIC, MESSAGE_MAGIC, START
from rocketstore.format.consumequeue_format import UNIT_SIZE, count_valid, parse_units
from rocketstore.format.index_format import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    HEADER_SIZE,
    file_size,
    find_geometry,
)
from rocketstore.format.message import StoredMessage
from rocketstore.index.index_file import IndexFile
from rocketstore.log.dispatch_note import load_note
from rocketstore.log.filler_format import is_filler
from rocketstore.log.mapped_files import MappedFile, Read
from rocketstore.log.scan import Stop, scan_file
from rocketstore.queues.offsets import parse_fastjson

Row = dict[str, Any]


def inspect_file(
    path: str,
    *,
    slots: int | None = None,
    entries: int | None = None,
    fs: FileSystem = REAL,
) -> Iterator[Row]:
    """Rows of one file, known by its directory and name. The last row of a damaged file has
    ``"damage"``. Raises :class:`UsageError` for a file of no known kind,
    :class:`NotAStoreError` when there is none, and :class:`OSError`."""
    try:
        found = fs.stat(path)
    except FileNotFoundError:
        raise NotAStoreError(f"{path}: there is no such file") from None
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{path}: is a directory, a file is right")
    name = os.path.basename(path)
    if name == "checkpoint":
        return _checkpoint(fs, path)
    if name == "rocketstore.json":
        return _dispatch_note(fs, path)
    if name.endswith((".json", ".bak")):
        return _json(fs, path)
    if not (name.isascii() and name.isdigit() and len(name) in (17, 20)):
        raise UsageError(f"{path}: is not a file of a RocketMQ store")
    if len(name) == 17:
        return _index(fs, path, found.st_size, slots, entries)
    if _is_of_a_queue(fs, path):
        return _consume_queue(fs, path, int(name))
    return _commitlog(fs, path, int(name))


def _is_of_a_queue(fs: FileSystem, path: str) -> bool:
    """Tell a ConsumeQueue's file from a CommitLog's: by the directory or, where the file is
    somewhere else, by what it holds."""
    parts = Path(path).resolve().parts
    if "consumequeue" in parts or "commitlog" in parts:
        return "consumequeue" in parts
    first = read_file(fs, path, UNIT_SIZE)
    if len(first) < UNIT_SIZE or fs.stat(path).st_size % UNIT_SIZE:
        return False
    size, magic = START.unpack_from(first)
    if magic in (MESSAGE_MAGIC, BLANK_MAGIC):
        return False
    return bool(size or magic or any(first))


@contextmanager
def _opened(fs: FileSystem, path: str) -> Iterator[MappedFile]:
    file = MappedFile(fs, path, 0, fs.stat(path).st_size, writable=False)
    try:
        yield file
    finally:
        file.close()


def _commitlog(fs: FileSystem, path: str, start: int) -> Iterator[Row]:
    with _opened(fs, path) as file:
        length = file.size
        if not length:
            yield {"kind": "commitlog", "damage": "the file is empty"}
            return
        position = 0
        while True:
            records, position, stop = scan_file(
                file.read, start, position, length, check_crc=True, limit=256
            )
            topics = records.topics()
            for number, at in enumerate(records.positions.tolist()):
                size, flags = int(records.sizes[number]), int(records.sys_flags[number])
                place = at - records.origin
                message = StoredMessage(records.data[place : place + size], start + at)
                filler = is_filler(topics[number], flags, size)
                kind = "filler" if filler else "record"
                yield {"kind": kind, "position": at, **message.to_dict()}
            if stop is not Stop.LIMIT:
                break
        yield _end_of_log(file.read, position, length, stop)


def _end_of_log(read: Read, position: int, size: int, stop: Stop) -> Row:
    start = read(position, START.size)
    if stop is Stop.BLANK and len(start) == START.size:
        return {"kind": "blank", "position": position, "size": START.unpack(start)[0]}
    row: Row = {"kind": "end", "position": position, "size": size}
    if stop is Stop.BAD and start[:4] != bytes(4):
        row["damage"] = "there is no sound record here"
    return row


def _consume_queue(fs: FileSystem, path: str, start: int) -> Iterator[Row]:
    data = read_file(fs, path)
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
        row["damage"] = "bytes that are not a unit follow"
    yield row


def _index(
    fs: FileSystem, path: str, length: int, slots: int | None, entries: int | None
) -> Iterator[Row]:
    if slots is None or entries is None:
        slots, entries = _geometry(fs, path, length)
    if length != file_size(slots, entries):
        yield {"kind": "index", "damage": f"not {file_size(slots, entries)} bytes long"}
        return
    file = IndexFile(fs, path, slots, entries, writable=False)
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


def _geometry(fs: FileSystem, path: str, length: int) -> tuple[int, int]:
    if length == file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        return DEFAULT_SLOTS, DEFAULT_ENTRIES
    with _opened(fs, path) as file:
        found = find_geometry(file.read, length) if length >= HEADER_SIZE else None
    if found is None:
        raise UsageError(f"{path}: give its slots and entries, they can't be told from the file")
    return found


def _checkpoint(fs: FileSystem, path: str) -> Iterator[Row]:
    data = read_file(fs, path)
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


def _dispatch_note(fs: FileSystem, path: str) -> Iterator[Row]:
    found = load_note(fs, path)
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


def _json(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        content = parse_fastjson(read_file(fs, path).decode())
    except ValueError as error:
        yield {"kind": "json", "damage": str(error)}
        return
    yield {"kind": "json", "content": content}
