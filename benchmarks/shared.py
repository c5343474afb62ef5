"""Several processes on one shared store, beside a queue in SQLite and a bare echo.

It takes two minutes, ``--peers`` five more.

Each figure is of ``--processes`` processes that do the same on one queue for ``--seconds`` seconds.
The floor is one echo over the same kind of socket: a get and an ack are two round trips, every
other call of ours is one. CPU is that of all processes and of the server.
"""

from __future__ import annotations

import importlib
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import qindex
from benchmarks.bodies import BODY_BYTES, Bodies
from benchmarks.peers import SqliteFifo
from benchmarks.program import child, common_parser, fresh, installed, parse_common, reporting
from benchmarks.report import FLOOR, MANY, OURS
from benchmarks.stopwatch import Found, Sample, Stopwatch
from benchmarks.tasks import build
from qindex.compare.contender import Fifo
from qindex.compare.designs import QueueIndexDesign
from qindex.compare.peers import Litequeue, PersistQueue
from qindex.format import layout

BODY = b"x" * BODY_BYTES
BATCH = 1000
REDIS = shutil.which("redis-server")
_WOKEN = 400
_LATE = {f"publish to a get that waits, p{percent}": percent for percent in (50, 99)}
_ECHO, _REDIS = "echo.sock", "redis.sock"


class Shared(QueueIndexDesign):
    """Our queue, of which another process is the server."""

    def __init__(self, directory: Path, durability: str) -> None:
        self._engine = qindex.open(directory, shared=True, linger=0)  # type: ignore[assignment]
        self.queue = self._engine.queue("q")


class Acking(Shared):
    """A get acknowledges the message before."""

    name = "qindex, get(ack=)"
    _held = None

    def take(self) -> tuple[Any, bytes] | None:
        self._held = self.queue.get(timeout=0, ack=self._held)
        return None if self._held is None else (None, self._held.body)

    def ack(self, token: Any) -> None:
        pass


class Consuming(Shared):
    """Messages are sent ahead, and acknowledged one by one."""

    name = "qindex, consume"

    def __init__(self, directory: Path, durability: str) -> None:
        super().__init__(directory, durability)
        self._messages = self.queue.consume(prefetch=200)

    def take(self) -> tuple[Any, bytes] | None:
        delivery = next(self._messages)
        return delivery, delivery.body


class ConsumingMany(Consuming):
    """Messages are sent ahead, and acknowledged a hundred at a time."""

    name = "qindex, consume, ack_many"

    def __init__(self, directory: Path, durability: str) -> None:
        super().__init__(directory, durability)
        self._held: list[Any] = []

    def ack(self, token: Any) -> None:
        self._held.append(token)
        if len(self._held) == 100:
            self.queue.ack_many(self._held)
            self._held.clear()


class Echo(Fifo):
    """One round trip to publish, and one for a get and an ack."""

    name = FLOOR

    def __init__(self, directory: Path, durability: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(directory / _ECHO))

    def publish(self, body: bytes) -> None:
        self._socket.sendall(body)
        self._socket.recv(4096)

    def take(self) -> tuple[Any, bytes]:
        self.publish(BODY)
        return None, BODY

    def close(self) -> None:
        self._socket.close()


class SharedSqlite(SqliteFifo):
    """The queue written by hand, for several processes: UPDATE ... RETURNING claims messages."""

    columns = "id INTEGER PRIMARY KEY, body BLOB, taken INT DEFAULT 0"

    def __init__(self, directory: Path, durability: str) -> None:
        super().__init__(directory, durability)
        self._db.execute("PRAGMA busy_timeout = 60000")
        self._db.execute("CREATE INDEX IF NOT EXISTS ready ON messages (id) WHERE taken = 0")

    def _claim(self, count: int) -> list[tuple[int, bytes]]:
        return self._db.execute(
            "UPDATE messages SET taken = 1 WHERE id IN (SELECT id FROM messages WHERE taken = 0 "
            "ORDER BY id LIMIT ?) RETURNING id, body",
            (count,),
        ).fetchall()

    def take(self) -> tuple[int, bytes] | None:
        return next(iter(self._claim(1)), None)

    def get_ack_many(self, count: int) -> list[bytes]:
        rows = self._claim(count)
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("DELETE FROM messages WHERE id = ?", [(row[0],) for row in rows])
        self._db.execute("COMMIT")
        return [body for _, body in rows]


class Redis(Fifo):
    """A list, and another one for what a worker has taken; synced every second."""

    name = module = "redis"

    def __init__(self, directory: Path, durability: str) -> None:
        library = importlib.import_module("redis")
        self._redis = library.Redis(unix_socket_path=str(directory / _REDIS))
        self._mine = f"taken-{os.getpid()}"

    @classmethod
    def is_installed(cls) -> bool:
        return REDIS is not None and super().is_installed()

    def publish(self, body: bytes) -> None:
        self._redis.lpush("q", body)

    def take(self) -> tuple[Any, bytes] | None:
        body = self._redis.blmove("q", self._mine, 1, "RIGHT", "LEFT")
        return None if body is None else (body, body)

    def ack(self, token: Any) -> None:
        self._redis.lrem(self._mine, 1, token)

    def close(self) -> None:
        self._redis.close()


OURS_ALONE = (Acking, Consuming, ConsumingMany)
PEERS: tuple[type[Fifo], ...] = (Redis, Litequeue, PersistQueue)
KINDS: tuple[type[Fifo], ...] = (Echo, Shared, *OURS_ALONE, SharedSqlite, *PEERS)
CONTENDERS = {kind.name: kind for kind in KINDS}


def _publish(queue: Fifo) -> int:
    queue.publish(BODY)
    return 1


def _get_ack(queue: Fifo) -> int:
    taken = queue.take()
    if taken is None:
        return _publish(queue)  # more was taken than there was
    queue.ack(taken[0])
    return 1


def _batches(queue: Fifo) -> int:
    queue.publish_many([BODY] * BATCH)
    return len(queue.get_ack_many(BATCH))


STEPS: dict[str, Callable[[Fifo], int]] = {
    "publish": _publish,
    "get + ack": _get_ack,
    "batches": _batches,
}
"""What a process does over and over, by figure: each gives the messages that it was for."""
_opened: list[Any] = []


def begin(who: str, directory: str) -> None:
    """Open a contender in a worker's process."""
    _opened.append(CONTENDERS[who](Path(directory), "os"))


def work(figure: str, seconds: float) -> tuple[int, float, float]:
    """Do it for so many seconds; return the messages, the seconds, and those of CPU."""
    step, done, watch = STEPS[figure], 0, Stopwatch()
    for size in watch.chunks(sys.maxsize, seconds, 1, 1 if figure == "batches" else 16):
        with watch.running():
            for _ in range(size):
                done += step(_opened[0])
    return done, watch.wall, watch.cpu


def wait_for(count: int) -> list[float]:
    """Take messages that say when they were sent; return the milliseconds that each took."""
    late = []
    for _ in range(count):
        delivery = _opened[0].queue.get()
        delivery.ack()
        late.append((time.monotonic_ns() - int(delivery.body)) / 1e6)
    return late


def serve_echo(path: str) -> int:
    """Start to send back what comes, from an event loop; return the number of this process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_echo, args=(listener,), daemon=True).start()
    return os.getpid()


def _echo(listener: socket.socket) -> None:
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    connected: dict[int, socket.socket] = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                new, _ = listener.accept()
                connected[new.fileno()] = new
                epoll.register(new, select.EPOLLIN)
            elif data := connected[fd].recv(65536):
                connected[fd].send(data)
            else:
                epoll.unregister(fd)
                connected.pop(fd).close()


@contextmanager
def served(who: str, directory: Path, backlog: int) -> Iterator[int]:
    """Have a backlog, and what a contender needs beside its clients: gives the number of the
    server's process, or that of this one where there is none."""
    server = os.getpid()
    with ExitStack() as stack:
        if who == FLOOR:
            worker = stack.enter_context(child())
            server = worker.call(serve_echo, path=directory / _ECHO)
        elif who == Redis.name:
            server = stack.enter_context(_redis(directory)).pid
        queue = CONTENDERS[who](directory, "os")
        build(queue, Bodies(), backlog)
        if isinstance(queue, Shared):
            queue.queue.flush()
            server = int((directory / layout.LOCK).read_text().split()[0])
        yield server
        queue.close()
    if isinstance(queue, Shared):
        time.sleep(0.3)  # the server ends


@contextmanager
def _redis(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    assert REDIS is not None
    path = directory / _REDIS
    words = [REDIS, "--port", "0", "--unixsocket", _REDIS, "--appendonly", "yes", "--save", ""]
    server = subprocess.Popen(words, cwd=directory, stdout=subprocess.DEVNULL)
    try:
        while not path.exists():
            time.sleep(0.01)
        yield server
    finally:
        server.kill()
        server.wait()


def _cpu_of(process: int) -> float:
    """The seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(root: Path, who: str, figure: str, processes: int, seconds: float) -> Sample:
    """Measure all processes of a contender together."""
    kind, backlog = CONTENDERS[who], 0
    if figure == "get + ack" and who != FLOOR:
        many = kind.batch_publish and not kind.linear
        backlog = 20_000 + int(1_000_000 * seconds) * many
    with (
        fresh(root) as directory,
        served(who, directory, backlog) as server,
        ExitStack() as stack,
    ):
        workers = [stack.enter_context(child()) for _ in range(processes)]
        for worker in workers:
            worker.call(begin, who=who, directory=directory)
        before = _cpu_of(server)
        for worker in workers:
            worker.start(work, figure=figure, seconds=seconds)
        found = [worker.result() for worker in workers]
        cpu = _cpu_of(server) - before + sum(cpu for _, _, cpu in found)
    count = sum(done for done, _, _ in found)
    return Sample(sum(done / wall for done, wall, _ in found), cpu / count * 1e6, count)


def woken(root: Path) -> list[float]:
    """Milliseconds from a publish to the end of a get that waits in another process."""
    with fresh(root) as directory, served(OURS, directory, 0), child() as waiter:
        waiter.call(begin, who=OURS, directory=directory)
        waiter.start(wait_for, count=_WOKEN)
        ours = Shared(directory, "os")
        for _ in range(_WOKEN):
            time.sleep(0.003)
            ours.publish(b"%020d" % time.monotonic_ns())
        late: list[float] = waiter.result()
        ours.close()
    return late


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    parser = common_parser("shared", __doc__, rounds=3)
    parser.add_argument("--processes", type=int, default=4, help="that work at once (4)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each figure (1)")
    parser.add_argument("--peers", action="store_true", help="beside other queues, too")
    options = parse_common(parser, arguments)
    with reporting(options) as (report, root):
        others = [SharedSqlite.name, *installed(PEERS if options.peers else (), report)]
        ours = [kind.name for kind in OURS_ALONE]
        contenders = {
            "publish": (FLOOR, OURS, *others),
            "get + ack": (FLOOR, OURS, *ours, *others),
            "batches": (OURS, SharedSqlite.name),
        }
        found = Found()
        for _ in range(options.rounds):
            for figure, names in contenders.items():
                given = (figure, options.processes, options.seconds)
                for who in names:
                    found.note(figure, who, measure(root, who, *given))
            late = woken(root)
            for figure, percent in _LATE.items():
                found.note(figure, OURS, Sample(float(np.percentile(late, percent))))
        for figure, rounds in found.items():
            unit, better = ("ms", "low") if figure in _LATE else (MANY, "high")
            report.add(figure, rounds, unit=unit, better=better, comparable=others)
    return 0


if __name__ == "__main__":
    sys.exit(main())
