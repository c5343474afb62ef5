"""Find where a CommitLog ends without reading it: for readers, beside a writer or not.

Records follow one another up to the log's end, and there are none after it. So the first windows
of its last file hold a sound record's beginning, and the later ones hold none. A binary search
finds the last window that does, and a walk from there finds the end. A window that a larger record
hides costs time, not truth: the walk begins further back.
"""

from __future__ import annotations

from rocketstore.log.commitlog import CommitLog
from rocketstore.log.mapped_files import MappedFile
from rocketstore.log.walk import LogWalk, SkipDamage, first_sound_record

_WINDOW = 8 << 20
"""Twice what a message may have at most by default."""


def log_end(commitlog: CommitLog, known: int = 0) -> int:
    """Return the offset after the log's last sound record, as it is now.

    The log is known to reach ``known``, which is returned if no sound record follows it. Some
    windows of one file are read. Raises :class:`StorageError`."""
    known = max(known, commitlog.min_offset, 0)
    # A node makes its next files before it needs them.
    for file in reversed(commitlog.files.files.values()):
        if file.start + file.size <= known:
            break
        found = _last_known(commitlog, file, max(known - file.start, 0))
        if found is not None:
            return _end_from(commitlog, file.start + found)
    return _end_from(commitlog, known)


def _last_known(commitlog: CommitLog, file: MappedFile, low: int) -> int | None:
    """Return the position of a sound record in the last window that has one; ``None`` where the
    first one, from ``low`` on, has none."""

    def first(position: int) -> int | None:
        return first_sound_record(commitlog, file, position, min(position + _WINDOW, file.held))

    found = first(low)
    step = _WINDOW
    high = file.held
    while found is not None:
        low = found
        if low + step >= high:
            break
        found = first(low + step)
        if found is None:
            high = low + step
        step *= 2
    else:
        if high == file.held:
            return None
    while high - low > _WINDOW:
        middle = (low + high) // 2
        found = first(middle)
        if found is None:
            high = middle
        else:
            low = found
    return low


def _end_from(commitlog: CommitLog, offset: int) -> int:
    skip = SkipDamage(commitlog)
    walk = LogWalk(commitlog, offset, strict=True, keep_bad_bodies=True, on_damage=skip)
    for _ in walk:
        continue
    return walk.end
