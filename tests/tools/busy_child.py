"""A process that keeps a store busy: publishers, consumers, flushes, rolls, compaction, queues
made and deleted. ``python -m tests.tools.busy_child DIRECTORY SECONDS``; prints ``ready`` once all
is under way, and at its end how much was done."""

from __future__ import annotations

import random
import sys
import threading
import time

import qindex

SMALL, LARGE, SHARED = "small", "large", ["shared-1", "shared-2"]


def publish_small(engine: qindex.Engine, until: float) -> None:
    queue = engine.queue(SMALL)
    while time.monotonic() < until:
        queue.publish_many([b"message %d" % number for number in range(200)])
        queue.publish(b"with headers", key="k", headers={"n": 1}, ttl=0.05)
        queue.publish(b"transient", persistent=False)
        time.sleep(0.001)


def publish_large(engine: qindex.Engine, until: float) -> None:
    queue = engine.queue(LARGE)
    chance = random.Random(1)
    while time.monotonic() < until:
        queue.publish(chance.randbytes(chance.randrange(20_000, 60_000)))
        queue.publish(bytes(20_000), persistent=False)
        engine.publish_to(SHARED, chance.randbytes(6000), headers={"large": True})
        time.sleep(0.002)


def consume(engine: qindex.Engine, name: str, until: float) -> None:
    queue = engine.queue(name)
    chance = random.Random(name)
    while time.monotonic() < until:
        for delivery in queue.get_many(150, timeout=0.02):
            if chance.random() < 0.02:
                delivery.nack()
            else:
                delivery.ack()
        if len(queue) < 500:
            time.sleep(0.02)


def disturb(engine: qindex.Engine, until: float) -> None:
    number = 0
    while time.monotonic() < until:
        number += 1
        name = f"passing-{number % 3}"
        engine.queue(name).publish_many([bytes(100)] * 50 + [bytes(20_000)] * 3)
        engine.flush()
        engine.compact()
        if number % 2:
            engine.delete_queue(name)
        engine.sync()
        time.sleep(0.01)


def main(directory: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    with qindex.open(
        directory,
        max_journal_entries=2000,
        segment_entry_count=512,
        store_file_bytes=1 << 18,
        flush_idle=0.01,
        rest_idle=0.01,
    ) as engine:
        for name in (SMALL, LARGE, *SHARED):
            engine.queue(name)
        threads = [
            threading.Thread(target=job, args=(engine, until))
            for job in (publish_small, publish_large, disturb)
        ]
        threads += [
            threading.Thread(target=consume, args=(engine, name, until))
            for name in (SMALL, LARGE, *SHARED)
        ]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        for thread in threads:
            thread.join()
        stats = engine.stats()
        flushes = sum(queue.flushes for queue in stats.queues)
        print("flushes", flushes, "published", sum(queue.published for queue in stats.queues))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
