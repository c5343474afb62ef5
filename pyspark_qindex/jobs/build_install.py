"""Put what ``build-index`` built into a store that nobody uses.

In this order, each step durable before the next:

1. ``abort`` is made, and ``config/rocketstore.json`` is removed: from here on nothing vouches for
   queues and index, and whoever opens the store after a crash holds both against the log;
2. ``consumequeue`` and ``index`` change places with the staged directories, each in one step
   (``RENAME_EXCHANGE``; where the file system can't, in two);
3. ``checkpoint`` and ``config/rocketstore.json`` say how far the new files follow the log: the next
   open starts from there;
4. ``abort`` goes, unless it was there before: then the log's end is for the next open to settle.

**Commit point:** the exchange. Before it the store is as it was; between the two directories, and
until step 3, it is one that open repairs without asking.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from typing import Final, NamedTuple

from journal.errors import StorageError
from journal.files import REAL, read_optional, replace_file, sync_file, unlink_if_there
from pyspark_qindex.jobs.build_scan import LogFile
from pyspark_qindex.jobs.build_write import StorePlan, units_and_bytes
from rocketstore.checkpoint_format import Checkpoint
from rocketstore.checkpointer import make_note
from rocketstore.consumequeue import ConsumeQueue, Descriptors
from rocketstore.dispatch_note import save_note
from rocketstore.filler_format import Fillers
from rocketstore.layout import Paths, look
from rocketstore.options import Options
from rocketstore.parts import Parts, build_parts
from rocketstore.rebuild import QueueRepair

_RENAME_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100


class LastMessage(NamedTuple):
    """The log's last record: physical offset, bytes, store time (ms)."""

    offset: int
    size: int
    time: int


def last_message(log: list[LogFile]) -> LastMessage | None:
    """Give the last record of a log, ``None`` when it has none."""
    full = [file for file in log if not file.is_empty]
    if not full:
        return None
    return LastMessage(full[-1].last, full[-1].last_size, full[-1].last_time)


def keep_expired_queues(plan: StorePlan, log: list[LogFile]) -> Iterator[tuple[str, int, int]]:
    """Copy the queues none of whose messages is in the log any more: their units stay, so that no
    queue offset is given twice. Gives directory, units and bytes. Raises :class:`StorageError`."""
    minimum = min(plan.layout.commitlog, default=0)
    for topic, queue_id in plan.layout.queues:
        source = os.path.join(Paths(plan.root).consumequeue, topic, str(queue_id))
        target = os.path.join(Paths(plan.staging).consumequeue, topic, str(queue_id))
        if os.path.exists(target):
            continue
        shutil.copytree(source, target)
        files = Descriptors(REAL, writable=True)
        root = Paths(plan.staging).consumequeue
        queue = ConsumeQueue(files, root, topic, queue_id, plan.layout.consumequeue_file_size)
        queue.load(plan.layout.queues[topic, queue_id])
        repair = QueueRepair(queue, None, Fillers(), from_zero=minimum == 0)
        repair.finish(plan.end, minimum)
        files.close()
        for name in os.listdir(target):
            sync_file(REAL, os.path.join(target, name))
        yield os.path.join("consumequeue", topic, str(queue_id)), *units_and_bytes(queue)


def install_store(plan: StorePlan, log: list[LogFile]) -> None:
    """Put the staged directories in place; see the module's text. The caller holds the lock.

    Raises :class:`StorageError`.
    """
    paths = Paths(plan.root)
    try:
        crashed = read_optional(REAL, paths.abort) is not None
        for directory, _, _ in os.walk(plan.staging, topdown=False):
            REAL.sync_dir(directory)
        REAL.close(REAL.open(paths.abort, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
        REAL.sync_dir(paths.root)
        if unlink_if_there(REAL, paths.dispatch_note):
            REAL.sync_dir(paths.config)
        for name in ("consumequeue", "index"):
            _exchange(os.path.join(plan.staging, name), os.path.join(paths.root, name))
        REAL.sync_dir(paths.root)
        REAL.sync_dir(plan.staging)
        _vouch(plan, log)
        if not crashed:
            REAL.unlink(paths.abort)
            REAL.sync_dir(paths.root)
    except OSError as error:
        raise StorageError(error.filename or plan.root, "can't be installed", error) from error


def _exchange(staged: str, place: str) -> None:
    """Let two directories change places."""
    if not os.path.exists(place):
        os.rename(staged, place)
        return
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        one, other = os.fsencode(staged), os.fsencode(place)
        if renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), place)
    aside = staged + ".old"
    os.rename(place, aside)
    os.rename(staged, place)
    os.rename(aside, staged)


def _vouch(plan: StorePlan, log: list[LogFile]) -> None:
    """Write how far queues and index follow the log: all the way."""
    paths = Paths(plan.root)
    parts = _parts_in_place(plan)
    try:
        last = last_message(log)
        minimum = max(parts.commitlog.min_offset, 0)
        for queue in parts.queues.values():
            queue.recover()
            queue.correct_min(minimum)
        note = make_note(parts, plan.end, last[:2] if last is not None else (0, 0))
        if not os.path.isdir(paths.config):
            os.mkdir(paths.config)
        save_note(REAL, paths.dispatch_note, note)
        checkpoint = Checkpoint.parse(read_optional(REAL, paths.checkpoint))
        if last is not None:
            checkpoint.physical = max(checkpoint.physical, last.time)
            checkpoint.logical = last.time
        checkpoint.index = parts.index.end_timestamp
        replace_file(REAL, paths.checkpoint, checkpoint.to_bytes())
    finally:
        parts.close()


def _parts_in_place(plan: StorePlan) -> Parts:
    paths = Paths(plan.root)
    options = Options(read_only=True)
    layout = plan.layout
    sizes = (layout.commitlog_file_size, layout.consumequeue_file_size,
             layout.index_slots, layout.index_entries)  # fmt: skip
    return build_parts(options, paths, look(REAL, paths, options, sizes), Checkpoint())
