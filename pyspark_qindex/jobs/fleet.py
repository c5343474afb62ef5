"""The stores that a job is given, of all kinds, at or below its paths; and the names of those that
it makes of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from journal.arguments import listed
from journal.errors import UsageError
from pyspark_qindex.filesystem import local_path
from pyspark_qindex.stores import Store, find_stores
from qindex.recovery import store_directory
from rocketstore.layout import Paths
from rocketstore.queues.offsets import ConsumerOffsets

_STORES = "stores"
"""Directory below a job's output that holds the stores it made."""


def find_fleet(paths: Sequence[str], storage: dict[str, str] | None = None) -> list[Store]:
    """Return all stores at or below ``paths``, sorted within each.

    Raises :class:`UsageError` for no path and for a glob without matches, :class:`NotAStoreError`
    for a path that has no store at or below it, or one of a newer format, :class:`StorageError`.
    """
    paths = listed(paths, "paths")
    if not paths:
        raise UsageError("no path is given")
    fleet = find_stores(paths, storage or {})
    for store in fleet:
        if store.named and not store.is_rocket:
            store_directory.find_marker(store.file_system(), store.path)
    return fleet


def committed_offsets(store: Store) -> Iterator[tuple[str, str, int]]:
    """Yield queue (``TOPIC/QUEUEID``), consumer group, and the queue offset it asks for next."""
    fs = store.file_system()
    offsets = ConsumerOffsets(fs, Paths(store.path).consumer_offset, writable=False)
    for name, table in offsets.table.items():
        topic, _, consumer_group = name.partition("@")
        for queue_id, at in table.items():
            yield f"{topic}/{queue_id}", consumer_group, at


def new_stores(out: str, stores: Sequence[str]) -> dict[str, str]:
    """Return the place, below ``out``, of the store that a job makes for each store (a path or
    URL).

    Raises :class:`UsageError` where ``out`` is not local.
    """
    root = os.path.join(local_path(out, "out"), _STORES)
    return {store: os.path.join(root, name) for store, name in store_names(stores).items()}


def store_names(stores: Sequence[str]) -> dict[str, str]:
    """Return a directory name for each store (a path or URL): its path below what all have
    in common, with ``~`` for each slash.

    >>> store_names(["/srv/fleet/a/orders", "/srv/fleet/b/orders"])
    {'/srv/fleet/a/orders': 'a~orders', '/srv/fleet/b/orders': 'b~orders'}
    >>> store_names(["/srv/fleet/a/orders"])
    {'/srv/fleet/a/orders': 'orders'}
    """
    parts = {store: store.replace("://", "/").strip("/").split("/") for store in set(stores)}
    shared = [len(set(names)) == 1 for names in zip(*parts.values(), strict=False)]
    common = [*shared, False].index(False) if len(parts) > 1 else -1
    names: dict[str, str] = {}
    for store in sorted(parts):
        name = "~".join(parts[store][common:]) or "store"
        while name in names.values():
            name += "~"
        names[store] = name
    return names
