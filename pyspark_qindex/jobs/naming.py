"""Names of what a job makes: one directory for each store that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

__all__ = ["STORES", "store_names"]

STORES = "stores"
"""Directory below a job's output that holds the stores it made."""


def store_names(stores: Sequence[str]) -> dict[str, str]:
    """Give each store (a path or URL) a directory name of its own: its path below what all have in
    common, with ``~`` for each slash.

    >>> store_names(["/srv/fleet/a/orders", "/srv/fleet/b/orders"])
    {'/srv/fleet/a/orders': 'a~orders', '/srv/fleet/b/orders': 'b~orders'}
    >>> store_names(["/srv/fleet/a/orders"])
    {'/srv/fleet/a/orders': 'orders'}
    """
    parts = {store: store.replace("://", "/").strip("/").split("/") for store in set(stores)}
    if len(parts) == 1:
        return {store: found[-1] or "store" for store, found in parts.items()}
    first, *others = parts.values()
    common = list(
        takewhile(
            lambda n: all(one[: n + 1] == first[: n + 1] for one in others), range(len(first))
        )
    )
    names: dict[str, str] = {}
    for store in sorted(parts):
        name = "~".join(parts[store][len(common) :]) or "store"
        while name in names.values():
            name += "~"
        names[store] = name
    return names
