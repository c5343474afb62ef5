"""What can't be done is one clear line and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from qindex.tools.repair import repair_store
from qindex.tools.verify import verify_store
from tests.cli.support import run
from tests.faulty_fs import FaultyFileSystem
from tests.golden import golden, synthetic
from tests.tools.faults import State
from tests.tools.stores import content_of, make_store, rich_files


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.code == 2
    assert result.out == b""
    (line,) = result.complaints
    return line


@pytest.mark.parametrize("command", ["verify", "repair", "salvage"])
def test_no_store(command: str, tmp_path: Path) -> None:
    out = [] if command == "verify" else ["--out", tmp_path / "new"]
    assert "no such directory" in refused(command, tmp_path / "nowhere", *out)
    (tmp_path / "file").write_bytes(b"x")
    assert "is a file" in refused(command, tmp_path / "file", *out)
    (tmp_path / "empty").mkdir()
    line = refused(command, tmp_path / "empty", *out)
    assert "neither a qindex store nor" in line or "no RabbitMQ virtual host" in line
    assert not (tmp_path / "new").exists()


def test_the_other_command_is_named(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    assert "use qindex repair" in refused("salvage", store, "--out", tmp_path / "new")
    assert "use qindex salvage" in refused(
        "repair", golden("b").vhost_dir, "--out", tmp_path / "new"
    )
    wrong = refused("salvage", golden("b").vhost_dir, "--out", tmp_path / "new", "--format", "x")
    assert "rabbitmq" in wrong


def test_where_new_may_not_be(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    before = sorted(store.rglob("*"))
    assert "within" in refused("repair", store, "--out", store / "new")
    assert "within" in refused("repair", store, "--out", store)
    (tmp_path / "link").symlink_to(store)
    assert "within" in refused("repair", store, "--out", tmp_path / "link" / "new")
    assert "no such directory" in refused("repair", store, "--out", tmp_path / "no" / "new")
    (tmp_path / "file").write_bytes(b"x")
    assert "is a file" in refused("repair", store, "--out", tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"x")
    assert "is not empty" in refused("repair", store, "--out", tmp_path / "full")
    assert sorted(store.rglob("*")) == before
    assert not list(tmp_path.glob("*.partial"))


def test_new_may_be_empty(copy_of: Callable[[State], Path], tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert run("repair", copy_of("clean"), "--out", tmp_path / "new").code == 0
    assert qindex.verify(tmp_path / "new").figures.entries == 66


def test_a_store_in_use_is_not_repaired(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "s", background=False) as engine:
        engine.queue("q").publish(b"x")
        line = refused("repair", tmp_path / "s", "--out", tmp_path / "new")
        assert "is open for writing by this process" in line
    assert run("repair", tmp_path / "s", "--out", tmp_path / "new").code == 0


def test_nobody_opens_a_store_that_is_being_repaired(
    copy_of: Callable[[State], Path], tmp_path: Path
) -> None:
    store = copy_of("clean")
    raised: list[qindex.LockedError] = []

    class Watching(FaultyFileSystem):
        def rename(self, source: object, target: object, /) -> None:
            if str(target) == str(tmp_path / "new"):
                with pytest.raises(qindex.LockedError) as caught:
                    qindex.open(store, background=False)
                raised.append(caught.value)
            super().rename(str(source), str(target))

    repair_store(store, tmp_path / "new", fs=Watching())
    assert len(raised) == 1
    qindex.open(store, background=False).close()


FAILING = ("write", "pwrite", "fdatasync", "rename", "sync_dir", "mkdir", "fallocate")


@pytest.mark.parametrize("operation", FAILING)
def test_a_disk_that_is_full_or_fails(
    operation: str, copy_of: Callable[[State], Path], tmp_path: Path
) -> None:
    """At the first call, in the middle, and at the last: no NEW, no rest, DIR as it was."""
    store = copy_of("clean")
    counting = FaultyFileSystem()
    repair_store(store, tmp_path / "whole", fs=counting)
    calls = counting.calls[operation]
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    # The first and the last pwrite are of numbers of processes in lock files: the next test.
    ends = 1 if operation == "pwrite" else 0
    for after in {ends, calls // 2, max(calls - 1 - ends, 0)} if calls else ():
        fs = FaultyFileSystem()
        fs.fail(operation, errno.ENOSPC, after=after)
        if operation == "rename" and after == calls - 1:
            fs.fail(operation, errno.ENOSPC, path="content")
        with pytest.raises(qindex.StoreError) as raised:
            repair_store(store, tmp_path / "new", fs=fs)
        assert "No space left" in str(raised.value)
        if operation != "sync_dir":  # the last one comes behind the commit
            assert not (tmp_path / "new").exists()
        assert not (tmp_path / "new.partial").exists()
        if (tmp_path / "new").exists():
            assert qindex.verify(tmp_path / "new").sound
            os.rename(tmp_path / "new", tmp_path / f"made-{after}")
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    qindex.repair(store, tmp_path / "new")


def test_a_lock_is_held_where_a_full_disk_takes_no_number(
    copy_of: Callable[[State], Path], tmp_path: Path
) -> None:
    store = copy_of("clean")
    fs = FaultyFileSystem()
    for path in ("partial/lock", "qindex.lock"):
        fs.fail("pwrite", errno.ENOSPC, path=path)
    repair_store(store, tmp_path / "new", fs=fs)
    assert not fs._faults
    assert qindex.verify(tmp_path / "new").sound


def test_what_a_killed_repair_left_is_begun_anew(
    copy_of: Callable[[State], Path], tmp_path: Path
) -> None:
    store = copy_of("clean")
    rest = tmp_path / "new.partial" / "content" / "queues"
    rest.mkdir(parents=True)
    (rest / "half").write_bytes(b"x")
    qindex.repair(store, tmp_path / "new")
    assert content_of(tmp_path / "new") == content_of(store)
    assert not (tmp_path / "new.partial").exists()


def test_a_file_that_can_t_be_read(copy_of: Callable[[State], Path], tmp_path: Path) -> None:
    """A bad sector, or no permission: named by verify; repair saves the rest."""
    store = copy_of("killed")
    segment = rich_files(store).segment
    for operation in ("open", "pread"):
        fs = FaultyFileSystem()
        fs.fail(operation, errno.EIO, times=None, path=str(segment))
        report = verify_store(store, fs=fs)
        assert not report.sound
        assert {(one.path, one.kind) for one in report.damage} >= {(str(segment), "unreadable")}
        saved = repair_store(store, tmp_path / f"new-{operation}", fs=fs)
        assert not saved.complete
        assert qindex.verify(tmp_path / f"new-{operation}").sound


def test_a_record_file_that_can_t_be_read(copy_of: Callable[[State], Path], tmp_path: Path) -> None:
    store = copy_of("killed")
    records = rich_files(store).records
    fs = FaultyFileSystem()
    fs.fail("open", errno.EACCES, times=None, path=str(records))
    report = verify_store(store, fs=fs)
    assert {(one.path, one.kind) for one in report.damage} >= {(str(records), "unreadable")}
    saved = repair_store(store, tmp_path / "new", fs=fs)
    assert not saved.complete
    assert qindex.verify(tmp_path / "new").sound
    assert saved.messages == 75 - 10


def test_a_directory_that_can_t_be_listed(copy_of: Callable[[State], Path]) -> None:
    store = copy_of("clean")
    fs = FaultyFileSystem()
    fs.fail("listdir", errno.EACCES, times=None, path=str(store))
    with pytest.raises(qindex.StorageError, match="Permission denied"):
        verify_store(store, fs=fs)


def test_damage_in_a_vhost_is_exit_code_1(tmp_path: Path) -> None:
    result = run("verify", synthetic("19").vhost_dir)
    assert result.code == 1
    assert len(result.text.splitlines()) == 2 + 1
    assert "damaged in 2 places" in result.text
