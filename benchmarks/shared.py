"""Several processes on one store, beside SQLite by hand, and beside a bare echo over the same kind
of socket. ``python -m benchmarks.shared`` prints a table; a minute.

Each figure is of ``--processes`` processes, each with a queue's work on one shared queue, for
``--seconds`` seconds; rounds of the contenders are interleaved, and the median is shown.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import qindex

BODY = b"x" * 100
BATCH = 1000
TASKS = ("publish", "get + ack", "get(ack=)", "consume + ack", "consume + ack_many", "batches")
SQLITE = {"publish": "publish", "batches": "batches"}
"""What SQLite's programs do for each of our tasks: elsewhere a get and an ack, one by one."""


class Sqlite:
    """A queue by hand: WAL, ``synchronous=NORMAL``, a claim by UPDATE ... RETURNING."""

    def __init__(self, directory: str) -> None:
        self.db = sqlite3.connect(os.path.join(directory, "q.db"), 60, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=NORMAL")
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS q (id INTEGER PRIMARY KEY, body BLOB, taken INT DEFAULT 0)"
        )
        self.db.execute("CREATE INDEX IF NOT EXISTS ready ON q (id) WHERE taken = 0")

    def publish(self, count: int = 1) -> int:
        if count == 1:
            self.db.execute("INSERT INTO q (body) VALUES (?)", (BODY,))
        else:
            self.db.execute("BEGIN IMMEDIATE")
            self.db.executemany("INSERT INTO q (body) VALUES (?)", [(BODY,)] * count)
            self.db.execute("COMMIT")
        return count

    def take(self) -> int:
        got = self.db.execute(
            "UPDATE q SET taken = 1 WHERE id = (SELECT id FROM q WHERE taken = 0 ORDER BY id "
            "LIMIT 1) RETURNING id, body"
        ).fetchall()
        if not got:
            return self.publish()
        self.db.execute("DELETE FROM q WHERE id = ?", (got[0][0],))
        return 1

    def take_many(self, count: int) -> int:
        self.db.execute("BEGIN IMMEDIATE")
        got = self.db.execute(
            "UPDATE q SET taken = 1 WHERE id IN (SELECT id FROM q WHERE taken = 0 ORDER BY id "
            "LIMIT ?) RETURNING id, body",
            (count,),
        ).fetchall()
        self.db.execute("COMMIT")
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany("DELETE FROM q WHERE id = ?", [(one[0],) for one in got])
        self.db.execute("COMMIT")
        return len(got)


def step_of(contender: str, task: str, directory: str) -> Callable[[], int]:
    """Give what a process does over and over; it gives the messages that it was for."""
    if contender == "echo":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(os.path.join(directory, "echo.sock"))

        def echo() -> int:
            sock.sendall(BODY)
            sock.recv(4096)
            return 1

        return echo
    if contender == "sqlite":
        store = Sqlite(directory)
        if task == "batches":
            return lambda: store.publish(BATCH) and store.take_many(BATCH)
        return store.publish if task == "publish" else store.take
    queue = qindex.open(directory, shared=True).queue("q")
    return _our_step(queue, task)


def _our_step(queue: qindex.SharedQueue, task: str) -> Callable[[], int]:
    held: list[Any] = []
    messages = queue.consume(prefetch=200)

    def get_next() -> int:
        held[:] = [queue.get(ack=held[0] if held else None)]
        return 1

    def get_and_ack() -> int:
        queue.get().ack()
        return 1

    def consume() -> int:
        next(messages).ack()
        return 1

    def consume_many() -> int:
        held.append(next(messages))
        if len(held) == 100:
            queue.ack_many(held)
            held.clear()
        return 1

    def publish() -> int:
        queue.publish(BODY)
        return 1

    def batches() -> int:
        queue.publish_many([BODY] * BATCH)
        batch = queue.get_many(BATCH)
        queue.ack_many(batch)
        return len(batch)

    steps = (publish, get_and_ack, get_next, consume, consume_many, batches)
    return dict(zip(TASKS, steps, strict=True))[task]


def child(contender: str, task: str, directory: str, seconds: float) -> None:
    step = step_of(contender, task, directory)
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for _ in range(1 if task == "batches" else 20):
            done += step()
    print(done, flush=True)
    sys.stdin.readline()
    os._exit(0)


def echo_server(path: str) -> None:
    """An event loop that sends back what it gets."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    socks: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                sock, _ = listener.accept()
                sock.setblocking(False)
                socks[sock.fileno()] = sock
                epoll.register(sock, select.EPOLLIN)
            elif data := socks[fd].recv(65536):
                socks[fd].send(data)
            else:
                epoll.unregister(fd)
                socks.pop(fd).close()


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "benchmarks.shared", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def measure(contender: str, task: str, processes: int, seconds: float) -> float:
    """Give the messages a second of all processes together."""
    with tempfile.TemporaryDirectory() as directory:
        server = None
        keeper = None
        backlog = 0 if task in ("publish", "batches") else int(60_000 * seconds * 1.5) + 20_000
        if contender == "echo":
            server = _start("--echo", os.path.join(directory, "echo.sock"))
            _says(server)
        elif contender == "sqlite":
            store = Sqlite(directory)
            if backlog:
                store.publish(backlog)
        else:
            keeper = qindex.open(directory, shared=True, linger=0)
            if backlog:
                many = 12 if task == "consume + ack_many" else 2
                for _ in range(many):
                    keeper.queue("q").publish_many([BODY] * backlog)
                keeper.flush()
        children = [
            _start("--child", contender, task, directory, str(seconds)) for _ in range(processes)
        ]
        try:
            for one in children:
                assert _says(one) == "ready\n"
            for one in children:
                _tell(one)
            return sum(int(_says(one)) for one in children) / seconds
        finally:
            for one in children:
                _tell(one)
                one.communicate()
            if server is not None:
                server.kill()
                server.communicate()
            if keeper is not None:
                keeper.close()
                time.sleep(0.3)  # the server ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        contender, task, directory, seconds = given.child
        child(contender, task, directory, float(seconds))
    if given.echo:
        echo_server(given.echo)
    figures: dict[tuple[str, str], list[float]] = {}
    sqlite_tasks = ("publish", "get + ack", "batches")
    for _ in range(given.rounds):
        for task in TASKS:
            for contender in ("qindex", "sqlite") if task in sqlite_tasks else ("qindex",):
                found = measure(contender, task, given.processes, given.seconds)
                figures.setdefault((contender, task), []).append(found)
        echo = measure("echo", "publish", given.processes, given.seconds)
        figures.setdefault(("echo", "publish"), []).append(echo)
    medians = {key: statistics.median(values) for key, values in figures.items()}
    echo = medians["echo", "publish"]
    print(
        f"qindex {qindex.__build__}, {given.processes} processes, {os.cpu_count()} cores, ", end=""
    )
    print(f"in {Path(tempfile.gettempdir())}; a bare echo: {echo:,.0f} round trips a second\n")
    print("| work | qindex, shared | SQLite NORMAL by hand | ratio |\n|---|---|---|---|")
    for task in TASKS:
        ours = medians["qindex", task]
        theirs = medians["sqlite", task if task in sqlite_tasks else "get + ack"]
        print(f"| {task} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
