"""Our note of a checkpoint: ConsumeQueues and IndexFiles are durable up to an offset of the log.

RocketMQ's checkpoint says it in timestamps and can run ahead of the disk. This file says it in
offsets: up to ``offset`` the log was on disk, each queue held the units it names, each index file
the entries it names. It is written only after all that was synced, and replaced at once, so open
need only read the log from there on. A store without it (RocketMQ's own) is read whole once.

``config/rocketstore.json``, which RocketMQ ignores: one JSON object and its CRC.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from journal.fs.files import FileSystem, read_optional, replace_file
from rocketstore.log.dispatch import QueueKey

_VERSION = 1


@dataclass(slots=True)
class DispatchNote:
    """``last`` is offset, size and CRC-32 of the last record before ``offset`` (zeros if none):
    it identifies the log. ``queues`` gives the min position and
    max unit of each queue; ``index`` name, begin and end timestamp, begin and end offset, used
    slots and count of each index file. ``boot`` names the run of the operating system. ``sizes``
    are the bytes of a log file and of a queue file, and the slots and entries of an index file.
    ``taken`` names the files that another program had taken away under the open store.
    ``sizes_only``: queues and index are being exchanged, and nothing is said of them."""

    offset: int
    boot: str
    last: tuple[int, int, int] = (0, 0, 0)
    queues: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    index: list[tuple[str, int, int, int, int, int, int]] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    taken: list[str] = field(default_factory=list)
    sizes_only: bool = False


def save_note(fs: FileSystem, path: str, note: DispatchNote) -> None:
    """Replace the file, durably. Raises :class:`journal.errors.StorageError`."""
    content = {
        "version": _VERSION,
        "offset": note.offset,
        "boot": note.boot,
        "last": note.last,
        "queues": [[*key, *bounds] for key, bounds in note.queues.items()],
        "index": note.index,
        "sizes": note.sizes,
    }
    if note.taken:
        content["taken"] = note.taken
    if note.sizes_only:
        content["sizes_only"] = True
    text = json.dumps(content, separators=(",", ":"))
    replace_file(fs, path, json.dumps({"crc": crc32(text.encode()), "derived": text}).encode())


def load_note(fs: FileSystem, path: str) -> DispatchNote | None:
    """Read the file; ``None`` when it is missing or not as it was written."""
    data = read_optional(fs, path)
    if data is None:
        return None
    try:
        outer = json.loads(data)
        text = outer["derived"]
        if crc32(text.encode()) != outer["crc"]:
            return None
        content: dict[str, Any] = json.loads(text)
        if content["version"] != _VERSION:
            return None
        return _parse(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _parse(content: dict[str, Any]) -> DispatchNote | None:
    note = DispatchNote(
        offset=content["offset"],
        boot=content["boot"],
        last=tuple(content["last"]),
        queues={(topic, queue): (low, high) for topic, queue, low, high in content["queues"]},
        index=[tuple(row) for row in content["index"]],
        sizes=tuple(content["sizes"]),
        taken=list(content.get("taken", ())),
        sizes_only=content.get("sizes_only") is True,
    )
    if (len(note.last), len(note.sizes)) != (3, 4) or not all(
        isinstance(name, str) and name and "\0" not in name for name in note.taken
    ):
        return None
    numbers = [note.offset, *note.last, *note.sizes]
    for (topic, queue), bounds in note.queues.items():
        numbers += [queue, *bounds]
        if not isinstance(topic, str):
            return None
    for name, *header in note.index:
        numbers += header
        if not isinstance(name, str) or len(header) != 6 or not 1 <= header[5] <= note.sizes[3]:
            return None
    if any(type(one) is not int or one < 0 for one in numbers):
        return None
    return note if all(note.sizes) and isinstance(note.boot, str) else None
