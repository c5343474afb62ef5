"""Forked children are told: the engines that their parent had open are not their own."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class _Forkable(Protocol):
    def _forked(self) -> None: ...


_live: weakref.WeakSet[_Forkable] = weakref.WeakSet()


def refuse_in_child(engine: _Forkable) -> None:
    """Tell ``engine`` when it finds itself in a forked child."""
    _live.add(engine)


def forget_at_fork(engine: _Forkable) -> None:
    """Forget ``engine``, which is closed: it need not learn of a fork."""
    _live.discard(engine)


def _after_fork() -> None:
    for engine in list(_live):
        engine._forked()


os.register_at_fork(after_in_child=_after_fork)
