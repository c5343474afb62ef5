"""Engines that several objects of one process share: one for each directory, while it is used.

No lock is held while an engine is opened or closed. Only calls for the same directory wait
meanwhile, for the thread that does so. When a signal's handler or a finalizer gives an engine back
in the middle of a call here, that call closes it at its end.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

import qindex
from journal.errors import StoreError, UsageError
from journal.locks.call_lock import CallLock, refuse_twice
from journal.memory import forks
from journal.threads import check_unpatched

_log = logging.getLogger("qindex.compat")

_LOOK_AGAIN = 1.0
"""Seconds after which a waiter looks again: a handler may have cut the other thread short."""


class Shared:
    """The state that the objects of one queue share; ``kind``: how they use it, in words."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.users = 0


S = TypeVar("S", bound=Shared)


class _Use:
    """The use of one directory. ``busy``: the thread that opens or closes its engine, or 0;
    ``queues``: the shared state of its queues, by their names."""

    __slots__ = ("busy", "engine", "queues", "users")

    def __init__(self) -> None:
        self.engine: qindex.Engine | None = None
        self.users = 0
        self.busy = 0
        self.queues: dict[str, Shared] = {}


_lock = CallLock()
_changed = threading.Condition(_lock)  # type: ignore[arg-type]
_uses: dict[str, _Use] = {}
_given_back: deque[qindex.Engine] = deque()


def acquire(directory: str | os.PathLike[str]) -> qindex.Engine:
    """Return the engine of ``directory``; the first call opens it.

    Each call needs one of :func:`release`. Raises as :func:`qindex.open`.
    """
    check_unpatched()
    _forget_parents()
    path = os.path.realpath(directory)
    me = get_ident()
    use: _Use | None = None
    engine: qindex.Engine | None = None
    try:
        with _lock:
            use = _idle(path)
            if use is not None and use.engine is not None:
                use.users += 1
                return use.engine
            use = _uses[path] = _Use()
            use.busy = me
        engine = qindex.open(path)
        return engine
    except BaseException:
        if engine is not None and use is not None:
            engine.close()
            engine = None
        raise
    finally:
        if use is not None and use.busy == me:
            with _lock:
                use.engine, use.users, use.busy = engine, 1, 0
                if engine is None and _uses.get(path) is use:
                    del _uses[path]
                _changed.notify_all()
        _see_to_others()


def _idle(path: str) -> _Use | None:
    """Wait until no thread opens or closes the engine of a directory, and return its use.

    The lock is held, but not meanwhile."""
    while True:
        use = _uses.get(path)
        if use is None or not use.busy:
            return use
        if use.busy == get_ident():
            refuse_twice()
        _changed.wait(_LOOK_AGAIN)


def release(engine: qindex.Engine) -> None:
    """Release an engine; the last release closes it. Raises as :meth:`qindex.Engine.close`."""
    _forget_parents()
    _given_back.append(engine)
    _see_to()


def _see_to_others() -> None:
    """Close the engines that a handler gave back meanwhile. Errors are logged: no caller waits."""
    if not _given_back:
        return
    try:
        _see_to()
    except (StoreError, OSError) as error:
        _log.error("%s", error)


def _see_to() -> None:
    """Count the engines that were given back, and close those without a user."""
    while _given_back and not _lock.is_mine():
        with _lock:
            last = _count_one()
        if last is None:
            continue
        path, use, engine = last
        try:
            engine.close()
        finally:
            with _lock:
                use.busy = 0
                if _uses.get(path) is use:
                    del _uses[path]
                _changed.notify_all()


def _count_one() -> tuple[str, _Use, qindex.Engine] | None:
    """Count one engine that was given back; return its use if no user is left. Lock held."""
    if not _given_back:
        return None  # another thread has
    engine = _given_back.popleft()
    path = engine.directory
    use = _uses.get(path)
    if use is None or use.engine is not engine:
        return None  # of the parent process
    use.users -= 1
    if use.users:
        return None
    use.engine, use.busy = None, get_ident()
    return path, use, engine


def join(engine: qindex.Engine, name: str, make: Callable[[], S]) -> S:
    """Return what the objects of one queue share, and count one more; ``make`` is called for the
    first, and may not take its time.

    Raises :class:`UsageError` where the queue is used in another way.
    """
    made = make()
    with _lock:
        queues = _uses[engine.directory].queues
        shared = queues.setdefault(name, made)
        if shared.kind != made.kind or type(shared) is not type(made):
            raise UsageError(
                f"queue {name!r} of {engine.directory} is open in this process as {shared.kind}; "
                f"it can't be {made.kind} at the same time"
            )
        shared.users += 1
        return shared


def leave(engine: qindex.Engine, name: str, shared: Shared) -> bool:
    """Count one less; true when that was the last."""
    with _lock:
        shared.users -= 1
        if shared.users:
            return False
        use = _uses.get(engine.directory)
        if use is not None and use.queues.get(name) is shared:
            del use.queues[name]
        return True


def is_inherited(engine: qindex.Engine) -> bool:
    """Return whether this process is a forked child of the process that opened the engine. An
    object that uses the engine closes without a change then."""
    return engine._lock.is_inherited()


def _forget_parents() -> None:
    """In a forked child: the engines that the parent has open are not the child's."""
    global _lock, _changed
    if not _lock.is_inherited():
        return
    _lock = CallLock()
    _changed = threading.Condition(_lock)  # type: ignore[arg-type]
    _uses.clear()
    _given_back.clear()


forks.in_child(_forget_parents)
