"""Open the files of a store: at open, and again after a call was cut short.

Read :func:`open_parts` from top to bottom: read our note of the last checkpoint, repair the
directory, build the parts, mark the store as open for writing (``abort``), and recover.
"""

from __future__ import annotations

import contextlib
import os

from journal.errors import DamageError, storage_errors
from journal.fs.files import FileSystem, make_dirs, read_optional
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.layout import Paths
from rocketstore.log.dispatch_note import load_note
from rocketstore.options import Options
from rocketstore.parts import Parts, build_parts
from rocketstore.repair.config_check import check_config, mend_config
from rocketstore.repair.directory_repair import repair_directory
from rocketstore.repair.full_recovery import Rebuilt, recover_full
from rocketstore.repair.recovery import recover_compatible, recover_read_only


def open_parts(options: Options, paths: Paths, *, again: bool) -> tuple[Parts, Rebuilt]:
    """Open the files of a store and recover them.

    ``again``: the store is open already, and a call on it was cut short. Its files are then in a
    state that the death of the process could have left, and are recovered as after that.

    Raises :class:`DamageError`, :class:`StorageError` and :class:`OSError`; no file is left open
    then.
    """
    fs = options.fs
    note = load_note(fs, paths.dispatch_note)
    crashed = again or read_optional(fs, paths.abort) is not None
    checkpoint = Checkpoint.parse(read_optional(fs, paths.checkpoint))
    layout, findings = repair_directory(options, paths, note, checkpoint, crashed=crashed)
    parts = build_parts(options, paths, layout, checkpoint)
    try:
        for finding in findings:
            parts.finding(finding)
        if not again:
            repairs = options.repair and not options.read_only
            for finding in (mend_config if repairs else check_config)(fs, paths):
                parts.finding(finding)
        if options.read_only:
            return parts, Rebuilt(end=recover_read_only(parts))
        _mark_open(fs, paths)
        if options.recovery == "compatible":
            recovered = Rebuilt(end=recover_compatible(parts, crashed=crashed))
        else:
            recovered = recover_full(parts, note, crashed=crashed)
        parts.commitlog.begin_writing()
        parts.commitlog.last = recovered.last
        if crashed:
            parts.sync_after_crash(note)
    except BaseException as error:
        if isinstance(error, DamageError) and not crashed:
            _unmark_open(fs, paths)
        parts.close()
        raise
    return parts, recovered


def _mark_open(fs: FileSystem, paths: Paths) -> None:
    """Make the directories and ``abort``, durably. Raises :class:`StorageError`."""
    with storage_errors(paths.abort, "can't be made"):
        for directory in (paths.commitlog, paths.consumequeue, paths.index, paths.config):
            make_dirs(fs, directory)
        fd = fs.open(paths.abort, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        fs.close(fd)
        fs.sync_dir(paths.root)


def _unmark_open(fs: FileSystem, paths: Paths) -> None:
    """Remove ``abort``: open was refused, and the next open must not explain the damage by a
    crash."""
    with contextlib.suppress(OSError):
        fs.unlink(paths.abort)
        fs.sync_dir(paths.root)
