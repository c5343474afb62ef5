"""Fills the disk that a store is on, and goes on publishing and acknowledging. Prints how many
messages were published and acknowledged, in all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import qindex

_MAX_REFUSED = 20


def main() -> None:
    place = Path(sys.argv[1])
    engine = qindex.open(place / "store", background=False)
    queue = engine.queue("q")
    published = acked = 0
    for _ in range(2000):
        queue.publish(b"%d" % published * 20)
        published += 1
    engine.sync()
    filler = os.open(place / "filler", os.O_CREAT | os.O_WRONLY)
    for size in (1 << 20, 1 << 12):
        try:
            while True:
                os.write(filler, os.urandom(size))
        except OSError:
            os.sync()
    refused = 0
    while refused < _MAX_REFUSED:
        try:
            queue.publish(b"%d" % published * 20)
            published += 1
        except qindex.StorageError:
            refused += 1
            os.sync()
    refused = 0
    while refused < _MAX_REFUSED and acked < 1000:
        try:
            delivery = queue.get(0)
            assert delivery is not None
            delivery.ack()
            acked += 1
        except qindex.StorageError:
            refused += 1
    print(published, acked, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
