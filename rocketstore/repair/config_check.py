"""The small files beside log, queues and index: do they make sense?

None of them is needed to find a message, so a damaged one does not keep a store from being opened.
But groups without ``consumerOffset.json`` begin at the first message again, and a store without
``delayOffset.json`` delivers delayed messages twice. The user should know why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, read_optional
from rocketstore.format.checkpoint_format import CHECKPOINT_SIZE, TIMES_SIZE
from rocketstore.layout import Paths
from rocketstore.log.dispatch_note import load_note
from rocketstore.queues.offsets import parse_object, save_sane, table_problem
from rocketstore.repair.quarantine import copy_excess, set_aside


def check_config(fs: FileSystem, paths: Paths) -> Iterator[Finding]:
    """Yield a finding for each small file that is there and makes no sense. Raises
    :class:`OSError`."""
    for path, depth in _offset_files(paths).items():
        yield from _check_offsets(fs, path, depth)
    data = read_optional(fs, paths.dispatch_note)
    if data is not None and load_note(fs, paths.dispatch_note) is None:
        what, lost = "the note's checksum does not hold", "not used: all of the log is read"
        yield Finding(paths.dispatch_note, 0, len(data), Cause.DAMAGE, what, lost, Kind.CHECKSUM)
    yield from _check_checkpoint(fs, paths.checkpoint)


def mend_config(fs: FileSystem, paths: Paths) -> Iterator[Finding]:
    """Check as :func:`check_config` does, and set damaged files aside in ``quarantine/``; offsets
    that make sense are kept. Raises :class:`OSError`, :class:`journal.errors.StorageError`."""
    for finding in list(check_config(fs, paths)):
        path = finding.path
        if finding.cause is not Cause.DAMAGE or read_optional(fs, path) is None:
            yield finding
            continue
        content = parse_object(read_optional(fs, path) or b"")
        depth = _offset_files(paths).get(path)
        if depth is not None and content is None:
            content = _older(fs, path)
        if depth is not None and content is not None:
            where = copy_excess(fs, paths, path, 0)
            save_sane(fs, path, content, depth)
        else:
            where = set_aside(fs, paths, path)
        yield replace(finding, consequence=f"{finding.consequence}; quarantined in {where}")


def _offset_files(paths: Paths) -> dict[str, int]:
    """Which files have an offsetTable, and how deep it is."""
    return {paths.consumer_offset: 2, paths.local_offset: 2, paths.delay_offset: 1}


def _check_offsets(fs: FileSystem, path: str, depth: int) -> Iterator[Finding]:
    data = read_optional(fs, path)
    if data is None:
        if _older(fs, path) is not None:
            # Between its removal and the new one's renaming, in a node.
            what, kind = "the file is missing", Kind.MISSING_FILE
            yield Finding(path, 0, 0, Cause.CRASH, what, _fallback(fs, path), kind)
        return
    if not data.strip(b"\0"):
        # A node does not sync what it writes: a loss of power leaves a file without its content.
        what = "the file is all zeros" if data else "the file is empty"
        kind = Kind.ZEROS if data else Kind.TORN
        yield Finding(path, 0, len(data), Cause.CRASH, what, _fallback(fs, path), kind)
        return
    content = parse_object(data)
    problem = "this is not a JSON object" if content is None else table_problem(content, depth)
    if problem is not None:
        lost = _fallback(fs, path) if content is None else "what makes no sense is not used"
        yield Finding(path, 0, len(data), Cause.DAMAGE, problem, lost, Kind.RECORD)


def _older(fs: FileSystem, path: str) -> dict[str, Any] | None:
    return parse_object(read_optional(fs, path + ".bak") or b"")


def _fallback(fs: FileSystem, path: str) -> str:
    if _older(fs, path) is not None:
        return "the older offsets in its .bak count"
    return "all offsets in it are lost"


def _check_checkpoint(fs: FileSystem, path: str) -> Iterator[Finding]:
    data = read_optional(fs, path)
    if data is None:
        return
    if len(data) != CHECKPOINT_SIZE:
        # One whose first writer died is empty.
        cause = Cause.DAMAGE if data else Cause.CRASH
        what = f"{len(data)} bytes, {CHECKPOINT_SIZE} are right"
        lost = "a RocketMQ node takes its times for 0, and reads all of the log after a crash"
        yield Finding(path, 0, len(data), cause, what, lost, Kind.TORN)
    elif data[TIMES_SIZE:].strip(b"\0"):
        at = TIMES_SIZE + len(data[TIMES_SIZE:]) - len(data[TIMES_SIZE:].lstrip(b"\0"))
        what = "bytes that should be zero are not"
        yield Finding(path, at, len(data) - at, Cause.DAMAGE, what, "they mean nothing")
