from __future__ import annotations

import doctest
import struct

import pytest

import msgstore.format
from msgstore.format import (
    FRAME,
    TAIL_FLAG,
    Kind,
    classify_name,
    encode,
    file_name,
    pack_header,
    parse_header,
)


def test_the_examples_run() -> None:
    assert doctest.testmod(msgstore.format).failed == 0


def test_a_record_in_bytes() -> None:
    framed = encode(bytes(range(16)), b"\x83h")
    assert framed == struct.pack(">Q", 18) + bytes(range(16)) + b"\x83h\xff"
    assert len(framed) == 2 + FRAME
    assert framed.startswith(pack_header(bytes(range(16)), 2))
    assert parse_header(framed) == (18, bytes(range(16)))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("0.rdq", (Kind.RECORDS, 0)),
        ("17.rdt", (Kind.TAIL, 17 | TAIL_FLAG)),
        ("17.rdq.tmp", (Kind.TMP, 17)),
        ("017.rdq", None),
        ("-1.rdq", None),
        ("٣.rdq", None),
        ("99999999999999.rdq", None),
        ("1.rdq.bak", None),
        ("1rdq", None),
        ("clean.dot", None),
        ("", None),
    ],
)
def test_names(name: str, known: tuple[Kind, int] | None) -> None:
    assert classify_name(name) == known
    if known is not None and known[0] is not Kind.TMP:
        assert file_name(known[1]) == name
