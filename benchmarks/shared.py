"""Several processes on one store, beside what else Python programs use between processes, and
beside a bare echo over the same kind of socket. ``python -m benchmarks.shared`` prints tables; two
minutes, ``--peers`` five more.

Each figure is of ``--processes`` processes, each with a queue's work on one shared queue, for
``--seconds`` seconds; rounds of the contenders are interleaved, and the median is shown. On
a busy machine the CPU of a message says more than their number a second. A contender that is not
installed is left out with a line that says so; ``REDIS_SERVER`` names Redis's program.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import qindex
from qindex.format import layout

BODY = b"x" * int(os.environ.get("BODY_BYTES", "100"))
BATCH = 1000
TASKS = ("publish", "get + ack", "get(ack=)", "consume + ack", "consume + ack_many", "batches")
PEERS = ("sqlite", "sqlite-full", "redis", "redis-always", "litequeue", "persist-queue", "huey")
REDIS = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")


class Peer(Protocol):
    """Another queue: ``publish`` one message, or ``take`` one and acknowledge it."""

    def publish(self) -> int: ...
    def take(self) -> int: ...


class Redis:
    """A list, and another one for what a worker has taken."""

    def __init__(self, directory: str) -> None:
        import redis

        self.redis: Any = redis.Redis(unix_socket_path=os.path.join(directory, "redis.sock"))
        self.mine = f"taken-{os.getpid()}"

    def publish(self) -> int:
        self.redis.lpush("q", BODY)
        return 1

    def take(self) -> int:
        body = self.redis.blmove("q", self.mine, 1, "RIGHT", "LEFT")
        if body is None:
            return self.publish()
        self.redis.lrem(self.mine, 1, body)
        return 1


class Litequeue:
    def __init__(self, directory: str) -> None:
        from litequeue import LiteQueue

        self.queue = LiteQueue(os.path.join(directory, "q.db"), timeout=60)

    def publish(self) -> int:
        self.queue.put(BODY)
        return 1

    def take(self) -> int:
        message = self.queue.pop()
        if message is None:
            return self.publish()
        self.queue.done(message.message_id)
        return 1


class PersistQueue:
    def __init__(self, directory: str) -> None:
        import persistqueue

        self.queue = persistqueue.SQLiteAckQueue(directory, auto_commit=True, timeout=60)

    def publish(self) -> int:
        self.queue.put(BODY)
        return 1

    def take(self) -> int:
        self.queue.ack(self.queue.get())
        return 1


class Huey:
    """Its storage alone, which has no acknowledgement."""

    def __init__(self, directory: str) -> None:
        from huey.storage import SqliteStorage

        self.storage = SqliteStorage("q", filename=os.path.join(directory, "q.db"), timeout=60)

    def publish(self) -> int:
        self.storage.enqueue(BODY)
        return 1

    def take(self) -> int:
        return 1 if self.storage.dequeue() is not None else self.publish()


class Sqlite:
    """A queue by hand: WAL, ``synchronous=NORMAL``, a claim by UPDATE ... RETURNING."""

    def __init__(self, directory: str, synchronous: str = "NORMAL") -> None:
        self.db = sqlite3.connect(os.path.join(directory, "q.db"), 60, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={synchronous}")
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


def peer_of(contender: str, directory: str) -> Peer:
    """Open another queue. Raises :class:`ImportError` for one that is not installed."""
    if contender.startswith("sqlite"):
        return Sqlite(directory, "FULL" if contender == "sqlite-full" else "NORMAL")
    kinds: dict[str, Callable[[str], Peer]] = {
        "litequeue": Litequeue,
        "persist-queue": PersistQueue,
        "huey": Huey,
    }
    return kinds.get(contender, Redis)(directory)


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
    if contender != "qindex":
        store = peer_of(contender, directory)
        if isinstance(store, Sqlite) and task == "batches":
            sqlite = store
            return lambda: sqlite.publish(BATCH) and sqlite.take_many(BATCH)
        return store.publish if task in ("publish", "confirm") else store.take
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

    def confirm() -> int:
        queue.publish(BODY, confirm=True)
        return 1

    steps = (publish, get_and_ack, get_next, consume, consume_many, batches)
    return {**dict(zip(TASKS, steps, strict=True)), "confirm": confirm}[task]


def child(contender: str, task: str, directory: str, seconds: float) -> None:
    step = step_of(contender, task, directory)
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    began = time.process_time()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for _ in range(1 if task in ("batches", "confirm") else 20):
            done += step()
    print(done, time.process_time() - began, flush=True)
    sys.stdin.readline()
    os._exit(0)


def waiter(contender: str, directory: str, count: int) -> None:
    """Wait for messages that say when they were sent; print how long the median took, and the
    slowest hundredth."""
    if contender == "qindex":
        queue = qindex.open(directory, shared=True).queue("q")
        get: Callable[[], bytes] = lambda: _acked(queue.get())  # noqa: E731
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(os.path.join(directory, "echo.sock"))
        get = partial(sock.recv, 20, socket.MSG_WAITALL)
    print("ready", flush=True)
    late = sorted(-int(get()) + time.monotonic_ns() for _ in range(count))
    print(late[count // 2] / 1e6, late[count * 99 // 100] / 1e6, flush=True)
    os._exit(0)


def _acked(delivery: qindex.Delivery) -> bytes:
    delivery.ack()
    return delivery.body


def echo_server(path: str, relays: bool) -> None:
    """An event loop that sends back what it gets, or with ``relays`` to all others."""
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
                for at, other in socks.items():
                    if relays != (at == fd):
                        other.send(data)
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


@contextlib.contextmanager
def served(
    contender: str, directory: str, backlog: int, *, relays: bool = False
) -> Iterator[int | None]:
    """Have what a contender needs beside its clients: a server, whose process it gives, and a
    backlog."""
    server: subprocess.Popen[str] | None = None
    keeper = None
    if contender == "echo":
        server = _start("--relay" if relays else "--echo", os.path.join(directory, "echo.sock"))
        _says(server)
    elif contender.startswith("redis"):
        server = _redis(directory, "always" if contender == "redis-always" else "everysec")
    try:
        if contender == "qindex":
            keeper = qindex.open(directory, shared=True, linger=0)
            queue = keeper.queue("q")
            for start in range(0, backlog, 100_000):
                queue.publish_many([BODY] * min(backlog - start, 100_000))
            queue.flush()
        elif contender != "echo":
            store = peer_of(contender, directory)
            if isinstance(store, Sqlite) and backlog:
                store.publish(backlog)
            else:
                for _ in range(min(backlog, 20_000)):
                    store.publish()
        if keeper is not None:
            yield int(Path(directory, layout.LOCK).read_text().split()[0])
        else:
            yield None if server is None else server.pid
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        if keeper is not None:
            keeper.close()
            time.sleep(0.3)  # the server ends


def _redis(directory: str, fsync: str) -> subprocess.Popen[str]:
    if REDIS is None:
        raise ImportError("there is no redis-server")
    path = os.path.join(directory, "redis.sock")
    command = [REDIS, "--port", "0", "--unixsocket", path, "--dir", directory, "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", fsync]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
    while not os.path.exists(path):
        time.sleep(0.01)
    return server


def _cpu_of(pid: int | None) -> float:
    """Give the seconds of CPU that a process has taken."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(contender: str, task: str, processes: int, seconds: float) -> tuple[float, float]:
    """Give the messages a second of all processes together, and the microseconds of CPU that a
    message takes, in all of them and the server."""
    needs = task not in ("publish", "batches", "confirm")
    backlog = (int(60_000 * seconds * 1.5) + 20_000) * needs
    if contender == "qindex":
        backlog *= 12 if task == "consume + ack_many" else 2
    with (
        tempfile.TemporaryDirectory() as directory,
        served(contender, directory, backlog) as server,
    ):
        children = [
            _start("--child", contender, task, directory, str(seconds)) for _ in range(processes)
        ]
        try:
            for one in children:
                assert _says(one) == "ready\n"
            before = _cpu_of(server)
            for one in children:
                _tell(one)
            said = [_says(one).split() for one in children]
            count = sum(int(done) for done, _ in said)
            cpu = _cpu_of(server) - before + sum(float(spent) for _, spent in said)
            return count / seconds, cpu * 1e6 / count
        finally:
            for one in children:
                _tell(one)
                one.communicate()


def latency(contender: str, count: int = 400) -> tuple[float, float]:
    """Give the milliseconds from a publish to the end of a get that waits in another process: of
    the median, and of the slowest hundredth."""
    with (
        tempfile.TemporaryDirectory() as directory,
        served(contender, directory, 0, relays=True),
    ):
        one = _start("--waiter", contender, directory, str(count))
        assert _says(one) == "ready\n"
        send: Callable[[bytes], Any]
        if contender == "qindex":
            send = qindex.open(directory, shared=True).queue("q").publish
        else:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(os.path.join(directory, "echo.sock"))
            send = sock.sendall
        for _ in range(count):
            time.sleep(0.003)
            send(b"%020d" % time.monotonic_ns())
        median, slow = map(float, one.communicate()[0].split())
        return median, slow


def peers_table(processes: int, seconds: float, rounds: int) -> None:
    """Print the rates of other queues beside ours."""
    figures: dict[tuple[str, str], list[float]] = {}
    tasks = {"publish": "publish", "get + ack": "get(ack=)"}
    missing: set[str] = set()
    for _ in range(rounds):
        for task, ours in tasks.items():
            for contender in ("qindex", *PEERS):
                if contender in missing or contender in ("sqlite-full", "redis-always"):
                    continue
                try:
                    work = ours if contender == "qindex" else task
                    found = measure(contender, work, processes, seconds)[0]
                except ImportError as error:
                    print(f"{contender} is left out: {error}")
                    missing.add(contender)
                    continue
                figures.setdefault((contender, task), []).append(found)
        for contender in ("qindex", "sqlite-full", "redis-always"):
            if contender.partition("-")[0] not in missing:
                found = measure(contender, "confirm", 2 * processes, seconds)[0]
                figures.setdefault((contender, "confirm"), []).append(found)
    print(f"\nbodies of {len(BODY)} bytes; confirm: {2 * processes} processes, synced to disk\n")
    print("| | publish | ours / it | get, ack | ours: get(ack=) / it | confirm | ours / it |")
    print("|---|---|---|---|---|---|---|")
    medians = {key: statistics.median(values) for key, values in figures.items()}
    for contender in ("qindex", *PEERS):
        cells = []
        for task in (*tasks, "confirm"):
            theirs = medians.get((contender, task))
            ratio = "" if theirs is None else f"{medians['qindex', task] / theirs:.2f}"
            cells += ["", ""] if theirs is None else [f"{theirs:,.0f}", ratio]
        if any(cells):
            print(f"| {contender} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="beside other queues, too")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--waiter", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        contender, task, directory, seconds = given.child
        child(contender, task, directory, float(seconds))
    if given.waiter:
        waiter(given.waiter[0], given.waiter[1], int(given.waiter[2]))
    if given.echo or given.relay:
        echo_server(given.echo or given.relay, bool(given.relay))
    figures: dict[tuple[str, str], list[float]] = {}
    sqlite_tasks = ("publish", "get + ack", "batches")
    costs: dict[tuple[str, str], list[float]] = {}
    late: dict[str, list[tuple[float, float]]] = {"qindex": [], "echo": []}
    for _ in range(given.rounds):
        for task in TASKS:
            # The echo stands beside each task: a busy machine is not equally busy all the time.
            contenders = ["qindex", "echo", *(["sqlite"] if task in sqlite_tasks else [])]
            for contender in contenders:
                rate, cpu = measure(contender, task, given.processes, given.seconds)
                figures.setdefault((contender, task), []).append(rate)
                costs.setdefault((contender, task), []).append(cpu)
        for contender, values in late.items():
            values.append(latency(contender))
    medians = {key: statistics.median(values) for key, values in figures.items()}
    spent = {key: statistics.median(values) for key, values in costs.items()}
    print(
        f"qindex {qindex.__build__}, {given.processes} processes, {os.cpu_count()} cores, ", end=""
    )
    print(f"in {Path(tempfile.gettempdir())}, bodies of {len(BODY)} bytes\n")
    print(
        "| work | qindex, shared | SQLite | ours / SQLite | ours / echo | CPU, us | echo's / ours |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in TASKS:
        ours = medians["qindex", task]
        theirs = medians["sqlite", task if task in sqlite_tasks else "get + ack"]
        trips = 2 if task == "get + ack" else 1
        cells = [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}", "", "", ""]
        if "many" not in task and task != "batches":
            cells[3] = f"{ours * trips / medians['echo', task]:.2f}"
            cells[4] = f"{spent['qindex', task]:.1f}"
            cells[5] = f"{spent['echo', task] * trips / spent['qindex', task]:.2f}"
        print(f"| {task} | {' | '.join(cells)} |")
    for contender, what in (("qindex", "publish to a get that waits"), ("echo", "a bare relay")):
        median, slow = map(statistics.median, zip(*late[contender], strict=True))
        print(f"{what}: p50 {median:.3f} ms, p99 {slow:.3f} ms")
    if given.peers:
        peers_table(given.processes, given.seconds, given.rounds)


if __name__ == "__main__":
    main()
