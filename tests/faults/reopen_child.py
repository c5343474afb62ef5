"""Fill a disk to its last block, end there, and drain it in later runs: run by
``test_full_disk.py`` in a process of its own, on a file system of a few MiB."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import qindex

NAMES = "a", "b"


def main() -> None:
    directory, options = sys.argv[1], json.loads(sys.argv[2])
    end: str = options.pop("end")
    size: int = options.pop("size")
    assert qindex.Engine is not None  # it is imported once, before the forks
    sent: dict[str, int] = json.loads(in_a_child(lambda: fill(directory, size, end, options)))
    taken: dict[str, list[int]] = {name: [] for name in NAMES}
    again = []
    for _ in range(3):
        found = json.loads(in_a_child(lambda: take(directory, 100, end, options)))
        again.append({name: found[name].pop("again") for name in NAMES})
        for name in NAMES:
            taken[name] += found[name]["numbers"]
    findings = [str(one) for one in qindex.verify(directory).findings]
    rest = json.loads(in_a_child(lambda: take(directory, 1 << 30, "", options)))
    for name in NAMES:
        taken[name] += rest[name]["numbers"]
    with qindex.open(directory, **options) as engine:
        ready = [engine.queue(name).stats().ready for name in NAMES]
    findings += [str(one) for one in qindex.verify(directory).findings]
    same = {name: taken[name] == list(range(50, sent[name])) for name in NAMES}
    print(json.dumps({"sent": sent, "same": same, "again": again, "ready": ready,
                      "findings": findings}))  # fmt: skip


def fill(directory: str, size: int, end: str, options: dict[str, Any]) -> dict[str, int]:
    """Publish into two queues, acknowledge 50 of each, and take 10 more. Give what was sent."""
    engine = qindex.open(directory, **options)
    queues = [engine.queue(name) for name in NAMES]
    sent = dict.fromkeys(NAMES, 0)
    full = False
    while not full:
        for queue in queues:
            try:
                queue.publish(b"%08d" % sent[queue.name] + bytes(size))
            except qindex.StorageError:
                full = True
            else:
                sent[queue.name] += 1
        if sent["b"] == 100:
            for queue in queues:
                queue.ack_many(queue.get_many(20))
            engine.flush()
    with Path(directory, "..", "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    for queue in queues:
        queue.ack_many(queue.get_many(30))
        queue.get_many(10)
    leave(engine, end)
    return sent


def take(directory: str, most: int, end: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take and acknowledge messages, and take one more."""
    engine = qindex.open(directory, **options)
    found: dict[str, Any] = {}
    for name in NAMES:
        queue = engine.queue(name)
        many = queue.get_many(most)
        found[name] = {
            "numbers": [int(body[:8]) for body in many.bodies],
            "again": sum(one.redelivered for one in many),
        }
        queue.ack_many(many)
        if end:
            queue.get(0)
    leave(engine, end)
    return found


def leave(engine: qindex.Engine, end: str) -> None:
    """End as a killed process (the result is sent before), or close."""
    if end == "kill":
        return
    try:
        engine.close()
    except qindex.StorageError:
        assert end == "close"


def in_a_child(call: Callable[[], Any]) -> bytes:
    """Call it in a process of its own, which is killed then; give its result as JSON."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        data = json.dumps(call()).encode()
        os.write(writing, len(data).to_bytes(4, "big"))
        os.write(writing, data)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        size = int.from_bytes(pipe.read(4), "big")
        data = pipe.read(size)
    os.waitpid(pid, 0)
    return data


if __name__ == "__main__":
    main()
