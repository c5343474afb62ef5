"""What happens after a write or a sync failed: the store takes no more writes.

A failed fsync leaves pages whose state nobody knows, and the kernel reports it once: a retry that
succeeds proves nothing (the "fsyncgate" of PostgreSQL, 2018). So the failure is a state of the
engine, kept here, and every later write is refused with the first reason. Reading goes on.
"""

from __future__ import annotations

from journal.errors import WritesRefusedError

__all__ = ["Poison"]


class Poison:
    """Shared by all files of one engine; ``reason`` is ``None`` while all is well."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def set(self, error: BaseException) -> None:
        """Refuse writes from now on; the first reason is kept."""
        if self.reason is None:
            self.reason = str(error)

    def check(self) -> None:
        """Raise :class:`WritesRefusedError` when a write or sync has failed before."""
        if self.reason is not None:
            raise WritesRefusedError(
                f"no more writes: an earlier one failed ({self.reason}); "
                "close, see to the disk, and open again"
            )
