"""Open a store for a command that changes it: in this process, or through a server."""

from __future__ import annotations

import os
from typing import Any, Unpack

import qindex
from journal.errors import NotAStoreError
from qindex.format import layout
from qindex.options import OpenOptions
from qindex.view.reader import StoreReader


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
