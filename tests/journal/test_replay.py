"""Replay stops exactly where the format says, and tells how."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.format import ACK, DELIVER, MAX_SEQ_ID, pack_action, pack_publish
from journal.replay import Ending, Walk, join_walks, walk_journal

MSG_ID = b"0123456789abcdef"


def publish(seq_id: int, record: bytes = b"", *, persistent: bool = True) -> bytes:
    return pack_publish(seq_id, persistent, MSG_ID, 0, len(record), record)


def listed(walk: Walk) -> list[tuple[int, int, int, int]]:
    return list(
        zip(
            walk.kinds.tolist(),
            walk.seqs.tolist(),
            walk.offsets.tolist(),
            walk.lengths.tolist(),
            strict=True,
        )
    )


def slowly(data: bytes, limit: int = MAX_SEQ_ID) -> tuple[list[tuple[int, int, int, int]], int]:
    """The format's rules, one record at a time: the records, and where they end."""
    found = []
    at = 0
    while at + 8 <= len(data):
        word = int.from_bytes(data[at : at + 8], "big")
        kind, seq = word >> 62, word & MAX_SEQ_ID
        length = 8
        if kind < DELIVER:
            if at + 40 > len(data) or not any(data[at : at + 40]):
                break
            length = 40 + int.from_bytes(data[at + 36 : at + 40], "big")
        if at + length > len(data) or seq > limit:
            break
        found.append((kind, seq, at, length))
        at += length
    return found, at


RECORDS = [
    publish(0, b"x" * 5),
    pack_action(DELIVER, 0),
    publish(1, persistent=False),
    pack_action(ACK, 0),
    publish(2, b"yz"),
    pack_action(DELIVER, 2),
]


def test_whole_journal() -> None:
    data = b"".join(RECORDS)
    walk = walk_journal(data)
    assert [kind for kind, *_ in listed(walk)] == [0, 2, 1, 3, 0, 2]
    assert [seq for _, seq, *_ in listed(walk)] == [0, 0, 1, 0, 2, 2]
    assert (walk.end, walk.ending) == (len(data), Ending.END)


@pytest.mark.parametrize("cut", range(len(b"".join(RECORDS)) + 1))
def test_torn_at_every_length(cut: int) -> None:
    borders = list(itertools.accumulate(map(len, RECORDS), initial=0))
    whole = max(border for border in borders if border <= cut)
    walk = walk_journal(b"".join(RECORDS)[:cut])
    assert walk.end == whole
    assert len(walk) == borders.index(whole)
    assert walk.ending is (Ending.END if cut == whole else Ending.TORN)


@pytest.mark.parametrize(
    ("zeros", "ending"),
    [(0, Ending.END), (1, Ending.TORN), (39, Ending.TORN), (40, Ending.ZEROS), (900, Ending.ZEROS)],
)
def test_zero_tail(zeros: int, ending: Ending) -> None:
    data = b"".join(RECORDS)
    walk = walk_journal(data + bytes(zeros))
    assert (len(walk), walk.end, walk.ending) == (len(RECORDS), len(data), ending)


def test_a_message_that_looks_almost_like_the_zero_tail_is_a_record() -> None:
    only_id = pack_publish(0, True, bytes(15) + b"\1", 0, 0, b"")
    walk = walk_journal(only_id + bytes(40))
    assert (len(walk), walk.end, walk.ending) == (1, 40, Ending.ZEROS)


def test_stops_at_a_seq_id_that_was_never_given_out() -> None:
    data = publish(1) + publish(2) + publish(3)
    walk = walk_journal(data, seq_limit=2)
    assert (walk.seqs.tolist(), walk.end, walk.ending) == ([1, 2], 80, Ending.LIMIT)


def test_pauses_and_goes_on() -> None:
    data = b"".join(publish(seq, bytes(seq % 7)) for seq in range(300))
    walks = []
    position = 0
    while position < len(data):
        walks.append(walk_journal(data, position, max_records=17))
        position = walks[-1].end
    assert all(one.ending is Ending.PAUSE for one in walks[:-1])
    joined = join_walks(walks)
    assert listed(joined) == listed(walk_journal(data))
    assert joined.ending is Ending.END
    assert join_walks(walks[:1]) is walks[0]


def test_joins_walks_of_which_some_are_empty() -> None:
    some = walk_journal(b"".join(RECORDS))
    none = walk_journal(b"")
    torn = walk_journal(b"\x80")
    assert join_walks([none, none]) is none
    assert join_walks([none, some]) is some
    for walks in ([some, torn], [none, some, torn]):
        joined = join_walks(walks)
        assert listed(joined) == listed(some)
        assert (joined.end, joined.ending) == (0, Ending.TORN)
        assert some.ending is Ending.END


def test_takes_chosen_records() -> None:
    walk = walk_journal(b"".join(RECORDS))
    chosen = walk.take(walk.kinds == DELIVER)
    assert chosen.seqs.tolist() == [0, 2]
    assert chosen.end == walk.end


@pytest.mark.parametrize("kind", [0, 1, DELIVER, ACK])
@pytest.mark.parametrize("limit", [MAX_SEQ_ID, MAX_SEQ_ID - 7])
def test_long_runs_up_to_the_highest_seq_id(kind: int, limit: int) -> None:
    records = [
        pack_action(kind, seq) if kind >= DELIVER else publish(seq, b"abc", persistent=not kind)
        for seq in range(MAX_SEQ_ID - 150, MAX_SEQ_ID + 1)
    ]
    data = b"".join(records)
    walk = walk_journal(data, seq_limit=limit)
    assert (listed(walk), walk.end) == slowly(data, limit)


@pytest.mark.parametrize(
    "before",
    [
        [publish(seq, b"abc") for seq in range(0, 66, 2)],
        [publish(67 + seq, b"abc", persistent=seq % 2 == 0) for seq in range(33)],
        [publish(67 + seq, b"abc") for seq in range(33)],
        [publish(67 + seq, b"abc", persistent=False) for seq in range(33)],
    ],
    ids=["other seq_ids", "other kinds", "a part of it", "another kind"],
)
def test_records_as_long_as_those_of_the_run_behind_them(before: list[bytes]) -> None:
    data = b"".join(before) + b"".join(publish(seq, b"abc") for seq in range(100, 400))
    walk = walk_journal(data)
    assert (listed(walk), walk.end) == slowly(data)


ENTRY = st.builds(
    lambda seq, size, kind, run: b"".join(
        pack_action(kind, seq + at)
        if kind >= DELIVER
        else publish(seq + at, bytes(size), persistent=kind == 0)
        for at in range(run)
    ),
    st.integers(0, 1 << 20) | st.integers(MAX_SEQ_ID - 200, MAX_SEQ_ID - 100),
    st.integers(0, 60),
    st.integers(0, 3),
    st.sampled_from([1, 1, 2, 40, 90]),
)


@given(st.lists(ENTRY, max_size=6), st.binary(max_size=60), st.integers(0, 200))
def test_runs_are_read_as_single_records_are(
    entries: list[bytes], tail: bytes, flipped: int
) -> None:
    data = bytearray(b"".join(entries) + tail)
    if data:
        data[flipped % len(data)] ^= 1 << flipped % 8
    walk = walk_journal(data)
    assert (listed(walk), walk.end) == slowly(bytes(data))


@given(st.binary(max_size=2000), st.integers(0, MAX_SEQ_ID))
def test_any_bytes(data: bytes, limit: int) -> None:
    walk = walk_journal(data, seq_limit=limit)
    assert (listed(walk), walk.end) == slowly(data, limit)
