"""Whatever point of a call Ctrl-C ends it at: nothing else is lost, doubled, or mixed up.

Each call is made once for each point where a signal's handler can raise. Only the nightly run takes
all of them; the others take every :data:`EVERY`-th, and rotate. It is made with the lock of a queue
that one thread uses, and with that of one that several use. Then:

* the lock is free, and what follows does what it should, or says that writes are refused;
* after a close and an open all that was there is there, once, in order, and nothing is damaged;
  so it is if the process is killed behind the message that was published next;
* of what the call itself was to do, the beginning is done, or nothing.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from unittest import mock

import pytest

import qindex
from journal.locks.flag import Flag
from journal.locks.patience import PatientLock
from journal.locks.sync import GroupCommit
from qindex.engine.housekeeper import Housekeeper
from qindex.queue.timer import Alarm
from qindex.shelf.idle_queues import Roster
from tests.effort import by_tier, part
from tests.interrupts.interruption import interrupted_at, points_of
from tests.interrupts.operations import OPERATIONS, OPTIONS, Case, Operation
from tests.waiting import WAIT

pytestmark = [
    pytest.mark.interpreted,  # it interrupts between any two lines
    # Where it interrupts a finalizer.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

EVERY = by_tier(quick=59, all=7, nightly=1)
AFTER = b"published behind it"


def drained(queue: qindex.Queue) -> list[bytes]:
    bodies: list[bytes] = []
    while batch := queue.get_many(100):
        bodies += batch.bodies
        queue.ack_many(batch)
    return bodies


def check_bodies(bodies: Sequence[bytes], case: Case) -> None:
    counts = Counter(bodies)
    assert not [body for body, count in counts.items() if count > 1], "doubled"
    assert counts.keys() <= {*case.live, *case.new, *case.gone}, "never published"
    assert not [body for body in case.live if body not in counts], "lost"
    order = [*case.gone, *case.live, *case.new]
    assert list(bodies) == [body for body in order if body in counts], "out of order"
    new = [body for body in case.new if body in counts]
    assert new == list(case.new[: len(new)])


def check_afterwards(directory: Path, engine: qindex.Engine, case: Case) -> str:
    """Tells how the engine goes on."""
    state = "goes on"
    before: list[bytes] = []
    killed = directory.with_name(f"{directory.name}-killed")
    try:
        queue = engine.queue("q")
        assert not queue._parts.state.lock.is_mine()
        queue.publish(AFTER)
        shutil.copytree(directory, killed)
        before = drained(queue)
        assert before.pop() == AFTER
        check_bodies(before, case)
    except qindex.WritesRefusedError as error:
        assert "was cut short by" in str(error)  # noqa: PT017
        state = "refuses"
        check_reading(engine, case)
    except qindex.ClosedError:
        state = "closed"
    engine.close()
    with qindex.open(directory, **OPTIONS) as again:
        assert all(one.cause is qindex.Cause.CRASH for one in again.findings), again.findings
        rest = drained(again.queue("q"))
        for name in again.queue_names():
            drained(again.queue(name))
        left = again._messages.stats()
        assert left is None or not left.messages, "nobody refers to it, and it is kept"
    if state == "goes on":
        assert not set(rest) & set(before), "acknowledged, and back"
        check_killed(killed, case, before)
    check_bodies([*rest, *before], case)
    return state


def check_reading(engine: qindex.Engine, case: Case) -> None:
    """Where writes are refused reading goes on, or is refused, too: nothing else is given."""
    with suppress(qindex.WritesRefusedError):
        queue = engine.queue("q")
        check_bodies([message.body for message in queue.peek(1000)], case)
        check_bodies(queue.get_many(1000).bodies, case)


def check_killed(directory: Path, case: Case, before: Sequence[bytes]) -> None:
    """``before``: what was in use."""
    with qindex.open(directory, **OPTIONS) as engine:
        assert all(one.cause is qindex.Cause.CRASH for one in engine.findings), engine.findings
        bodies = drained(engine.queue("q"))
    assert bodies.pop() == AFTER
    check_bodies(bodies, case)
    assert [body for body in bodies if body in case.new] == [
        body for body in before if body in case.new
    ]


def chosen(points: int, what: str) -> Sequence[int]:
    """Give the points of a call that this run tries."""
    return part(range(1, points + 1), EVERY, what)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_a_call_that_is_cut_short(tmp_path: Path, operation: Operation, shared: bool) -> None:
    def prepared(name: str) -> tuple[qindex.Engine, Case]:
        engine = qindex.open(tmp_path / name, **OPTIONS)
        queue = engine.queue("q")
        case = operation(engine, queue)
        queue._parts.state.lock.share(shared)
        return engine, case

    engine, case = prepared("whole")
    points = points_of(case.call)
    engine.close()
    assert points
    states: Counter[str] = Counter()
    not_reached = 0
    for point in chosen(points, f"{operation.__name__} {shared}"):
        name = f"{point}"
        engine, case = prepared(name)
        where = interrupted_at(case.call, point)
        if where is None:  # it takes fewer steps this time
            not_reached += 1
            engine.close()
            continue
        try:
            states[check_afterwards(tmp_path / name, engine, case)] += 1
        except Exception as error:
            raise AssertionError(f"cut short at {where}: {error!r}") from error
    assert states.total() or not_reached == 1


@pytest.mark.parametrize("shared", [False, True])
def test_the_lock_is_free_afterwards(shared: bool) -> None:
    lock = PatientLock()
    lock.share(shared)

    def call() -> None:
        with lock:
            pass

    for point in range(1, points_of(call) + 1):
        assert interrupted_at(call, point)
        assert not lock.is_mine()


def test_a_sync_that_is_cut_short_leaves_the_lead_to_the_next() -> None:
    calls: list[int] = []
    points = points_of(GroupCommit(lambda: calls.append(1)).commit)
    assert points > 5
    for point in range(1, points + 1):
        commits = GroupCommit(lambda: calls.append(1))
        assert interrupted_at(commits.commit, point)
        calls.clear()
        commits.commit()
        assert calls == [1]


class _NoThread:
    """A thread that is not there, so that all points are those of the calling one."""

    def start(self) -> bool:
        return True

    def join(self) -> None:
        pass


class _Sleeper:
    def on_alarm(self) -> None:
        pass


def _of_an_alarm() -> tuple[Alarm, list[Callable[[], object]]]:
    alarm = Alarm()
    alarm._thread = _NoThread()  # type: ignore[assignment]
    set_one = partial(alarm.set, _Sleeper(), 0.0)
    return alarm, [alarm.begin, set_one, alarm.stop]


def _of_a_housekeeper() -> tuple[Housekeeper, list[Callable[[], object]]]:
    with mock.patch("qindex.engine.housekeeper.Background", return_value=_NoThread()):
        keeper = Housekeeper(Roster(1, None), flush_idle=1.0, rest_idle=1.0, budget=1)
    return keeper, [partial(keeper.ask, mock.Mock()), keeper.ask_for_room, keeper.stop]


@pytest.mark.parametrize("made", [_of_an_alarm, _of_a_housekeeper], ids=["alarm", "housekeeper"])
@pytest.mark.parametrize("call", range(3))
def test_the_threads_of_an_engine_get_their_lock(
    made: Callable[[], tuple[Alarm | Housekeeper, list[Callable[[], object]]]], call: int
) -> None:
    """A close waited for ever for a thread that waited for a lock that a handler had left taken."""
    points = points_of(made()[1][call], library=True)
    assert points > 1
    for point in range(1, points + 1):
        owner, calls = made()
        assert interrupted_at(calls[call], point, library=True)
        assert not owner._lock._is_owned()  # type: ignore[attr-defined]


def test_a_flag_that_is_cut_short() -> None:
    points = points_of(Flag().set, library=True)
    for point in range(1, points + 1):
        flag = Flag()
        interrupted_at(flag.set, point, library=True)
        before = flag.is_set()
        thread = Thread(target=flag.set)
        if not before:
            thread.start()
        assert flag.wait(WAIT)
        if not before:
            thread.join()
