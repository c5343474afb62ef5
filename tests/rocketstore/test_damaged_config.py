"""Offsets, checkpoint and note damaged in every way: no message is lost, what can be told from
sound content is told, by name, and a damaged file is not dropped without a copy.

Nightly every bit and every length, else a part of them, which rotates.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from journal.errors import StorageError
from journal.findings import Cause
from journal.fs.files import PathLike
from rocketstore import Store
from rocketstore.verify import verify
from tests.damage.harms import (
    Files,
    Harm,
    cut,
    doubled,
    flipped,
    overwritten,
    removed,
    replaced,
)
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.damage import attack, kind_of, sound_store, touched
from tests.rocketstore.support import TINY, Clock, open_tiny

ROOT = Path("/s")
NOW = 1_700_000_000_000
DUE = NOW + 3000
"""Messages of level 1 (a second) are to be delivered, those of level 2 (five) are not."""
OFFSETS = "config/consumerOffset.json"
LOCAL = "config/localOffset.json"
DELAY = "config/delayOffset.json"
NOTE = "config/rocketstore.json"
FILES = [OFFSETS, LOCAL, DELAY, NOTE, "checkpoint"]


@cache
def sound_files() -> tuple[Files, frozenset[str]]:
    """Offsets of two groups, committed twice, so that each file has a .bak; a delayed message that
    was delivered, and one that waits."""
    fs = MemoryFileSystem(root="/")
    with open_tiny(ROOT, fs=fs, clock=Clock(NOW)) as store:
        for number in range(8):
            store.put("T", b"%d" % number)
        store.put("D", b"delivered", delay=1)
        store.put("D", b"delivered too", delay=1)
        store.put("D", b"waits", delay=2)
        for offset in (3, 5):
            store.commit_offset("one", "T", 0, offset)
            store.commit_offset("two", "T", 0, offset + 1)
            store.commit_offset("mine", "T", 0, offset, broadcast=True)
            assert store.deliver_due(DUE) == (2 if offset == 3 else 0)
            if offset == 5:
                # Another level that has begun: the file is written once more.
                store.put("D", b"third", delay=1)
                assert store.deliver_due(DUE) == 1
            store.checkpoint()
    tree = dict(fs.tree("/s"))
    files = {name: inode.content() for name, inode in tree.items() if inode.entries is None}
    assert {OFFSETS, LOCAL, DELAY, OFFSETS + ".bak", DELAY + ".bak"} <= files.keys()
    return files, frozenset(name for name, inode in tree.items() if inode.entries is not None)


def file_system(files: Files) -> MemoryFileSystem:
    return MemoryFileSystem(files, sound_files()[1], root="/s")


Seen = tuple[int, int, int, list[bytes]]
"""The offsets of both groups and the broadcast one; what of topic D there is after all that was
due was delivered."""


def seen(store: Store) -> Seen:
    if not store.options.read_only:
        store.deliver_due(DUE)
    return (
        store.fetch_offset("one", "T", 0),
        store.fetch_offset("two", "T", 0),
        store.fetch_offset("mine", "T", 0, broadcast=True),
        [message.body for message in store.messages("D", 0)],
    )


def told_of(fs: MemoryFileSystem, path: str) -> bool:
    return any(one.path == f"/s/{path}" for one in verify(ROOT, fs=fs, **TINY))


def judge(harm: Harm) -> tuple[bool, bool]:
    """Verify, open in each way, repair, and open again; gives whether the harm was told of, and
    whether a user sees anything of it. All bodies are there, whatever happens."""
    sound, _ = sound_files()
    path, files = harm.path, harm.files
    with open_tiny(ROOT, fs=file_system(sound)) as store:
        right = seen(store)
    told = told_of(file_system(files), path)
    with open_tiny(ROOT, fs=file_system(files), read_only=True) as store:
        assert told == any(one.path == f"/s/{path}" for one in store.findings)
    visible = False
    for repair in (False, True):
        fs = file_system(files)
        with open_tiny(ROOT, fs=fs, repair=repair) as store:
            found = seen(store)
            assert [one.body for one in store.messages("T", 0)] == [b"%d" % n for n in range(8)]
            assert set(found[3]) == set(right[3])
            visible |= found != right
            store.commit_offset("two", "T", 0, 7)
            store.commit_offset("mine", "T", 0, 6, broadcast=True)
        damage = told and any(
            one.cause is Cause.DAMAGE for one in verify(ROOT, fs=file_system(files), **TINY)
        )
        aside = [name for name, _ in fs.tree("/s") if name.startswith("quarantine/")]
        assert bool(aside) == (repair and damage), aside
        if repair:
            name = f"quarantine/{path.replace('/', '~')}"
            assert all(one.startswith(name) for one in aside)
            assert all(dict(fs.tree("/s"))[one].content() == files[path] for one in aside)
        with open_tiny(ROOT, fs=fs) as store:
            assert not [one for one in store.findings if repair or one.path == f"/s/{path}"]
            assert store.fetch_offset("two", "T", 0) == 7
            assert store.fetch_offset("one", "T", 0) == found[0]
    return told, visible


def harms(path: str) -> Iterator[tuple[str, Harm]]:
    """Every kind of harm to a file, with the name of its kind."""
    files, _ = sound_files()
    data = files[path]
    used = len(data.rstrip(b"\0"))
    step = by_tier(quick=97, all=9 if used < 400 else 43, nightly=1)
    for bit in part(range(8 * min(len(data), used + 40)), step, path):
        yield "flip", flipped(files, path, bit)
    for length in part(range(min(used + 1, len(data))), step, path):
        yield "cut", cut(files, path, length)
    for start in range(0, used, 64):
        yield "zeros", overwritten(files, path, start, bytes(64), "64 bytes zero")
    yield "gone", removed(files, path)
    yield "doubled", doubled(files, path)
    for other in FILES:
        if other != path:
            yield "exchanged", replaced(files, path, other)


@pytest.mark.parametrize("path", FILES)
def test_every_way_of_damage(path: str) -> None:
    counts: dict[str, Counter[tuple[bool, bool]]] = {}
    for what, harm in harms(path):
        counts.setdefault(what, Counter())[judge(harm)] += 1
    for what, count in counts.items():
        total = count.total()
        told = count[True, True] + count[True, False]
        print(f"{path}, {what}: {total} tried, {told} told, {count[False, True]} seen and not told")
        if what in ("cut", "zeros", "doubled", "gone"):
            assert not count[False, True], what
    if path in (NOTE, "checkpoint"):
        assert not any(seen for count in counts.values() for _, seen in count)
    if path == NOTE:
        assert counts["flip"].total() == counts["flip"][True, False]
    if path in (OFFSETS, LOCAL, DELAY):
        # A digit for a digit, a letter for a letter: JSON has no checksum.
        assert counts["flip"][True, True] + counts["flip"][True, False] > 0


@pytest.mark.parametrize("path", [OFFSETS, LOCAL, DELAY])
def test_one_damaged_number_costs_one_offset(path: str) -> None:
    """What makes sense stays, though nothing can be read of the rest."""
    content = json.loads(sound_files()[0][path])
    table = content["offsetTable"]
    group = table if path == DELAY else table.setdefault("T@two", {"0": 6})
    group["x"] = "y"
    files = {**sound_files()[0], path: json.dumps(content).encode()}
    fs = file_system(files)
    assert told_of(file_system(files), path)
    with open_tiny(ROOT, fs=file_system(sound_files()[0])) as store:
        right = seen(store)
    with open_tiny(ROOT, fs=fs, repair=True) as store:
        assert [one.path for one in store.findings] == [f"/s/{path}"]
        assert "quarantine" in store.findings[0].consequence
        assert seen(store) == right
    with open_tiny(ROOT, fs=fs) as store:
        assert not store.findings
        assert seen(store) == right


class _DiesAtRename(MemoryFileSystem):
    """The process dies when it is about to put a new file in the place of ``path``."""

    path = ""

    def rename(self, source: PathLike, target: PathLike, /) -> None:
        if self.path and os.fspath(target) == self.path:
            raise KeyboardInterrupt
        super().rename(source, target)


def test_a_damaged_file_does_not_take_the_place_of_its_bak() -> None:
    """A save that is cut short leaves the older offsets, though the newest ones were damaged."""
    files, directories = sound_files()
    damaged = {**files, OFFSETS: b"{half"}
    fs = _DiesAtRename(damaged, directories, root="/s")
    store = open_tiny(ROOT, fs=fs)
    store.commit_offset("one", "T", 0, 6)
    fs.path = f"/s/{OFFSETS}"
    with pytest.raises(KeyboardInterrupt):
        store.checkpoint()
    left = {name: one.content() for name, one in fs.tree("/s") if one.entries is None}
    with open_tiny(ROOT, fs=file_system(left)) as store:
        assert store.fetch_offset("one", "T", 0) == 3
        (finding,) = [one for one in store.findings if one.path == f"/s/{OFFSETS}"]
        assert finding.consequence == "the older offsets in its .bak count"


def test_a_repair_that_can_not_set_aside_says_so() -> None:
    files, directories = sound_files()

    class Refusing(MemoryFileSystem):
        def mkdir(self, path: PathLike, /) -> None:
            raise PermissionError(13, "Permission denied", os.fspath(path))

    fs = Refusing({**files, OFFSETS: b"{half"}, directories, root="/s")
    with pytest.raises(StorageError):
        open_tiny(ROOT, fs=fs, repair=True)


def copies(name: str) -> Iterator[str]:
    """Other names of its kind that a copy of a file may have: behind the last one, far behind."""
    directory, _, base = name.rpartition("/")
    if not base.isdigit():
        yield name + ".bak" if name.endswith(".json") else name + "2"
        return
    size = {"commitlog": 4096, "consumequeue": 200}.get(kind_of(name), 1)
    others = [
        int(one.rpartition("/")[2]) for one in sound_store().files if one.startswith(directory)
    ]
    for number in (max(others) + size, max(others) + 9 * size, max(others) + 1, 0):
        copy = f"{directory}/{number:0{len(base)}d}"
        if copy not in sound_store().files:
            yield copy


def test_every_file_copied() -> None:
    """A file under a second name: no message is lost, none has another body."""
    sound = sound_store()
    cases = [
        (name, copy, crashed)
        for name in sorted(sound.files)
        for copy in copies(name)
        for crashed in (False, True)
    ]
    for name, copy, crashed in part(cases, by_tier(quick=8, all=1, nightly=1), "copies"):
        files = {**sound.files, copy: sound.files[name]}
        outcome = attack(sound, files, crashed=crashed)
        assert outcome.lost == set(), (name, copy, crashed)


def test_a_log_file_between_the_others_is_gone_and_doubled() -> None:
    """Of files exchanged in a ring only their own messages are lost."""
    sound = sound_store()
    names = [name for name in sorted(sound.files) if kind_of(name) == "commitlog"]
    assert len(names) >= 2
    ring = dict(zip(names, [sound.files[one] for one in (*names[1:], names[0])], strict=True))
    outcome = attack(sound, {**sound.files, **ring})
    assert outcome.told
    assert outcome.lost <= set().union(*(touched(sound, name, 0, 4095) for name in names))
