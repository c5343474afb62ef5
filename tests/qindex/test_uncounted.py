"""Messages that are taken to be moved elsewhere, and come back: no delivery, for any limit."""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex
from qindex.queue.notes.delivery_counts import FILE_NAME
from qindex.transfer.ends import give_back_uncounted, take_uncounted
from tests.qindex.support import copy_live, open_quietly, queue_directory


@pytest.mark.parametrize("dead_letter", ["dead", None])
def test_what_comes_back_is_not_given_up(tmp_path: Path, dead_letter: str | None) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=1, dead_letter=dead_letter)
        queue.publish_many([b"0", b"1", b"x" * 20_000])
        for _ in range(4):
            held = take_uncounted(queue, 2)
            assert [one.body for one in held] == [b"0", b"1"]
            give_back_uncounted(queue, held)
            assert all(one.settled for one in held)
        assert (len(queue), queue.stats().unacked) == (3, 0)
        assert queue.stats().given_up.total == 0
        found = queue.get_many(9)
        assert [len(one.body) for one in found] == [1, 1, 20_000]
        assert {one.delivery_count for one in found} == {1}
        for one in found:
            one.nack()
        assert len(queue) == 0
        assert queue.stats().given_up.limit == 3


def test_what_is_settled_is_left_alone(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=2)
        queue.publish_many([b"0", b"1", b"2"])
        held = take_uncounted(queue, 3)
        held[1].ack()
        give_back_uncounted(queue, held)
        assert [one.body for one in queue.peek(9)] == [b"0", b"2"]


def test_a_clean_close_takes_nothing_more_off(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", delivery_limit=5)
        queue.publish(b"a")
        queue.get().nack()
        assert [one.delivery_count for one in take_uncounted(queue, 1)] == [2]
    with qindex.open(tmp_path) as engine:
        assert engine.queue("q").get().delivery_count == 2


@pytest.mark.parametrize("given_back", [True, False])
def test_nor_after_a_kill(tmp_path: Path, given_back: bool) -> None:
    """The journal says that the messages were delivered; what counts stands beside it."""
    with open_quietly(tmp_path / "0") as engine:
        queue = engine.queue("q", delivery_limit=2)
        queue.publish_many([b"0", b"1"])
        queue.get_many(1)[0].nack()  # this one counts
        held = take_uncounted(queue, 2)
        if given_back:
            give_back_uncounted(queue, held)
        killed = copy_live(tmp_path / "0", tmp_path / "1")
    with open_quietly(killed) as engine:
        queue = engine.queue("q")
        assert [one.delivery_count for one in queue.get_many(2)] == [2, 1]
        engine.queue("q").ack_up_to(1)
    with open_quietly(killed) as engine:
        assert engine.queue("q")._parts.state.noted == {}


def test_the_file_that_is_written_anew_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qindex.queue.notes.delivery_counts._MAX_SPARE", 8)
    with open_quietly(tmp_path / "0") as engine:
        queue = engine.queue("q", delivery_limit=1)
        queue.publish_many([b"0", b"1"])
        for _ in range(60):
            give_back_uncounted(queue, take_uncounted(queue, 2))
        assert (queue_directory(tmp_path / "0", "q") / FILE_NAME).stat().st_size < 60 * 16
        killed = copy_live(tmp_path / "0", tmp_path / "1")
    with open_quietly(killed) as engine:
        assert len(engine.queue("q").get_many(9)) == 2
