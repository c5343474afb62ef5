"""Check a whole store without changing it: every record, every unit, every entry."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from journal.beneath import beneath, open_to_others, special
from journal.files import REAL, FileSystem, PathLike, checked_path
from journal.findings import Cause, Finding, Kind
from rocketstore.consumequeue_format import UNIT_SIZE
from rocketstore.dispatch import from_records
from rocketstore.dispatch_note import load_note
from rocketstore.index_rebuild import IndexCheck
from rocketstore.layout import Paths
from rocketstore.lock import StoreLock
from rocketstore.parts import Parts
from rocketstore.rebuild import QueueRepairs
from rocketstore.scan import Stop
from rocketstore.store import Store, open_store
from rocketstore.walk import LogWalk, SkipDamage


def verify(path: PathLike, **options: object) -> list[Finding]:
    """All findings of a store directory; no process can open it for writing meanwhile.

    Options are those of :func:`rocketstore.open`. O(bytes of the log). Raises
    :class:`journal.errors.LockedError` when a process has it open for writing, and the errors of
    open.
    """
    path = checked_path(path)
    fs: Any = beneath(cast("FileSystem", options.get("fs", REAL)), path)
    try:
        lock = StoreLock(fs, Paths(path).lock, change=False)
    except (FileNotFoundError, NotADirectoryError):
        lock = None  # no store was ever opened here for writing
    try:
        with open_store(path, **{**options, "read_only": True}) as store:
            others = open_to_others(fs, path)
            return [*_special_files(fs, path), *others, *verify_parts(store)]
    finally:
        if lock is not None:
            lock.release()


def _special_files(fs: FileSystem, directory: str) -> Iterator[Finding]:
    """Find what is neither a file nor a directory, anywhere below."""
    for name in sorted(fs.listdir(directory)):
        inner = os.path.join(directory, name)
        try:
            mode = fs.stat(inner).st_mode
            odd = special(mode)
            if odd is not None:
                what = Kind.FOREIGN_FILE
                yield Finding(inner, 0, 0, Cause.DAMAGE, odd, "it is not read", what)
            elif stat.S_ISDIR(mode):
                yield from _special_files(fs, inner)
        except FileNotFoundError:
            continue  # deleted meanwhile


def verify_parts(store: Store) -> Iterator[Finding]:
    """The findings of an open store, the ones of its open first.

    Queues and index follow from the log: while the log has holes, they are not held against it.
    """
    parts = store._parts
    yield from parts.findings
    queues = QueueRepairs(parts, None, dry=True)
    index = IndexCheck(parts, None, crashed=False, dry=True)
    commitlog = parts.commitlog
    holes = SkipDamage(commitlog)
    start = max(commitlog.min_offset, 0)
    walk = LogWalk(commitlog, start, keep_bad_bodies=True, on_damage=holes)
    for base, records in walk:
        moved = np.flatnonzero(records.offsets != records.positions + base)
        if len(moved):
            at = base + int(records.positions[moved[0]])
            yield _damage(parts, at, "a record says that it stands elsewhere")
        batch = from_records(records, base)
        queues.put(batch, records, base)
        if parts.options.index:
            index.put(batch)
    for offset in walk.bad_bodies:
        what = "the body does not match its checksum"
        yield _damage(parts, offset, what, Kind.CHECKSUM)
    if walk.stop is Stop.BAD:
        # The last one is where the log ends.
        yield from _torn_end(parts, holes.skipped.pop())
    for offset in holes.skipped:
        yield _damage(parts, offset, "no record stands here, but sound ones follow")
    if holes.skipped:
        return
    note = load_note(parts.fs, parts.paths.dispatch_note)
    if note is not None and note.last[1] and walk.end <= note.last[0]:
        what = f"the log ends here, and was on disk up to offset {note.offset}"
        yield _damage(parts, walk.end, what, Kind.TORN)
    yield from _finish_queues(queues)
    problem = index.problem()
    if problem is not None:
        yield problem


def _damage(parts: Parts, offset: int, what: str, kind: Kind = Kind.RECORD) -> Finding:
    file = parts.commitlog.files.find(offset)
    path = file.path if file is not None else parts.paths.commitlog
    start = file.start if file is not None else 0
    return Finding(path, offset - start, 0, Cause.DAMAGE, what, kind=kind)


def _torn_end(parts: Parts, end: int) -> Iterator[Finding]:
    file = parts.commitlog.files.find(end)
    if file is None:
        return
    head = parts.commitlog.files.read(file, end - file.start, 16)
    if head.strip(b"\0"):
        yield Finding(
            file.path,
            end - file.start,
            0,
            Cause.CRASH,
            "a torn record at the log's end",
            "open for writing removes it; it was never acknowledged as durable",
            Kind.TORN,
        )


def _finish_queues(queues: QueueRepairs) -> Iterator[Finding]:
    for _, repair in sorted(queues.each.items()):
        queue, unit, end = repair.queue, repair.bad_unit, repair.next_unit
        if unit < 0 and end is not None and queue.max_offset > end:
            unit = end
        if unit >= 0:
            yield Finding(
                queue.directory,
                unit * UNIT_SIZE,
                UNIT_SIZE,
                Cause.CRASH,
                f"unit {unit} does not agree with the log",
                "open for writing rebuilds it",
                Kind.MISMATCH,
            )
