"""Engines that several objects of one process share: one for each directory, while it is used."""

from __future__ import annotations

import os
import threading

import qindex

__all__ = ["acquire", "release"]

_lock = threading.Lock()
_engines: dict[str, tuple[qindex.Engine, int]] = {}


def acquire(directory: str | os.PathLike[str]) -> qindex.Engine:
    """Give the engine of ``directory``; opens it for the first who asks.

    Each call needs one of :func:`release`. Raises as :func:`qindex.open`.
    """
    path = os.path.realpath(directory)
    with _lock:
        known = _engines.get(path)
        engine, users = known if known is not None else (qindex.open(path), 0)
        _engines[path] = engine, users + 1
        return engine


def release(engine: qindex.Engine) -> None:
    """Give an engine back; the last one closes it. Raises as :meth:`qindex.Engine.close`."""
    path = os.path.realpath(engine.directory)
    with _lock:
        known = _engines.get(path)
        if known is None or known[0] is not engine:
            return  # of the parent process
        if known[1] > 1:
            _engines[path] = engine, known[1] - 1
            return
        del _engines[path]
        engine.close()


def _after_fork() -> None:
    """In a forked child: what the parent has open is not the child's."""
    global _lock
    _lock = threading.Lock()
    _engines.clear()


os.register_at_fork(after_in_child=_after_fork)
