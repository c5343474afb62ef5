"""Delivers and acks of messages that were not published by then: no crash leaves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qindex
from journal.findings import Cause, Finding, Kind
from journal.format import ACK, DELIVER, pack_action
from journal.replay import walk_journal
from qindex.recovery.early_steps import ahead_findings, ahead_of_publishes
from tests.qindex.support import (
    OtherBootFileSystem,
    copy_live,
    drain,
    journal_bytes,
    open_quietly,
    publish_record,
)
from tests.qindex.support import queue_directory as directory_of


def step_findings(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.kind is Kind.STEP and one.cause is Cause.DAMAGE]


@pytest.mark.parametrize(
    ("steps", "given_out", "found"),
    [
        ([(DELIVER, 0), (ACK, 0)], 0, []),
        ([(ACK, 1)], 0, [0]),
        ([(ACK, 1)], 2, []),
        ([(DELIVER, 0), (DELIVER, 2), (ACK, 0), (ACK, 1 << 20)], 1, [1, 3]),
    ],
)
def test_what_is_ahead(steps: list[tuple[int, int]], given_out: int, found: list[int]) -> None:
    data = publish_record(0, b"a") + b"".join(pack_action(*step) for step in steps)
    walk = walk_journal(data)
    ahead = ahead_of_publishes(walk, given_out)
    assert (np.flatnonzero(ahead) - 1).tolist() == found
    offsets = [one.offset for one in ahead_findings("j", walk, ahead)]
    assert offsets == [int(walk.offsets[at + 1]) for at in found]


def test_a_publish_behind_its_deliver_does_not_count() -> None:
    data = pack_action(DELIVER, 0) + publish_record(0, b"a") + pack_action(ACK, 0)
    assert ahead_of_publishes(walk_journal(data), 0).tolist() == [True, False, False]
    assert ahead_of_publishes(walk_journal(b""), 0).tolist() == []


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Four messages, of which the first is acknowledged; its ack is the journal's last record."""
    with open_quietly(tmp_path / "live") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2", b"3"])
        queue.ack(queue.get_many(2)[0])
        return copy_live(tmp_path / "live", tmp_path / "killed")


def flip_in_last_ack(store: Path, bit: int) -> int:
    path = directory_of(store, "q") / "journal.jif"
    data = bytearray(path.read_bytes())
    end = walk_journal(bytes(data)).end
    data[end - 1 - (bit >> 3)] ^= 1 << (bit & 7)
    path.write_bytes(data)
    return end - 8


@pytest.mark.parametrize("bit", [2, 5, 10, 19])
def test_an_ack_of_what_was_never_published_is_damage(killed: Path, bit: int) -> None:
    offset = flip_in_last_ack(killed, bit)
    assert [one.offset for one in step_findings(qindex.verify(killed).findings)] == [offset]
    with pytest.raises(qindex.DamageError, match=f"ack of seq_id {1 << bit}") as caught:
        open_quietly(killed)
    assert caught.value.offset == offset
    with open_quietly(killed, repair=True) as engine:
        assert [one.offset for one in step_findings(engine.findings)] == [offset]
        bodies = [body for _, body, _ in drain(engine.queue("q"))]
        assert bodies == [b"0", b"1", b"2", b"3"]
    with open_quietly(killed) as again:
        assert again.findings == []


def test_after_a_loss_of_power_its_publish_may_be_lost(killed: Path) -> None:
    flip_in_last_ack(killed, 5)
    with open_quietly(killed, fs=OtherBootFileSystem()) as engine:
        assert step_findings(engine.findings) == []
        assert len(drain(engine.queue("q"))) == 4


def test_acks_of_a_deleted_segment_are_no_damage(tmp_path: Path) -> None:
    """A crash between the deletion of a segment and the emptying of the journal."""
    live = tmp_path / "live"
    with open_quietly(live) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 8)
        queue.flush()
        queue.ack_many(queue.get_many(8))
        journal = directory_of(live, "q") / "journal.jif"
        before = journal.read_bytes()
        queue.flush()
        killed = copy_live(live, tmp_path / "killed")
    assert not (directory_of(killed, "q") / "0.idx").exists()
    (directory_of(killed, "q") / "journal.jif").write_bytes(before)
    assert qindex.verify(killed).findings == []
    with open_quietly(killed) as engine:
        assert engine.findings == []
        assert engine.queue("q").publish(b"y") == 8


def test_beside_a_damaged_publish_it_is_not_said_twice(killed: Path) -> None:
    path = directory_of(killed, "q") / "journal.jif"
    data = path.read_bytes()
    walk = walk_journal(data)
    at = int(walk.offsets[3]) + 40
    body = bytes(byte ^ 0x55 for byte in data[at : at + 20])
    damaged = data[:at] + body + data[at + 20 : walk.end]
    path.write_bytes(damaged + journal_bytes(3, b"", "da"))
    with pytest.raises(qindex.DamageError) as caught:
        open_quietly(killed)
    assert "more places" not in str(caught.value)
