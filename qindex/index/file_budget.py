"""The budget of files that an engine may have open."""

from __future__ import annotations

import resource

_FOR_A_JOURNAL = 3
"""Handles: of the file, of its map (the interpreter keeps one), of its checksums."""
_FOR_OTHERS = 16
"""Handles: the lock, dead letters on their way, files that are open for the time of one call."""
_STORES = 2
_PART_FOR_STORES = 8
_PART_OF_PROCESS = 4


class FileBudget:
    """The parts of an engine's budget of files: ``journals`` of queues in use, and
    ``store_files`` for each of the two message stores."""

    def __init__(self, max_open_files: int) -> None:
        """``max_open_files``: no more than three quarters of what the process may are taken."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max_open_files
        if soft != resource.RLIM_INFINITY:
            most = min(most, soft - soft // _PART_OF_PROCESS)
        self.store_files: int = max(most // _PART_FOR_STORES, 1)
        left = most - _FOR_OTHERS - _STORES * self.store_files
        self.journals: int = max(left // _FOR_A_JOURNAL, 1)
