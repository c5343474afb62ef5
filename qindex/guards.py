"""Locks that refuse: what stands in the place of a queue's lock after close or fork.

The hot paths check nothing: they enter ``with self._lock``. Closing a queue, or finding oneself in
a forked child, puts one of these there.
"""

from __future__ import annotations

from types import TracebackType

from journal.errors import StoreError

__all__ = ["RefusingLock"]


class RefusingLock:
    """Raises ``kind(text)`` instead of locking."""

    def __init__(self, kind: type[StoreError], text: str) -> None:
        self._kind = kind
        self._text = text

    def __enter__(self) -> bool:
        raise self._kind(self._text)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None
