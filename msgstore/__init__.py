"""The message store that all queues of a directory share.

``MessageStore`` keeps opaque records under 16-byte message ids in ``N.rdq`` files, byte for byte
as RabbitMQ 3.10 does, counts their references, and gives the space of the dead ones back.
"""

from msgstore.compaction import CompactionReport
from msgstore.errors import MissingMessageError, StaleSnapshotError
from msgstore.locations import Location
from msgstore.store import MessageStore, StoreStats

__all__ = [
    "CompactionReport",
    "Location",
    "MessageStore",
    "MissingMessageError",
    "StaleSnapshotError",
    "StoreStats",
]
