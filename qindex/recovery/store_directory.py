"""Classify a directory: a store of qindex, a RabbitMQ virtual host, or neither. Read its
marker. Refuse to write to a directory that is only read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from shlex import quote
from typing import NoReturn

from journal.errors import DamageError, NotAStoreError, UsageError
from journal.fs.files import FileSystem, names_in, read_optional, unlink_if_there
from journal.schema import check
from msgstore.format import NODE_STATE_NAMES
from qindex.format.layout import (
    LOCK,
    MARKER,
    MARKER_SHAPE,
    QUEUES,
    RECOVERY_TERMS,
    SERVER_FILES,
    VERSIONS,
    StoreMarker,
    unpack_checked,
)
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX as INDEX_SUFFIX
from qindex.format.rabbitmq.queue_store_v2 import SUFFIX as STORE_SUFFIX
from qindex.index.messages import PERSISTENT_DIRECTORY, has_message_store

_OURS_BEFORE_MARKER = frozenset({LOCK, MARKER + ".tmp"}) | SERVER_FILES


def read_marker(fs: FileSystem, directory: str) -> StoreMarker | None:
    """Read the marker. Return None if there is none.

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
    return StoreMarker(
        value["segment_entry_count"], value["vhost"], version, value.get("identity", 0)
    )


def find_marker(fs: FileSystem, directory: str) -> StoreMarker | None:
    """Return the marker of a store of qindex; ``None`` for a RabbitMQ virtual host.

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
            "use its msg_stores/vhosts/<name> directory"
        )
    raise NotAStoreError(f"{directory}: neither a qindex store nor a RabbitMQ vhost directory")


def is_empty_store(names: list[str]) -> bool:
    """Return whether a directory with these names is free to become a store (an earlier attempt
    may have been cut short)."""
    return not set(names) - _OURS_BEFORE_MARKER


def refuse_version2(directory: str, marker: StoreMarker | None) -> None:
    """Raise :class:`UsageError` for a store of qindex in RabbitMQ's version 2: it is only read."""
    if marker is not None and marker.in_version2:
        raise UsageError(
            f"{directory}: a store in RabbitMQ's version 2, which is only read: run "
            f"`qindex convert {quote(directory)} --to 2 --out NEW` for a directory that a node of "
            f"4.x starts from, or `qindex repair {quote(directory)} --out NEW` for a store to open"
        )


def refuse_vhost(fs: FileSystem, directory: str) -> NoReturn:
    """Raise :class:`NotAStoreError` for a RabbitMQ virtual host's directory: it is only read.
    Raises :class:`OSError`."""
    what = f"{directory}: a RabbitMQ directory; open it with read_only=True"
    queues = os.path.join(directory, QUEUES)
    if any(_pairs_in(names_in(fs, os.path.join(queues, name))) for name in names_in(fs, queues)):
        what += (
            f", or run `qindex salvage {quote(directory)} --out NEW` for a store to open; its "
            "queues have version 2, and get version 1 by "
            f"`qindex convert {quote(directory)} --to 1`"
        )
    raise NotAStoreError(what)


def refuse_pairs(path: str, names: Iterable[str]) -> None:
    """Raise :class:`UsageError` for a queue's directory in a store of qindex to which somebody has
    brought a node's files of version 2: an engine would not see their messages."""
    pairs = _pairs_in(names)
    if pairs:
        raise UsageError(
            f"{path}: {pairs[0]} is of RabbitMQ's version 2, which no engine opens: put the "
            "queues back into the node's directory, and run `qindex convert VHOST --to 1` there, "
            "or `qindex salvage VHOST --out NEW` for a store to open"
        )


def _pairs_in(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith((INDEX_SUFFIX, STORE_SUFFIX))]


def was_with_a_node(fs: FileSystem, directory: str) -> bool:
    """Return whether a node has left files of its own in a store. Raises :class:`OSError`."""
    if RECOVERY_TERMS in fs.listdir(directory):
        return True
    store = os.path.join(directory, PERSISTENT_DIRECTORY)
    return has_message_store(fs, directory) and bool(set(NODE_STATE_NAMES) & {*fs.listdir(store)})


def forget_node(fs: FileSystem, directory: str) -> None:
    """Remove what tells of a node, which would believe it at its next start. Durable on return.
    Raises :class:`OSError`."""
    store = os.path.join(directory, PERSISTENT_DIRECTORY)
    if has_message_store(fs, directory):
        gone = [unlink_if_there(fs, os.path.join(store, name)) for name in NODE_STATE_NAMES]
        if any(gone):
            fs.sync_dir(store)
    if unlink_if_there(fs, os.path.join(directory, RECOVERY_TERMS)):
        fs.sync_dir(directory)
