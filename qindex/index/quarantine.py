"""Damaged bytes are set aside before anything is changed: nothing is ever thrown away in silence.

They go to ``quarantine/`` beside the file they were found in, one file for each place, named
``<file>.<offset>`` (and ``.1``, ``.2``, ... where that name is taken by other bytes), its bytes
exactly those of the damaged place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import count

from journal.findings import Finding
from journal.fs.files import FileSystem, make_dirs, read_file, read_optional, replace_file

DIRECTORY = "quarantine"


def quarantine(fs: FileSystem, path: str, offset: int, data: bytes) -> str:
    """Set ``data``, found at ``offset`` of ``path``, aside; return the new file's path.

    Durable on return. Raises :class:`journal.errors.StorageError` and :class:`OSError`.
    """
    directory = os.path.join(os.path.dirname(path), DIRECTORY)
    make_dirs(fs, directory)
    target = stem = os.path.join(directory, f"{os.path.basename(path)}.{offset}")
    for more in count(1):
        there = read_optional(fs, target)
        if there is None:
            replace_file(fs, target, data)
        if there is None or there == data:
            break
        # Another damage at the same place, at another time: both are kept.
        target = f"{stem}.{more}"
    return target


def quarantine_findings(fs: FileSystem, findings: Iterable[Finding]) -> list[str]:
    """Set the bytes of each finding aside; return the new files' paths."""
    contents: dict[str, bytes] = {}
    made = []
    for finding in findings:
        if not finding.length:
            continue
        data = contents.get(finding.path)
        if data is None:
            data = contents[finding.path] = read_file(fs, finding.path)
        piece = data[finding.offset : finding.offset + finding.length]
        made.append(quarantine(fs, finding.path, finding.offset, piece))
    return made
