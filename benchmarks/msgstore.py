"""The message store's speed and space, beside plain file operations in the same run; and, in the
groups whose names start with "engine", that of the engine with large messages.

    python -m benchmarks.msgstore [GROUP ...] [--megabytes 256] [--rounds 3] [--directory DIR]
                                  [--steady-seconds 20] [--space-megabytes 1024] [--json FILE]

JSON lines go to standard output (``--json FILE`` puts them there instead), tables to standard
error. Everything is written and read through the page cache; nothing is synced where the plain
operations are not.
"""

from __future__ import annotations

import gc
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from xxhash import xxh3_64_digest

from benchmarks.bench import RECORD_BYTES, Bench
from benchmarks.large_messages import ENGINE_GROUPS
from benchmarks.program import common_parser, parse_common, reporting
from benchmarks.report import FLOOR, OURS, Bar, Round, Sample
from benchmarks.stopwatch import Stopwatch
from journal.poison import Poison
from msgstore import MessageStore
from msgstore.format import encode
from msgstore.locations import Locations

FILE_BYTES = 16 << 20
_CHUNK = 1 << 20
_GB = 1e9


def check(msg_id: bytes, record: bytes) -> str | None:
    """A checksum over the record, as the engine's check has."""
    return None if record[:8] == xxh3_64_digest(memoryview(record)[8:]) else "checksum"


def make_records(count: int) -> list[bytes]:
    bodies = [os.urandom(RECORD_BYTES - 8) for _ in range(min(count, 64))]
    return [xxh3_64_digest(body) + body for body in bodies]


def ids(count: int) -> list[bytes]:
    chance = random.Random(count)
    return [chance.randbytes(16) for _ in range(count)]


def open_store(
    path: Path,
    references: dict[bytes, int] | None = None,
    snapshot: bytes | None = None,
    *,
    background: bool = True,
) -> MessageStore:
    if references is None and snapshot is None:
        references = {}
    return MessageStore.open(
        path,
        references=references,
        snapshot=snapshot,
        check=check,
        poison=Poison(),
        file_size_limit=FILE_BYTES,
        background=background,
    )


def rate(size: int, work: Callable[[], None]) -> Sample:
    """Gigabytes a second of ``work``, which handles ``size`` bytes."""
    gc.collect()
    watch = Stopwatch()
    with watch.running():
        work()
    sample = watch.rate(size // RECORD_BYTES)
    return replace(sample, value=sample.value * RECORD_BYTES / _GB)


def write_and_read(bench: Bench) -> None:
    """64 KiB records in, and out again in order, against plain writes and reads of the same bytes:
    records with their frames, one after another."""
    writes: list[Round] = [{} for _ in range(bench.rounds)]
    reads: list[Round] = [{} for _ in range(bench.rounds)]
    count = bench.count
    records, msg_ids = make_records(count), ids(count)
    framed = [encode(bytes(16), record) for record in records]
    size = count * RECORD_BYTES
    for write, read in zip(writes, reads, strict=True):
        with bench.fresh() as path:
            write[FLOOR] = rate(size, partial(_plain_write, path / "f", framed, count))
            read[FLOOR] = rate(size, partial(_plain_read, path / "f", framed, count))
        with bench.fresh() as path, open_store(path) as store:
            write[OURS] = rate(size, partial(_store_write, store, records, msg_ids))
            read[OURS] = rate(size, partial(_store_read, store, msg_ids))
    bench.report.add("write_64KiB", writes, unit="GB/s")
    bench.report.add("read_64KiB", reads, unit="GB/s")
    bench.report.judge(
        [
            Bar.at_least("write / plain write", bench.report.ratio("write_64KiB", FLOOR), 0.5),
            Bar.at_least("read / plain read", bench.report.ratio("read_64KiB", FLOOR), 0.5),
        ]
    )


def _plain_write(path: Path, records: list[bytes], count: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    for index in range(count):
        os.write(fd, records[index % len(records)])
    os.close(fd)


def _plain_read(path: Path, records: list[bytes], count: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    stride = len(records[0])
    for index in range(count):
        os.pread(fd, RECORD_BYTES, index * stride)
    os.close(fd)


def _store_write(store: MessageStore, records: list[bytes], msg_ids: list[bytes]) -> None:
    for index, msg_id in enumerate(msg_ids):
        store.write(msg_id, records[index % len(records)])


def _store_read(store: MessageStore, msg_ids: list[bytes]) -> None:
    for msg_id in msg_ids:
        store.read(msg_id)


def recovery(bench: Bench) -> None:
    """Opening by a scan of the files, against reading them from the page cache."""
    rounds: list[Round] = [{} for _ in range(bench.rounds)]
    count = bench.count
    records, msg_ids = make_records(count), ids(count)
    references = dict.fromkeys(msg_ids, 1)
    size = count * RECORD_BYTES
    with bench.fresh() as path:
        with open_store(path) as store:
            _store_write(store, records, msg_ids)
            store.sync()
        for round_ in rounds:
            round_[FLOOR] = rate(size, lambda: _read_files(path))
            round_[OURS] = rate(size, lambda: open_store(path, references).close())
    bench.report.add("recovery_scan", rounds, unit="GB/s")
    bench.report.judge([bench.report.hold_least("recovery scan", "recovery_scan", 1.0)])


def _read_files(path: Path) -> None:
    for file in path.glob("*.rdq"):
        fd = os.open(file, os.O_RDONLY)
        while os.read(fd, _CHUNK):
            pass
        os.close(fd)


def memory_and_snapshot(bench: Bench) -> None:
    """A million messages: memory of each, and opening from a snapshot."""
    count = 1_000_000
    tracemalloc.start()
    locations = Locations()
    for number in range(count // 10):
        locations.add(os.urandom(16), number >> 8, number << 16, RECORD_BYTES, 1)
    written, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    per_message = written / (count // 10)
    with bench.fresh() as path:
        with open_store(path, background=False) as store:
            store.write_many([(msg_id, b"x" * 8, 1) for msg_id in ids(count)])
            store.sync()
            snapshot = store.snapshot()
        rounds: list[Round] = []
        for _ in range(bench.rounds):
            gc.collect()
            cpu = time.process_time()
            open_store(path, snapshot=snapshot).close()
            rounds.append({OURS: Sample((time.process_time() - cpu) * 1e3)})
    bench.report.add_one("memory_per_message", per_message, "bytes")
    bench.report.add("open_1M_from_snapshot", rounds, unit="CPU ms", better="low")
    bench.report.judge(
        [
            Bar.at_most("memory per message", per_message, 200, "bytes"),
            Bar.at_most(
                "open of 1M messages", bench.report.value("open_1M_from_snapshot"), 150, "CPU ms"
            ),
        ]
    )


GROUPS: dict[str, Callable[[Bench], None]] = {
    "write_read": write_and_read,
    "recovery": recovery,
    "memory": memory_and_snapshot,
    **ENGINE_GROUPS,
}


def main() -> int:
    parser = common_parser("msgstore", __doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--megabytes", type=int, default=256, help="of 64 KiB records")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument(
        "--steady-seconds", type=float, default=20.0, help="of the steady loads (default 20)"
    )
    parser.add_argument(
        "--space-megabytes", type=int, default=1024, help="published before nine in ten are acked"
    )
    options = parse_common(parser, None)
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    with reporting(options) as (report, directory):
        bench = Bench(
            directory,
            options.megabytes,
            options.rounds,
            options.seconds,
            options.steady_seconds,
            options.space_megabytes,
            report,
        )
        for name in options.groups or GROUPS:
            GROUPS[name](bench)
    return 0 if all(bar.holds is not False for bar in report.bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
