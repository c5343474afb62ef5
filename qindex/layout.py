"""Names in a store directory, all made here; see docs/format.md for a picture.

::

    data/
      qindex.store   what the directory is (this module's marker)
      qindex.lock    the writer's lock
      qindex.clean   the clean-shutdown snapshot
      qindex.moves   messages on their way to a dead-letter queue
      qindex.spark/  what Spark's streaming queries have ready to publish, and how far they are
      queues/<hash>/ .queue_name  journal.jif  0.idx 1.idx ...  qindex.seq
                     qindex.settings  qindex.deliveries
      queues/<hash>.deleted/      a queue whose deletion a crash cut short

``<hash>`` is RabbitMQ's name for a queue's directory (:mod:`qindex.rabbitmq.names`). What is ours
has names that RabbitMQ ignores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import msgpack
from xxhash import xxh3_64_digest

from journal.errors import NotAStoreError
from journal.files import FileSystem, read_optional
from journal.packed import unpack

__all__ = [
    "CONFIG",
    "DELETED_SUFFIX",
    "LOCK",
    "MARKER",
    "MOVES",
    "QUEUES",
    "QUEUE_NAME",
    "SETTINGS",
    "STAGING",
    "Kind",
    "StoreMarker",
    "is_empty_store",
    "pack_checked",
    "pack_marker",
    "read_marker",
    "store_kind",
    "unpack_checked",
]

MARKER = "qindex.store"
LOCK = "qindex.lock"
QUEUES = "queues"
CONFIG = ".config"
QUEUE_NAME = ".queue_name"
SETTINGS = "qindex.settings"
MOVES = "qindex.moves"
STAGING = "qindex.spark"
DELETED_SUFFIX = ".deleted"

_VERSION = 1
_OURS_BEFORE_MARKER = frozenset({LOCK, MARKER + ".tmp"})


@dataclass(frozen=True, slots=True)
class StoreMarker:
    """What the marker file says: entries a segment, and the virtual host in the names."""

    entry_count: int
    vhost: str


@dataclass(frozen=True, slots=True)
class Kind:
    """What a directory is: ``ours`` with its marker, or a RabbitMQ virtual host's."""

    marker: StoreMarker | None

    @property
    def ours(self) -> bool:
        """Whether this engine made it."""
        return self.marker is not None


def pack_marker(marker: StoreMarker) -> bytes:
    """Give the marker file's bytes: msgpack and its checksum, twice.

    Without the entry count no segment can be read, so one flipped bit must not cost it.
    """
    return 2 * pack_checked(
        {
            "qindex": _VERSION,
            "segment_entry_count": marker.entry_count,
            "vhost": marker.vhost,
        }
    )


def pack_checked(value: object) -> bytes:
    """Give ``value`` as msgpack, and eight bytes of xxh3 over that."""
    packed: bytes = msgpack.packb(value)
    return packed + xxh3_64_digest(packed)


def unpack_checked(data: bytes) -> Any:
    """Give the value back. Raises :class:`ValueError` when the checksum does not hold."""
    if xxh3_64_digest(data[:-8]) != data[-8:]:
        raise ValueError("the checksum does not hold")
    return unpack(data[:-8])


def read_marker(fs: FileSystem, directory: str) -> StoreMarker | None:
    """Read the marker, or give ``None`` when there is none.

    Raises :class:`NotAStoreError` for one of a newer version, or of something else.
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
        version, count, vhost = value["qindex"], value["segment_entry_count"], value["vhost"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotAStoreError(f"{path}: not the marker of a qindex store") from error
    if version != _VERSION:
        raise NotAStoreError(f"{path}: version {version!r}; this program knows {_VERSION}")
    return StoreMarker(count, vhost)


def store_kind(fs: FileSystem, directory: str) -> Kind:
    """Tell what a directory is.

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
        return Kind(marker)
    if QUEUES in names or ".vhost" in names:
        return Kind(None)
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
