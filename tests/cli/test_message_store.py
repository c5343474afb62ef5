"""``compact``, ``stats``, ``inspect`` and ``consume --peek`` where messages are in the message
store."""

from __future__ import annotations

import base64
import errno
import os
from pathlib import Path
from typing import Any

import pytest

import qindex
from msgstore.scan import read_record
from tests.cli.support import run
from tests.golden import golden, synthetic
from tests.qindex.messages_support import PERSISTENT, big, rdq_files, ready, stored


def fill(directory: Path, acknowledged: int = 30) -> None:
    with stored(directory) as engine:
        engine.publish_to(["a", "b"], big(0), key="k\n")
        queue = engine.queue("a")
        queue.publish_many([big(n) for n in range(1, 40)])
        queue.publish(b"small")
        queue.ack_many([one for n, one in enumerate(queue.get_many(40)) if n % 4][:acknowledged])


# -- compact --------------------------------------------------------------------------------------


def test_compact(tmp_path: Path) -> None:
    fill(tmp_path)
    before = sum(path.stat().st_size for path in rdq_files(tmp_path))
    result = run("compact", tmp_path, "--json")
    assert (result.code, result.err) == (0, "")
    (row,) = result.rows
    assert row["reclaimed"] == row["bytes_deleted"] - row["bytes_copied"] > 0
    assert row["size"] == sum(path.stat().st_size for path in rdq_files(tmp_path))
    assert before - row["size"] == row["reclaimed"]
    assert row["live"] <= row["size"] < before
    assert run("compact", tmp_path).code == 0  # of what was the last file the first time
    again = run("compact", tmp_path)
    assert again.code == 0
    assert again.text.startswith("reclaimed 0 bytes: 0 files deleted, 0 written; the message store")
    with stored(tmp_path) as engine:
        assert [int(body.split()[0]) for body in ready(engine, "a")[:-1]] == [*range(0, 40, 4)]


def test_compact_of_what_can_not_be_compacted(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "small") as engine:
        engine.queue("q").publish(b"small")
        busy = run("compact", tmp_path / "small")
        assert busy.code == 2
        assert "is open for writing by this process" in busy.complaints[0]
    assert run("compact", tmp_path / "small", "--json").rows[0]["size"] == 0
    assert not (tmp_path / "small" / PERSISTENT).exists()
    missing = run("compact", tmp_path / "missing")
    assert (missing.code, (tmp_path / "missing").exists()) == (2, False)
    node = run("compact", golden("d1").vhost_dir)
    assert node.code == 2
    assert "a RabbitMQ directory" in node.complaints[0]


# -- stats ----------------------------------------------------------------------------------------


def test_stats(tmp_path: Path) -> None:
    fill(tmp_path)
    result = run("stats", tmp_path, "--json")
    assert (result.code, result.err) == (0, "")
    (row,) = result.rows
    assert row["kind"] == "qindex"
    assert [(one["name"], one["messages"]) for one in row["queues"]] == [
        ("a", 11),
        ("b", 1),
    ]
    store = row["message_store"]
    files = rdq_files(tmp_path)
    assert store["files"] == len(files)
    assert store["size"] == sum(path.stat().st_size for path in files)
    assert store["live"] + store["garbage"] == store["size"]
    assert (store["messages"], store["references"], store["missing"]) == (10, 11, 0)
    lines = run("stats", tmp_path, "--wide").text.splitlines()
    assert lines[0].split()[:4] == ["name", "messages", "ready", "delayed"]
    assert lines[-2].startswith("queues: 2, messages: 12, bytes: ")
    assert f"live: {store['live']}, garbage: {store['garbage']}" in lines[-1]


def test_stats_beside_a_writer_and_of_a_node(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish(b"small")
        assert run("stats", tmp_path, "--json").rows[0]["message_store"] is None
        engine.queue("q").publish(big(1))
        (row,) = run("stats", tmp_path, "--json").rows
        stats = engine.stats().message_store
        assert stats is not None
        assert row["message_store"]["live"] == stats.live
    (row,) = run("stats", golden("e1").vhost_dir, "--json").rows
    assert row["kind"] == "rabbitmq"
    assert row["message_store"]["references"] > row["message_store"]["messages"] > 20
    assert row["message_store"]["missing"] == 0


def test_stats_of_a_store_with_missing_messages() -> None:
    result = run("stats", synthetic("19").vhost_dir, "--json")
    assert result.code == 1
    assert result.rows[0]["message_store"]["missing"] == 2


# -- inspect, consume, cat ------------------------------------------------------------------------


def test_inspect_shows_the_messages_of_a_file(tmp_path: Path) -> None:
    fill(tmp_path, acknowledged=0)
    path = rdq_files(tmp_path)[0]
    result = run("inspect", path, "--json")
    assert (result.code, result.err) == (0, "")
    first, second = result.rows[:2]
    assert first["offset"] == 0
    assert second["offset"] == first["length"]
    assert (first["format"], first["key"], first["size"]) == ("qindex", "k\n", len(big(0)))
    assert (second["key"], second["size"]) == (None, len(big(1)))
    shown = run("inspect", path).text.splitlines()
    assert len(shown) == len(result.rows)
    node = run("inspect", golden("e1").vhost_dir / PERSISTENT / "0.rdq", "--json")
    assert {row["format"] for row in node.rows} == {"rabbitmq"}
    assert all(row["size"] > 0 and isinstance(row["key"], str) for row in node.rows)
    (leftover,) = (synthetic("18").vhost_dir / PERSISTENT).glob("*.rdt")
    assert run("inspect", leftover, "--json").rows


def test_inspect_names_the_file_of_which_the_system_stops_giving_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    path = rdq_files(tmp_path)[0]
    reads = iter([read_record])

    def read_once(*place: Any) -> bytes | None:
        for read in reads:
            return read(*place)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("qindex.cli.inspection.command.read_record", read_once)
    result = run("inspect", path, "--json")
    assert (result.code, len(result.rows)) == (2, 1)
    (said,) = result.complaints
    assert str(path) in said
    assert "can't be read" in said


def test_peek_and_consume(tmp_path: Path) -> None:
    fill(tmp_path)
    peeked = run("consume", tmp_path, "a", "--peek", "--json").rows
    assert [row["location"] for row in peeked] == [*["store"] * 10, "journal"]
    expected = [big(n) for n in range(0, 40, 4)] + [b"small"]
    assert [base64.b64decode(row["body_base64"]) for row in peeked] == expected
    assert run("consume", tmp_path, "a", "--peek", "--count", 1).out == big(0) + b"\n"
    taken = run("consume", tmp_path, "a", "--json")
    assert [base64.b64decode(row["body_base64"]) for row in taken.rows] == expected
    assert run("cat", tmp_path, "a").out == b""
    assert b"0 " in run("cat", tmp_path, "b").out


def test_what_is_gone_is_said(tmp_path: Path) -> None:
    fill(tmp_path)
    for path in rdq_files(tmp_path):
        path.unlink()
    shown = run("cat", tmp_path, "a", "--json")
    assert shown.code == 1
    assert [row["body_base64"] is None for row in shown.rows] == [True] * 10 + [False]
    assert all("not in the message store" in row["error"] for row in shown.rows[:-1])
    assert len(shown.complaints) == 10
    text = run("cat", tmp_path, "b").text
    assert "it is not in the message store" in text
    peeked = run("consume", tmp_path, "b", "--peek")
    assert (peeked.code, peeked.out) == (1, b"")
    assert "seq_id 0: it is not in the message store" in peeked.complaints[0]
