"""Files of version 2 that the golden directories have no example of: other numbers of entries, no
checksums, both Erlang encodings, queues that were being converted, a reader beside a node at
work."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from journal.findings import Cause, Kind
from qindex.format.rabbitmq import queue_index_v2 as index_format
from qindex.format.rabbitmq import queue_store_v2 as store_format
from qindex.format.rabbitmq.names import directory_name, format_queue_name
from qindex.format.rabbitmq.record import encode_message
from qindex.format.rabbitmq.term_format import Atom as A
from qindex.tools.convert import convert
from qindex.view.reader import QueueReader, StoreReader
from tests.effort import by_tier, part
from tests.golden import golden
from tests.qindex.rabbitmq.test_container import MODES, content, erl

NAME = "q"


def records(count: int, first: int = 0, kind: str = "basic") -> list[bytes]:
    found = []
    for number in range(first, first + count):
        msg_id, body = number.to_bytes(16, "big"), b"body %d" % number
        if kind == "basic":
            found.append(encode_message(msg_id=msg_id, routing_keys=[b"q"], body=body))
            continue
        notes = {A("id"): msg_id, A("x"): b"", A("rk"): [b"q"], A("rts"): 1_700_000_000_000}
        if kind == "transient":
            notes[A("d")] = A("false")
        term = (A("mc"), A("mc_amqpl"), content(MODES, body), notes)
        found.append(b"\x83" + erl(term, kind == "wide"))
    return found


def write(
    vhost: Path, number: int, count: int, messages: Sequence[bytes], rel: int = 0, crc: bool = True
) -> Path:
    """Write segment ``number`` of ``count`` entries with these messages, from slot ``rel`` on."""
    directory = vhost / "queues" / directory_name("/", NAME)
    directory.mkdir(parents=True, exist_ok=True)
    (vhost / ".vhost").write_bytes(b"/")
    (directory / ".queue_name").write_bytes(format_queue_name("/", NAME, version=2))
    store = store_format.pack_header(number, count)
    offsets = []
    for message in messages:
        offsets.append(len(store))
        head = store_format.pack_entry_head(message)
        store += (head if crc else head[:4] + bytes(4)) + message
    lengths = np.array([len(message) for message in messages])
    slots = index_format.pack_slots(
        np.ones(len(messages), np.bool_),
        np.full(len(messages), index_format.IN_QUEUE_STORE, np.uint8),
        index_format.pack_places(np.array(offsets), lengths),
        np.array([8] * len(messages)),
        np.zeros(len(messages), np.uint64),
    )
    data = index_format.pack_header(number, count) + bytes(32 * rel) + slots.tobytes()
    (directory / f"{number}.qi").write_bytes(data)
    (directory / f"{number}.qs").write_bytes(store)
    return directory


def reader_of(vhost: Path) -> QueueReader:
    return StoreReader(vhost).queue(NAME)


@pytest.mark.parametrize("count", [1, 64, 256, 1000, 4096, 16384])
@pytest.mark.parametrize("kind", ["basic", "mc", "wide"])
def test_any_number_of_entries(count: int, kind: str, tmp_path: Path) -> None:
    few = min(count, 3)
    for number in (0, 5, 1 << 40):
        write(tmp_path, number, count, records(few, number % 1000, kind), rel=count - few)
    reader = reader_of(tmp_path)
    rows = list(reader.entries())
    assert reader.findings == []
    assert [row.seq_id for row in rows] == [
        number * count + count - few + at for number in (0, 5, 1 << 40) for at in range(few)
    ]
    assert rows[0].body == b"body 0"
    summary = reader.summary()
    assert (summary.messages, summary.segments, summary.versions) == (3 * few, 3, (2,))
    assert summary.next_seq_id == ((1 << 40) + 1) * count


def test_headers_that_say_different_numbers(tmp_path: Path) -> None:
    """The node's setting was changed: each file is read as its own header says."""
    write(tmp_path, 0, 64, records(64))
    write(tmp_path, 1, 64, records(10, 64))
    write(tmp_path, 2, 256, records(10, 200))
    rows = list(reader_of(tmp_path).entries())
    assert [row.seq_id for row in rows] == [*range(74), *range(512, 522)]


def test_a_queue_whose_headers_are_lost(tmp_path: Path) -> None:
    directory = write(tmp_path, 3, 64, records(5))
    write(tmp_path, 4, 64, records(5, 5))
    data = bytearray((directory / "3.qi").read_bytes())
    data[:64] = bytes(64)
    (directory / "3.qi").write_bytes(data)
    reader = reader_of(tmp_path)
    assert [row.seq_id for row in reader.entries()] == [*range(192, 197), *range(256, 261)]
    (finding,) = reader.findings
    assert (finding.offset, finding.length, finding.cause) == (0, 64, Cause.DAMAGE)


def test_without_checksums_a_term_has_to_decode(tmp_path: Path) -> None:
    messages = records(4)
    directory = write(tmp_path, 0, 64, messages, crc=False)
    data = bytearray((directory / "0.qs").read_bytes())
    second = 64 + 8 + len(messages[0]) + 8
    data[second] ^= 1
    (directory / "0.qs").write_bytes(data)
    reader = reader_of(tmp_path)
    rows = list(reader.entries())
    assert [row.body for row in rows] == [b"body 0", None, b"body 2", b"body 3"]
    (finding,) = reader.findings
    assert finding.offset == 64 + 32


def test_holes_are_no_messages(tmp_path: Path) -> None:
    """Room that was kept for messages that were acknowledged before they were written, and an
    index that is ahead of its store."""
    directory = write(tmp_path, 0, 64, records(5))
    index = bytearray((directory / "0.qi").read_bytes())
    index[64 + 32 : 64 + 64] = bytes(32)
    (directory / "0.qi").write_bytes(index)
    data = (directory / "0.qs").read_bytes()
    length = len(records(1)[0]) + 8
    holed = data[: 64 + length] + bytes(length) + data[64 + 2 * length : -length] + bytes(length)
    (directory / "0.qs").write_bytes(holed)
    reader = reader_of(tmp_path)
    assert [row.seq_id for row in reader.entries()] == [0, 2, 3]
    assert reader.findings == []
    (directory / "0.qs").write_bytes(holed[:-length])
    assert [row.seq_id for row in reader.entries()] == [0, 2, 3]
    assert reader.summary().messages == 3


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    ("pairs", "kept"),
    part(
        list(product([1, 2, 4], ["all", "unconverted"])),
        by_tier(quick=6, all=1, nightly=1),
        "conversions",
    ),
)
def test_a_conversion_that_was_cut_short(pairs: int, kept: str, tmp_path: Path) -> None:
    """A node writes segment by segment, and deletes one of version 1 when it is done with it."""
    older = golden("c1").copy(tmp_path)
    newer = golden("c1").copy(tmp_path)
    convert(newer, 2)
    name = StoreReader(older).queue_names()[0]
    whole = [(row.seq_id, row.body) for row in StoreReader(older).queue(name).entries()]
    (directory,) = (one for one in (older / "queues").iterdir() if any(one.glob("*.idx")))
    made = newer / "queues" / directory.name
    numbers = sorted(int(path.stem) for path in made.glob("*.qi"))[:pairs]
    for number in numbers:
        for suffix in (".qi", ".qs"):
            shutil.copy(made / f"{number}{suffix}", directory)
    last = (numbers[-1] + 1) * 4096
    for path in directory.glob("*.idx"):
        if kept == "unconverted" and (int(path.stem) + 1) * 2048 <= last:
            path.unlink()
    reader = StoreReader(older).queue(name)
    assert [(row.seq_id, row.body) for row in reader.entries()] == whole
    summary = reader.summary()
    assert (summary.messages, summary.versions) == (len(whole), (1, 2))
    convert(older, 2)
    assert [(row.seq_id, row.body) for row in StoreReader(older).queue(name).entries()] == whole


def test_a_segment_that_goes_while_it_is_read(tmp_path: Path) -> None:
    """A node deletes both files when all is acknowledged."""
    directory = write(tmp_path, 0, 64, records(64))
    write(tmp_path, 1, 64, records(3, 64))
    rows = reader_of(tmp_path).entries()
    assert next(rows).seq_id == 0
    (directory / "1.qi").unlink()
    (directory / "1.qs").unlink()
    assert [row.seq_id for row in rows] == list(range(1, 64))


def test_an_orphaned_store_is_a_note(tmp_path: Path) -> None:
    from qindex.tools.verify import verify

    directory = write(tmp_path, 0, 64, records(3))
    (directory / "0.qi").unlink()
    assert list(reader_of(tmp_path).entries()) == []
    findings = verify(tmp_path).findings
    assert {one.cause for one in findings} == {Cause.CRASH}
    assert {one.kind for one in findings} == {Kind.MISSING_FILE, Kind.MESSAGE_WITHOUT_ENTRY}
