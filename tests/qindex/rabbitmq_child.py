"""An engine in a child process that publishes and consumes in RabbitMQ mode until it is killed.

Kept apart from the tests so that the child imports no more than it needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import qindex

ENTRIES = 2048
"""Entries a segment of a new virtual host of a node."""
_SIZES = (20, 90, 300, 1500)
_MAX_READY = 2500


def open_ours(directory: Path, **options: Any) -> qindex.Engine:
    # A node looks at the sizes of body and properties, ours at that of the record around them:
    # here all that a node would embed is to be embedded.
    options.setdefault("embed_below", 8192)
    engine: qindex.Engine = qindex.open(
        directory, record_format="rabbitmq", vhost="/", segment_entry_count=ENTRIES, **options
    )
    return engine


def work(directory: str, name: str) -> None:
    """Publish and consume with several threads until killed; tell each step on standard output.

    A line is ``p`` (published), ``s`` (an ack is about to be sent) or ``a`` (it returned), and the
    number of the message.
    """
    engine = open_ours(Path(directory), max_journal_entries=400, flush_idle=0.05, rest_idle=0.05)
    queue = engine.queue(name)

    def tell(step: str, number: int) -> None:
        os.write(1, b"%s %d\n" % (step.encode(), number))

    def publish(thread: int) -> None:
        for at in range(1_000_000):
            number = thread * 1_000_000 + at
            # Consumers come along, so that whole segments are acknowledged and deleted.
            while len(queue) > _MAX_READY:
                time.sleep(0.001)
            body = b"%d " % number + b"." * _SIZES[number % len(_SIZES)]
            queue.publish(
                body,
                headers={"n": number, "thread": thread},
                properties={"message_id": str(number)},
                persistent=number % 10 != 9,
            )
            tell("p", number)

    def consume() -> None:
        for at, delivery in enumerate(queue.consume(prefetch=1000)):
            number = delivery.headers["n"]
            if at % 7 == 0:
                delivery.nack()
            elif at % 6000 < 5900:  # a hundred in a row stay with the consumer
                tell("s", number)
                delivery.ack()
                tell("a", number)

    threads = [threading.Thread(target=publish, args=(thread,)) for thread in range(2)]
    for thread in (*threads, threading.Thread(target=consume)):
        thread.start()
    for thread in threads:
        thread.join()


def kill_in_the_middle(directory: Path, name: str, after: int) -> dict[str, set[int]]:
    """Run :func:`work` in a child process and kill it after some lines; gives what it told."""
    code = f"from {__name__} import work; work({str(directory)!r}, {name!r})"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    lines = []
    with child.stdout as told:
        for line in told:
            lines.append(line)
            if len(lines) == after:
                child.kill()
    assert child.wait() == -9
    steps: dict[str, set[int]] = {"p": set(), "s": set(), "a": set()}
    for line in lines:
        if line.endswith(b"\n"):
            steps[line[:1].decode()].add(int(line[2:]))
    return steps


def number_of(body: bytes) -> int:
    return int(body.split(b" ", 1)[0])


def check_books(steps: dict[str, set[int]], numbers: list[int]) -> None:
    """Hold the numbers of what was delivered against what the killed process had told."""
    assert len(set(numbers)) == len(numbers)
    lasting = {number for number in steps["p"] if number % 10 != 9}
    assert set(numbers) >= lasting - steps["s"]
    assert not set(numbers) & steps["a"]
    for thread in range(2):
        own = [number for number in numbers if number // 1_000_000 == thread]
        assert own == sorted(own)
