"""A client that publishes, or consumes, until it is killed or told to end; it notes in a log, which
all share, what was promised to it.

``python load_child.py ROLE NAME DIRECTORY LOG``. Lines of the log: ``+ ID`` published,
``? ID`` perhaps, ``< ID`` taken, ``- ID`` acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

import qindex

Note = Callable[[str, str], None]

_ended = False


def _end(*_: object) -> None:
    global _ended
    _ended = True


def main() -> None:
    role, name, directory, log = sys.argv[1:]
    signal.signal(signal.SIGTERM, _end)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(mark: str, what: str) -> None:
        os.write(fd, f"{mark} {what}\n".encode())

    work = {"publish": publish, "get": get, "consume": consume}[role]
    while not _ended:
        try:
            engine = qindex.open(directory, shared=True, linger=5)
            queue = engine.queue("q")
        except qindex.DisconnectedError:
            continue  # the server was killed as it began
        with engine:
            work(queue, name, note)


def publish(queue: qindex.SharedQueue, name: str, note: Note) -> None:
    count = 0
    while not _ended:
        count += 1
        what = f"{name}-{count}"
        try:
            if count % 10:
                queue.publish(what.encode(), confirm=count % 50 == 1)
            else:
                queue.publish_many([what.encode()])
        except qindex.DisconnectedError as error:
            note("?" if error.maybe_done else "!", what)
        else:
            note("+", what)
        with contextlib.suppress(qindex.DisconnectedError):
            if len(queue) > 2000:
                time.sleep(0.01)


def get(queue: qindex.SharedQueue, name: str, note: Note) -> None:
    delivery = None
    while not _ended:
        try:
            delivery = queue.get(timeout=0.2)
            if delivery is not None:
                settle(delivery, note)
        except qindex.DisconnectedError:
            continue


def consume(queue: qindex.SharedQueue, name: str, note: Note) -> None:
    while not _ended:
        try:
            for delivery in queue.consume(prefetch=10, timeout=0.2):
                settle(delivery, note)
                if _ended:
                    break
        except qindex.DisconnectedError:
            continue


def settle(delivery: qindex.Delivery, note: Note) -> None:
    what = delivery.body.decode()
    note("<", what)
    try:
        delivery.ack()
    except (qindex.LeaseExpiredError, qindex.DisconnectedError):
        return
    note("-", what)


if __name__ == "__main__":
    main()
