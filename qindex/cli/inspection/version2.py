"""``inspect`` of the files of RabbitMQ's queues of version 2: ``K.qi`` and ``K.qs``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from journal.errors import StoreError, UsageError, storage_errors
from journal.findings import Finding
from journal.fs.files import REAL, read_file, read_optional
from qindex.format.json_value import plain_value
from qindex.format.rabbitmq import queue_index_v2 as index_format
from qindex.format.rabbitmq import queue_store_v2 as store_format
from qindex.format.rabbitmq.bridge import message_of, read_rabbitmq
from qindex.format.segment import file_number
from qindex.index.pair_scan import Depth, entry_count_of, pin_pairs, read_pair
from qindex.recovery.columns import Source, pair_source

Row = dict[str, Any]
_PLACES = {0: "memory", 1: "message store", 2: "queue store"}


def inspect_pair(path: str) -> tuple[Iterator[Row], list[Finding]] | None:
    """Return the rows of a ``.qi`` or ``.qs`` file and its findings; ``None`` for a file of another
    kind. The ``.qi`` file beside a ``.qs`` file names the messages in it.

    Raises :class:`StorageError` when it can't be read.
    """
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1]
    if suffix not in (index_format.SUFFIX, store_format.SUFFIX):
        return None
    number = file_number(name, suffix)
    if number is None:
        raise UsageError(f"{path}: a segment file is named for its number, like 0{suffix}")
    directory = os.path.dirname(os.path.abspath(path))
    with storage_errors(path, "can't be read"):
        data = read_file(REAL, path)
        pairs = pin_pairs(REAL, directory, os.listdir(directory))
        count = entry_count_of(pairs)
        pair = read_pair(REAL, directory, pairs[number], count, Depth.DECODE, clean=False)
        index = read_optional(REAL, os.path.join(directory, index_format.file_name(number)))
    findings = [one for one in pair.findings if os.path.basename(one.path) == name]
    if suffix == store_format.SUFFIX:
        return _records(data, pair.base, pair.count, pair_source(pair)), findings
    return _slots(index or b"", pair.base, pair.count), findings


def _slots(data: bytes, base: int, count: int) -> Iterator[Row]:
    yield {"offset": 0, "length": 64, "record": "header", "first": base, "entries": count}
    slots = index_format.slots(data, count)
    offsets, sizes, _ = index_format.places(slots["where"])
    used = slots.view(np.uint8).reshape(-1, index_format.ENTRY_SIZE).any(axis=1)
    for row in np.flatnonzero(used).tolist():
        slot = slots[row]
        kind = int(slot["location"])
        place: Row = {"at": _PLACES.get(kind, kind)}
        if kind == index_format.IN_SHARED_STORE:
            place["msg_id"] = slot["where"].tobytes().hex()
        elif kind == index_format.IN_QUEUE_STORE:
            place |= {"store_offset": int(offsets[row]), "record_size": int(sizes[row])}
        yield {
            "offset": index_format.HEADER_SIZE + index_format.ENTRY_SIZE * row,
            "length": index_format.ENTRY_SIZE,
            "record": "entry" if slot["status"] else "dropped",
            "seq_id": base + row,
            "persistent": bool(slot["flags"] & index_format.PERSISTENT),
            **place,
            "expiry": int(slot["expiry"]) or None,
            "size": int(slot["size"]),
        }


def _records(data: bytes, base: int, count: int, source: Source) -> Iterator[Row]:
    yield {"offset": 0, "length": 64, "record": "header", "first": base, "entries": count}
    head = store_format.ENTRY_HEAD.size
    starts = source.offsets + (source.lengths - source.heads_of(slice(None))["embedded"])
    embedded = source.heads_of(slice(None))["embedded"].astype(np.int64)
    rows = np.flatnonzero(embedded)
    for at in rows[np.argsort(starts[rows], kind="stable")].tolist():
        start = int(starts[at])
        size, flags, checksum, _ = store_format.ENTRY_HEAD.unpack_from(data, start - head)
        try:
            message = message_of(read_rabbitmq(data[start : start + int(embedded[at])])[0])
        except StoreError:
            continue  # is a finding
        yield {
            "offset": start - head,
            "length": head + size,
            "record": "message",
            "seq_id": int(source.seqs[at]),
            "msg_id": source.heads_of(slice(at, at + 1))["id"][0].tobytes().hex(),
            "checksum": f"{checksum:04x}" if flags & store_format.HAS_CHECKSUM else None,
            "key": plain_value(message.key),
            "size": len(message.body),
        }
