"""Recovery as RocketMQ 4.9.3 does it (the compatible mode), and how a read-only store finds its
ends.

Read ``recover_compatible`` from top to bottom: queues find their own ends, the log is walked from
its third-last file (or, after a crash, from a file that the checkpoint vouches for, with every
record dispatched again), bytes after the log's end are cut off, and then the records that the
queues have not seen are dispatched. :mod:`rocketstore.repair.full_recovery` loses less.
"""

from __future__ import annotations

import struct

from rocketstore.format.commitlog_format import FIXED_SIZE, MESSAGE_MAGIC
from rocketstore.log.dispatch import from_records
from rocketstore.log.mapped_files import MappedFile
from rocketstore.log.walk import LogWalk
from rocketstore.parts import Parts

_RECOVER_FILES = 3
_INT = struct.Struct(">i").unpack_from


def recover_compatible(parts: Parts, *, crashed: bool) -> int:
    """Bring the store to the state that the real one would; return the log's end."""
    commitlog, index = parts.commitlog, parts.index
    if crashed:
        vouched = parts.checkpoint.index
        for number in range(len(index.files) - 1, -1, -1):
            if index.files[number].header.end_timestamp > vouched:
                index.drop_file(number)
    for queue in parts.queues.values():
        queue.recover()
    known = parts.max_physical()
    files = list(commitlog.files.files.values())
    if not files:
        for queue in parts.queues.values():
            queue.destroy()
        return 0
    if crashed:
        start = _crash_start(parts, files)
    else:
        start = files[max(0, len(files) - _RECOVER_FILES)].start
    walk = LogWalk(commitlog, start)
    for base, records in walk:
        if crashed:
            # The real one has not read its delay levels yet at this point.
            parts.dispatch(from_records(records, base, delays=False))
    cut_log(parts, walk.end)
    if known >= walk.end:
        for queue in parts.queues.values():
            queue.truncate_physical(walk.end)
    _catch_up(parts, walk.end)
    for queue in parts.queues.values():
        queue.correct_min(commitlog.min_offset)
    return walk.end


def _crash_start(parts: Parts, files: list[MappedFile]) -> int:
    """The last file whose first record is old enough to be vouched for by the checkpoint."""
    with_index = parts.options.index and parts.options.index_safe
    safe = parts.checkpoint.safe_time(with_index=with_index)
    for file in reversed(files):
        data = parts.commitlog.files.read(file, 0, FIXED_SIZE)
        if len(data) < FIXED_SIZE or _INT(data, 4)[0] != MESSAGE_MAGIC:
            continue
        at = 68 if data[39] & 16 else 56
        stored = int.from_bytes(data[at : at + 8], "big", signed=True)
        if 0 != stored <= safe:
            return file.start
    return files[0].start


def _catch_up(parts: Parts, end: int) -> None:
    """Dispatch what no queue has seen: the real one's reput thread."""
    offset = max(parts.max_physical(), parts.commitlog.min_offset, 0)
    if offset >= end:
        return
    for base, records in LogWalk(parts.commitlog, offset, check_crc=False, limit=end):
        parts.dispatch(from_records(records, base))


def cut_log(parts: Parts, end: int) -> None:
    """End the log at ``end``: delete the files after it, and end the file that holds it there."""
    files = parts.commitlog.files
    for start in [start for start in reversed(files.files) if start > end]:
        if parts.options.read_only:
            del files.files[start]
        else:
            files.remove(start)
    file = files.find(end)
    if file is not None:
        file.wrote = end - file.start


def recover_read_only(parts: Parts) -> int:
    """Find the ends of log and queues without writing; return the log's end.

    The store shows the queues as their files are: nothing is dispatched.
    """
    commitlog = parts.commitlog
    for queue in parts.queues.values():
        queue.recover()
    files = list(commitlog.files.files.values())
    if not files:
        return 0
    start = files[max(0, len(files) - _RECOVER_FILES)].start
    walk = LogWalk(commitlog, start, keep_bad_bodies=True)
    for _ in walk:
        continue
    cut_log(parts, walk.end)
    for queue in parts.queues.values():
        if queue.max_physical > walk.end:
            queue.truncate_physical(walk.end)
        queue.correct_min(commitlog.min_offset)
    return walk.end
