"""Rates of the RocketMQ store: ours, the real one in a warm JVM, and the floor, on the same work.

All three do it with one calling thread, each in turn within a round, on stores that are new in
each round. Bodies (100 bytes, all different) and keys exist before the clock starts, and it stops
when every message can be found: queues and index are part of a put, wherever it does them. Both
stores run as they do by default, their flush every half second included.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import rocketstore
from benchmarks.bodies import Bodies
from benchmarks.report import FLOOR, MANY, OURS, Report
from benchmarks.stopwatch import Found, Sample, Stopwatch
from journal.fs.files import REAL
from rocketstore.format.index_format import DEFAULT_ENTRIES, DEFAULT_SLOTS
from rocketstore.format.javahash import hash_code, index_hash_many
from rocketstore.index.index_file import IndexFile
from tests.rocketstore.real_store import RealStore

REAL_STORE = "rocketmq 4.9.3"
BATCH = 1000
THREADS = 16
BARS = {
    "put": 1.2,
    "put_keys": 1.0,
    "put_many": 3.0,
    "put_many_keys": 2.0,
    "index_build": 3.0,
    "get_32": 1.0,
    "query": 1.0,
}
"""Share of the real store's rate that ours is to reach. The real one has no batches of this kind:
``put_many`` is held against its single puts."""
_FIGURES = (*BARS, "get_32_keys")
_TOPICS = {
    "put": "P",
    "put_keys": "K",
    "put_many": "M",
    "put_many_keys": "N",
    "get_32": "P",
    "get_32_keys": "K",
}
"""Messages of K and N have keys: properties, which the real one decodes with the rest."""
REAL_SIZES = (1 << 30, 6_000_000, 5_000_000, 20_000_000)
_KEYS_AT_ONCE = 1_000_000
_WARM_ROUNDS = 2
_INDEX_ROUNDS = 3
_SYNC_SECONDS = 1.0


class Counts:
    """The work of a round, by its ``messages``."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.queries = messages // 4
        # Several times all of them, or the fastest would be done in no time.
        self.reads = messages * 4
        self.index_keys = messages * 25 // 2


class Ours:
    """Our store, under a directory of its own, made anew for each round."""

    def __init__(self, root: Path, counts: Counts) -> None:
        self._path = root / "ours"
        self._file = root / "index-file"
        self._counts = counts
        self._bodies = Bodies().take(counts.messages)
        self._keys = [f"order-{number}" for number in range(counts.messages)]
        self._unique = [f"{number:032X}" for number in range(counts.messages)]
        chance = random.Random(1)
        self._wanted = [chance.choice(self._keys) for _ in range(counts.queries)]
        self._store = rocketstore.open(self._path)

    def fresh(self) -> None:
        self.close()
        self._store = rocketstore.open(self._path)

    def close(self) -> None:
        self._store.close()
        shutil.rmtree(self._path)

    def put(self, name: str) -> Sample:
        """Put all messages; the clock stops when each can be found."""
        count, topic, watch = self._counts.messages, _TOPICS[name], Stopwatch()
        put, put_many = self._store.put, self._store.put_many
        with watch.running(count):
            if name == "put":
                for body in self._bodies:
                    put(topic, body)
            elif name == "put_keys":
                for body, key, unique in zip(self._bodies, self._keys, self._unique, strict=True):
                    put(topic, body, keys=key, unique_key=unique)
            else:
                for at in range(0, count, BATCH):
                    part = slice(at, at + BATCH)
                    more: dict[str, Any] = {}
                    if name == "put_many_keys":
                        more = {"keys": self._keys[part], "unique_keys": self._unique[part]}
                    put_many(topic, self._bodies[part], **more)
            # An answer holds every put before it: what waits for queues and index is done now.
            last = self._store.get(topic, 0, count - 1)
            assert len(last.messages) == 1
        return watch.rate()

    def get(self, name: str) -> Sample:
        get, topic, watch = self._store.get, _TOPICS[name], Stopwatch()
        bodies, at = 0, 0
        with watch.running(self._counts.reads):
            while bodies < 100 * self._counts.reads:
                result = get(topic, 0, at, 32)
                found = result.bodies
                bodies += sum(map(len, found))
                at = result.next_offset if found else 0
        assert bodies == 100 * self._counts.reads
        return watch.rate()

    def rate(self, name: str) -> Sample:
        if name == "query":
            return self.query()
        if name == "index_build":
            return self.index_build()
        return self.get(name) if name.startswith("get") else self.put(name)

    def query(self) -> Sample:
        query, watch = self._store.query, Stopwatch()
        hits = 0
        with watch.running():
            for key in self._wanted:
                hits += len(query("K", key))
        assert hits == len(self._wanted)
        return watch.rate(hits)

    def index_build(self) -> Sample:
        """Keys into one new IndexFile of the default size, hashing and all. The keys are made a
        million at a time, between the timed parts, here and there."""
        file = IndexFile.create(REAL, str(self._file), DEFAULT_SLOTS, DEFAULT_ENTRIES, None)
        seed, watch = hash_code("TopicTest#"), Stopwatch()
        chance, total = random.Random(2), self._counts.index_keys
        for first in range(0, total, _KEYS_AT_ONCE):
            count = min(_KEYS_AT_ONCE, total - first)
            keys = [f"{chance.getrandbits(64):x}" for _ in range(count)]
            numbers = np.arange(first, first + count, dtype=np.int64)
            with watch.running():
                file.put_many(
                    index_hash_many(keys, seed), numbers * 200, numbers + 1_700_000_000_000
                )
        assert file.header.count == total + 1
        file.close()
        self._file.unlink()
        return watch.rate(total)


class Real:
    """The real store in its virtual machine, warmed up with what it will be asked.

    Its threads run only while it is asked: they take nothing from what is measured beside it.
    """

    _ASKED: ClassVar = {"put_many": "put", "put_keys": "put-keys", "put_many_keys": "put-keys"}

    def __init__(self, store: RealStore, root: Path, counts: Counts) -> None:
        self._store = store
        self._root = root
        self._counts = counts
        self._stores = 0
        for _ in range(_WARM_ROUNDS):
            self.fresh()
            for name in _FIGURES:
                self.rate(name)

    def fresh(self, flush: str = "ASYNC_FLUSH") -> None:
        self._stores += 1
        self._answer("fresh", 0, self._root / f"real-{self._stores}", flush)

    def _answer(self, *words: object) -> list[str]:
        self._store.resume()
        answer = self._store.ask("bench", *words)
        self._store.pause()
        return answer

    def _ask(self, what: str, count: int, *words: object) -> Sample:
        rate, cpu_us, seen = self._answer(what, count, *words)
        assert what == "sync" or int(seen) == count, (what, count, seen)
        return Sample(float(rate), float(cpu_us), int(seen))

    def rate(self, name: str) -> Sample:
        counts = self._counts
        if name == "index_build":
            return self._ask("index", counts.index_keys, self._root / "20260101000000000")
        if name == "query":
            return self._ask("query", counts.queries, counts.messages)
        if name.startswith("get"):
            return self._ask("get", counts.reads, _TOPICS[name])
        topic = "N" if name == "put_many_keys" else "K"
        return self._ask(self._ASKED.get(name, name), counts.messages, topic)

    def sync(self, threads: int) -> Sample:
        return self._ask("sync", threads, _SYNC_SECONDS)


class Floor:
    """The records' bytes copied into a map, or synced into a file, with no store around them."""

    def __init__(self, root: Path, count: int) -> None:
        self._count = count
        with rocketstore.open(root / "sample", background=False) as store:
            store.put("P", bytes(100))
            store.put("K", bytes(100), keys="order-100000", unique_key="0" * 32)
            plain, keyed = (store.get(topic, 0, 0).messages[0] for topic in "PK")
            self.plain, self._keyed = plain.raw, keyed.raw
        shutil.rmtree(root / "sample")
        self.path = root / "floor"

    def rate(self, name: str) -> Sample:
        record = self._keyed if name.endswith("keys") else self.plain
        batch = BATCH if name.startswith("put_many") else 1
        data = record * batch
        size, watch = len(data), Stopwatch()
        end = self._count // batch * size
        with self.path.open("wb+") as file:
            file.truncate(end)
            view = mmap.mmap(file.fileno(), 0)
        with watch.running():
            for at in range(0, end, size):
                view[at : at + size] = data
        view.close()
        self.path.unlink()
        return watch.rate(self._count)

    def sync(self) -> Sample:
        watch, done = Stopwatch(), 0
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        with watch.running():
            end = time.perf_counter() + _SYNC_SECONDS
            while time.perf_counter() < end:
                os.pwrite(fd, self.plain, done * len(self.plain))
                os.fdatasync(fd)
                done += 1
        os.close(fd)
        self.path.unlink()
        return watch.rate(done)


def rates(report: Report, root: Path, counts: Counts, rounds: int, real: Real | None) -> None:
    """All rates, in turn within each round."""
    ours, floor = Ours(root, counts), Floor(root, counts.messages)
    # The bodies and keys are the benchmark's own: the collector need not walk them every round.
    gc.collect()
    gc.freeze()
    found = Found()
    for number in range(rounds):
        ours.fresh()
        if real is not None:
            real.fresh()
        for name in _FIGURES:
            if name == "index_build" and number >= _INDEX_ROUNDS:
                continue
            # Nobody is to pay for the dirty pages of the one before.
            os.sync()
            if real is not None:
                found.note(name, REAL_STORE, real.rate(name))
                os.sync()
            found.note(name, OURS, ours.rate(name))
            if name.startswith("put"):
                found.note(name, FLOOR, floor.rate(name))
    ours.close()
    for name, samples in found.items():
        unit = {"index_build": "keys/s", "query": "1/s"}.get(name, MANY)
        report.add(name, samples, unit=unit, comparable=[REAL_STORE])


def syncs(report: Report, root: Path, rounds: int, real: Real | None) -> None:
    """Puts that are on disk when they return: of one thread, and of several."""
    floor, found = Floor(root, 0), Found()
    names = {1: "put_fsync", THREADS: f"put_fsync_{THREADS}_threads"}
    if real is not None:
        real.fresh("SYNC_FLUSH")
    with rocketstore.open(root / "synced", durability="fsync") as store:
        for _ in range(rounds):
            for callers, name in names.items():
                found.note(name, OURS, _sync_threads(store, callers))
                if real is not None:
                    found.note(name, REAL_STORE, real.sync(callers))
            found.note("put_fsync", FLOOR, floor.sync())
    shutil.rmtree(root / "synced")
    for one, many in zip(*(found[name] for name in names.values()), strict=True):
        for who in many:
            ratio = Sample(many[who].value / one[who].value)
            found.note("fsync_threads_over_one", who, ratio)
    unit = {"fsync_threads_over_one": "times"}
    for name, samples in found.items():
        report.add(name, samples, unit=unit.get(name, MANY), comparable=[REAL_STORE])


def _sync_threads(store: rocketstore.Store, callers: int) -> Sample:
    watch, end = Stopwatch(), time.perf_counter() + _SYNC_SECONDS

    def put(_: int) -> int:
        done = 0
        while time.perf_counter() < end:
            store.put("S", bytes(100))
            done += 1
        return done

    with watch.running(), ThreadPoolExecutor(callers) as pool:
        done = sum(pool.map(put, range(callers)))
    return watch.rate(done)


def judge(report: Report) -> None:
    """Hold the rates against their bars. A share of the real store's rate by CPU time counts all
    threads of either process."""
    for name, limit in BARS.items():
        report.hold_ratio(name, REAL_STORE, limit)
