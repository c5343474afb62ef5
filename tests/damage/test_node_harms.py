"""Directories that nodes wrote, harmed: what is lost is told of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import qindex
import rocketstore
from journal.findings import Cause, Kind
from qindex.tools.saved import LOSSES
from rocketstore.verify import verify
from tests.damage.node_harms import HEAVY, NAMES, directory, harms, is_knowable, wrong
from tests.effort import NIGHTLY, by_tier, part
from tests.golden import golden, rocket_copy
from tests.golden_v2 import scenario

LIGHT = [name for name in NAMES if NIGHTLY or name not in HEAVY]
HARMS = by_tier(quick=6, all=6, nightly=100_000)
"""Harms of each directory in one run."""


@pytest.mark.parametrize("name", part(LIGHT, by_tier(quick=9, all=1, nightly=1), "nodes"))
def test_what_is_lost_is_told(name: str, tmp_path: Path) -> None:
    source, read = directory(name)
    root = Path(shutil.copytree(source, tmp_path / "root"))
    whole = read(root)
    every = list(harms(root))
    for harm in part(every, max(len(every) // HARMS, 1), name):
        if is_knowable(root, harm):
            assert wrong(whole, harm.outcome(root, read)) == "", harm


def test_each_kind_of_finding_has_its_row() -> None:
    assert LOSSES.keys() == set(Kind)


# -- version 1 ------------------------------------------------------------------------------------

PUBLISHED, ACKED = "6LKM8SPGE1ITKEVG4AZWWHDYC", "F00304T6EVTTKSFSU9UPGAYQW"
"""Queues of ``b_dirty_journal``: the journal of the one publishes what no segment has; that of the
other has acks of what is in its segment."""


def queue_of(tmp_path: Path, name: str) -> Path:
    return golden("b").copy(tmp_path) / "queues" / name


def told(queue: Path, tmp_path: Path) -> tuple[set[tuple[str, Kind, Cause]], bool]:
    """Give the findings that verify and salvage have, and whether salvage was complete."""
    vhost = queue.parent.parent
    report = qindex.salvage(vhost, tmp_path / "saved")
    found = qindex.verify(vhost).findings
    assert found == report.findings
    return {(Path(one.path).name, one.kind, one.cause) for one in found}, report.complete


@pytest.mark.parametrize("flushing", [False, True])
@pytest.mark.parametrize("left", ["nothing", "half", "zeros"])
def test_a_segment_that_is_cut(left: str, flushing: bool, tmp_path: Path) -> None:
    """A node syncs a segment before it empties its journal. So only while the journal has entries
    of the segment can a crash have cut it."""
    queue = queue_of(tmp_path, ACKED)
    data = (queue / "0.idx").read_bytes()
    half = len(data) // 2 + 1
    kept = {"nothing": b"", "half": data[:half], "zeros": data[:half].ljust(len(data), b"\0")}
    (queue / "0.idx").write_bytes(kept[left])
    if not flushing:
        (queue / "journal.jif").write_bytes(b"")
    found, complete = told(queue, tmp_path)
    kind = Kind.ZEROS if left == "zeros" else Kind.TORN
    cause = Cause.CRASH if flushing else Cause.DAMAGE
    assert ("0.idx", kind, cause) in found
    assert not complete


def test_a_journal_is_never_missing(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, PUBLISHED)
    (queue / "journal.jif").unlink()
    found, complete = told(queue, tmp_path)
    assert (found, complete) == ({("journal.jif", Kind.MISSING_FILE, Cause.CRASH)}, False)


def test_zeros_at_the_end_of_a_journal(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, PUBLISHED)
    data = (queue / "journal.jif").read_bytes()
    (queue / "journal.jif").write_bytes(data[:500] + bytes(len(data) - 500))
    found, complete = told(queue, tmp_path)
    assert (found, complete) == ({("journal.jif", Kind.ZEROS, Cause.CRASH)}, False)


def test_the_journal_of_another_queue(tmp_path: Path) -> None:
    """It publishes seq_ids that the segment has with other messages."""
    queue = queue_of(tmp_path, ACKED)
    shutil.copy(queue.with_name(PUBLISHED) / "journal.jif", queue)
    found, complete = told(queue, tmp_path)
    assert (found, complete) == ({("journal.jif", Kind.DUPLICATE_SEQ_ID, Cause.DAMAGE)}, False)


def test_a_directory_without_the_queue_s_name(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, PUBLISHED)
    (queue / ".queue_name").unlink()
    found, complete = told(queue, tmp_path)
    assert (found, complete) == ({(".queue_name", Kind.MISSING_FILE, Cause.CRASH)}, True)


# -- version 2 ------------------------------------------------------------------------------------

HEADER, SLOT = 64, 32
CONFIRMED = "EH0GZVQWSTBHGAPWMAJ692YCC"
"""A queue of ``vb_dirty_kill9`` with 300 messages, all of them in ``0.qs``."""


@pytest.mark.parametrize(
    ("start", "stop", "kind"),
    [
        pytest.param(5, None, Kind.ZEROS, id="header and slots"),
        pytest.param(0, 512, Kind.ZEROS, id="first sector"),
        pytest.param(HEADER + 148 * SLOT + 15, None, Kind.ZEROS, id="from inside a slot"),
        pytest.param(HEADER + 148 * SLOT + 1, HEADER + 149 * SLOT, Kind.ZEROS, id="status alone"),
    ],
)
def test_zeros_in_an_index_of_version_2(
    start: int, stop: int | None, kind: Kind, tmp_path: Path
) -> None:
    queue = scenario("vb").copy(tmp_path) / "queues" / CONFIRMED
    data = bytearray((queue / "0.qi").read_bytes())
    stop = len(data) if stop is None else stop
    data[start:stop] = bytes(stop - start)
    (queue / "0.qi").write_bytes(data)
    found, complete = told(queue, tmp_path)
    assert ("0.qi", kind, Cause.DAMAGE) in found
    assert not complete


def test_an_index_of_version_2_that_ends_between_slots(tmp_path: Path) -> None:
    """The messages of ``0.qs`` that no slot names are saved. Whether others are missing, nothing
    tells."""
    queue = scenario("vb").copy(tmp_path) / "queues" / CONFIRMED
    data = (queue / "0.qi").read_bytes()
    (queue / "0.qi").write_bytes(data[: HEADER + 148 * SLOT])
    found, complete = told(queue, tmp_path)
    assert (found, complete) == ({("0.qs", Kind.MESSAGE_WITHOUT_ENTRY, Cause.CRASH)}, False)


@pytest.mark.parametrize(
    ("directory", "file", "at"),
    [
        pytest.param("vi1", "1F0F0OEW7SDR7G0QKBD5OYAQV/0.idx", 20521, id="version 1"),
        pytest.param("vb", f"{CONFIRMED}/0.qi", HEADER + 148 * SLOT + 27, id="version 2"),
    ],
)
def test_an_expiry_in_1970(directory: str, file: str, at: int, tmp_path: Path) -> None:
    """No node can have written it: the message stays, and a finding says so."""
    vhost = scenario(directory).copy(tmp_path)
    whole = qindex.salvage(vhost, tmp_path / "whole").messages
    data = bytearray((vhost / "queues" / file).read_bytes())
    data[at] ^= 0xA9
    (vhost / "queues" / file).write_bytes(data)
    found, complete = told(vhost / "queues" / Path(file).parent, tmp_path)
    assert (found, complete) == ({(Path(file).name, Kind.CORRECTED, Cause.DAMAGE)}, True)
    with qindex.open(tmp_path / "saved", read_only=True) as engine:
        assert sum(len(engine.queue(name)) for name in engine.queue_names()) == whole


# -- RocketMQ -------------------------------------------------------------------------------------


def test_a_read_only_store_finds_what_verify_finds(tmp_path: Path) -> None:
    root = rocket_copy("gen", tmp_path) / "store"
    with rocketstore.open(root, read_only=True) as store:
        assert store.findings == []
    (root / "consumequeue" / "TopicA" / "0" / f"{800:020}").unlink()
    with rocketstore.open(root, read_only=True) as store:
        assert [one.kind for one in store.findings] == [Kind.MISSING_FILE]
        assert store.findings == verify(root)
