"""Open a store for a command that changes it: in this process, or through a server."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Unpack

import qindex
from journal.errors import NotAStoreError, StoreError
from qindex.format import layout
from qindex.options import OpenOptions
from qindex.view.reader import QueueSummary, StoreReader

if TYPE_CHECKING:
    from qindex.queue.stats import EngineStats


def open_here(directory: str, **options: Unpack[OpenOptions]) -> qindex.AnyEngine:
    """Open a store as :func:`qindex.open` does, or use the server that has it open."""
    passing: Any = served(directory) or options
    engine: qindex.AnyEngine = qindex.open(directory, **passing)
    return engine


def known_queue(directory: str, queue: str) -> str:
    """Return the name of a queue that is there, in a store of qindex, and make nothing. Raises
    :class:`StoreError`."""
    store = StoreReader(directory)
    name = store.queue(queue).name
    refuse_node(store, directory, "its node alone may change it")
    return name


def refuse_node(store: StoreReader, directory: str, why: str) -> None:
    """Raise :class:`NotAStoreError` if a store is a RabbitMQ node's; it says ``why``."""
    if store.kind != "qindex":
        raise NotAStoreError(f"{directory}: a RabbitMQ directory: {why}")


def served(directory: str) -> dict[str, Any]:
    """Return the options by which a running server of a store is used; none without one."""
    if os.path.lexists(os.path.join(directory, layout.SERVER_SOCKET)):
        from qindex.server.spawn import try_to_connect

        connected = try_to_connect(os.path.abspath(directory))
        if connected is not None:
            connected.close()
            return {"shared": True, "linger": 0.0}
    return {}


def ask_server(directory: str, found: Sequence[QueueSummary]) -> list[QueueSummary]:
    """Return figures of queues, with what only a running server of the store knows: how many
    messages are ready, and how many are with consumers. Starts no server."""
    if all(one.ready is not None for one in found):
        return list(found)
    stats = _stats_of_server(os.path.abspath(directory))
    if stats is None:
        return list(found)
    known = {one.name: (one.ready, one.unacked) for one in stats.queues}
    asked = []
    for one in found:
        # Nobody has a message of a queue that the server has not used.
        ready, unacked = known.get(one.name, (one.messages - one.delayed, 0))
        asked.append(dataclasses.replace(one, ready=ready, unacked=unacked))
    return asked


def _stats_of_server(directory: str) -> EngineStats | None:
    if not os.path.lexists(os.path.join(directory, layout.SERVER_SOCKET)):
        return None
    from qindex.client.link import Link, UnsentError, result
    from qindex.server import place
    from qindex.server import protocol as wire
    from qindex.server.spawn import try_to_connect

    try:
        connected = try_to_connect(directory)
        if connected is None:
            return None
        with closing(Link(connected)) as link:
            said = result(link.request(wire.HELLO, "qindex", wire.VERSION, None))
            if place.is_copy(directory, said[3].get(wire.INODE)):
                return None
            stats: EngineStats = wire.from_plain(result(link.request(wire.STATS))[0])
            result(link.request(wire.BYE))
    except (StoreError, UnsentError, OSError):
        return None  # it has just ended, or is of another version
    return stats
