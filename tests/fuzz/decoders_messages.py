"""Messages: our records, RabbitMQ's, and the files of the message store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgpack

from journal.format import MAX_SEQ_ID
from msgstore.format import FRAME, HEADER
from msgstore.scan import scan_file
from msgstore.snapshot import load_snapshot
from qindex.format.entries import decode_any
from qindex.format.message_record import MAGIC, decode_record, embedded_length
from qindex.format.rabbitmq.bridge import decode_rabbitmq
from qindex.format.rabbitmq.record import decode_message
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import read_soundly
from qindex.index.messages import check_record
from tests.fuzz.frame import SEED_BYTES, Decoder
from tests.fuzz.one_file import OneFile
from tests.fuzz.seeds import files_named, own_store

__all__ = ["DECODERS"]

_ID = bytes(16)


def _rdq(data: bytes) -> None:
    fs = OneFile(data)
    for verify in (False, True):
        scan = scan_file(fs, "0.rdq", check=check_record, verify=verify, max_record=1 << 20)
        covered = sum(total for _, _, total in scan.records)
        assert covered <= len(data)
        assert scan.end <= scan.size == len(data)


def _stored_records() -> Iterator[bytes]:
    for content in files_named("*.rdq"):
        scan = scan_file(OneFile(content), "0.rdq", check=check_record)
        for _, offset, total in scan.records[:8]:
            yield content[offset + HEADER : offset + HEADER + total - FRAME]


def _embedded_records() -> Iterator[bytes]:
    for content in files_named("*.jif"):
        how = journal_layout(MAX_SEQ_ID)
        reading = read_soundly("journal.jif", content, how)
        walk = reading.walk
        for offset, length in zip(walk.offsets.tolist(), walk.lengths.tolist(), strict=True):
            record = bytes(reading.data[offset + how.head_size : offset + length])
            if 0 < len(record) <= SEED_BYTES:
                yield record


def _own_records() -> Iterator[bytes]:
    return (record for record in _embedded_records() if record.startswith(MAGIC))


def _node_records() -> Iterator[bytes]:
    records = itertools.chain(_embedded_records(), _stored_records())
    return itertools.islice((one for one in records if one[:1] == b"\x83"), 200)


def _record(data: bytes) -> None:
    for record in (data, MAGIC + data):
        length = embedded_length(record, 0)
        assert length is None or 0 < length <= len(record)
    decode_record(data)


def _node_record(data: bytes) -> None:
    message = decode_message(data)
    decode_rabbitmq(data, message.msg_id)
    message.properties.plain()


def _any_record(data: bytes) -> None:
    check_record(_ID, data)
    decode_any(data, _ID)


def _store_snapshots() -> list[bytes]:
    paths = sorted(own_store().rglob("qindex.clean"))
    found = [msgpack.unpackb(path.read_bytes()[:-8])["message store"] for path in paths]
    return [one for one in found if one is not None]


DECODERS = (
    Decoder("rdq", _rdq, lambda: files_named("*.rdq")),
    Decoder("record", _record, _own_records),
    Decoder("node-record", _node_record, _node_records),
    Decoder("any-record", _any_record, lambda: [*_own_records(), *_node_records()]),
    Decoder("store-snapshot", load_snapshot, _store_snapshots),
)
