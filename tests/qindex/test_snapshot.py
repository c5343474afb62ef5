"""The clean-shutdown snapshot: what makes opening quick, and when it is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex
from journal.fs.files import RealFileSystem
from tests.qindex.support import copy_live, drain, open_quietly, queue_directory


class Watching(RealFileSystem):
    """Notes which files are opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        real = RealFileSystem.open

        def opened(path: str, flags: int, mode: int = 0o666) -> int:
            self.opened.append(Path(path).name)
            return real(path, flags, mode)

        self.open = opened  # type: ignore[assignment]


def test_opening_reads_no_queue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(100)])
        engine.flush()
        engine.queue("in the journal").publish_many([b"%d" % at for at in range(100)])
    fs = Watching()
    with open_quietly(tmp_path, fs=fs) as engine:
        assert not [name for name in fs.opened if name.endswith((".idx", ".jif"))]
        queue = engine.queue("q")
        assert len(queue) == 100
        assert not [name for name in fs.opened if name.endswith((".idx", ".jif"))]
        delivery = queue.get(0)
        assert delivery is not None
        assert [name for name in fs.opened if name.endswith(".idx")] == ["0.idx"]
        delivery.nack()
        queue.flush()
        fs.opened.clear()
        assert len(engine.queue("in the journal")) == 100
        assert "journal.jif" in fs.opened
    fs.opened.clear()
    with open_quietly(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        assert queue.publish(b"x") == 100
        assert [name for name in fs.opened if name.endswith(".idx")] == ["12.idx"]


def test_it_goes_with_the_first_change(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish(b"x")
    assert (tmp_path / "qindex.clean").exists()
    engine = open_quietly(tmp_path)
    assert not (tmp_path / "qindex.clean").exists()
    engine.close()
    assert (tmp_path / "qindex.clean").exists()


def test_a_queue_that_was_not_used_rests(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("a").publish_many([b"a"] * 20)
        engine.queue("b").publish(b"b")
    for _ in range(3):
        with open_quietly(tmp_path) as engine:
            assert engine.queue_names() == ["a", "b"]
            engine.queue("b").publish(b"b")
    with open_quietly(tmp_path) as engine:
        assert len(drain(engine.queue("a"))) == 20
        assert len(drain(engine.queue("b"))) == 4


@pytest.mark.parametrize("change", ["longer", "shorter", "gone", "more", "journal"])
def test_files_that_are_not_as_it_says_are_recovered(tmp_path: Path, change: str) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(20)])
        engine.flush()
    with open_quietly(tmp_path / "other") as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(40)])
        engine.flush()
    directory = queue_directory(tmp_path, "q")
    last = directory / "2.idx"
    expected = list(range(20))
    if change == "longer":
        last.write_bytes(last.read_bytes() + bytes(10))
    elif change == "shorter":
        last.write_bytes(last.read_bytes()[:-1])
        expected = list(range(19))
    elif change == "gone":
        last.unlink()
        expected = list(range(16))
    elif change == "more":
        other = queue_directory(tmp_path / "other", "q")
        (directory / "4.idx").write_bytes((other / "4.idx").read_bytes())
        expected += list(range(32, 40))
    else:
        (directory / "journal.jif").write_bytes(bytes(100))
    is_damage = change in ("shorter", "gone")  # it was synced once
    if is_damage:
        with pytest.raises(qindex.DamageError, match=r"2\.idx"):
            open_quietly(tmp_path)
    with open_quietly(tmp_path, repair=is_damage) as engine:
        assert [seq for seq, _, _ in drain(engine.queue("q"))] == expected
        assert engine.queue("q").publish(b"x") >= max(20, expected[-1] + 1)


def test_a_copy_of_an_older_snapshot_over_a_newer_store(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "store") as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(20)])
    old = (tmp_path / "store" / "qindex.clean").read_bytes()
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q")
        queue.ack_many(queue.get_many(5))
        queue.publish_many([b"%d" % at for at in range(20, 25)])
        copy = copy_live(tmp_path / "store", tmp_path / "copy")
    (copy / "qindex.clean").write_bytes(old)
    with open_quietly(copy) as engine:
        assert [seq for seq, _, _ in drain(engine.queue("q"))] == list(range(5, 25))


def test_a_failed_close_leaves_none(tmp_path: Path) -> None:
    engine = qindex.open(tmp_path, background=False)
    engine.queue("q").publish(b"x")
    engine._poison.set(OSError("gone"))
    engine.close()
    assert not (tmp_path / "qindex.clean").exists()
    with open_quietly(tmp_path) as engine:
        assert len(engine.queue("q")) == 1


@pytest.mark.parametrize("change", ["flipped", "shorter", "gone", "longer"])
def test_a_journal_that_is_not_as_it_says_is_reported(tmp_path: Path, change: str) -> None:
    """The journal of a store that was closed in order still holds messages."""
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"message number %d" % at for at in range(20)])
    journal = queue_directory(tmp_path, "q") / "journal.jif"
    data = bytearray(journal.read_bytes())
    if change == "flipped":
        data[data.index(b"number 7")] ^= 1  # the checksums heal it
    elif change == "shorter":
        del data[-10:]
    elif change == "longer":
        data += bytes(range(1, 11))
    if change == "gone":
        journal.unlink()
    else:
        journal.write_bytes(data)
    found = qindex.verify(tmp_path).findings
    assert {one.path for one in found} == {str(journal)}
    lost = change in ("shorter", "gone")
    with open_quietly(tmp_path, repair=lost) as engine:
        bodies = [body for _, body, _ in drain(engine.queue("q"))]
        expected = [b"message number %d" % at for at in range(20)]
        assert bodies == ({"shorter": expected[:19], "gone": []}.get(change, expected))
        assert engine.findings
        assert engine.queue("q").publish(b"x") >= 20


@pytest.mark.parametrize("repair", [False, True])
def test_a_damaged_journal_is_told_when_its_queue_is_asked_for(
    tmp_path: Path, repair: bool
) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"message number %d" % at for at in range(20)])
        engine.queue("other").publish(b"sound")
    journal = queue_directory(tmp_path, "q") / "journal.jif"
    data = bytearray(journal.read_bytes())
    at = data.index(b"number 7")
    data[at : at + 8] = b"damaged!"
    journal.write_bytes(data)
    with open_quietly(tmp_path, repair=repair) as engine:
        assert [body for _, body, _ in drain(engine.queue("other"))] == [b"sound"]
        if not repair:
            with pytest.raises(qindex.DamageError, match=r"journal\.jif.*the next call"):
                engine.queue("q")
        bodies = [body for _, body, _ in drain(engine.queue("q"))]
        assert bodies == [b"message number %d" % at for at in range(20) if at != 7]
        assert any(b"damaged!" in one.read_bytes() for one in journal.parent.glob("quarantine/*"))
        assert any(one.path == str(journal) for one in engine.findings)
    with open_quietly(tmp_path) as engine:
        assert not engine.findings
        assert engine.queue("q").publish(b"x") >= 20
