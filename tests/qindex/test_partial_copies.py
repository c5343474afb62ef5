"""An append whose process died while it was copied: whatever part of it was there by then, in
whatever order it was copied, all of it is dropped, as a crash, and nothing else is.

Its first sixteen bytes are stored last (:mod:`journal.journal`), so the parts are of what follows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from journal import format as journal_format
from journal.block_sums import extent
from journal.findings import Cause, Kind
from journal.format import NO_START, START_SIZE, pack_publish
from journal.fs.files import REAL
from qindex.format.message_record import NOTHING, encode_middle
from qindex.format.plain_record import CHECK_START
from qindex.format.publish_records import framed_batch, framed_record, plain_batch
from qindex.format.record_layouts import journal_layout
from qindex.format.resynchronise import Reading, read_soundly
from qindex.format.stored_id import make_id
from qindex.recovery.point_in_time import GivenOut
from qindex.recovery.store_recovery import load_queue
from tests.qindex.support import journal_bytes

ID_HIGH = 0xC654EC50905D52F2
STAMP = 1_700_000_000_000_000_000
LIMIT = 1 << 20
KEYED = encode_middle("k26042", {"n": 1}, {})
BEFORE = {
    "nothing": b"",
    "publishes": bytes(plain_batch(7, ID_HIGH, [b"7", b"8"], STAMP)[0]),
    "an ack": bytes(plain_batch(8, ID_HIGH, [b"8"], STAMP)[0]) + journal_bytes(8, b"", "da"),
}


def single(seq: int, body: bytes, middle: bytes = NOTHING, expiry: int = 0) -> bytes:
    return framed_record(seq, ID_HIGH, body, STAMP, middle, expiry)


def appends(seq: int) -> dict[str, bytes]:
    """Of each kind, of ``seq`` and the seq_ids behind it."""
    bodies = [b"%d" % number for number in range(5)]
    stored = [
        pack_publish(seq + at, True, make_id(b"runrun", 9 + at, 5000), 0, 5000, b"")
        for at in range(3)
    ]
    return {
        "plain": single(seq, b"plain"),
        "empty": single(seq, b""),
        "zeros": single(seq, bytes(30)),
        "keyed": single(seq, b"keyed", KEYED, 1 << 50),
        "long": single(seq, b"long" * 100),
        "stored": stored[0],
        "batch": bytes(plain_batch(seq, ID_HIGH, bodies, STAMP)[0]),
        "keyed batch": framed_batch(
            seq, ID_HIGH, bodies, range(STAMP, STAMP + 5), [KEYED] * 5, 1 << 50
        )[0],
        "several stored": b"".join(stored),
        "deliveries": journal_bytes(7, b"", "d") + journal_bytes(8, b"", "ddd"),
        "acks": journal_bytes(7, b"", "da") + journal_bytes(8, b"", "dad"),
    }


def parts(append: bytes) -> Iterator[bytes]:
    """What may be there: all but one range of bytes, or one range alone, behind the start."""
    size = len(append)
    fields = {32, 36, 40, CHECK_START, CHECK_START + 8, size}
    places = sorted({*range(START_SIZE, size, max(5, size // 16)), *fields})
    for first, last in combinations([at for at in places if at <= size], 2):
        yield NO_START + append[START_SIZE:first] + bytes(last - first) + append[last:]
        yield bytes(first) + append[first:last] + bytes(size - last)


def read(data: bytes, **more: int) -> Reading:
    return read_soundly("journal.jif", data, replace(journal_layout(LIMIT), **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", appends(0))
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("seq", [0, 9, 26_042])
def test_no_part_of_it_counts(before: str, kind: str, seq: int) -> None:
    if seq == 0 and before != "nothing":
        seq = 300
    front, append = BEFORE[before], appends(seq)[kind]
    sound = read(front)
    seen = 0
    for part in parts(append):
        assert part.startswith(NO_START)
        found = read(front + part + bytes(200))
        assert found.walk.seqs.tolist() == sound.walk.seqs.tolist(), part
        assert found.walk.kinds.tolist() == sound.walk.kinds.tolist(), part
        assert {one.cause for one in found.findings} <= {Cause.CRASH}, part
        if any(part):
            (one,) = found.findings
            assert one.offset == len(front)
            assert one.kind in (Kind.UNFINISHED, Kind.TORN)
            assert one.offset + one.length <= len(front + part)
            seen += 1
    assert seen > 10
    # and with its start it is there
    whole = read(front + append + bytes(200))
    assert len(whole.walk) > len(sound.walk)
    assert whole.findings == []


def test_where_all_was_there_once_the_rest_is_kept() -> None:
    """A checksum over the place of its start says that the append was done: what is wrong there now
    is damage, and costs one message."""
    front = BEFORE["publishes"]
    batch = appends(9)["batch"]
    data = front + NO_START + batch[START_SIZE:] + bytes(200)
    assert read(data).walk.seqs.tolist() == [7, 8]
    found = read(data, complete=len(front) + len(batch))
    assert found.walk.seqs.tolist() == [7, 8, 10, 11, 12, 13]
    assert len(found.findings) == 1


def test_sums_say_how_much_was_there(tmp_path: Path) -> None:
    front = BEFORE["publishes"]
    batch = appends(9)["batch"]
    path = tmp_path / journal_format.FILE_NAME
    path.write_bytes(front + NO_START + batch[START_SIZE:] + bytes(200))
    loaded = load_queue(REAL, str(tmp_path), 4096, os.listdir(tmp_path), GivenOut(LIMIT, 7))
    assert loaded.fresh[0].seqs.tolist() == [7, 8]
    assert loaded.seen == 9
    (tmp_path / "journal.jif.sum").write_bytes(extent(front + batch, 0))
    loaded = load_queue(REAL, str(tmp_path), 4096, os.listdir(tmp_path), GivenOut(LIMIT, 7))
    assert loaded.fresh[0].seqs.tolist() == [7, 8, 10, 11, 12, 13]


def test_an_emptied_journal_is_missed(tmp_path: Path) -> None:
    """Its checksums tell that it held something. An engine removes them before it empties it."""
    front = BEFORE["publishes"]
    (tmp_path / journal_format.FILE_NAME).touch()
    (tmp_path / "journal.jif.sum").write_bytes(extent(front, 0))
    loaded = load_queue(REAL, str(tmp_path), 4096, os.listdir(tmp_path), GivenOut(LIMIT, 7))
    (one,) = loaded.findings
    assert one.is_loss
    assert one.what == f"the file ends at 0; it had at least {len(front)} bytes"
    unknown = GivenOut(LIMIT, power_lost=True)
    assert not load_queue(REAL, str(tmp_path), 4096, os.listdir(tmp_path), unknown).findings


def test_a_loss_of_power_loses_sectors_and_no_more() -> None:
    """What stands in another sector than the start that is missing was written before, too."""
    front = BEFORE["publishes"]
    singles = [single(seq, b"%d" % seq * 60) for seq in range(9, 19)]
    data = front + NO_START + b"".join(singles)[START_SIZE:] + bytes(200)
    found = read(data, power_lost=True)
    assert found.walk.seqs.tolist() == [7, 8, *range(10, 19)]
    assert {one.cause for one in found.findings} == {Cause.CRASH}


def test_a_node_s_journal_is_read_as_far_as_it_goes() -> None:
    """RabbitMQ stores nothing last: what stands behind zeros is kept."""
    front = BEFORE["publishes"]
    batch = appends(9)["batch"]
    data = front + NO_START + batch[START_SIZE:] + bytes(200)
    found = read_soundly("journal.jif", data, journal_layout(journal_format.MAX_SEQ_ID))
    assert found.walk.seqs.tolist() == [7, 8, 10, 11, 12, 13]
