"""Requests of every verb with numbers, times and counts that no client of ours sends.

Each request is right, but for some of its values. The server answers, goes on, and does not grow.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.server import limits
from qindex.server import protocol as wire
from tests.effort import by_tier, chance
from tests.server.support import WAIT, end_server, log_of, server_pid
from tests.server.test_hostile import Raw, memory

FRAMES = by_tier(quick=4000, all=100_000, nightly=1_000_000)
A_CONNECTION = 250
"""Requests of one connection: some of them wait for ever."""
EDGES: list[Any] = [
    *(
        sign * ((1 << bits) + more)
        for bits in (31, 32, 53, 63)
        for more in (-1, 0, 1)
        for sign in (1, -1)
    ),
    *(0, 1, -1, 2, 255, 256, (1 << 64) - 1, -(1 << 63), 10**9, 10**10, 10**10 + 1),
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-320, 1e8, 1e9, 1e10, 1e18, 1e308, -1e308, 0.5),
    *(None, True, False, b"", "", [], {}, "x", b"x", [[]], {"": math.inf}),
]
EDGES = [one for one in EDGES if type(one) is not int or -(1 << 63) <= one < 1 << 64]
NAMES = ["a", "b", "levels", "", "x" * 256]
RARE = {wire.FLUSH, wire.SYNC, wire.COMPACT, wire.QUEUE_FLUSH, wire.QUEUE_SYNC, wire.DELETE_QUEUE}
RARE |= {wire.BYE, wire.RESERVE, wire.TICKET}


class Maker:
    """Makes requests."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        verbs = [one for one in limits.LIMITS if one not in (wire.HELLO, wire.RETIRE)]
        self.verbs = [one for one in verbs for _ in range(1 if one in RARE else 20)]

    def right(self, name: str) -> Any:
        """Return a value that is right for an argument of this name."""
        rng = self.rng
        small = rng.randrange(4)  # the calm queue has the number 4
        body = rng.randbytes(rng.choice((0, 1, 100, 5000)))
        values: dict[str, Any] = {
            **dict.fromkeys(("queue", "tag", "seq_id", "transaction", "before", "number"), small),
            **dict.fromkeys(("count", "prefetch", "max_messages", "priority"), small),
            **dict.fromkeys(
                ("timeout", "lease", "delay", "ttl", "window"), rng.choice((None, 0, 0.01))
            ),
            **dict.fromkeys(("makes", "commit", "reply", "persistent", "confirm"), small > 1),
            **dict.fromkeys(("name", "key", "unique", "reason"), rng.choice(NAMES)),
            "headers": {"n": small},
            "properties": {},
            "tags": list(range(small)),
            "seq_ids": list(range(small)),
            "queues": [1, 2] if small else ["a", "b"],
            "deliveries": [[one, one] for one in range(small)],
            "settings": {"max_length": small or None},
            "unset": ["max_length"],
            "message": [body, "k", {}, None, small],
            "messages": [body] * small,
            "body": body,
            "seconds": 1,
            "at": "2030-01-01T00:00:00+00:00",
            "until": "acked",
            "session": None,
            "ticket": None,
        }
        if name == "options":
            some = ("ttl", "delay", "at", "priority", "timeout", "unique", "window", "key")
            return {one: self.value(one) for one in rng.sample(some, rng.randrange(3))}
        return values[name]

    def value(self, name: str) -> Any:
        rng = self.rng
        if rng.random() < 0.75:
            return self.right(name)
        if rng.random() < 0.2:
            return [rng.choice(EDGES) for _ in range(rng.choice((0, 1, 3, 2000)))]
        return rng.choice(EDGES)

    def request(self, number: int) -> list[Any]:
        verb = self.rng.choice(self.verbs)
        known = limits.LIMITS[verb]
        count = self.rng.randint(known.least, known.most)
        return [number, verb, *map(self.value, known.names[2:count])]


def answered(raw: Raw, number: int) -> bool:
    """Read until the reply with this number. False if the server has closed the connection."""
    unread = bytearray()
    while True:
        data = raw.sock.recv(1 << 20)
        if not data:
            return False
        unread += data
        at = 0
        while len(unread) - at >= 4:
            size = wire.HEAD.unpack_from(unread, at)[0]
            if len(unread) - at - 4 < size:
                break
            if wire.decode(bytes(unread[at + 4 : at + 4 + size]))[0] == number:
                return True
            at += 4 + size
        del unread[:at]


def test_no_number_ends_the_server(tmp_path: Path) -> None:
    maker = Maker(chance("numbers"))
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        for name in ("a", "b"):
            engine.queue(name, max_length=1000, overflow="drop-head")
        engine.queue("levels", max_priority=3)
        calm = engine.queue("calm")
        calm.publish(b"held")
        held = calm.get()
        pid = server_pid(tmp_path)
        sizes = []
        for at in range(0, FRAMES, A_CONNECTION):
            raw = Raw(tmp_path)
            for number in range(2, 2 + A_CONNECTION, 10):
                given = [maker.request(number + more) for more in range(9)]
                raw.send(b"".join(wire.frame(*one) for one in given))
                raw.send(wire.frame(number + 9, wire.HELD))
                if not answered(raw, number + 9):
                    break
            raw.sock.close()
            if not at % (A_CONNECTION * 40):
                for name in ("a", "b", "levels"):
                    engine.queue(name).purge()
                sizes.append(memory(pid))
        calm.publish(b"x")
        assert calm.get(timeout=WAIT).body == b"x"  # type: ignore[union-attr]
        held.ack()  # its session is the first one
        assert server_pid(tmp_path) == pid
        assert memory(pid) < 300 << 20
        if len(sizes) > 8:
            assert max(sizes[-4:]) - max(sizes[:4]) < 50 << 20, sizes
    end_server(tmp_path)
    log = log_of(tmp_path)
    assert "Traceback" not in log, log[-3000:]
    assert log.isprintable() or log.replace("\n", "").isprintable()


def test_every_argument_of_every_verb_is_checked() -> None:
    maker = Maker(chance("right"))
    for verb, known in limits.LIMITS.items():
        plain: dict[str, Any] = {"protocol": "qindex", "version": 1, "options": {}}
        names = known.names[2:]
        right = [1, verb, *(plain[one] if one in plain else maker.right(one) for one in names)]
        for at in range(2, known.most):
            for wrong in (1 << 64, math.nan, object()):
                request = right.copy()
                request[at] = wrong
                with pytest.raises(qindex.UsageError, match="must be"):
                    limits.check(request)
        with pytest.raises(qindex.UsageError, match="arguments"):
            limits.check([*right, None])


def test_wrong_settings_and_reservations_leave_the_log_empty(tmp_path: Path) -> None:
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        number = engine.queue("a").at[1]
        raw = Raw(tmp_path)
        wrong: tuple[tuple[Any, ...], ...] = (
            (wire.RESERVE, number, "x"),
            (wire.RESERVE, number, None),
            (wire.OPEN, "b", True, {"speed": 1}, []),
            (wire.OPEN, "b", True, {}, ["speed"]),
            (wire.OPEN, "b", True, {}, [None]),
        )
        for request in wrong:
            raw.send(wire.frame(2, *request))
            assert raw.read()[2] == "UsageError"
        raw.sock.close()
        assert engine.queue_names() == ["a"]
        with pytest.raises(qindex.UsageError, match="can be reserved, not 'x'"):
            engine.queue("a").reserve("x")  # type: ignore[arg-type]
    end_server(tmp_path)
    assert not log_of(tmp_path)
