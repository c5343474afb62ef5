"""The child of test_messages_kill: large messages to one, two or three queues, and acks, while
compaction goes on, until it is killed.

A line on standard output, each one ``os.write``, for each step: ``p NUMBER QUEUES`` a publish
returned, ``i QUEUE NUMBER`` an ack begins, ``a QUEUE NUMBER`` it returned.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from time import sleep

import qindex

QUEUES = ("a", "b", "c")
_MAX_READY = 60


def body_of(number: int) -> bytes:
    """Large, and now and then small, or larger than a store file."""
    size = 60_000 if number % 41 == 0 else 40 if number % 13 == 0 else 1500 + number % 700
    return b"%d " % number + random.Random(number).randbytes(size)


def open_engine(directory: str) -> qindex.Engine:
    return qindex.open(
        directory,
        store_file_bytes=32_768,
        embed_below=1024,
        max_journal_entries=200,
        flush_idle=0.02,
        rest_idle=0.02,
        segment_entry_count=64,
    )


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def publish(engine: qindex.Engine, first: int, thread: int) -> None:
    number = first + thread
    while True:
        while max(len(engine.queue(name)) for name in QUEUES) > _MAX_READY:
            sleep(0.001)
        names = QUEUES[: number % 3 + 1]
        engine.publish_to(names, body_of(number))
        tell("p", number, ",".join(names))
        number += 2


def consume(engine: qindex.Engine, name: str, seed: int) -> None:
    chance = random.Random(seed)
    queue = engine.queue(name)
    held: list[tuple[int, qindex.Delivery]] = []
    for delivery in queue.consume(prefetch=1000):
        held.append((int(delivery.body.split(b" ", 1)[0]), delivery))
        if len(held) < 40:
            continue
        # In any order, so that files are left with holes.
        number, delivery = held.pop(chance.randrange(len(held)))
        tell("i", name, number)
        delivery.ack()
        tell("a", name, number)


def main(directory: str, first: int) -> None:
    engine = open_engine(directory)
    work = [threading.Thread(target=publish, args=(engine, first, thread)) for thread in range(2)]
    work += [
        threading.Thread(target=consume, args=(engine, name, first + at))
        for at, name in enumerate(QUEUES)
    ]
    for thread in work:
        thread.start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
