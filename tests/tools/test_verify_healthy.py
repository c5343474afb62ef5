"""Verify finds nothing in stores that are healthy: new, drained, compacted, killed, a node's, and
in use by a process that is busy with everything an engine does."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from journal.findings import Cause
from journal.fs.files import PathLike
from qindex.engine.opening import open_store
from qindex.format.layout import QUEUE_NAME
from qindex.tools.verify import verify_store
from tests.effort import by_tier
from tests.golden import SCENARIOS, golden
from tests.memory_fs import MemoryFileSystem
from tests.qindex.support import open_quietly
from tests.tools.faults import State
from tests.tools.stores import fill

BUSY_SECONDS = by_tier(quick=4, all=10, nightly=10)


def assert_nothing(directory: Path) -> qindex.VerifyReport:
    report = qindex.verify(directory)
    assert report.findings == []
    assert report.sound
    return report


def test_new_and_drained(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "s"):
        pass
    assert assert_nothing(tmp_path / "s").figures.queues == 0
    with open_quietly(tmp_path / "s") as engine:
        queue = engine.queue("q")
        assert_nothing(tmp_path / "s")
        queue.publish_many([b"x" * size for size in (1, 100, 20_000, 70_000)] * 10)
        assert assert_nothing(tmp_path / "s").figures.entries == 40
        queue.flush()
        assert_nothing(tmp_path / "s")
        queue.ack_many(queue.get_many(100))
        assert_nothing(tmp_path / "s")
    assert assert_nothing(tmp_path / "s").figures.entries == 0


def test_after_compaction(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "s", store_file_bytes=1 << 15) as engine:
        fill(engine)
        for name in ("orders", "audit"):
            queue = engine.queue(name)
            # Half of the large messages, among them all of the first file.
            queue.ack_many([one for one in queue.get_many(100) if one.headers.get("n", 0) != 11])
        report = engine.compact()
        assert report is not None
        assert report.files_deleted
        assert_nothing(tmp_path / "s")
    figures = assert_nothing(tmp_path / "s").figures
    assert 0 < figures.live_bytes <= figures.store_bytes


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_closed_and_killed(state: State, copy_of: Callable[[State], Path]) -> None:
    figures = assert_nothing(copy_of(state)).figures
    assert (figures.queues, figures.records, figures.live_bytes > 0) == (2, 12, True)


def test_after_a_repair_of_the_engine(copy_of: Callable[[State], Path]) -> None:
    """What was set aside stays beside the files, and is no finding."""
    store = copy_of("killed")
    (segment,) = store.glob("queues/F0*/0.idx")
    data = bytearray(segment.read_bytes())
    data[60:64] = b"????"
    segment.write_bytes(data)
    assert not qindex.verify(store).sound
    with qindex.open(store, background=False, repair=True):
        pass
    assert list(store.rglob("quarantine/*"))
    assert_nothing(store)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_nodes_directory(scenario: str) -> None:
    store = golden(scenario)
    figures = assert_nothing(store.vhost_dir).figures
    expired = scenario.startswith("g1")
    delivered = sum(len(queue.delivered) for queue in store.truth.queues.values())
    # Expired and transient messages are entries, too; the node drops them.
    assert (
        figures.entries == delivered
        or (figures.entries > delivered and expired)
        or ("transient" in scenario)
    )


def test_a_whole_node(tmp_path: Path) -> None:
    """All virtual hosts of a node's data directory."""
    for name, scenario in (("AAA", "a"), ("BBB", "e1")):
        shutil.copytree(golden(scenario).vhost_dir, tmp_path / "msg_stores" / "vhosts" / name)
    figures = assert_nothing(tmp_path).figures
    assert (figures.stores, figures.entries) == (2, 728 + 177)


@pytest.mark.rotates(2)
def test_beside_a_busy_writer(tmp_path: Path) -> None:
    store = tmp_path / "s"
    command = [sys.executable, "-m", "tests.tools.busy_child", str(store), str(BUSY_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        looks = entries = records = 0
        while child.poll() is None:
            figures = assert_nothing(store).figures
            looks += 1
            entries += figures.entries
            records += figures.records
            time.sleep(0.01)
        done = child.stdout.read().split()
    assert child.returncode == 0
    assert looks > 5
    assert entries
    assert records
    assert int(done[1]) > 5  # flushes
    assert_nothing(store)


class _Deleting(MemoryFileSystem):
    """A queue is deleted while its directory is being listed for the ``at``-th time; what has
    not been unlinked yet is listed."""

    at = 0
    delete: Callable[[], None]

    def listdir(self, path: PathLike, /) -> list[str]:
        names = super().listdir(path)
        if QUEUE_NAME in names:
            self.at -= 1
            if self.at == 0:
                self.delete()
                names.remove(QUEUE_NAME)
        return names


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_queue_that_is_deleted_while_its_directory_is_read(made_anew: bool) -> None:
    """Half of a directory is no damage."""
    for at in range(1, 10):
        memory = _Deleting()
        with open_store("/s", fs=memory, background=False) as engine:

            def delete(engine: qindex.Engine = engine) -> None:
                engine.delete_queue("q")
                if made_anew:
                    engine.queue("q").publish(b"anew")

            engine.queue("q").publish_many([b"x" * 100] * 5)
            memory.at, memory.delete = at, delete
            report = verify_store("/s", fs=memory)
            assert report.findings == []
            if memory.at > 0:
                break
    assert at > 3


def test_a_queue_that_is_made_while_the_queues_are_read() -> None:
    """It is listed by its name, not by that of its directory."""

    class Making(MemoryFileSystem):
        looks = 0

        def open(self, path: PathLike, flags: int, /, mode: int = 0o666) -> int:
            if os.fspath(path).endswith(QUEUE_NAME) and flags == os.O_RDONLY | os.O_CLOEXEC:
                self.looks += 1
                if self.looks == 1:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return super().open(path, flags, mode)

    memory = Making()
    with open_store("/s", fs=memory, background=False) as engine:
        engine.queue("q").publish(b"x")
        memory.looks = 0
        with open_store("/s", read_only=True, fs=memory) as reader:
            assert reader.queue_names() == ["q"]
        assert memory.looks == 2


def test_beside_a_writer_that_is_killed(tmp_path: Path) -> None:
    """What the next open repairs is a note, not damage; afterwards there is nothing."""
    command = [sys.executable, "-m", "tests.tools.busy_child"]
    for number in range(2):
        store = tmp_path / str(number)
        with subprocess.Popen(
            [*command, str(store), "30"], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(0.2 + 0.3 * number)
            child.kill()
        report = qindex.verify(store)
        assert report.sound, report.damage
        assert all(one.cause is Cause.CRASH for one in report.findings)
        saved = qindex.repair(store, tmp_path / f"new-{number}")
        assert saved.complete
        with qindex.open(store, background=False) as engine:
            held = {name: len(engine.queue(name)) for name in engine.queue_names()}
        assert {one.name: one.messages for one in saved.queues} == held
        assert_nothing(store)
        assert_nothing(tmp_path / f"new-{number}")


@pytest.mark.parametrize("boot", [b"one boot", b"another boot"])
def test_a_power_loss_in_a_flush_that_left_its_checksums(boot: bytes) -> None:
    """What a flush appended to the segment had not reached the disk when the power went, but its
    checksums had; the journal still holds all of it. In one and the same run that can't be."""
    memory = MemoryFileSystem(boot=b"one boot")
    engine = open_store("/s", fs=memory, background=False)
    queue = engine.queue("q")
    queue.publish_many([b"x" * 100] * 50)
    queue.flush()
    queue.publish_many([b"y" * 100] * 50)
    queue.sync()
    files, directories = memory.contents()
    queue.flush()
    later, _ = memory.contents()
    (sums,) = (path for path in later if path.endswith("0.idx.sum"))
    assert len(later[sums]) > len(files[sums])
    left = MemoryFileSystem({**files, sums: later[sums]}, directories, boot=boot)
    report = verify_store("/s", fs=left)
    lost_power = boot == b"another boot"
    assert [each.cause for each in report.findings] == [Cause.CRASH if lost_power else Cause.DAMAGE]
    assert report.sound is lost_power
    with open_store("/s", fs=left, background=False, repair=not lost_power) as again:
        assert len(again.queue("q")) == 100
