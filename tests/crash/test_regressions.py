"""What the explorer has found, as the shortest sequences that showed it; docs/durability.md tells
what each promise is. A new one is added as ``python -m tests.crash`` prints it."""

from __future__ import annotations

import pytest

from tests.crash.driver import Workload
from tests.crash.explorer import Explorer, Limits
from tests.effort import by_tier, not_quick, part

REGRESSIONS = [
    # A process that died between the two stores of an append left an entry that had the message
    # id of the new message and passed for seq_id 0: it took the place of the first message.
    Workload(
        "second entry passes for the first",
        (("publish", "a", "stored"), ("publish", "a", "stored")),
    ),
    # The same with nothing in the journal before: the seq_id of the entry was believed.
    Workload(
        "entry in an emptied journal passes for seq_id 0",
        (("publish", "a"), ("consume", "a"), ("flush", "a"), ("publish", "a", "stored")),
        options={"segment_entry_count": 1},
    ),
    # A process that died between the two stores of the first append behind a flush left what
    # open took for damage.
    Workload(
        "append to an emptied journal",
        (("publish", "a"), ("consume", "a"), ("flush", "a"), ("publish_many", "a", 2)),
    ),
    Workload("a transient message comes first", (("publish", "a", "transient"),)),
    # A loss of power takes sectors of 512 bytes; open took only whole pages for that.
    Workload(
        "sector of the journal never written",
        (("publish", "a"), ("publish", "a", "long"), ("publish", "a")),
    ),
    Workload(
        "sector of a batch never written",
        (("publish_many", "a", 4, "long"), ("publish", "a")),
        patches={"journal.journal._BULK": 2048},
    ),
    Workload(
        "sector of a segment never written",
        (("publish_many", "a", 4, "long"), ("sync",), ("flush", "a")),
    ),
    # The checksum of a journal's block told of a deliver record of one bit that was not there.
    Workload(
        "deliver record of one bit",
        (("publish", "a"), ("get", "a"), ("sync_queue", "a")),
    ),
    # Checksums of a new journal were held against the old one, which came back without them: one
    # bit made a publish record of it a deliver record.
    Workload(
        "checksums of another journal",
        (("publish", "a", "small", True), ("meanwhile", ("flush", "a"), ("get", "a"))),
    ),
    # The checksums of a journal outlived it: the next one, still empty, was held against them.
    Workload(
        "checksums of a journal that was emptied",
        (
            ("publish", "a"),
            ("meanwhile", ("flush", "a"), ("get", "a")),
            ("kill",),
            ("publish", "a"),
        ),
    ),
    # A sector ended before the last byte of an entry's length: what was left of a message in the
    # index looked like an entry whose message is in the message store, and was dropped.
    Workload(
        "sector ends in the length of a record",
        (("publish", "a", "border"), ("publish", "a", "rich"), ("sync",), ("flush", "a")),
    ),
    # Files of the message store behind the first that was not synced were not looked at in full
    # when it was opened: get raised for messages that nobody had been promised.
    Workload(
        "sector of a rolled file never written",
        (("publish_many", "a", 4, "stored"), ("flush", "a")),
    ),
    # The name of a journal that a flush had made was not synced by recovery: the one before it
    # came back, without what was appended since.
    Workload(
        "old journal comes back after recovery",
        (
            ("publish", "a", "small", True),
            ("meanwhile", ("flush", "a"), ("get", "a")),
            ("kill",),
            ("sync",),
            ("consume", "a"),
            ("flush", "a"),
        ),
    ),
    # Journals are emptied without a sync: one that came back after a clean close brought
    # acknowledged messages back.
    Workload(
        "journal comes back after a clean close",
        (("publish_many", "a", 2), ("sync",), ("consume", "a", 1), ("close",)),
    ),
    Workload(
        "old journal comes back after a clean close",
        (("publish_many", "a", 2), ("sync",), ("consume", "a", 1), ("close",)),
        patches={"journal.journal._IN_PLACE": 0},
    ),
    # What is stored last of an append, its first sixteen bytes, reached over the border of two
    # sectors, and only the first of them was written again before the power went: the record was
    # taken for a damaged one.
    Workload(
        "sector ends in what is stored last of an append",
        (
            ("publish", "a", "border", True),
            ("publish", "a", "ttl", False),
            ("flush", "a"),
            ("get", "a", 3),
            ("publish", "a", "border", False),
            ("publish", "a", "ttl", False),
        ),
        (("open",), ("queue", "a")),
        {"segment_entry_count": 4, "max_journal_entries": 1000, "durability": "os"},
        {"journal.journal._IN_PLACE": 0},
    ),
    # So with the checksum, which a publish put in last.
    Workload(
        "sector ends in a checksum",
        (
            ("publish", "a", "border", False),
            ("publish", "a", "border", False),
            (
                "meanwhile",
                ("flush", "a"),
                ("get", "a"),
                ("publish", "a", "border", False),
            ),
        ),
        (("open",), ("queue", "a")),
        {"segment_entry_count": 8, "max_journal_entries": 1000, "durability": "os"},
    ),
    # A sector of a segment that was not synced was lost with an entry, and the deliver and ack of
    # it, in a later sector, were not.
    Workload(
        "sector with an entry lost, the one with its ack not",
        (
            ("publish_to", "abc", "border", False),
            ("requeue", "a", 0),
            (
                "meanwhile",
                ("flush", "a"),
                ("consume", "a", 1),
                ("publish", "a", "border", False),
                ("get", "a"),
            ),
            ("publish", "b", "border", False),
            ("publish", "a", "border", False),
            ("get", "a", 2),
            ("reopen",),
        ),
        (("open",), *(("queue", name) for name in "abc")),
        {"segment_entry_count": 4, "max_journal_entries": 1000, "durability": "os"},
    ),
]


_LONG = "sector with an entry lost, the one with its ack not"


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(one, id=one.name, marks=not_quick("50 s") if one.name == _LONG else ())
        for one in part(REGRESSIONS, by_tier(quick=6, all=1, nightly=1), "regressions")
    ],
)
def test_stays_mended(workload: Workload) -> None:
    report = Explorer(Limits()).explore(workload)
    assert report.complete
    assert report.opened > 20
    assert not report.failures, report.failures[0]
