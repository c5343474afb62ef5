"""Every state that a crash can leave, opened: nothing acknowledged is lost, nothing is invented,
queues and index are complete, and the store goes on.

The workloads run with ``durability="fsync"`` on the recording file system. "kill" states are those
of a process that died; the others lose power, so there the operating system has started anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal.files import RealFileSystem
from rocketstore import Store
from rocketstore.properties import index_keys
from tests.recording_fs import CrashState, RecordingFileSystem, crash_states
from tests.rocketstore.support import Clock, open_tiny

Workload = Callable[[Store, "Promises"], None]


class Quick(RealFileSystem):
    """The real one without waiting for the disk: these directories live for a moment."""

    @staticmethod
    def fdatasync(fd: object, /) -> None:
        """Do nothing."""

    @staticmethod
    def sync_dir(path: object, /) -> None:
        """Do nothing."""


class AfterPowerLoss(Quick):
    @staticmethod
    def boot_id() -> bytes:
        return b"another boot"


class Promises:
    """What a workload asked for and what it was promised."""

    def __init__(self, fs: RecordingFileSystem) -> None:
        self.fs = fs
        self.asked: set[bytes] = set()
        self._number = 0

    def put(self, store: Store, size: int, **options: Any) -> None:
        body = self.body(size)
        put = store.put("T", body, keys=f"k{self._number % 3} b{self._number}", **options)
        self.fs.note({put.offset: body})

    def put_many(self, store: Store, count: int, size: int, **options: Any) -> None:
        bodies = [self.body(size) for _ in range(count)]
        keys = [f"k{at % 3}" for at in range(count)]
        puts = store.put_many("U", bodies, keys=keys, **options)
        self.fs.note(dict(zip(puts.offsets, bodies, strict=True)))

    def body(self, size: int) -> bytes:
        self._number += 1
        body = (b"%04d" % self._number) * (size // 4 + 1)
        self.asked.add(body)
        return body


def puts(store: Store, promises: Promises) -> None:
    for number in range(9):
        promises.put(store, 40 + 30 * number, tags="x")
    promises.put_many(store, 5, 80)


def rolls(store: Store, promises: Promises) -> None:
    for _ in range(6):
        promises.put(store, 1500)
    promises.put_many(store, 7, 900)


def index_rotation(store: Store, promises: Promises) -> None:
    for _ in range(3):
        promises.put_many(store, 9, 20)
        store.query("U", "k1")
    store.checkpoint()
    promises.put_many(store, 9, 20)
    store.query("U", "k1")


def deletion(store: Store, promises: Promises) -> None:
    promises.put_many(store, 12, 900)
    store.checkpoint()
    store.clean(now=4e9)
    promises.fs.note("cleaned")
    promises.put(store, 100)


WORKLOADS = [puts, rolls, index_rotation, deletion]


def record(root: Path, workload: Workload) -> tuple[RecordingFileSystem, Promises]:
    root.mkdir()
    fs = RecordingFileSystem(root)
    promises = Promises(fs)
    with open_tiny(root, fs=fs, durability="fsync", clock=Clock(step=500)) as store:
        workload(store, promises)
    fs.note("closed")
    return fs, promises


def verify(state: CrashState, root: Path, promises: Promises, workload_deletes: bool) -> None:
    fs = Quick() if state.how == "kill" else AfterPowerLoss()
    kept: dict[int, bytes] = {}
    for note in state.notes:
        if isinstance(note, dict):
            kept.update(note)
    with open_tiny(root, fs=fs, clock=Clock(1_800_000_000_000)) as store:
        for offset, body in kept.items():
            message = store.lookup(offset)
            if message is None:
                assert workload_deletes
                assert offset < store.min_offset
                continue
            assert message.body == body
        check_whole(store, promises.asked)
        added = store.put("T", b"after", keys="after")
        assert [hit.offset for hit in store.query("T", "after")] == [added.offset]
    with open_tiny(root, fs=fs) as store:
        assert store.lookup(added.offset) is not None
        check_whole(store, promises.asked | {b"after"})


def check_whole(store: Store, asked: set[bytes]) -> None:
    """What the queues hold was asked for; each message stands once in its queue and under each
    of its keys."""
    for topic, queue_id in store.queues():
        offsets = []
        for message in store.messages(topic, queue_id):
            if message.offset < store.min_offset:
                continue
            message.check()
            assert message.body in asked
            offsets.append(message.offset)
            for key in index_keys(message.properties):
                hits = [hit.offset for hit in store.query(topic, key, 10_000)]
                assert hits.count(message.offset) == 1, (message, key)
        assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_state(workload: Workload, tmp_path: Path) -> None:
    fs, promises = record(tmp_path / "run", workload)
    states = 0
    for state in crash_states(fs, window=3, random_per_point=1):
        root = state.build(tmp_path / "state")
        try:
            verify(state, root, promises, workload is deletion)
        except BaseException as error:
            error.add_note(f"{workload.__name__}: point {state.point}, {state.how}")
            raise
        shutil.rmtree(root)
        states += 1
    print(f"{workload.__name__}: {states} states")
    assert states > 50


def test_crash_in_recovery(tmp_path: Path) -> None:
    """The open after a crash crashes as well."""
    fs, promises = record(tmp_path / "run", index_rotation)
    first = [
        state
        for state in crash_states(fs, window=1, random_per_point=0)
        if "random" not in state.how
    ]
    states = 0
    for state in first[:: len(first) // 6]:
        root = state.build(tmp_path / "first")
        again = RecordingFileSystem(root)
        open_tiny(root, fs=again, durability="fsync", clock=Clock(step=500)).close()
        again.forget_descriptors()
        for second in crash_states(again, window=1, random_per_point=1):
            target = second.build(tmp_path / "second")
            merged = CrashState(
                second.point, state.how, second.files, second.directories, state.notes
            )
            try:
                verify(merged, target, promises, False)
            except BaseException as error:
                error.add_note(f"{state.point} {state.how}, then {second.point} {second.how}")
                raise
            shutil.rmtree(target)
            states += 1
        shutil.rmtree(root)
    print(f"recovery: {states} states")
    assert states > 50
