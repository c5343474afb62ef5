"""Find the server of a directory, or start one.

The process that takes the server's lock starts the server, and passes the lock to it as its
standard input. So the lock is never free in between, and twenty processes that start a server at
once start only one. The store's own lock is the engine's.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import msgpack

from journal.errors import DisconnectedError, LockedError, StorageError, UsageError, storage_errors
from qindex.format import layout
from qindex.server import place
from qindex.server import protocol as wire

_NEEDED = (
    "qindex",
    "journal",
    "msgstore",
    "msgpack",
    "numpy",
    "sortedcontainers",
    "xxhash",
    "isal",
)
"""Packages of the server: it finds them where this process does, and nowhere else."""
_PAUSE = 0.005
_LONG_PAUSE = 0.1
_PATIENCE = 30.0
"""Seconds for another's server to begin, or to end."""
_BOOT = (
    "import os, signal, sys\n"
    "signal.pthread_sigmask(signal.SIG_SETMASK, [])\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "paths, sys.argv[1:] = sys.argv[1].split(os.pathsep), sys.argv[2:]\n"
    "sys.path[:0] = paths[:1]\n"
    "sys.path += [one for one in paths[1:] if one not in sys.path]\n"
    "from qindex.server.__main__ import spawned\n"
    "sys.exit(spawned())\n"
)


def find(
    directory: str, options: dict[str, Any], linger: float, began: float | None = None
) -> socket.socket:
    """Connect to the server of a directory; start it with these options where there is none.

    ``began``: since when the caller waits for it. Raises what opening the store raises in the
    server, and :class:`StoreError`.
    """
    began = monotonic() if began is None else began
    given = options.get("lock_timeout", 0)
    pause = _PAUSE
    while True:
        sock = try_to_connect(directory)
        if sock is not None:
            return sock
        waited = monotonic() - began
        if not start(directory, options, linger):
            if waited > (given or _PATIENCE):
                raise DisconnectedError(
                    f"{directory}: `qindex serve` does not run, and no other server is started in "
                    f"its place: start it, or have clients start servers again by `qindex unserve "
                    f"{directory}`"
                )
            pause = min(2 * pause, _LONG_PAUSE)
        elif waited > max(_PATIENCE, given):
            raise DisconnectedError(f"{directory}: no server answers, and none has ended")
        sleep(pause)


def try_to_connect(directory: str) -> socket.socket | None:
    """Connect to the server, if one listens. Raises :class:`StorageError`."""
    try:
        return place.connect(directory)
    except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError, BlockingIOError):
        return None
    except NotADirectoryError:
        return None  # preparing it raises the right error
    except OSError as error:
        raise StorageError(directory, "the server can't be reached", error) from error


def start(directory: str, options: dict[str, Any], linger: float) -> bool:
    """Start a server, unless a server runs, begins or ends there. False where the store is marked
    for `qindex serve`. Raises its errors."""
    place.prepare(directory)
    with storage_errors(directory, "the store can't be opened"):
        fd = place.open_directory(directory)
    try:
        if place.is_marked(fd):
            return False
        lock = place.lock(directory, fd)
        if lock is None:
            return True
        try:
            if place.is_marked(fd):
                return False
            check_may_start()
            log = place.open_log(directory, fd)
            try:
                _spawn(directory, options, linger, lock, log)
            finally:
                os.close(log)
        finally:
            os.close(lock)
    finally:
        os.close(fd)
    return True


def take_over(directory: str, fd: int, seconds: float) -> int | None:
    """Take the server's lock for `qindex serve`, for which a server ends that a client has started.
    The store is marked, so that no client starts another one. ``None`` where another `qindex
    serve` has it, also after so many seconds."""
    began = monotonic()
    while True:
        lock = place.lock(directory, fd)
        if lock is not None:
            return lock
        most = _PATIENCE if _ask_to_end(directory) else 0
        if monotonic() - began > max(most, seconds):
            return None
        sleep(_PAUSE)


def _ask_to_end(directory: str) -> bool:
    """Ask a server to end. False if it does not."""
    try:
        sock = try_to_connect(directory)
        if sock is None:
            return True  # it begins, or ends
        with sock, sock.makefile("rb") as replies:
            sock.settimeout(_PATIENCE)
            for number, *request in (
                (1, wire.HELLO, "qindex", wire.VERSION, None),
                (2, wire.RETIRE),
            ):
                sock.sendall(wire.frame(number, *request))
                head = replies.read(wire.HEAD_SIZE)
                if len(head) < wire.HEAD_SIZE:
                    return True
                reply = msgpack.unpackb(replies.read(wire.HEAD.unpack(head)[0]))
                if reply[1] != wire.DONE:
                    return False
    except OSError:
        pass  # it has ended meanwhile
    return True


def check_may_start() -> None:
    """Raise :class:`UsageError` in a process that can't, or must not, start a server."""
    if not interpreter():
        raise UsageError(
            "a frozen program can't start the server of a shared store: run `qindex serve DIR`"
        )
    if os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        raise UsageError(
            "a process with another's rights (setuid) starts no server: run `qindex serve DIR`"
        )


def interpreter() -> str:
    """Return the path of the Python that runs here, or "" where there is none.

    ``sys.executable`` is another program where one has Python within it, such as uWSGI.
    """
    if getattr(sys, "frozen", False):
        return ""
    if os.path.basename(sys.executable or "").startswith(("python", "pypy")):
        return sys.executable
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = (os.path.join(root, "bin", name) for root in (sys.exec_prefix, sys.base_exec_prefix))
    return next(filter(os.path.exists, found), "")


def _paths() -> str:
    found: list[str] = []
    for name in _NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = os.path.dirname(spec.origin) if spec.submodule_search_locations else ""
            path = os.path.dirname(origin or spec.origin)
            if path not in found:
                found.append(os.path.abspath(path))
    return os.pathsep.join(found)


def _spawn(directory: str, options: dict[str, Any], linger: float, lock: int, log: int) -> None:
    """Start it, and wait until it serves; it says so on its standard output."""
    arguments = msgpack.packb([directory, options, linger]).hex()
    environment = {key: one for key, one in os.environ.items() if not key.startswith("PYTHON")}
    flags = ["-I", "-B"] if sys.flags.dont_write_bytecode else ["-I"]
    command = [interpreter(), *flags, "-c", _BOOT, _paths(), arguments]
    with (
        storage_errors(command[0], "the server can't be started"),
        subprocess.Popen(
            command,
            stdin=lock,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            umask=0o077,
            env=environment,
            close_fds=True,
        ) as process,
    ):
        assert process.stdout is not None
        said = process.stdout.read(1 << 16)
    try:
        kind, *values = msgpack.unpackb(said)
    except (ValueError, msgpack.UnpackException) as error:
        path = os.path.join(directory, layout.SERVER_LOG)
        raise DisconnectedError(f"{directory}: the server has ended as it began: {path}") from error
    if kind == "error":
        refused = wire.error_of(*values)
        if isinstance(refused, LockedError):
            who = "this process" if refused.pid == os.getpid() else "that process"
            refused.args = (f"{refused}; {who} has opened it without shared=True",)
        raise refused


def wait_until_gone(directory: str, seconds: float) -> bool:
    """Wait until no server has the directory. Return whether that happened."""
    deadline = monotonic() + seconds
    fd = place.open_directory(directory)
    try:
        while True:
            lock = place.lock(directory, fd)
            if lock is not None:
                os.close(lock)
                return True
            if monotonic() > deadline:
                return False
            sleep(_PAUSE)
    finally:
        with suppress(OSError):
            os.close(fd)
