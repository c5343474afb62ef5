"""Every state a crash can leave, for each thing the store does to its files.

What has been promised is kept in the notes of the recording: a message is promised when ``sync``
returned after its write, and until its removal. In every state, recovery must find each promised
message with the right bytes, and a second recovery must, too. The number of references of
everything else is what a queue index might say: it may name messages that were never synced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from journal.errors import StoreError
from journal.findings import Cause
from journal.poison import Poison
from msgstore import MessageStore
from msgstore.format import encode
from tests.effort import by_tier
from tests.memory_fs import MemoryFileSystem
from tests.msgstore.records import check, message_id, record_of
from tests.recording_fs import CrashState, RecordingFileSystem, crash_states

ROOT, STORE = "/run", Path("/run/store")
SIZE, LIMIT = 130, 600
"""Of a record and of a file, bytes; several records to a disk sector."""
BIG_SIZE, BIG_LIMIT = 1500, 5000
"""And several sectors to a record."""


@dataclass(frozen=True)
class Promise:
    """From here on: ``kept`` must be there; ``gone`` have been removed, durably or not."""

    kept: frozenset[int]


@dataclass
class Driver:
    """A store on a recording file system, and the model of what it owes."""

    fs: RecordingFileSystem
    store: MessageStore
    written: set[int] = field(default_factory=set)
    kept: frozenset[int] = frozenset()

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.store.write(message_id(number), record_of(number, SIZE))
            self.written.add(number)

    def write_many(self, *numbers: int) -> None:
        self.store.write_many(
            [(message_id(number), record_of(number, SIZE), 1) for number in numbers]
        )
        self.written.update(numbers)

    def sync(self) -> None:
        self.store.sync()
        self._promise(frozenset(self.written))

    def remove(self, *numbers: int) -> None:
        """The queue index's acknowledgement is durable before the store hears of it here."""
        self.written.difference_update(numbers)
        self._promise(self.kept - set(numbers))
        self.store.remove([message_id(number) for number in numbers])

    def compact(self) -> None:
        self.store.compact()

    def reopen(self) -> None:
        self.store.close()
        self.fs.forget_descriptors()
        wanted = {message_id(number): 1 for number in self.written}
        self.store = open_on(self.fs, wanted)
        assert self.store.missing == set()

    def _promise(self, kept: frozenset[int]) -> None:
        self.kept = kept
        self.fs.note(Promise(kept))


def open_on(fs: RecordingFileSystem, wanted: dict[bytes, int]) -> MessageStore:
    return MessageStore.open(
        STORE,
        references=wanted,
        snapshot=None,
        check=check,
        poison=Poison(),
        fs=fs,
        file_size_limit=LIMIT,
        background=False,
    )


def roll(driver: Driver) -> None:
    driver.write(0, 1)
    driver.sync()
    driver.write(2, 3, 4, 5)
    driver.sync()
    driver.write(6)


def batches(driver: Driver) -> None:
    driver.write_many(0, 1, 2)
    driver.sync()
    driver.write_many(3, 4, 5, 6, 7, 8)
    driver.sync()
    driver.write_many(9, 10)


def drain(driver: Driver) -> None:
    driver.write(0, 1, 2, 3, 4, 5)
    driver.sync()
    driver.remove(0, 1, 2, 3, 4, 5)
    driver.compact()
    driver.write(6)
    driver.sync()


def combine(driver: Driver) -> None:
    driver.write(*range(12))
    driver.sync()
    driver.remove(0, 2, 3, 4, 6, 7, 9)
    driver.compact()
    driver.write(20, 21)
    driver.sync()


def combine_while_unsynced(driver: Driver) -> None:
    driver.write(0, 1, 2, 3)
    driver.sync()
    driver.write(4, 5, 6, 7, 8, 9)
    driver.remove(0, 1, 3, 4, 6)
    driver.compact()
    driver.sync()


def combine_twice(driver: Driver) -> None:
    driver.write(*range(14))
    driver.sync()
    driver.remove(0, 1, 2, 4, 5, 6, 8, 9)
    driver.compact()
    driver.write(20, 21, 22, 23, 24)
    driver.sync()
    driver.remove(3, 20, 21, 22, 10)
    driver.compact()


def reopen(driver: Driver) -> None:
    driver.write(0, 1, 2, 3, 4)
    driver.sync()
    driver.reopen()
    driver.write(5, 6)
    driver.reopen()
    driver.sync()  # which has to cover what was written before the reopening
    driver.remove(0, 1, 2)
    driver.write(8, 9)
    driver.reopen()
    driver.compact()
    driver.write(7)
    driver.sync()


WORKLOADS: list[Callable[[Driver], None]] = [
    roll,
    batches,
    drain,
    combine,
    combine_while_unsynced,
    combine_twice,
    reopen,
]


def on_disk(
    files: Mapping[str, bytes] | None = None, directories: frozenset[str] = frozenset()
) -> RecordingFileSystem:
    return RecordingFileSystem(ROOT, MemoryFileSystem(files, directories, root=ROOT))


def record(workload: Callable[[Driver], None]) -> RecordingFileSystem:
    fs = on_disk()
    driver = Driver(fs, open_on(fs, {}))
    workload(driver)
    driver.store.close()
    fs.forget_descriptors()
    return fs


def promised(state: CrashState) -> frozenset[int]:
    promises = [note for note in state.notes if isinstance(note, Promise)]
    return promises[-1].kept if promises else frozenset()


def assert_keeps(store: MessageStore, kept: frozenset[int], how: str) -> None:
    damage = [found for found in store.findings if found.cause is Cause.DAMAGE]
    assert damage == [], how
    for number in kept:
        assert store.read(message_id(number)) == record_of(number, SIZE), (how, number)
    for msg_id in store.missing:
        assert msg_id not in {message_id(number) for number in kept}, how


def everything() -> dict[bytes, int]:
    """An index that names every message there ever was."""
    return {message_id(number): 1 for number in range(30)}


def recover(state: CrashState, kept: frozenset[int], how: str, compact: bool) -> None:
    """Open, look, write, close, and do it again."""
    fs = on_disk(state.files, state.directories)
    for round_ in range(2):
        with open_on(fs, everything()) as store:
            assert_keeps(store, kept, how)
            ids = list(everything())
            for msg_id, data in zip(ids, store.read_many(ids), strict=True):
                # What was never synced may be missing or damaged, but never wrong.
                assert isinstance(data, StoreError) or check(msg_id, data) is None
            if compact:
                store.compact()
            number = 100 + round_
            store.write(message_id(number), record_of(number, SIZE))
            assert_keeps(store, kept, how)
    fs.forget_descriptors()


POWER = by_tier(quick=8, all=1, nightly=1)
"""Of the states that a loss of power leaves, one of so many is opened."""
FIRST = by_tier(quick=10, all=40, nightly=1000)
"""So many crashes are followed by one of the recovery."""
ENOUGH = by_tier(quick=10, all=50, nightly=50)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_crash_loses_what_was_promised(workload: Callable[[Driver], None]) -> None:
    fs = record(workload)
    count = 0
    for state in crash_states(fs, power=POWER):
        recover(state, promised(state), f"{state.point}: {state.how}", count % 2 == 0)
        count += 1
    assert count > ENOUGH


def leftovers() -> dict[str, bytes]:
    """What RabbitMQ leaves in the middle of combining, and a torn tail: recovery has to copy."""

    def framed(*numbers: int) -> bytes:
        return b"".join(encode(message_id(number), record_of(number, SIZE)) for number in numbers)

    return {
        "store/0.rdq": framed(0) + bytes(400),
        "store/0.rdt": framed(1, 2),
        "store/1.rdq": framed(3) + bytes(77) + framed(4),
        "store/2.rdq": framed(5, 6) + framed(7)[:-3],
        "store/3.rdq.tmp": framed(5),
        "store/clean.dot": b"x",
    }


def test_no_crash_during_recovery_loses_anything() -> None:
    fs = on_disk(leftovers())
    with open_on(fs, {message_id(number): 1 for number in range(7)}) as store:
        assert store.missing == set()
        store.compact()
        store.write(message_id(20), record_of(20, SIZE))
        store.sync()
    fs.forget_descriptors()
    count = 0
    for state in crash_states(fs, power=POWER):
        recover(state, frozenset(range(7)), f"{state.point}: {state.how}", count % 2 == 0)
        count += 1
    assert count > ENOUGH


@pytest.mark.parametrize("workload", [batches, combine, reopen], ids=lambda each: each.__name__)
def test_no_crash_loses_a_record_of_many_sectors(
    workload: Callable[[Driver], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "SIZE", BIG_SIZE)
    monkeypatch.setattr(module, "LIMIT", BIG_LIMIT)
    fs = record(workload)
    for state in crash_states(fs, window=6, random_per_point=1, power=POWER):
        recover(state, promised(state), f"{state.point}: {state.how}", False)


def test_no_second_crash_loses_anything() -> None:
    """A crash in the middle of compaction, and then one in the recovery from it."""
    first = record(combine_while_unsynced)
    states = list(crash_states(first, random_per_point=0))
    count = 0
    for state in states[:: max(1, len(states) // FIRST)]:
        kept = promised(state)
        fs = on_disk(state.files, state.directories)
        with open_on(fs, everything()) as store:
            assert_keeps(store, kept, state.how)
            store.compact()
        fs.forget_descriptors()
        for again in crash_states(fs, window=4, random_per_point=1, power=POWER):
            recover(again, kept, f"{state.how}; then {again.point}: {again.how}", False)
            count += 1
    assert count > 2 * ENOUGH
