"""When a server reads on: the flow control of one connection, without the connection.

A client may send requests without waiting for their replies. They are handled in order, and stay
unread while it has too much to take, or too many calls under way. Each of both comes to an end by
something that the server hears of: bytes go into the socket, or a call ends. After that it asks
:meth:`Flow.goes_on`, and handles the requests that were put off, or reads new ones.
"""

from __future__ import annotations

MAX_OWED = 1 << 20
"""Bytes that a client has not taken: above it, no request of it is handled, and nothing pushed."""
MAX_UNDER_WAY = 8
"""Calls of one connection that other threads make at a time."""


class Flow:
    """Count what one connection has to its credit. ``owed``: bytes of replies and messages that its
    socket has not taken; ``under_way``: calls of it that other threads make; ``is_held``: its next
    request is put off."""

    __slots__ = ("is_held", "owed", "under_way")

    def __init__(self) -> None:
        self.owed: int = 0
        self.under_way: int = 0
        self.is_held: bool = False

    def goes_on(self) -> bool:
        """Return whether the next request may be handled. One that was put off waits until there is
        room for several."""
        if self.is_held:
            is_free = 2 * self.under_way < MAX_UNDER_WAY
        else:
            is_free = self.under_way < MAX_UNDER_WAY
        self.is_held = not is_free or self.owed >= MAX_OWED
        return not self.is_held

    def reads(self) -> bool:
        """Return whether its socket is to be read."""
        return not self.is_held and self.owed < MAX_OWED
