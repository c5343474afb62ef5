"""Many messages of one topic and queue at once, in columns: their records, and their dispatch.

A batch costs a handful of numpy calls and one ``join``, where single puts would pack each header
by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from journal.errors import UsageError
from rocketstore.format import words
from rocketstore.format.commitlog_format import (
    HEADERS,
    TRANSACTION_MASK,
    host_bytes,
    with_host_bits,
)
from rocketstore.format.javahash import index_hash_many, tags_code, topic_seed
from rocketstore.format.key_columns import KeyColumns, keys_of_properties
from rocketstore.format.properties import (
    KEYS,
    PROPERTIES_MAX,
    TAGS,
    UNIQ_KEY,
    encode_properties,
    encode_usual,
    index_keys,
    java_map_order,
)
from rocketstore.log.dispatch import DispatchBatch, Int64Array
from rocketstore.queues.route import Route
from rocketstore.state import StoreState

_USUAL = {KEYS, UNIQ_KEY, TAGS}
Host = str | bytes | tuple[str, int] | None
Column = str | Sequence[str] | None


_START_FIELDS = struct.Struct(">ii").pack
_BORN = struct.Struct(">iq").pack
_STORED = struct.Struct(">q").pack
_REST = bytes(12)
"""No reconsume times, and no prepared transaction."""


class Batch:
    """The records of many messages of one topic and queue, in columns.

    ``properties`` and ``flags``: one for each message, or one for all. ``sizes``: bytes of the
    records. ``store_time`` (ms) is set when they are stored. Raises :class:`UsageError` naming the
    message and the limit.
    """

    __slots__ = (
        "_bodies",
        "_born_host",
        "_born_timestamp",
        "_crcs",
        "_flags",
        "_keys",
        "_properties",
        "_sys_flag",
        "route",
        "sizes",
        "store_host",
        "store_time",
    )

    def __init__(
        self,
        state: StoreState,
        topic: str,
        queue_id: int,
        bodies: list[bytes],
        properties: list[bytes] | bytes,
        keys: KeyColumns,
        flags: Sequence[int] | int,
        sys_flag: int,
        born_timestamp: int | None,
        born_host: Host,
        store_host: Host,
    ) -> None:
        self.route: Route = state.route(topic, queue_id)
        self.store_host: bytes = state.clock.host if store_host is None else host_bytes(store_host)
        self.store_time: int = 0
        self._born_host = self.store_host if born_host is None else host_bytes(born_host)
        self._born_timestamp = born_timestamp
        self._sys_flag = with_host_bits(sys_flag, self._born_host, self.store_host)
        self._keys = keys
        self._properties = properties
        count = len(bodies)
        body_lengths, self._crcs = np.empty(count, np.int64), np.empty(count, np.int64)
        if not words.measure(bodies, body_lengths, self._crcs):
            for number, body in enumerate(bodies):
                if not isinstance(body, bytes):
                    raise UsageError(f"body {number} is {type(body).__name__}: bytes are right")
            bodies = [bytes(body) for body in bodies]
            words.measure(bodies, body_lengths, self._crcs)
        self._bodies = bodies
        if isinstance(properties, bytes):
            property_lengths = np.full(count, len(properties), np.int64)
        else:
            property_lengths = np.fromiter(map(len, properties), np.int64, count)
        if count and int(property_lengths.max()) > PROPERTIES_MAX:
            number = int(property_lengths.argmax())
            raise UsageError(
                f"message {number}: properties of {property_lengths[number]} bytes: "
                f"the limit is {PROPERTIES_MAX}"
            )
        fixed = HEADERS[(self._sys_flag >> 4) & 3].size + 2 + len(self.route.field)
        self.sizes: Int64Array = body_lengths + property_lengths + fixed
        most = state.options.max_message_size
        if self.largest > most:
            number = int(self.sizes.argmax())
            raise UsageError(
                f"message {number}: record of {self.sizes[number]} bytes: the limit is {most}"
            )
        given = np.asarray(flags, object)
        if count and not np.all((given >= -(1 << 31)) & (given < 1 << 31)):
            raise UsageError("a flag does not fit into 32 bits")
        self._flags = flags if isinstance(flags, int) else np.array(flags, np.int64)

    @property
    def largest(self) -> int:
        """Bytes of the largest record."""
        return int(self.sizes.max(initial=0))

    def encode(self, start: int, places: Int64Array, first: int) -> bytes:
        """Return the records from number ``start`` on that are at ``places``; ``first`` is the
        ordinal of the batch's first message. Raises :class:`UsageError`."""
        now, born = self.store_time, self._born_timestamp
        flags, whole = (None, self._flags) if isinstance(self._flags, int) else (self._flags, 0)
        try:
            stamp = b"".join(
                (
                    _BORN(self._sys_flag, now if born is None else born), self._born_host,
                    _STORED(now), self.store_host, _REST,
                )
            )  # fmt: skip
            return words.batch_records(
                self._bodies, self._properties, self.sizes, self._crcs, flags, start,
                start + len(places), int(places[0]), _START_FIELDS(self.route.queue_id, whole),
                first, stamp, self.route.field,
            )  # fmt: skip
        except (OverflowError, TypeError, ValueError, struct.error) as error:
            raise UsageError(f"a field does not fit into the record: {error}") from error

    def dispatch_of(self, start: int, places: Int64Array, first: int) -> DispatchBatch:
        """Return the dispatch of these records, for queues and index."""
        count = len(places)
        keys = self._keys
        if count != len(self.sizes):
            keys = keys.part(start, start + count)
        return DispatchBatch(
            queues=[self.route.key],
            queue_numbers=np.zeros(count, np.int64),
            offsets=places,
            sizes=self.sizes[start : start + count],
            queue_offsets=np.arange(first + start, first + start + count),
            tags_codes=keys.tags_codes,
            store_times=np.full(count, self.store_time, np.int64),
            transactions=np.full(count, self._sys_flag & TRANSACTION_MASK, np.int64),
            key_hashes=keys.hashes,
            key_messages=keys.messages,
        )


def make_properties(
    count: int, topic: str, columns: dict[str, Column]
) -> tuple[list[bytes] | bytes, KeyColumns]:
    """Properties strings of ``count`` messages from named columns, and their keys.

    A column is one text for all, or one for each message. Raises :class:`UsageError`.
    """
    columns = {name: column for name, column in columns.items() if column is not None}
    common: dict[str, str] = {}
    several: dict[str, Sequence[str]] = {}
    joined: dict[str, str] = {}
    for name, column in columns.items():
        if isinstance(column, str):
            common[name] = column
            continue
        assert column is not None
        if len(column) != count:
            raise UsageError(f"{name}: {len(column)} values for {count} messages")
        several[name] = column
        try:
            joined[name] = "".join(column)
        except TypeError as error:
            raise UsageError(f"{name}: a value is not a text") from error
    if not several:
        data = encode_properties(common)
        return data, _same_keys(count, topic, common)
    if any("\x02" in text or "\0" in text for text in joined.values()) or any(
        not all(column) for column in several.values()
    ):
        # Rare: an empty value (left out) or a refused value, which the error there names.
        rows = [
            {name: _value(column, number) for name, column in columns.items()}
            for number in range(count)
        ]
        data_list = [encode_properties({k: v for k, v in row.items() if v}) for row in rows]
        return data_list, keys_of_properties(data_list, topic_seed(topic))
    if columns.keys() <= _USUAL:
        data_list = _encode_usual_each(count, common, several)
    else:
        # Names and common values are checked by encoding them once.
        encode_properties({name: common.get(name, "-") for name in columns})
        template: list[str] = []
        order = java_map_order(tuple(columns))
        for name in order:
            value = common[name].replace("%", "%%") if name in common else "%s"
            template.append(f"{name.replace('%', '%%')}\x01{value}")
        rendered = "\x02".join(template)
        lists = [several[name] for name in order if name in several]
        data_list = [(rendered % row).encode() for row in zip(*lists, strict=True)]
    if " " in joined.get(KEYS, "") or UNIQ_KEY in common or KEYS in common:
        return data_list, keys_of_properties(data_list, topic_seed(topic))
    return data_list, _column_keys(count, topic, common, several)


def _encode_usual_each(
    count: int, common: dict[str, str], several: dict[str, Sequence[str]]
) -> list[bytes]:
    rows: list[Sequence[str | None]] = [
        several.get(name) or [common.get(name)] * count for name in (KEYS, UNIQ_KEY, TAGS)
    ]
    keys, unique_keys, tags = rows
    return [
        encode_usual(keys[number], unique_keys[number], tags[number]) for number in range(count)
    ]


def _value(column: Column, number: int) -> str:
    if column is None or isinstance(column, str):
        return column or ""
    return column[number]


def _codes(count: int, tags: Column) -> Int64Array:
    if tags is None or isinstance(tags, str):
        return np.full(count, tags_code(tags), np.int64)
    return np.fromiter(map(tags_code, tags), np.int64, count)


def _same_keys(count: int, topic: str, properties: dict[str, str]) -> KeyColumns:
    keys = index_keys(properties)
    codes = _codes(count, properties.get(TAGS))
    hashes = index_hash_many(keys, topic_seed(topic))
    return KeyColumns(
        np.tile(hashes, count), np.repeat(np.arange(count, dtype=np.int64), len(keys)), codes
    )


def _column_keys(
    count: int,
    topic: str,
    common: dict[str, str],
    several: dict[str, Sequence[str]],
) -> KeyColumns:
    seed = topic_seed(topic)
    codes = _codes(count, several.get(TAGS, common.get(TAGS)))
    unique = several.get(UNIQ_KEY)
    keys = several.get(KEYS)
    hashed = [index_hash_many(column, seed) for column in (unique, keys) if column is not None]
    if not hashed:
        return KeyColumns(np.zeros(0, np.int32), np.zeros(0, np.int64), codes)
    messages = np.repeat(np.arange(count, dtype=np.int64), len(hashed))
    hashes = hashed[0] if len(hashed) == 1 else np.column_stack(hashed).reshape(-1)
    return KeyColumns(hashes, messages, codes)
