"""Every state that a crash can leave, opened: nothing acknowledged is lost, nothing is invented,
queues and index are complete, and the store goes on.

The workloads run with ``durability="fsync"`` on the recording file system. "kill" states are those
of a process that died; the others lose power, so there the operating system has started anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rocketstore import Retention, Store
from rocketstore.format.properties import index_keys
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem
from tests.recording_fs import CrashState, RecordingFileSystem, crash_states
from tests.rocketstore.support import Clock, open_tiny

Workload = Callable[[Store, "Promises"], None]
ROOT = Path("/s")
POWER = by_tier(quick=60, all=1, nightly=1)
"""Of the states that a loss of power leaves, one of so many is opened."""
FIRST = by_tier(quick=1, all=4, nightly=40)
"""So many crashes are followed by one of the recovery."""
AGAIN = by_tier(quick=4, all=1, nightly=1)
"""One of so many states is opened once more, after it was used."""
ENOUGH = by_tier(quick=10, all=50, nightly=50)


@dataclass(frozen=True)
class Committed:
    """A note: the offsets that were committed by then, and whether they were made durable."""

    offsets: dict[tuple[str, bool], int]
    surely: bool = True


@dataclass(frozen=True)
class Delayed:
    """A note: this message has been put to wait."""

    body: bytes


class Promises:
    """What a workload asked for and what it was promised."""

    def __init__(self, fs: RecordingFileSystem) -> None:
        self.fs = fs
        self.asked: set[bytes] = set()
        self.offsets: dict[tuple[str, bool], int] = {}
        self.history: dict[tuple[str, bool], set[int]] = {}
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

    def put_batch(self, store: Store, count: int, size: int) -> None:
        bodies = [self.body(size) for _ in range(count)]
        puts = store.put_batch("B", [(0, body, {"KEYS": f"b{len(body)}"}) for body in bodies])
        self.fs.note(dict(zip(puts.offsets, bodies, strict=True)))

    def put_delayed(self, store: Store, level: int) -> None:
        body = self.body(40)
        put = store.put("D", body, keys="late", delay=level)
        self.fs.note({put.offset: body})
        self.fs.note(Delayed(body))

    def deliver(self, store: Store, now: int) -> None:
        store.deliver_due(now)
        store.sync()
        self.fs.note("delivered")

    def check_delivery(self, store: Store, state: CrashState) -> None:
        """Whatever was delivered or not: all that was put arrives when its time has come."""
        store.deliver_due(1_900_000_000_000)
        arrived = [message.body for message in store.messages("D", 0)]
        for note in state.notes:
            if isinstance(note, Delayed):
                assert note.body in arrived
        assert set(arrived) <= self.asked

    def commit(self, store: Store, group: str, offset: int, *, broadcast: bool = False) -> None:
        store.commit_offset(group, "T", 0, offset, broadcast=broadcast)
        self.offsets[group, broadcast] = offset
        self.history.setdefault((group, broadcast), {-1}).add(offset)

    def check_offsets(self, store: Store, state: CrashState) -> None:
        """An offset that was made durable is there, or a later one; never one that was not
        committed."""
        sure: dict[tuple[str, bool], int] = {}
        for note in state.notes:
            if isinstance(note, Committed) and note.surely:
                sure.update(note.offsets)
        for (group, broadcast), committed in self.history.items():
            found = store.fetch_offset(group, "T", 0, broadcast=broadcast)
            assert found in committed
            assert found >= sure.get((group, broadcast), -1)

    def body(self, size: int) -> bytes:
        self._number += 1
        body = (b"%04d" % self._number) * (size // 4 + 1)
        self.asked.add(body)
        return body


def puts(store: Store, promises: Promises) -> None:
    for number in range(9):
        promises.put(store, 40 + 30 * number, tags="x")
    promises.put_many(store, 5, 80)


def batches(store: Store, promises: Promises) -> None:
    """Batches as clients make them: each whole in one file, so that a blank comes early."""
    promises.put_batch(store, 4, 200)
    promises.put(store, 1800)
    promises.put_batch(store, 5, 300)
    promises.put_batch(store, 5, 300)


def rolls(store: Store, promises: Promises) -> None:
    for _ in range(6):
        promises.put(store, 1500)
    promises.put_many(store, 7, 900)


def long_batches(store: Store, promises: Promises) -> None:
    """Batches that are written, not copied into the map, and one that is not; over two files."""
    with patch("rocketstore.log.commitlog.MAX_COPIED", 1000):
        promises.put_many(store, 4, 300)
        promises.put(store, 40)
        promises.put_many(store, 3, 100)
        promises.put_many(store, 9, 400)
        promises.put_batch(store, 4, 300)


def queue_rolls(store: Store, promises: Promises) -> None:
    """Consume queue files of ten units: some are begun, one is filled to its end."""
    for number in range(3):
        promises.put_many(store, 7 + number, 10)
        promises.put(store, 10, queue_id=number)
        store.get("U", 0, 0)
    store.checkpoint()
    promises.put_many(store, 16, 10)
    store.get("U", 0, 0)


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


def delays(store: Store, promises: Promises) -> None:
    """Delayed messages, some of them delivered; a delivery may be repeated, never lost."""
    for level in (1, 2, 1):
        promises.put_delayed(store, level)
    promises.put(store, 30)
    promises.deliver(store, 1_700_000_003_500)
    store.checkpoint()
    promises.put_delayed(store, 1)
    promises.deliver(store, 1_700_000_009_000)
    store.checkpoint()


def offsets(store: Store, promises: Promises) -> None:
    """Committed offsets, of groups and of a broadcast consumer."""
    promises.put(store, 30)
    for number in range(3):
        promises.commit(store, "g", number)
        promises.commit(store, "own", number + 5, broadcast=True)
        store.checkpoint()
        promises.fs.note(Committed(promises.offsets.copy()))
    promises.commit(store, "g", 9)


WORKLOADS: list[Workload] = [
    puts,
    batches,
    rolls,
    long_batches,
    queue_rolls,
    index_rotation,
    deletion,
    delays,
    offsets,
]
CHOSEN = part(WORKLOADS, by_tier(quick=2, all=1, nightly=1), "workloads")


def record(workload: Workload) -> tuple[RecordingFileSystem, Promises]:
    fs = RecordingFileSystem("/s", MemoryFileSystem(root="/s"))
    promises = Promises(fs)
    with open_tiny(ROOT, fs=fs, durability="fsync", **clocks()) as store:
        workload(store, promises)
        fs.note(Committed(promises.offsets.copy(), surely=False))
    fs.note(Committed(promises.offsets.copy()))
    return fs, promises


def clocks() -> dict[str, Any]:
    return {"clock": Clock(step=500), "name_clock": Clock(step=7)}


def disk_after(state: CrashState, boot: bytes = b"one boot") -> MemoryFileSystem:
    """The disk when all is up again; a process that was killed finds the same ``boot``."""
    if not state.how.startswith("kill"):
        boot += b", then another"
    return MemoryFileSystem(state.files, state.directories, root="/s", boot=boot)


def verify(
    state: CrashState,
    promises: Promises,
    workload: Workload,
    fs: MemoryFileSystem,
    *,
    again: bool = True,
) -> None:
    kept: dict[int, bytes] = {}
    for note in state.notes:
        if isinstance(note, dict):
            kept.update(note)
    with open_tiny(ROOT, fs=fs, clock=Clock(1_800_000_000_000)) as store:
        for offset, body in kept.items():
            message = store.lookup(offset)
            if message is None:
                assert workload is deletion
                assert offset < store.min_offset
                continue
            assert message.body == body
        check_whole(store, promises.asked)
        promises.check_offsets(store, state)
        if workload is delays:
            promises.check_delivery(store, state)
        added = store.put("T", b"after", keys="after")
        assert [hit.offset for hit in store.query("T", "after")] == [added.offset]
    if not again:
        return
    with open_tiny(ROOT, fs=fs) as store:
        assert store.lookup(added.offset) is not None
        check_whole(store, promises.asked | {b"after"})


def check_whole(store: Store, asked: set[bytes]) -> None:
    """What the queues hold was asked for; each message stands once in its queue and under each
    of its keys."""
    hits: dict[tuple[str, str], list[int]] = {}
    for topic, queue_id in store.queues():
        found = []
        for message in store.messages(topic, queue_id):
            if message.offset < store.min_offset:
                continue
            message.check()
            assert message.body in asked
            found.append(message.offset)
            for key in index_keys(message.properties):
                if (topic, key) not in hits:
                    several = store.query(topic, key, 10_000)
                    hits[topic, key] = [hit.offset for hit in several]
                assert hits[topic, key].count(message.offset) == 1, (message, key)
        assert found == sorted(set(found))


@pytest.mark.rotates(2)
@pytest.mark.parametrize("workload", CHOSEN, ids=lambda workload: workload.__name__)
def test_every_state(workload: Workload) -> None:
    fs, promises = record(workload)
    states = 0
    window = 1 if workload is queue_rolls else 2
    for state in crash_states(fs, window=window, random_per_point=1, power=POWER):
        try:
            verify(state, promises, workload, disk_after(state), again=states % AGAIN == 0)
        except BaseException as error:
            error.add_note(f"{workload.__name__}: point {state.point}, {state.how}")
            raise
        states += 1
    print(f"{workload.__name__}: {states} states")
    assert states > ENOUGH


@pytest.mark.parametrize("workload", [index_rotation, rolls, delays, deletion, queue_rolls],
                         ids=lambda workload: workload.__name__)  # fmt: skip
def test_crash_in_recovery(workload: Workload) -> None:
    """The open after a crash crashes as well, and so does the one after that."""
    fs, promises = record(workload)
    first = [
        state
        for state in crash_states(fs, window=1, random_per_point=0)
        if "random" not in state.how
    ]
    states = 0
    for state in first[:: len(first) // FIRST]:
        memory = disk_after(state)
        again = RecordingFileSystem("/s", memory)
        open_tiny(ROOT, fs=again, durability="fsync", **clocks()).close()
        again.forget_descriptors()
        for second in crash_states(again, window=1, random_per_point=1, power=POWER):
            merged = CrashState(
                second.point, second.how, second.files, second.directories, state.notes
            )
            try:
                verify(merged, promises, workload, disk_after(second, memory.boot))
            except BaseException as error:
                error.add_note(f"{state.point} {state.how}, then {second.point} {second.how}")
                raise
            states += 1
    print(f"recovery of {workload.__name__}: {states} states")
    assert states > ENOUGH


@pytest.mark.rotates(3)
def test_retention_by_itself_crashes_anywhere() -> None:
    """Files go one by one while the background would be at it; queues and index follow."""
    fs = RecordingFileSystem("/s", MemoryFileSystem(root="/s"))
    promises = Promises(fs)
    rules = Retention(hours=0, delete_when=tuple(range(24)), most_at_once=2)
    with open_tiny(ROOT, fs=fs, durability="fsync", retention=rules, **clocks()) as store:
        for _ in range(4):
            promises.put_many(store, 5, 900)
            store._housekeeping.clean(None, manual=False)
    states = 0
    for state in crash_states(fs, window=2, random_per_point=1, power=POWER):
        verify(state, promises, deletion, disk_after(state))
        states += 1
    assert states > 4 * ENOUGH
