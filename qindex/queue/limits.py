"""The limits of a queue: ``max_length`` and ``max_bytes``, of the messages that are ready."""

from __future__ import annotations

from qindex.format.settings import QueueSettings


class Limits:
    """The limits of one queue, whose lock is held for every call.

    ``bytes``: of the bodies that are ready, counted if there is a ``max_bytes``.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self.adopt(settings)
        self.bytes = 0
        self._taken = 0
        self._taken_bytes = 0

    def adopt(self, settings: QueueSettings) -> None:
        """Take the limits of these settings."""
        self.max_length: int | None = settings.max_length
        self.max_bytes: int | None = settings.max_bytes
        self.overflow = settings.overflow

    def never_fits(self, count: int, size: int) -> bool:
        """Return whether so much would exceed a limit even of an empty queue."""
        return self._exceeds(count, size)

    def fits(self, ready: int, count: int, size: int) -> bool:
        """Return whether there is room for so much beside the ``ready`` messages."""
        return not self._exceeds(ready + self._taken + count, self.bytes + self._taken_bytes + size)

    def is_over(self, ready: int) -> bool:
        """Return whether more is ready than may be."""
        return self._exceeds(ready, self.bytes)

    def _exceeds(self, count: int, size: int) -> bool:
        return (self.max_length is not None and count > self.max_length) or (
            self.max_bytes is not None and size > self.max_bytes
        )

    def take(self, count: int, size: int) -> None:
        """Keep room for messages that are about to be published."""
        self._taken += count
        self._taken_bytes += size

    def give_back(self, count: int, size: int) -> None:
        """Release reserved room: its messages were published, or will not be."""
        self._taken -= count
        self._taken_bytes -= size
