"""Whoever reads a store finds the same messages, whatever harm it has come to.

Without the snapshot of a clean close, which knows more than the files: ``open(repair=True)``,
``list``, ``cat``, ``verify`` and ``repair`` read one image of each queue. So what ``cat`` shows is
what ``open`` delivers and what a repaired copy holds, ``list`` and ``verify`` count as many, and
each of them loses the same messages. Of a RabbitMQ node's directory the same holds of ``salvage``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import qindex
from journal.errors import StoreError
from journal.findings import Cause, Finding, Kind
from qindex.engine.opening import open_store
from qindex.format.entries import EXPIRED_LONG_AGO
from qindex.format.layout import LOCK, MARKER, QUEUE_NAME
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.tools.repair import repair_store
from qindex.tools.verify import Figures, StoreVerification
from qindex.view.reader import StoreReader
from tests import golden as golden_files
from tests import golden_v2
from tests.damage.harms import Harm, flips, others
from tests.damage.samples import SAMPLES, STORE, Sample
from tests.effort import SEED, by_tier, part
from tests.memory_fs import MemoryFileSystem

SHARE = by_tier(quick=997, all=199, nightly=7)
PARTS = by_tier(quick=4, all=1, nightly=1)
OUT = "/new"
_NAMING = (LOCK, MARKER, QUEUE_NAME)
"""Files whose harm changes names, and no message."""

Found = dict[str, dict[int, bytes]]


@dataclass
class Seen:
    """``found``: bodies by queue and seq_id. ``lost``: entries whose message can't be had.
    ``told``: findings. ``transient``: how many are shown that an open drops."""

    found: Found = field(default_factory=dict)
    transient: dict[str, int] = field(default_factory=dict)
    lost: dict[str, set[int]] = field(default_factory=dict)
    told: set[Finding] = field(default_factory=set)


def harms_of(sample: Sample) -> Iterator[Harm]:
    yield Harm("", 0, 0, "nothing", sample.files)
    for path in sorted(sample.files):
        if not path.endswith((*_NAMING, SNAPSHOT)):
            yield from flips(sample.files, path, share=SHARE, seed=SEED)
            yield from others(sample.files, path, share=SHARE, seed=SEED)


def shown(reader: StoreReader) -> Seen:
    """What ``cat`` shows."""
    seen = Seen()
    for queue in reader.readers():
        rows = list(queue)
        there = [row for row in rows if row.body is not None]
        # A bit says so, of an entry without a checksum. An open drops what is transient.
        seen.transient[queue.name] = sum(not row.persistent for row in there)
        found = {row.seq_id: row.body for row in there if row.persistent and row.body is not None}
        seen.found[queue.name] = found
        seen.lost[queue.name] = {row.seq_id for row in rows if row.body is None}
        seen.told.update(queue.findings)
    return seen


def listed(reader: StoreReader) -> dict[str, int]:
    """What ``list`` counts."""
    return {queue.name: queue.messages for queue in reader.queues()}


def verified(reader: StoreReader, fs: MemoryFileSystem) -> dict[str, tuple[int, int]]:
    """The entries that ``verify`` counts, and those whose message it misses."""
    check = StoreVerification(fs, reader, Figures())
    lost = Counter(
        os.path.basename(os.path.dirname(one.path))
        for one in check.findings()
        if one.kind is Kind.ENTRY_WITHOUT_MESSAGE
    )
    return {one.queue.name: (one.entries, lost[one.queue.directory]) for one in check.checked}


def damage_in_index(findings: set[Finding]) -> set[Finding]:
    """The damage in journals and segment files. That an expiry can't be right is told only by
    those who look at it."""
    return {
        one
        for one in findings
        if one.cause is Cause.DAMAGE
        and one.path.endswith((".jif", ".idx"))
        and one.what != EXPIRED_LONG_AGO[0]
        and not one.consequence.endswith("without its body")
    }


def delivered(fs: MemoryFileSystem, path: str = STORE, told: set[Finding] | None = None) -> Found:
    """What ``open(repair=True)`` delivers. ``told``: takes what it finds."""
    found: Found = {}
    with open_store(path, fs=fs, background=False, repair=True) as engine:
        if told is not None:
            told.update(engine.findings)
        for name in engine.queue_names():
            queue, bodies = engine.queue(name), found.setdefault(name, {})
            while True:
                try:
                    batch = queue.get_many(100)
                except StoreError:
                    continue  # a message is lost; asking again goes on after it
                if not batch:
                    break
                bodies.update(zip(batch.seq_ids, batch.bodies, strict=True))
                queue.ack_many(batch)
    return found


@pytest.mark.rotates(3)
@pytest.mark.parametrize("name", [*SAMPLES])
def test_all_readers_find_the_same(name: str) -> None:
    sample = SAMPLES[name]()
    for harm in harms_of(sample):
        files = {path: data for path, data in harm.files.items() if not path.endswith(SNAPSHOT)}
        fs = sample.file_system(files)
        reader = StoreReader(STORE, fs)
        seen = shown(reader)
        lost = {queue: len(seqs) for queue, seqs in seen.lost.items()}
        entries = {
            queue: len(bodies) + lost[queue] + seen.transient[queue]
            for queue, bodies in seen.found.items()
        }
        assert listed(reader) == entries, harm
        assert verified(reader, fs) == {one: (entries[one], lost[one]) for one in entries}, harm
        told: set[Finding] = set()
        assert delivered(sample.file_system(files), told=told) == seen.found, harm
        assert damage_in_index(told) == damage_in_index(seen.told), harm
        report = repair_store(STORE, OUT, fs=fs)
        saved = delivered(fs, OUT)
        for queue in report.queues:
            # Repair also finds messages of the message store under headers that are damaged.
            rescued = {*saved[queue.name]} - {*seen.found[queue.name]}
            assert rescued <= seen.lost[queue.name], harm
            assert queue.lost == lost[queue.name] - len(rescued), harm
            for seq in rescued:
                assert saved[queue.name].pop(seq) == sample.queues[queue.name].published[seq], harm
        assert saved == seen.found, harm


@pytest.fixture
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time at which the nodes delivered."""
    monkeypatch.setattr("qindex.view.queue_view.time_ns", lambda: golden_v2.RECORDED_AT * 10**9)


NODES = (*golden_files.SCENARIOS, *golden_v2.SCENARIOS)
"""Directories that nodes left, stopped in order or killed."""
MADE = (*golden_files.SYNTHETIC_CASES, *golden_v2.cases())
"""Directories that were damaged by hand, or are half done."""
UNSEEN = {"10_qs_bad_crc", "11_qs_nocrc", "18_loc_tail"}
"""``list`` counts entries of version 2 without a look at the messages in their files."""
ACKED = {"vh2_heavy_dirty"}
"""A killed node left entries whose messages are gone: only verify and salvage mention them."""


def vhost_of(name: str) -> Path:
    if name in golden_files.SCENARIOS:
        return golden_files.golden(name).vhost_dir
    if name in golden_v2.SCENARIOS:
        return golden_v2.scenario(name).vhost_dir
    if name in golden_files.SYNTHETIC_CASES:
        return golden_files.synthetic(name).vhost_dir
    return golden_v2.cases()[name].vhost_dir


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize("name", [*part(NODES, PARTS, "nodes"), *part(MADE, PARTS, "cases")])
def test_all_readers_of_a_node_s_directory_find_the_same(name: str, tmp_path: Path) -> None:
    vhost = vhost_of(name)
    reader = StoreReader(vhost)
    rows = {queue.name: [row.body for row in queue] for queue in reader.readers()}
    if name not in UNSEEN:
        assert listed(reader) == {queue: len(bodies) for queue, bodies in rows.items()}
    with qindex.open(vhost, read_only=True) as engine:
        opened = {one: [row.body for row in engine.queue(one)] for one in engine.queue_names()}
    assert opened == {queue: [one for one in rows[queue] if one is not None] for queue in rows}
    entries = qindex.verify(vhost).figures.entries
    report = qindex.salvage(vhost, tmp_path / "new")
    with qindex.open(tmp_path / "new", read_only=True) as engine:
        saved = Counter(row.body for one in engine.queue_names() for row in engine.queue(one))
    # A queue may get its name back by salvage; and it finds messages that no entry names.
    found = Counter(body for bodies in opened.values() for body in bodies)
    assert found <= saved
    if name in NODES and name not in ACKED:
        assert saved == found
        assert sum(map(len, rows.values())) == entries - sum(one.transient for one in report.queues)
        assert {one.lost for one in report.queues} == {0}
