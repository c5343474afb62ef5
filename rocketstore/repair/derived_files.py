"""Build ConsumeQueues and IndexFiles anew from the CommitLog.

:func:`rebuild` writes them into another directory. :func:`rebuild_in_place` holds the store's lock
and puts them into the store. Each step is durable before the next:

1. The new files are built in a staging directory in the store, and compared with the old ones.
2. ``abort`` is made, and ``config/rocketstore.json`` keeps nothing but the sizes of files. From
   here on nothing vouches for queues and index: an open after a crash checks both against the log.
3. Each queue that differs, then the index, is exchanged for the new one by two renames. Files that
   are identical stay where they are.
4. ``checkpoint`` and ``config/rocketstore.json`` record how far the files follow the log, so that
   the next open starts from there.
5. ``abort`` is removed, unless it was there before. Then the next open has to settle the log's end.

A crash before step 2 leaves the store as it was, apart from the staging directory, which the next
rebuild removes. A crash later leaves a store that open repairs without asking.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from journal.errors import DamageError, UsageError, storage_errors
from journal.findings import Kind
from journal.fs.beneath import beneath, leave
from journal.fs.files import (
    REAL,
    FileSystem,
    PathLike,
    checked_path,
    is_there,
    make_dirs,
    names_in,
    opened,
    pread_all,
    read_file,
    read_optional,
    replace_file,
)
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.format.commitlog_format import COMMIT
from rocketstore.format.consumequeue_format import UNIT_SIZE
from rocketstore.layout import Layout, Paths, look
from rocketstore.lock import StoreLock
from rocketstore.log.commitlog import CommitLog
from rocketstore.log.dispatch import DispatchBatch, from_records
from rocketstore.log.dispatch_note import DispatchNote, load_note, save_note
from rocketstore.log.log_end import log_end
from rocketstore.log.mapped_files import sync_directories, sync_files
from rocketstore.log.walk import LogWalk, find_survivor
from rocketstore.options import Options
from rocketstore.parts import Parts, build_parts
from rocketstore.repair.directory_repair import repair_directory
from rocketstore.repair.full_recovery import QueueRepairs

STAGING: Final = "build-index.tmp"
"""The directory in a store that new files are built in."""
_PIECE: Final = 1 << 20

Comparison = Literal["identical", "different", "missing"]


@dataclass(frozen=True, slots=True)
class RebuiltFile:
    """One queue's directory or one IndexFile that :func:`rocketstore.rebuild` wrote.

    ``name`` is relative to the store. ``entries`` counts units or index entries, ``size`` bytes.
    ``was`` compares it with what the store has at that place: "identical", "different" or
    "missing". IndexFiles are compared by their number, because their names are times.
    """

    name: str
    entries: int
    size: int
    was: Literal["identical", "different", "missing"]


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """The work of :func:`rocketstore.rebuild`.

    ``messages``: the messages that queues have. ``end`` is the physical offset after the log's last
    record, ``last`` the offset and size of that record (zeros if there is none), and
    ``last_store_time`` its time in ms.
    """

    files: list[RebuiltFile]
    messages: int
    end: int
    last: tuple[int, int]
    last_store_time: int


def rebuild(directory: PathLike, out: PathLike) -> RebuildResult:
    """Write the ConsumeQueues and IndexFiles of a store into another directory, from its log.

    The store is not changed, and no lock is taken: beside a process that writes, the files are
    those of the moment of the call. They have the bytes that a recovery from nothing but the log
    writes. Only queues whose messages have all expired are copied, so that no queue offset is
    given out twice. IndexFiles are named after the store time of their first messages. All files
    are on disk when the call returns. O(bytes of the log).

    Args:
        directory: The store.
        out: A directory, made if there is none, without ``consumequeue`` and ``index``.

    Returns:
        What was written, and how it compares with what the store has.

    Raises:
        DamageError: The log has a hole, or lacks a file; open with ``repair=True`` first.
        NotAStoreError: There is no store.
        StorageError: A file can't be read or written; ``out`` may have a part of the files.
        UsageError: ``out`` has files of a store.

    Example:
        >>> rocketstore.rebuild("store", "rebuilt").files  # doctest: +SKIP
        [RebuiltFile(name='consumequeue/orders/0', entries=1, size=6000000, was='identical'), ...]
    """
    root, target = checked_path(directory), checked_path(out)
    fs = beneath(REAL, root)
    paths = Paths(root)
    layout = _sound_log(fs, paths)
    with storage_errors(target, "can't be written"):
        make_dirs(REAL, target)
        if {"consumequeue", "index"} & set(REAL.listdir(target)):
            raise UsageError(f"{target}: it holds files of a store; give an empty directory")
        return _write(fs, paths, layout, beneath(REAL, target), Paths(target))


def _sound_log(fs: FileSystem, paths: Paths) -> Layout:
    """List a store whose log has all its files. Raises :class:`DamageError` for another."""
    options = Options(fs=fs, read_only=True)
    look(fs, paths, options)  # raises where there is no store
    note = load_note(fs, paths.dispatch_note)
    checkpoint = Checkpoint.parse(read_optional(fs, paths.checkpoint))
    for one in look(fs, paths, options, note.sizes if note is not None else None).strangers:
        # A writer makes its next file empty, and gives it its length then.
        if one.path.startswith(paths.commitlog) and one.length:
            raise DamageError(one.path, 0, f"{one.what} (open with repair=True)")
    layout, findings = repair_directory(options, paths, note, checkpoint, crashed=False)
    for finding in findings:
        if finding.path.startswith(paths.commitlog) and finding.kind is Kind.MISSING_FILE:
            raise DamageError(finding.path, 0, f"{finding.what} (open with repair=True)")
    return layout


def rebuild_in_place(directory: PathLike) -> RebuildResult:
    """Build the ConsumeQueues and IndexFiles of a store anew, and put them into it.

    Raises :class:`DamageError`, changing nothing, where an open without ``repair`` would;
    :class:`LockedError`, :class:`NotAStoreError` and :class:`StorageError`.
    """
    root = checked_path(directory)
    fs = beneath(REAL, root, hold=True)
    options = Options(fs=fs, create=False)
    paths = Paths(root)
    look(fs, paths, options)
    lock = StoreLock(fs, paths.lock)
    staging = os.path.join(root, STAGING)
    try:
        with storage_errors(root, "can't be rebuilt"):
            note = load_note(fs, paths.dispatch_note)
            checkpoint = Checkpoint.parse(read_optional(fs, paths.checkpoint))
            layout, _ = repair_directory(options, paths, note, checkpoint, crashed=False)
            _remove_tree(fs, staging)
            try:
                fs.mkdir(staging)
                result = _write(fs, paths, layout, fs, Paths(staging))
                _install(fs, paths, staging, layout, result)
            finally:
                _remove_tree(fs, staging)
        return result
    finally:
        lock.release()
        leave(fs)


# -- building -------------------------------------------------------------------------------------


def _write(
    fs: FileSystem, paths: Paths, layout: Layout, out_fs: FileSystem, out: Paths
) -> RebuildResult:
    """Build queues and index below ``out``, durably."""
    first_stored = 0
    log = CommitLog(fs, paths.commitlog, layout.commitlog_file_size, writable=False)
    log.files.load(layout.commitlog)
    options = Options(fs=out_fs, name_clock=lambda: first_stored)
    nothing = replace(layout, commitlog=[], short={}, queues={}, index=[])
    parts = replace(build_parts(options, out, nothing, Checkpoint()), commitlog=log)
    messages = 0
    try:
        for made in (out.consumequeue, out.index):
            make_dirs(out_fs, made)
        queues = QueueRepairs(parts, None)
        start = max(log.min_offset, 0)
        walk = LogWalk(log, start, placed=True, keep_bad_bodies=True, limit=log_end(log))
        for base, records in walk:
            batch = from_records(records, base)
            first_stored = int(batch.store_times[0])
            queues.put(batch, records, base)
            parts.index.put(batch)
            messages += _visible(batch)
        _refuse_hole(log, walk.end)
        _copy_expired(fs, paths, layout, parts)
        queues.settle(walk.end)
        files, directories = parts.descriptors.take_dirty()
        sync_files(out_fs, [*files, *(file.path for file in parts.index.files)])
        sync_directories(out_fs, [*directories, out.index])
        written = [*_queue_files(parts, fs, paths), *_index_files(parts, fs, paths, layout)]
    finally:
        parts.close()
    return RebuildResult(written, messages, walk.end, walk.last, walk.last_store_time)


def _visible(batch: DispatchBatch) -> int:
    return int(np.count_nonzero((batch.transactions == 0) | (batch.transactions == COMMIT)))


def _refuse_hole(log: CommitLog, end: int) -> None:
    """Raise :class:`DamageError` if sound records follow the place where the walk ended. A record
    at that place was put meanwhile."""
    if find_survivor(log, end) in (None, end):
        return
    file = log.files.find(end)
    path = file.path if file is not None else log.files.directory
    what = "there is no record here, but sound ones follow (open with repair=True)"
    raise DamageError(path, end % log.file_size, what)


def _copy_expired(fs: FileSystem, paths: Paths, layout: Layout, parts: Parts) -> None:
    """Copy the queues that have no message in the log any more."""
    size = layout.consumequeue_file_size
    for (topic, queue_id), starts in layout.queues.items():
        if (topic, queue_id) in parts.queues or not starts:
            continue
        queue = parts.queue(topic, queue_id)
        for start in starts:
            path = queue.path(start)
            source = os.path.join(paths.root, os.path.relpath(path, parts.paths.root))
            parts.descriptors.create(path, size)
            parts.descriptors.write(path, read_file(fs, source), 0)
        queue.load(starts)


def _queue_files(parts: Parts, fs: FileSystem, paths: Paths) -> list[RebuiltFile]:
    found = []
    for _, queue in sorted(parts.queues.items()):
        if not queue.starts:
            continue
        name = os.path.relpath(queue.directory, parts.paths.root)
        units = queue.max_offset - queue.starts[0] // UNIT_SIZE
        was = _compare(parts.fs, queue.directory, fs, os.path.join(paths.root, name))
        found.append(RebuiltFile(name, units, len(queue.starts) * queue.file_size, was))
    return found


def _index_files(parts: Parts, fs: FileSystem, paths: Paths, layout: Layout) -> list[RebuiltFile]:
    found = []
    old = sorted(layout.index, key=int)
    for number, file in enumerate(parts.index.files):
        was: Comparison = "missing"
        if number < len(old):
            place = os.path.join(paths.index, old[number])
            was = _compare_files(parts.fs, file.path, fs, place)
        name = os.path.relpath(file.path, parts.paths.root)
        found.append(RebuiltFile(name, file.header.count - 1, file.size, was))
    return found


def _compare(fs: FileSystem, made: str, old_fs: FileSystem, place: str) -> Comparison:
    """Compare the files of two directories."""
    if not is_there(old_fs, place):
        return "missing"
    names = sorted(fs.listdir(made))
    if names != sorted(names_in(old_fs, place)):
        return "different"
    pairs = ((os.path.join(made, name), os.path.join(place, name)) for name in names)
    same = all(_compare_files(fs, one, old_fs, other) == "identical" for one, other in pairs)
    return "identical" if same else "different"


def _compare_files(fs: FileSystem, made: str, old_fs: FileSystem, place: str) -> Comparison:
    size = fs.stat(made).st_size
    if old_fs.stat(place).st_size != size:
        return "different"
    with opened(fs, made) as one, opened(old_fs, place) as other:
        for at in range(0, size, _PIECE):
            if pread_all(fs, one, _PIECE, at) != pread_all(old_fs, other, _PIECE, at):
                return "different"
    return "identical"


# -- installing -----------------------------------------------------------------------------------


def _install(
    fs: FileSystem, paths: Paths, staging: str, layout: Layout, result: RebuildResult
) -> None:
    """Put the staged files into the store. The caller holds its lock."""
    crashed = is_there(fs, paths.abort)
    fs.close(fs.open(paths.abort, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
    fs.sync_dir(paths.root)
    make_dirs(fs, paths.config)
    nothing = DispatchNote(0, "", sizes=_sizes(layout), sizes_only=True)
    save_note(fs, paths.dispatch_note, nothing)
    make_dirs(fs, paths.consumequeue)
    index = [file for file in result.files if os.path.dirname(file.name) == "index"]
    for number, file in enumerate(result.files):
        if file not in index and file.was != "identical":
            place = os.path.join(paths.root, file.name)
            make_dirs(fs, os.path.dirname(place))
            aside = os.path.join(staging, f"old.{number}")
            _exchange(fs, os.path.join(staging, file.name), place, aside)
    if len(index) != len(layout.index) or any(file.was != "identical" for file in index):
        aside = os.path.join(staging, "old.index")
        _exchange(fs, os.path.join(staging, "index"), paths.index, aside)
    _vouch(fs, paths, layout, result)
    if not crashed:
        fs.unlink(paths.abort)
        fs.sync_dir(paths.root)


def _sizes(layout: Layout) -> tuple[int, ...]:
    return (
        layout.commitlog_file_size,
        layout.consumequeue_file_size,
        layout.index_slots,
        layout.index_entries,
    )


def _exchange(fs: FileSystem, staged: str, place: str, aside: str) -> None:
    """Move a directory out of its place, and the staged one into it, durably."""
    with suppress(FileNotFoundError):
        fs.rename(place, aside)
    fs.rename(staged, place)
    fs.sync_dir(os.path.dirname(place))


def _vouch(fs: FileSystem, paths: Paths, layout: Layout, result: RebuildResult) -> None:
    """Record that queues and index follow the log to its end."""
    options = Options(fs=fs, read_only=True)
    checkpoint = Checkpoint.parse(read_optional(fs, paths.checkpoint))
    parts = build_parts(options, paths, look(fs, paths, options, _sizes(layout)), checkpoint)
    try:
        for queue in parts.queues.values():
            queue.recover()
            queue.correct_min(max(parts.commitlog.min_offset, 0))
        save_note(fs, paths.dispatch_note, parts.note(result.end, result.last))
        if result.last[1]:
            checkpoint.physical = max(checkpoint.physical, result.last_store_time)
            checkpoint.logical = result.last_store_time
        checkpoint.index = parts.index.end_timestamp
        replace_file(fs, paths.checkpoint, checkpoint.to_bytes())
    finally:
        parts.close()


def _remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory and all that is in it, if it is there."""
    with suppress(FileNotFoundError):
        for name in fs.listdir(path):
            inner = os.path.join(path, name)
            if stat.S_ISDIR(fs.stat(inner).st_mode):
                _remove_tree(fs, inner)
            else:
                fs.unlink(inner)
        fs.rmdir(path)
