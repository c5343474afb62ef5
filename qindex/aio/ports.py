"""The threads of an engine's asyncio face, and the way of each loop to them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator

from qindex.aio.port import Port
from qindex.aio.threads import Helper, Syncer


class Ports:
    """One :class:`~qindex.aio.port.Port` for each loop, over one syncer and one helper.

    ``helper``: the thread for calls that may block; ``syncer``: the one for syncs; ``guard``: what
    closes the engine at the end of its loop (:mod:`qindex.aio.ending`). Methods are called on the
    thread of a running loop. ``noting``: the loops that have messages which they are yet to append.
    """

    def __init__(self) -> None:
        self.helper: Helper = Helper()
        self.syncer: Syncer = Syncer()
        self.guard: AsyncGenerator[None] | None = None
        self._ports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Port] = (
            weakref.WeakKeyDictionary()
        )
        self._last: Port | None = None
        self.noting: set[Port] = set()

    def is_used_beside(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether another loop, which is not closed, has used it."""
        return any(one is not loop and not one.is_closed() for one in list(self._ports))

    async def let_go(self) -> None:
        """The engine was closed: the end of its loop is nothing to it any more."""
        guard, self.guard = self.guard, None
        if guard is not None:
            await guard.aclose()

    def here(self) -> Port:
        """Give that of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last.loop() is loop:
            return last
        port = self._ports.get(loop)
        if port is None:
            port = self._ports[loop] = Port(loop, self.syncer, self.helper, self.noting)
        self._last = port
        return port
