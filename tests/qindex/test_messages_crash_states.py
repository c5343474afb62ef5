"""States that a crash can leave of an engine with messages in its message store.

A workload runs on a recording file system; it notes what was promised and when. From the log,
directories are rebuilt as the death of the process ("kill") or a loss of power may have left them,
opened, and held against the notes:

* kept: after a kill each message whose publish had returned, after a loss of power each that was
  synced, unless its ack had begun;
* gone: after a kill no message whose ack had returned, after a loss of power none whose ack was
  synced;
* whatever is there has its own bytes, stands in order, and is counted right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import qindex
from journal.errors import DamageError
from journal.fs.files import FileSystem
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem
from tests.qindex.messages_support import assert_counts, big, ready, stored
from tests.recording_fs import CrashState, RecordingFileSystem, crash_states

ROOT = "/run"
STORE = Path("/run/store")
NAMES = ("a", "b", "c")
STATES = by_tier(quick=6, all=160, nightly=100_000)
"""States of a loss of power that are tried of each workload, about."""
POWER = by_tier(quick=32, all=1, nightly=1)
"""One of so many of them is made at all."""

Places = frozenset[tuple[str, int]]
"""Messages in their queues."""
NONE: Places = frozenset()


@dataclass(frozen=True)
class Promise:
    """From here on: after a kill ``kept`` is there and ``gone`` is not, after a loss of power
    ``safe`` is there and ``safely_gone`` is not."""

    kept: Places = NONE
    gone: Places = NONE
    safe: Places = NONE
    safely_gone: Places = NONE


@dataclass
class Driver:
    """An engine on a recording file system, and what it has promised."""

    fs: RecordingFileSystem
    engine: qindex.Engine = field(init=False)
    kept: Places = NONE
    gone: Places = NONE
    safe: Places = NONE
    safely_gone: Places = NONE

    def __post_init__(self) -> None:
        self.engine = open_store(self.fs)

    def publish(self, *numbers: int, to: str = "a", confirm: bool = False) -> None:
        for number in numbers:
            self.engine.publish_to(list(to), body_of(number), confirm=confirm)
            self.kept |= {(name, number) for name in to}
            if confirm:  # a sync is of all that was before, in these queues
                self._synced(to)
            self._note()

    def publish_many(self, numbers: Iterable[int], to: str = "a") -> None:
        batch = list(numbers)
        self.engine.queue(to).publish_many([body_of(number) for number in batch])
        self.kept |= {(to, number) for number in batch}
        self._note()

    def ack(self, name: str, *numbers: int) -> None:
        """Take all that is ready, acknowledge these, and give the others back."""
        queue = self.engine.queue(name)
        for delivery in list(queue.get_many(1000)):
            number = number_of(delivery.body)
            if number not in numbers:
                delivery.nack()
                continue
            going = {(name, number)}
            self.kept -= going
            self.safe -= going
            self._note()
            delivery.ack()
            self.gone |= going
            self._note()

    def purge(self, name: str) -> None:
        going = {place for place in self.kept if place[0] == name}
        self.kept -= going
        self.safe -= going
        self._note()
        self.engine.queue(name).purge()
        self.gone |= going
        self._note()

    def sync(self) -> None:
        self.engine.sync()
        self._synced(NAMES)
        self._note()

    def reopen(self) -> None:
        self.engine.close()
        self._synced(NAMES)
        self._note()
        self.engine = open_store(self.fs)

    def _synced(self, names: Iterable[str]) -> None:
        self.safe |= {place for place in self.kept if place[0] in names}
        self.safely_gone |= {place for place in self.gone if place[0] in names}

    def _note(self) -> None:
        self.fs.note(Promise(self.kept, self.gone, self.safe, self.safely_gone))


def open_store(fs: FileSystem, **options: object) -> qindex.Engine:
    return stored(STORE, **{"store_file_bytes": 4096, "fs": fs, **options})


def body_of(number: int) -> bytes:
    return big(number) if number % 5 else b"%d small" % number


def number_of(body: bytes) -> int:
    return int(body.split(b" ", 1)[0])


def drained(driver: Driver) -> None:
    driver.publish(1, 2, confirm=True)
    driver.publish_many(range(3, 9))
    driver.sync()
    driver.ack("a", 1, 2, 3, 4, 5, 6, 7, 8)
    driver.engine.compact()
    driver.publish(9)


def combined(driver: Driver) -> None:
    driver.publish_many(range(1, 20))
    driver.sync()
    driver.ack("a", 1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13)
    driver.engine.compact()
    driver.publish(21, 22)
    driver.ack("a", 21, 14, 16)
    driver.engine.compact()


def combined_unsynced(driver: Driver) -> None:
    driver.publish_many(range(1, 14))
    driver.ack("a", 1, 2, 4, 6, 7, 8, 9, 11)
    driver.engine.compact()
    driver.sync()
    driver.engine.flush()


def fan_out(driver: Driver) -> None:
    driver.publish(1, 2, 3, to="abc")
    driver.publish(4, 6, to="ac", confirm=True)
    driver.sync()
    driver.ack("a", 1, 2, 3, 4)
    driver.engine.flush()
    driver.ack("b", 1, 3)
    driver.ack("c", 1, 2, 4)
    driver.engine.compact()
    driver.publish(7, to="bc", confirm=True)
    driver.ack("c", 3, 6)


def closed_and_opened(driver: Driver) -> None:
    driver.publish(1, 2, 3, 4, to="ab")
    driver.reopen()
    driver.ack("a", 1, 2, 4)
    driver.publish(6, 7)
    driver.reopen()
    driver.ack("b", 1, 2, 3)
    driver.engine.compact()
    driver.publish(8, confirm=True)
    driver.engine.close()


def purged(driver: Driver) -> None:
    driver.publish(1, 2, 3, to="abc")
    driver.publish_many(range(6, 16), to="b")
    driver.sync()
    driver.engine.flush()
    driver.publish(16, 17, to="b")
    driver.purge("b")
    driver.engine.compact()
    driver.publish(18, to="ab")
    driver.sync()
    driver.engine.compact()


WORKLOADS: list[Callable[[Driver], None]] = [
    drained,
    combined,
    combined_unsynced,
    fan_out,
    closed_and_opened,
    purged,
]


def record(workload: Callable[[Driver], None]) -> RecordingFileSystem:
    fs = RecordingFileSystem(ROOT, MemoryFileSystem(root=ROOT))
    driver = Driver(fs)
    workload(driver)
    fs.note("the end")
    driver.engine.close()
    fs.forget_descriptors()
    return fs


def chosen(fs: RecordingFileSystem) -> list[CrashState]:
    """All kills, and of the losses of power as many as there is time for, spread evenly."""
    states = list(crash_states(fs, window=3, random_per_point=2, power=POWER))
    kills = [state for state in states if state.how == "kill"]
    power = [state for state in states if state.how != "kill"]
    return kills + list(part(power, max(1, len(power) // STATES), "power"))


def promise_of(state: CrashState) -> Promise:
    promises = [note for note in state.notes if isinstance(note, Promise)]
    return promises[-1] if promises else Promise()


def open_after(fs: MemoryFileSystem, kill: bool) -> qindex.Engine:
    """Open what a crash left. Records that a later sync would have covered may be gone from
    between others in an index file, which open does not take for granted; it must then be the
    index that it complains of, and repair must keep what was promised."""
    try:
        return open_store(fs)
    except DamageError as error:
        if kill or not error.path.endswith((".jif", ".idx")):
            raise
        return open_store(fs, repair=True)


def check(
    engine: qindex.Engine, fs: MemoryFileSystem, promise: Promise, kill: bool, how: str
) -> None:
    known = set(engine.queue_names())
    there: set[tuple[str, int]] = set()
    for name in known & set(NAMES):
        bodies = ready(engine, name)
        numbers = [number_of(body) for body in bodies]
        assert bodies == [body_of(number) for number in numbers], how
        assert numbers == sorted(set(numbers)), how
        there |= {(name, number) for number in numbers}
    kept, gone = (promise.kept, promise.gone) if kill else (promise.safe, promise.safely_gone)
    assert not kept - there, f"{how}: lost {sorted(kept - there)}"
    assert not gone & there, f"{how}: came back {sorted(gone & there)}"
    if not engine.options.repair:
        damage = [one for one in engine.findings if one.cause is qindex.Cause.DAMAGE]
        assert damage == [], how
    assert_counts(engine, fs)


@pytest.mark.rotates(2)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_crash_loses_what_was_promised(workload: Callable[[Driver], None]) -> None:
    states = chosen(record(workload))
    for count, state in enumerate(states):
        kill = state.how == "kill"
        how = f"{state.point}: {state.how}"
        promise = promise_of(state)
        boot = b"one boot" if kill else b"another boot"
        fs = MemoryFileSystem(state.files, state.directories, root=ROOT, boot=boot)
        with open_after(fs, kill) as engine:
            check(engine, fs, promise, kill, how)
            if count % 3 == 0:
                engine.compact()
                check(engine, fs, promise, kill, how)
        with open_store(fs) as engine:
            check(engine, fs, promise, kill, f"{how}, opened again")
    assert len(states) > by_tier(quick=30, all=100, nightly=100)
