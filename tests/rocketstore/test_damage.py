"""Every bit of every file flipped, every file cut at every length, blocks of zeros, files gone,
swapped and doubled: open, verify and repair end soon, in bounded memory, and never give a body
that was not put. All of it nightly, else a sample of each kind of file, which rotates.

What is lost is held against what was damaged: without the log's own bytes nothing, and else only
the messages that the damage touched.
"""

from __future__ import annotations

import contextlib
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from journal.errors import DamageError, StoreError
from rocketstore.format.commitlog_format import encode_record
from rocketstore.format.delay import SCHEDULE_TOPIC
from rocketstore.verify import verify
from tests.damage.harms import (
    appended,
    cut,
    flipped,
    overwritten,
    removed,
    replaced,
    swapped,
)
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.damage import (
    BODIES,
    ROOT,
    TINY_SIZES,
    Sound,
    attack,
    judge,
    kind_of,
    names_of,
    sound_store,
)
from tests.rocketstore.support import Clock, open_tiny

MEMORY = 16 << 20


def sample(count: int, wanted: int, name: str = "") -> Sequence[int]:
    """Numbers below ``count``, spread evenly: about ``wanted``, fewer in the quick tier, all
    nightly."""
    some = by_tier(quick=wanted // 16 + 1, all=wanted, nightly=count)
    return part(range(count), max(1, count // some), name) if some else []


TOLD = {"commitlog": 0.7, "consumequeue": 0.99, "index": 0.88}
"""The share of flipped bits that verify or open tells of. A sample has another one by chance."""
KINDS = ["commitlog", "consumequeue", "index", "config", "checkpoint", "lock"]
SAMPLE = {"commitlog": 300, "consumequeue": 80, "index": 120, "config": 40, "checkpoint": 10}


@pytest.mark.rotates(2)
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
            harm = flipped(sound.files, name, bit)
            outcome = judge(sound, harm, crashed=crashed, sizes=bit % 3 > 0)
            told[outcome.told] += 1
            lost[len(outcome.lost)] += 1
    tried = told.total()
    share = told[True] / tried
    print(f"{kind}: {tried} flips, {share:.1%} told, messages lost: {dict(lost)}")
    expected = TOLD.get(kind, 0.0)
    assert share >= expected - 4 * sqrt(expected * (1 - expected) / tried)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("crashed", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_length(kind: str, crashed: bool) -> None:
    sound = sound_store()
    names = names_of(sound, kind)
    for name in names:
        size = len(sound.files[name])
        for length in sample(size, max(30 // len(names), 3), name):
            judge(sound, cut(sound.files, name, length), crashed=crashed)
        for more in (b"\0", b"more" * 100):
            judge(sound, appended(sound.files, name, more, "more behind"), crashed=crashed)


def test_a_queue_file_that_ends_within_a_unit() -> None:
    """Verify read the part of a unit at the end again and again, and did not come to an end."""
    sound = sound_store()
    name = names_of(sound, "consumequeue")[1]
    for length in range(1, 200, 7):
        files = cut(sound.files, name, length).files
        fs = MemoryFileSystem(files, sound.directories, root="/s")
        assert verify(ROOT, fs=fs, **TINY_SIZES)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_block_of_zeros_or_noise(kind: str) -> None:
    sound = sound_store()
    for name in names_of(sound, kind):
        for start in range(0, len(sound.files[name]), 512):
            for what, block in (("zeros", bytes(512)), ("noise", bytes(range(256)) * 2)):
                judge(sound, overwritten(sound.files, name, start, block, what))


def test_every_file_gone() -> None:
    sound = sound_store()
    for name in sorted(sound.files):
        outcome = judge(sound, removed(sound.files, name))
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
        judge(sound, swapped(sound.files, one, other))
        judge(sound, replaced(sound.files, other, one))


@pytest.mark.rotates(2)
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
    what = "there is no record here, but sound ones follow"
    assert findings(log, place + 5) == [(f"/s/{log}", place, what)]
    what = "a record says that it is elsewhere"
    assert findings(log, place + 35) == [(f"/s/{log}", place, what)]
    queue = names_of(sound, "consumequeue")[0]
    assert findings(queue, 25) == [
        ("/s/consumequeue/T/0/00000000000000000000", 20, "unit 1 does not agree with the log")
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
        assert len(verify(ROOT, fs=fs)) >= 1


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
