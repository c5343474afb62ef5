"""A shared store does what one does that is open in this process: the same random calls, in the
same order, have the same results and errors."""

from __future__ import annotations

import random
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import qindex
from qindex import AnyEngine, AnyQueue, Delivery, Message
from tests.effort import by_tier, chance
from tests.server.support import end_server, log_of

CALLS = by_tier(quick=500, all=8000, nightly=200_000)
LEASE = 0.05
LATER = datetime(2100, 1, 1, tzinfo=UTC)


class Player:
    """Makes random calls of one engine, and notes what comes of them."""

    def __init__(self, engine: AnyEngine, rng: random.Random) -> None:
        self.engine = engine
        self.rng = rng
        self.held: list[Delivery] = []
        self.settled: list[Delivery] = []
        self.log: list[Any] = []

    def note(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            value = call()
        except qindex.StoreError as error:
            text = re.sub(r"of another engine, not to|, not to", ", not to", str(error))
            text = text.replace(self.engine.directory, "DIR").replace(
                "message 0 of the batch: ", ""
            )
            # One that is settled, and another queue's: either is said of it.
            self.log.append((name, type(error).__name__, "" if name == "again" else text))
            return None
        self.log.append((name, shown(value)))
        return value

    def step(self) -> None:
        rng = self.rng
        name = rng.choice(["a", "b", "limited", "letters"])
        queue = self.engine.queue(name)
        verb = rng.choice(VERBS)
        verb(self, queue)
        if self.is_shared():
            self.await_letters()

    def await_letters(self) -> None:
        """Wait until the server has moved the dead letters, which it does beside its replies."""
        queue = self.engine.queue("a")
        while (stats := queue.stats()).given_up.total != stats.dead_letters.total:
            time.sleep(0.001)

    def body(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([0, 1, 9, 100, 5000, 20_000, 70_000]))

    def parts(self) -> dict[str, Any]:
        rng = self.rng
        given: dict[str, Any] = {}
        if rng.random() < 0.3:
            given["key"] = rng.choice(["k", "é", 7])
        if rng.random() < 0.3:
            given["headers"] = rng.choice(
                [{"n": 1, "x": [1, {"y": b"z"}]}, {}, {3: 4}, [1], {"f": 1.5}]
            )
        if not given and rng.random() < 0.2:
            given["properties"] = rng.choice([{"content_type": "text"}, {"bad": object()}])
        return given

    def publish(self, queue: AnyQueue) -> None:
        rng = self.rng
        body: Any = rng.choice([self.body(), self.body(), bytearray(b"ba"), "text", 5])
        options = self.parts()
        if not options and rng.random() < 0.3:  # one mistake at a time
            options["ttl"] = rng.choice([10_000, -1, "x"])
        if rng.random() < 0.1:
            options["confirm"] = True
        if rng.random() < 0.1:
            options["persistent"] = False
        if rng.random() < 0.2:
            body = Message(self.body(), "mk", {"m": 1})
        self.note("publish", lambda: queue.publish(body, timeout=0, **options))

    def publish_later(self, queue: AnyQueue) -> None:
        rng = self.rng
        when: Any = {"delay": rng.choice([0, 1e6, -1, "x"])}
        if rng.random() < 0.3:
            when = {"at": rng.choice([LATER, LATER.replace(tzinfo=None), "soon"])}
        if rng.random() < 0.3:
            self.note("many later", lambda: queue.publish_many([b"1", b"2"], timeout=0, **when))
            return
        body = self.body()
        seq = self.note("later", lambda: queue.publish(body, timeout=0, **when))
        # A message that is ready may have been sent ahead to a consumer: it counts as delivered.
        if seq is not None and when.get("delay") != 0 and rng.random() < 0.5:
            self.note("cancel", lambda: queue.cancel(seq))
        self.note("cancel", lambda: queue.cancel(10_000))

    def publish_unique(self, queue: AnyQueue) -> None:
        options: dict[str, Any] = {"unique": self.rng.choice(["u1", "u2", "", 5])}
        if self.rng.random() < 0.2:
            options["window"] = self.rng.choice([1e6, -1])
        elif self.rng.random() < 0.3:
            options["until"] = "never"
        body: Any = self.rng.choice([b"x", Message(b"y", "k", {"h": 1})])
        self.note("unique", lambda: queue.publish(body, timeout=0, **options))

    def publish_many(self, queue: AnyQueue) -> None:
        count = self.rng.choice([0, 1, 3, 40])
        batch: list[Any] = [self.body()[:3000] for _ in range(count)]
        if self.rng.random() < 0.2:
            batch.append(Message(b"m", "k", {"h": 1}, {}, 5))
        if self.rng.random() < 0.1:
            batch.append("no body")
        ttl = self.rng.choice([None, None, 10_000])
        self.note("publish_many", lambda: queue.publish_many(batch, timeout=0, ttl=ttl))

    def publish_to(self, queue: AnyQueue) -> None:
        names = self.rng.choice([["a", "b"], ["a", "a"], [], ["a", "limited"], "ab"])
        body = self.body()
        self.note("publish_to", lambda: self.engine.publish_to(names, body, key="k", timeout=0))

    def get(self, queue: AnyQueue) -> None:
        lease = self.rng.choice([None, None, None, 10_000, -1])
        found = self.note("get", lambda: queue.get(timeout=0, lease=lease))
        if found is not None:
            self.held.append(found)

    def get_first(self, queue: AnyQueue) -> None:
        rng = self.rng
        timeout: Any = rng.choice([0, 0, 0, 0.001, "x"])
        lease = rng.choice([None, None, 10_000, -1])
        queues: Any = [queue, *rng.choices(["a", "b", "letters", queue, "new", ""], k=2)]
        if rng.random() < 0.2:
            queues = rng.choice([[], "a", queue, [5]])
        found = self.note("get first", lambda: self.engine.get(queues, timeout, lease=lease))
        if found is not None:
            self.log.append(found.queue_name)
            self.held.append(found)

    def get_ack(self, queue: AnyQueue) -> None:
        if self.held:
            before = self.held.pop(self.rng.randrange(len(self.held)))
            found = self.note("get ack", lambda: queue.get(timeout=0, ack=before))
            self.settled.append(before)
            if found is not None:
                self.held.append(found)

    def get_many(self, queue: AnyQueue) -> None:
        most = self.rng.choice([0, 1, 5, 50])
        found = self.note("get_many", lambda: queue.get_many(most))
        if not found:
            return
        way = self.rng.randrange(4)
        if way == 0:
            self.note("ack_many", lambda: queue.ack_many(found))
            self.note("twice", lambda: queue.ack_many(found))
            self.note("one of them", lambda: found[0].ack())
        elif way == 1:
            self.note("ack slice", lambda: queue.ack_many(found[: len(found) // 2]))
            self.held += found[len(found) // 2 :]
        elif way == 2:
            self.note("ack list", lambda: queue.ack_many([*found, found[0]]))
            self.note("ack list", lambda: queue.ack_many(list(found)[::-1]))
        else:
            self.held += found

    def consume(self, queue: AnyQueue) -> None:
        prefetch = self.rng.choice([1, 3, 100])
        count = self.rng.choice([1, 2, 30])
        for at, delivery in enumerate(queue.consume(prefetch=prefetch, timeout=0)):
            self.log.append(("consumed", shown(delivery)))
            if at % 5 == 3:
                self.note("consume nack", delivery.nack)
                break
            self.note("consume ack", delivery.ack)
            if at == count:
                break

    def settle(self, queue: AnyQueue) -> None:
        if not self.held:
            return
        delivery = self.held.pop(self.rng.randrange(len(self.held)))
        verb = self.rng.choice(
            ["ack", "nack", "reject", "with", "raise", "ack_many", "other", "later", "uncounted"]
        )
        if verb == "later":
            self.note(verb, lambda: delivery.nack(delay=1e6))
        elif verb == "uncounted":
            self.note(verb, lambda: queue.nack(delivery, count=False))
        elif verb == "with":
            with delivery:
                pass
        elif verb == "raise":
            with pytest.raises(KeyError), delivery:
                raise KeyError
        elif verb == "ack_many":
            self.note(verb, lambda: queue.ack_many([delivery]))
        elif verb == "other":
            self.note(verb, lambda: queue.ack(delivery))
        else:
            self.note(verb, getattr(delivery, verb))
        self.log.append((verb, delivery.settled))
        if delivery.settled:
            self.settled.append(delivery)
        else:
            self.held.append(delivery)

    def settle_again(self, queue: AnyQueue) -> None:
        if self.settled:
            delivery = self.rng.choice(self.settled)
            verb = self.rng.choice([queue.ack, queue.nack, queue.reject])
            self.note("again", lambda: verb(delivery))
            self.note("again", delivery.ack)
        what: Any = self.rng.choice([None, "x", 4])
        self.note("no delivery", lambda: queue.ack(what))
        self.note("no delivery", lambda: queue.ack_many([what]))

    def extend(self, queue: AnyQueue) -> None:
        if self.held:
            delivery = self.rng.choice(self.held)
            self.note("extend", lambda: delivery.extend_lease(50_000))

    def ack_up_to(self, queue: AnyQueue) -> None:
        if self.rng.random() < 0.2:
            seq: Any = self.rng.choice([0, 50, 10_000, "x"])
            self.note("ack_up_to", lambda: queue.ack_up_to(seq))
            self.held = [one for one in self.held if not one.settled or self.is_shared()]
            self.drop_settled()

    def is_shared(self) -> bool:
        return isinstance(self.engine, qindex.SharedEngine)

    def drop_settled(self) -> None:
        """A client does not know which of its deliveries were settled by ``ack_up_to``."""
        for one in self.held:
            with suppress(qindex.UsageError):
                one.nack()
        self.held = []

    def look(self, queue: AnyQueue) -> None:
        peeked = queue.peek(self.rng.choice([0, 1, 3]))
        self.log.append(("peek", [(one.seq_id, one.key, len(one.body)) for one in peeked]))
        self.note("len", lambda: len(queue))
        self.note("settings", lambda: queue.settings)
        self.note("names", self.engine.queue_names)

    def whole(self, queue: AnyQueue) -> None:
        verb = self.rng.choice(["flush", "sync", "purge", "compact", "delete", "reserve"])
        if verb == "delete":
            doomed = self.engine.queue("doomed")
            doomed.publish_many([b"1", b"2"])
            with_it = doomed.get()
            self.note(verb, lambda: self.engine.delete_queue("doomed"))
            self.note(verb, lambda: self.engine.delete_queue("doomed"))
            self.note(verb, lambda: doomed.publish(b"gone"))
            self.note(verb, with_it.ack)
            self.note(verb, lambda: self.engine.queue("doomed").publish(b"new"))
        elif verb == "compact":
            self.engine.compact()
            self.engine.flush()
            self.engine.sync()
        elif verb == "reserve":
            self.note(verb, lambda: queue.reserve(self.rng.choice([3, -1])))
        elif verb == "purge" and self.rng.random() < 0.8:
            return
        else:
            self.note(verb, getattr(queue, verb))


VERBS = [
    *3 * [Player.publish],
    Player.publish_later,
    Player.publish_unique,
    Player.publish_many,
    Player.publish_to,
    *2 * [Player.get],
    Player.get_first,
    Player.get_ack,
    Player.get_many,
    Player.consume,
    *3 * [Player.settle],
    Player.settle_again,
    Player.extend,
    Player.ack_up_to,
    Player.look,
    Player.whole,
]


def shown(value: Any) -> Any:
    if isinstance(value, Delivery):
        count = value.delivery_count
        stamped = value.timestamp > 0
        headers = re.sub(r"'(time|qindex-[-\w]+)': \d+", r"'\1'", repr(dict(value.headers)))
        parts = value.key, headers, dict(value.properties)
        expires = value.expiry is not None
        # What was sent ahead to a consumer and came back has `redelivered`, and a count of 1.
        again = value.redelivered and count > 1
        body = len(value.body), zlib.crc32(value.body)
        return value.seq_id, body, again, count, *parts, stamped, expires
    if isinstance(value, (list, qindex.Batch)):
        return [shown(one) for one in value]
    return value


def play(engine: AnyEngine, name: str) -> list[Any]:
    player = Player(engine, chance(name))
    engine.queue("letters")
    engine.queue("a", dead_letter="letters", delivery_limit=3)
    engine.queue("limited", max_length=20, max_bytes=100_000, overflow="reject")
    for _ in range(CALLS):
        player.step()
    player.note("bad", lambda: engine.queue("a", dead_letter="a"))
    player.note("bad", lambda: engine.queue("", max_length=3))
    player.note("bad", lambda: engine.queue("x", max_length=-3))
    player.note("unset", lambda: engine.queue("a", delivery_limit=qindex.UNSET).settings)
    for name in engine.queue_names():
        stats = engine.queue(name).stats()
        player.log.append((stats.ready, stats.delayed, stats.unacked, stats.published))
        player.log.append((stats.acked, stats.given_up, stats.dead_letters))
    return player.log


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_same_calls_have_the_same_results(tmp_path: Path, durability: Any) -> None:
    with qindex.open(tmp_path / "own", durability=durability) as engine:
        expected = play(engine, durability)
    with qindex.open(tmp_path / "shared", shared=True, linger=0, durability=durability) as engine:
        found = play(engine, durability)
    for at, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, f"call {at}: {found[max(at - 3, 0) : at]}"
    assert len(found) == len(expected)
    end_server(tmp_path / "shared")
    assert not log_of(tmp_path / "shared")


def test_a_lease_runs_out_as_in_one_process(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data", shared=True, linger=0) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"1", b"2", b"3"])
        late, *batch = queue.get_many(3, lease=LEASE)
        again = queue.get()
        assert (again.body, again.redelivered, again.delivery_count) == (b"1", True, 2)
        while len(queue) < 2:
            time.sleep(0.01)
        with pytest.raises(qindex.LeaseExpiredError):
            late.ack()
        with pytest.raises(qindex.LeaseExpiredError):
            queue.ack_many(batch)
        again.ack()
        slow = queue.get(lease=LEASE)
        slow.__enter__()
        while not slow.settled:
            time.sleep(0.01)
        with pytest.warns(RuntimeWarning, match="ran out"):
            slow.__exit__(None, None, None)
        assert [one.body for one in queue.consume(timeout=0, lease=10)] == [b"2", b"3"]
