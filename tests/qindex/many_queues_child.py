"""A process with few file handles and many queues, for :mod:`tests.qindex.test_many_queues`.

``python -m tests.qindex.many_queues_child DIR STEP``: prints what it found, or is killed by itself.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

import qindex

QUEUES = 200
HANDLES = 100
"""What the process may have open; of these its engine may have 64."""
MAX_OPEN = 64


def name_of(number: int) -> str:
    return f"queue {number}"


def body_of(number: int, turn: int) -> bytes:
    return b"%d in turn %d" % (number, turn)


def publish(engine: qindex.Engine, turns: range) -> int:
    """Publish to all queues, in turn; gives the most files that were open."""
    most = 0
    for turn in turns:
        for number in range(QUEUES):
            engine.queue(name_of(number)).publish(body_of(number, turn))
            most = max(most, len(os.listdir("/proc/self/fd")) - 1)
    return most


def consume(engine: qindex.Engine, turns: range) -> int:
    """Take a message from each of the queues, in turn; gives the most files that were open."""
    most = 0
    for turn in turns:
        for number in range(QUEUES):
            delivery = engine.queue(name_of(number)).get(timeout=0)
            assert delivery is not None, (number, turn)
            assert delivery.body == body_of(number, turn)
            delivery.ack()
            most = max(most, len(os.listdir("/proc/self/fd")) - 1)
    return most


def main(directory: str, step: str) -> None:
    """Do one step."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (HANDLES, HANDLES))
    before = len(os.listdir("/proc/self/fd")) - 1
    engine = qindex.open(directory, max_open_files=MAX_OPEN, background=step != "close")
    if step == "kill":
        most = max(publish(engine, range(2)), consume(engine, range(1)))
        print(json.dumps({"most": most - before}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if step == "close":
        most = max(publish(engine, range(2, 3)), consume(engine, range(1, 2)))
        held = sum(len(engine.queue(name_of(number))) for number in range(QUEUES))
        engine.close()
        print(json.dumps({"most": most - before, "held": held}))
    if step == "drain":
        most = consume(engine, range(2, 3))
        names = len(engine.queue_names())
        held = sum(len(engine.queue(name_of(number))) for number in range(QUEUES))
        engine.close()
        findings = len(engine.findings)
        print(
            json.dumps({"most": most - before, "held": held, "names": names, "findings": findings})
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
