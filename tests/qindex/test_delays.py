"""Delayed messages as users meet them: publish, nack, back-off, cancel, and what shows them."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import qindex
import qindex.aio
from journal.errors import StorageError
from qindex.engine.opening import open_store
from qindex.format.headers import DUE_HEADER
from qindex.format.notes import RECORD_SIZE, pack_note
from qindex.queue.notes.delays import pause_before
from qindex.tools.repair import repair
from qindex.tools.verify import verify
from tests.cli.support import run
from tests.effort import by_tier
from tests.faulty_fs import FaultyFileSystem
from tests.traced_memory import tracing

YEAR = 3e7


def due_file(directory: Path) -> Path:
    (found,) = directory.glob("queues/*/qindex.due")
    return found


def run_and_kill(code: str) -> None:
    """Run a program in a child that dies with SIGKILL at its end."""
    code = f"{code}\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(qindex.__file__))}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


def damage_of(directory: Path) -> list[qindex.Finding]:
    return verify(directory).damage


def test_a_waiting_consumer_gets_a_message_when_it_is_due(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        began = time.monotonic()
        queue.publish(b"late", delay=0.3)
        queue.publish(b"now")
        given = queue.get(timeout=5)
        assert given is not None
        assert given.body == b"now"
        assert len(queue) == 0
        assert queue.stats().delayed == 1
        given = queue.get(timeout=5)
        assert given is not None
        assert given.body == b"late"
        assert not given.redelivered
        assert time.monotonic() - began >= 0.3
        due = given.headers[DUE_HEADER]
        assert abs(due / 1e6 - time.time()) < 60


def test_a_delay_takes_no_prefetch_and_holds_nobody_up(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"later"] * 50, delay=YEAR)
        queue.publish_many([b"%d" % n for n in range(20)])
        consumer = queue.consume(prefetch=2, timeout=0)
        got = []
        for delivery in consumer:
            got.append(delivery.body)
            delivery.ack()
        assert got == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("size", [10, 40_000])
def test_order_is_that_of_ready_times_over_a_reopen(tmp_path: Path, size: int) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"b" * size, delay=0.2, key="b", headers={"n": 1})
        queue.publish(b"a" * size)
        time.sleep(0.25)
        queue.publish(b"c" * size)
        queue.flush()
    with qindex.open(tmp_path) as engine:
        batch = engine.queue("q").get_many(10)
        assert [body[:1] for body in batch.bodies] == [b"a", b"b", b"c"]
        assert batch.seq_ids == [1, 0, 2]
        assert batch[1].key == "b"
        assert batch[1].headers["n"] == 1
        engine.queue("q").ack_many(batch)
        assert engine.queue("q").stats().messages == 0


def test_rabbitmqs_records_keep_the_order_of_due_messages(tmp_path: Path) -> None:
    """They have no place for the publish time."""
    with qindex.open(tmp_path, record_format="rabbitmq") as engine:
        queue = engine.queue("q")
        queue.publish(b"before")
        queue.publish(b"due", delay=0.01)
        time.sleep(0.02)
        queue.publish(b"after", key="k", headers={"n": 1})
        queue.publish_many([b"last"] * 2)
        engine.publish_to(["other", "q"], bytes(9000))
        with engine.transaction() as tx:
            tx.publish("q", b"end")
    with qindex.open(tmp_path, record_format="rabbitmq") as engine:
        batch = engine.queue("q").get_many(10)
        expected = [b"before", b"due", b"after", b"last", b"last", bytes(9000), b"end"]
        assert batch.bodies == expected
        assert batch[2].headers["n"] == 1


def test_a_batch_has_a_message_once_that_is_due_before_earlier_ones(tmp_path: Path) -> None:
    """The clock was set ahead: the others were published later than the message is due."""
    with qindex.open(tmp_path, segment_entry_count=2) as engine:
        queue = engine.queue("q")
        ahead = time.time_ns() + 10**12
        queue.publish_many([qindex.Message(b"%d" % n, timestamp=ahead) for n in range(2)])
        queue.publish(b"due", delay=0.001)
        time.sleep(0.01)
        batches = [queue.get_many(9) for _ in range(2)]
        assert [batch.bodies for batch in batches] == [[b"due"], [b"0", b"1"]]
        assert queue.stats().messages == queue.stats().unacked == 3


def test_nack_with_a_delay_outlives_a_kill(tmp_path: Path) -> None:
    run_and_kill(f"""
import qindex
queue = qindex.open({str(tmp_path)!r}).queue("q")
queue.publish_many([b"one", b"two"])
queue.get().nack(delay={YEAR})
queue.publish(b"three", delay={YEAR})
""")
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        assert queue.stats().delayed == 2
        given = queue.get(timeout=0)
        assert given is not None
        assert given.body == b"two"
        assert queue.get(timeout=0) is None
    with qindex.open(tmp_path, read_only=True) as reading:
        summary = reading.queue("q").stats()
        assert (summary.messages, summary.delayed, summary.ready) == (3, 2, 1)
        assert summary.next_due is not None
    assert not damage_of(tmp_path)


def test_back_off_doubles_up_to_its_cap_and_never_comes_at_once() -> None:
    for attempts, longest in ((1, 1.0), (2, 2.0), (5, 16.0), (9, 30.0), (10_000, 30.0)):
        pauses = [pause_before("exponential:1:30", attempts) for _ in range(200)]
        assert longest / 2 <= min(pauses)
        assert max(pauses) <= longest
        assert max(pauses) - min(pauses) > longest / 10


def test_back_off_ends_in_the_dead_letter_queue(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue(
            "q", backoff="exponential:0.05:0.1", delivery_limit=3, dead_letter="dead"
        )
        queue.publish(b"poison", key="k", headers={"a": 1})
        began, moments = time.monotonic(), []
        while (given := queue.get(timeout=2)) is not None:
            assert given.key == "k"
            assert given.headers == {"a": 1}
            moments.append(time.monotonic() - began)
            if len(moments) == 2:
                with pytest.raises(ZeroDivisionError), given:
                    raise ZeroDivisionError
            else:
                given.nack()
            if engine.queue("dead").stats().messages:
                break
        assert len(moments) == 3
        assert moments[1] - moments[0] >= 0.025
        assert moments[2] - moments[1] >= 0.05
        letter = engine.queue("dead").get(timeout=1)
        assert letter is not None
        assert letter.headers["x-death"][0]["reason"] == "limit"
        assert DUE_HEADER not in letter.headers


def test_nack_now_despite_back_off_and_postpone_without_an_attempt(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", backoff=f"exponential:{YEAR}:{YEAR}", delivery_limit=2)
        queue.publish(b"x")
        for _ in range(5):
            given = queue.get(timeout=5)
            assert given is not None
            assert given.delivery_count == 1
            given.nack(delay=0.01, count=False)
        given = queue.get(timeout=5)
        assert given is not None
        given.nack(delay=0)
        again = queue.get(timeout=0)
        assert again is not None
        assert again.delivery_count == 2


def test_a_lease_that_ends_backs_off(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", backoff=f"exponential:{YEAR}:{YEAR}")
        queue.publish(b"x")
        assert queue.get(timeout=0, lease=0.05) is not None
        until = time.monotonic() + 10
        while not queue.stats().delayed:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_cancel(tmp_path: Path) -> None:
    with qindex.open(tmp_path, segment_entry_count=4) as engine:
        queue = engine.queue("q")
        late = queue.publish(b"late", delay=YEAR)
        stored = queue.publish(b"s" * 50_000, delay=YEAR)
        soon = queue.publish(b"soon")
        taken = queue.publish(b"taken")
        assert queue.cancel(late)
        assert not queue.cancel(late)
        assert queue.cancel(stored)
        assert queue.stats().delayed == 0
        assert queue.cancel(soon)
        given = queue.get(timeout=0)
        assert given is not None
        assert given.seq_id == taken
        assert not queue.cancel(taken)
        given.nack(delay=YEAR)
        assert not queue.cancel(taken)
        assert not queue.cancel(99)
        with pytest.raises(qindex.UsageError, match="a seq_id is an int"):
            queue.cancel("x")  # type: ignore[arg-type]
        last = queue.publish(b"last", delay=YEAR)
        queue.cancel(queue.publish(b"not read again", delay=YEAR))
        queue.publish_many([b""] * 4)
        queue.flush()
        engine._roster.put_to_rest(queue._parts)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        assert (queue.stats().messages, queue.stats().delayed) == (6, 2)
        assert queue.cancel(last)
    assert not damage_of(tmp_path)


def test_limits_count_delayed_messages_and_drop_head_passes_them(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", max_length=2)
        queue.publish(b"a", delay=YEAR)
        queue.publish(b"b")
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"c")
        engine.queue("q", overflow="drop-head")
        queue.publish(b"c")
        assert queue.stats().delayed == 1
        given = queue.get(timeout=0)
        assert given is not None
        assert given.body == b"c"
        given.ack()
        assert queue.purge() == 1
        assert queue.stats().messages == 0
        assert queue.stats().next_due is None


@pytest.mark.parametrize("dead_letter", [None, "dead"])
def test_a_delayed_message_may_expire_before_it_is_due(
    tmp_path: Path, dead_letter: str | None
) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q", dead_letter=dead_letter)
        queue.publish(b"x", ttl=0.02, delay=0.05)
        time.sleep(0.06)
        queue._parts.producer._expirer.on_alarm()
        assert queue.stats().messages == 0
        assert queue.stats().given_up.expired == 1
        if dead_letter is not None:
            letter = engine.queue(dead_letter).get(timeout=5)
            assert letter is not None
            assert letter.headers["x-death"][0]["reason"] == "expired"
    with qindex.open(tmp_path) as engine:
        assert engine.queue("q").stats().messages == 0
    assert not damage_of(tmp_path)


def test_at_and_values_that_can_not_be_right(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        at = datetime.now(UTC) + timedelta(days=1)
        queue.publish(b"x", at=at)
        assert queue.stats().next_due == int(at.timestamp() * 1e6)
        queue.publish(b"x", at=at - timedelta(days=2))
        assert len(queue) == 1
        for wrong in (-1, "1", float("nan"), 1e11, True):
            with pytest.raises(qindex.UsageError, match="delay must be"):
                queue.publish(b"x", delay=wrong)  # type: ignore[arg-type]
        with pytest.raises(qindex.UsageError, match="a time zone"):
            queue.publish(b"x", at=datetime(2030, 1, 1))
        with pytest.raises(qindex.UsageError, match="not both"):
            queue.publish_many([b"x"], delay=1, at=at)
        for wrong_one in ("linear:1:2", "exponential:0:1", "exponential:5:1", "exponential:1"):
            with pytest.raises(qindex.UsageError, match="backoff"):
                engine.queue("q", backoff=wrong_one)
        assert len(queue) == 1


def test_coroutines_delay_cancel_and_postpone(tmp_path: Path) -> None:
    async def main() -> None:
        async with await qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q")
            late = await queue.publish(b"late", delay=YEAR)
            await queue.publish_many([b"1", b"2"], delay=0.05)
            given = await queue.get(timeout=5)
            assert given is not None
            await given.nack(delay=YEAR, count=False)
            assert await queue.cancel(late)
            given = await queue.get(timeout=5)
            assert given is not None
            assert given.body == b"2"
            assert (await queue.stats()).delayed == 1

    asyncio.run(main())


def test_a_lost_or_damaged_file_costs_delays_of_nacks_alone(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"given back", b"given back, too"])
        for delivery in queue.get_many(2):
            delivery.nack(delay=YEAR)
        queue.publish(b"published", delay=YEAR)
    path = due_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(b"\x55" * 20 + whole[20:])
    (found,) = damage_of(tmp_path)
    assert found.path == str(path)
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        assert any(one.path == str(path) for one in engine.findings)
        assert [one.body for one in queue.get_many(10)] == [b"given back"]
    path.unlink()
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        assert {one.body for one in queue.get_many(10)} == {b"given back", b"given back, too"}
        assert queue.stats().delayed == 1


def test_no_room_for_a_due_time_leaves_the_delivery_as_it_was(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with open_store(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        given = queue.get()
        fs.fail("pwrite", errno.ENOSPC, path="qindex.due")
        with pytest.raises(StorageError, match="due times"):
            given.nack(delay=YEAR)
        assert not given.settled
        fs.heal()
        given.nack(delay=YEAR)
        assert queue.stats().delayed == 1


def test_repair_keeps_due_times_and_export_their_header(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with qindex.open(source) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"a", b"b"])
        queue.get().nack(delay=YEAR)
        queue.publish(b"c", delay=YEAR)
    repair(source, target)
    with qindex.open(target) as engine:
        queue = engine.queue("q")
        assert queue.stats().delayed == 2
        assert [one.body for one in queue.get_many(10)] == [b"b"]


def test_a_closed_store_tells_delays_without_its_records(tmp_path: Path) -> None:
    """An open after a clean close reads no segment for them."""
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 100, delay=YEAR)
        queue.flush()
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        assert queue.stats().delayed == 100
        segments = queue._parts.state.index.segments.values()
        assert not any(segment.loaded for segment in segments)
        queue.publish(b"now")
        given = queue.get(timeout=0)
        assert given is not None
        assert given.body == b"now"


def test_consumers_in_threads_share_what_becomes_due(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        got: list[bytes] = []

        def consume() -> None:
            for delivery in queue.consume(timeout=1):
                got.append(delivery.body)
                delivery.ack()

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        bodies = [b"%d" % n for n in range(60)]
        for n, body in enumerate(bodies):
            queue.publish(body, delay=0.01 * (n % 7))
        for thread in threads:
            thread.join()
        assert sorted(got) == sorted(bodies)
        assert queue.stats().messages == 0


def test_the_command_line_delays_and_shows(tmp_path: Path) -> None:
    assert run("publish", tmp_path, "q", "--delay", "1000", stdin=b"one\ntwo\n").code == 0
    assert run("queue", tmp_path, "q", "--backoff", "exponential:1:60").code == 0
    (shown,) = run("list", tmp_path, "--json").rows
    assert (shown["messages"], shown["delayed"], shown["ready"]) == (2, 2, 0)
    assert shown["settings"]["backoff"] == "exponential:1:60"
    assert "delayed" in run("list", tmp_path).text
    rows = run("inspect", due_file(tmp_path), "--json").rows
    assert [row["record"] for row in rows[:3]] == ["due", "due", "closed"]


def test_any_bytes_in_the_notes_let_the_store_open(tmp_path: Path) -> None:
    """Messages are there, whatever stands in the files beside them."""
    chance = random.Random(3)
    with qindex.open(tmp_path / "whole") as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 5, delay=YEAR)
        queue.publish(b"y", unique="k", window=YEAR)
        queue.publish_many([b"z"] * 3)
        for delivery in queue.get_many(2):
            delivery.nack(delay=YEAR)
    for number in range(by_tier(quick=40, all=400, nightly=10_000)):
        copy = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "whole", copy)
        for path in (*copy.glob("queues/*/qindex.due"), *copy.glob("queues/*/qindex.keys")):
            data = bytearray(path.read_bytes())
            for _ in range(chance.randrange(4)):
                at = chance.randrange(0, len(data), RECORD_SIZE)
                fields = [chance.choice((0, 3, 7, 1 << 61, 1 << 63, (1 << 64) - 1)) for _ in "ab"]
                note = pack_note(*fields) if chance.random() < 0.7 else chance.randbytes(20)
                data[at : at + RECORD_SIZE] = note
            path.write_bytes(data[: chance.randrange(len(data) + 1)])
        with qindex.open(copy, read_only=True) as reading:
            assert reading.queue("q").stats().messages == 9
        with qindex.open(copy) as engine:
            queue = engine.queue("q")
            stats = queue.stats()
            assert stats.messages == 9
            assert queue.purge() == 9 - len(queue.get_many(9))
        shutil.rmtree(copy)


def test_a_purge_releases_a_postponed_message_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with qindex.open(tmp_path) as engine:
        queue, other = engine.queue("q"), engine.queue("other")
        engine.publish_to(["q", "other"], b"x" * 50_000)
        queue.get().nack(delay=YEAR)
        assert queue.purge() == 1
        engine.compact()
        assert len(other.get().body) == 50_000
    assert not caplog.records
    assert not damage_of(tmp_path)


def test_taken_early_and_given_back_with_another_delay(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("q")
        seq_id = queue.publish(b"1", delay=0.05)
        queue.get(seq_id=seq_id).nack(delay=60)  # type: ignore[union-attr]
        assert queue.get(timeout=0.2) is None
        assert queue.stats().delayed == 1
        assert queue.get(seq_id=seq_id).body == b"1"  # type: ignore[union-attr]


def test_a_consumer_that_waits_for_delayed_messages_keeps_few_of_their_bytes(
    tmp_path: Path,
) -> None:
    options: Any = {"segment_entry_count": 512, "background": False}
    with qindex.open(tmp_path, **options) as engine:
        engine.queue("q").publish_many([bytes(1000)] * 8192, delay=YEAR)
        engine.flush()
    with qindex.open(tmp_path, **options) as engine:
        queue = engine.queue("q")
        with tracing():
            assert queue.get(timeout=0) is None
            assert tracemalloc.get_traced_memory()[1] < 3_000_000
