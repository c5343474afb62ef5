"""Columns (numpy arrays) of the entries of an image (:mod:`qindex.recovery.queue_image`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from journal.format import PAYLOAD_SIZE, PUBLISH_PERSISTENT
from journal.memory.arrays import I64, U8, U64, Bools
from journal.replay import Walk
from qindex.format.message_record import gather_bytes
from qindex.format.resynchronise import Data
from qindex.format.segment import PUBLISH_HEAD_SIZE, STEP_SIZE
from qindex.index.pair_scan import HEAD, Pair
from qindex.index.segment import DELIVERED
from qindex.index.segment_scan import MSG_ID_SIZE

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Location = Literal["journal", "segment", "store"]

_TERM = 0x83

T = TypeVar("T", bound="DataclassInstance")


def take_rows(table: T, rows: Bools | I64) -> T:
    """Return some rows of a table: of a dataclass each of whose arrays has one value for each row.
    What else it has stays."""
    columns = ((one.name, getattr(table, one.name)) for one in fields(table))
    return replace(
        table, **{name: one[rows] for name, one in columns if isinstance(one, np.ndarray)}
    )


@dataclass(slots=True)
class Source:
    """One file's share of a segment's entries, ascending by seq_id. ``head_size``: bytes before a
    message id. ``offsets``, ``lengths``: bytes, of the publish records.

    Of a queue of version 2 ``path`` is the index file, ``data`` holds the messages of its other
    file where publish records would have them, ``heads`` are the fixed fields, and ``slots`` the
    offsets of the entries in ``path``. Its embedded messages have their ids in the records alone,
    unless these were decoded; then ``bodies`` are the true sizes of the bodies, -1 where unknown.
    """

    path: str
    data: Data
    location: Location
    head_size: int
    seqs: I64
    offsets: I64
    lengths: I64
    kinds: U8
    heads: npt.NDArray[np.void] | None = None
    slots: I64 | None = None
    bodies: I64 | None = None

    def heads_of(self, rows: I64 | slice) -> npt.NDArray[np.void]:
        """Return the fixed fields of some entries. Shape ``(n,)``."""
        if self.heads is not None:
            return self.heads[rows]
        return entry_heads(self.data, self.offsets[rows] + self.head_size)

    def places_of(self, rows: I64 | slice) -> I64:
        """Return the offsets in ``path`` at which some entries are. Shape ``(n,)``."""
        return self.offsets[rows] if self.slots is None else self.slots[rows]


@dataclass(slots=True)
class Columns:
    """Entries of one segment that would be delivered, ascending by seq_id.

    ``sizes``: of the bodies. ``redelivered``: they were delivered before. ``expiry``: microseconds
    since 1970, 0 = never. ``stored``: the message is in the message store; ``ids``: message ids,
    shape ``(n, 16)``, of version 2 those of stored messages alone. ``source_of`` and ``row_of``:
    for each entry which of the ``sources`` it is in, and its place among the entries there.
    """

    sources: list[Source]
    seqs: I64
    sizes: I64
    persistent: Bools
    redelivered: Bools
    expiry: U64
    stored: Bools
    ids: U8
    source_of: U8
    row_of: I64


def in_order(parts: Sequence[Columns]) -> Columns | None:
    """Put columns with the same sources together, by seq_id; ``None`` for none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    order = np.argsort(np.concatenate([one.seqs for one in parts]), kind="stable")
    names = [one.name for one in fields(Columns) if one.name != "sources"]
    table: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in parts])[order] for name in names
    }
    return replace(parts[0], **table)


@dataclass(slots=True)
class Entries:
    """Entries of one segment, from one file, ascending by seq_id; columns of shape ``(n,)``.

    ``data``: the file's bytes, damage corrected. ``payloads``: offsets of the message ids in it,
    ``offsets``: of the entries in the file ``path``. ``version2``: see :class:`Source`; ``bodies``
    as there. ``states``: state bytes (:mod:`qindex.index.segment`), of journal and file together.
    ``ids``: message ids, shape ``(n, 16)``. ``expiry``: microseconds since 1970, 0 = never.
    ``sizes``: of the bodies. ``embedded``: bytes of the record in the index, 0 = in the message
    store. ``delivered``: they come again as redelivered. ``dropped``: transient ones that are not
    delivered after a restart.
    """

    path: str
    location: Location
    data: Data
    version2: bool
    seqs: I64
    states: U8
    payloads: I64
    offsets: I64
    ids: U8
    expiry: U64
    sizes: I64
    embedded: I64
    persistent: Bools
    delivered: Bools
    dropped: Bools
    bodies: I64 | None = None

    def foreign_records(self) -> Iterator[tuple[int, bytes]]:
        """Yield the rows of the entries that embed a record of RabbitMQ's, and these."""
        flat = np.frombuffer(self.data, np.uint8)
        starts = self.payloads + PAYLOAD_SIZE
        rows = np.flatnonzero(self.embedded)
        for at in rows[flat[starts[rows]] == _TERM].tolist():
            start = int(starts[at])
            yield at, bytes(self.data[start : start + int(self.embedded[at])])


def entries_of(source: Source, rows: I64 | slice, states: U8) -> Entries:
    """Make entries of some of a source's, which have these ``states``."""
    heads = source.heads_of(rows)
    return Entries(
        path=source.path,
        location=source.location,
        data=source.data,
        version2=source.heads is not None,
        seqs=source.seqs[rows],
        states=states,
        payloads=source.offsets[rows] + source.head_size,
        offsets=source.places_of(rows),
        ids=np.ascontiguousarray(heads["id"]).view(np.uint8).reshape(-1, MSG_ID_SIZE),
        expiry=heads["expiry"].astype(np.uint64),
        sizes=heads["size"].astype(np.int64),
        embedded=heads["embedded"].astype(np.int64),
        persistent=source.kinds[rows] == PUBLISH_PERSISTENT,
        delivered=states == DELIVERED,
        dropped=np.zeros(len(states), np.bool_),
        bodies=None if source.bodies is None else source.bodies[rows],
    )


def pack_heads(ids: U8, expiry: U64, sizes: I64, embedded: I64) -> npt.NDArray[np.void]:
    """Put fixed fields together as a file has them; ``ids`` of shape ``(n, 16)``."""
    heads = np.empty(len(ids), HEAD)
    heads["id"] = np.ascontiguousarray(ids).view(f"V{MSG_ID_SIZE}").ravel()
    heads["expiry"], heads["size"], heads["embedded"] = expiry, sizes, embedded
    return heads


def source_of(path: str, data: Data, location: Location, head_size: int, walk: Walk) -> Source:
    """Make a source of publish records, ascending by seq_id."""
    return Source(
        path, data, location, head_size, walk.seqs, walk.offsets, walk.lengths, walk.kinds
    )


def pair_source(pair: Pair) -> Source:
    """Make a source of the entries of a segment of version 2."""
    return Source(
        pair.path,
        pair.store,
        "segment",
        STEP_SIZE,
        pair.seqs,
        pair.starts - PUBLISH_HEAD_SIZE,
        pair.heads["embedded"].astype(np.int64) + PUBLISH_HEAD_SIZE,
        pair.kinds,
        heads=pair.heads,
        slots=pair.slots,
        bodies=pair.bodies,
    )


def entry_heads(data: Data, payloads: I64) -> npt.NDArray[np.void]:
    """Gather the fixed fields of entries whose message ids are at ``payloads``."""
    block = np.ascontiguousarray(gather_bytes(data, payloads, PAYLOAD_SIZE))
    return block.view(HEAD).ravel()
