"""The columns of every table that the data sources give, in one place; those of messages are
:data:`qindex.view.message_batches.MESSAGES`.

All columns are nullable: a row that tells of damage has ``error`` and the columns known of the
place, and nothing else. A read that fails at damage has no such row: the columns of every message
are not nullable then (:func:`without_damage`), and Spark, which looks at each value otherwise, is a
quarter quicker.

Times are as on disk, whole numbers since 1970: ``expiry`` in microseconds, ``timestamp`` in
nanoseconds, those of RocketMQ in milliseconds. ``headers`` and ``properties`` are JSON as
``qindex cat --json`` prints it. ``file`` is relative to the store.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import StructType

from qindex.view.arrow import NOT_NULL, Table

_EVERY_ENTRY: Final = ("store", "queue", "seq_id", "msg_id", "persistent", "size")
_FILLED: Final = {
    "messages": frozenset((*_EVERY_ENTRY, "redelivered")),
    "entries": frozenset((*_EVERY_ENTRY, "state", "stored", "record_size", "file", "offset")),
}


def table(ddl: str) -> Table:
    """Return the table of columns that are written as Spark writes them."""
    return dict(column.split(" ", 1) for column in ddl.split(", "))


ENTRIES: Final = table(
    "store string, queue string, seq_id bigint, msg_id binary, state string, persistent boolean, "
    "expiry bigint, size bigint, stored boolean, record_size bigint, file string, offset bigint, "
    "priority int, error string"
)
"""Index entries. ``state``: published, delivered or acked. ``stored``: the message is in the
message store; else ``record_size`` bytes of it are embedded. ``file``, ``offset``: of the publish
record."""

FILES: Final = table(
    "store string, queue string, file string, kind string, size bigint, live bigint, "
    "garbage bigint, records bigint, live_records bigint, error string"
)
"""Files. ``kind``: journal, segment or messages. ``live``: bytes of unacknowledged entries (in a
message store's file: of the messages that index entries name), ``garbage``: the rest."""

STORED: Final = table(
    "store string, file string, offset bigint, record_size bigint, msg_id binary, error string"
)
"""Records of the message store's files. ``record_size``: bytes with the frame."""

RECORDS: Final = table(
    "store string, offset bigint, record_size bigint, topic string, queue_id int, "
    "queue_offset bigint, tags string, keys string, unique_key string, flag int, sys_flag int, "
    "born_timestamp bigint, born_host string, store_timestamp bigint, store_host string, "
    "reconsume_times int, prepared_transaction_offset bigint, body_crc bigint, properties string, "
    "properties_raw binary, body binary, error string"
)
"""CommitLog records. ``offset``: physical. ``properties_raw``: as stored."""

UNITS: Final = table(
    "store string, topic string, queue_id int, queue_offset bigint, offset bigint, "
    "record_size int, tags_code bigint, file string, error string"
)
"""ConsumeQueue units. ``offset``: physical, in the CommitLog."""

INDEX: Final = table(
    "store string, file string, number bigint, key_hash int, offset bigint, seconds int, "
    "previous int, error string"
)
"""IndexFile entries. ``seconds``: since the file's first entry; ``previous``: entry of the same
slot before this one."""


def without_damage(include: str, whole: Table) -> Table:
    """Return the columns of a table, of which ``include`` is the name, as they are where no row
    tells of damage."""
    filled = _FILLED.get(include, frozenset())
    return {name: kind + NOT_NULL * (name in filled) for name, kind in whole.items()}


def spark_schema(columns: Table) -> str:
    """Return the Spark schema of a table, as Spark reads it."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def table_of(schema: StructType) -> Table:
    """Return the table that has a Spark schema."""
    return {
        field.name: field.dataType.simpleString() + ("" if field.nullable else NOT_NULL)
        for field in schema.fields
    }
