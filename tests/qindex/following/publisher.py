"""A process that publishes as fast as it can, with all that a queue goes through meanwhile.

``python -m tests.qindex.following.publisher DIRECTORY COUNT``: messages ``0 .. COUNT - 1`` to the
queue ``q``, each with its number in front, mostly plain and single, some in batches, some with a
key, some large (in the message store); half of them are consumed meanwhile, in another thread.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import qindex

LARGE = 20_000
PERIOD = 2000
"""In each so many messages: one large one, some with a key, a batch, and the rest one by one."""


def body_of(seq: int) -> bytes:
    """What message ``seq`` holds."""
    number = b"%d" % seq
    return number.ljust(LARGE, b".") if seq % PERIOD == 7 else number


def main(directory: str, count: int) -> None:
    options: dict[str, Any] = {
        "flush_idle": 0.05,
        "segment_entry_count": 4096,
        "store_file_bytes": 300_000,
    }
    with qindex.open(directory, max_journal_entries=20_000, **options) as engine:
        queue = engine.queue("q")
        done = threading.Event()
        consumer = threading.Thread(target=_consume, args=(queue, done, count // 2))
        consumer.start()
        at = queue.stats().next_seq_id
        while at < count:
            for seq in range(at, at + 10):
                queue.publish(body_of(seq), key=f"k{seq}" if seq % 2 else None)
            queue.publish_many([body_of(seq) for seq in range(at + 10, at + 500)])
            for seq in range(at + 500, at + PERIOD):
                queue.publish(body_of(seq))
            at += PERIOD
            if at % (50 * PERIOD) == 0:
                engine.compact()
        done.set()
        consumer.join()


def _consume(queue: qindex.Queue, done: threading.Event, most: int) -> None:
    taken = 0
    while taken < most and not (done.is_set() and not len(queue)):
        batch = queue.get_many(min(1000, most - taken))
        taken += len(batch)
        queue.ack_many(batch)
        if not batch:
            done.wait(0.001)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
