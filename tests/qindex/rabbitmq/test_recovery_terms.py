"""recovery.dets: what real nodes and Erlang's own dets wrote, and every way to damage it."""

from __future__ import annotations

import hashlib
import lzma
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qindex.format.rabbitmq.dets_format import read_table
from qindex.format.rabbitmq.recovery_terms import QueueTerms, RecoveryTerms, read_recovery_terms
from qindex.format.rabbitmq.term_format import Atom, Term, TermError, encode
from tests.golden import SCENARIOS, golden

MARK = b"\x12\x34\x56\x78"
SEGMENT_AT = 3384  # where the first segment of slots is in a small table
CLOSED_AT = 8


def fixture(name: str) -> bytes:
    return lzma.decompress((Path(__file__).parent / "data" / f"{name}.dets.xz").read_bytes())


def made_up(number: int, segments: Iterable[int]) -> tuple[str, QueueTerms]:
    terms = QueueTerms(
        segments=dict.fromkeys(segments, number + 1),
        next_seq_id=number * 1000,
        next_deliver_seq_id=number,
        persistent_ref=number.to_bytes(16, "big"),
        persistent_count=number,
        persistent_bytes=number * 7,
    )
    return f"QUEUE{number:025d}", terms


def with_digest(data: bytes) -> bytes:
    return data[:168] + hashlib.md5(data[12:168]).digest() + data[184:]


# --- what was really written -------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_of_a_real_node(name: str) -> None:
    store = golden(name)
    terms = read_recovery_terms((store.vhost_dir / "recovery.dets").read_bytes())
    assert terms.problems == []
    if not store.clean_shutdown:
        assert terms.queues == {}
        return
    directories = {
        directory
        for queue in store.truth.queues.values()
        for directory in queue.priority_directories.values() or [queue.directory]
    }
    assert set(terms.queues) == directories
    for queue in store.truth.queues.values():
        if queue.priority_directories:
            continue
        of = terms.queues[queue.directory]
        messages = queue.manifest_messages
        left = [message for message in messages if message.state != "acked"]
        assert of.next_seq_id == len(messages)
        assert of.persistent_count == sum(message.persistent for message in left)
        assert of.persistent_bytes == sum(m.body_len for m in left if m.persistent)
        redelivered = sum(message.redelivered for message in queue.delivered)
        assert sum(m.seq_id < of.next_deliver_seq_id for m in left) == redelivered
        if all(message.persistent for message in left):
            assert sum(of.segments.values()) == len(left)


def test_a_table_of_many_queues_has_slots_with_several() -> None:
    data = fixture("closed_70_queues")
    assert data.count(MARK) == 58  # so searching for the mark alone would lose 12
    terms = read_recovery_terms(data)
    assert terms == RecoveryTerms(dict(made_up(n, [1]) for n in range(1, 71)), [])
    assert read_table(data).closed_properly


def test_a_table_that_was_never_closed_is_searched() -> None:
    data = fixture("not_closed_50_queues")
    assert not read_table(data).closed_properly
    expected: dict[str, QueueTerms] = {}
    for n in range(1, 71):
        if n > 60:
            segments = range(1, 3)
        elif n % 3 == 1:
            segments = range(1, 41)
        elif n % 3 == 2:
            continue
        else:
            segments = range(1, 2)
        expected.update([made_up(n, segments)])
    assert read_recovery_terms(data) == RecoveryTerms(expected, [])


def test_both_ways_of_reading_agree_on_a_fresh_table() -> None:
    for data in (
        fixture("closed_70_queues"),
        (golden("g1").vhost_dir / "recovery.dets").read_bytes(),
    ):
        marked_open = data[:CLOSED_AT] + bytes(4) + data[CLOSED_AT + 4 :]
        assert not read_table(marked_open).closed_properly
        assert read_recovery_terms(marked_open) == read_recovery_terms(data)


def test_no_file() -> None:
    assert read_recovery_terms(None) == RecoveryTerms({}, [])


# --- files that are none -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no DETS file: 0 bytes"),
        (bytes(1339), "no DETS file: 1339 bytes"),
        (bytes(6000), "wrong cookie"),
        (b"\x83h\x02" * 3000, "wrong cookie"),
    ],
)
def test_no_dets_file(data: bytes, reason: str) -> None:
    terms = read_recovery_terms(data)
    assert terms.queues == {}
    assert len(terms.problems) == 1
    assert reason in terms.problems[0]
    with pytest.raises(TermError, match=reason):
        read_table(data)


@pytest.mark.parametrize("offset", [4, 5, 6, 7, 12, 16, 19, 20, 24, 27, 28, 55, 56, 167, 168, 183])
def test_a_damaged_header_is_not_believed(offset: int) -> None:
    data = bytearray(fixture("closed_70_queues"))
    data[offset] ^= 4
    terms = read_recovery_terms(bytes(data))
    assert terms.queues == {}
    assert len(terms.problems) == 1


def test_header_fields_that_no_checksum_covers() -> None:
    data = fixture("closed_70_queues")
    wrong = data[:CLOSED_AT] + b"\0\0\0\7" + data[CLOSED_AT + 4 :]
    assert "closed-properly field 7" in read_recovery_terms(wrong).problems[0]
    bag = with_digest(data[:12] + b"\0\0\0\2" + data[16:])
    assert "type 2, not a set" in read_recovery_terms(bag).problems[0]
    # no checksum at all is sound: early versions wrote none
    bare = data[:168] + bytes(16) + data[184:]
    assert read_recovery_terms(bare) == read_recovery_terms(data)


def test_a_wrong_size_at_the_end_means_not_closed() -> None:
    data = fixture("closed_70_queues")
    assert not read_table(data + bytes(8)).closed_properly
    assert read_recovery_terms(data + bytes(8)) == read_recovery_terms(data)


# --- damage inside -----------------------------------------------------------------------------


def slot_of(data: bytes, index: int) -> int:
    """Offset of the ``index``-th used slot."""
    used = [at for at in range(SEGMENT_AT, SEGMENT_AT + 2048, 8) if any(data[at : at + 8])]
    return used[index]


@pytest.mark.parametrize(
    ("slot", "problem"),
    [
        ((0xFFFFFFFF, 0x1538), "outside of the file"),
        ((7, 0x1538), "outside of the file"),
        ((200, 0xFFFFFFF0), "outside of the file"),
        ((200, 8), "outside of the file"),
        ((200, 0x1539), "something else than objects"),
        ((3, 0x1538), "outside of the file"),
    ],
)
def test_a_slot_that_leads_nowhere_loses_its_queue_alone(
    slot: tuple[int, int], problem: str
) -> None:
    data = (golden("g1").vhost_dir / "recovery.dets").read_bytes()
    at = slot_of(data, 4)
    terms = read_recovery_terms(data[:at] + struct.pack(">II", *slot) + data[at + 8 :])
    assert len(terms.queues) == 10
    assert len(terms.problems) == 1
    assert problem in terms.problems[0]


def test_a_collection_that_is_marked_free_is_no_entry() -> None:
    data = (golden("g1").vhost_dir / "recovery.dets").read_bytes()
    at = data.index(MARK)
    freed = data[:at] + b"\x03\xab\xcd\xef" + data[at + 4 :]
    closed = read_recovery_terms(freed)
    assert len(closed.queues) == 10
    assert "something else than objects" in closed.problems[0]
    not_closed = read_recovery_terms(freed[:CLOSED_AT] + bytes(4) + freed[CLOSED_AT + 4 :])
    assert len(not_closed.queues) == 10
    assert not_closed.problems == []


def test_an_old_copy_in_an_open_table_makes_the_queue_unknown() -> None:
    data = (golden("g1").vhost_dir / "recovery.dets").read_bytes()
    data = data[:CLOSED_AT] + bytes(4) + data[CLOSED_AT + 4 :]
    at = data.index(MARK) - 4
    size = struct.unpack_from(">I", data, at)[0]
    terms = read_recovery_terms(data + data[at : at + size])
    assert len(terms.queues) == 10
    assert len(terms.problems) == 1
    assert "has two entries" in terms.problems[0]


def test_a_segment_pointer_that_leads_nowhere() -> None:
    data = fixture("closed_70_queues")
    for pointer in (8, len(data) - 100, 0xFFFFFFFF):
        wrong = data[:1336] + struct.pack(">I", pointer) + data[1340:]
        terms = read_recovery_terms(wrong)
        assert terms.queues == {}
        assert "a segment pointer leads to" in terms.problems[0]
    for missing in (data[:1336] + bytes(4) + data[1340:], data[:312] + bytes(4) + data[316:]):
        terms = read_recovery_terms(missing)
        assert terms.queues == {}
        assert terms.problems == ["has pointers to 0 of 256 slots"]


def test_pointers_behind_the_last_slot_are_not_followed() -> None:
    data = fixture("closed_70_queues")
    second_segment = data[:1340] + data[1336:1340] + data[1344:]
    assert read_recovery_terms(second_segment) == read_recovery_terms(data)
    second_part = data[:316] + data[312:316] + data[320:]
    assert read_recovery_terms(second_part) == read_recovery_terms(data)


def test_every_cut_gives_a_result() -> None:
    data = (golden("e1").vhost_dir / "recovery.dets").read_bytes()
    whole = read_recovery_terms(data).queues
    for cut in range(0, len(data), 7):
        terms = read_recovery_terms(data[:cut])
        assert terms.queues.items() <= whole.items()


def test_every_flipped_byte_gives_a_result() -> None:
    data = (golden("e1").vhost_dir / "recovery.dets").read_bytes()
    # Where there is something; flips of the long runs of zeros in between are sampled.
    for at in [at for at in range(len(data)) if data[at] or at % 64 == 0]:
        terms = read_recovery_terms(data[:at] + bytes((data[at] ^ 0x41,)) + data[at + 1 :])
        assert len(terms.queues) <= 3


@given(st.lists(st.tuples(st.integers(0, 6518), st.integers(0, 255)), min_size=1, max_size=30))
def test_any_damage_gives_a_result(flips: list[tuple[int, int]]) -> None:
    data = bytearray((golden("e1").vhost_dir / "recovery.dets").read_bytes())
    for at, value in flips:
        data[at] = value
    for image in (bytes(data), with_digest(bytes(data))):
        terms = read_recovery_terms(image)
        assert len(terms.queues) <= 4


# --- entries -----------------------------------------------------------------------------------


def table_of(*values: Term, raw: bytes | None = None) -> bytes:
    """An open DETS file with these objects, each in a collection of its own."""
    head = struct.pack(">8I", 0, 0xABCDEF, 0, 1, 9, 256, 256, 1).ljust(5432, b"\0")
    for content in (encode(value) if raw is None else raw for value in values):
        objects = struct.pack(">I", 4 + len(content)) + content
        head += struct.pack(">I", 8 + len(objects)) + MARK + objects
    return head


GOOD: list[Term] = [
    (Atom("segments"), [(0, 5), (3, 1)]),
    (Atom("next_seq_id"), 6200),
    (Atom("next_deliver_seq_id"), 4),
    (Atom("persistent_ref"), bytes(range(16))),
    (Atom("persistent_count"), 6),
    (Atom("persistent_bytes"), 1234),
]


def replaced(key: str, value: Term) -> list[Term]:
    return [(Atom(key), value) if pair[0] == key else pair for pair in GOOD]


def test_an_entry() -> None:
    terms = read_recovery_terms(table_of((list(b"Q1"), GOOD)))
    ref = bytes(range(16))
    assert terms == RecoveryTerms({"Q1": QueueTerms({0: 5, 3: 1}, 6200, 4, ref, 6, 1234)}, [])


def test_an_entry_of_a_queue_that_never_used_the_store() -> None:
    entry = (list(b"Q1"), replaced("persistent_ref", Atom("undefined")))
    assert read_recovery_terms(table_of(entry)).queues["Q1"].persistent_ref is None


def test_unknown_terms_are_passed_over_and_the_first_of_two_counts() -> None:
    more = [Atom("flag"), (Atom("new"), 1), (1, 2), *GOOD, (Atom("next_seq_id"), 9)]
    assert read_recovery_terms(table_of((list(b"Q1"), more))).queues["Q1"].next_seq_id == 6200


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (Atom("x"), "not a pair"),
        ((list(b"Q"), GOOD, 1), "not a pair"),
        ((b"Q", GOOD), "not a charlist"),
        ((list(b"Q"), Atom("non_clean_shutdown")), "no list of terms"),
        ((list(b"Q"), []), "has no segments"),
        ((list(b"Q"), [(Atom("v2_index_state"), (2, {0: 1}))]), "no next_seq_id"),
        ((list(b"Q"), [*GOOD, (Atom("v2_index_state"), (3, {0: 1}))]), "none of version 2"),
        ((list(b"Q"), [*GOOD, (Atom("v2_index_state"), (2, {0: -1}))]), "not pairs of numbers"),
        ((list(b"Q"), [*GOOD, (Atom("delivery_count"), {Atom("a"): 1})]), "counts no seq_ids"),
        ((list(b"Q"), replaced("segments", 7)), "has no segments"),
        ((list(b"Q"), replaced("segments", [(0,)])), "not pairs of numbers"),
        ((list(b"Q"), replaced("segments", [(0, -1)])), "not pairs of numbers"),
        ((list(b"Q"), replaced("segments", [(0, 1), (0, 2)])), "two counts for a segment"),
        ((list(b"Q"), replaced("next_seq_id", -1)), "no next_seq_id"),
        ((list(b"Q"), replaced("next_seq_id", 1 << 64)), "no next_seq_id"),
        ((list(b"Q"), replaced("next_deliver_seq_id", b"1")), "no next_deliver_seq_id"),
        ((list(b"Q"), replaced("persistent_count", 1.0)), "no persistent_count"),
        ((list(b"Q"), replaced("persistent_bytes", Atom("x"))), "no persistent_bytes"),
        ((list(b"Q"), replaced("persistent_ref", b"short")), "no persistent_ref"),
    ],
)
def test_a_bad_entry_is_reported_and_the_others_are_read(entry: Term, problem: str) -> None:
    terms = read_recovery_terms(table_of((list(b"Q0"), GOOD), entry, (list(b"Q2"), GOOD)))
    assert set(terms.queues) == {"Q0", "Q2"}
    assert len(terms.problems) == 1
    assert problem in terms.problems[0]


@pytest.mark.parametrize("raw", [b"\x83\xff", b"", b"\x83a", b"\x83a\1behind"])
def test_an_object_that_is_no_term_is_reported(raw: bytes) -> None:
    terms = read_recovery_terms(table_of(None, raw=raw))
    assert terms.queues == {}
    assert len(terms.problems) == 1
