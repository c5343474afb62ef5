"""The short way of the usual put beside the general one; the clock, the lock, what waits."""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import shutil
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

import journal.memory.crc
import rocketstore
from journal.errors import DamageError, UsageError, WritesRefusedError
from journal.fs.files import RealFileSystem
from journal.locks.patience import PatientLock
from rocketstore import Store
from rocketstore.dispatcher import PENDING_MAX
from rocketstore.format.commitlog_format import COMMIT, ROLLBACK
from rocketstore.verify import verify
from tests.rocketstore.support import SIZES, Clock, open_tiny, store_files
from tests.waiting import WAIT

PREPARED = 4

USUAL: list[dict[str, Any]] = [
    {},
    {"keys": "one"},
    {"keys": "one two  three "},
    {"keys": ["one", "two"]},
    {"keys": " "},
    {"keys": []},
    {"keys": "标 x", "tags": "标签"},
    {"unique_key": "A" * 32},
    {"unique_key": "A" * 32, "keys": "k"},
    {"unique_key": "A" * 32, "keys": "k l", "tags": "t"},
    {"unique_key": "u", "tags": "t"},
    {"tags": "t"},
    {"queue_id": 3, "keys": "", "tags": "", "unique_key": ""},
]

HOSTS = ["127.0.0.1:1"] * 5 + ["127.0.0.1:1", "[::1]:1"] * 20


def put_all(store: Store, **general: Any) -> None:
    """More than are dispatched one by one, of several queues in turn."""
    for number, fields in enumerate(USUAL * 4):
        topic = ("T", "U", "T", "T")[number % 4]
        store.put(topic, b"x" * (number % 90), **fields, **general)


@pytest.mark.parametrize("host", ["127.0.0.1:10911", "[::1]:10911"])
@pytest.mark.parametrize("each", [True, False], ids=["one by one", "in columns"])
def test_both_ways_write_the_same_bytes(each: bool, host: str, tmp_path: Path) -> None:
    found = []
    ways: dict[str, dict[str, Any]] = {"usual": {}, "general": {"flag": 0}}
    for name, general in ways.items():
        root = tmp_path / name
        clock = Clock(step=3)
        sizes = {**SIZES, "store_host": host, "clock": clock, "name_clock": Clock()}
        with rocketstore.open(root, background=False, **sizes) as store:
            if each:
                for fields in USUAL:
                    store.put("T", b"body", **fields, **general)
                    assert store.query("T", "one") is not None
            else:
                put_all(store, **general)
        assert verify(root) == []
        found.append(dict(store_files(root)))
    assert found[0] == found[1]


def test_what_waits_is_found_by_queue_and_key_whatever_it_is(tmp_path: Path) -> None:
    """Transactions, delays, tags and several queues, dispatched together."""
    root = tmp_path / "s"
    with open_tiny(root, index_entries=500) as store:
        visible: dict[str, list[int]] = {"T": [], "U": []}
        for number in range(60):
            topic = "TU"[number % 7 == 0]
            kind = (0, 0, PREPARED, COMMIT, ROLLBACK)[number % 5]
            put = store.put(topic, b"%d" % number, keys=f"k{number}", tags="t", sys_flag=kind)
            if kind in (0, COMMIT):
                visible[topic].append(put.offset)
        store.put("T", b"later", keys="late", delay=2)
        plain = store.put("U", b"plain")
        visible["U"].append(plain.offset)
        for topic, offsets in visible.items():
            assert [message.offset for message in store.messages(topic, 0)] == offsets
        for number in range(60):
            hits = store.query("TU"[number % 7 == 0], f"k{number}")
            assert [hit.body for hit in hits] == ([b"%d" % number] if number % 5 != 4 else [])
        assert len(store.query("SCHEDULE_TOPIC_XXXX", "late")) == 1
        assert [m.body for m in store.get("T", 0, 0, tags="t").messages][:1] == [b"1"]
        assert store.get("U", 0, 0, tags="other").messages == []
    assert verify(root) == []


def test_a_full_batch_is_dispatched_by_the_put_that_fills_it(tmp_path: Path) -> None:
    with rocketstore.open(tmp_path / "s", background=False) as store:
        for number in range(PENDING_MAX):
            assert len(store._state.pending.offsets) == number
            store.put("T", b"")
        assert not store._state.pending.offsets
        assert store._parts.queues["T", 0].max_offset == PENDING_MAX


@pytest.mark.rotates(3)
@pytest.mark.parametrize("count", [5, 40], ids=["one by one", "in columns"])
@pytest.mark.parametrize("at", [0, 4, 28, 39, 84, 97])
def test_what_waits_and_is_overwritten_by_somebody_else(
    at: int, count: int, tmp_path: Path
) -> None:
    """Size, magic, offset, flags, length of the body and of the topic: the message is named, no
    more is written, and open with ``repair`` finds all the others."""
    root = tmp_path / "s"
    store = rocketstore.open(root, background=False)
    puts = [store.put("A", b"some body", keys="k", born_host=host) for host in HOSTS[:count]]
    log = min((root / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(puts[3].offset + at)
        byte = file.read(1)
        file.seek(puts[3].offset + at)
        file.write(bytes((byte[0] ^ 16,)))
    for _ in range(2):
        with pytest.raises(DamageError) as error:
            store.query("A", "k")
        assert error.value.offset == puts[3].offset
    with pytest.raises(WritesRefusedError):
        store.put("A", b"")
    store.close()
    with rocketstore.open(root, background=False, repair=True) as store:
        found = {message.offset for message in store.query("A", "k", count)}
        assert found >= {put.offset for put in puts} - {puts[3].offset}
        store.put("A", b"goes on", keys="k")


class NoZeros(RealFileSystem):
    """Has room for no zeros; ``tried``: the bytes of each such write."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[int] = []

    def pwrite(self, fd: int, data: object, offset: int, /) -> int:
        assert isinstance(data, bytes | bytearray | memoryview)
        if not any(bytes(data)):
            self.tried.append(len(data))
            raise OSError(errno.EIO, "no zeros")
        return RealFileSystem.pwrite(fd, data, offset)


@pytest.mark.parametrize(("durability", "piece"), [("os", 64 << 10), ("fsync", 16 << 10)])
def test_zeros_are_written_ahead_where_they_can_be(
    durability: str, piece: int, tmp_path: Path
) -> None:
    """Pieces of a size, one behind the other; without them puts go on."""
    fs = NoZeros()
    options: dict[str, Any] = {"durability": durability, "background": False, "fs": fs}
    with rocketstore.open(tmp_path / "s", **options) as store:
        for number in range(250):
            store.put("T", b"%d" % number * 300)
        used = store.max_offset
        assert used > 2 * (64 << 10)
        assert set(fs.tried) == {piece}
        assert used - piece <= sum(fs.tried) - piece <= used
        assert [message.body for message in store.messages("T", 0)] == [
            b"%d" % number * 300 for number in range(250)
        ]
    assert verify(tmp_path / "s") == []


def test_bodies_of_a_kind_of_bytes(tmp_path: Path) -> None:
    class Mine(bytes):
        pass

    with open_tiny(tmp_path / "s") as store:
        store.put("T", Mine(b"one"))
        store.put_many("T", [Mine(b"two"), b"three"])
        store.put_batch("T", [(0, Mine(b"four"), Mine(b"KEYS\x01k"))])
        assert store.get("T", 0, 0).bodies == [b"one", b"two", b"three", b"four"]
        assert [one.body for one in store.query("T", "k")] == [b"four"]


def test_store_times_wait_for_a_clock_that_is_a_little_back(tmp_path: Path) -> None:
    clock = Clock()
    start = clock.now
    with open_tiny(tmp_path / "s", clock=clock) as store:
        times = []
        for moved in (0, 5, -3, -500, 507):
            clock.now += moved
            times.append(store.put("T", b"").store_timestamp - start)
            times.append(store.put("T", b"", flag=1).store_timestamp - start)
            times.append(store.put_many("T", [b""])[0].store_timestamp - start)
        assert times == [0] * 3 + [5] * 9 + [9] * 3
        stored = [message.store_timestamp - start for message in store.messages("T", 0)]
        assert stored == times
        assert [m.born_timestamp for m in store.messages("T", 0)] == [
            m.store_timestamp for m in store.messages("T", 0)
        ]
    # Also not over a restart: the newest record counts.
    clock.now = start - 1
    with open_tiny(tmp_path / "s", clock=clock) as store:
        assert store.put("T", b"").store_timestamp - start == times[-1]


def test_equal_topics_are_one_topic(tmp_path: Path) -> None:
    """Also those that are other objects, and another queue of the topic of the put before."""
    with open_tiny(tmp_path / "s") as store:
        for number in range(8):
            topic = "nowhere" if number % 3 else "".join(("no", "where"))
            put = store.put(topic, b"%d" % number, queue_id=number // 2 % 2)
            assert put.queue_offset == number // 4 * 2 + number % 2
        bodies = [[m.body for m in store.messages("nowhere", queue_id)] for queue_id in (0, 1)]
        assert bodies == [[b"0", b"1", b"4", b"5"], [b"2", b"3", b"6", b"7"]]


def test_the_system_clock(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        before = store.options.clock()
        put = store.put("T", b"")
        assert before <= put.store_timestamp <= store.options.clock()


def test_threads_that_meet_a_new_queue_share_its_numbers(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with rocketstore.open(tmp_path / "s", background=False) as store:
            gate = threading.Barrier(4)

            def run() -> None:
                for topic in range(50):
                    gate.wait()
                    for _ in range(3):
                        store.put(f"T{topic}", b"")

            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for topic in range(50):
                numbers = [message.queue_offset for message in store.messages(f"T{topic}", 0)]
                assert numbers == list(range(12))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.interpreted  # a compiled method can't be replaced
@pytest.mark.parametrize("taken", [False, True])
def test_an_interrupt_leaves_the_lock_free(
    taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tiny(tmp_path / "s") as store:
        store.put("T", b"the first of its queue")
        real = PatientLock.take

        def interrupted(lock: PatientLock) -> bool:
            # By a signal, before it is taken or right after.
            if taken:
                real(lock)
            raise KeyboardInterrupt

        monkeypatch.setattr(PatientLock, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put("T", b"")
        monkeypatch.setattr(PatientLock, "take", real)
        other = threading.Thread(target=store.put, args=("T", b"from another thread"))
        other.start()
        other.join(WAIT)
        assert not other.is_alive()
        bodies = [message.body for message in store.messages("T", 0)]
        assert bodies[1:] == [b"from another thread"]


def test_a_refused_put_leaves_the_lock_free_and_the_clock_sound(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s", max_message_size=200) as store:
        ways: list[dict[str, Any]] = [{}, {"flag": 1}]
        for wrong in ways:
            with pytest.raises(UsageError, match="the limit is 200"):
                store.put("T", b"x" * 300, **wrong)
        done = threading.Thread(target=store.put, args=("T", b""))
        done.start()
        done.join(WAIT)
        assert store.get("T", 0, 0).max_offset == 1


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store, pytest.raises(TypeError, match="colour"):
        store.put("T", b"", colour="red")  # type: ignore[call-arg]


def test_properties_of_all_lengths(tmp_path: Path) -> None:
    with rocketstore.open(tmp_path / "s", background=False) as store:
        for length in range(1, 600):
            store.put("T", b"", keys="k" * length)
        for message, length in zip(store.messages("T", 0), itertools.count(1), strict=False):
            assert message.keys == ["k" * length]
            message.check()


def test_crc_is_zlibs_with_and_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [os.urandom(size) for size in (0, 1, 100, 5000)]
    expected = [zlib.crc32(part) for part in data]
    assert [journal.memory.crc.crc32(part) for part in data] == expected
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(journal.memory.crc).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(journal.memory.crc)


def test_the_short_way_after_a_reopen_goes_on_counting(tmp_path: Path) -> None:
    root = tmp_path / "s"
    for number in range(3):
        with open_tiny(root) as store:
            assert store.put("T", b"").queue_offset == 2 * number
            assert store.put("T", b"", flag=1).queue_offset == 2 * number + 1
    shutil.rmtree(root / "consumequeue")
    with open_tiny(root) as store:
        assert store.put("T", b"").queue_offset == 6
