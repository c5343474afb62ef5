"""Hold a store that was closed in order against its snapshot: files, counts, references."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from journal import format as journal_format
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, is_zeros, read_optional
from msgstore.errors import StaleSnapshotError
from msgstore.format import ID_SIZE
from msgstore.format import file_name as store_file_name
from msgstore.locations import Locations
from msgstore.snapshot import load_snapshot
from qindex.format.segment import file_number
from qindex.index.messages import PERSISTENT_DIRECTORY
from qindex.index.segment_file import segment_path, size_of
from qindex.recovery.snapshot import FILE_NAME, RestingQueue
from qindex.tools.queue_check import CheckedQueue
from qindex.tools.store_check import StoreCheck, look_up

_ID = f"S{ID_SIZE}"
_LOST = "its messages are lost"


def check_queues(
    fs: FileSystem,
    resting: dict[str, RestingQueue],
    checked: Sequence[CheckedQueue],
) -> Iterator[Finding]:
    """Hold the queues that were found against those of the snapshot (by directory name).

    Raises :class:`OSError`.
    """
    found = {one.queue.directory: one for one in checked}
    for name, queue in sorted(resting.items()):
        if name not in found:
            what = f"the queue is missing; it had {queue.live} messages at the clean stop"
            yield Finding(queue.directory, 0, 0, Cause.DAMAGE, what, _LOST, Kind.MISSING_FILE)
            continue
        yield from _check_queue(fs, queue, found[name])
    for name in sorted(found.keys() - resting.keys()):
        some = next(iter(resting.values()), None)
        path = name if some is None else os.path.join(os.path.dirname(some.directory), name)
        what = "the queue was not there at the clean stop"
        yield Finding(path, 0, 0, Cause.DAMAGE, what, "", Kind.FOREIGN_FILE)


def _check_queue(fs: FileSystem, queue: RestingQueue, found: CheckedQueue) -> Iterator[Finding]:
    sizes = {
        number: size_of(fs, os.path.join(queue.directory, name))
        for name in fs.listdir(queue.directory)
        if (number := file_number(name)) is not None
    }
    for number, (unacked, size) in sorted(queue.segments.items()):
        path = segment_path(queue.directory, number)
        there = sizes.pop(number, None)
        if there is None:
            what = f"the file is missing; it had {unacked} messages at the clean stop"
            yield Finding(path, 0, 0, Cause.DAMAGE, what, _LOST, Kind.MISSING_FILE)
            continue
        if there != size:
            yield _another_size(path, there, size)
        # Where the journal holds something, the snapshot has the count of the file alone.
        count = unacked if queue.journal else found.unacked.get(number, 0)
        if count != unacked:
            yield _another_count(path, count, unacked)
    journal = os.path.join(queue.directory, journal_format.FILE_NAME)
    data = read_optional(fs, journal) or b""
    # A loss of power can bring back the zeros that the close has cut off.
    if len(data) < queue.journal or not is_zeros(data, queue.journal):
        yield _another_size(journal, len(data), queue.journal)
    elif queue.journal and sum(found.unacked.values()) != queue.held:
        yield _another_count(journal, sum(found.unacked.values()), queue.held)
    for number, size in sorted(sizes.items()):
        path = segment_path(queue.directory, number)
        what = "the file was not there at the clean stop"
        yield Finding(path, 0, size, Cause.DAMAGE, what, "", Kind.FOREIGN_FILE)
    if found.next_seen > queue.next_seq:
        what = f"seq_id {found.next_seen - 1} is there; {queue.next_seq} was to be the next"
        yield Finding(queue.directory, 0, 0, Cause.DAMAGE, what, "", Kind.SEQ_RANGE)


def _another_size(path: str, there: int, size: int) -> Finding:
    what = f"the file has {there} bytes; it had {size} at the clean stop"
    kind = Kind.TORN if there < size else Kind.COUNT
    return Finding(path, min(there, size), abs(there - size), Cause.DAMAGE, what, "", kind)


def _another_count(path: str, count: int, unacked: int) -> Finding:
    what = f"{count} entries are not acknowledged; {unacked} were at the clean stop"
    return Finding(path, 0, 0, Cause.DAMAGE, what, "", Kind.COUNT)


def check_messages(directory: str, snapshot: bytes, store: StoreCheck) -> Iterator[Finding]:
    """Hold the message store of ``directory`` against its part of the snapshot."""
    path = os.path.join(directory, FILE_NAME)
    try:
        locations, summary, _ = load_snapshot(snapshot)
    except StaleSnapshotError as error:
        # A snapshot of another machine's byte order, or of another version: the open recovers.
        what, lost = str(error), "the next open does not believe it"
        yield Finding(path, 0, 0, Cause.CRASH, what, lost, Kind.CONFIG)
        return
    sizes = {os.path.basename(one.path): one.size for one in store.files()}
    for key, entry in summary:
        name = store_file_name(key)
        file_path = os.path.join(directory, PERSISTENT_DIRECTORY, name)
        there = sizes.pop(name, None)
        if there is None:
            what = f"the file is missing; it had {entry.live} live bytes at the clean stop"
            lost = _LOST if entry.live else "nothing is lost"
            yield Finding(file_path, 0, 0, Cause.DAMAGE, what, lost, Kind.MISSING_FILE)
        elif there != entry.size:
            yield _another_size(file_path, there, entry.size)
    for name, size in sorted(sizes.items()):
        if name.endswith(".rdq"):
            what = "the file was not there at the clean stop"
            file_path = os.path.join(directory, PERSISTENT_DIRECTORY, name)
            yield Finding(file_path, 0, size, Cause.DAMAGE, what, "", Kind.FOREIGN_FILE)
    yield from _check_references(os.path.join(directory, PERSISTENT_DIRECTORY), locations, store)


def _check_references(directory: str, locations: Locations, store: StoreCheck) -> Iterator[Finding]:
    """Hold how often each message was referred to against the entries there are."""
    packed, files, offsets, _, references = locations.columns()
    stated = np.frombuffer(packed, _ID)
    named, counts = store.named()
    found = np.zeros(len(stated), np.int64)
    there, places = look_up(stated, named)
    found[there] = counts[places[there]]
    wanted = np.frombuffer(references, np.uint32)
    keys, starts = np.frombuffer(files, np.uint64), np.frombuffer(offsets, np.uint64)
    for at in np.flatnonzero(found != wanted).tolist():
        name = packed[at * ID_SIZE : (at + 1) * ID_SIZE].hex()
        path = os.path.join(directory, store_file_name(int(keys[at])))
        count, references_then = int(found[at]), int(wanted[at])
        if count:
            kind = Kind.REFCOUNT
            what = f"message {name} had {references_then} references, and has {count} entries"
            lost = f"{references_then - count} entries are lost" if count < references_then else ""
        else:
            kind = Kind.MESSAGE_WITHOUT_ENTRY
            what = f"message {name} had {references_then} references, and has no entry"
            lost = "the queues that had it have lost it"
        yield Finding(path, int(starts[at]), 0, Cause.DAMAGE, what, lost, kind)
