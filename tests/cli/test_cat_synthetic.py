"""Damaged and half-done directories: where the node delivers, ``cat`` gives the same; where it
hangs, every sound record is kept, and what is wrong is named by file and offset."""

from __future__ import annotations

import base64
import re

import pytest

from tests.cli.support import Result, run
from tests.golden import SYNTHETIC_CASES, SyntheticStore, synthetic

IN_THE_INDEX = [
    case for case in SYNTHETIC_CASES if "01" <= case[:2] <= "09" or "20" <= case[:2] <= "28"
]
IN_THE_MESSAGE_STORE = [case for case in SYNTHETIC_CASES if "10" <= case[:2] <= "20"]

# What the node loses, or does not even start from, and we have.
BETTER_THAN_THE_NODE = {
    "12": "b0 b1 b2 b3",
    "14": "b0 b2 b3 b4",
    "18": "b0 b2",
}
# Messages that are nowhere: the node drops them without a word.
GONE = {"10": 2, "11": 1, "19": 2}

Place = tuple[str, int]

# What is found although the node delivers: tails that a crash leaves.
TAILS: dict[tuple[str, str], Place] = {
    ("01", "qr"): ("journal.jif", 1170),  # cut in the body of the sixth publish
    ("02", "qr"): ("journal.jif", 1170),  # cut in the zeros that the sixth publish begins with
    ("02", "qs"): ("journal.jif", 1396),  # cut in the last deliver record
    ("03", "qr"): ("journal.jif", 1404),  # zeros after the last record
    ("03", "qs"): ("journal.jif", 1404),
    ("09a", "qr"): ("0.idx", 0),  # the node, too, reports the file of zeros, and deletes it
}

# Where the node hangs, or gives up the queue: what is kept, and where the cause is.
KEPT: dict[tuple[str, str], tuple[str, Place]] = {
    # A deliver of a message that is nowhere: nothing but that record is dropped.
    ("04", "qr"): ("m0 m1 m2 m3 m4 m5", ("journal.jif", 1404)),
    # The cut record is lost, as the node would lose the end of a journal.
    ("07", "qr"): ("m0 m1 m2 m3 m4", ("0.idx", 1110)),
    ("07", "qs"): ("m0 m1 m2 m3 m4", ("0.idx", 1110)),
    ("07a", "qr"): ("m0 m1 m2 m3 m4", ("0.idx", 1110)),
    ("07b", "qr"): ("m0 m1 m2 m3 m4", ("0.idx", 1110)),
    # A stray byte, and zeros, behind sound records: nothing is lost.
    ("08", "qr"): ("m0 m1 m2 m3 m4 m5", ("0.idx", 1332)),
    ("09", "qr"): ("", ("0.idx", 0)),
    ("09", "qs"): ("m0 m1 m2 m3 m4 m5", ("0.idx", 1332)),
    # One seq_id, two records: there is one place in the queue, the last one has it; the first is
    # named and stays where it is.
    ("21", "qr"): ("m0 m1", ("journal.jif", 234)),
    # An ack of a message nobody was given: rather a message too many than one too few.
    ("22", "qr"): ("m0 m1 m2", ("journal.jif", 694)),
    # A deliver in front of its publish: dropped, the message stays.
    ("23", "qr"): ("m0 m1 m2 m3 m4 m5", ("0.idx", 0)),
    # An expiry in 1970, which no node can have written: the messages stay.
    ("28", "qr"): ("m0 m1 m2 m3 m4 m5", ("journal.jif", 0)),  # and two more
    # Index and message differ in whether it is persistent: the node's queue dies of it.
    ("27", "qr"): ("m0 m1 pt", ("journal.jif", 468)),
}


def read(store: SyntheticStore, queue: str) -> Result:
    return run("cat", store.vhost_dir, queue, "--json")


def bodies(result: Result) -> list[bytes | None]:
    return [
        None if row["body_base64"] is None else base64.b64decode(row["body_base64"])
        for row in result.rows
    ]


def places(result: Result) -> list[Place]:
    found = []
    for line in result.complaints:
        match = re.fullmatch(r"qindex: \S*/([^/ ]+): at offset (\d+), \d+ bytes: .*", line)
        assert match is not None, line
        found.append((match[1], int(match[2])))
    return found


def queues_on_disk(case: str) -> list[str]:
    store = synthetic(case)
    root = store.vhost_dir / "queues"
    return [name for name, at in store.queue_directories.items() if (root / at).is_dir()]


ALL = [(case, queue) for case in IN_THE_INDEX for queue in queues_on_disk(case)]


def test_all_cases_are_here() -> None:
    assert len(IN_THE_INDEX) == 13 + 9
    hanging = {case.partition("_")[0] for case in IN_THE_INDEX if synthetic(case).boot == "HANG"}
    assert hanging == {case for case, _ in KEPT} - {"27", "28"}


@pytest.mark.parametrize(("case", "queue"), ALL)
def test_case(case: str, queue: str) -> None:
    store = synthetic(case)
    short = case.partition("_")[0]
    result = read(store, queue)
    if (short, queue) in KEPT:
        kept, place = KEPT[short, queue]
        shown = [(body or b"").split(b"-")[0].decode() for body in bodies(result)]
        assert shown == kept.split()
        assert places(result)[0] == place
        assert len(places(result)) == (3 if short == "28" else 1)
        assert result.code == 1
        return
    expected = store.delivered.get(queue, [])
    assert len(result.rows) == len(expected)
    for row, body, message in zip(result.rows, bodies(result), expected, strict=True):
        assert row["redelivered"] == message.redelivered
        assert body is None or message.matches(body)
        assert row["persistent"] == (message.delivery_mode == 2)
    tail = TAILS.get((short, queue))
    assert places(result) == ([] if tail is None else [tail])
    assert result.code == (0 if tail is None else 1)


@pytest.mark.parametrize("case", IN_THE_MESSAGE_STORE)
def test_message_store_case(case: str) -> None:
    store = synthetic(case)
    delivered = store.delivered.get("qr", [])
    result = read(store, "qr")
    there = [row for row in result.rows if row["body_base64"] is not None]
    found = [base64.b64decode(row["body_base64"]) for row in there]
    node = " ".join(message.prefix[:2] for message in delivered)
    assert [body[:2].decode() for body in found] == BETTER_THAN_THE_NODE.get(case[:2], node).split()
    for message in delivered:
        assert any(message.matches(body) for body in found)
    assert {row["location"] for row in result.rows} == {"store"}
    gone = [row for row in result.rows if row["body_base64"] is None]
    assert len(gone) == len(result.complaints) == GONE.get(case[:2], 0)
    for row, line in zip(gone, result.complaints, strict=True):
        assert row["error"] in line
        assert f"not in the message store, where it should be as {row['msg_id']}" in line
    assert result.code == (1 if gone else 0)


def test_the_size_of_the_body_is_the_body_s() -> None:
    # Case 25: the index says 0; it is a figure for statistics, and shown as it stands.
    rows = read(synthetic("25"), "qr").rows
    assert {row["size"] for row in rows} == {0}
    assert all(row["body_base64"] for row in rows)


def test_list_names_damage_and_counts_the_rest() -> None:
    result = run("list", synthetic("07").vhost_dir, "--json")
    assert result.code == 1
    assert [row["messages"] for row in result.rows] == [5, 5]
    assert places(result) == [("0.idx", 1110), ("0.idx", 1110)]
