"""The RocketMQ store: ours against the real one in a warm JVM, and against the floor.

``python -m benchmarks.rocketstore [--quick] [--index-keys N] [--largest N] [--json FILE]``

Every figure is taken in rounds, each contender in turn within a round, one thread each, in one
run; a figure is the median of its rounds. The floor is a plain copy of the same bytes into a
memory map, so it is what the machine allows from Python without any store. Without Maven and Java
the real store is left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import rocketstore
from journal.files import REAL
from rocketstore.index_file import IndexFile
from rocketstore.index_format import DEFAULT_ENTRIES, DEFAULT_SLOTS
from rocketstore.javahash import hash_code, index_hash_many
from tests.rocketstore.real_store import RealStore, class_path

DEFAULT_SIZES = (1 << 30, 6_000_000, 5_000_000, 20_000_000)
BODY = bytes(100)
BATCH = 1000
BARS = {
    "put": 0.3,
    "put_keys": 0.3,
    "put_many": 0.8,
    "put_many_keys": 0.6,
    "index_build": 1.2,
    "get_32": 0.3,
    "query": 0.3,
}
"""Share of the real store's rate that ours is to reach."""


@dataclass(slots=True)
class Figure:
    """Rates (calls or messages a second) of each contender, one for each round."""

    name: str
    ours: list[float] = field(default_factory=list)
    real: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        found: dict[str, object] = {"figure": self.name, "unit": "1/s"}
        for who in ("ours", "real", "floor"):
            rates: list[float] = getattr(self, who)
            found[who] = round(statistics.median(rates)) if rates else None
        if self.real:
            share = statistics.median(
                ours / real for ours, real in zip(self.ours, self.real, strict=True)
            )
            found["share_of_real"] = round(share, 2)
            found["bar"] = BARS[self.name]
            found["met"] = share >= BARS[self.name]
        return found


class Ours:
    """One store under a directory of its own, made anew for each round."""

    def __init__(self, root: Path, count: int) -> None:
        self.root = root / "ours"
        self.count = count
        self.keys = [f"order-{number}" for number in range(count)]
        self.unique = [f"{number:032X}" for number in range(count)]
        self.store: rocketstore.Store | None = None
        self.fresh()

    def fresh(self) -> None:
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.root, ignore_errors=True)
        self.store = rocketstore.open(self.root, background=False)

    @property
    def opened(self) -> rocketstore.Store:
        assert self.store is not None
        return self.store

    def put(self) -> float:
        put = self.opened.put
        start = time.perf_counter()
        for _ in range(self.count):
            put("P", BODY)
        self.opened.get("P", 0, 0, 1)
        return self.count / (time.perf_counter() - start)

    def put_keys(self) -> float:
        put = self.opened.put
        start = time.perf_counter()
        for key, unique in zip(self.keys, self.unique, strict=True):
            put("K", BODY, keys=key, unique_key=unique)
        self.opened.get("K", 0, 0, 1)
        return self.count / (time.perf_counter() - start)

    def put_many(self) -> float:
        bodies = [BODY] * BATCH
        start = time.perf_counter()
        for _ in range(0, self.count, BATCH):
            self.opened.put_many("M", bodies)
        return self.count / (time.perf_counter() - start)

    def put_many_keys(self) -> float:
        bodies = [BODY] * BATCH
        start = time.perf_counter()
        for at in range(0, self.count, BATCH):
            part = slice(at, at + BATCH)
            self.opened.put_many("N", bodies, keys=self.keys[part], unique_keys=self.unique[part])
        return self.count / (time.perf_counter() - start)

    def get_32(self) -> float:
        seen = at = 0
        start = time.perf_counter()
        while seen < self.count:
            result = self.opened.get("P", 0, at, 32)
            for message in result.messages:
                seen += len(message.body) == 100
            at = result.next_offset
        return seen / (time.perf_counter() - start)

    def query(self) -> float:
        chance = random.Random(1)
        keys = [chance.choice(self.keys) for _ in range(self.count // 4)]
        query = self.opened.query
        start = time.perf_counter()
        for key in keys:
            assert query("K", key)
        return len(keys) / (time.perf_counter() - start)


class Floor:
    """The records' bytes copied into a map, with no store around it."""

    def __init__(self, root: Path, count: int) -> None:
        self.count = count
        with rocketstore.open(root / "sample", background=False) as store:
            places = [
                store.put("P", BODY),
                store.put("K", BODY, keys="order-100000", unique_key="0" * 32),
            ]
            plain, keyed = (store.lookup(place.offset) for place in places)
            assert plain is not None
            assert keyed is not None
            self.records = {"put": plain.raw, "put_keys": keyed.raw}
        self.path = root / "floor"

    def rate(self, name: str) -> float:
        record = self.records["put_keys" if name.endswith("keys") else "put"]
        batch = BATCH if name.startswith("put_many") else 1
        data = record * batch
        size = len(data)
        with self.path.open("wb+") as file:
            file.truncate(self.count // batch * size)
            view = mmap.mmap(file.fileno(), 0)
        start = time.perf_counter()
        for at in range(0, self.count // batch * size, size):
            view[at : at + size] = data
        taken = time.perf_counter() - start
        view.close()
        self.path.unlink()
        return self.count / taken


def build_index(root: Path, keys: list[str]) -> float:
    """Keys a second into one new IndexFile of the default size, hashing included."""
    path = root / "index-file"
    path.unlink(missing_ok=True)
    file = IndexFile.create(REAL, str(path), DEFAULT_SLOTS, DEFAULT_ENTRIES, None)
    count = len(keys)
    offsets = np.arange(count, dtype=np.int64) * 200
    times = np.arange(count, dtype=np.int64) + 1_700_000_000_000
    seed = hash_code("TopicTest#")
    step = 1 << 17
    start = time.perf_counter()
    for at in range(0, count, step):
        part = slice(at, at + step)
        file.put_many(index_hash_many(keys[part], seed), offsets[part], times[part])
    taken = time.perf_counter() - start
    file.close()
    path.unlink()
    return count / taken


def lookup_by_size(root: Path, largest: int) -> list[dict[str, object]]:
    """Microseconds of one lookup by key, and by a second's time range, as a store grows."""
    rows: list[dict[str, object]] = []
    chance = random.Random(3)
    now = [1_700_000_000_000]
    with rocketstore.open(root / "growing", background=False, clock=lambda: now[0]) as store:
        count, size = 0, 1000
        while size <= largest:
            while count < size:
                now[0] += 100
                keys = [f"order-{number}" for number in range(count, count + BATCH)]
                store.put_many("G", [BODY] * BATCH, keys=keys)
                count += BATCH
            wanted = [f"order-{chance.randrange(count)}" for _ in range(5000)]
            spans = []
            for _ in range(5):
                start = time.perf_counter()
                for key in wanted:
                    assert len(store.query("G", key)) == 1
                spans.append((time.perf_counter() - start) / len(wanted) * 1e6)
            begin = 1_700_000_000_000 + 50 * count // BATCH
            start = time.perf_counter()
            for key in wanted:
                store.query("G", key, 32, begin, begin + 1000)
            ranged = (time.perf_counter() - start) / len(wanted) * 1e6
            rows.append(
                {
                    "figure": "lookup_by_key",
                    "messages": count,
                    "microseconds": round(statistics.median(spans), 2),
                    "with_time_range": round(ranged, 2),
                }
            )
            size *= 10
    shutil.rmtree(root / "growing")
    return rows


def plot(rows: list[dict[str, object]]) -> str:
    """A text plot of lookup time over the size of the store."""
    highest = max(float(str(row["microseconds"])) for row in rows)
    lines = ["lookup by key, us"]
    for row in rows:
        value = float(str(row["microseconds"]))
        bar = "#" * round(40 * value / highest)
        lines.append(f"{row['messages']:>12,} messages  {bar:<40}  {value}")
    return "\n".join(lines)


def measure(root: Path, count: int, rounds: int, index_keys: int) -> tuple[list[Figure], str]:
    """All figures that have a bar, and why the real store is missing, if it is."""
    figures = {name: Figure(name) for name in BARS}
    chance = random.Random(2)
    keys = [f"{chance.getrandbits(64):x}" for _ in range(index_keys)]
    ours, floor = Ours(root, count), Floor(root, count)
    # The keys above are the benchmark's own: the collector need not walk them in every round.
    gc.collect()
    gc.freeze()
    path, reason = class_path()
    real = RealStore(path, root / "real", DEFAULT_SIZES) if path else None
    asked = {"put": "put", "put_keys": "put-keys", "get_32": "get", "query": "query"}

    def ask_real(name: str) -> float:
        assert real is not None
        if name == "index_build":
            return float(real.ask("bench", "index", index_keys, root / "20260101000000000")[0])
        name = name.replace("put_many", "put")
        calls = count // 4 if name == "query" else count
        return float(real.ask("bench", asked[name], calls)[0])

    try:
        if real is not None:
            for name in ("put", "put_keys", "get_32", "query", "index_build") * 2:
                ask_real(name)
        for _ in range(rounds):
            ours.fresh()
            for name, figure in figures.items():
                # Nobody is to pay for the dirty pages of the one before.
                os.sync()
                if real is not None:
                    real.resume()
                    figure.real.append(ask_real(name))
                    real.pause()
                    os.sync()
                call: Callable[[], float] | None = getattr(ours, name, None)
                figure.ours.append(call() if call is not None else build_index(root, keys))
                if name.startswith("put"):
                    figure.floor.append(floor.rate(name))
    finally:
        ours.opened.close()
        if real is not None:
            real.kill()
    return list(figures.values()), reason


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, one round")
    parser.add_argument("--index-keys", type=int, default=2_000_000)
    parser.add_argument("--largest", type=int, default=1_000_000, help="largest store looked up in")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    chosen = parser.parse_args()
    count, rounds, index_keys, largest = 200_000, 3, chosen.index_keys, chosen.largest
    if chosen.quick:
        count, rounds, index_keys, largest = 10_000, 1, 100_000, 10_000
    root = Path(tempfile.mkdtemp(prefix="rocketbench-"))
    try:
        figures, reason = measure(root, count, rounds, index_keys)
        rows = [figure.row() for figure in figures]
        lookups = lookup_by_size(root, largest)
    finally:
        shutil.rmtree(root)
    for row in [*rows, *lookups]:
        print(json.dumps(row))
    if reason:
        print(f"without the real store: {reason}")
    print(f"\n{'figure':<16}{'ours':>12}{'real':>12}{'floor':>12}{'share':>8}{'bar':>6}")
    for row in rows:
        cells = [row.get(name) for name in ("ours", "real", "floor")]
        text = "".join(f"{cell:>12,}" if cell is not None else f"{'-':>12}" for cell in cells)
        share = row.get("share_of_real")
        tail = f"{share:>8}{row['bar']:>6}  {'met' if row['met'] else 'MISSED'}" if share else ""
        print(f"{row['figure']:<16}{text}{tail}")
    print("\n" + plot(lookups))
    if chosen.json:
        chosen.json.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *lookups]))


if __name__ == "__main__":
    main()
