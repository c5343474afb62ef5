"""Publish through a server until its disk is full, and read what it holds; for test_limits.py.

``python -m tests.server.full_disk_child DIRECTORY _`` prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import qindex
from qindex.format import layout
from qindex.server import spawn


def main() -> None:
    directory = sys.argv[1]
    published: list[int] = []
    errors: list[str] = []
    with qindex.open(directory, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        while len(errors) < 20:
            number = len(published) + len(errors)
            try:
                queue.publish(b"%06d" % number + bytes(500))
            except qindex.StoreError as error:
                errors.append(f"{type(error).__name__}: {error}")
            else:
                published.append(number)
        held = [int(one.body[:6]) for one in queue.peek(len(published) + 1)]
    ended = spawn.wait_until_gone(directory, 60)
    log = Path(directory, layout.SERVER_LOG).read_text()
    found = {"errors": errors, "published": published, "held": held, "ended": ended, "log": log}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
