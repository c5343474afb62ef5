"""Many messages of one topic and queue at once, in columns: their records, and their dispatch.

A batch costs a handful of numpy calls and one ``join``, where single puts would pack each header
by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from journal.errors import UsageError
from rocketstore import words
from rocketstore.commitlog_format import COMMON_FIELDS, HEADERS
from rocketstore.javahash import index_hash_many, tags_code, topic_seed
from rocketstore.key_columns import KeyColumns, keys_of_properties
from rocketstore.properties import (
    KEYS,
    PROPERTIES_MAX,
    TAGS,
    UNIQ_KEY,
    encode_properties,
    encode_usual,
    index_keys,
    java_map_order,
)

_USUAL = {KEYS, UNIQ_KEY, TAGS}
Int64Array = npt.NDArray[np.int64]
Column = str | Sequence[str] | None


def _header_dtype(number: int) -> np.dtype[np.void]:
    born, store = (20 if number & 1 else 8), (20 if number & 2 else 8)
    return np.dtype(
        [
            *COMMON_FIELDS,
            ("born_host", f"V{born}"),
            ("store", ">i8"),
            ("store_host", f"V{store}"),
            ("reconsume", ">i4"),
            ("prepared", ">i8"),
            ("body_length", ">i4"),
        ]
    )


HEADER_DTYPES = tuple(_header_dtype(number) for number in range(4))
"""The record up to its body, by ``(sysFlag >> 4) & 3``."""
_START_FIELDS = struct.Struct(">ii").pack
_BORN = _REST = struct.Struct(">iq").pack
_STORED = struct.Struct(">q").pack


@dataclass(slots=True)
class Columns:
    """Bodies and properties of a batch, and all else that is the same wherever it is stored."""

    bodies: list[bytes]
    properties: list[bytes] | bytes
    """One for each message, or one for all."""
    sizes: Int64Array
    crcs: Int64Array
    flags: Int64Array | int

    def encode(
        self,
        first: int,
        last: int,
        offsets: Int64Array,
        *,
        topic_field: bytes,
        queue_id: int,
        queue_offset: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_timestamp: int,
        store_host: bytes,
        reconsume_times: int = 0,
    ) -> bytes:
        """The records of messages ``first`` to ``last``, to stand at ``offsets``."""
        stamp = b"".join(
            (
                _BORN(sys_flag, born_timestamp), born_host,
                _STORED(store_timestamp), store_host,
                _REST(reconsume_times, 0),
            )
        )  # fmt: skip
        flags, whole = (None, self.flags) if isinstance(self.flags, int) else (self.flags, 0)
        return words.batch_records(
            self.bodies, self.properties, self.sizes, self.crcs, flags, first, last,
            int(offsets[0]) if last > first else 0, _START_FIELDS(queue_id, whole),
            queue_offset - first, stamp, topic_field,
        )  # fmt: skip


def build_columns(
    bodies: list[bytes],
    properties: list[bytes] | bytes,
    topic_length: int,
    sys_flag: int,
    flags: Sequence[int] | int,
    most: int,
) -> Columns:
    """Check and measure a batch. Raises :class:`UsageError` naming the message and the limit."""
    count = len(bodies)
    body_lengths, crcs = np.empty(count, np.int64), np.empty(count, np.int64)
    if not words.measure(bodies, body_lengths, crcs):
        for number, body in enumerate(bodies):
            if not isinstance(body, bytes):
                raise UsageError(f"body {number} is {type(body).__name__}: bytes are right")
        bodies = [bytes(body) for body in bodies]
        words.measure(bodies, body_lengths, crcs)
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
    fixed = HEADERS[(sys_flag >> 4) & 3].size + 3 + topic_length
    sizes = body_lengths + property_lengths + fixed
    if count and int(sizes.max()) > most:
        number = int(sizes.argmax())
        raise UsageError(f"message {number}: record of {sizes[number]} bytes: the limit is {most}")
    whole = flags if isinstance(flags, int) else np.array(flags, object)
    if count and not np.all((np.asarray(whole) >= -(1 << 31)) & (np.asarray(whole) < 1 << 31)):
        raise UsageError("a flag does not fit into 32 bits")
    return Columns(
        bodies=bodies,
        properties=properties,
        sizes=sizes,
        crcs=crcs,
        flags=flags if isinstance(flags, int) else np.array(flags, np.int64),
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
            raise UsageError(f"{name}: a value is no text") from error
    if not several:
        data = encode_properties(common)
        return data, _same_keys(count, topic, common)
    if any("\x02" in text or "\0" in text for text in joined.values()) or any(
        not all(column) for column in several.values()
    ):
        # Rare: an empty value (left out) or one that is refused, which is named there.
        rows = [
            {name: _value(column, number) for name, column in columns.items()}
            for number in range(count)
        ]
        data_list = [encode_properties({k: v for k, v in row.items() if v}) for row in rows]
        return data_list, keys_of_properties(data_list, topic_seed(topic))
    if columns.keys() <= _USUAL:
        data_list = _encode_usual_each(count, common, several)
        if " " in joined.get(KEYS, "") or UNIQ_KEY in common or KEYS in common:
            return data_list, keys_of_properties(data_list, topic_seed(topic))
        return data_list, _column_keys(count, topic, common, several)
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
