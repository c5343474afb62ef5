"""Repair the directory of a store before it is opened: lengthen files that a crash cut short, set
aside files that do not belong there."""

from __future__ import annotations

import os
from collections.abc import Iterator

from journal.errors import DamageError, StorageError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, is_there
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.format.commitlog_format import file_name
from rocketstore.layout import Layout, Paths, extend, look
from rocketstore.log.dispatch_note import DispatchNote
from rocketstore.log.mapped_files import Stranger, create_file
from rocketstore.options import Options
from rocketstore.repair.quarantine import copy_excess, set_aside

_MISSING_MAX = 1024
"""Most log files made anew in one place: a name that is further away is not a file of this log."""


def repair_directory(
    options: Options,
    paths: Paths,
    note: DispatchNote | None,
    checkpoint: Checkpoint,
    *,
    crashed: bool,
) -> tuple[Layout, list[Finding]]:
    """Look at the directory; lengthen files that a crash cut short, set aside files if ``repair``.

    Raises :class:`DamageError` for damage that no crash explains, unless ``repair``; and
    :class:`StorageError`.
    """
    fs = options.fs
    sizes = note.sizes if note is not None else None
    layout = look(fs, paths, options, sizes)
    findings: list[Finding] = []
    for stranger in layout.strangers:
        cause, consequence = Cause.DAMAGE, "not used"
        if not options.read_only:
            durable = note is not None and (
                _name(paths, stranger.path) in note.taken
                or (stranger.path.startswith(paths.commitlog) and stranger.start < note.offset)
            )
            if crashed and stranger.is_short and not durable:
                extend(fs, stranger)
                cause, consequence = Cause.CRASH, "lengthened with zeros"
            elif options.repair:
                consequence = _repair(fs, paths, stranger)
            else:
                raise DamageError(stranger.path, 0, f"{stranger.what} (repair=True sets it aside)")
        kind = Kind.TORN if stranger.is_short else Kind.FOREIGN_FILE
        findings.append(Finding(stranger.path, 0, 0, cause, stranger.what, consequence, kind))
    findings += taken_away(options, paths, layout, note, checkpoint)
    if layout.strangers and not options.read_only:
        layout = look(fs, paths, options, sizes)
    if not layout.missing:
        return layout, findings
    for gap in layout.missing:
        findings.append(_missing(options, paths, gap, layout.commitlog_file_size))
    return look(fs, paths, options, sizes), findings


def _repair(fs: FileSystem, paths: Paths, stranger: Stranger) -> str:
    """Set a file aside; one of the log is brought to its length, for its records may be sound."""
    if os.path.dirname(stranger.path) != paths.commitlog or not stranger.is_placed:
        return f"quarantined in {set_aside(fs, paths, stranger.path)}"
    consequence = "lengthened with zeros"
    if not stranger.is_short:
        where = copy_excess(fs, paths, stranger.path, stranger.wanted)
        consequence = f"cut; the excess is quarantined in {where}"
    extend(fs, stranger)
    return consequence


def _name(paths: Paths, path: str) -> str:
    return os.path.relpath(path, paths.root)


def taken_away(
    options: Options,
    paths: Paths,
    layout: Layout,
    note: DispatchNote | None,
    checkpoint: Checkpoint,
) -> Iterator[Finding]:
    """Report the files that are not there any more, and of which a checkpoint, or the process that
    had the store open, says that they were. A gap between files of the log is found without.

    Raises :class:`DamageError` for those of the log, unless ``repair``.
    """
    size, starts = layout.commitlog_file_size, layout.readable
    lost: list[str] = []
    if note is not None and note.last[1]:
        start = note.last[0] - note.last[0] % size
        if not starts or starts[-1] < start:
            lost.append(os.path.join(paths.commitlog, file_name(start)))
    elif not starts and checkpoint.physical:
        lost.append(paths.commitlog)
    if note is not None:
        gone = [os.path.join(paths.root, name) for name in note.taken]
        lost += [path for path in gone if path not in lost and not is_there(options.fs, path)]
    for path in lost:
        what = "the file is gone: another program has deleted or moved it"
        consequence = "made anew from the commit log"
        if path.startswith(paths.commitlog):
            what = "what the commit log had here is gone, and it was on disk"
            consequence = "the messages in it are lost"
            if not options.read_only and not options.repair:
                raise DamageError(path, 0, f"{what} (repair=True goes on without it)")
        yield Finding(path, 0, 0, Cause.DAMAGE, what, consequence, Kind.MISSING_FILE)


def _missing(options: Options, paths: Paths, gap: range, size: int) -> Finding:
    """Put files of zeros where some are missing in the log: holes to be mended like others."""
    what = "this file of the commit log is missing"
    path = os.path.join(paths.commitlog, file_name(gap.start))
    if len(gap) > 1:
        what = f"{len(gap)} files of the commit log from this one on are missing"
    if options.read_only or not options.repair or len(gap) > _MISSING_MAX:
        raise DamageError(path, 0, what)
    fs = options.fs
    # From the last one back: whatever a crash leaves of this is one gap, and then none.
    for start in reversed(gap):
        created = os.path.join(paths.commitlog, file_name(start))
        fd = create_file(fs, created, size)
        try:
            fs.fdatasync(fd)
            fs.sync_dir(paths.commitlog)
        except OSError as error:
            raise StorageError(created, "can't be written", error) from error
        finally:
            fs.close(fd)
    consequence = "made anew, without messages"
    return Finding(path, 0, 0, Cause.DAMAGE, what, consequence, Kind.MISSING_FILE)
