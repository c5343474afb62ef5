"""The budget of files that an engine may have open."""

from __future__ import annotations

import resource

from journal.fs.files import MAPS_KEEP_HANDLES

_FOR_A_JOURNAL = 3 if MAPS_KEEP_HANDLES else 1
"""Handles: of the file, and where maps keep theirs, of its map and that of its checksums."""
_FOR_OTHERS = 16
"""Handles: the lock, dead letters on their way, files that are open for the time of one call."""
_STORES = 2
_PART_FOR_STORES = 8
_PART_OF_PROCESS = 4
_DEFAULT_PART = 2
_MAX_BY_DEFAULT = 4096
_LEAST = 64


class FileBudget:
    """The parts of an engine's budget of files: ``journals`` of queues in use, and
    ``store_files`` for each of the two message stores."""

    def __init__(self, max_open_files: int | None) -> None:
        """``max_open_files``: at most three quarters of the files that the process may open are
        used. ``None``: half of them, at most 4,096."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            soft = 1 << 30
        if max_open_files is None:
            max_open_files = min(max(soft // _DEFAULT_PART, _LEAST), _MAX_BY_DEFAULT)
        most = min(max_open_files, soft - soft // _PART_OF_PROCESS)
        self.store_files: int = max(most // _PART_FOR_STORES, 1)
        left = most - _FOR_OTHERS - _STORES * self.store_files
        self.journals: int = max(left // _FOR_A_JOURNAL, 1)
