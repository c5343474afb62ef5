"""Columns (numpy arrays) of index entries, as :mod:`qindex.queue_view` gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from journal.format import PAYLOAD_SIZE, PUBLISH_PERSISTENT
from qindex.record_format import gather_bytes
from qindex.sound_read import Data

__all__ = ["Columns", "IndexEntries", "Location", "Source", "all_entries", "entry_heads"]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Location = Literal["journal", "segment", "store"]

_HEAD = np.dtype([("id", "V16"), ("expiry", ">u8"), ("size", ">u4"), ("embedded", ">u4")])
assert _HEAD.itemsize == PAYLOAD_SIZE


@dataclass(slots=True)
class Source:
    """One file's share of a segment's entries. ``head_size``: bytes before a message id."""

    path: str
    data: Data
    location: Location
    head_size: int
    seqs: I64
    offsets: I64
    kinds: U8


@dataclass(slots=True)
class Columns:
    """Entries of one segment that would be delivered, ascending by seq_id.

    ``states``: state bytes. ``sizes``: of the bodies. ``sources`` and ``rows``: for each entry
    which file it is in, and its place among that file's entries.
    """

    seqs: I64
    states: U8
    sizes: I64
    persistent: Bools
    sources: list[Source]
    source_of: U8
    row_of: I64


@dataclass(slots=True)
class IndexEntries:
    """All entries that one file has of one segment, in the order of the file.

    ``states``: state bytes (:mod:`qindex.segment`), of journal and segment together. ``ids``:
    16 bytes each, shape ``(n, 16)``. ``expiry``: microseconds since 1970, 0 = never. ``sizes``:
    of the bodies. ``embedded``: bytes of the record in the index, 0 = in the message store.
    ``offsets``: of the publish records.
    """

    path: str
    location: Location
    seqs: I64
    states: U8
    persistent: Bools
    ids: U8
    expiry: I64
    sizes: I64
    embedded: I64
    offsets: I64


def entry_heads(data: Data, payloads: I64) -> npt.NDArray[np.void]:
    """Gather the fixed fields of entries whose message ids stand at ``payloads``."""
    block = np.ascontiguousarray(gather_bytes(data, payloads, PAYLOAD_SIZE))
    return block.view(_HEAD).ravel()


def all_entries(source: Source, states: U8, base: int) -> IndexEntries:
    """Give what ``source`` has of the segment whose first seq_id is ``base``, acknowledged or
    not. ``states``: of the whole segment."""
    heads = entry_heads(source.data, source.offsets + source.head_size)
    return IndexEntries(
        path=source.path,
        location=source.location,
        seqs=source.seqs,
        states=states[source.seqs - base],
        persistent=source.kinds == PUBLISH_PERSISTENT,
        ids=np.ascontiguousarray(heads["id"]).view(np.uint8).reshape(-1, 16),
        expiry=heads["expiry"].astype(np.int64),
        sizes=heads["size"].astype(np.int64),
        embedded=heads["embedded"].astype(np.int64),
        offsets=source.offsets,
    )
