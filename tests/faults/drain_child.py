"""Fill a disk with messages, drain it by consuming, fill it again: run by ``test_full_disk.py`` in
a process of its own, on a file system of a few MiB."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import qindex
from journal.errors import StorageError

_PATIENCE = 60.0
_FULL_SECONDS = 0.5
_NEARLY_ALL = 0.8


def main() -> None:
    directory, options = sys.argv[1], json.loads(sys.argv[2])
    names: list[str] = options.pop("queues")
    sizes: list[int] = options.pop("sizes")
    batch: int = options.pop("batch")
    report: dict[str, Any] = {"published": [], "drained": [], "refused": [], "same": []}
    number = 0
    with qindex.open(directory, **options) as engine:
        queues = [engine.queue(name) for name in names]
        for _ in range(3):
            sent: dict[str, list[bytes]] = {name: [] for name in names}
            refused, last = "", time.monotonic()
            # Full is what refuses for a while: a flush under way takes room, and gives it back.
            while not refused or time.monotonic() - last < _FULL_SECONDS:
                queue = queues[number % len(queues)]
                body = b"%08d" % number + bytes(sizes[number % len(sizes)])
                try:
                    queue.publish(body)
                except StorageError as error:
                    refused = str(error)
                    time.sleep(0.02)
                else:
                    sent[queue.name].append(body)
                    number += 1
                    refused, last = "", time.monotonic()
            got = {queue.name: drain(queue, batch) for queue in queues}
            report["published"].append(sum(map(len, sent.values())))
            report["drained"].append(sum(map(len, got.values())))
            report["same"].append(got == sent)
            report["refused"].append(refused)
            wait_for_room(directory, queues)
        stats = engine.stats()
        report["writes_refused"] = stats.writes_refused
    print(json.dumps(report))


def drain(queue: qindex.Queue, batch: int) -> list[bytes]:
    """Take and acknowledge all there is."""
    bodies: list[bytes] = []
    while True:
        if batch == 1:
            one = queue.get(0)
            if one is None:
                return bodies
            bodies.append(one.body)
            queue.ack(one)
        else:
            many = queue.get_many(batch)
            if not many:
                return bodies
            bodies += many.bodies
            queue.ack_many(many)


def wait_for_room(directory: str, queues: list[qindex.Queue]) -> None:
    """Wait until nearly all of the disk is free, and publish again; nothing is asked of the
    engine."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        disk = os.statvfs(directory)
        if disk.f_bavail > _NEARLY_ALL * disk.f_blocks:
            break
        assert time.monotonic() < deadline, f"{disk.f_bavail} of {disk.f_blocks} blocks are free"
        time.sleep(0.02)
    for queue in queues:
        queue.publish(b"again")
        one = queue.get(0)
        assert one is not None
        queue.ack(one)


if __name__ == "__main__":
    main()
