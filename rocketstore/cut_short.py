"""What becomes of a store when a call is ended in the middle, by what is no error of its own.

A signal's handler may raise (Ctrl-C), behind any call that is made and at the start of any
function, and memory may run out. A single put is done or not done, see
:meth:`rocketstore.Store.put`. Elsewhere log, queues and index may no longer agree, nor what is
noted of them: that is for recovery to judge, as after a crash at that point. So nothing is written
any more, and nobody asks the queues, until the next open.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from journal.errors import StoreError

if TYPE_CHECKING:
    from rocketstore.putter import Putter

__all__ = ["WholeOrNothing"]


class WholeOrNothing:
    """A part of a call that changes a store: ended by its own errors, or by its end, or else the
    store is used no more. A context manager, with the store's lock held or not."""

    __slots__ = ("_store",)

    def __init__(self, store: Putter) -> None:
        self._store = store

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, StoreError | OSError):
            self._store._pending.cut_short(error)
