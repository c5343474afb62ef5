"""max_length and max_bytes with each overflow; settings, kept and refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import qindex
from qindex.format.settings import QueueSettings, pack_settings, unpack_settings
from tests.qindex.support import WAIT, copy_live, drain, open_quietly, queue_directory


def bodies(queue: qindex.Queue) -> list[bytes]:
    return [one.body for one in queue.peek(1000)]


# -- settings -----------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "message_ttl": 1e6,
    "max_length": 5,
    "max_bytes": 100,
    "overflow": "drop-head",
    "delivery_limit": 3,
    "dead_letter": "dead",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_kept_and_can_be_taken_away(tmp_path: Path, name: str) -> None:
    plain = getattr(QueueSettings(), name)
    others: dict[str, Any] = {"max_length": 9} if name == "overflow" else {}
    unset: dict[str, Any] = {name: qindex.UNSET}
    without = QueueSettings(**others)
    with_it = replace(without, **{name: SETTINGS[name]})
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", **others)
        assert engine.queue("q", **{name: SETTINGS[name]}).settings == with_it
        assert engine.queue("q", **unset) is queue
        assert queue.settings == without
        assert engine.queue("q", **{name: SETTINGS[name]}) is queue
    with open_quietly(tmp_path) as engine:
        assert engine.queue("q").settings == with_it
    with qindex.open(tmp_path, read_only=True) as reading:
        assert reading.queue("q").settings == with_it
    with open_quietly(tmp_path) as engine:
        assert getattr(engine.queue("q", **unset).settings, name) == plain
    with open_quietly(tmp_path) as engine:
        assert engine.queue("q").settings == without


def test_other_settings_at_open_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q", max_length=5, message_ttl=10)
    caplog.set_level(logging.INFO, "qindex")
    with open_quietly(tmp_path) as engine:
        assert engine.queue("q", max_length=6).settings == QueueSettings(10, 6)
    assert "the settings were max_length=5, are now max_length=6" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", 0),
        ("max_length", True),
        ("max_length", 1.5),
        ("max_length", 1 << 61),
        ("max_bytes", -1),
        ("max_bytes", "many"),
        ("overflow", "burst"),
        ("overflow", 1),
        ("delivery_limit", 0),
        ("delivery_limit", 1 << 31),
        ("dead_letter", ""),
        ("dead_letter", "q"),
        ("dead_letter", b"dead"),
        ("dead_letter", "x" * 256),
        ("message_ttl", float("nan")),
        ("message_ttl", True),
    ],
)
def test_a_setting_that_cannot_be_right(tmp_path: Path, name: str, value: object) -> None:
    with open_quietly(tmp_path) as engine:
        with pytest.raises(qindex.UsageError):
            engine.queue("q", **{name: value})  # type: ignore[arg-type]
        assert engine.queue_names() == []


def test_the_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    from qindex.format.layout import pack_checked

    assert unpack_settings(pack_checked({"message_ttl": 5.0})) == QueueSettings(5.0)
    full = QueueSettings(**SETTINGS)
    assert unpack_settings(pack_settings(full)) == full
    for wrong in ({"max_length": 5}, {"message_ttl": None, "colour": 1}, [1], 5.0):
        with pytest.raises(ValueError, match=r"field 'colour'|value is"):
            unpack_settings(pack_checked(wrong))
    with pytest.raises(ValueError, match="max_length"):
        unpack_settings(pack_checked({"message_ttl": None, "max_length": "five"}))


def test_damaged_settings(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q", max_length=5)
    path = queue_directory(tmp_path, "q") / "qindex.settings"
    path.write_bytes(path.read_bytes()[:-1])
    with open_quietly(tmp_path) as engine, pytest.raises(qindex.DamageError, match="settings"):
        engine.queue("q")
    with open_quietly(tmp_path, repair=True) as engine:
        assert engine.queue("q").settings == QueueSettings()


# -- reject -------------------------------------------------------------------------------------


def test_reject_by_length(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=3)
        queue.publish(b"0")
        queue.publish_many([b"1", b"2"])
        for publish in (
            lambda: queue.publish(b"no"),
            lambda: queue.publish(b"no", key="k"),
            lambda: queue.publish(b"n" * 20_000),
            lambda: queue.publish_many([b"no"]),
            lambda: queue.publish_many([qindex.Message(b"no")]),
        ):
            with pytest.raises(qindex.QueueFullError, match="max_length=3"):
                publish()
        assert bodies(queue) == [b"0", b"1", b"2"]
        taken = queue.get_many(2)  # with a consumer: not counted
        queue.publish(b"3")
        with pytest.raises(qindex.QueueFullError):
            queue.publish_many([b"4", b"5"])  # all or none
        queue.publish(b"4")
        queue.nack(taken[0])
        assert len(queue) == 4  # what comes back is taken
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"no")
        assert [body for _, body, _ in drain(queue)] == [b"0", b"2", b"3", b"4"]
        with pytest.raises(qindex.QueueFullError, match="never fit"):
            queue.publish_many([b"x"] * 4)
        assert queue.stats().published == 5


def test_reject_by_bytes_is_exact_over_restarts(tmp_path: Path) -> None:
    store = tmp_path / "0"
    with open_quietly(store) as engine:
        queue = engine.queue("q", max_bytes=25_000)
        queue.publish_many([b"a" * 1000] * 4)
        queue.publish(b"b" * 20_000)  # to the message store
        queue.publish(b"c" * 900, key="k")
        with pytest.raises(qindex.QueueFullError, match="max_bytes=25000"):
            queue.publish(b"d" * 101)
        queue.flush()
        queue.publish(b"d" * 99)
        engine.sync()
        killed = copy_live(store, tmp_path / "1")
        copied = copy_live(store, tmp_path / "2")
    for directory in (store, killed, copied):
        with open_quietly(directory) as engine:
            queue = engine.queue("q")
            with pytest.raises(qindex.QueueFullError):
                queue.publish(b"xx")
            queue.publish(b"x")
            first = queue.get()
            assert first is not None
            with pytest.raises(qindex.QueueFullError):
                queue.publish(b"y" * 1001)
            queue.publish(b"y" * 1000)
            first.nack()  # over by 1000
            batch = queue.get_many(3)
            assert [len(body) for body in batch.bodies] == [1000] * 3
            with pytest.raises(qindex.QueueFullError):
                queue.publish(b"z" * 2001)
            queue.publish(b"z" * 2000)
            queue.purge()
            queue.publish(b"z" * 25_000)


def test_publish_to_is_all_or_none(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        free, full = engine.queue("free", max_length=5), engine.queue("full", max_length=1)
        full.publish(b"there")
        for names in (["free", "full"], ["full", "free"]):
            with pytest.raises(qindex.QueueFullError):
                engine.publish_to(names, b"x" * 20_000)
        assert (len(free), len(full)) == (0, 1)
        free.publish_many([b"y"] * 5)  # the room that was kept is given back
        drain(free)
        drain(full)
        assert engine.publish_to(["free", "full"], b"x" * 20_000) == [5, 1]
        assert drain(free)[0][1] == drain(full)[0][1] == b"x" * 20_000


def test_a_publish_that_fails_keeps_no_room(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=2)
        for _ in range(3):
            with pytest.raises(qindex.UsageError):
                queue.publish(b"x", headers={"h": object()})
        queue.publish_many([b"a", b"b"])


# -- drop-head ----------------------------------------------------------------------------------


def test_drop_head(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=3, overflow="drop-head")
        queue.publish_many([b"%d" % number for number in range(10)])
        assert bodies(queue) == [b"7", b"8", b"9"]
        out = queue.get()
        queue.publish_many([b"10", b"x" * 20_000])
        assert out is not None
        assert bodies(queue) == [b"9", b"10", b"x" * 20_000]
        queue.nack(out)  # back in its place: over, until the next publish
        assert bodies(queue)[0] == b"7"
        queue.publish(b"12")
        assert bodies(queue) == [b"10", b"x" * 20_000, b"12"]
        queue.publish_many([b"13", b"14", b"15"])
        assert bodies(queue) == [b"13", b"14", b"15"]
        assert queue.stats().acked == 13
        messages = engine.stats().message_store
        assert messages is not None
        assert messages.messages == 0
    with open_quietly(tmp_path) as engine:
        assert bodies(engine.queue("q")) == [b"13", b"14", b"15"]


def test_drop_head_by_bytes(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_bytes=10, overflow="drop-head")
        for number in range(6):
            queue.publish(b"%d" % number * 4)
        assert bodies(queue) == [b"4444", b"5555"]
        queue.publish(b"x" * 10)
        assert bodies(queue) == [b"x" * 10]
        with pytest.raises(qindex.QueueFullError, match="not 11"):
            queue.publish(b"x" * 11)
        assert bodies(queue) == [b"x" * 10]
        queue.purge()
        queue.publish(b"12345", ttl=0)  # it goes first, and then there is room
        queue.publish_many([b"234567", b"9"])
        assert bodies(queue) == [b"234567", b"9"]


# -- block --------------------------------------------------------------------------------------


def _in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run it; gives the thread, and what it gave or raised."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(call())
        except qindex.StoreError as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def _is_waiting(queue: qindex.Queue) -> bool:
    until = monotonic() + WAIT
    while monotonic() < until:
        if queue._parts.state.room.waiting:
            return True
        threading.Event().wait(0.001)
    return False


@pytest.mark.parametrize("way", ["get", "get_many", "purge", "expired"])
def test_block_waits_for_room(tmp_path: Path, way: str) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=1, overflow="block")
        queue.publish(b"0", ttl=0 if way == "expired" else None)
        thread, ended = _in_thread(lambda: queue.publish(b"1"))
        if way != "expired":  # the timer makes room, perhaps at once
            assert _is_waiting(queue)
            assert not ended
        if way == "purge":
            queue.purge()
        elif way == "get_many":
            queue.get_many(1)
        elif way == "get":
            queue.get()
        thread.join(WAIT)
        assert ended == [1]


def test_block_ends(tmp_path: Path) -> None:
    engine = open_quietly(tmp_path)
    queue = engine.queue("q", max_bytes=4, overflow="block")
    queue.publish(b"full")
    start = monotonic()
    with pytest.raises(qindex.QueueFullError):
        queue.publish(b"x", timeout=0.05)
    assert 0.05 <= monotonic() - start < WAIT
    with pytest.raises(qindex.QueueFullError):
        engine.publish_to(["q"], b"x", timeout=0)
    with pytest.raises(qindex.QueueFullError, match="never"):
        queue.publish(b"large")
    thread, ended = _in_thread(lambda: queue.publish_many([b"a", b"b"]))
    assert _is_waiting(queue)
    engine.close()
    thread.join(WAIT)
    assert [type(one) for one in ended] == [qindex.ClosedError]


def test_block_under_load_never_exceeds(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", max_length=5, overflow="block")
        most = 0

        def publish(first: int) -> None:
            for number in range(first, first + 200):
                queue.publish(b"%d" % number)

        threads = [_in_thread(partial(publish, first))[0] for first in (0, 1000, 2000)]
        seen: list[int] = []
        while len(seen) < 600:
            most = max(most, len(queue))
            delivery = queue.get(WAIT)
            assert delivery is not None
            seen.append(int(delivery.body))
            delivery.ack()
        for thread in threads:
            thread.join(WAIT)
        assert most <= 5
        assert sorted(seen) == [
            first + number for first in (0, 1000, 2000) for number in range(200)
        ]
        for first in (0, 1000, 2000):
            of_one = [number for number in seen if first <= number < first + 1000]
            assert of_one == sorted(of_one)


def test_reject_under_load_is_exact(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", max_length=50)
        published: list[int] = []

        def publish() -> None:
            for number in range(60):
                try:
                    queue.publish(b"%d" % number)
                except qindex.QueueFullError:
                    continue
                published.append(number)

        threads = [_in_thread(publish)[0] for _ in range(4)]
        for thread in threads:
            thread.join(WAIT)
        assert len(published) == len(queue) == 50


def test_a_move_that_the_open_finishes_counts_no_more(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "a") as engine:
        queue = engine.queue("q", max_bytes=10, dead_letter="dead", delivery_limit=3)
        queue.publish(b"x" * 10)
        queue.get_many(1)[0].reject()
        killed = copy_live(tmp_path / "a", tmp_path / "killed")
    with open_quietly(killed) as engine:
        assert engine.queue("q").publish(b"y" * 10) == 1
        assert len(engine.queue("dead")) == 1
