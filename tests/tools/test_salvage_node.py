"""A real RabbitMQ node starts from what ``salvage --format rabbitmq`` made of directories over
which it hangs, or which it refuses, and delivers everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import run
from tests.golden import synthetic
from tests.rabbitmq_server import RabbitServer, rabbitmq_or_skip

SAVED = {
    "07_seg_cut": ("m0 m1 m2 m3 m4", "m0 m1 m2 m3 m4"),
    "18_rdt_without_rdq": ("b0 b2", ""),
    "23_seg_ack_before_pub": ("m0 m1 m2 m3 m4 m5", ""),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RabbitServer]:
    rabbitmq_or_skip()
    with RabbitServer(tmp_path / "node") as node:
        node.start()
        yield node
    assert node.processes() == []


def test_a_node_starts_from_what_was_salvaged(server: RabbitServer, tmp_path: Path) -> None:
    for name in ("qr", "qs"):
        server.declare_queue(name)
    for case, expected in SAVED.items():
        broken = synthetic(case)
        assert broken.boot != "OK"
        out = tmp_path / case
        result = run("salvage", broken.vhost_dir, "--out", out, "--format", "rabbitmq")
        assert result.code in (0, 1), result.err
        server.stop()
        shutil.rmtree(server.vhost_dir)
        shutil.copytree(out, server.vhost_dir)
        server.start()
        for name, bodies in zip(("qr", "qs"), expected, strict=True):
            drained = server.drain(name)
            assert [one.body[:2].decode() for one in drained] == bodies.split()
            assert all(one.redelivered for one in drained)
        server.publish_confirmed("qr", [b"goes on", bytes(10_000)])
        assert [one.body for one in server.drain("qr")] == [b"goes on", bytes(10_000)]
    assert "[error]" not in server.log_tail(1000)
