"""Erlang terms, AMQP properties, and the small files of a node."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from qindex.format.rabbitmq.amqp10_format import DATA, data_body, decode_section
from qindex.format.rabbitmq.bridge import basic_message, read_rabbitmq
from qindex.format.rabbitmq.clean_dot import message_store_clean, parse_clean_dot
from qindex.format.rabbitmq.dets_format import read_table
from qindex.format.rabbitmq.names import directory_name, format_queue_name, parse_queue_name
from qindex.format.rabbitmq.properties_format import (
    Properties,
    decode_properties,
    encode_properties,
    properties_of_record,
)
from qindex.format.rabbitmq.recovery_terms import read_recovery_terms
from qindex.format.rabbitmq.table_format import (
    PropertiesError,
    decode_table,
    encode_table,
    plain_table,
    table,
)
from qindex.format.rabbitmq.term_format import Atom, decode, encode
from qindex.format.rabbitmq.text_terms import parse_terms
from qindex.format.rabbitmq.vhost_config import parse_vhost_config
from qindex.index.pair_scan import Depth, pin_pairs, read_pair
from tests.fuzz.frame import Decoder
from tests.fuzz.seeds import files_named
from tests.golden_v2 import scenario
from tests.memory_fs import MemoryFileSystem

__all__ = ["DECODERS"]

_DIRECTORY = directory_name("/", "orders")


def _term(data: bytes) -> None:
    value, end = decode(data)
    assert 0 < end <= len(data)
    assert decode(encode(value))[0] == value


def _term_seeds() -> Iterator[bytes]:
    yield encode({Atom("a"): [1, -(1 << 70), 2.5, b"x", (), [], (Atom("b"), [1, 2, 300])]})
    yield b"\x83P\0\0\0\x03x\x9c\xcbe\x00\x00\x01\x0a\x00\xd9"
    yield b"\x83c" + b"1.50000000000000000000e+00".ljust(31, b"\0")
    yield encode((Atom("P_basic"), *([Atom("undefined")] * 14)))
    for content in files_named("*.jif", "*.idx"):
        at = content.find(b"\x83h")
        if at >= 0:
            yield content[at : at + 600]


def _record(data: bytes) -> None:
    message, end = read_rabbitmq(data)
    assert 0 < end <= len(data)
    assert len(message.body) <= len(data)
    try:
        message.properties.plain()
    except PropertiesError:
        return
    basic = basic_message(data, b"/")
    again, _ = read_rabbitmq(basic)
    assert (again.body, again.msg_id) == (message.body, message.msg_id)


def _record_seeds() -> Iterator[bytes]:
    for name in ("x40_m", "x40_g4"):
        for path in sorted(scenario(name).vhost_dir.rglob("*.qs")):
            content = path.read_bytes()
            at = 64
            while at + 8 < len(content):
                size = int.from_bytes(content[at : at + 4], "big")
                yield content[at + 8 : at + 8 + size]
                at += 8 + max(size, 1)


def _section(data: bytes) -> None:
    code, _, end = decode_section(data, 0)
    assert 0 < end <= len(data)
    if code == DATA:
        assert len(data_body(data, 0)) < len(data)


def _section_seeds() -> Iterator[bytes]:
    for record in _record_seeds():
        at = record.find(b"\0S")
        if at >= 0:
            yield record[at:]
    yield b"\0Su\xa0\3abc\0Su\xb0\0\0\0\1d\0Sx\xc1\1\0"


def _pair(data: bytes) -> None:
    """An index, and its store behind it."""
    fs = MemoryFileSystem()
    border = 64 + 32 * 8
    for path, content in (("0.qi", data[:border]), ("0.qs", data[border:])):
        fd = fs.open(f"/{path}", os.O_WRONLY | os.O_CREAT)
        fs.write(fd, content)
        fs.close(fd)
    pairs = pin_pairs(fs, "/", ["0.qi", "0.qs"])
    for depth in Depth:
        pair = read_pair(fs, "/", pairs[0], 64, depth, clean=True)
        assert len(pair.seqs) <= 8
        heads = pair.heads
        ends = pair.starts + pair.heads["embedded"].astype(np.int64)
        if depth is not Depth.COUNT:
            assert (ends[heads["embedded"] > 0] <= len(pair.store)).all()


def _pair_seeds() -> Iterator[bytes]:
    for path in sorted(scenario("x40_g4").vhost_dir.rglob("*.qi"))[:4]:
        index = path.read_bytes()[: 64 + 32 * 8].ljust(64 + 32 * 8, b"\0")
        store = path.with_suffix(".qs")
        yield index + (store.read_bytes() if store.exists() else b"")


def _text(data: bytes) -> None:
    parse_terms(data)


def _clean_dot(data: bytes) -> None:
    message_store_clean(data, [], has_file_summary=True, has_index=True, has_rdt=False)
    parse_clean_dot(data)


def _recovery_terms(data: bytes) -> None:
    read_recovery_terms(data)
    read_table(data)


def _dets_seeds() -> Iterator[bytes]:
    for content in files_named("recovery.dets"):
        # What lies between the tables and the objects is zeros in the main.
        yield content
        yield content[:1340]


def _properties(data: bytes) -> None:
    properties = decode_properties(data)
    properties.plain()
    assert decode_properties(encode_properties(properties)) == properties


def _properties_seeds() -> Iterator[bytes]:
    headers = table({"a": True, "n": 1 << 40, "t": {"l": [1.5, None, b"x"]}, "s": "text"})
    yield encode_properties(Properties(headers=headers, delivery_mode=2, priority=3))
    yield encode_properties(
        Properties(content_type="text/plain", timestamp=1 << 33, expiration="60000", app_id="é")
    )


def _table(data: bytes) -> None:
    fields, end = decode_table(data, 0, len(data))
    assert end <= len(data)
    plain_table(fields)
    encode_table(fields)


def _table_seeds() -> Iterator[bytes]:
    yield encode_table(table({"a": True, "n": -1, "t": {"l": [1.5, [], {}]}, "s": "text"}))


def _properties_term(data: bytes) -> None:
    properties_of_record(decode(data)[0])


def _queue_name(data: bytes) -> None:
    parse_queue_name(data, _DIRECTORY)


DECODERS = (
    Decoder("term", _term, _term_seeds, memory=24 << 20, per_byte=1100),
    Decoder("rabbitmq-record", _record, _record_seeds, memory=24 << 20, per_byte=1100),
    Decoder("amqp10-section", _section, _section_seeds, memory=24 << 20, per_byte=1100),
    Decoder("version-2", _pair, _pair_seeds, memory=24 << 20, per_byte=1100),
    Decoder("text-terms", _text, lambda: files_named("clean.dot", ".config")),
    Decoder("clean-dot", _clean_dot, lambda: files_named("clean.dot")),
    Decoder("vhost-config", parse_vhost_config, lambda: files_named(".config")),
    Decoder("recovery-dets", _recovery_terms, _dets_seeds),
    Decoder("properties", _properties, _properties_seeds),
    Decoder("properties-term", _properties_term, _term_seeds, memory=24 << 20, per_byte=1100),
    Decoder("table", _table, _table_seeds),
    Decoder(
        "queue-name",
        _queue_name,
        lambda: [*files_named(".queue_name"), format_queue_name("/", "orders")],
    ),
)
