"""Erlang terms: what Erlang writes is read, what is written is what Erlang writes, and the rest
is refused with a reason."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from journal.errors import StoreError
from qindex.format.rabbitmq.term_format import (
    MAX_DEPTH,
    Atom,
    Term,
    TermError,
    charlist,
    decode,
    encode,
)
from tests.qindex.rabbitmq.terms import terms

# Erlang 25: io:format("~w", [term_to_binary(X)])
WRITTEN_BY_ERLANG: list[tuple[Term, str]] = [
    (0, "8361 00"),
    (255, "8361 ff"),
    (256, "8362 00000100"),
    (-1, "8362 ffffffff"),
    (-(1 << 31), "8362 80000000"),
    ((1 << 31) - 1, "8362 7fffffff"),
    (1 << 31, "836e 04 00 00000080"),
    (1 << 63, "836e 08 00 0000000000000080"),
    (-(1 << 63), "836e 08 01 0000000000000080"),
    (1 << 64, "836e 09 00 000000000000000001"),
    (1 << 2100, "836f 00000107 00 " + "00" * 262 + "10"),
    (1.5, "8346 3ff8000000000000"),
    (-0.0, "8346 8000000000000000"),
    (Atom("abc"), "8364 0003 616263"),
    (Atom(""), "8364 0000"),
    (Atom("é"), "8364 0001 e9"),
    (Atom("жз"), "8377 04 d0b6d0b7"),
    (Atom("ж" * 255), "8376 01fe " + "d0b6" * 255),
    ((), "8368 00"),
    ((Atom("a"),), "8368 01 64000161"),
    (
        tuple(range(256)) + (0,),
        "8369 00000101 " + "".join(f"61{n:02x}" for n in range(256)) + "6100",
    ),
    ([], "836a"),
    ([97, 98, 99], "836b 0003 616263"),
    ([7] * 65535, "836b ffff " + "07" * 65535),
    ([7] * 65536, "836c 00010000 " + "6107" * 65536 + "6a"),
    ([1, 256], "836c 00000002 6101 6200000100 6a"),
    ([[], [[]]], "836c 00000002 6a 6c00000001 6a 6a 6a"),
    (b"", "836d 00000000"),
    (b"x", "836d 00000001 78"),
    (
        {Atom("a"): 1, b"k": [1, 2, (Atom("x"),)]},
        "8374 00000002 64000161 6101 6d00000001 6b 6c00000003 6101 6102 6801 64000178 6a",
    ),
]


@pytest.mark.parametrize(("value", "written"), WRITTEN_BY_ERLANG)
def test_reads_and_writes_what_erlang_writes(value: Term, written: str) -> None:
    data = bytes.fromhex(written)
    assert decode(data) == (value, len(data))
    assert encode(value) == data


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("8373 03 616263", Atom("abc")),
        ("8373 01 e9", Atom("é")),
        ("8376 0002 c3a9", Atom("é")),
        ("8377 02 c3a9", Atom("é")),
        ("8363" + b"1.50000000000000000000e+00\0\0\0\0\0".hex(), 1.5),
        ("8363" + f"{-2.25e300:.20e}".encode().ljust(31, b"\0").hex(), -2.25e300),
        ("836e 00 00", 0),
        ("836e 02 01 0100", -1),
        ("836c 00000001 6101 6c00000001 6102 6a", [1, 2]),
        ("836c 00000000 6a", []),
        ("836c 00000001 6101 6b0002 0203", [1, 2, 3]),
    ],
)
def test_reads_forms_that_other_versions_write(written: str, value: Term) -> None:
    data = bytes.fromhex(written)
    assert decode(data) == (value, len(data))


def test_an_atom_is_no_other_string() -> None:
    value, _ = decode(bytes.fromhex("8364 0004 74727565"))
    assert type(value) is Atom
    assert value == "true"
    assert not isinstance(value, bool)
    assert repr(value) == "Atom('true')"


def test_booleans_are_written_as_atoms() -> None:
    assert encode((True, False)) == encode((Atom("true"), Atom("false")))


def test_a_term_may_start_and_end_anywhere() -> None:
    data = b"....\x83a\x07rest"
    assert decode(data, 4) == (7, 7)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "cut off"),
        ("83", "cut off"),
        ("8461 00", "starts with byte 132"),
        ("8361", "cut off"),
        ("8362 000000", "cut off"),
        ("8346 3ff80000000000", "cut off"),
        ("8346 7ff0000000000000", "not finite"),
        ("8346 7ff8000000000000", "not finite"),
        ("8363" + b"1.5".hex(), "cut off"),
        ("8363" + (b"one" + b"\0" * 28).hex(), "float whose text is none"),
        ("8363" + (b"inf" + b"\0" * 28).hex(), "not finite"),
        ("836e 02 00 01", "more than there are"),
        ("836e 01 02 01", "sign byte 2"),
        ("836e 01", "more than there are"),
        ("836f ffffffff 00 01", "more than there are"),
        ("8364 0004 616263", "more than there are"),
        ("8364 0100 " + "61" * 256, "atom of 256 characters"),
        ("8376 0200 " + "d0b6" * 256, "atom of 256 characters"),
        ("8377 01 ff", "not UTF-8"),
        ("836d ffffffff 00", "claims 4294967295 bytes of 1"),
        ("836d 0000", "cut off"),
        ("836b 0002 61", "more than there are"),
        ("8368", "cut off"),
        ("8368 02 6101", "cut off"),
        ("8368 ff 6101", "claims 255 elements in 2 bytes"),
        ("8369 ffffffff 6101", "claims 4294967295 elements"),
        ("836c ffffffff 6101", "claims 4294967296 elements"),
        ("836c 00000001 6101", "cut off"),
        ("836c 00000001 6101 6102", "improper list"),
        ("8374 7fffffff 6101", "claims 4294967294 elements"),
        ("8374 00000001 6a 6101", "list or a map for a key"),
        ("8374 00000001 7400000000 6101", "list or a map for a key"),
        ("8374 00000002 6101 6102 6101 6103", "two equal keys"),
        ("834d 00000001 01 80", "bit string"),
        ("8358 64000161", "process id"),
        ("8370 00", "function"),
        ("8372 0001", "reference"),
        ("8300", "unknown tag 0"),
        ("8383", "unknown tag 131"),
        ("8350 00000001", "does not decompress"),
        ("8350 0000", "cut off"),
    ],
)
def test_malformed_terms_are_refused_with_the_reason(data: str, reason: str) -> None:
    with pytest.raises(TermError, match=reason):
        decode(bytes.fromhex(data))


def test_an_error_is_one_of_the_projects_and_says_where() -> None:
    with pytest.raises(StoreError) as caught:
        decode(bytes.fromhex("8368 02 6101 ff"))
    assert isinstance(caught.value, TermError)
    assert caught.value.offset == 5
    assert str(caught.value) == "at byte 5: is an unknown tag 255"


@pytest.mark.parametrize("offset", [-1, 3, 100])
def test_an_offset_outside_of_the_data_is_refused(offset: int) -> None:
    with pytest.raises(TermError, match="cut off"):
        decode(b"\x83a\x07", offset)


# --- nesting and sizes -------------------------------------------------------------------------

OPENINGS = {
    "tuple": (b"h\1", b"a\0", b""),
    "large tuple": (b"i\0\0\0\1", b"a\0", b""),
    "list": (b"l\0\0\0\1", b"d\0\1x", b"j"),
    "list of two": (b"l\0\0\0\2a\0", b"d\0\1x", b"j"),
    "map": (b"t\0\0\0\1a\0", b"a\0", b""),
    "tail": (b"l\0\0\0\1b\0\0\1\0", b"j", b""),
}


@pytest.mark.parametrize("kind", OPENINGS)
def test_nesting_is_read_up_to_the_limit_and_written_back(kind: str) -> None:
    opening, inner, closing = OPENINGS[kind]
    data = b"\x83" + opening * MAX_DEPTH + inner + closing * MAX_DEPTH
    value, end = decode(data)
    assert end == len(data)
    if kind in ("tuple", "list", "list of two", "map"):
        assert encode(value) == data


@pytest.mark.parametrize("kind", OPENINGS)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_nesting_above_the_limit_is_refused(kind: str, depth: int) -> None:
    opening, inner, closing = OPENINGS[kind]
    with pytest.raises(TermError, match="nested more than 256 deep"):
        decode(b"\x83" + opening * depth + inner + closing * depth)


def test_values_nested_above_the_limit_are_not_written() -> None:
    value: Term = 0
    for _ in range(MAX_DEPTH):
        value = (value,)
    assert decode(encode(value))[0] == value
    with pytest.raises(TermError, match="nested more than 256 deep"):
        encode((value,))
    endless: list[Term] = []
    endless.append(endless)
    with pytest.raises(TermError, match="nested more than 256 deep"):
        encode(endless)


def test_claims_cost_no_memory() -> None:
    """Containers, each of which claims nearly as much as there could be of it."""
    chunk = b"".join(
        b"i" + struct.pack(">I", 90_000) + b"m" + struct.pack(">I", 3) + b"abc" for _ in range(200)
    )
    data = b"\x83" + chunk + b"j" * 100_000
    tracemalloc.start()
    try:
        with pytest.raises(TermError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(data)


# --- compressed terms --------------------------------------------------------------------------


def compressed(value: Term, *, claim: int | None = None) -> bytes:
    inner = encode(value)[1:]
    size = len(inner) if claim is None else claim
    return b"\x83P" + struct.pack(">I", size) + zlib.compress(inner)


def test_compressed_terms_are_read() -> None:
    value = [(Atom("hello"), b"world")] * 1000
    data = compressed(value)
    assert decode(data) == (value, len(data))
    assert decode(b"?" + data + b"behind", 1) == (value, 1 + len(data))


def test_what_erlang_compressed_is_read() -> None:
    # term_to_binary(lists:duplicate(300, x), [compressed])
    data = bytes.fromhex("8350000004b6") + zlib.compress(b"l\0\0\1," + b"d\0\1x" * 300 + b"j")
    assert decode(data) == ([Atom("x")] * 300, len(data))


@pytest.mark.parametrize("claim", [0, 1, 13004, 13006, 1 << 20, (1 << 32) - 1])
def test_a_compressed_term_of_another_size_than_claimed_is_refused(claim: int) -> None:
    data = compressed([(Atom("hello"), b"w")] * 722, claim=claim)
    with pytest.raises(TermError, match="decompress"):
        decode(data)


def test_damaged_compression_is_refused() -> None:
    data = compressed([b"some text"] * 100)
    for cut in range(len(data)):
        with pytest.raises(TermError):
            decode(data[:cut])
    with pytest.raises(TermError, match="does not decompress"):
        decode(data[:6] + b"\0" + data[7:])
    inner = encode(b"x")[1:] + b"more"
    with pytest.raises(TermError, match="4 bytes after its term"):
        decode(b"\x83P" + struct.pack(">I", len(inner)) + zlib.compress(inner))


def test_a_decompression_bomb_costs_no_memory() -> None:
    bomb = b"\x83P" + struct.pack(">I", 60_000) + zlib.compress(b"m" + bytes(50_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(TermError, match="does not decompress to the 60000 bytes"):
            decode(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    claimed = b"\x83P" + struct.pack(">I", 1 << 30) + zlib.compress(bytes(50_000_000), 9)
    with pytest.raises(TermError, match="claims 1073741824 bytes when decompressed"):
        decode(claimed)


def test_a_small_bomb_of_empty_lists_costs_no_memory() -> None:
    """2 KB that decompress to 2 MB of terms, each of which is an object of its own."""
    inner = b"l" + struct.pack(">I", 2_000_000) + b"j" * 2_000_001
    bomb = b"\x83P" + struct.pack(">I", len(inner)) + zlib.compress(inner, 9)
    with pytest.raises(TermError, match="claims 2000006 bytes when decompressed"):
        decode(bomb)


# --- values that are no terms ------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "text",
        None,
        bytearray(b"x"),
        {1},
        object(),
        1j,
        float("nan"),
        float("inf"),
        Atom("x" * 256),
        Atom("\ud800"),
        ["text"],
        {b"k": None},
    ],
)
def test_values_without_a_term_are_refused(value: Term) -> None:
    with pytest.raises(TermError):
        encode(value)


def test_charlist() -> None:
    assert charlist([97, 98, 0, 255]) == b"ab\0\xff"
    assert charlist([]) == b""
    for other in (b"ab", (97,), [256], [-1], [Atom("a")], "ab"):
        with pytest.raises(TermError, match="charlist"):
            charlist(other)


# --- properties --------------------------------------------------------------------------------


@given(terms)
def test_round_trip(value: Term) -> None:
    data = encode(value)
    again, end = decode(data)
    assert again == value
    assert end == len(data)
    assert encode(again) == data


@given(terms, st.data())
def test_a_cut_term_is_refused(value: Term, data: st.DataObject) -> None:
    whole = encode(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(TermError):
        decode(whole[:cut])


def decodes_or_is_refused(data: bytes) -> None:
    try:
        value, end = decode(data)
    except TermError:
        return
    assert 0 < end <= len(data)
    assert decode(encode(value))[0] == value


@given(terms, st.data())
def test_a_flipped_byte_gives_a_term_or_an_error(value: Term, data: st.DataObject) -> None:
    whole = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    decodes_or_is_refused(bytes(whole))


@given(st.binary(max_size=60))
@example(b"o\xff\xff\xff\xff\0")
@example(b"t\0\0\0\1h\1ja\1")
def test_any_bytes_give_a_term_or_an_error(data: bytes) -> None:
    decodes_or_is_refused(b"\x83" + data)
