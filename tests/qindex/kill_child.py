"""The child of test_kill: publishes and consumes until it is killed, and tells what returned.

Lines on standard output, each one ``os.write`` (whole, or not there at all):
``P queue seq_id number`` a publish returned; ``D queue seq_id number redelivered`` a delivery;
``I queue seq_id`` it will be acknowledged now; ``A queue seq_id`` the ack returned.
"""

from __future__ import annotations

import os
import sys
import threading

import qindex

QUEUES = ("a", "b", "c")


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def publish(queue: qindex.Queue, first: int) -> None:
    number = first
    pause = threading.Event()
    while True:
        while len(queue) > 400:
            pause.wait(0.001)
        if number % 7 == 0:
            bodies = [b"%d " % (number + at) + bytes(number % 90) for at in range(5)]
            for seq, body in zip(queue.publish_many(bodies), bodies, strict=True):
                tell("P", queue.name, seq, int(body.split()[0].rstrip(b"\0")))
            number += 5
        else:
            body = b"%d " % number + b"x" * (number % 300)
            key = "k" if number % 11 == 0 else None
            tell("P", queue.name, queue.publish(body, key=key), number)
            number += 1


def consume(queue: qindex.Queue, turn: int) -> None:
    while True:
        turn += 1
        if turn % 5 == 0:
            batch = queue.get_many(9, timeout=None)
            for one in batch:
                _tell_delivery(queue, one)
            for seq_id in batch.seq_ids:
                tell("I", queue.name, seq_id)
            queue.ack_many(batch)
            for seq_id in batch.seq_ids:
                tell("A", queue.name, seq_id)
            continue
        delivery = queue.get()
        assert delivery is not None
        _tell_delivery(queue, delivery)
        if turn % 13 == 0:
            delivery.nack()
        else:
            tell("I", queue.name, delivery.seq_id)
            delivery.ack()
            tell("A", queue.name, delivery.seq_id)


def _tell_delivery(queue: qindex.Queue, delivery: qindex.Delivery) -> None:
    number = int(delivery.body.split()[0].rstrip(b"\0"))
    tell("D", queue.name, delivery.seq_id, number, int(delivery.redelivered))


def main(directory: str, first: int, flush_idle: float) -> None:
    engine = qindex.open(
        directory,
        max_journal_entries=150,
        flush_idle=flush_idle,
        rest_idle=flush_idle,
        segment_entry_count=64,
    )
    for name in QUEUES:
        queue = engine.queue(name)
        for work, start in ((publish, first), (consume, first % 97)):
            threading.Thread(target=work, args=(queue, start), daemon=True).start()
    tell("READY")
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
