"""A peer on the network that is no broker, or a bad one: what a pull makes of it."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pika = pytest.importorskip("pika")

import qindex  # noqa: E402
from qindex.transfer import brokers  # noqa: E402
from tests.effort import by_tier, chance, part  # noqa: E402
from tests.hostile.trial import confined  # noqa: E402

SHARE = by_tier(quick=4, all=1, nightly=1)
_METHOD, _HEADER, _BODY = 1, 2, 3
_MOST = 1 << 20
"""Bytes of a message that the store takes."""


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHL", kind, channel, len(payload)) + payload + b"\xce"


def _method(method: Any, channel: int = 1) -> bytes:
    return bytes(pika.frame.Method(channel, method).marshal())


_START = _method(pika.spec.Connection.Start(0, 9, {}, b"PLAIN", b"en_US"), 0)
_TUNE = _method(pika.spec.Connection.Tune(2047, 131072, 0), 0)
_OPENED = _method(pika.spec.Connection.OpenOk(), 0)
_SHAKEN = [_START, _TUNE + _OPENED]
"""The words of a broker until the connection is open, one answer for each time it is spoken to."""
_CONSUMING = [
    *_SHAKEN,
    _method(pika.spec.Channel.OpenOk()),
    _method(pika.spec.Basic.QosOk()),
    _method(pika.spec.Basic.ConsumeOk("tag")),
]
_DELIVER = _method(pika.spec.Basic.Deliver("tag", 1, False, "", "key"))


def _header(size: int, properties: bytes = b"\0\0") -> bytes:
    return _frame(_HEADER, 1, struct.pack(">HHQ", 60, 0, size) + properties)


def _messages(body: bytes) -> Iterator[bytes]:
    for tag in itertools.count(1):
        deliver = _method(pika.spec.Basic.Deliver("tag", tag, False, "", "key"))
        yield deliver + _header(len(body)) + _frame(_BODY, 1, body)


def _garbage() -> Iterator[bytes]:
    dice = chance("a peer's garbage")
    while True:
        yield dice.randbytes(1000)


def _nested() -> bytes:
    """Properties whose headers hold lists in lists in lists."""
    table = b""
    for _ in range(20_000):
        table = b"A" + struct.pack(">L", len(table)) + table
    table = b"\1hA" + struct.pack(">L", len(table)) + table
    return b"\x20\0" + struct.pack(">L", len(table)) + table


SCRIPTS: dict[str, Callable[[], Iterator[bytes]]] = {
    "garbage": _garbage,
    "zeros": lambda: itertools.repeat(bytes(4096)),
    "another protocol": lambda: iter([b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
    "an old version": lambda: iter([b"AMQP\0\0\x08\0"]),
    "silence": lambda: iter([]),
    "silence once open": lambda: iter(_SHAKEN),
    "silence once consuming": lambda: iter(_CONSUMING),
    "no answer to consume": lambda: iter(_CONSUMING[:-1]),
    "garbage once open": lambda: itertools.chain(_SHAKEN, _garbage()),
    "garbage once consuming": lambda: itertools.chain(_CONSUMING, _garbage()),
    "a method that is none": lambda: iter([*_SHAKEN, _frame(_METHOD, 1, b"\xff" * 8)]),
    "a method cut short": lambda: iter([*_SHAKEN, _frame(_METHOD, 1, b"\0")]),
    "a frame of no kind": lambda: iter([*_SHAKEN, _frame(77, 1, b"x")]),
    "a frame without its end": lambda: iter([*_SHAKEN, struct.pack(">BHL", 1, 1, 4) + b"abcdZ"]),
    "a frame of 4 GiB": lambda: itertools.chain(
        [*_SHAKEN, struct.pack(">BHL", 3, 1, 0xFFFFFFFF)], itertools.repeat(bytes(1 << 16))
    ),
    "a header of 16 EiB": lambda: itertools.chain(
        [*_CONSUMING, _DELIVER + _header((1 << 64) - 1)],
        itertools.repeat(_frame(_BODY, 1, bytes(60_000))),
    ),
    "a body that never ends": lambda: itertools.chain(
        [*_CONSUMING, _DELIVER + _header(_MOST)],
        itertools.repeat(_frame(_BODY, 1, b"")),
    ),
    "more body than the header says": lambda: iter(
        [*_CONSUMING, _DELIVER + _header(2) + _frame(_BODY, 1, bytes(500))]
    ),
    "a body before its header": lambda: iter([*_CONSUMING, _frame(_BODY, 1, b"x")]),
    "a header of no class": lambda: iter(
        [*_CONSUMING, _DELIVER + _frame(_HEADER, 1, struct.pack(">HHQ", 99, 0, 1) + b"\0\0")]
    ),
    "properties of nothing": lambda: iter(
        [*_CONSUMING, _DELIVER + _header(1, b"\xff\xff\xff\xff") + _frame(_BODY, 1, b"x")]
    ),
    "headers nested deeply": lambda: iter(
        [*_CONSUMING, _DELIVER + _header(1, _nested()) + _frame(_BODY, 1, b"x")]
    ),
    "another channel": lambda: iter(
        [*_CONSUMING, _method(pika.spec.Basic.Deliver("tag", 1, False, "", "key"), 9)]
    ),
    "messages without end": lambda: itertools.chain(_CONSUMING, _messages(b"x" * 50_000)),
}


class _Peer:
    """It says the next thing of its script whenever it is spoken to, and the rest without waiting
    once nobody speaks."""

    def __init__(self, script: Callable[[], Iterator[bytes]]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://guest:guest@127.0.0.1:{self._listener.getsockname()[1]}/%2F"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> _Peer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as one, suppress(OSError):
                    self._talk(one)

    def _talk(self, one: socket.socket) -> None:
        one.settimeout(0.05)
        for said in self._script():
            with suppress(TimeoutError):
                if not one.recv(1 << 16):
                    return
            one.settimeout(30)
            one.sendall(said)
            one.settimeout(0.05)
        one.settimeout(30)
        while one.recv(1 << 16):
            pass


@pytest.mark.parametrize("script", part(sorted(SCRIPTS), SHARE, "hostile peers"))
def test_a_pull_from_a_hostile_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(brokers, "_SECONDS", 0.5)

    def _pull(place: Path) -> int:
        with qindex.open(place, background=False, max_message_bytes=_MOST) as engine:
            queue = engine.queue("q")
            brokers.pull(url, "q", queue, count=100, timeout=0.3)
            return len(queue)

    with _Peer(SCRIPTS[script]) as peer:
        url = peer.url + "?socket_timeout=1&stack_timeout=1&retry_delay=0"
        answer, broken = confined(_pull, tmp_path / "store")
    assert broken is None, answer
    assert answer.startswith("BrokerError: broker 127.0.0.1:"), answer
