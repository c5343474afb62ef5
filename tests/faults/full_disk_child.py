"""Publish into a store until the disk is full, and on: run by ``test_full_disk.py`` in a process
of its own, for a store into a map that finds no room ends it (SIGBUS)."""

from __future__ import annotations

import json
import resource
import signal
import sys

import qindex
from journal.errors import StorageError


def main() -> None:
    directory, limit = sys.argv[1], int(sys.argv[2])
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    errors: list[str] = []
    published: list[int] = []
    with qindex.open(directory, background=False, segment_entry_count=64) as engine:
        queue = engine.queue("q")
        for number in range(20_000):
            try:
                queue.publish(b"%06d" % number + bytes(number % 3 * 40))
                published.append(number)
            except StorageError as error:
                errors.append(str(error))
                if len(errors) == 20:
                    break
        held = [int(one.body[:6]) for one in queue.peek(20_000)]
        refused = engine.stats().writes_refused
        try:
            engine.close()
            closed = ""
        except StorageError as error:
            closed = str(error)
    report = {"published": published, "errors": errors, "held": held, "refused": refused}
    print(json.dumps({**report, "closed": closed}))


if __name__ == "__main__":
    main()
