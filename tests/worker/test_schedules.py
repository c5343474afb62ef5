"""Schedules in one process: when they publish, what they make up for, and how they are changed."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.queue import run_clock
from qindex.worker import schedules, ticking
from qindex.worker.cron import SECOND
from qindex.worker.schedules import INSTANT_HEADER, MAX_MISSED, QUEUE, SCHEDULE_HEADER
from tests.waiting import WAIT, wait_until

YEAR = 365 * 86400.0
BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Clock:
    """The wall clock, and the time that passes: by :meth:`go`. :meth:`set` sets the former."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.passed = round(BEGIN.timestamp() * SECOND)
        monkeypatch.setattr(schedules, "wall_us", lambda: self.wall)
        monkeypatch.setattr(ticking, "_elapsed_us", lambda: self.passed)
        monkeypatch.setattr(run_clock, "time_ns", lambda: self.passed * 1000)

    def go(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)
        self.passed += round(seconds * SECOND)

    def set(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall / SECOND, UTC)


class World:
    """An engine, its ticker, and a clock that stands still."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.clock = clock
        self.directory = directory
        self.open()

    def open(self) -> None:
        self.engine = qindex.open(self.directory, background=False)
        self.ticker = ticking.Ticker(self.engine)

    def reopen(self) -> None:
        """The process ends and another one starts: from then on delays go by the wall clock."""
        self.engine.close()
        self.clock.passed = self.clock.wall
        self.open()

    def tick(self, seconds: float = 0) -> list[datetime]:
        """Let time pass, and give the instants that are published then."""
        self.clock.go(seconds)
        self.ticker.turn(0)
        found = self.engine.queue("jobs").get_many(10_000)
        self.engine.queue("jobs").ack_many(found)
        return [datetime.fromtimestamp(one.headers[INSTANT_HEADER] / SECOND, UTC) for one in found]

    def schedule(self, name: str = "s", *cron: str, **options: Any) -> qindex.Schedule:
        return self.engine.schedule(name, *cron, **{"queue": "jobs", **options})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path / "data", Clock(monkeypatch))
    yield made
    made.engine.close()


interpreted = pytest.mark.interpreted  # the clock of compiled modules can't be replaced


def seconds(*passed: float) -> list[datetime]:
    return [BEGIN + timedelta(seconds=one) for one in passed]


# -- messages -------------------------------------------------------------------------------------


@interpreted
def test_a_message_says_what_it_is_for(world: World) -> None:
    made = world.schedule(
        every=60, body=b"ping", key="k", headers={"kind": "new", "list": [1, {"a": None}]}
    )
    assert made.next_run == BEGIN + timedelta(seconds=60)
    assert made.last_run is None
    world.clock.go(60)
    world.ticker.turn(0)
    message = world.engine.queue("jobs").get(timeout=0)
    assert message is not None
    assert (message.body, message.key) == (b"ping", "k")
    assert message.headers == {
        **made.headers,
        SCHEDULE_HEADER: "s",
        INSTANT_HEADER: world.clock.wall,
    }
    assert world.engine.schedules()["s"].last_run == world.clock.now


@interpreted
def test_instants_stay_where_the_ticker_is_late(world: World) -> None:
    world.schedule(every=10)
    assert world.tick(9.9) == []
    assert world.tick(0.2) == seconds(10)
    assert world.tick(17) == seconds(20)
    assert world.tick(3) == seconds(30)


@interpreted
@pytest.mark.parametrize(
    ("timezone", "day", "daily", "hourly"),
    [
        ("Europe/Amsterdam", "2026-03-29", "2026-03-29 01:00", 23),
        ("Europe/Amsterdam", "2026-10-25", "2026-10-25 00:30", 25),
        ("America/New_York", "2026-03-08", "2026-03-08 07:00", 23),
        ("America/New_York", "2026-11-01", "2026-11-01 07:30", 25),
    ],
)
def test_days_when_clocks_change(
    world: World, timezone: str, day: str, daily: str, hourly: int
) -> None:
    begin = datetime.fromisoformat(f"{day} 00:00+00:00").timestamp()
    # From local midnight to local midnight, in the winter's or the summer's offset.
    local = datetime.fromisoformat(day).replace(tzinfo=qindex.worker.cron.zone(timezone))
    world.clock.set(local.timestamp() - world.clock.wall / SECOND - 1)
    assert abs(begin - world.clock.wall / SECOND) < 86400
    world.schedule("daily", "30 2 * * *", timezone=timezone)
    world.schedule("hourly", "0 * * * *", timezone=timezone, queue="hours")
    found = []
    for _ in range(6 * hourly):
        found += world.tick(600)
    assert found == [datetime.fromisoformat(f"{daily}+00:00")]
    hours = [one.headers[INSTANT_HEADER] for one in world.engine.queue("hours").get_many(100)]
    assert hours == [(round(local.timestamp()) + 3600 * at) * SECOND for at in range(hourly)]


# -- what was missed ------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("missed", "made_up"),
    [("once", [600]), ("all", range(60, 601, 60)), ("skip", [600])],
)
def test_missed_runs(world: World, missed: str, made_up: list[int], restart: bool) -> None:
    world.schedule(every=60, missed=missed)
    world.clock.go(610)
    if restart:
        world.reopen()
    assert world.tick() == seconds(*made_up)
    assert world.tick(40) == []
    assert world.tick(10) == seconds(660)


@interpreted
def test_a_missed_run_that_is_skipped(world: World) -> None:
    world.schedule(every=3600, missed="skip")
    assert world.tick(3600 + 59) == seconds(3600)
    assert world.tick(3600 + 2) == []
    assert world.tick(3600 - 61) == seconds(3 * 3600)


@interpreted
def test_no_more_than_the_latest_hundred_are_made_up_for(world: World) -> None:
    world.schedule(every=1, missed="all")
    assert world.tick(1e6) == seconds(*range(10**6 - MAX_MISSED + 1, 10**6 + 1))
    assert world.tick(1) == seconds(10**6 + 1)


@interpreted
@pytest.mark.parametrize("overflow", ["reject", "block"])
def test_a_full_queue_is_waited_for(world: World, overflow: Any) -> None:
    jobs = world.engine.queue("jobs", max_length=2, overflow=overflow)
    world.schedule(every=60, missed="all")
    world.schedule("once", every=100, queue="other")
    assert world.tick(300) == seconds(60, 120)
    assert world.tick(1) == []
    jobs.publish_many([b"1", b"2"])
    world.clock.go(9)
    world.ticker.turn(0)
    assert len(jobs) == 2
    jobs.purge()
    assert world.tick(10) == seconds(180, 240)
    assert world.tick(10) == seconds(300)
    assert len(world.engine.queue("other")) == 1


# -- clocks that are set --------------------------------------------------------------------------


RULES: list[dict[str, Any]] = [{"every": 60}, {"cron": "* * * * *"}]


@interpreted
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("jump", [YEAR, -YEAR, 7200.0, -5 * 3600.0])
def test_a_clock_that_is_set(
    world: World, rule: dict[str, Any], restart: bool, jump: float
) -> None:
    world.schedule(**rule)
    assert len(world.tick(60)) == 1
    world.clock.set(jump)
    if restart:
        world.reopen()
    # One at most for all that was left out, and then one a minute again.
    assert len(world.tick(5)) <= 1
    for _ in range(5):
        found = world.tick(60)
        assert len(found) == 1
        assert world.clock.now - found[0] < timedelta(seconds=60)


@interpreted
def test_a_clock_that_is_set_while_nobody_looks(world: World) -> None:
    """The store is opened by a wrong clock, which is put right: the due times on disk are wrong by
    a year as the next process starts."""
    world.clock.set(YEAR)
    world.reopen()
    world.schedule("s", "0 * * * *")
    world.schedule("t", every=60)
    world.clock.set(-YEAR)
    world.reopen()
    assert world.tick() == []
    assert world.tick(60) == [world.clock.now]
    assert len(world.tick(3540)) == 2


@interpreted
def test_no_instant_comes_twice_where_a_clock_is_set_back_a_little(world: World) -> None:
    world.schedule("s", "*/10 * * * *")
    found = world.tick(600)
    world.clock.set(-3000)
    for _ in range(12):
        found += world.tick(600)
    assert found == seconds(*range(600, 4801, 600))


@interpreted
def test_a_server_that_began_by_another_clock_is_noticed_within_the_hour(world: World) -> None:
    world.schedule("s", "*/10 * * * *")
    world.ticker.turn(0)
    world.engine.queue(QUEUE)
    (found,) = world.engine.queue(QUEUE).find(schedules.KEY)
    taken = world.engine.queue(QUEUE).get(seq_id=found.seq_id)
    assert taken is not None
    taken.nack(delay=YEAR)
    assert world.tick(3601) == seconds(3600)


# -- changes --------------------------------------------------------------------------------------


@interpreted
def test_the_same_again_changes_nothing(world: World) -> None:
    def again() -> qindex.Schedule:
        return world.schedule("s", "*/5  * * * *", body=b"b", headers={"a": [1]}, missed="all")

    made = again()
    world.clock.go(30)
    before = world.engine.queue(QUEUE).stats()
    assert again() == made == world.engine.schedules()["s"]
    after = world.engine.queue(QUEUE).stats()
    assert after.published == before.published
    assert after.delivered == before.delivered


@interpreted
def test_another_body_keeps_the_next_instant_and_another_period_begins_anew(world: World) -> None:
    world.schedule(every=60, body=b"1")
    world.tick(60)
    world.clock.go(50)
    world.schedule(every=60, body=b"2")
    world.clock.go(10)
    world.ticker.turn(0)
    (message,) = world.engine.queue("jobs").get_many(9)
    assert message.body == b"2"
    message.ack()
    world.clock.go(50)
    world.schedule(every=30, body=b"2")
    assert world.tick(29) == []
    assert world.tick(1) == seconds(200)
    assert len(world.engine.queue(QUEUE).find(schedules.KEY)) == 1


@interpreted
def test_pause_resume_run_now_and_remove(world: World) -> None:
    made = world.schedule(every=60)
    made.pause()
    assert world.engine.schedules()["s"].paused
    assert world.engine.schedules()["s"].next_run is None
    assert world.schedule(every=60).paused
    assert world.schedule(every=61).paused
    world.schedule(every=60)
    world.reopen()
    assert world.tick(90 * 86400) == []
    made = world.engine.schedules()["s"]
    made.run_now()
    assert world.tick() == [world.clock.now]
    made.resume()
    made.resume()
    assert world.tick(59) == []
    assert len(world.tick(1)) == 1
    next_run = world.engine.schedules()["s"].next_run
    made.run_now()
    assert world.engine.schedules()["s"].next_run == next_run
    made.remove()
    assert world.engine.schedules() == {}
    assert len(world.tick(600)) == 1
    for call in (made.pause, made.resume, made.remove, made.run_now):
        with pytest.raises(qindex.UsageError, match="there is no schedule 's'"):
            call()


@interpreted
def test_a_name_that_is_taken_while_nothing_holds_it(world: World) -> None:
    """A transaction frees the key before it takes it again. Whoever publishes it in between is the
    one schedule from then on, and each instant is published once."""
    world.schedule(every=60, missed="all")
    world.clock.go(150)
    queue = world.engine.queue(QUEUE)
    (found,) = queue.find(schedules.KEY)
    taken = queue.get(seq_id=found.seq_id)
    assert taken is not None
    newer = replace(schedules.parse(found), _start=0)._from(world.clock.wall)
    with suppress(ZeroDivisionError), world.engine.transaction() as tx:
        tx.ack(taken)
        queue.publish(**newer._message(world.clock.wall))
        raise ZeroDivisionError
    schedules.settle(world.engine, taken)
    assert world.tick() == seconds(60, 120)
    assert world.tick(60) == seconds(150 + 60)
    assert len(queue.find(schedules.KEY)) == 1


@interpreted
def test_what_can_not_be_read_here_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.schedule("s", "* * * * *")
    world.schedule("t", every=60)
    world.engine.queue(QUEUE).publish(b"no schedule")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cronsim", None)
        assert world.tick(60) == seconds(60)
    assert "cronsim" in caplog.text
    assert "not a schedule" in caplog.text
    assert world.tick(10) == seconds(60)
    assert list(world.engine.schedules()) == ["s", "t"]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"name": ""}, "name must be"),
        ({"name": 5}, "name must be"),
        ({"name": "x" * 256}, "name must be"),
        ({"name": "\ud800"}, "valid Unicode"),
        ({}, "needs either"),
        ({"cron": "* * * * *", "every": 5}, "needs either"),
        ({"cron": "* * * *"}, "5 fields"),
        ({"cron": "* 25 * * *"}, "bad hour"),
        ({"cron": "* * * * *", "timezone": "Mars"}, "no time zone 'Mars'"),
        ({"every": 5, "timezone": "UTC"}, "takes no timezone"),
        ({"every": 0}, "seconds from 0.1 to 1e9, not 0"),
        ({"every": -1}, "seconds from"),
        ({"every": float("nan")}, "seconds from"),
        ({"every": "5"}, "number of seconds"),
        ({"every": True}, "number of seconds"),
        ({"every": 5, "missed": "never"}, 'missed must be "skip", "once" or "all"'),
        ({"every": 5, "queue": ""}, "queue's name"),
        ({"every": 5, "queue": QUEUE}, "holds the schedules"),
        ({"every": 5, "body": "text"}, "must be bytes"),
        ({"every": 5, "key": 5}, "key must be a str"),
        ({"every": 5, "headers": [1]}, "headers must be a mapping"),
        ({"every": 5, "headers": {SCHEDULE_HEADER: 1}}, "set by the schedule"),
        ({"every": 5, "headers": {"a": {1}}}, "header"),
    ],
    ids=str,
)
def test_wrong_use(tmp_path: Path, wrong: dict[str, Any], what: str) -> None:
    with qindex.open(tmp_path) as engine:
        options = {"name": "s", "queue": "jobs", **wrong}
        with pytest.raises(qindex.UsageError, match=what) as raised:
            engine.schedule(**options)
        assert "\n" not in str(raised.value)
        assert engine.schedules() == {}


# -- the ticker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_a_ticker_in_a_thread(tmp_path: Path, shared: bool) -> None:
    with qindex.open(tmp_path / "data", shared=shared) as engine:
        jobs = engine.queue("jobs")
        with qindex.Ticker(engine) as ticker, qindex.Ticker(engine):
            ticker.start()
            engine.schedule("s", every=0.1, queue="jobs", missed="all")
            found = [jobs.get(timeout=WAIT) for _ in range(5)]
        instants = [one.headers[INSTANT_HEADER] for one in found if one is not None]
        assert instants == [instants[0] + at * SECOND // 10 for at in range(5)]
        assert not [one for one in threading.enumerate() if one.name == "qindex-ticker"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_ticker_ends_with_its_engine(tmp_path: Path, shared: bool) -> None:
    engine = qindex.open(tmp_path / "data", shared=shared)
    ticker = qindex.Ticker(engine)
    thread = threading.Thread(target=ticker.run)
    thread.start()
    engine.schedule("s", every=0.1, queue="jobs")
    assert engine.queue("jobs").get(timeout=WAIT) is not None
    engine.close()
    if shared:  # its connection tells nothing of the end
        ticker.ask_to_stop()
    thread.join(WAIT)
    assert not thread.is_alive()
    ticker.stop()


def test_coroutines_schedule_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            made = await engine.schedule("s", every=60, queue="jobs", body=b"b")
            await asyncio.to_thread(made.pause)
            assert (await engine.schedules())["s"].paused
            await asyncio.to_thread(made.run_now)
            assert (await (await engine.queue("jobs")).get()).body == b"b"

    asyncio.run(main())


def test_a_ticker_that_loses_its_server_now_and_then_waits_no_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle = schedules.settle

    def settle_and_lose(*arguments: Any) -> None:
        settle(*arguments)
        settled.append(1)
        if len(settled) % 4 == 0:
            raise qindex.DisconnectedError("gone")

    settled: list[int] = []
    monkeypatch.setattr(ticking, "_FIRST_PAUSE", 0.01)
    with qindex.open(tmp_path / "data") as engine:
        engine.schedule("pulse", every=0.1, queue="jobs")
        monkeypatch.setattr(schedules, "settle", settle_and_lose)
        with qindex.Ticker(engine):
            wait_until(lambda: len(settled) >= 21)
    pauses = [float(str(one.args[0])) for one in caplog.records if isinstance(one.args, tuple)]
    assert len(pauses) >= 5
    assert max(pauses) <= 0.02
