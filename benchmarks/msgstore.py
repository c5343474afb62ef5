"""The message store's speed and space, beside plain file operations in the same run; and, in the
groups whose names start with "engine", that of the engine with large messages.

Everything is written and read through the page cache; nothing is synced where the plain operations
are not.
"""

from __future__ import annotations

import gc
import os
import random
import tracemalloc
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from xxhash import xxh3_64_digest

from benchmarks.bodies import large_bodies
from benchmarks.large_messages import BODY_BYTES as RECORD_BYTES
from benchmarks.large_messages import ENGINE_GROUPS, FILE_BYTES
from benchmarks.program import common_parser, fresh, parse_common, reporting
from benchmarks.report import FLOOR, OURS, Report
from benchmarks.stopwatch import Found, Sample, Stopwatch
from journal.poison import Poison
from msgstore import MessageStore
from msgstore.format import encode
from msgstore.locations import Locations

_CHUNK = 1 << 20
_GB = 1e9


def check(msg_id: bytes, record: bytes) -> str | None:
    """A checksum over the record, as the engine's check has."""
    return None if record[:8] == xxh3_64_digest(memoryview(record)[8:]) else "checksum"


def make_records(count: int) -> list[bytes]:
    """Up to 64 records: these come again and again."""
    bodies = large_bodies(RECORD_BYTES - 8, min(count, 64))
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


def rate(size: int, work: Callable[..., object], *given: object) -> Sample:
    """Gigabytes a second of ``work``, which handles ``size`` bytes."""
    gc.collect()
    watch = Stopwatch()
    with watch.running():
        work(*given)
    sample = watch.rate(size // RECORD_BYTES)
    return replace(sample, value=sample.value * RECORD_BYTES / _GB)


def write_and_read(report: Report, root: Path, options: Namespace) -> None:
    """64 KiB records in, and out again in order, against plain writes and reads of the same bytes:
    records with their frames, one after another."""
    found = Found()
    count = options.count
    records, msg_ids = make_records(count), ids(count)
    framed = [encode(bytes(16), record) for record in records]
    size = count * RECORD_BYTES
    for _ in range(options.rounds):
        with fresh(root) as path:
            plain = rate(size, _plain_write, path / "f", framed, count)
            found.note("write_64KiB", FLOOR, plain)
            found.note("read_64KiB", FLOOR, rate(size, _plain_read, path / "f", framed, count))
        with fresh(root) as path, open_store(path) as store:
            found.note("write_64KiB", OURS, rate(size, _store_write, store, records, msg_ids))
            found.note("read_64KiB", OURS, rate(size, _store_read, store, msg_ids))
    report.add_all(found, unit="GB/s")
    report.hold_ratio("write_64KiB", FLOOR, 0.5, "write / plain write")
    report.hold_ratio("read_64KiB", FLOOR, 0.5, "read / plain read")


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


def recovery(report: Report, root: Path, options: Namespace) -> None:
    """Opening by a scan of the files, against reading them from the page cache."""
    found = Found()
    count = options.count
    records, msg_ids = make_records(count), ids(count)
    references = dict.fromkeys(msg_ids, 1)
    size = count * RECORD_BYTES
    with fresh(root) as path:
        with open_store(path) as store:
            _store_write(store, records, msg_ids)
            store.sync()
        for _ in range(options.rounds):
            found.note("recovery_scan", FLOOR, rate(size, _read_files, path))
            scan = rate(size, lambda: open_store(path, references).close())
            found.note("recovery_scan", OURS, scan)
    report.add_all(found, unit="GB/s")
    report.hold_least("recovery scan", "recovery_scan", 1.0)


def _read_files(path: Path) -> None:
    for file in path.glob("*.rdq"):
        fd = os.open(file, os.O_RDONLY)
        while os.read(fd, _CHUNK):
            pass
        os.close(fd)


def memory_and_snapshot(report: Report, root: Path, options: Namespace) -> None:
    """A million messages: memory of each, and opening from a snapshot."""
    count = 1_000_000
    tracemalloc.start()
    locations = Locations()
    for number in range(count // 10):
        locations.add(os.urandom(16), number >> 8, number << 16, RECORD_BYTES, 1)
    written, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found = Found()
    with fresh(root) as path:
        with open_store(path, background=False) as store:
            store.write_many([(msg_id, b"x" * 8, 1) for msg_id in ids(count)])
            store.sync()
            snapshot = store.snapshot()
        for _ in range(options.rounds):
            gc.collect()
            watch = Stopwatch()
            with watch.running():
                open_store(path, snapshot=snapshot).close()
            found.note("open_1M_from_snapshot", OURS, Sample(watch.cpu * 1e3))
    report.add_one("memory_per_message", written / (count // 10), "bytes")
    report.add_all(found, unit="CPU ms", better="low")
    report.hold_most("memory per message", "memory_per_message", 200, "bytes")
    report.hold_most("open of 1M messages", "open_1M_from_snapshot", 150, "CPU ms")


GROUPS: dict[str, Callable[[Report, Path, Namespace], None]] = {
    "write_read": write_and_read,
    "recovery": recovery,
    "memory": memory_and_snapshot,
    **ENGINE_GROUPS,
}


def main() -> int:
    parser = common_parser("msgstore", __doc__, rounds=3)
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
    options.count = (options.megabytes << 20) // RECORD_BYTES
    with reporting(options) as (report, directory):
        for name in options.groups or GROUPS:
            GROUPS[name](report, directory, options)
    return 0 if all(bar.holds is not False for bar in report.bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
