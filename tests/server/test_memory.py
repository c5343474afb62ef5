"""What a server has in memory of large bodies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.server import protocol as wire
from tests.server.support import end_server, log_of, server_pid

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")
SIZE = 40 << 20
"""More than an allocator keeps for later."""
SLACK = 16 << 20


def memory(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)


@pytest.mark.rotates(2)
def test_a_server_has_no_more_of_large_bodies_than_is_under_way(tmp_path: Path) -> None:
    body = os.urandom(1 << 20) * (SIZE >> 20)
    with qindex.open(tmp_path, shared=True, linger=0) as engine:
        queue = engine.queue("q")
        limited = engine.queue("limited", max_length=1, overflow="block")
        queue.publish(bytes(2 << 20))
        queue.get().ack()
        pid = server_pid(tmp_path)
        before = memory(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        publish: list[Callable[[], Any]] = [
            lambda: queue.publish(body),
            lambda: queue.publish(body, key="k"),
            lambda: queue.publish_many([body]),
            lambda: engine.publish_to(["q"], body),
        ]
        take: list[Callable[[], qindex.Delivery]] = [
            queue.get,
            lambda: queue.get_many(1)[0],
            lambda: next(iter(queue.consume(prefetch=1))),
        ]
        for at in range(12):
            publish[at % 4]()
            delivery = take[at % 3]()
            assert delivery.body == body
            delivery.ack()
        for _ in range(3):
            limited.publish(body, timeout=1000)
            limited.get().ack()
        peak = memory(pid, "VmHWM") - before
        assert peak < 3 * SIZE + SLACK, f"{peak / SIZE:.2f} bodies"
        assert memory(pid, "VmRSS") - before < SIZE + SLACK
    end_server(tmp_path)
    assert not log_of(tmp_path)


@pytest.mark.parametrize("in_list", [False, True])
def test_a_frame_around_a_body_is_the_frame_with_the_body(in_list: bool) -> None:
    for size in (0, 1, 1 << 16, 1 << 20):
        body = bytes(size)
        for behind in ((), (7,), ([1], {"a": None}, "x")):
            before = (1 << 40, 0, 5, [2])
            front, back = wire.around(before, size, behind, in_list=in_list)
            inner = [body] if in_list else body
            found = wire.decode((front + body + back)[wire.HEAD_SIZE :])
            assert found == [*before, inner, *behind]
            if size >= 1 << 16:
                assert front + body + back == wire.frame(*before, inner, *behind)
    with pytest.raises(qindex.UsageError, match="too many"):
        wire.around((1,), 1 << 32, ())
    with pytest.raises(qindex.UsageError, match="can't be stored"):
        wire.around((1,), 5, (object(),))
