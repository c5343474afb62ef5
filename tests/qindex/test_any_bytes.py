"""Readers on arbitrary bytes: they end, in bounded memory, with no error but our own."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

import qindex
from journal.errors import StoreError
from journal.findings import Cause
from journal.format import MAX_SEQ_ID
from journal.fs.files import REAL
from qindex.format import layout
from qindex.format.entries import read_entry
from qindex.format.message_record import MAGIC, RecordError, decode_record, embedded_length
from qindex.format.record_layouts import journal_layout, segment_layout
from qindex.format.resynchronise import Layout, read_soundly
from qindex.format.segment_walk import walk_segment
from qindex.format.seq_ids import sound_slots
from qindex.index.segment_scan import scan_segment
from qindex.recovery import store_directory
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.recovery.snapshot import read_snapshot
from tests.qindex.support import journal_bytes, open_quietly, queue_directory, segment_bytes

COUNT = 16
JOURNAL_PIECE = st.builds(
    journal_bytes,
    st.integers(0, 40),
    st.binary(max_size=40),
    st.sampled_from(["p", "pd", "pda", "d", "a", "da"]),
)
SEGMENT_PIECE = st.builds(
    lambda seq, body, actions: segment_bytes(seq, body, actions, COUNT),
    st.integers(0, COUNT - 1),
    st.binary(max_size=40),
    st.sampled_from(["p", "pd", "pda", "d"]),
)
NOISE = st.binary(max_size=60) | st.builds(bytes, st.integers(0, 200)) | st.just(MAGIC * 20)
FLIPS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 7)), max_size=3)


def with_flips(data: bytes, flips: list[tuple[int, int]]) -> bytes:
    content = bytearray(data)
    for at, bit in flips:
        if content:
            content[at % len(content)] ^= 1 << bit
    return bytes(content)


JOURNAL = st.builds(
    lambda pieces, flips: with_flips(b"".join(pieces), flips),
    st.lists(JOURNAL_PIECE | NOISE, max_size=8),
    FLIPS,
)
SEGMENT = st.builds(
    lambda pieces, flips: with_flips(b"".join(pieces), flips),
    st.lists(SEGMENT_PIECE | NOISE, max_size=8),
    FLIPS,
)


def check_reading(data: bytes, layout_: Layout) -> None:
    reading = read_soundly("file", data, layout_)
    walk = reading.walk
    ends = (walk.offsets + walk.lengths).tolist()
    starts = walk.offsets.tolist()
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert not ends or ends[-1] <= len(data)
    assert len(reading.data) == len(data)
    # Every byte is in a record that was kept, in a finding, or a part of the zero tail.
    covered = bytearray(len(data))
    for start, end in zip(starts, ends, strict=True):
        covered[start:end] = b"\1" * (end - start)
    for finding in reading.findings:
        assert 0 <= finding.offset <= finding.offset + finding.length <= len(data)
        covered[finding.offset : finding.offset + finding.length] = b"\1" * finding.length
    for at, byte in enumerate(covered):
        assert byte or not any(data[at:])


OVERLAPPING = (
    "80000000000000000074657374746573740000000000000000000000000000000000000000000000"
    "199701cf6dbb1e31e5912a79cf000000003b9aca00c0c0c0c400"
)
"""A deliver record, and a sound publish record that starts within it."""


@example(bytes.fromhex(OVERLAPPING), 30)
@given(JOURNAL, st.sampled_from([30, 1 << 20, MAX_SEQ_ID]))
def test_journals(data: bytes, limit: int) -> None:
    check_reading(data, journal_layout(limit))


@given(SEGMENT, st.sampled_from([0, 5]))
def test_segments(data: bytes, number: int) -> None:
    check_reading(data, segment_layout(number, COUNT))
    scan = scan_segment("file", data, number, COUNT)
    # What it makes of the file is a file in which nothing is found.
    again = scan_segment("file", scan.sound_bytes(), number, COUNT)
    assert again.findings == []
    assert again.filed == scan.filed


@given(SEGMENT, st.integers(0, 70), st.integers(0, 200), st.sampled_from([20, 1 << 32]))
def test_walks_of_segments(data: bytes, start: int, stop: int, most: int) -> None:
    stop = min(stop, len(data))
    walk = walk_segment(
        data,
        min(start, stop),
        stop,
        first_seq=100,
        entry_count=COUNT,
        max_embedded=most,
        max_records=5,
    )
    assert walk.end <= stop
    assert ((walk.seqs >= 100) & (walk.seqs < 100 + COUNT)).all()


MSGPACK = st.lists(
    st.sampled_from([b"\x97\x01\xcf" + bytes(8), b"\xcf" + bytes(8), b"\xc0", b"\x80", b"\x81"])
    | st.binary(max_size=12)
    | st.sampled_from([b"\x91", b"\xc4\x03abc", b"\xa1k", b"\xd6\xff" + bytes(4), b"\xdf\xff\xff"]),
    max_size=14,
).map(b"".join)


@given(MSGPACK, st.integers(0, 20))
def test_records(data: bytes, start: int) -> None:
    for record in (data, MAGIC + data):
        try:
            message = decode_record(record)
        except RecordError:
            continue
        assert isinstance(message.body, bytes)
    length = embedded_length(data, min(start, len(data)))
    assert length is None or 0 < length <= len(data)


@given(st.binary(min_size=32, max_size=200), st.integers(0, (1 << 64) - 1))
def test_entries(data: bytes, word: int) -> None:
    entry = read_entry(data, 0, word)
    assert entry.message is None or entry.corrected or entry.damage == ""


@given(st.binary(max_size=200))
def test_slots(data: bytes) -> None:
    assert len(list(sound_slots(data))) == 0


def test_snapshots_and_markers(tmp_path: Path) -> None:
    @given(st.binary(max_size=100))
    def any_bytes(data: bytes) -> None:
        (tmp_path / SNAPSHOT).write_bytes(data)
        assert read_snapshot(REAL, str(tmp_path), "queues") is None
        (tmp_path / layout.MARKER).write_bytes(data)
        try:
            store_directory.read_marker(REAL, str(tmp_path))
        except StoreError:
            return
        raise AssertionError("this is no marker")

    any_bytes()


def test_a_directory_of_any_bytes(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "empty", segment_entry_count=COUNT) as engine:
        engine.queue("q")
    numbers = iter(range(1 << 30))

    @given(JOURNAL, SEGMENT)
    def any_bytes(journal: bytes, segment: bytes) -> None:
        store = tmp_path / str(next(numbers))
        with open_quietly(store, segment_entry_count=COUNT) as engine:
            engine.queue("q").publish(b"x")
        directory = queue_directory(store, "q")
        (store / "qindex.clean").unlink()
        for path in directory.glob("*.idx*"):
            path.unlink()
        (directory / "journal.jif").write_bytes(journal)
        (directory / "0.idx").write_bytes(segment)
        try:
            open_quietly(store).close()
        except qindex.DamageError as error:
            damaged = Path(error.path).parent
        else:
            damaged = directory
        assert damaged == directory
        with open_quietly(store, repair=True) as engine:
            queue = engine.queue("q")
            seqs = []
            while (delivery := queue.get(0)) is not None:
                seqs.append(delivery.seq_id)
                delivery.ack()
            assert seqs == sorted(set(seqs))
            assert len(queue) == 0
            assert queue.publish(b"next") > max(seqs, default=-1)
        with open_quietly(store) as engine:
            assert all(one.cause is Cause.CRASH for one in engine.findings)
            assert [one.body for one in engine.queue("q").peek(5)] == [b"next"]

    any_bytes()
