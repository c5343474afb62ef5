"""Every bit of every file flipped, every file cut at every length, blocks of zeros, files gone,
swapped and doubled: open, verify and repair end soon, in bounded memory, and never give a body
that was not put. All of it nightly, else a sample of each kind of file, which rotates.

What is lost is held against what was damaged: without the log's own bytes nothing, and else only
the messages that the damage touched.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from journal.errors import DamageError, StoreError
from rocketstore import Store, StoredMessage
from rocketstore.commitlog_format import encode_record
from rocketstore.delay import SCHEDULE_TOPIC
from rocketstore.verify import verify, verify_parts
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import Clock, open_tiny

ROOT = Path("/s")
SECONDS = 5.0
"""Of processor time for all that is done with one damaged store of 20 KiB."""
MEMORY = 16 << 20
BODIES = [b"%03d" % number * (5 + number * 7 % 40) for number in range(44)]

Files = dict[str, bytes]


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
        list(verify_parts(store))
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


def sample(count: int, wanted: int, name: str = "") -> Sequence[int]:
    """Numbers below ``count``, spread evenly: about ``wanted``, fewer in the quick tier, all
    nightly."""
    some = by_tier(quick=wanted // 8 + 1, all=wanted, nightly=count)
    return part(range(count), max(1, count // some), name) if some else []


def touched(sound: Sound, name: str, first: int, last: int) -> set[int]:
    """The messages that have a byte from ``first`` to ``last`` of a log file."""
    start = int(Path(name).name)
    return {
        number
        for number, (place, size) in enumerate(sound.places)
        if place - start <= last and place + size - start > first
    }


def names_of(sound: Sound, kind: str) -> list[str]:
    return [name for name in sorted(sound.files) if kind_of(name) == kind]


TOLD = {"commitlog": 0.7, "consumequeue": 0.99, "index": 0.88}
"""The share of flipped bits that verify or open tells of. A sample has another one by chance."""
KINDS = ["commitlog", "consumequeue", "index", "config", "checkpoint", "lock"]
SAMPLE = {"commitlog": 300, "consumequeue": 80, "index": 120, "config": 40, "checkpoint": 10}


@pytest.mark.parametrize("crashed", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_flipped(kind: str, crashed: bool) -> None:
    sound = sound_store()
    told: Counter[bool] = Counter()
    lost: Counter[int] = Counter()
    names = names_of(sound, kind)
    wanted = SAMPLE.get(kind, 8) // (2 if crashed else 1) // len(names)
    for name in names:
        data = sound.files[name]
        # Behind the last record there is nothing to damage but zeros: a part of them is enough.
        end = min(len(data), len(data.rstrip(b"\0")) + 40)
        for bit in sample(8 * end, wanted, name):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            files = {**sound.files, name: bytes(changed)}
            outcome = attack(sound, files, crashed=crashed, sizes=bit % 3 > 0)
            told[outcome.told] += 1
            lost[len(outcome.lost)] += 1
            if kind == "commitlog":
                assert outcome.lost <= touched(sound, name, bit // 8, bit // 8), (name, bit)
            else:
                assert outcome.lost == set(), (name, bit)
    tried = told.total()
    share = told[True] / tried
    print(f"{kind}: {tried} flips, {share:.1%} told, messages lost: {dict(lost)}")
    expected = TOLD.get(kind, 0.0)
    assert share >= expected - 4 * sqrt(expected * (1 - expected) / tried)


@pytest.mark.parametrize("crashed", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_length(kind: str, crashed: bool) -> None:
    sound = sound_store()
    names = names_of(sound, kind)
    for name in names:
        data = sound.files[name]
        for length in sample(len(data), max(30 // len(names), 3), name):
            outcome = attack(sound, {**sound.files, name: data[:length]}, crashed=crashed)
            gone = touched(sound, name, length, len(data)) if kind == "commitlog" else set()
            assert outcome.lost <= gone, (name, length)
        for more in (b"\0", b"more" * 100):
            outcome = attack(sound, {**sound.files, name: data + more}, crashed=crashed)
            assert outcome.lost == set(), (name, more)


def test_a_queue_file_that_ends_within_a_unit() -> None:
    """Verify read the part of a unit at the end again and again, and did not come to an end."""
    sound = sound_store()
    name = names_of(sound, "consumequeue")[1]
    for length in range(1, 200, 7):
        files = {**sound.files, name: sound.files[name][:length]}
        fs = MemoryFileSystem(files, sound.directories, root="/s")
        assert verify(ROOT, fs=fs, **TINY_SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_of_zeros_or_noise(kind: str) -> None:
    sound = sound_store()
    for name in names_of(sound, kind):
        data = sound.files[name]
        for start in range(0, len(data), 512):
            for block in (bytes(512), bytes(range(256)) * 2):
                changed = data[:start] + block[: len(data) - start] + data[start + 512 :]
                outcome = attack(sound, {**sound.files, name: changed})
                gone = touched(sound, name, start, start + 511) if kind == "commitlog" else set()
                assert outcome.lost <= gone, (name, start)


def test_every_file_gone() -> None:
    sound = sound_store()
    for name in sorted(sound.files):
        files = {other: data for other, data in sound.files.items() if other != name}
        outcome = attack(sound, files)
        gone = touched(sound, name, 0, 4095) if kind_of(name) == "commitlog" else set()
        assert outcome.lost <= gone, name
        # The first file of the log may have expired; all else is missed.
        assert outcome.told or kind_of(name) in ("checkpoint", "lock", "config", "commitlog"), name


def test_every_directory_gone() -> None:
    sound = sound_store()
    for directory in sorted(sound.directories - {"commitlog"}):
        files = {name: data for name, data in sound.files.items() if not name.startswith(directory)}
        directories = frozenset(one for one in sound.directories if not one.startswith(directory))
        left = Sound(files, directories, sound.places)
        assert attack(left, files).lost == set(), directory


def test_files_swapped_and_doubled() -> None:
    """Each file in the place of each other one of its kind, and of one of another kind."""
    sound = sound_store()
    names = sorted(sound.files)
    pairs = [
        (one, other)
        for number, one in enumerate(names)
        for other in names[number + 1 :]
        if kind_of(one) == kind_of(other) or number % 5 == 0
    ]
    for one, other in part(pairs, by_tier(quick=24, all=3, nightly=1), "pairs"):
        data = sound.files[one], sound.files[other]
        for files in ({one: data[1], other: data[0]}, {other: data[0]}):
            outcome = attack(sound, {**sound.files, **files})
            gone: set[int] = set()
            for name in files:
                if kind_of(name) == "commitlog":
                    gone |= touched(sound, name, 0, 4095)
            assert outcome.lost <= gone, (one, other)


def test_memory_is_bounded() -> None:
    """Sizes, counts and offsets at their limits do not make anything large."""
    sound = sound_store()
    largest = [b"\x7f\xff\xff\xff", b"\x7f" + b"\xff" * 7]
    places = {"commitlog": [0, 20, 84], "consumequeue": [0, 8], "index": [24, 36, 40, 104]}
    tracemalloc.start(1)
    try:
        for kind, offsets in places.items():
            name = names_of(sound, kind)[0]
            for at in offsets:
                for value in largest:
                    changed = bytearray(sound.files[name])
                    changed[at : at + len(value)] = value
                    tracemalloc.reset_peak()
                    before, _ = tracemalloc.get_traced_memory()
                    attack(sound, {**sound.files, name: bytes(changed[: len(sound.files[name])])})
                    assert tracemalloc.get_traced_memory()[1] - before < MEMORY, (name, at, value)
    finally:
        tracemalloc.stop()


def test_verify_tells_what_it_should() -> None:
    """Bodies, units and index files, each named where it is wrong."""
    sound = sound_store()

    def findings(name: str, at: int) -> list[tuple[str, int, str]]:
        changed = bytearray(sound.files[name])
        changed[at] ^= 1
        fs = MemoryFileSystem({**sound.files, name: bytes(changed)}, sound.directories, root="/s")
        found = verify(ROOT, fs=fs, **TINY_SIZES)
        return [(finding.path, finding.offset, finding.what) for finding in found]

    log = names_of(sound, "commitlog")[0]
    place = sound.places[5][0]
    body = sound.files[log].index(BODIES[5])
    what = "the body does not match its checksum"
    assert findings(log, body) == [(f"/s/{log}", place, what)]
    what = "no record stands here, but sound ones follow"
    assert findings(log, place + 5) == [(f"/s/{log}", place, what)]
    what = "a record says that it stands elsewhere"
    assert findings(log, place + 35) == [(f"/s/{log}", place, what)]
    queue = names_of(sound, "consumequeue")[0]
    assert findings(queue, 25) == [
        ("/s/consumequeue/T/0", 20, "unit 1 does not agree with the log")
    ]
    index = names_of(sound, "index")[1]
    ((path, _, what),) = findings(index, 90)
    assert path == f"/s/{index}"
    assert what.startswith("the index does not agree with the log from offset")


def test_a_damaged_body_stops_only_itself() -> None:
    sound = sound_store()
    log = names_of(sound, "commitlog")[0]
    changed = bytearray(sound.files[log])
    changed[changed.index(BODIES[5])] ^= 1
    files = {**sound.files, log: bytes(changed)}
    del files["config/rocketstore.json"]
    fs = MemoryFileSystem(files, sound.directories, root="/s")
    with open_tiny(ROOT, fs=fs) as store:
        assert len(store.findings) == 1
        found = {
            message.offset: message for queue in (0, 1) for message in store.messages("T", queue)
        }
        assert len(found) == len(BODIES)
        for number, (place, _) in enumerate(sound.places):
            if number == 5:
                with pytest.raises(DamageError, match="checksum") as error:
                    _ = found[place].body
                assert error.value.offset == place
            else:
                assert found[place].body == BODIES[number]
        assert len(list(verify_parts(store))) >= 1


LIMITS = [
    {"queue_offset": 1 << 62},
    {"queue_offset": -(1 << 63)},
    {"queue_offset": (1 << 63) - 1},
    {"queue_id": -1},
    {"queue_id": (1 << 31) - 1},
    {"store_timestamp": (1 << 63) - 1},
    {"store_timestamp": -(1 << 63)},
    {"properties": b"DELAY\x01" + b"9" * 5000},
    {"properties": "DELAY\x01\N{SUPERSCRIPT TWO}".encode()},
    {"properties": b"DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x01" + b"9" * 5000},
    {"properties": b"DELAY\x013\x02REAL_TOPIC\x01a/b\x02REAL_QID\x010"},
    {"topic": b"../up"},
    {"topic": b"a/b"},
    {"topic": b".."},
    {"topic": b"\xff\xfe"},
    {"topic": b""},
]


@pytest.mark.parametrize("recovery", ["full", "compatible"])
@pytest.mark.parametrize("fields", LIMITS, ids=range(len(LIMITS)))
def test_sound_record_of_insane_content(fields: dict[str, Any], recovery: str) -> None:
    """Its frame and checksum are right, so it is part of the log; what it says can't be right."""
    whole: dict[str, Any] = {
        "topic": SCHEDULE_TOPIC.encode(),
        "body": b"body",
        "properties": b"DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010",
        "queue_id": 2,
        "queue_offset": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 1,
        "born_host": bytes(8),
        "store_timestamp": 1_700_000_000_000,
        "store_host": bytes(8),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    first = encode_record(**{**whole, **fields}, offset=0)
    second = encode_record(**{**whole, "topic": b"T", "queue_id": 0}, offset=len(first))
    log = (first + second).ljust(8192, b"\0")
    files = {f"commitlog/{0:020d}": log}
    fs = MemoryFileSystem(files, root="/s")
    options: dict[str, Any] = {"commitlog_file_size": 8192, "recovery": recovery}
    clock = Clock(1_700_000_000_000)
    # What the real store makes of it, need not be possible to go on from.
    may_refuse = contextlib.suppress(StoreError) if recovery != "full" else contextlib.nullcontext()
    with may_refuse:
        with open_tiny(ROOT, fs=fs, clock=clock, **options) as store:
            assert [message.body for message in store.messages("T", 0)] == [b"body"]
            with contextlib.suppress(StoreError):
                store.deliver_due(1 << 62)
            with contextlib.suppress(StoreError):
                store.put("T", b"more")
        with open_tiny(ROOT, fs=fs, clock=clock, **options) as store:
            assert b"body" in [message.body for message in store.messages("T", 0)]
    for name, _ in fs.tree("/s/consumequeue"):
        assert name.count("/") <= 2
        assert not {"", ".", ".."} & set(name.split("/"))


@pytest.mark.parametrize("topic", [b"/", b"/tmp", b"../..", b"a/../../../b", b".", b"\xff" * 127])
def test_no_topic_leads_out_of_the_directory(topic: bytes, tmp_path: Path) -> None:
    """On a real file system, for there a path may begin at its root."""
    root = tmp_path / "in" / "s"
    with open_tiny(root) as store:
        put = store.put("T" * len(topic), b"body", keys="k")
    log = root / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"T" * len(topic), topic))
    shutil.rmtree(root / "consumequeue")
    (root / "config" / "rocketstore.json").unlink()
    with open_tiny(root) as store:
        (key,) = store.queues()
        assert [message.offset for message in store.messages(*key)] == [put.offset]
        store.put("T", b"more")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert [path.name for path in root.parent.iterdir()] == ["s"]
    assert len(list((root / "consumequeue").iterdir())) == 2
