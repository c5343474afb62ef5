"""Two entries of a queue that have one message id are found, whatever sort the id is of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qindex
from journal.findings import Kind
from journal.format import PAYLOAD_SIZE
from qindex.format.message_record import MAGIC
from qindex.format.stored_id import make_id
from qindex.recovery.columns import Entries
from qindex.tools.ids_check import QueueIds


def batch_of(
    seqs: list[int], ids: list[tuple[int, int]], *, embedded: int = 100, first: bytes = MAGIC
) -> Entries:
    """Entries 1000 bytes apart. Ids are two numbers: the halves of one that is embedded, run and
    count of one of the message store. ``first``: how the embedded records begin."""
    count = len(seqs)
    zeros = np.zeros(count, np.int64)
    payloads = np.arange(count, dtype=np.int64) * 1000 + 2
    data = bytearray(1000 * count + 100)
    for at in payloads.tolist():
        data[at + PAYLOAD_SIZE : at + PAYLOAD_SIZE + len(first)] = first
    if embedded:
        packed = np.array(ids, np.uint64).astype(">u8").tobytes()
    else:
        packed = b"".join(make_id(b"run%03d" % run, number, 0) for run, number in ids)
    return Entries(
        path="0.idx",
        location="segment",
        data=bytes(data),
        version2=False,
        seqs=np.array(seqs, np.int64),
        states=zeros.astype(np.uint8),
        payloads=payloads,
        offsets=payloads - 2,
        delivered=zeros.astype(np.bool_),
        persistent=zeros.astype(np.bool_),
        dropped=zeros.astype(np.bool_),
        ids=np.frombuffer(packed, np.uint8).reshape(-1, 16),
        expiry=zeros.astype(np.uint64),
        sizes=zeros,
        embedded=np.full(count, embedded, np.int64),
    )


def found_in(*batches: Entries) -> list[int]:
    ids = QueueIds()
    for batch in batches:
        ids.take(batch)
    findings = list(ids.findings())
    assert all(one.kind is Kind.DUPLICATE_MSG_ID for one in findings)
    return [one.offset for one in findings]


HIGH, OTHER = 2**63 + 5, 77


@pytest.mark.parametrize(
    ("batches", "offsets"),
    [
        ([batch_of([0, 1, 2], [(HIGH, 0), (HIGH, 1), (HIGH, 2)])], []),
        ([batch_of([0, 1], [(HIGH, 0), (OTHER, 1)]), batch_of([9], [(HIGH, 9)])], []),
        # The id of seq_id 1 stands at seq_id 2, too.
        ([batch_of([0, 1, 2], [(HIGH, 0), (HIGH, 1), (HIGH, 1)])], [2000]),
        ([batch_of([2], [(HIGH, 7)]), batch_of([5, 6, 7], [(HIGH, n) for n in (5, 6, 7)])], [0]),
        # Ids of the message store, in one file and in two.
        ([batch_of([0, 1, 2], [(1, 9), (2, 9), (1, 9)], embedded=0)], [2000]),
        ([batch_of([0], [(1, 9)], embedded=0), batch_of([5], [(1, 9)], embedded=0)], [0]),
        # A node may put a message into a queue twice.
        ([batch_of([0, 1, 2], [(1, 9), (2, 9), (1, 9)], first=b"\x83")], []),
        # An id that ends in its seq_id, of a message that is in the message store.
        ([batch_of([4], [(1, 4)], embedded=0), batch_of([4, 5], [(3, 4), (3, 5)])], []),
        ([], []),
    ],
)
def test_ids_that_stand_twice(batches: list[Entries], offsets: list[int]) -> None:
    assert found_in(*batches) == offsets


def test_a_sound_queue_has_none(tmp_path: Path) -> None:
    """Plain messages, with keys, large ones, in several queues, over several runs."""
    for _ in range(3):
        with qindex.open(tmp_path, background=False, segment_entry_count=32) as engine:
            queue = engine.queue("q")
            queue.publish_many([b"x"] * 50)
            for number in range(10):
                queue.publish(b"k", key=str(number))
                engine.publish_to(["q", "other"], b"y" * (10 if number % 2 else 9000))
    assert qindex.verify(tmp_path).findings == []
