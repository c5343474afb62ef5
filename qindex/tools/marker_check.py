"""The marker file: check it, and find out what it said when it is lost.

Without the number of entries a segment has no segment but the first can be read. Our publish
records know it all the same: the checksum of an embedded one covers its seq_id, of which the
segment file has the remainder only, so trying all numbers there are tells the right one. Where no
record tells, the number is taken that contradicts the files least (:mod:`qindex.view.entry_count`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from journal.errors import NotAStoreError, StorageError
from journal.findings import Cause, Finding, Kind
from journal.format import PUBLISH_PERSISTENT, PUBLISH_TRANSIENT, TYPE_SHIFT
from journal.fs.files import FileSystem, names_in, opened, pread_all, read_optional
from qindex.format import layout
from qindex.format.publish_check import sound_publishes
from qindex.format.rabbitmq.names import QueueNameError, parse_queue_name
from qindex.format.rabbitmq.queue_index_v2 import DEFAULT_ENTRY_COUNT as PAIR_ENTRIES
from qindex.format.rabbitmq.queue_index_v2 import HEADER_SIZE, parse_header
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as INDEX_SUFFIX
from qindex.format.segment import (
    DEFAULT_ENTRY_COUNT,
    MAX_ENTRY_COUNT,
    PERSISTENT,
    PUBLISH,
    PUBLISH_HEAD,
    PUBLISH_HEAD_SIZE,
    REL_MASK,
    STEP_SIZE,
    file_number,
)
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.recovery import store_directory
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.view.entry_count import fitting_counts

_MAX_EMBEDDED = 1 << 20


def check_marker(fs: FileSystem, directory: str) -> tuple[layout.StoreMarker | None, list[Finding]]:
    """Return the content of the marker of ``directory``, now or before its damage, and its faults.

    ``None`` and no findings where it is not a store of qindex. Raises :class:`NotAStoreError` for a
    file, a missing directory, or a marker of another version; :class:`StorageError`.
    """
    path = os.path.join(directory, layout.MARKER)
    try:
        names = set(fs.listdir(directory))
        data = read_optional(fs, path)
        if data is None and not _is_ours(fs, directory, names):
            return None, []
        if data is not None:
            findings = list(check_halves(path, data))
            if len(findings) < 2:
                return store_directory.read_marker(fs, directory), findings
    except NotADirectoryError as error:
        raise NotAStoreError(f"{directory}: is a file, not a store directory") from error
    except FileNotFoundError as error:
        raise NotAStoreError(f"{directory}: no such directory") from error
    except OSError as error:
        raise StorageError(directory, "the store can't be read", error) from error
    marker, certain = _deduce(fs, directory)
    kind = Kind.CHECKSUM if data is not None else Kind.MISSING_FILE
    what = "neither copy holds" if data is not None else "the marker is missing"
    lost = f"the engine does not open the store; {marker.entry_count} entries a segment assumed"
    if not certain:
        # Messages may be lost by that, and acknowledged ones come back.
        kind, lost = Kind.CONFIG, f"{lost}, which other numbers fit as well"
    return marker, [Finding(path, 0, len(data or b""), Cause.DAMAGE, what, lost, kind)]


def check_halves(path: str, data: bytes) -> Iterator[Finding]:
    """Check both copies that a marker file is made of."""
    half = len(data) // 2
    for start, copy in ((0, data[:half]), (half, data[half:])):
        try:
            layout.unpack_checked(copy)
        except ValueError as error:
            what, lost = f"one of its two copies: {error}", "the other one counts"
            yield Finding(path, start, len(copy), Cause.DAMAGE, what, lost, Kind.CHECKSUM)


def _is_ours(fs: FileSystem, directory: str, names: set[str]) -> bool:
    if names & {layout.LOCK, SNAPSHOT}:
        return layout.QUEUES in names
    return any(SEQ_FILE_NAME in fs.listdir(path) for path in _queue_directories(fs, directory))


def _queue_directories(fs: FileSystem, directory: str) -> Iterator[str]:
    root = os.path.join(directory, layout.QUEUES)
    for name in sorted(names_in(fs, root)):
        path = os.path.join(root, name)
        try:
            fs.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield path


def _deduce(fs: FileSystem, directory: str) -> tuple[layout.StoreMarker, bool]:
    """Find out what the marker said, and whether the number of entries a segment is certain."""
    vhost, count, matters = "/", None, False
    for path in _queue_directories(fs, directory):
        raw = read_optional(fs, os.path.join(path, layout.QUEUE_NAME)) or b""
        try:
            vhost = parse_queue_name(raw, os.path.basename(path)).vhost.decode()
        except (QueueNameError, UnicodeDecodeError):
            continue  # the check of the queue's own files names it
        for name in fs.listdir(path):
            if file_number(name, INDEX_SUFFIX) is not None:
                return _of_pairs(fs, path, name, vhost), True
            number = file_number(name)
            matters |= bool(number)
            if number and count is None:
                count = _entry_count(fs, os.path.join(path, name), number)
    certain = count is not None or not matters
    if not certain:
        # No record that covers its seq_id: all messages are in the message store, or damaged.
        queues = dict.fromkeys(_queue_directories(fs, directory))
        fitting = fitting_counts(fs, queues)
        count, certain = fitting[0], len(fitting) == 1
    return layout.StoreMarker(count or DEFAULT_ENTRY_COUNT, vhost), certain


def _of_pairs(fs: FileSystem, path: str, name: str, vhost: str) -> layout.StoreMarker:
    """Return the marker of a store whose segments have heads that say how long they are."""
    data = read_optional(fs, os.path.join(path, name), HEADER_SIZE) or b""
    count = parse_header(data, file_number(name, INDEX_SUFFIX) or 0).entry_count
    if count is None or count > MAX_ENTRY_COUNT:
        count = PAIR_ENTRIES
    return layout.StoreMarker(count, vhost, version=2)


def _entry_count(fs: FileSystem, path: str, number: int) -> int | None:
    """Find the number of entries a segment that makes the first record of this file sound."""
    with opened(fs, path) as fd:
        head = pread_all(fs, fd, PUBLISH_HEAD_SIZE, 0)
        if len(head) < PUBLISH_HEAD_SIZE:
            return None
        word, _, _, _, embedded = PUBLISH_HEAD.unpack(head)
        if not word & PUBLISH or not 0 < embedded <= _MAX_EMBEDDED:
            return None
        data = pread_all(fs, fd, PUBLISH_HEAD_SIZE + embedded, 0)
    if len(data) < PUBLISH_HEAD_SIZE + embedded:
        return None
    rel = word & REL_MASK
    kind = PUBLISH_PERSISTENT if word & PERSISTENT else PUBLISH_TRANSIENT
    counts = np.arange(rel + 1, MAX_ENTRY_COUNT + 1)
    words = (counts * number + rel).astype(np.uint64) | np.uint64(kind << TYPE_SHIFT)
    payloads = np.full(len(counts), STEP_SIZE, np.int64)
    sound = sound_publishes(data, payloads, words, np.full(len(counts), embedded, np.int64))
    chosen = counts[sound]
    return int(chosen[0]) if len(chosen) == 1 else None
