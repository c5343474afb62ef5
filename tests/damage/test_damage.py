"""A part of all harms, which rotates: every :data:`SHARE`-th bit and length of each file, and all
of the rest; in the quick tier of every second store. Each harmed one is verified and opened, and
every :data:`MEND_EVERY`-th is repaired into a new one. ``python -m tests.damage --all``: every one.

The limits that are known, and none beyond: see the section on damage in docs/durability.md.
"""

from __future__ import annotations

import tracemalloc

import pytest

import qindex
from qindex.engine.opening import open_store
from qindex.tools.repair import repair_store
from tests.damage.harms import Harm, flips, others, overwritten, removed
from tests.damage.mending import Mended, mend
from tests.damage.samples import SAMPLES, STORE, Sample
from tests.damage.table import Row, Table
from tests.damage.verdict import Verdict, judge
from tests.effort import SEED, by_tier, part
from tests.memory_fs import MemoryFileSystem

SHARE = by_tier(quick=499, all=61, nightly=1)
MEND_EVERY = by_tier(quick=2, all=3, nightly=1)
STORES = by_tier(quick=2, all=1, nightly=1)
MEMORY_EVERY = by_tier(quick=251, all=31, nightly=1)
MEMORY = 24 << 20
"""Bytes that one small harmed store may take at its peak."""


def nothing(sample: Sample) -> Harm:
    return Harm("", 0, 0, "nothing", sample.files)


def table_of(sample: Sample) -> Table:
    table = Table(MEND_EVERY)
    for path in sorted(sample.files):
        table.run(sample, "flip", flips(sample.files, path, share=SHARE, seed=SEED))
        table.run(sample, "other", others(sample.files, path, share=SHARE, seed=SEED))
    return table


@pytest.mark.rotates(2)
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("name", part([*SAMPLES], STORES, "stores that are harmed"))
def test_harms(name: str) -> None:
    sample = SAMPLES[name]()
    table = table_of(sample)
    assert not table.broken, "\n".join(table.broken)
    for (what, kind), row in table.rows.items():
        assert row.harms
        if kind == "*.jif" and "killed" in name:
            continue  # the known limits: what a user is not told of stands in the last seconds
        if what == "other" and kind == "*.idx" and "killed" in name:
            continue  # a segment without a file, and no snapshot: one that was acknowledged
        if what == "other" and kind == "qindex.transactions" and "killed" in name:
            continue  # cut between what a transaction published and its commit, as by a crash
        # A queue without a message, and without what keeps its seq_ids, looks like a new one.
        new = "'again'" if kind == "qindex.seq" else "copied to"
        silent = [one for one in row.silent if "copied to" not in one and new not in one]
        assert not silent, f"{what} of {kind}: {silent}"
        # Another pid is as good as any, and nothing is lost with the room after a last transaction.
        if what == "flip" and kind not in ("qindex.lock", "qindex.transactions"):
            assert row.noticed == row.harms, f"{row.noticed} of {row.harms} flips of {kind} noticed"
        assert row.mended
        lost = [one for one in row.unsaid if kind != "qindex.seq" or "'again'" not in one]
        assert not lost, f"repair after {what} of {kind} does not tell of {lost}"
        # Of a file that is gone its entries tell, which stand in other files.
        if kind != "*.rdq":
            assert not row.unnamed, f"repair after {what} of {kind} names others: {row.unnamed}"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sound_store(name: str) -> None:
    sample = SAMPLES[name]()
    verdict = judge(sample, nothing(sample))
    assert not verdict.seen
    assert not verdict.reported
    assert not verdict.verified
    assert verdict.mended is not None
    assert not verdict.mended.seen
    assert not verdict.mended.told


@pytest.mark.parametrize("name", ["embedded, killed", "stored and fan-out, killed"])
def test_memory(name: str) -> None:
    """Lengths that promise gigabytes: each byte of a journal is made 0xff, and each message."""
    sample = SAMPLES[name]()
    paths = [path for path in sample.files if path.endswith((".jif", ".idx", ".rdq"))]
    for path in paths:
        data = sample.files[path]
        for at in part(range(len(data.rstrip(b"\0"))), MEMORY_EVERY, path):
            harm = overwritten(sample.files, path, at, b"\xff\xff\xff", "0xffffff")
            tracemalloc.start(1)
            try:
                judge(sample, harm)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < MEMORY, f"{path} at {at}: {peak} bytes"


def test_the_judge_sees_what_is_wrong() -> None:
    """Test of the test: a store that is sound in itself, and of other messages."""
    sample = SAMPLES["embedded, closed"]()
    fs = sample.file_system()
    with open_store(STORE, fs=fs, background=False) as engine:
        engine.queue("orders").publish(b"not published by the sample")
    files, _ = fs.contents()
    harm = Harm("", 0, 0, "another message", files)
    with pytest.raises(AssertionError, match="was never published"):
        judge(sample, harm)
    with pytest.raises(AssertionError, match="never published"):
        mend(sample, harm, {})
    row = Row()
    row.add(Harm("f", 3, 1, "x", {}), Verdict(missing=1, mended=Mended(missing=2)))
    assert row.silent == ["f at offset 3: x: {'missing': 1}"]
    assert row.unsaid == ["f at offset 3: x: {'missing': 2}"]


def test_the_judge_sees_what_repair_loses() -> None:
    """Test of the test: open gave messages that the new store does not have."""
    sample = SAMPLES["embedded, closed"]()
    sound = nothing(sample)
    kept = judge(sample, sound).found
    (path,) = (path for path in sample.files if path.endswith("/1.idx"))
    harm = removed(sample.files, path)
    with pytest.raises(AssertionError, match="repair lost seq_id 8 of orders, which open gave"):
        mend(sample, harm, kept)
    assert mend(sample, sound, kept).found == kept


def test_the_judge_sees_a_repair_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: repair refuses a store that opens; and one that changes its source."""
    sample = SAMPLES["embedded, closed"]()
    sound = nothing(sample)

    def refuses(*_: object, **__: object) -> None:
        raise qindex.DamageError("f", 0, "too much")

    monkeypatch.setattr("tests.damage.mending.repair_store", refuses)
    with pytest.raises(AssertionError, match="repair refuses, and open does not: f: "):
        mend(sample, sound, {})
    assert mend(sample, sound, None).refused

    def cuts(source: str, out: str, *, fs: MemoryFileSystem) -> object:
        report = repair_store(source, out, fs=fs)
        fs.unlink(f"{source}/qindex.clean")
        return report

    monkeypatch.setattr("tests.damage.mending.repair_store", cuts)
    with pytest.raises(AssertionError, match="repair changed, or left"):
        mend(sample, sound, {})
