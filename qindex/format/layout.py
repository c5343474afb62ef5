"""Names in a store directory, all made here; see docs/format.md for a picture.

::

    data/
      qindex.store   says that this is a store (this module's marker)
      qindex.lock    the writer's lock
      qindex.clean   the clean-shutdown snapshot
      qindex.transactions
                     what spans queues: transactions, and messages on their way to another queue
      qindex.sock, qindex.server, qindex.server.log
                     a server's socket, lock and log, where processes share the store
      qindex.spark/  what Spark's streaming queries have ready to publish, and how far they are
      queues/<hash>/ .queue_name  journal.jif  0.idx 1.idx ...  qindex.seq
                     qindex.settings  qindex.deliveries
      queues/<hash>.deleted/      a queue whose deletion a crash cut short

``<hash>`` is RabbitMQ's name for a queue's directory (:mod:`qindex.format.rabbitmq.names`). What is
ours has names that RabbitMQ ignores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import msgpack
from xxhash import xxh3_64_digest

from journal.packed import unpack
from journal.schema import Int, OneOf, Record, Text
from qindex.format.segment import MAX_ENTRY_COUNT

MARKER = "qindex.store"
LOCK = "qindex.lock"
QUEUES = "queues"
CONFIG = ".config"
RECOVERY_TERMS = "recovery.dets"
"""A node's file: what it knew of its queues when it was stopped in order."""
QUEUE_NAME = ".queue_name"
SETTINGS = "qindex.settings"
MOVES = "qindex.moves"
"""A file of earlier versions, which had moves to other queues in a file of their own."""
TRANSACTIONS = "qindex.transactions"
IMPORT = "qindex.import"
STAGING = "qindex.spark"
SERVER_SOCKET = "qindex.sock"
SERVER_MAKING = "qindex.sock.new"
"""A directory of a moment, in which the socket is made."""
SERVER_LOCK = "qindex.server"
SERVER_LOG = "qindex.server.log"
SERVED = "qindex.served"
SERVER_FILES = frozenset({SERVER_SOCKET, SERVER_MAKING, SERVER_LOCK, SERVER_LOG, SERVED})
"""What a server of several processes has in the directory."""
CONVERSION = "qindex.convert"
"""The directory in a virtual host's in which its queues are converted."""
DELETED_SUFFIX = ".deleted"
MAX_NAME_BYTES = 255
"""Of a queue or a virtual host, as UTF-8: what AMQP's short strings hold."""

VERSIONS = (1, 2)
"""Of a store: that of RabbitMQ's whose queue files its segments have."""
VHOST_SHAPE = Text(MAX_NAME_BYTES)
MARKER_SHAPE = Record(
    {
        "qindex": OneOf(VERSIONS),
        "segment_entry_count": Int(1, MAX_ENTRY_COUNT),
        "vhost": VHOST_SHAPE,
    },
    {"identity": Int(1, (1 << 64) - 1)},
)


@dataclass(frozen=True, slots=True)
class StoreMarker:
    """The content of the marker file: entries a segment, the virtual host in the names, the
    version of RabbitMQ's queue files that the segments have, and the store's identity: 64 random
    bits, or 0 for a store that an earlier version made."""

    entry_count: int
    vhost: str
    version: int = 1
    identity: int = 0

    @property
    def in_version2(self) -> bool:
        """Whether the segments are ``K.qi`` and ``K.qs``: such a store is read, never written."""
        return self.version == 2


def new_identity() -> int:
    """Return 64 random bits, not all zero: the identity of a store, or the incarnation of a
    queue."""
    return int.from_bytes(os.urandom(8), "big") or 1


def pack_marker(marker: StoreMarker) -> bytes:
    """Return the marker file's bytes: msgpack and its checksum, twice.

    Without the entry count no segment can be read, so one flipped bit must not cost it.
    """
    value = {
        "qindex": marker.version,
        "segment_entry_count": marker.entry_count,
        "vhost": marker.vhost,
    }
    return 2 * pack_checked(value | ({"identity": marker.identity} if marker.identity else {}))


def pack_checked(value: object) -> bytes:
    """Return ``value`` as msgpack, and eight bytes of xxh3 over that."""
    packed: bytes = msgpack.packb(value)
    return packed + xxh3_64_digest(packed)


def unpack_checked(data: bytes) -> Any:
    """Return the value. Raises :class:`ValueError` if the checksum does not match."""
    if xxh3_64_digest(data[:-8]) != data[-8:]:
        raise ValueError("the checksum does not hold")
    return unpack(data[:-8])
