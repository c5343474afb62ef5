"""Every state that a crash can leave of a conversion: the virtual host's directory itself has every
message once, and the next call finishes.

The death of the process is tried behind each operation on files, a loss of power within the bounds
of :mod:`tests.recording_fs`. A call that finishes is crashed in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import qindex
from journal.fs.files import read_file
from qindex.format.rabbitmq import queue_index_v2 as index_format
from qindex.format.rabbitmq.names import directory_name
from qindex.format.rabbitmq.vhost_config import format_vhost_config
from qindex.tools.convert import Version, convert, convert_store
from qindex.view.reader import StoreReader
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem
from tests.qindex.test_version2_files import records, write
from tests.recording_fs import CrashState, RecordingFileSystem, crash_states

ROOT = "/v"
WORK = "qindex.convert"
POWER = by_tier(quick=24, all=3, nightly=1)
"""Of the states that a loss of power leaves, one of so many is opened."""
KILLED = by_tier(quick=3, all=1, nightly=1)
"""Of the states that the death of the process leaves, one of so many is."""
FIRST = by_tier(quick=1, all=1, nightly=30)
"""So many crashes are followed by one of the call that finishes."""
ENOUGH = by_tier(quick=10, all=40, nightly=40)
"""Points at which states are looked at, at the least."""
ENTRIES = 8
"""A segment of version 2; of version 1 it has 4."""

Files = dict[str, bytes]
Shown = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qindex.tools.copying.DEFAULT_ENTRY_COUNT", ENTRIES)


def files_of(directory: Path) -> Files:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def disk_of(files: Files, directories: frozenset[str] = frozenset()) -> MemoryFileSystem:
    return MemoryFileSystem(files, directories, root=ROOT)


def converted(files: Files, to: Version) -> Files:
    with TemporaryDirectory() as directory:
        for name, data in files.items():
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        convert(directory, to)
        return files_of(Path(directory))


@cache
def version1() -> Files:
    """Two queues: messages in the index, in the message store, in both queues; transient ones;
    some are acknowledged, in the segments and in the journal."""
    with TemporaryDirectory() as directory:
        options: dict[str, Any] = {
            "segment_entry_count": 4,
            "embed_below": 400,
            "background": False,
        }
        with qindex.open(directory, record_format="rabbitmq", **options) as engine:
            queues = [engine.queue(name) for name in ("a", "b")]
            for number in range(9):
                for queue in queues[: 1 + number % 2]:
                    queue.publish(b"a%d" % number, persistent=number != 4)
            engine.publish_to(["a", "b"], b"large" * 100)
            queues[1].publish(b"b" * 600)
            queues[0].get(timeout=0).ack()
            engine.flush()
            for queue in queues:
                queue.publish(b"in the journal")
                queue.get(timeout=0).ack()
            queues[0].get(timeout=0)
            files = files_of(Path(directory))  # as if it were killed
        theirs = {
            name: data
            for name, data in files.items()
            if "qindex." not in name and not name.endswith(".sum")
        }
        return theirs | {".vhost": b"/", ".config": format_vhost_config(4)}


@cache
def version2() -> Files:
    """The same, and a queue with messages as nodes of 3.13 and later write them, one of them
    transient, and with what a clean stop leaves."""
    files = converted(version1(), 2)
    with TemporaryDirectory() as directory:
        messages = records(5, 900, "mc")
        messages[2:3] = records(1, 902, "transient")
        path = write(Path(directory), 0, ENTRIES, messages)
        index = path / "0.qi"
        data = bytearray(index.read_bytes())
        data[index_format.HEADER_SIZE + 2 * index_format.ENTRY_SIZE + 1] = 0
        index.write_bytes(data)
        files |= files_of(Path(directory))
    return files | {"recovery.dets": b"no terms", "msg_store_persistent/clean.dot": b"none"}


@cache
def half_converted() -> Files:
    """A node was stopped in the middle: of one queue some entries of a segment are of version 2
    alone, and others of version 1; of the other, both have them."""
    files = dict(version1())
    there = converted(files, 2)
    for name in ("a", "b"):
        directory = f"queues/{directory_name('/', name)}"
        for suffix in ("qi", "qs"):
            files[f"{directory}/0.{suffix}"] = there[f"{directory}/0.{suffix}"]
    index = bytearray(files[f"queues/{directory_name('/', 'a')}/0.qi"])
    first = index_format.HEADER_SIZE
    index[first : first + 4 * index_format.ENTRY_SIZE] = bytes(4 * index_format.ENTRY_SIZE)
    files[f"queues/{directory_name('/', 'a')}/0.qi"] = bytes(index)
    del files[f"queues/{directory_name('/', 'a')}/1.idx"]
    return files


_READ: dict[tuple[Any, ...], Shown] = {}


def shown(fs: MemoryFileSystem) -> Shown:
    """As :func:`_shown`; equal directories are read once. What is in ``qindex.convert/`` no reader
    looks at."""
    paths = [f"{ROOT}/{name}" for name in fs.listdir(ROOT) if name != WORK]
    key: list[tuple[str, bytes | None]] = []
    for path in paths:
        try:
            paths += [f"{path}/{name}" for name in fs.listdir(path)]
            key.append((path, None))
        except NotADirectoryError:
            key.append((path, read_file(fs, path)))
    found = tuple(sorted(key))
    if found not in _READ:
        _READ[found] = _shown(fs)
    return _READ[found]


def _shown(fs: MemoryFileSystem) -> Shown:
    """What is read, but for whether it comes again: the notes of a clean stop have that."""
    found: Shown = {}
    for reader in StoreReader(ROOT, fs).readers():
        rows = [(row.seq_id, row.msg_id, row.body, row.key) for row in reader.entries()]
        assert [row for row in rows if row[2] is None] == []
        assert [str(one) for one in reader.findings if one.cause is qindex.Cause.DAMAGE] == []
        found[reader.name] = rows
    return found


@dataclass(frozen=True)
class Case:
    make: Callable[[], Files]
    to: Version


CASES = {
    "version 1 to 2": Case(version1, 2),
    "version 2 to 1": Case(version2, 1),
    "half-converted to 2": Case(half_converted, 2),
    "half-converted to 1": Case(half_converted, 1),
}


def record(files: Files, to: Version, directories: frozenset[str] = frozenset()) -> Any:
    fs = RecordingFileSystem(ROOT, disk_of(files, directories))
    convert_store(ROOT, to, fs=fs)
    fs.forget_descriptors()
    return fs


def states_of(fs: RecordingFileSystem) -> Iterator[CrashState]:
    killed = 0
    for state in crash_states(fs, window=2, random_per_point=1, power=POWER):
        if state.how == "kill":
            killed += 1
            if killed % KILLED:
                continue
        yield state


def check(name: str, state: CrashState, before: Shown) -> None:
    """Look at a state, and finish. Errors have the state in a note."""
    to = CASES[name].to
    fs = disk_of(state.files, state.directories)
    try:
        assert shown(fs) == before
        convert_store(ROOT, to, fs=fs)
        assert shown(fs) == before
        assert {one for queue in StoreReader(ROOT, fs).queues() for one in queue.versions} == {to}
        assert WORK not in fs.listdir(ROOT)
    except BaseException as error:
        error.add_note(f"{name}: behind operation {state.point}, {state.how}")
        raise


@pytest.mark.parametrize("name", part([*CASES], by_tier(quick=4, all=1, nightly=1), "convert"))
def test_every_state(name: str) -> None:
    case = CASES[name]
    files = case.make()
    before = shown(disk_of(files))
    assert sum(map(len, before.values())) > 12
    states = list(states_of(record(files, case.to)))
    print(f"{name}: {len(states)} states")
    assert len({state.point for state in states}) > ENOUGH
    for state in states:
        check(name, state, before)
    planned = [state for state in states if f"{WORK}/plan" in state.files]
    for first in planned[:: max(1, len(planned) // FIRST)][:FIRST]:
        for state in states_of(record(first.files, case.to, first.directories)):
            check(name, state, before)


def _nothing(*_: Any) -> None:
    pass


DEFECTS = {
    "new files are not synced": ("version 1 to 2", "convert.sync_tree", _nothing),
    "names are not synced": ("version 2 to 1", "convert.sync_directories", _nothing),
    "the journal goes with the segments": ("version 1 to 2", "convert._stage", lambda _: 0),
    "old entries of version 2 are not kept": (
        "half-converted to 2",
        "copying.StoreCopy.copy_pairs",
        _nothing,
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, place, planted = DEFECTS[defect]
    case = CASES[name]
    files = case.make()
    before = shown(disk_of(files))
    monkeypatch.setattr(f"qindex.tools.{place}", planted)
    states = list(crash_states(record(files, case.to), window=2, random_per_point=1))

    def explore() -> None:
        for state in states[::-1]:
            check(name, state, before)

    with pytest.raises((AssertionError, qindex.StoreError)):
        explore()
