"""A process that writes, removes and compacts until it is killed; it logs what it was promised.

Run as ``python -m tests.msgstore.victim STORE LOG FIRST``. A line is ``w N`` once the write of
message N has returned, and ``r N`` before its removal begins.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from tests.msgstore.records import message_id, open_store, record_of


def main(directory: Path, log: Path, first: int) -> None:
    chance = random.Random(first)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    kept = promised(log)
    store = open_store(
        directory,
        {message_id(number): 1 for number in kept},
        background=True,
        file_size_limit=20_000,
    )
    if store.missing:
        raise SystemExit("promised messages are missing")
    alive = sorted(kept)
    number = first
    while True:
        batch = [number + at for at in range(chance.choice([1, 1, 5]))]
        store.write_many([(message_id(each), record_of(each, 700), 1) for each in batch])
        os.write(fd, b"".join(b"w %d\n" % each for each in batch))
        alive += batch
        number += len(batch)
        while len(alive) > 100:
            at = chance.randrange(len(alive))
            alive[at], alive[-1] = alive[-1], alive[at]
            os.write(fd, b"r %d\n" % alive[-1])
            store.remove([message_id(alive.pop())])


def promised(log: Path) -> set[int]:
    """The messages that have to be there by the log."""
    kept: set[int] = set()
    for line in log.read_bytes().splitlines() if log.exists() else []:
        what, number = line.split()
        (kept.add if what == b"w" else kept.discard)(int(number))
    return kept


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
