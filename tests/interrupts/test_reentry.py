"""A signal's handler, or a finalizer, that makes calls of its own in the middle of another one.

Each call is made once for each point where a handler can run, or for a part of them
(:data:`tests.interrupts.test_interrupts.EVERY`; the quick tier takes a part of the pairs of call
and handler, too), with a handler that makes a call of the same
thread: of the same queue or store, or of another queue. That call is done, or refused before it has
changed anything; the other one goes on as if nothing had been. Nothing is lost, doubled or mixed
up, and nobody waits for himself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

import qindex
import rocketstore
from journal.errors import ClosedError, UsageError
from qindex.options import Durability
from rocketstore.verify import verify
from tests.effort import by_tier, part
from tests.interrupts import test_rocketstore as rocket
from tests.interrupts.interruption import points_of, run_at
from tests.interrupts.operations import LARGE, OPERATIONS, OPTIONS, Operation
from tests.interrupts.test_interrupts import check_bodies, chosen, drained
from tests.rocketstore.support import TINY

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.interpreted,  # handlers come between any two lines
]

SLICES = by_tier(quick=5, all=1, nightly=1)
"""Of the pairs; 5 has no divisor in common with the numbers of handlers, so each has its share."""
OWN = b"from a handler"
Handler = Callable[[qindex.Engine, qindex.Queue], None]


def publish(_engine: qindex.Engine, queue: qindex.Queue) -> None:
    queue.publish(OWN)


def publish_elsewhere(engine: qindex.Engine, _queue: qindex.Queue) -> None:
    engine.queue("other").publish(OWN + LARGE)


def look(_engine: qindex.Engine, queue: qindex.Queue) -> None:
    queue.stats()
    queue.flush()


HANDLERS = [publish, publish_elsewhere, look]
CASES = list(product(OPERATIONS, HANDLERS, ["os", "fsync"]))


def name_of(value: object) -> str:
    """Give the name of an argument in a test's id."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(
    ("operation", "handler", "durability"), part(CASES, SLICES, "handlers"), ids=name_of
)
def test_a_handler_that_makes_a_call(
    tmp_path: Path, operation: Operation, handler: Handler, durability: Durability
) -> None:
    def opened(name: str) -> qindex.Engine:
        engine: qindex.Engine = qindex.open(tmp_path / name, **OPTIONS, durability=durability)
        return engine

    engine = opened("whole")
    points = points_of(operation(engine, engine.queue("q")).call)
    engine.close()
    outcomes: Counter[str] = Counter()
    for point in chosen(points, f"{operation.__name__} {handler.__name__}"):
        engine = opened(f"{point}")
        queue = engine.queue("q")
        case = operation(engine, queue)
        outcome = "not run"

        def handle(engine: qindex.Engine = engine, queue: qindex.Queue = queue) -> None:
            nonlocal outcome
            try:
                handler(engine, queue)
                outcome = "done"
            except (UsageError, ClosedError) as error:
                outcome = "refused" if "middle of another call" in str(error) else "closed"
                assert outcome == "refused" or operation.__name__ == "close"

        where = run_at(case.call, point, handle)
        try:
            outcomes[outcome] += 1
            engine.close()
            with qindex.open(tmp_path / f"{point}", **OPTIONS) as again:
                assert not again.findings
                bodies = drained(again.queue("q"))
                own = bodies.count(OWN) + drained(again.queue("other")).count(OWN + LARGE)
                if handler is look:
                    assert own == 0
                elif durability == "os" or outcome != "refused":
                    published = outcome == "done"
                    dropped = operation.__name__ == "purge" and published and not own
                    assert own == published or dropped
                else:  # it may have been about to be made durable
                    assert own <= 1
                check_bodies([body for body in bodies if body != OWN], case)
                assert all(body in bodies for body in case.new), "what was interrupted is not done"
        except Exception as error:
            raise AssertionError(f"{outcome} at {where}: {error!r}") from error
    assert outcomes.total()


def put(store: rocketstore.Store) -> None:
    store.put("T", OWN, keys="own")


def put_elsewhere(store: rocketstore.Store) -> None:
    store.put_many("elsewhere", [OWN], keys=["own"])


def ask(store: rocketstore.Store) -> None:
    store.query("T", "own")
    store.checkpoint()


ROCKET_CASES = list(product(rocket.OPERATIONS, [put, put_elsewhere, ask]))


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    ("operation", "handler"), part(ROCKET_CASES, SLICES, "handlers of a store"), ids=name_of
)
def test_a_handler_of_a_store_that_makes_a_call(
    tmp_path: Path,
    operation: rocket.Operation,
    handler: Callable[[rocketstore.Store], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocketstore.dispatcher.PENDING_MAX", 6)
    monkeypatch.setattr("rocketstore.putter.PENDING_MAX", 6)
    store = rocket.open_here(tmp_path / "whole")
    points = points_of(operation(store).call)
    store.close()
    outcomes: Counter[str] = Counter()
    for point in chosen(points, f"{operation.__name__} {handler.__name__}"):
        path = tmp_path / f"{point}"
        store = rocket.open_here(path)
        case = operation(store)
        outcome = "not run"

        def handle(store: rocketstore.Store = store) -> None:
            nonlocal outcome
            try:
                handler(store)
                outcome = "done"
            except (UsageError, ClosedError) as error:
                outcome = "refused" if "middle of another call" in str(error) else "closed"
                assert outcome == "refused" or operation.__name__ == "close"

        where = run_at(case.call, point, handle)
        try:
            outcomes[outcome] += 1
            store.close()
            with rocket.open_here(path) as again:
                assert not again.findings
                bodies = [message.body for message in again.messages("T", 0)]
                own = bodies.count(OWN) + again.get("elsewhere", 0, 0).bodies.count(OWN)
                assert own == (handler is not ask and outcome == "done")
                found = again.query("T", "own") + again.query("elsewhere", "own")
                assert [one.body for one in found] == [OWN] * own
                others = [body for body in bodies if body != OWN]
                assert others == [*case.live, *case.new]
            assert not verify(path, **TINY)
        except Exception as error:
            raise AssertionError(f"{outcome} at {where}: {error!r}") from error
    assert outcomes.total()
