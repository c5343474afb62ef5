"""A file that another program deletes, cuts or replaces under the open store is reported, and no
open starts again at nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal.errors import DamageError, StoreError, WritesRefusedError
from journal.findings import Cause, Finding
from rocketstore import Store
from rocketstore.verify import verify
from tests.rocketstore.support import open_tiny

FIRST = f"{0:020d}"
PER_FILE = 4096


def _deleted(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    # Within the page that the maps have: a store into a page behind the end kills the process.
    os.truncate(path, path.stat().st_size - 1)


def _replaced(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(bytes(path.stat().st_size))
    new.rename(path)


TAKEN = pytest.mark.parametrize("take", [_deleted, _cut, _replaced])


def _filled(path: Path, files: int = 1, **options: Any) -> Store:
    store = open_tiny(path, **options)
    while store.max_offset <= PER_FILE * (files - 1):
        store.put("T", b"body" * 20, keys="key")
    return store


def _is_reported(findings: list[Finding], path: Path) -> bool:
    return any(one.path == str(path) and one.cause is Cause.DAMAGE for one in findings)


def _close(store: Store) -> None:
    try:
        store.close()
    except StoreError:
        store.close()


@TAKEN
def test_the_file_that_is_written(
    tmp_path: Path, take: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it was ever synced: puts went into a file without a name."""
    store = _filled(tmp_path)
    path = tmp_path / "commitlog" / FIRST
    take(path)
    with caplog.at_level(logging.WARNING, "qindex.rocketstore"), pytest.raises(DamageError) as told:
        store.sync()
    assert told.value.path == str(path)
    assert str(path) in caplog.text
    assert _is_reported(store.findings, path)
    with pytest.raises(WritesRefusedError, match="another program"):
        store.put("T", b"lost")
    _close(store)
    if take is _replaced:  # by zeros: what had no sync can't be told from what was never put
        return
    assert _is_reported(verify(tmp_path), path)
    with pytest.raises(DamageError, match=FIRST):
        open_tiny(tmp_path)
    with open_tiny(tmp_path, repair=True) as again:
        assert _is_reported(again.findings, path)
        again.put("T", b"goes on")
    assert not any(one.cause is Cause.DAMAGE for one in verify(tmp_path))


@TAKEN
def test_a_put_that_is_to_be_on_disk(tmp_path: Path, take: Callable[[Path], None]) -> None:
    store = _filled(tmp_path, durability="fsync")
    store.put("T", b"body")
    take(tmp_path / "commitlog" / FIRST)
    with pytest.raises(DamageError, match="another program"):
        store.put("T", b"lost")
    _close(store)


def test_the_next_file_is_begun(tmp_path: Path) -> None:
    store = _filled(tmp_path)
    _deleted(tmp_path / "commitlog" / FIRST)
    with pytest.raises(DamageError, match="gone"):  # noqa: PT012
        for _ in range(PER_FILE):
            store.put("T", b"body")
    _close(store)


@TAKEN
def test_nobody_uses_a_file_of_the_log(tmp_path: Path, take: Callable[[Path], None]) -> None:
    """All of it was on disk. The close says nothing, and the next open does not start at 0."""
    _filled(tmp_path).close()
    store = open_tiny(tmp_path)
    path = tmp_path / "commitlog" / FIRST
    take(path)
    store.close()
    assert _is_reported(store.findings, path)
    assert any(one.cause is Cause.DAMAGE and "commitlog" in one.path for one in verify(tmp_path))
    with pytest.raises(DamageError, match="commitlog"):
        open_tiny(tmp_path)
    with open_tiny(tmp_path, repair=True) as again:
        assert any(one.is_loss for one in again.findings)


@pytest.mark.parametrize("number", [0, 1])
@TAKEN
def test_an_older_file_of_the_log(
    tmp_path: Path, take: Callable[[Path], None], number: int
) -> None:
    """It could have expired: only the store that was open knows that it had not."""
    _filled(tmp_path, files=3).close()
    store = open_tiny(tmp_path)
    path = tmp_path / "commitlog" / f"{PER_FILE * number:020d}"
    take(path)
    if take is not _replaced:
        with pytest.raises(DamageError) as told:
            store.lookup(PER_FILE * number)
        assert told.value.path == str(path)
        assert _is_reported(store.findings, path)
    store.put("T", b"goes on")
    assert store.get("T", 0, store.queues()["T", 0][1] - 1).messages[0].body == b"goes on"
    store.close()
    if take is _deleted:
        with pytest.raises(DamageError, match=path.name):
            open_tiny(tmp_path)


@pytest.mark.parametrize("where", ["consumequeue/T/0", "index"])
def test_queues_and_index(tmp_path: Path, where: str) -> None:
    """They follow from the log: they are made anew, and it is told why."""
    store = _filled(tmp_path)
    count = store.queues()["T", 0][1]
    store.close()
    store = open_tiny(tmp_path)
    (path, *_) = sorted((tmp_path / where).iterdir())
    path.unlink()
    assert store.get("T", 0, 0).messages  # recovery has the file of the queue open
    if where == "index":
        with pytest.raises(DamageError) as told:
            store.query("T", "key")
        assert told.value.path == str(path)
    store.close()
    assert _is_reported(store.findings, path)
    assert _is_reported(verify(tmp_path), path)
    with open_tiny(tmp_path) as again:
        assert _is_reported(again.findings, path)
        assert len(list(again.messages("T", 0))) == count
        assert again.query("T", "key")
    assert verify(tmp_path) == []


def test_the_background_thread_notices(tmp_path: Path) -> None:
    store = open_tiny(tmp_path, background=True, flush_interval=0.01, commitlog_file_size=1 << 30)
    store.put("T", b"body")
    _deleted(tmp_path / "commitlog" / FIRST)
    with pytest.raises(WritesRefusedError, match=FIRST):  # noqa: PT012
        while True:
            store.put("T", b"body")
    _close(store)


def test_a_log_that_is_gone_where_only_the_checkpoint_tells(tmp_path: Path) -> None:
    """As with a store of RocketMQ's, or of recovery="compatible"."""
    _filled(tmp_path, recovery="compatible").close()
    (tmp_path / "config" / "rocketstore.json").unlink(missing_ok=True)
    _deleted(tmp_path / "commitlog" / FIRST)
    for recovery in ("full", "compatible"):
        with pytest.raises(DamageError, match="commitlog"):
            open_tiny(tmp_path, recovery=recovery)
