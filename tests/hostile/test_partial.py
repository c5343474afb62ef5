"""``NEW.partial``, where a new store is built, that another user has made or exchanges."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from journal.errors import StorageError
from journal.fs.files import REAL
from qindex.tools.filling import QueueFill
from qindex.tools.staging import Staging
from tests.hostile.second_user import OTHER, as_root, run_as, shared


def make_store(directory: Path) -> Path:
    with qindex.open(directory) as engine:
        engine.queue("jobs").publish(b"body")
    return directory


def repair(source: Path, new: Path) -> None:
    qindex.repair(source, new)


def convert(source: Path, new: Path) -> None:
    qindex.convert(source, 2, out=new)


def salvage(source: Path, new: Path) -> None:
    qindex.convert(source, 2, out=source.with_name("vhost"))
    qindex.salvage(source.with_name("vhost"), new)


def refill(source: Path, new: Path) -> None:
    fill = pytest.importorskip("pyspark_qindex.jobs.refill", reason="pyspark is not installed")
    with fill.new_store(str(new), str(source)) as place:
        QueueFill(place).finish()


_MAKERS = [repair, convert, salvage, refill]


@as_root
@pytest.mark.parametrize("make", _MAKERS)
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777], ids=oct)
def test_of_another_user(tmp_path: Path, make: Callable[[Path, Path], None], mode: int) -> None:
    new = shared(tmp_path) / "new"
    planted = new.with_name("new.partial")
    victim = tmp_path / "victim"
    victim.write_text("kept")

    def plant() -> str:
        planted.mkdir()
        planted.chmod(mode)
        (planted / "lock").symlink_to(victim)
        (planted / "content").mkdir()
        return "planted"

    assert run_as(plant) == "planted"
    with pytest.raises(StorageError, match="another user"):
        make(make_store(tmp_path / "store"), new)
    assert not new.exists()
    assert victim.read_text() == "kept"
    assert sorted(os.listdir(planted)) == ["content", "lock"]


@pytest.mark.parametrize("make", _MAKERS)
def test_others_can_write_it(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    new = tmp_path / "new"
    new.with_name("new.partial").mkdir()
    new.with_name("new.partial").chmod(0o777)
    with pytest.raises(StorageError, match="others can write it"):
        make(make_store(tmp_path / "store"), new)
    assert not new.exists()


@pytest.mark.parametrize("make", _MAKERS)
def test_of_an_earlier_attempt(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    """An earlier version has left it with a mode that lets others read."""
    left = tmp_path / "new.partial" / "content"
    left.mkdir(parents=True)
    left.parent.chmod(0o755)
    (left / "half").write_text("x")
    make(make_store(tmp_path / "store"), tmp_path / "new")
    assert not left.parent.exists()
    assert "half" not in os.listdir(tmp_path / "new")
    for one in (tmp_path / "new").rglob("*"):
        assert not one.stat().st_mode & 0o077


@as_root
def test_exchanged_meanwhile(tmp_path: Path) -> None:
    place = shared(tmp_path)
    place.chmod(0o777)  # everybody may rename what is in it
    partial = place / "new.partial"

    def exchange() -> str:
        partial.rename(place / "away")
        (partial / "content").mkdir(parents=True)
        (partial / "content" / "theirs").touch()
        return "exchanged"

    with Staging(REAL, place / "new", tmp_path / "store") as staging:
        assert run_as(exchange) == "exchanged"
        fd = staging.fs.open(os.path.join(staging.path, "ours"), os.O_WRONLY | os.O_CREAT)
        staging.fs.close(fd)
        staging.commit()
    assert os.listdir(place / "new") == ["ours"]
    assert (place / "new").stat().st_uid == os.geteuid() != OTHER
