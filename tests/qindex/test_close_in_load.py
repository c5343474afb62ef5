"""close() in the middle of mixed load: rounds of it, each verified.

Threads publish small and large messages, one by one, in batches and to several queues; take,
acknowledge, give back and reject them; flush, sync and compact. At some moment two threads close.
Nothing that returned is lost, nothing that was acknowledged is back, all who waited are told, and
what is left on disk is sound: no message without an entry, no reference too many.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import qindex
from qindex.options import Durability
from tests import effort
from tests.waiting import WAIT

ROUNDS = effort.by_tier(quick=6, all=100, nightly=1000)
LARGE = 20_000


class Load:
    """What threads did to one engine, and what was promised to them."""

    def __init__(self, engine: qindex.Engine, chance: random.Random) -> None:
        self.engine = engine
        self.a = engine.queue("a", dead_letter="dead")
        self.b = engine.queue("b", max_length=40, overflow="block")
        self.seed = chance.random()
        self.lock = threading.Lock()
        self.there: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.unsure: set[bytes] = set()
        self.wrong: list[BaseException] = []

    def publish(self, number: int, chance: random.Random) -> None:
        name = b"%d-%d." % (number, chance.getrandbits(40))
        large = chance.random() < 0.5
        body = name.ljust(LARGE if large else 30, b"x")
        names = [name]
        kind = chance.randrange(5)
        with self.lock:
            self.unsure.add(name)
        if kind == 0:
            more = [b"m" + name, body]
            names.append(b"m" + name)
            with self.lock:
                self.unsure.add(names[1])
            self.a.publish_many(more)
        elif kind == 1:
            self.a.publish(body, confirm=True)
        elif kind == 2:
            self.b.publish(body, timeout=None)
        else:
            self.a.publish(body, key="k" if kind == 3 else None)
        with self.lock:
            self.there.update(set(names) - self.gone)

    def settle(self, chance: random.Random) -> None:
        queue = self.a if chance.random() < 0.6 else self.b
        batch: list[qindex.Delivery | None] = [*queue.get_many(3, 0.01)]
        batch = batch or [queue.get(0.01)]
        for one in batch:
            if one is None:
                continue
            name = one.body[: one.body.index(b".") + 1]
            what = chance.randrange(6)
            if what == 0:
                one.nack()
            elif what == 1:
                one.reject() if queue is self.a else one.nack()
            else:
                with self.lock:
                    self.there.discard(name)
                    self.unsure.add(name)
                one.ack()
                with self.lock:
                    self.gone.add(name)

    def look_after(self, chance: random.Random) -> None:
        engine = self.engine
        chance.choice([engine.sync, engine.flush, engine.compact, engine.stats, self.a.flush])()

    def once(self, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.wrong.append(error)

        return threading.Thread(target=run, name="closer", daemon=True)

    def thread(self, number: int, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                while True:
                    work()
            except qindex.ClosedError:
                pass
            except BaseException as error:
                self.wrong.append(error)

        return threading.Thread(target=run, name=f"load {number}", daemon=True)


def one_round(directory: Path, number: int) -> None:
    chance = effort.chance("close in load", number)
    durability: Durability = chance.choice(("os", "os", "fsync"))
    engine = qindex.open(
        directory,
        durability=durability,
        max_journal_entries=chance.choice([64, 5000]),
        store_file_bytes=64 << 10,
        flush_idle=0.02,
        rest_idle=0.02,
    )
    load = Load(engine, chance)
    threads = []
    for at in range(5):
        own = random.Random(f"{load.seed} {at}")
        works: list[Callable[[], None]] = [
            lambda at=at, own=own: load.publish(at, own),  # type: ignore[misc]
            lambda own=own: load.settle(own),  # type: ignore[misc]
            lambda own=own: load.look_after(own),  # type: ignore[misc]
        ]
        threads.append(load.thread(at, works[(0, 1, 0, 1, 2)[at]]))
    waiter = load.thread(9, lambda: load.engine.queue("nothing comes").get(None))
    threads.append(waiter)
    for thread in threads:
        thread.start()
    threading.Event().wait(chance.random() * 0.08)
    closers = [load.once(engine.close) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in closers + threads:
        thread.join(WAIT)
        assert not thread.is_alive(), f"{thread.name} waits for ever"
    if load.wrong:
        raise load.wrong[0]
    assert not qindex.verify(directory).findings
    with qindex.open(directory, background=False) as again:
        assert not again.findings
        got: Counter[bytes] = Counter()
        for name in sorted(again.queue_names(), key=lambda one: one == "dead"):
            while batch := again.queue(name).get_many(1000):
                got.update(one[: one.index(b".") + 1] for one in batch.bodies)
    assert load.there - load.gone <= got.keys(), "lost"
    assert not load.gone & got.keys(), "back"
    assert max(got.values(), default=0) <= 1, "twice"
    assert got.keys() <= load.there | load.unsure


@pytest.mark.timeout(7200)
def test_close_in_the_middle_of_mixed_load(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        try:
            one_round(tmp_path / f"{number}", number)
        except BaseException as error:
            error.add_note(f"round {number} of rotation {effort.ROTATION}")
            raise
