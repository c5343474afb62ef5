"""Shared by the rocketstore tests: small sizes, the golden stores' answers, and replaying puts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rocketstore
from rocketstore import Retention, Store

SIZES: dict[str, Any] = {
    "commitlog_file_size": 262_144,
    "consumequeue_file_size": 800,
    "index_slots": 100,
    "index_entries": 300,
}
TINY: dict[str, Any] = {
    "commitlog_file_size": 4096,
    "consumequeue_file_size": 200,
    "index_slots": 7,
    "index_entries": 12,
}
# RocketMQ's rules, but however full the disk is that the tests run on.
ANY_DISK = Retention(disk_ratio=1.0, force_ratio=1.0, full_ratio=1.0)


class Clock:
    """A clock that tests set; each reading may also move it on."""

    def __init__(self, now: int = 1_700_000_000_000, step: int = 0) -> None:
        self.now = now
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


def open_tiny(path: Path, **options: Any) -> Store:
    return rocketstore.open(path, **{**TINY, "background": False, **options})


def touch_queues(root: Path) -> None:
    """The real offset by time looks at modification times, which archives do not keep: here all
    files were modified after their last message, as they were when the answers were taken."""
    for path in (root / "consumequeue").rglob("*"):
        os.utime(path)


def read_lines(directory: Path, name: str) -> list[dict[str, Any]]:
    text = (directory / "expected" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def pairs(data: bytes) -> dict[str, str]:
    """Properties as they stand on disk, in that order, empty values too."""
    found: dict[str, str] = {}
    for piece in data.decode().split("\x02"):
        name, separator, value = piece.partition("\x01")
        if separator:
            found[name] = value
    return found


def store_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Relative path and content of each file of log and queues; index files by number."""
    for path in sorted((root / "commitlog").iterdir()):
        yield f"commitlog/{path.name}", path.read_bytes()
    for path in sorted((root / "consumequeue").rglob("*")):
        if path.is_file():
            yield str(path.relative_to(root)), path.read_bytes()
    for number, path in enumerate(sorted((root / "index").iterdir())):
        yield f"index/{number}", path.read_bytes()


def replay(golden: Path, target: Path) -> None:
    """Put the messages of a golden store again, with its clock, hosts and sizes."""
    source = rocketstore.open(golden / "store", read_only=True)
    records = {row["phyOffset"]: row for row in read_lines(golden, "messages")}
    clock = Clock()
    with source, rocketstore.open(target, clock=clock, background=False, **SIZES) as store:
        for put in read_lines(golden, "puts"):
            assert put["status"] == "PUT_OK"
            clock.now = put["storeTimestamp"]
            if put["kind"] == "batch":
                _replay_batch(source, store, records, put)
            else:
                _replay_single(source, store, records[put["wroteOffset"]], put)


def _replay_single(source: Store, store: Store, row: dict[str, Any], put: dict[str, Any]) -> None:
    message = source.lookup(row["phyOffset"])
    assert message is not None
    properties = pairs(message.properties_bytes)
    topic, queue_id = row["topic"], row["queueId"]
    # A name with 0x01 in it, which the golden driver used once, can't be told from a value: such
    # properties go in as they are on disk.
    raw = "x" in properties
    if topic == "SCHEDULE_TOPIC_XXXX" and not raw:
        topic, queue_id = properties.pop("REAL_TOPIC"), int(properties.pop("REAL_QID"))
    result = store.put(
        topic,
        message.body,
        queue_id=queue_id,
        properties=message.properties_bytes if raw else properties,
        flag=row["flag"],
        sys_flag=row["sysFlag"] & ~48,
        born_timestamp=row["bornTimestamp"],
        born_host=bytes.fromhex(row["bornHost"]),
        store_host=bytes.fromhex(row["storeHost"]),
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
    )
    assert (result.offset, result.size) == (row["phyOffset"], row["size"])
    assert result.message_id == row["msgId"] == put["msgId"]
    answer = (put["wroteOffset"], put["wroteBytes"], put["logicsOffset"], put["msgNum"])
    assert (result.offset, result.size, result.queue_offset, 1) == answer


def _replay_batch(
    source: Store, store: Store, records: dict[int, dict[str, Any]], put: dict[str, Any]
) -> None:
    offset = put["wroteOffset"]
    rows = []
    for _ in range(put["msgNum"]):
        rows.append(records[offset])
        offset += records[offset]["size"]
    messages = []
    for row in rows:
        message = source.lookup(row["phyOffset"])
        assert message is not None
        messages.append((row["flag"], message.body, message.properties_bytes))
    first = rows[0]
    result = store.put_batch(
        first["topic"],
        messages,
        queue_id=first["queueId"],
        sys_flag=first["sysFlag"] & ~48,
        born_timestamp=first["bornTimestamp"],
        born_host=bytes.fromhex(first["bornHost"]),
        store_host=bytes.fromhex(first["storeHost"]),
    )
    assert [one.offset for one in result] == [row["phyOffset"] for row in rows]
    assert ",".join(one.message_id for one in result) == put["msgId"]
    assert (sum(one.size for one in result), result.queue_offset, len(result)) == (
        put["wroteBytes"],
        put["logicsOffset"],
        put["msgNum"],
    )
