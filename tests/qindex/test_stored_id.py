"""Index entries without a record of their own: a torn one is never taken for another's."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from journal.format import PUBLISH_HEAD_SIZE, pack_publish
from qindex.format.stored_id import COUNTS, make_id, sound_ids
from tests.effort import by_tier, part
from tests.qindex.messages_support import assert_counts, big, ready, stored
from tests.qindex.support import OtherBootFileSystem, copy_live, queue_directory

COUNT = 258
"""Two entries have a seq_id whose last byte is zero, and one follows."""


def entry(seq: int, size: int, msg_id: bytes, expiry: int = 0) -> bytes:
    return pack_publish(seq, True, msg_id, expiry, size, b"")


def test_ids_vouch_for_themselves_and_the_size() -> None:
    ids = [make_id(b"a run.", count, 1000 + count) for count in range(500)]
    assert len(set(ids)) == 500
    assert {len(one) for one in ids} == {16}
    assert make_id(b"a run.", COUNTS - 1, 1)[:10] == b"a run.\xff\xff\xff\xff"
    data = b"".join(entry(n, 1000 + n, one, n) for n, one in enumerate(ids))
    payloads = np.arange(500) * PUBLISH_HEAD_SIZE + 8
    assert sound_ids(data, payloads).all()
    assert not sound_ids(data, payloads[:-1] + 1).any()
    one = bytearray(data[7 * PUBLISH_HEAD_SIZE : 8 * PUBLISH_HEAD_SIZE])
    at = np.array([8])
    for bit in range(8 * 8, 36 * 8):
        one[bit >> 3] ^= 1 << bit % 8
        in_expiry = 24 <= bit >> 3 < 32
        assert sound_ids(one, at)[0] == in_expiry
        one[bit >> 3] ^= 1 << bit % 8


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose journal holds COUNT entries, killed before any flush."""
    base = tmp_path_factory.mktemp("torn")
    with stored(base / "store", segment_entry_count=1024) as engine:
        for number in range(COUNT):
            engine.queue("q").publish(big(number, 600))
        return copy_live(base / "store", base / "killed")


def spoilt(good: bytes, at: int, how: str) -> bytes:
    """The last entries' bytes up to ``at`` lost, or those from there on."""
    return bytes(at) + good[at:] if how == "front" else good[:at] + bytes(len(good) - at)


@pytest.mark.parametrize("how", ["front", "tail"])
@pytest.mark.parametrize("torn", [255, 256, 257])
def test_an_entry_that_is_torn_anywhere_costs_no_other(
    killed: Path, tmp_path: Path, torn: int, how: str
) -> None:
    """A loss of power, while everything before this entry was synced."""
    store = copy_live(killed, tmp_path / "store")
    path = queue_directory(store, "q") / "journal.jif"
    start = torn * PUBLISH_HEAD_SIZE
    data = path.read_bytes()
    entry_bytes = data[start : start + PUBLISH_HEAD_SIZE]
    before = [big(number, 600) for number in range(torn)]
    cuts = range(1, PUBLISH_HEAD_SIZE)
    for at in part(cuts, by_tier(quick=8, all=1, nightly=1), f"{torn} {how}"):
        path.write_bytes(data[:start] + spoilt(entry_bytes, at, how) + bytes(4096))
        copy = copy_live(store, tmp_path / "copy")
        with stored(copy, fs=OtherBootFileSystem()) as engine:
            found = ready(engine)
            assert found[:torn] == before, at
            # Zeros that belong there change nothing.
            assert found[torn:] in ([], [big(torn, 600)]), at
            assert assert_counts(engine) == len(found)
        shutil.rmtree(copy)


@pytest.mark.parametrize("how", ["front", "tail"])
def test_a_segment_that_a_flush_left_torn_yields_to_the_journal(
    killed: Path, tmp_path: Path, how: str
) -> None:
    whole = copy_live(killed, tmp_path / "whole")
    with stored(whole) as engine:
        engine.flush()
        segment = (queue_directory(whole, "q") / "0.idx").read_bytes()
    length = len(segment) // COUNT
    assert length == 34
    wanted = [big(number, 600) for number in range(COUNT)]
    path = queue_directory(killed, "q")
    for torn in (3, COUNT - 1):
        start = torn * length
        last = segment[start : start + length]
        for at in range(2, length, 3):
            copy = copy_live(killed, tmp_path / "copy")
            behind = b"" if how == "tail" else segment[start + length :]
            bad = segment[:start] + spoilt(last, at, how) + behind
            (copy / path.relative_to(killed) / "0.idx").write_bytes(bad)
            with stored(copy, fs=OtherBootFileSystem(), repair=True) as engine:
                assert ready(engine) == wanted, (torn, at)
                assert assert_counts(engine) == COUNT
            shutil.rmtree(copy)
