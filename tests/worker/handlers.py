"""Handlers that the tests' processes import."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any

from qindex.worker import Reject, Retry

HELD: list[bytearray] = []
KEPT: list[Any] = []


class _Odd:
    """It can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Bare(Retry):
    def __init__(self) -> None:
        """Not that of the class above."""


class Backwards(Retry):
    def __init__(self) -> None:
        super().__init__()
        self.delay = -1


class Refused(Reject):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def handle(delivery: Any) -> None:
    """Do what the body says: a word, and what it is given."""
    what, _, rest = delivery.body.decode().partition(" ")
    if what == "write":
        path, _, text = rest.partition(" ")
        with open(path, "a") as file:
            file.write(f"{text} {delivery.delivery_count} {os.getpid()}\n")
        if text == "slowly":
            time.sleep(600)
    elif what == "raise":
        raise ValueError(rest)
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        os._exit(int(rest))
    elif what == "hang":
        while True:
            pass
    elif what == "sleep":
        time.sleep(float(rest))
    elif what == "start":
        path, _, then = rest.partition(" ")
        program = subprocess.Popen(["sleep", "600"])
        with open(path, "w") as file:
            file.write(f"{program.pid}\n")
        KEPT.append(program)
        while then == "hang":
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "hold":
        HELD.append(bytearray(int(rest)))
    elif what == "retry":
        raise Retry(float(rest), count=False)
    elif what == "refuse":
        raise Reject(rest)
    elif what == "ack":
        delivery.ack()
    elif what == "move":
        delivery.move(rest, headers={"moved": True})
    elif what == "keep":
        KEPT.append(delivery)
    elif what == "late":
        KEPT.pop().ack()
    elif what == "odd":
        with contextlib.suppress(Exception):
            delivery.move("other", headers={"a": _Odd()})
    elif what == "forked":
        if os.fork() == 0:
            time.sleep(0.2)
    elif what == "forks":
        if os.fork() == 0:
            time.sleep(0.05)
        else:
            os.wait()
    elif what == "unsayable":
        raise Unsayable
    elif what == "bare":
        raise Bare
    elif what == "backwards":
        raise Backwards
    elif what == "before":
        raise Retry(float(rest))
    elif what == "signal":
        os.kill(os.getpid(), int(rest))
    elif what == "exits":
        sys.exit(3)
    elif what == "refused":
        raise Refused("no", "way")
    elif what == "twice":
        delivery.ack()
        delivery.ack()


async def handle_soon(delivery: Any) -> None:
    what, _, rest = delivery.body.decode().partition(" ")
    await asyncio.sleep(0)
    if what == "sleep":
        await asyncio.sleep(float(rest))
    elif what == "hang":
        await asyncio.Event().wait()
    elif what == "stop":
        asyncio.get_running_loop().stop()
    else:
        handle(delivery)


BY_TYPE = {"known": handle}
NOTHING = 5
