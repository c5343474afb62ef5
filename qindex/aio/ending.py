"""An engine that was not closed when its loop ended, or when its last user dropped it.

``asyncio.run`` ends the asynchronous generators of its loop before it closes that: one of ours
is there for each engine that was opened in a loop, and closes it. Where a loop is closed
without that, the engine is closed when the last of its queues is given up.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import AsyncGenerator
from functools import partial

from journal.background import Background
from journal.errors import StoreError
from qindex.aio.ports import Ports
from qindex.aio.threads import Helper, Syncer, running_loop, to_the_end
from qindex.engine.engine import Engine

_log = logging.getLogger("qindex.aio")


async def close_at_the_end(engine: Engine, ports: Ports) -> None:
    """Close an engine, with a :class:`ResourceWarning`, at the end of the running loop if no other
    loop uses it, or when ``ports`` are given up."""
    helper, syncer = ports.helper, ports.syncer
    guard = _guard(engine, weakref.ref(ports), helper, syncer)
    await anext(guard)
    ports.guard = guard
    given_up = weakref.finalize(ports, _given_up, engine, helper, syncer)
    given_up.atexit = False  # the lock ends with the process


async def _guard(
    engine: Engine, ports: weakref.ref[Ports], helper: Helper, syncer: Syncer
) -> AsyncGenerator[None]:
    loop = running_loop()
    try:
        yield
    finally:
        used = ports()
        if used is None:
            # It was given up, and a thread closes it: the end of the loop waits for that.
            await to_the_end(loop.run_in_executor(None, _close, engine, syncer))
        elif not engine.closed and not used.is_used_beside(loop):
            _warn(engine)
            try:
                await helper.finish(partial(_close, engine, syncer))
            finally:
                helper.stop()


def _given_up(engine: Engine, helper: Helper, syncer: Syncer) -> None:
    if engine.closed:
        return
    _warn(engine)
    helper.stop()
    # In a thread of its own: the collector may run in the middle of any call.
    Background(partial(_close, engine, syncer), "qindex-aio-end").start()


def _warn(engine: Engine) -> None:
    warnings.warn(f"{engine!r} was not closed", ResourceWarning, stacklevel=2)


def _close(engine: Engine, syncer: Syncer) -> None:
    syncer.stop()
    try:
        engine.close()
    except (StoreError, OSError) as error:
        _log.error("%r: closed at the end of its loop: %s", engine, error)
