"""The child of test_move_kill: rejects, lets expire, overflows and consumes until it is killed.

Lines on standard output, each one ``os.write``: ``P number`` a publish returned; ``M number`` a
message was rejected, and is in the dead-letter queue; ``A number`` the ack of a dead letter
returned, ``I number`` it will be made.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from functools import partial

import qindex


def tell(kind: str, number: int) -> None:
    os.write(1, b"%s %d\n" % (kind.encode(), number))


def publish(queue: qindex.Queue, first: int) -> None:
    number = first
    pause = threading.Event()
    while True:
        while len(queue) > 200:
            pause.wait(0.001)
        body = b"%d " % number + b"x" * (20_000 if number % 50 == 0 else number % 90)
        queue.publish(body, ttl=0 if number % 5 == 0 else None)
        tell("P", number)
        number += 1


def reject(queue: qindex.Queue) -> None:
    turn = 0
    while True:
        turn += 1
        delivery = queue.get(lease=5.0 if turn % 4 == 0 else None)
        assert delivery is not None
        if turn % 3 == 0:
            delivery.nack()
            continue
        with suppress(qindex.QueueFullError):
            delivery.reject()
            tell("M", int(delivery.body.split()[0]))


def consume(queue: qindex.Queue) -> None:
    while True:
        batch = queue.get_many(20, timeout=None)
        numbers = [int(one.body.split()[0]) for one in batch]
        for number in numbers:
            tell("I", number)
        queue.ack_many(batch)
        for number in numbers:
            tell("A", number)


def main(directory: str, first: int) -> None:
    engine = qindex.open(
        directory,
        max_journal_entries=150,
        flush_idle=0.005,
        rest_idle=0.005,
        segment_entry_count=64,
    )
    dead = engine.queue("dead", max_length=300)
    queue = engine.queue("q", dead_letter="dead", delivery_limit=4)
    full = engine.queue("full", max_length=50, overflow="drop-head", dead_letter="q")
    for work in (
        partial(publish, queue, first),
        partial(publish, full, first + 500_000),
        partial(reject, queue),
        partial(consume, dead),
    ):
        threading.Thread(target=work, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
