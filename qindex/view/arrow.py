"""Arrow record batches out of numpy columns, without a Python object for each value. Needs pyarrow.

A table is a list of columns: their names, in order, with their types in the words of Spark SQL.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journal.errors import UsageError
from journal.fs.files import ReadBuffer
from journal.memory.arrays import I64, U8, Bools

Table = dict[str, str]
"""Column names, in order, with their types: ``bigint``, or ``bigint not null``."""

NOT_NULL: Final = " not null"
_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
}
_KEPT = 8
"""Columns of one value that are kept, with some 50 bytes a row each; of bounds, 4 bytes a row."""
_AT_ONCE = 256
"""Values that are put down by one copy."""
_MAX_BYTES = (1 << 31) - 1
"""What the bounds of a column's values can tell."""


Maker = Callable[[], pa.Array]


def choose_columns(table: Table, wanted: Sequence[str]) -> Table:
    """Return the part of a table with the ``wanted`` columns, in their order (all for none).

    Raises :class:`UsageError` for a name that it has not, or twice.
    """
    if not wanted:
        return table
    for name in wanted:
        if name not in table:
            raise UsageError(f"no column {name!r}; there are {', '.join(table)}")
    if len(set(wanted)) != len(wanted):
        raise UsageError(f"a column is named twice: {', '.join(wanted)}")
    return {name: table[name] for name in wanted}


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return _arrow_schema(tuple(table.items()))


@lru_cache(maxsize=_KEPT)
def _arrow_schema(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, _TYPES[kind.removesuffix(NOT_NULL)], not kind.endswith(NOT_NULL))
            for name, kind in columns
        ]
    )


def batch_of(table: Table, count: int, makers: Mapping[str, Maker]) -> pa.RecordBatch:
    """Return a batch of ``count`` rows with the columns of ``table``; those without a maker are
    null. Only the columns that are wanted are made."""
    schema = arrow_schema(table)
    arrays = [
        makers[field.name]() if field.name in makers else _nulls(count, field.type)
        for field in schema
    ]
    for field, made in zip(schema, arrays, strict=True):
        # Spark would take the bytes there for a value.
        if not field.nullable and made.null_count:
            raise ValueError(f"column {field.name} has {made.null_count} nulls")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=_KEPT)
def constant(value: str | int | None, count: int, kind: pa.DataType | None = None) -> pa.Array:
    """Return ``value`` repeated. The last few are kept: the batches of a queue, which have the rows
    of one segment each, share them. Raises :class:`UnicodeEncodeError`."""
    if value and isinstance(value, str):
        data = value.encode()
        if len(data) * count <= _MAX_BYTES:
            return _even(pa.string(), count, len(data), _repeated(data, count))
    return pa.repeat(pa.scalar(value, kind or pa.string()), count)


def _repeated(data: bytes, count: int) -> pa.Buffer:
    """Return ``data`` again and again, a third of the time that Arrow takes.

    The memory is Arrow's all the same: Python's would go back to the system with each batch.
    """
    width = len(data)
    buffer = pa.allocate_buffer(count * width)
    target = np.frombuffer(buffer, np.uint8)
    some = np.frombuffer(data * _AT_ONCE, np.uint8)
    rest = count % _AT_ONCE * width
    target[: len(target) - rest].reshape(-1, width * _AT_ONCE)[:] = some
    target[len(target) - rest :] = some[:rest]
    return buffer


@lru_cache(maxsize=_KEPT)
def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)


@lru_cache(maxsize=_KEPT)
def _even_bounds(count: int, width: int) -> pa.Buffer:
    if count * width > _MAX_BYTES:
        raise OverflowError(f"{count} values of {width} bytes are too many for one column")
    return pa.py_buffer((np.arange(count + 1) * width).astype(np.int32))


def _even(kind: pa.DataType, count: int, width: int, data: Any) -> pa.Array:
    """Return the ``count`` values, of ``width`` bytes each, that follow one another."""
    return pa.Array.from_buffers(
        kind, count, [None, _even_bounds(count, width), pa.py_buffer(data)]
    )


def numbers(values: npt.NDArray[np.generic], absent: int | None = None) -> pa.Array:
    """Return numbers; those equal to ``absent`` are null."""
    plain = np.ascontiguousarray(values)
    if absent is None:
        return pa.array(plain)
    mask = plain == absent
    missing = np.count_nonzero(mask)
    if missing and missing == len(plain):
        return _nulls(missing, pa.from_numpy_dtype(plain.dtype))
    return pa.array(plain, mask=mask if missing else None)


def flags(values: Bools) -> pa.Array:
    """Return booleans."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def choices(which: npt.NDArray[np.integer], names: Sequence[str]) -> pa.Array:
    """Return text: ``names[which[i]]``."""
    first = which[:1].tolist()
    if first and (which == first[0]).all():
        return constant(names[first[0]], len(which))
    indexes = pa.array(which.astype(np.int8))
    return pa.DictionaryArray.from_arrays(indexes, pa.array(names, pa.string())).cast(pa.string())


def fixed_binaries(rows: U8) -> pa.Array:
    """Return the rows of a matrix (shape ``(n, width)``) as binaries."""
    count, width = rows.shape
    return _even(pa.binary(), count, width, np.ascontiguousarray(rows))


def texts_of(data: bytes, bounds: array[int]) -> pa.Array:
    """Return the texts ``data[bounds[i]:bounds[i + 1]]``."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(bounds) - 1, buffers)


def slices(data: ReadBuffer, starts: I64, ends: I64) -> pa.Array:
    """Return `data[starts[i]:ends[i]]` as binaries. The slices ascend and do not overlap.

    O(bytes returned), no Python object for each, unless the slices span more than 2 GiB.
    """
    count = len(starts)
    first = int(starts[0]) if count else 0
    if count and int(ends[-1]) - first > _MAX_BYTES:
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return pa.array([bytes(data[start:end]) for start, end in places], pa.binary())
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[0 : 2 * count : 2] = starts - first
    bounds[1::2] = ends - first
    if count:
        bounds[2 * count] = bounds[2 * count - 1]
    # Every second value is what lies between two slices.
    both = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data).slice(first)]
    )
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def plain_text(text: str | None) -> str | None:
    """Return text that Arrow can hold: bytes that are not UTF-8 (in names that RabbitMQ took) as
    ``\\xff``."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
