"""The stores that a job is given: of all kinds, at or below its paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from journal.errors import UsageError
from pyspark_qindex.stores import Store, find_stores, is_queue_store, is_rocket_store
from qindex.recovery import store_directory

__all__ = ["FleetStore", "find_fleet"]


@dataclass(frozen=True, slots=True)
class FleetStore:
    """A store, and whether it is a RocketMQ one."""

    store: Store
    is_rocket: bool


def find_fleet(paths: Sequence[str], storage: dict[str, str] | None = None) -> list[FleetStore]:
    """Give all stores at or below ``paths``, sorted within each.

    Raises :class:`UsageError` for no path and for a glob without matches, :class:`NotAStoreError`
    for a path that has no store at or below it, or one of a newer format, :class:`StorageError`.
    """
    if not paths:
        raise UsageError("no path is given")
    found = find_stores(tuple(paths), storage or {}, _is_any)
    fleet = [FleetStore(store, not is_queue_store(_names(store))) for store in found]
    for one in fleet:
        if one.store.named and not one.is_rocket:
            store_directory.store_kind(one.store.file_system(), one.store.path)
    return fleet


def _is_any(names: set[str]) -> bool:
    return is_queue_store(names) or is_rocket_store(names)


def _names(store: Store) -> set[str]:
    return set(store.file_system().listdir(store.path))
