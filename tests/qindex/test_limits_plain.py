"""Plain messages into queues with limits that have room: quick, and within the limits exactly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex.queue.producing import Producer
from tests.qindex.support import WAIT, copy_live, drain, open_quietly

pytestmark = pytest.mark.interpreted  # parts of the engine are replaced


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that were published the slow way."""
    seen: list[bytes] = []
    real = Producer._publish_any

    def publish_any(producer: Producer, body: bytes, *options: Any) -> int:
        seen.append(body)
        return real(producer, body, *options)

    monkeypatch.setattr(Producer, "_publish_any", publish_any)
    return seen


def bodies(queue: qindex.Queue) -> list[bytes]:
    return [one.body for one in queue.peek(1000)]


SETTINGS: list[dict[str, Any]] = [
    {"max_length": 5},
    {"max_bytes": 10},
    {"max_length": 5, "max_bytes": 10},
    {"max_length": 5, "overflow": "drop-head"},
    {"max_bytes": 10, "overflow": "drop-head"},
    {"max_length": 5, "overflow": "block"},
    {"max_bytes": 10, "overflow": "block"},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_quick_way_until_it_is_full(
    tmp_path: Path, slow: list[bytes], settings: dict[str, Any], durability: str
) -> None:
    store = tmp_path / "0"
    with open_quietly(store, durability=durability) as engine:
        queue = engine.queue("q", **settings)
        for n in range(5):
            assert queue.publish(b"%02d" % n) == n
        assert not slow
        if settings.get("overflow") == "drop-head":
            queue.publish(b"05")
            assert bodies(queue) == [b"01", b"02", b"03", b"04", b"05"]
        else:
            with pytest.raises(qindex.QueueFullError):
                queue.publish(b"05", timeout=0)
            assert bodies(queue) == [b"00", b"01", b"02", b"03", b"04"]
        assert slow == [b"05"]
        delivery = queue.get(0)
        assert delivery is not None
        queue.publish(b"06")
        assert slow == [b"05"]
        wanted = bodies(queue)
        assert len(wanted) == 5
        killed = copy_live(store, tmp_path / "1")
    for directory in (store, killed):
        with open_quietly(directory) as engine:
            again = engine.queue("q")
            # What was with a consumer has come back, however full the queue is.
            assert [body for _, body, _ in drain(again)] == [delivery.body, *wanted]
            assert again._parts.state.limits is not None
            assert again._parts.state.limits.bytes == 0 or settings.get("max_bytes") is None
            again.publish(b"more")


def test_what_comes_back_counts(tmp_path: Path, slow: list[bytes]) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=2)
        queue.publish(b"0")
        delivery = queue.get(0)
        assert delivery is not None
        queue.publish(b"1")
        delivery.nack()
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"2")
        assert slow == [b"2"]
        assert queue.purge() == 2
        queue.publish(b"3")
        assert bodies(queue) == [b"3"]
        assert slow == [b"2"]


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"headers": {"a": 1}}, {"properties": {"a": 1}}, {"ttl": 9.0}]
)
def test_the_quick_way_with_all_that_is_embedded(
    tmp_path: Path, slow: list[bytes], options: dict[str, Any]
) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_bytes=2)
        queue.publish(b"x", **options)
        queue.publish(b"y", **options)
        assert not slow
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"z", **options)
        assert slow == [b"z"]
        delivery = queue.get(0)
        assert delivery is not None
        assert (delivery.body, delivery.key) == (b"x", options.get("key"))
        assert delivery.headers == options.get("headers", {})
        assert delivery.properties == options.get("properties", {})
        assert (delivery.expiry is None) == ("ttl" not in options)


@pytest.mark.parametrize("options", [{"persistent": False}, {"headers": {"a": bytes(20_000)}}])
def test_other_messages_take_the_slow_way(
    tmp_path: Path, slow: list[bytes], options: dict[str, Any]
) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q", max_length=2).publish(b"x", **options)
        assert slow == [b"x"]
        with pytest.raises(qindex.UsageError):
            engine.queue("q").publish("no bytes")  # type: ignore[arg-type]


def test_room_that_was_taken_is_not_given_twice(tmp_path: Path) -> None:
    """A message that is being written to the message store has its room already."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=1)
        write = engine._messages.write
        refused: list[BaseException] = []

        def publish_meanwhile(*arguments: Any, **options: Any) -> None:
            try:
                queue.publish(b"small")
            except qindex.QueueFullError as error:
                refused.append(error)
            write(*arguments, **options)

        engine._messages.write = publish_meanwhile  # type: ignore[method-assign]
        queue.publish(b"large" * 10_000)
        assert len(refused) == 1
        assert len(queue) == 1


@pytest.mark.parametrize("overflow", ["reject", "block", "drop-head"])
def test_threads_stay_within_the_limit(tmp_path: Path, overflow: Any) -> None:
    """Many publish and consume; at no time is more ready than may be."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=10, overflow=overflow)
        over: list[int] = []
        refused = threading.Semaphore(0)

        def publish() -> None:
            for n in range(300):
                try:
                    queue.publish(b"%d" % n, timeout=WAIT)
                except qindex.QueueFullError:
                    refused.release()
                over.append(len(queue))

        def consume() -> None:
            while (delivery := queue.get(0.2)) is not None:
                delivery.ack()

        work: list[Callable[[], None]] = [publish, publish, consume]
        threads = [threading.Thread(target=one) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        # A publish into a full queue that drops its head is over it until it has.
        assert max(over) <= 10 + 2 * (overflow == "drop-head")
        stats = queue.stats()
        assert stats.ready == 0
        if overflow == "block":
            assert stats.published == 600
