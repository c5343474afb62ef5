"""Tell what a directory is: a store of ours, a RabbitMQ virtual host, or neither; read its
marker."""

from __future__ import annotations

import os

from journal.errors import DamageError, NotAStoreError
from journal.files import FileSystem, read_optional
from journal.schema import check
from qindex.format.layout import (
    LOCK,
    MARKER,
    MARKER_SHAPE,
    QUEUES,
    VERSIONS,
    StoreMarker,
    unpack_checked,
)

_OURS_BEFORE_MARKER = frozenset({LOCK, MARKER + ".tmp"})


def read_marker(fs: FileSystem, directory: str) -> StoreMarker | None:
    """Read the marker, or give ``None`` when there is none.

    Raises :class:`NotAStoreError` for one of a newer version, or of something else,
    :class:`DamageError` for one whose fields make no sense.
    """
    path = os.path.join(directory, MARKER)
    data = read_optional(fs, path)
    if data is None:
        return None
    half = len(data) // 2
    try:
        try:
            value = unpack_checked(data[:half])
        except ValueError:
            value = unpack_checked(data[half:])
        version = value["qindex"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotAStoreError(f"{path}: not the marker of a qindex store") from error
    if version not in VERSIONS:
        raise NotAStoreError(f"{path}: version {version!r}; this program knows {VERSIONS[-1]}")
    try:
        check(value, MARKER_SHAPE)
    except ValueError as error:
        raise DamageError(path, 0, f"the marker of the store: {error}") from error
    return StoreMarker(value["segment_entry_count"], value["vhost"], version)


def find_marker(fs: FileSystem, directory: str) -> StoreMarker | None:
    """Give the marker of a store of ours; ``None`` for a RabbitMQ virtual host.

    Raises :class:`NotAStoreError`, which says what it is not, for a file, a missing directory,
    or one of something else.
    """
    try:
        names = fs.listdir(directory)
    except NotADirectoryError as error:
        raise NotAStoreError(f"{directory}: is a file, not a store directory") from error
    except FileNotFoundError as error:
        raise NotAStoreError(f"{directory}: no such directory") from error
    marker = read_marker(fs, directory)
    if marker is not None:
        return marker
    if QUEUES in names or ".vhost" in names:
        return None
    if "msg_stores" in names or "mnesia" in names:
        raise NotAStoreError(
            f"{directory}: looks like a RabbitMQ node's directory; "
            "give its msg_stores/vhosts/<name> directory"
        )
    raise NotAStoreError(f"{directory}: neither a qindex store nor a RabbitMQ vhost directory")


def is_empty_store(names: list[str]) -> bool:
    """Tell whether a directory with these names is free to become a store (an earlier attempt
    may have been cut short)."""
    return not set(names) - _OURS_BEFORE_MARKER
