"""Hard links: another name of a store's file is not written through."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import qindex
import rocketstore
from journal.errors import StorageError, StoreError
from journal.fs.beneath import beneath
from journal.fs.files import REAL, created, read_file, replace_file, write_all

_SIZES = {
    "commitlog_file_size": 4096,
    "consumequeue_file_size": 400,
    "index_slots": 16,
    "index_entries": 16,
}


def use(directory: Path) -> None:
    with qindex.open(directory / "ours", max_journal_entries=4) as engine:
        jobs = engine.queue("jobs")
        for number in range(8):
            jobs.publish(b"x" * (5000 * (number % 2)))
        delivery = jobs.get()
        assert delivery is not None
        jobs.ack(delivery)
    with rocketstore.open(directory / "rocket", **_SIZES) as store:
        store.put("topic", b"body", keys="key")


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(directory)): one.read_bytes()
        for one in directory.rglob("*")
        if one.is_file()
    }


def test_a_temporary_name(tmp_path: Path) -> None:
    """Whatever has the name of a file that is being made is removed, not written into."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "qindex.clean"
    for fs in (REAL, beneath(REAL, tmp_path / "store")):
        os.link(victim, f"{path}.tmp")
        replace_file(fs, path, b"new")
        for plant in (os.link, os.symlink):
            plant(victim, path.with_name("other"))
            with created(fs, path.with_name("other")) as fd:
                write_all(fs, fd, b"own")
            path.with_name("other").unlink()
        assert read_file(fs, path) == b"new"
        assert victim.read_bytes() == b"kept"


def test_every_file(tmp_path: Path) -> None:
    """A store's files that also have names elsewhere, one after another and all at once."""
    use(tmp_path / "stores")
    names = sorted(contents(tmp_path / "stores"))
    assert len(names) > 10
    for linked in [*([name] for name in names), names]:
        copy, other = tmp_path / "copy", tmp_path / "other"
        shutil.copytree(tmp_path / "stores", copy)
        for name in linked:
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(copy / name, other / name)
        before = contents(other)
        try:
            use(copy)
        except StoreError as error:
            assert "hard links" in str(error), error  # noqa: PT017
            assert any(name in str(error) for name in linked), error  # noqa: PT017
        assert contents(other) == before, linked
        shutil.rmtree(copy)
        shutil.rmtree(other)


def test_it_can_be_read_and_is_told_what_to_do(tmp_path: Path) -> None:
    use(tmp_path)
    store = tmp_path / "ours"
    os.link(store / "qindex.lock", tmp_path / "link")
    with pytest.raises(StorageError, match=r"qindex\.lock has 2 names .* put a copy in its place"):
        qindex.open(store)
    assert qindex.verify(store).sound
    with qindex.open(store, read_only=True) as engine:
        assert engine.queue("jobs").stats().messages == 7
    shutil.copy(store / "qindex.lock", store / "copy")
    (store / "copy").rename(store / "qindex.lock")
    qindex.open(store).close()
