"""Locks that refuse: what stands in the place of a queue's lock after close or fork.

The hot paths check nothing: they take ``self._lock``. Closing a queue, or finding oneself in
a forked child, puts one of these there.
"""

from __future__ import annotations

import os
import weakref
from types import TracebackType
from typing import Protocol

from journal.errors import StoreError

__all__ = ["RefusingLock", "forget_at_fork", "refuse_in_child"]


class RefusingLock:
    """Raises ``kind(text)`` instead of locking."""

    def __init__(self, kind: type[StoreError], text: str) -> None:
        self._kind = kind
        self._text = text

    def take(self) -> bool:
        """Refuse."""
        raise self._kind(self._text)

    __enter__ = stand_in_line = take

    def is_mine(self) -> bool:
        """Tell that nobody has it."""
        return False

    def release(self) -> None:
        """Do nothing: nobody has it."""

    let_go = release

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class _Forkable(Protocol):
    def _forked(self) -> None: ...


_live: weakref.WeakSet[_Forkable] = weakref.WeakSet()


def refuse_in_child(engine: _Forkable) -> None:
    """Tell ``engine`` when it finds itself in a forked child."""
    _live.add(engine)


def forget_at_fork(engine: _Forkable) -> None:
    """It is closed: a fork is nothing to it any more."""
    _live.discard(engine)


def _after_fork() -> None:
    for engine in list(_live):
        engine._forked()


os.register_at_fork(after_in_child=_after_fork)
