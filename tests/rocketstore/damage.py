"""A small store, and a judge of what becomes of it when its files are harmed.

The harms are those of :mod:`tests.damage.harms`. The harmed store is opened in each way, verified
and repaired, soon and in bounded memory, and never gives a body that was not put.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from journal.errors import DamageError, StoreError
from rocketstore import Store, StoredMessage
from rocketstore.verify import verify
from tests.damage.harms import Files, Harm
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import Clock, open_tiny

__all__ = [
    "BODIES",
    "ROOT",
    "TINY_SIZES",
    "Outcome",
    "Sound",
    "attack",
    "judge",
    "kind_of",
    "names_of",
    "sound_store",
    "touched",
]

ROOT = Path("/s")
SECONDS = 5.0
"""Of processor time for all that is done with one damaged store of 20 KiB."""
BODIES = [b"%03d" % number * (5 + number * 7 % 40) for number in range(44)]


@dataclass(frozen=True)
class Sound:
    """A sound store: its files, and where its messages stand (offset, size) by number."""

    files: Files
    directories: frozenset[str]
    places: list[tuple[int, int]]


def body_at(sound: Sound) -> dict[int, bytes]:
    return {place: BODIES[number] for number, (place, _) in enumerate(sound.places)}


@cache
def sound_store() -> Sound:
    """44 messages in two queues over two log files, several queue and index files."""
    fs = MemoryFileSystem(root="/")
    with open_tiny(ROOT, fs=fs, clock=Clock(step=900), name_clock=Clock(step=3)) as store:
        puts = [
            store.put("T", body, queue_id=number % 2, keys=f"k{number} all", tags="t")
            for number, body in enumerate(BODIES)
        ]
        store.commit_offset("g", "T", 0, 7)
    tree = dict(fs.tree("/s"))
    files = {name: inode.content() for name, inode in tree.items() if inode.entries is None}
    directories = frozenset(name for name, inode in tree.items() if inode.entries is not None)
    return Sound(files, directories, [(put.offset, put.size) for put in puts])


def kind_of(name: str) -> str:
    return name.partition("/")[0] if name.count("/") else name


@dataclass
class Outcome:
    """What became of one damaged store."""

    told: bool = False
    """Verify or open said so."""
    lost: set[int] = field(default_factory=set)
    """Messages that are not there after repair."""


def give(store: Store, right: dict[int, bytes]) -> set[int]:
    """Ask for everything; gives the offsets of the messages that came with their right bodies.
    Any other body must be an error."""
    found: set[int] = set()
    several: list[list[StoredMessage]] = [list(store.messages("T", queue)) for queue in (0, 1)]
    several += [store.query("T", "all", 1000), store.query("T", "all", 1000, exact=False)]
    several += [store.get("T", queue, 0, 32).messages for queue in (0, 1)]
    several.append([one for place in right if (one := store.lookup(place)) is not None])
    for message in (message for messages in several for message in messages):
        try:
            body = message.body
        except DamageError:
            continue
        assert right.get(message.offset) == body, "a body that was not put there"
        found.add(message.offset)
    return found


def attack(sound: Sound, files: Files, *, crashed: bool = False, sizes: bool = True) -> Outcome:
    """Open in each way, verify, repair, and go on."""
    right = body_at(sound)
    outcome = Outcome()
    started = time.process_time()
    files = {**files, "abort": b""} if crashed else files
    options = {} if sizes else dict.fromkeys(SIZE_OPTIONS)

    def fresh() -> MemoryFileSystem:
        return MemoryFileSystem(files, sound.directories, root="/s")

    try:
        outcome.told = bool(verify(ROOT, fs=fresh(), **{**TINY_SIZES, **options}))
    except StoreError:
        outcome.told = True
    for mode in ({"read_only": True}, {"recovery": "compatible"}):
        try:
            with open_tiny(ROOT, fs=fresh(), **mode, **options) as store:
                give(store, right)
        except StoreError:
            outcome.told = True
    fs = fresh()
    try:
        store = open_tiny(ROOT, fs=fs, **options)
    except StoreError:
        outcome.told = True
        store = open_tiny(ROOT, fs=fs, repair=True, **options)
    with store:
        outcome.told |= bool(store.findings)
        found = give(store, right)
        verify(ROOT, fs=fs, **{**TINY_SIZES, **options})
    with open_tiny(ROOT, fs=fs, **options) as store:
        assert give(store, right) == found
        added = store.put("T", b"more", keys="more")
        assert [hit.offset for hit in store.query("T", "more")] == [added.offset]
    outcome.lost = {number for number, place in enumerate(right) if place not in found}
    assert time.process_time() - started < SECONDS
    return outcome


TINY_SIZES = {
    "commitlog_file_size": 4096,
    "consumequeue_file_size": 200,
    "index_slots": 7,
    "index_entries": 12,
}
SIZE_OPTIONS = tuple(TINY_SIZES)


def touched(sound: Sound, name: str, first: int, last: int) -> set[int]:
    """The messages that have a byte from ``first`` to ``last`` of a log file."""
    start = int(Path(name).name)
    return {
        number
        for number, (place, size) in enumerate(sound.places)
        if place - start <= last and place + size - start > first
    }


def at_stake(sound: Sound, harm: Harm) -> set[int]:
    """The messages that a harm may cost: those of the log that it touched."""
    gone: set[int] = set()
    if kind_of(harm.path) == "commitlog" and harm.size:
        gone |= touched(sound, harm.path, harm.offset, harm.offset + harm.size - 1)
    for other in harm.others:
        if kind_of(other) == "commitlog" and other in sound.files:
            gone |= touched(sound, other, 0, len(sound.files[other]) - 1)
    return gone


def judge(sound: Sound, harm: Harm, *, crashed: bool = False, sizes: bool = True) -> Outcome:
    """Do all that :func:`attack` does to a harmed store.

    Raises :class:`AssertionError` for all that attack raises, and if a message is lost that the
    harm did not touch.
    """
    try:
        outcome = attack(sound, harm.files, crashed=crashed, sizes=sizes)
    except Exception as error:
        raise AssertionError(f"{harm}: {type(error).__name__}: {error}") from error
    assert outcome.lost <= at_stake(sound, harm), harm
    return outcome


def names_of(sound: Sound, kind: str) -> list[str]:
    return [name for name in sorted(sound.files) if kind_of(name) == kind]
