"""Bits of the small files beside the index flipped: no message is lost by one."""

from __future__ import annotations

from typing import Any

import pytest

import qindex
from qindex.engine.opening import open_store
from tests.damage.harms import flipped
from tests.damage.samples import STORE
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem

Store = tuple[dict[str, bytes], frozenset[str]]


def left_by(*, clean: bool, **settings: Any) -> Store:
    fs = MemoryFileSystem()
    engine = open_store(STORE, fs=fs, background=False)
    engine.queue("q", **settings).publish_many([b"%d" % at for at in range(20)])
    if clean:
        engine.close()
    left = fs.contents()
    engine.close()
    return left


def opened(files: dict[str, bytes], store: Store, **options: Any) -> qindex.Engine:
    fs = MemoryFileSystem(files, store[1])
    engine: qindex.Engine = open_store(STORE, fs=fs, background=False, **options)
    return engine


@pytest.mark.parametrize("name", ["qindex.store", "qindex.clean", ".queue_name", "qindex.seq"])
@pytest.mark.parametrize("clean", [False, True])
def test_no_message_is_lost(name: str, clean: bool) -> None:
    store = left_by(clean=clean)
    files, _ = store
    paths = [path for path in files if path.endswith(f"/{name}")]
    if name == "qindex.clean" and not clean:
        assert paths == []
        return
    [path] = paths
    for bit in part(range(len(files[path]) * 8), by_tier(quick=61, all=7, nightly=1), name):
        with opened(flipped(files, path, bit).files, store) as engine:
            queue = engine.queue("q")
            batch = queue.get_many(100)
            assert [(one.seq_id, one.body) for one in batch] == [
                (at, b"%d" % at) for at in range(20)
            ]
            queue.ack_many(batch)
            assert not queue.get_many(100)
            assert queue.publish(b"next") >= 20
            try:
                assert engine.queue_names() == ["q"]
            except qindex.StoreError:
                assert name == ".queue_name"


@pytest.mark.parametrize("repair", [False, True])
def test_the_settings(repair: bool) -> None:
    store = left_by(clean=True, message_ttl=1000.0)
    files, _ = store
    [path] = (path for path in files if path.endswith("/qindex.settings"))
    for bit in range(len(files[path]) * 8):
        harmed = flipped(files, path, bit).files
        fs = MemoryFileSystem(harmed, store[1])
        with open_store(STORE, fs=fs, background=False, repair=repair) as engine:
            if not repair:
                with pytest.raises(qindex.DamageError, match="settings"):
                    engine.queue("q")
                continue
            assert engine.queue("q").settings.message_ttl is None
            assert len(engine.queue("q")) == 20
        left, _ = fs.contents()
        assert path not in left
        aside = [data for name, data in left.items() if "/quarantine/" in name]
        assert aside == [harmed[path]]
