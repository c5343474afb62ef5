"""Dead letters go back where they came from."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from qindex.worker import RedriveReport
from tests.cli.support import run
from tests.effort import by_tier, chance
from tests.waiting import wait_until

KILLS = by_tier(quick=3, all=10, nightly=100)


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[qindex.AnyEngine]:
    shared: dict[str, Any] = {"shared": True, "linger": 0} if request.param else {}
    with qindex.open(tmp_path / "data", **shared) as opened:
        yield opened


def fail(engine: qindex.AnyEngine) -> qindex.AnyQueue:
    """Make six dead letters of two queues, and a message that is none."""
    for name in ("orders", "mails"):
        queue = engine.queue(name, delivery_limit=2, dead_letter="failed")
        for number in range(3):
            queue.publish(b"%d" % number, key=f"{name}-{number}", headers={"vip": number == 1})
            queue.get().reject("no such customer" if number else "too late")
    failed = engine.queue("failed")
    failed.publish(b"by hand")
    return failed


def contents(queue: qindex.AnyQueue) -> list[tuple[bytes, str | None]]:
    return [(one.body, one.key) for one in queue.peek(100)]


def test_letters_return_to_their_queues(engine: qindex.AnyEngine) -> None:
    failed = fail(engine)
    report = failed.redrive()
    assert report == RedriveReport(Counter(orders=3, mails=3), without_origin=1)
    assert contents(failed) == [(b"by hand", None)]
    for name in ("orders", "mails"):
        queue = engine.queue(name)
        assert contents(queue) == [(b"%d" % at, f"{name}-{at}") for at in range(3)]
        again = queue.get()
        assert (again.delivery_count, again.headers["x-redrives"]) == (1, 1)
        assert again.headers["x-death"][0]["cause"] == "too late"
        again.nack()
        again = queue.get()
        assert again.delivery_count == 2
        again.nack()  # a second death
    wait_until(lambda: len(failed) == 3)  # a server moves them beside its calls
    dead = failed.get_many(10)
    assert [one.headers["x-death"][0]["reason"] for one in dead if one.key] == ["limit"] * 2
    for one in dead:
        one.nack(delay=0)
    assert failed.redrive(
        filter=lambda row: row.headers["x-death"][0]["queue"] == "mails" if row.key else True
    ).moved == {"mails": 1}
    back = next(one for one in engine.queue("mails").get_many(10) if one.body == b"0")
    assert back.headers["x-redrives"] == 2


def test_a_filter_a_dry_run_and_another_queue(engine: qindex.AnyEngine) -> None:
    failed = fail(engine)
    before = contents(failed)
    report = failed.redrive(filter=lambda row: row.headers.get("vip") is True, dry_run=True)
    assert report == RedriveReport(Counter(orders=1, mails=1), filtered=4, without_origin=1)
    assert contents(failed) == before
    report = failed.redrive(filter=lambda row: bool(row.headers.get("vip")), to="vips")
    assert report == RedriveReport(Counter(vips=2), filtered=5)
    assert contents(engine.queue("vips")) == [(b"1", "orders-1"), (b"1", "mails-1")]
    # What stays keeps its place, and has not been delivered.
    assert contents(failed) == [one for one in before if one[0] != b"1"]
    assert [one.delivery_count for one in failed.get_many(10)] == [1] * 5


def test_at_a_rate(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        failed = fail(engine)
        start = time.monotonic()
        assert failed.redrive(rate=20).moved.total() == 6
        assert time.monotonic() - start >= 5 / 20


def test_a_message_with_a_consumer_is_left(engine: qindex.AnyEngine) -> None:
    failed = fail(engine)
    held = failed.get()
    report = failed.redrive()
    assert (report.moved.total(), report.not_ready) == (5, 1)
    held.nack(delay=0)
    assert failed.redrive().moved == {"orders": 1}


def test_a_full_queue_ends_it(engine: qindex.AnyEngine) -> None:
    failed = fail(engine)
    engine.queue("mails", max_length=1)
    with pytest.raises(qindex.QueueFullError):
        failed.redrive()
    assert len(engine.queue("mails")) == 1
    assert len(engine.queue("orders")) == 3
    assert [one.delivery_count for one in failed.get_many(10)] == [1, 1, 1]


def test_delayed_and_priority_letters(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        jobs = engine.queue("jobs", max_priority=5, dead_letter="failed")
        for priority in (3, 5, 0):
            jobs.publish(b"%d" % priority, priority=priority)
        for job in jobs.get_many(3):
            job.reject()
        failed = engine.queue("failed")
        failed.get().nack(delay=3600)
        assert failed.redrive().moved == {"jobs": 3}
        assert [one.body for one in jobs.get_many(3)] == [b"5", b"3", b"0"]


def test_wrong_use(tmp_path: Path) -> None:
    with qindex.open(tmp_path / "data") as engine:
        failed = fail(engine)
        wrong: list[dict[str, Any]] = [
            {"to": "failed"},
            {"to": ""},
            *({"rate": rate} for rate in (0, -1, "5", float("nan"), True)),
            {"filter": "key=o-1"},
        ]
        for options in wrong:
            with pytest.raises(qindex.UsageError):
                failed.redrive(**options)
        assert len(failed) == 7


def test_the_command(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with qindex.open(data) as engine:
        fail(engine)
    found = run("redrive", data, "failed", "--filter", "cause=no*", "--dry-run")
    assert (found.code, found.err) == (0, "")
    assert found.text == (
        "would move 2 to mails\nwould move 2 to orders\n"
        "left 2: not matched by the filter\n"
        "left 1: do not say where they died; name a queue with --to\n"
    )
    found = run(
        "redrive", data, "failed", "--filter", "key=*-1", "--filter", "queue=mails", "--json"
    )
    assert found.rows == [
        {
            "moved": {"mails": 1},
            "dry_run": False,
            "filtered": 5,
            "without_origin": 1,
            "not_ready": 0,
        }
    ]
    assert run("redrive", data, "failed", "--filter", "header.vip=True").text.startswith(
        "moved 1 to orders\n"
    )
    assert run("redrive", data, "failed", "--to", "all").text == "moved 5 to all\n"
    assert run("redrive", data, "failed").text == "nothing to move\n"
    for arguments in (["nothing"], ["failed", "--filter", "colour=red"], ["failed", "--rate", "0"]):
        found = run("redrive", data, *arguments)
        assert (found.code, len(found.complaints)) == (2, 1)
    assert "nothing" not in run("list", data).text
    assert run("redrive", tmp_path / "wrong", "failed").code == 2
    assert not (tmp_path / "wrong").exists()


CHILD = """
import sys, qindex
with qindex.open(sys.argv[1]) as engine:
    print("ready", flush=True)
    engine.queue("failed").redrive(rate=2000)
"""


def test_killed_again_and_again(tmp_path: Path) -> None:
    data, count = tmp_path / "data", 200 * KILLS
    with qindex.open(data) as engine:
        orders = engine.queue("orders", dead_letter="failed")
        orders.publish_many(b"%d" % number for number in range(count))
        for one in orders.get_many(count):
            one.reject()
    rng = chance("redrive")
    for _ in range(KILLS):
        command = [sys.executable, "-c", CHILD, str(data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            child.kill()
        with qindex.open(data) as engine:
            both = [
                *engine.queue("orders").peek(count + 1),
                *engine.queue("failed").peek(count + 1),
            ]
            assert sorted(int(one.body) for one in both) == list(range(count))
    with qindex.open(data) as engine:
        engine.queue("failed").redrive()
        bodies = [int(one.body) for one in engine.queue("orders").get_many(count + 1)]
        assert sorted(bodies) == list(range(count))
        assert len(engine.queue("failed")) == 0


@pytest.mark.parametrize("shared", [False, True])
def test_coroutines_redrive(tmp_path: Path, shared: bool) -> None:
    async def main() -> None:
        more: dict[str, Any] = {"shared": True, "linger": 0} if shared else {}
        async with await qindex.aio.open(tmp_path / "data", **more) as engine:
            orders = await engine.queue("orders", dead_letter="failed")
            await orders.publish(b"x")
            await (await orders.get()).reject()
            report = await (await engine.queue("failed")).redrive(rate=1000)
            assert report.moved == {"orders": 1}

    asyncio.run(main())
