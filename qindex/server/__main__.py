"""``python -m qindex.server``: serve a directory, in the background or in the foreground."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgpack

from journal.errors import LockedError, StoreError
from qindex.engine.opening import open_store
from qindex.server import place, signals, spawn
from qindex.server import protocol as wire
from qindex.server.server import Server

_log = logging.getLogger("qindex.server")

_MAX_DESCRIPTORS = 1 << 20


def serve(
    directory: str,
    options: dict[str, Any],
    *,
    linger: float | None,
    group: int | None = None,
    lock: int | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve a store until SIGTERM or SIGINT, or until its last client has gone.

    Without ``lock`` this is `qindex serve`: it marks the store, and a server ends that a client has
    started. ``lock``: the lock, which the caller has already; ``ready``: called when clients
    can come. Raises what opening the store raises, :class:`LockedError` where a server has it.
    """
    os.umask(0o077)
    directory = os.path.abspath(directory)
    if lock is None:
        place.prepare(directory)
    fd = place.open_directory(directory)
    is_new = False
    try:
        if lock is None:
            is_new = place.mark(directory, fd)
            lock = spawn.take_over(directory, fd, options.get("lock_timeout", 0))
            if lock is None:
                raise LockedError(directory, None, remedy="a server has it already")
        engine = open_store(directory, **options)
        server: Server | None = None
        try:
            listener, number = place.listen(directory, fd, group)
            _raise_limit()
            server = Server(engine, listener, linger=linger, group=group)
            with signals.heard() as told:
                server.signalled = told.fileno()
                ready()
                is_new = False
                server.run()
            # A client that is refused from here on starts another server, which waits for the lock.
            server.refuse_new()
            place.remove_socket(fd, number)
        finally:
            if server is not None:
                server.close()
            else:
                engine.close()
    finally:
        if is_new:
            place.unmark(directory, fd)  # it never served
        os.close(fd)
        if lock is not None:
            os.close(lock)


def _raise_limit() -> None:
    """Let the server have as many descriptors as it may: each thread of a client has one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def spawned() -> int:
    """Serve as :mod:`qindex.server.spawn` has started this process: standard input is the lock,
    standard output goes to the starter until clients can come, standard error is the log."""
    directory, options, linger = msgpack.unpackb(bytes.fromhex(sys.argv[1]))
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format=f"%(asctime)s {os.getpid()} %(levelname)s %(message)s",
    )
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    has_said = False

    def say(*what: Any) -> None:
        nonlocal has_said
        if has_said:
            return  # standard output is the log by now, which has text
        has_said = True
        with contextlib.suppress(OSError):
            os.write(1, msgpack.packb(what))
        os.dup2(2, 1)

    try:
        serve(directory, options, linger=linger, lock=0, ready=lambda: say("ready"))
    except StoreError as error:
        say("error", *wire.error_values(error))
        _log.error("%s", error)
        return 1
    except Exception as error:
        say("error", "StoreError", f"{type(error).__name__}: {error}", {})
        _log.exception("the server has failed")
        return 70
    return 0


def notify(state: str) -> None:
    """Tell systemd, if it has started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), address)


if __name__ == "__main__":
    sys.exit(spawned())
