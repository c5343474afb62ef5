"""``ready`` and ``unacked`` mean the same wherever they are said."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import qindex
from qindex.metrics import engine_families, exposition, store_families
from qindex.view.reader import StoreReader
from tests.cli.support import run
from tests.qindex.support import open_quietly

Figures = tuple[int, int | None, int | None]

_HOLD = """
import sys, time, qindex
engine = qindex.open(sys.argv[1])
engine.queue("q").get_many(3)
print("there", flush=True)
time.sleep(600)
"""


def said(directory: Path) -> dict[str, Figures]:
    """What everybody who looks at the files says: messages, ready, unacked."""
    found: dict[str, Figures] = {}
    (summary,) = StoreReader(directory).queues()
    found["reader"] = summary.messages, summary.ready, summary.unacked
    with qindex.open(directory, read_only=True) as engine:
        one = engine.queue("q").stats()
        found["read-only queue"] = one.messages, one.ready, one.unacked
        (one,) = engine.stats().queues
        found["read-only engine"] = one.messages, one.ready, one.unacked
    for command in ("list", "stats", "top"):
        (row,) = run(command, directory, "--json").rows
        row = row if command == "list" else row["queues"][0]
        found[command] = row["messages"], row["ready"], row["unacked"]
    cells = run("list", directory).text.splitlines()[1].split()[1:4]
    counts = [None if cell == "-" else int(cell) for cell in cells]
    assert counts[0] is not None
    found["table"] = counts[0], counts[1], counts[2]
    found["metrics"] = _exported(exposition(store_families([summary], None)))
    return found


def _exported(text: str) -> Figures:
    names = [f'qindex_queue_{name}{{queue="q"}} ' for name in ("messages", "ready", "unacked")]
    values = [
        int(float(line[len(name) :])) if line else None
        for name in names
        for line in [next((line for line in text.splitlines() if line.startswith(name)), "")]
    ]
    assert values[0] is not None
    return values[0], values[1], values[2]


def only(found: dict[str, Figures]) -> Figures:
    (figures,) = set(found.values())
    return figures


def test_one_meaning_everywhere(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 5)
        assert only(said(tmp_path)) == (5, 5, 0)
        for delivery in queue.get_many(5):
            delivery.nack()
        stats = queue.stats()
        assert (stats.messages, stats.ready, stats.unacked, len(queue)) == (5, 5, 0, 5)
        assert _exported(exposition(engine_families(engine.stats()))) == (5, 5, 0)
        # Which of what was delivered was given back, the engine alone knows.
        assert only(said(tmp_path)) == (5, None, None)
        held = queue.get_many(2)
        assert (queue.stats().ready, queue.stats().unacked) == (3, 2)
        queue.ack(held[0])
        assert only(said(tmp_path)) == (4, None, None)
    assert only(said(tmp_path)) == (4, 4, 0)


def test_what_a_killed_process_had_is_ready(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"x"] * 5)
    child = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    reader = StoreReader(tmp_path)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"there\n"
        assert only(said(tmp_path)) == (5, None, None)
        (look,) = reader.queues()
        assert (look.ready, look.delivered_before) == (None, 3)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert only(said(tmp_path)) == (5, 5, 0)
    # Nothing was done to the files since, and the figures follow all the same.
    (look,) = reader.queues()
    assert (look.ready, look.unacked) == (5, 0)
    with open_quietly(tmp_path) as engine:
        assert (len(engine.queue("q")), engine.queue("q").stats().unacked) == (5, 0)
