"""The process that the demo kills: threads that publish, and threads that consume.

``python -m qindex.cli.demo.child DIRECTORY FD NUMBER``: opens the store (which recovers it, after
a kill), tells its parent of each call through the descriptor FD, and goes on until it is killed,
or its parent is gone. NUMBER: the number of the next message, so that no two runs use one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import sleep

import qindex
from qindex.cli.demo.log import ACKED, ACKING, DELIVERED, PUBLISHED, body_of, key_of, note

QUEUE = "orders"
PUBLISHERS = 2
CONSUMERS = 2
READY = b"R"
"""The first byte, alone, once the store is open."""

_BREATH = 0.001
_MESSAGES_A_BREATH = 8
_BACKLOG = 2000
_PATIENCE = 5.0


def main(arguments: list[str]) -> None:
    """Work until killed."""
    directory, fd, first = arguments[0], int(arguments[1]), int(arguments[2])
    engine = qindex.open(directory)
    queue = engine.queue(QUEUE)
    os.write(fd, READY)
    tasks = [partial(_publish, queue, fd, number, first) for number in range(PUBLISHERS)]
    tasks += [partial(_consume, queue, fd, number) for number in range(CONSUMERS)]
    workers = [threading.Thread(target=_work, args=(task,)) for task in tasks]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _work(task: Callable[[], None]) -> None:
    with suppress(BrokenPipeError):  # the parent is gone
        task()


def _publish(queue: qindex.Queue, fd: int, thread: int, number: int) -> None:
    while True:
        for _ in range(_MESSAGES_A_BREATH):
            seq = queue.publish(body_of(thread, number), key=key_of(thread, number))
            note(fd, PUBLISHED, thread, 0, number, seq)
            number += 1
        # Neither side may run away: there should be a backlog, of about this many.
        sleep(_BREATH * len(queue) / _BACKLOG)


def _consume(queue: qindex.Queue, fd: int, consumer: int) -> None:
    """Take a few, work on them for a moment, then acknowledge each: a kill in between leaves
    messages that were delivered and will be delivered again."""
    while True:
        taken = []
        # Publishers end only when the parent is gone; then nothing more will come.
        batch = queue.get_many(_MESSAGES_A_BREATH, timeout=_PATIENCE)
        if not batch:
            return
        for delivery in batch:
            _, thread, number = (delivery.key or "").split("-")
            flags = consumer << 1 | delivery.redelivered
            told = (int(thread), flags, int(number), delivery.seq_id)
            note(fd, DELIVERED, *told)
            taken.append((delivery, told))
        sleep(_BREATH)
        for delivery, told in taken:
            note(fd, ACKING, *told)
            delivery.ack()
            note(fd, ACKED, *told)


if __name__ == "__main__":
    main(sys.argv[1:])
