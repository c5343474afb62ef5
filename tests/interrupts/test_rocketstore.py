"""The RocketMQ store, after a call that Ctrl-C ended at any point: nothing that was there before is
lost, doubled, or mixed up, and of what the call put the beginning is there, or nothing.

As :mod:`tests.interrupts.test_interrupts`: each call once for each point, or for a part of them.
The store goes on; after a close that was cut short it may be closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.errors import ClosedError
from rocketstore import dispatcher
from rocketstore.format.delay import SCHEDULE_TOPIC
from rocketstore.verify import verify
from tests.effort import QUICK, part
from tests.interrupts.interruption import interrupted_at, points_of
from tests.interrupts.test_interrupts import chosen
from tests.rocketstore.support import ANY_DISK, TINY, Clock

pytestmark = [
    pytest.mark.interpreted,  # it interrupts between any two lines
    # Where it interrupts a finalizer.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

AFTER = b"put behind it"


@dataclass(slots=True)
class Case:
    """``call``: what is interrupted; ``live``: bodies that are in the queue whatever happens;
    ``new``: bodies that the call puts behind them."""

    call: Callable[[], object]
    live: Sequence[bytes]
    new: Sequence[bytes] = ()


Operation = Callable[[rocketstore.Store], Case]


def fill(store: rocketstore.Store, count: int) -> list[bytes]:
    bodies = [b"m%04d" % at for at in range(count)]
    for body in bodies:
        store.put("T", body, keys=body.decode())
    return bodies


def put(store: rocketstore.Store) -> Case:
    return Case(lambda: store.put("T", b"new", keys="new"), fill(store, 5), [b"new"])


def put_with_fields(store: rocketstore.Store) -> Case:
    fields: dict[str, Any] = {"properties": {"a": "b"}, "flag": 3, "keys": "new"}
    return Case(lambda: store.put("T", b"new", **fields), fill(store, 5), [b"new"])


def put_into_the_next_file(store: rocketstore.Store) -> Case:
    live = fill(store, 2)
    while store._state.commitlog.space_left() > 200:
        live.append(b"m%04d" % len(live))
        store.put("T", live[-1], keys=live[-1].decode())
    return Case(lambda: store.put("T", b"n" * 300, keys="new"), live, [b"n" * 300])


def put_that_dispatches(store: rocketstore.Store) -> Case:
    live = fill(store, dispatcher.PENDING_MAX - 1)
    return Case(lambda: store.put("T", b"new", keys="new"), live, [b"new"])


def put_many(store: rocketstore.Store) -> Case:
    new = [b"n%d" % at for at in range(4)]
    return Case(
        lambda: store.put_many("T", new, keys=[b.decode() for b in new]), fill(store, 5), new
    )


def put_many_over_files(store: rocketstore.Store) -> Case:
    new = [b"n%02d" % at + b"." * 200 for at in range(30)]
    keys = [body[:3].decode() for body in new]
    return Case(lambda: store.put_many("T", new, keys=keys), fill(store, 5), new)


def put_batch(store: rocketstore.Store) -> Case:
    new = [b"n%d" % at for at in range(4)]
    batch = [(0, body, {"KEYS": body.decode()}) for body in new]
    return Case(lambda: store.put_batch("T", batch), fill(store, 5), new)


def get(store: rocketstore.Store) -> Case:
    return Case(lambda: store.get("T", 0, 0).bodies, fill(store, 30))


def query(store: rocketstore.Store) -> Case:
    return Case(lambda: store.query("T", "m0003"), fill(store, 30))


def commit_offset(store: rocketstore.Store) -> Case:
    return Case(lambda: store.commit_offset("G", "T", 0, 3), fill(store, 5))


def checkpoint(store: rocketstore.Store) -> Case:
    live = fill(store, 30)
    store.commit_offset("G", "T", 0, 3)
    return Case(store.checkpoint, live)


def sync(store: rocketstore.Store) -> Case:
    return Case(store.sync, fill(store, 30))


def rebuild_index(store: rocketstore.Store) -> Case:
    return Case(store.rebuild_index, fill(store, 30))


def deliver_due(store: rocketstore.Store) -> Case:
    live = fill(store, 5)
    new = [b"n0", b"n1"]
    for body in new:
        store.put("T", body, keys=body.decode(), delay=1)
    return Case(lambda: store.deliver_due(store.options.clock() + 2_000), live, new)


def clean(store: rocketstore.Store) -> Case:
    return Case(lambda: store.clean(0), fill(store, 60))


def close(store: rocketstore.Store) -> Case:
    return Case(store.close, fill(store, 30))


OPERATIONS: tuple[Operation, ...] = (
    put,
    put_with_fields,
    put_into_the_next_file,
    put_that_dispatches,
    put_many,
    put_many_over_files,
    put_batch,
    get,
    query,
    commit_offset,
    checkpoint,
    sync,
    rebuild_index,
    deliver_due,
    clean,
    close,
)


def open_here(path: Path) -> rocketstore.Store:
    return rocketstore.open(path, background=False, clock=Clock(step=1), retention=ANY_DISK, **TINY)


def check_bodies(store: rocketstore.Store, case: Case, *, again: bool) -> None:
    """``again``: a delayed message may have been delivered twice, as after a crash."""
    messages = list(store.messages("T", 0))
    assert [message.queue_offset for message in messages] == list(range(len(messages)))
    bodies = [message.body for message in messages]
    counts = Counter(bodies)
    assert counts.keys() <= {*case.live, *case.new, AFTER}, "never put"
    assert again or counts.most_common(1)[0][1] == 1, "doubled"
    assert bodies[: len(case.live)] == list(case.live), "lost, or out of order"
    new = [body for body in bodies[len(case.live) :] if body != AFTER]
    assert again or new == list(case.new[: len(new)])
    places: dict[tuple[str, ...], list[int]] = {}
    for message in messages:
        places.setdefault(tuple(message.keys), []).append(message.offset)
    # Each query looks into every index file, of which there may be many.
    asked = part(list(places), len(places) // 100 + 1 if QUICK else 1, "keys")
    for keys, offsets in ((one, places[one]) for one in asked):
        for key in keys:
            assert [one.offset for one in store.query("T", key)] == offsets


def check_afterwards(path: Path, store: rocketstore.Store, case: Case, *, again: bool) -> str:
    """Tells how the store goes on."""
    state = "goes on"
    assert not store._state.lock._is_owned()
    try:
        store.put("T", AFTER)
        check_bodies(store, case, again=again)
        assert not store.findings
    except ClosedError:
        state = "closed"
    store.close()
    with open_here(path) as reopened:
        if again:
            reopened.deliver_due(1 << 42)
        check_bodies(reopened, case, again=again)
        delayed = reopened.get(SCHEDULE_TOPIC, 0, 0).messages
        assert len(delayed) == (len(case.new) if again else 0)
    assert not verify(path, **TINY)
    return state


@pytest.mark.rotates(2)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_a_call_that_is_cut_short(
    tmp_path: Path, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "PENDING_MAX", 6)
    monkeypatch.setattr("rocketstore.putter.PENDING_MAX", 6)
    store = open_here(tmp_path / "whole")
    case = operation(store)
    points = points_of(case.call)
    store.close()
    assert points
    states: Counter[str] = Counter()
    not_reached = 0
    for point in chosen(points, operation.__name__):
        path = tmp_path / f"{point}"
        store = open_here(path)
        case = operation(store)
        where = interrupted_at(case.call, point)
        if where is None:  # it takes fewer steps this time
            not_reached += 1
            store.close()
            continue
        try:
            state = check_afterwards(path, store, case, again=operation is deliver_due)
            assert state == "goes on" or operation is close
            states[state] += 1
        except Exception as error:
            raise AssertionError(f"cut short at {where}: {error!r}") from error
    assert states.total() or not_reached == 1
