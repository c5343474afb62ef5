"""Start to follow a queue: :func:`follow`."""

from __future__ import annotations

import os
from collections.abc import Callable

from journal.errors import StoreError, UsageError
from journal.fs.files import REAL, FileSystem, PathLike, checked_path
from qindex.following.follower import Follower, Start
from qindex.following.gap import Gap
from qindex.following.priorities import PriorityFollower
from qindex.following.waker import Waker
from qindex.view.reader import StoreReader


def follow(
    directory: PathLike,
    queue: str,
    start: Start = "earliest",
    *,
    timeout: float | None = None,
    wait: bool = False,
    poll: float = 0.05,
    events: bool = True,
    on_gap: Callable[[Gap], None] | None = None,
) -> Follower:
    """Follow a queue of a store as it is written, by this process or another.

    Nothing is written, and no lock is taken.

    Args:
        directory: The store.
        queue: The queue's name.
        start: ``"earliest"``, the oldest message in the files; ``"latest"``, the next to be
            published; or a seq_id.
        timeout: Seconds without a message after which iteration ends. None: never.
        wait: Wait for a store or queue that is not there yet.
        poll: The most seconds between two looks.
        events: Wake on file events too, if watchdog is installed.
        on_gap: Called with each gap, in its place among the messages. None: gaps are logged.

    Returns:
        An iterator over the messages, also a context manager.

    Raises:
        UsageError: There is no such queue, and ``wait`` is false.
        NotAStoreError: It is not a store.
        StorageError: The system refused an operation.
    """
    return follow_store(
        directory,
        queue,
        start,
        timeout=timeout,
        wait=wait,
        poll=poll,
        events=events,
        on_gap=on_gap,
        fs=REAL,
    )


def follow_store(
    directory: PathLike,
    queue: str,
    start: Start = "earliest",
    *,
    timeout: float | None = None,
    wait: bool = False,
    poll: float = 0.05,
    events: bool = True,
    on_gap: Callable[[Gap], None] | None = None,
    fs: FileSystem,
) -> Follower:
    """Follow a queue as :func:`follow` does, on any file system."""
    path = os.path.abspath(checked_path(directory))
    waker = Waker(_checked_poll(poll), events=events)
    if _has_priorities(path, queue, fs):
        return PriorityFollower(
            path, queue, start, timeout=timeout, waker=waker, on_gap=on_gap, fs=fs
        )
    return Follower(
        path, queue, start, timeout=timeout, wait=wait, waker=waker, on_gap=on_gap, fs=fs
    )


def _has_priorities(directory: str, queue: str, fs: FileSystem) -> bool:
    """Return whether there is a store with a priority queue of this name."""
    try:
        store = StoreReader(directory, fs)
        found = store.queue(queue).directories[0]
    except (StoreError, TypeError, AttributeError):
        return False  # a follower reports the error
    return store.marker is not None and found.priority is not None and queue != found.directory


def _checked_poll(poll: float) -> float:
    if not isinstance(poll, int | float) or not 0.0001 <= poll <= 3600:
        raise UsageError(f"poll must be 0.0001 to 3600 seconds, not {poll!r}")
    return float(poll)
