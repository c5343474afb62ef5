"""The primitives over memory: each build is held against the interpreter's."""

from __future__ import annotations

import json
import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rocketstore
from journal.compiled import COMPILED, build
from journal.errors import DamageError, UsageError
from journal.fs.files import REAL
from rocketstore.format import words
from rocketstore.format.heads import Head
from rocketstore.format.index_format import HEADER_SIZE
from rocketstore.format.javahash import hash_code, index_hash_many
from rocketstore.format.properties import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    Indexed,
    decode_properties,
    encode_properties,
    encode_usual,
    property_columns,
)
from rocketstore.index.index_file import IndexFile
from tests.rocketstore.support import Clock, open_tiny

SIZES = [*range(70), 255, 1023, 1024, 1025, 3000]

texts = st.text(st.characters(), max_size=40) | st.text("ab\xe9\xff", max_size=600)
"""Lone surrogates and letters beyond 16 bits among them."""


class RecordedMap(mmap.mmap):
    """A map whose stores are seen: the primitives have to use its methods."""

    stores: list[tuple[int, int]]

    def __setitem__(self, key: Any, value: Any, /) -> None:
        self.stores.append((key.start, key.stop))
        super().__setitem__(key, value)


@given(texts, st.integers(-(1 << 31), (1 << 31) - 1))
def test_hashes(text: str, seed: int) -> None:
    expected = words.text_hash(text, seed)
    assert hash_code(text, seed) == expected
    assert -(1 << 31) <= expected < 1 << 31
    absolute = 0 if expected == -(1 << 31) else abs(expected)
    assert index_hash_many([text], seed).tolist() == [absolute]


values = st.text("k\xe9\x01\x02\0 ", max_size=3) | st.text("k", max_size=20) | texts
whole = st.integers(32740, 32767).map("k".__mul__)


@given(values, values | whole, values)
@example("a\0", "", "")
@example("", "", "\x02")
@example("k", "u" * 32760, "")
def test_usual_properties(keys: str, unique_key: str, tags: str) -> None:
    """They are what the way of any properties makes of them, and refuse what that refuses."""
    given_ones = {KEYS: keys, UNIQ_KEY: unique_key, TAGS: tags}
    try:
        expected = encode_properties({name: text for name, text in given_ones.items() if text})
    except UsageError as error:
        with pytest.raises(UsageError, match=re.escape(str(error))):
            encode_usual(keys, unique_key, tags)
    else:
        assert encode_usual(keys, unique_key, tags) == expected


def test_keys_of_any_bytes_are_hashed_as_texts(tmp_path: Path) -> None:
    """Of letters beyond ASCII and beyond 16 bits, and of bytes that are no text."""
    raw = [b"plain", "\xe9t\xe9".encode(), b"\xff\xfe", "\U0001f600-12345678".encode(), b"x" * 70]
    with open_tiny(tmp_path / "s") as store:
        puts = [store.put("T", b"", properties=b"KEYS\x01" + key + b" also") for key in raw]
        for put, key in zip(puts, raw, strict=True):
            found = store.query("T", key.decode(errors="replace"))
            assert [message.offset for message in found] == [put.offset]
        assert len(store.query("T", "also")) == len(raw)


def test_records_of_all_sizes(tmp_path: Path) -> None:
    """Of single puts, and of a batch."""
    clock = Clock(step=7)
    with open_tiny(tmp_path / "s", clock=clock) as store:
        state = store._state
        for number, size in enumerate(SIZES):
            body = bytes((number + at) % 251 + 1 for at in range(size))
            one = store.put("T", body, keys="k" * (size % 9), tags="t")
            (two,) = store.put_many("T", [body], keys="k" * (size % 9), tags="t")
            route = state.route("T", 0)
            for put in (one, two):
                raw = store.lookup(put.offset)
                assert raw is not None
                assert raw.body == body
                stamp = raw.raw[36:84]
                expected = bytearray(len(raw.raw))
                crc = words.body_sum(body)
                ordinal, offset = put.queue_offset, put.offset
                end = words.store_message(
                    expected, 0, crc, route.start, ordinal, offset, stamp, body, route.field,
                    raw.properties_bytes,
                )  # fmt: skip
                assert end == len(raw.raw)
                assert raw.raw == expected


def test_the_start_of_a_record_is_stored_last(tmp_path: Path) -> None:
    with rocketstore.open(tmp_path / "s", background=False) as store:
        first = store.put("T", b"x" * 50)
        log = store._state.commitlog
        real = log.view
        assert real is not None
        recorded = RecordedMap(-1, 1 << 16)
        recorded.stores = []
        recorded[:] = real[: 1 << 16]
        recorded.stores.clear()
        log.view = recorded
        put = store.put("T", b"y" * 50)
        log.view = real
        end = put.offset + put.size
        assert recorded.stores == [(first.size, end), (put.offset, put.offset + 8)]
        real[put.offset : end] = recorded[put.offset : end]
        assert store.get("T", 0, 0).bodies == [b"x" * 50, b"y" * 50]


def test_nothing_is_stored_behind_the_map(tmp_path: Path) -> None:
    store = rocketstore.open(tmp_path / "s", background=False)
    store.put("T", b"first")
    store.get("T", 0, 0)
    log = store._state.commitlog
    for at in (mmap.PAGESIZE - 50, mmap.PAGESIZE, 1 << 40):
        real, here = log.view, log.at
        log.view = small = mmap.mmap(-1, mmap.PAGESIZE)
        log.at, log.room = at, 1 << 41
        with pytest.raises(IndexError):
            store.put("T", b"body")
        assert small[:] == bytes(mmap.PAGESIZE)
        log.view, log.at = real, here
        assert store.get("T", 0, 0).bodies == [b"first"]  # it was read again
        log = store._state.commitlog
    store.close()


def test_entries_of_an_index_file(tmp_path: Path) -> None:
    slots, entries = 5, 60
    file = IndexFile.create(REAL, str(tmp_path / "f"), slots, entries, None)
    hashes = np.array([number * 7 % 13 for number in range(50)], np.int64)
    offsets = np.arange(50) * 1000
    times = 1_700_000_000_000 + np.arange(50) * 700
    for at in (*range(20), 20):  # single ones, and many at once
        to = at + 1 if at < 20 else 50
        assert file.put_many(hashes[at:to], offsets[at:to], times[at:to]) == to - at
    expected = bytearray(file.map()[:])
    expected[HEADER_SIZE:] = bytes(len(expected) - HEADER_SIZE)
    seconds = (times - times[0]) // 1000
    used = words.link_entries(expected, slots, 1, hashes, offsets, seconds)
    assert file.map()[:] == expected
    assert used == file.header.used_slots == slots
    assert file.candidates(7, 0, 1 << 62) == [
        1000 * number for number in range(49, -1, -1) if hashes[number] == 7
    ]
    file.close()


pieces = st.tuples(
    st.sampled_from([b"KEYS", b"KEYS", b"TAGS", b"UNIQ_KEY", b"other", b"$x", b'"\xc3\xbc', b""]),
    st.sampled_from([b"\x01", b"\x01", b"\x01", b"", b"\x01\x01"]),
    st.sampled_from([b"a b", b"x", b"\xff", b"\n\\", b"", b""]),
).map(b"".join)


@given(st.lists(pieces, max_size=5).map(b"\x02".join))
def test_what_is_indexed_of_any_properties(data: bytes) -> None:
    read = decode_properties(data)
    found = Indexed()
    found.find(b"--" + data + b"--", 2, 2 + len(data))
    spans = (found.keys, found.keys_end), (found.unique, found.unique_end)
    for name, (at, end) in zip(
        (KEYS, UNIQ_KEY, TAGS), (*spans, (found.tags, found.tags_end)), strict=True
    ):
        assert data[at - 2 : end - 2].decode(errors="replace") == read.get(name, "")


@given(st.lists(pieces, max_size=5).map(b"\x02".join))
def test_properties_in_columns(data: bytes) -> None:
    """They are what is read of each, or nothing, where a build does not tell it."""
    whole = b"--" + data + b"--"
    starts, ends = np.array([0, 2, 2]), np.array([0, 2, 2 + len(data)])
    read = decode_properties(data)
    usual = len(read) == data.count(b"\x01") and not any("$" in name for name in read)
    for columns in (property_columns, words.property_columns):
        texts, bounds, spans, told = columns(whole, starts, ends)
        assert len(texts) == bounds[3]
        assert texts[: bounds[2]] == (b"{}{}" if told[0] else b"")
        places = spans[12:]
        if told[2]:
            assert json.loads(texts[bounds[2] :]) == read
            assert texts[bounds[2] :] == json.dumps(read, ensure_ascii=False).encode()
            values = [whole[places[at] : places[at + 1]].decode() for at in (0, 2, 4)]
            assert values == [read.get(name, "") for name in (KEYS, UNIQ_KEY, TAGS)]
        else:
            assert bounds[2] == bounds[3]
            assert set(places) == {2}
            compiled = columns is property_columns and build() == COMPILED
            assert not (compiled and usual and b"\xff" not in data)
    with pytest.raises(IndexError):
        property_columns(data, np.array([0]), np.array([len(data) + 1]))


@pytest.mark.parametrize("size", [0, 35, 87, 99, 111, 120])
def test_a_head_that_is_cut_off(size: int) -> None:
    view = mmap.mmap(-1, mmap.PAGESIZE)
    for kind in (0, 16, 48):
        view[39:40] = bytes((kind,))
        with pytest.raises(DamageError):
            Head().read(view, 0, size, 0)
