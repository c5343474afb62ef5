"""What open forgives after a loss of power it does not forgive without one: rot stays damage."""

from __future__ import annotations

import pytest

import qindex
from qindex.engine.opening import open_store
from tests.crash.driver import OPTIONS, ROOT, Workload, record
from tests.memory_fs import MemoryFileSystem

_SECTOR = 512
_LONG = Workload("long", (("publish_many", "a", 3, "long"), ("get", "a"), ("sync",)))
_STORED = Workload("stored", (("publish_many", "a", 5, "stored"), ("sync",)))
_FILED = Workload("filed", (("publish_many", "a", 3, "long"), ("flush", "a"), ("sync",)))


def left_by(workload: Workload) -> tuple[dict[str, bytes], frozenset[str]]:
    """The files as the death of the process leaves them."""
    fs, _ = record(workload)
    disk = fs.start.copy()
    for operation in fs.log:
        disk.take(operation)
    return disk.files(disk.data, disk.changes)


def open_on(
    files: dict[str, bytes], directories: frozenset[str], *, power_lost: bool
) -> qindex.Engine:
    boot = b"another boot" if power_lost else b"one boot"
    fs = MemoryFileSystem(files, directories, boot=boot)
    engine: qindex.Engine = open_store(ROOT, fs=fs, **OPTIONS)
    return engine


def zeroed(files: dict[str, bytes], suffix: str, sector: int) -> dict[str, bytes]:
    (name,) = [name for name in files if name.endswith(suffix)]
    data = bytearray(files[name])
    start = sector * _SECTOR
    assert any(data[start : start + _SECTOR])
    data[start : start + _SECTOR] = bytes(len(data[start : start + _SECTOR]))
    # Without its checksums: they would tell what stood there, but not who took it away.
    return {one: files[one] for one in files if not one.endswith(".sum")} | {name: bytes(data)}


@pytest.mark.parametrize(
    ("workload", "suffix"), [(_LONG, "journal.jif"), (_FILED, "0.idx")], ids=["journal", "segment"]
)
def test_a_zero_sector_is_damage_unless_the_power_was_lost(workload: Workload, suffix: str) -> None:
    files, directories = left_by(workload)
    broken = zeroed(files, suffix, 2)
    with pytest.raises(qindex.DamageError, match=suffix):
        open_on(broken, directories, power_lost=False)
    engine = open_on(broken, directories, power_lost=True)
    assert any("never written" in one.what for one in engine.findings)
    assert {one.cause for one in engine.findings} == {qindex.Cause.CRASH}


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize(
    ("workload", "suffix"), [(_LONG, "journal.jif"), (_FILED, "0.idx")], ids=["journal", "segment"]
)
def test_other_bytes_are_damage_at_any_time(
    workload: Workload, suffix: str, power_lost: bool
) -> None:
    files, directories = left_by(workload)
    (name,) = [name for name in files if name.endswith(suffix)]
    data = bytearray(files[name])
    data[600:620] = b"rotten bytes, twenty"
    kept = {one: files[one] for one in files if not one.endswith(".sum")}
    with pytest.raises(qindex.DamageError, match=suffix):
        open_on(kept | {name: bytes(data)}, directories, power_lost=power_lost)


def test_a_message_file_is_read_in_full_after_a_loss_of_power_only() -> None:
    files, directories = left_by(_STORED)
    assert sum(name.endswith(".rdq") for name in files) > 1
    broken = zeroed(files, "/0.rdq", 1)
    with open_on(broken, directories, power_lost=False) as engine:
        with pytest.raises(qindex.DamageError, match=r"0\.rdq"):
            engine.queue("a").get(timeout=0)
        assert len(engine.queue("a").get_many(10)) == 4
    with open_on(broken, directories, power_lost=True) as engine:
        assert any("not in the message store" in one.what for one in engine.findings)
        assert len(engine.queue("a").get_many(10)) == 4


def test_a_reader_says_the_same() -> None:
    files, directories = left_by(_LONG)
    broken = zeroed(files, "journal.jif", 2)
    for boot, cause in ((b"one boot", qindex.Cause.DAMAGE), (b"other", qindex.Cause.CRASH)):
        fs = MemoryFileSystem(broken, directories, boot=boot)
        reader = open_store(ROOT, fs=fs, read_only=True)
        queue = reader.queue("a")
        assert len(queue.peek(10)) == 2
        assert cause in {one.cause for one in queue.findings}
