"""A message whose frame is damaged is not lost: its entry and its checksum tell where it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from msgstore.format import HEADER, parse_header
from qindex.engine.opening import open_store
from qindex.options import Format
from qindex.tools.repair import repair_store
from qindex.tools.verify import verify_store
from tests.damage.harms import Harm, flipped
from tests.damage.mending import mend
from tests.damage.samples import SAMPLES, Sample
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem

STORE = "/s"


def records(data: bytes) -> Iterator[tuple[int, int]]:
    """Where records begin and end in a sound message store file."""
    at = 0
    while at + HEADER <= len(data):
        end = at + parse_header(data, at)[0] + 9
        yield at, end
        at = end


def frame_flips(sample: Sample) -> Iterator[Harm]:
    """Flip every other bit of the first frame of each file, and some of the others."""
    for path, data in sample.files.items():
        if not path.endswith(".rdq"):
            continue
        for number, (start, end) in enumerate(records(data)):
            bits = [*range(start * 8, (start + HEADER) * 8), *range((end - 1) * 8, end * 8)]
            for bit in bits[:: 11 if number else 2]:
                yield flipped(sample.files, path, bit)


SLICES = by_tier(quick=4, all=1, nightly=1)


@pytest.mark.parametrize("name", ["stored and fan-out, killed", "stored and fan-out, closed"])
def test_a_flipped_bit_in_a_frame_costs_nothing(name: str) -> None:
    sample = SAMPLES[name]()
    held = {queue: truth.held for queue, truth in sample.queues.items()}
    harms = list(frame_flips(sample))
    assert len(harms) > 150
    for harm in part(harms, SLICES, name):
        mended = mend(sample, harm, held)
        assert not mended.seen, f"{harm}: {mended}"
        assert mended.named, harm


@pytest.mark.parametrize("record_format", ["qindex", "rabbitmq"])
def test_two_damaged_frames_in_a_row(record_format: Format) -> None:
    fs = MemoryFileSystem()
    bodies = [b"%d" % number * 300 for number in range(5)]
    with open_store(
        STORE, fs=fs, background=False, embed_below=100, record_format=record_format
    ) as engine:
        engine.queue("q").publish_many(bodies)
    files, directories = fs.contents()
    path = "s/msg_store_persistent/0.rdq"
    data = bytearray(files[path])
    places = list(records(bytes(data)))
    data[places[1][0] + 12] ^= 1  # an id
    data[places[2][0] + 7] ^= 1  # a length
    data[places[4][1] - 1] ^= 1  # an end
    fs = MemoryFileSystem({**files, path: bytes(data)}, directories)
    report = repair_store(STORE, "/new", fs=fs)
    assert report.complete
    assert {os.path.basename(one.path) for one in report.findings} == {"0.rdq"}
    assert report.quarantined
    with open_store("/new", fs=fs, background=False) as engine:
        assert [one.body for one in engine.queue("q").get_many(9)] == bodies


def test_a_damaged_body_is_not_saved_under_its_frame() -> None:
    """A checksum has to hold: the bytes where the message was are not enough."""
    fs = MemoryFileSystem()
    with open_store(STORE, fs=fs, background=False, embed_below=100) as engine:
        engine.queue("q").publish_many([b"1" * 300, b"2" * 300])
    files, directories = fs.contents()
    path = "s/msg_store_persistent/0.rdq"
    data = files[path].replace(b"1" * 300, b"1" * 299 + b"0")
    fs = MemoryFileSystem({**files, path: data}, directories)
    report = repair_store(STORE, "/new", fs=fs)
    assert [queue.lost for queue in report.queues] == [1]
    assert not report.complete
    with open_store("/new", fs=fs, background=False) as engine:
        assert [one.body for one in engine.queue("q").get_many(9)] == [b"2" * 300]


def test_a_segment_file_that_is_there_twice() -> None:
    """The entries of the copy have no checksum of their own, for their messages are stored: they
    are the same messages under other seq_ids, and are saved once."""
    fs = MemoryFileSystem()
    options: dict[str, Any] = {
        "background": False,
        "segment_entry_count": 8,
        "embed_below": 100,
    }
    bodies = [b"%d" % number * 300 for number in range(5)]
    with open_store(STORE, fs=fs, **options) as engine:
        engine.queue("q").publish_many(bodies)
        engine.flush()
    files, directories = fs.contents()
    (path,) = (path for path in files if path.endswith("/0.idx"))
    copy = path.replace("0.idx", "3.idx")
    fs = MemoryFileSystem({**files, copy: files[path]}, directories)
    report = repair_store(STORE, "/new", fs=fs)
    assert copy in {one.path.lstrip("/") for one in report.lost}
    assert not verify_store("/new", fs=fs).findings
    with open_store("/new", fs=fs, background=False) as engine:
        found = [(one.seq_id, one.body) for one in engine.queue("q").get_many(99)]
        assert found == list(enumerate(bodies))
