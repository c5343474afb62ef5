"""Figures of an engine and of a store's files, and Prometheus' text form of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import qindex
import qindex.aio
from journal.durations import BOUNDS, Stopwatch
from qindex.metrics import Family, Sample, collector, engine_families, exposition, store_families
from qindex.queue.stats import ByReason
from qindex.view.reader import QueueSummary, StoreReader
from tests.cli.support import run
from tests.qindex.support import copy_live, open_quietly

ODD = 'a"b\\c\nd é'


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[qindex.Engine]:
    """A store that has seen some of everything."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue(ODD, dead_letter="dead")
        queue.publish_many([b"0123456789"] * 10)
        batch = queue.get_many(4)
        queue.ack_many(batch[:2])
        queue.nack(batch[2])
        queue.reject(batch[3])
        queue.sync()
        queue.flush()
        queue.publish(b"x" * 20_000)
        engine.queue("purged").publish_many([b"1"] * 5)
        engine.queue("purged").purge()
        yield engine


def taken(queue: qindex.Queue) -> qindex.Delivery:
    delivery = queue.get(0)
    assert delivery is not None
    return delivery


def _labels_of(labels: dict[str, str]) -> str:
    reason = f" {labels['reason']}" if "reason" in labels else ""
    return labels.get("queue", "") + labels.get("le", "") + reason


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Value by name and queue, as prometheus_client's own parser reads them."""
    return {
        (sample.name, _labels_of(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_of_a_queue(engine: qindex.Engine) -> None:
    stats = {one.name: one for one in engine.stats().queues}
    one = stats[ODD]
    assert (one.published, one.delivered, one.requeued) == (11, 4, 1)
    assert (one.dead_letters.total, one.dropped, one.acked) == (1, 0, 2)
    assert one.given_up == one.dead_letters == ByReason(rejected=1)
    assert (one.ready, one.unacked) == (8, 0)
    assert one.flush_durations.count == one.flushes == 1
    assert one.sync_durations.count == one.journal_syncs > 0
    assert 0 < one.flush_durations.seconds < 60
    assert (stats["purged"].dropped, stats["purged"].acked) == (5, 5)


def test_redelivered(tmp_path: Path) -> None:
    """Counted by get of what was given back, of what a run before has delivered, and by batches."""
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"1"] * 6)
        queue.nack(taken(queue))
        queue.nack(taken(queue))
        queue.get_many(3)
        stats = queue.stats()
        assert (stats.delivered, stats.redelivered, stats.requeued) == (5, 2, 2)
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        taken(queue)
        assert queue.stats().redelivered == 1
        assert len(queue.get_many(9)) == 5
        stats = queue.stats()
        assert (stats.delivered, stats.redelivered) == (6, 3)


@pytest.mark.parametrize("dead_letter", ["dead", None])
@pytest.mark.parametrize("batches", [False, True])
def test_why_messages_left(tmp_path: Path, dead_letter: str | None, batches: bool) -> None:
    with open_quietly(tmp_path) as engine:

        def take(queue: qindex.Queue) -> list[qindex.Delivery]:
            if batches:
                return list(queue.get_many(9))
            one = queue.get(0)
            return [] if one is None else [one]

        reject = engine.queue("reject", dead_letter=dead_letter)
        reject.publish(b"x")
        take(reject)[0].reject()
        expire = engine.queue("expire", dead_letter=dead_letter, message_ttl=1e-6)
        expire.publish(b"x")
        assert take(expire) == []
        limit = engine.queue("limit", dead_letter=dead_letter, delivery_limit=2)
        limit.publish(b"x")
        for _ in range(2):
            take(limit)[0].nack()
        over = engine.queue("over", dead_letter=dead_letter, max_length=1, overflow="drop-head")
        for _ in range(4):
            over.publish(b"x")
        for name, expected, delivered in (
            ("reject", ByReason(rejected=1), 1),
            ("expire", ByReason(expired=1), 0),
            ("limit", ByReason(limit=1), 2),
            ("over", ByReason(overflow=3), 0),
        ):
            stats = engine.queue(name).stats()
            assert stats.given_up == expected, name
            assert stats.dead_letters == (expected if dead_letter else ByReason())
            assert stats.delivered == delivered, name
            assert (stats.unacked, stats.refused) == (0, 0)
        found = parsed(exposition(engine_families(engine.stats())))
        assert found["qindex_queue_given_up_total", "over overflow"] == 3
        moved = found["qindex_queue_dead_lettered_total", "over overflow"]
        assert moved == (3 if dead_letter else 0)
        assert found["qindex_queue_given_up_total", "over expired"] == 0


@pytest.mark.parametrize("batches", [False, True])
def test_a_message_over_its_limit_at_the_next_open_is_no_delivery(
    tmp_path: Path, batches: bool
) -> None:
    with open_quietly(tmp_path / "0") as engine:
        queue = engine.queue("q", delivery_limit=1)
        queue.publish_many([b"x", b"y"])
        taken(queue)
        killed = copy_live(tmp_path / "0", tmp_path / "1")
    with open_quietly(killed) as engine:
        queue = engine.queue("q", delivery_limit=1)
        given = queue.get_many(1)[0] if batches else taken(queue)
        assert given.body == b"y"
        stats = queue.stats()
        assert stats.given_up == ByReason(limit=1)
        assert (stats.delivered, stats.redelivered) == (1, 0)


@pytest.mark.parametrize("overflow", ["reject", "block"])
def test_refused(tmp_path: Path, overflow: Any) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=2, overflow=overflow)
        queue.publish_many([b"1", b"2"])
        for publish in (
            lambda: queue.publish(b"3", timeout=0.01),
            lambda: queue.publish_many([b"3", b"4"], timeout=0.01),
            lambda: engine.publish_to(["other", "q"], b"5", timeout=0.01),
        ):
            with pytest.raises(qindex.QueueFullError):
                publish()
        assert queue.stats().refused == 4
        found = parsed(exposition(engine_families(engine.stats())))
        assert found["qindex_queue_refused_total", "q"] == 4


def test_what_a_move_finds_full_is_not_refused_to_a_publisher(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="dead")
        engine.queue("dead", max_length=1).publish(b"full")
        queue.publish(b"1")
        with pytest.raises(qindex.QueueFullError):
            taken(queue).reject()
        assert engine.queue("dead").stats().refused == 0
        assert queue.stats().given_up == ByReason()


def test_refused_to_a_coroutine(tmp_path: Path) -> None:
    async def main() -> int:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("q", max_length=1, overflow="block")
            await queue.publish(b"1")
            with pytest.raises(qindex.QueueFullError):
                await queue.publish(b"2", timeout=0.05)
            return (await queue.stats()).refused

    assert asyncio.run(main()) == 1


def test_settings_are_among_the_figures(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=5, message_ttl=2.5)
        engine.queue("free")
        assert queue.stats().settings == queue.settings
        found = parsed(exposition(engine_families(engine.stats())))
    store = StoreReader(tmp_path)
    for one in (found, parsed(exposition(store_families(store.queues(), None)))):
        assert one["qindex_queue_max_length", "q"] == 5
        assert one["qindex_queue_message_ttl_seconds", "q"] == 2.5
        assert not any(name == "qindex_queue_max_bytes" for name, _ in one)
        assert ("qindex_queue_max_length", "free") not in one
    with qindex.open(tmp_path, read_only=True) as reading:
        assert reading.queue("q").stats().settings.max_length == 5


def test_the_text_form_of_an_engine(engine: qindex.Engine) -> None:
    found = parsed(exposition(engine_families(engine.stats())))
    assert found["qindex_queue_published_total", ODD] == 11
    assert found["qindex_queue_ready", ODD] == 8
    assert found["qindex_queue_dead_lettered_total", ODD + " rejected"] == 1
    assert found["qindex_queue_flush_seconds_count", ODD] == 1
    assert found["qindex_queue_flush_seconds_bucket", ODD + "+Inf"] == 1
    assert found["qindex_writes_refused", ""] == 0
    assert found["qindex_message_store_messages", ""] == 1


def test_buckets_are_cumulative(engine: qindex.Engine) -> None:
    found = parsed(exposition(engine_families(engine.stats())))
    name = "qindex_queue_sync_seconds_bucket"
    counts = [found[name, f"{ODD}{bound:g}"] for bound in BOUNDS]
    assert counts == sorted(counts)
    assert found[name, ODD + "+Inf"] == found["qindex_queue_sync_seconds_count", ODD]


def test_the_collector_gives_what_the_text_form_has(engine: qindex.Engine) -> None:
    registry = CollectorRegistry()
    registry.register(collector(engine))
    theirs = parsed(generate_latest(registry).decode())
    ours = parsed(exposition(engine_families(engine.stats())))
    assert theirs == ours
    engine.close()
    assert generate_latest(registry) == b""  # and a scrape goes on to other collectors


def test_figures_of_the_files(engine: qindex.Engine) -> None:
    store = StoreReader(engine.directory)
    found = parsed(exposition(store_families(store.queues(), store.message_store())))
    assert found["qindex_queue_messages", ODD] == 8
    assert found["qindex_queue_body_bytes", ODD] == 20_070
    assert found["qindex_message_store_references", ""] == 1
    assert found["qindex_message_store_missing", ""] == 0


def test_the_command(engine: qindex.Engine) -> None:
    result = run("stats", engine.directory, "--prometheus")
    assert (result.code, result.err) == (0, "")
    found = parsed(result.text)
    assert found["qindex_queue_next_seq_id", ODD] == 11
    assert found["qindex_queue_ready", "purged"] == 0
    assert run("stats", engine.directory, "--prometheus", "--json").code == 2


def test_a_queue_name_that_is_no_text() -> None:
    name = b"\xff".decode("utf-8", "surrogateescape")
    found = parsed(
        exposition(store_families([QueueSummary(name, 3, 3, 0, 0, 1, 1, 1, 1, 1, 1)], None))
    )
    assert found["qindex_queue_ready", r"\udcff"] == 3


def test_help_is_escaped() -> None:
    text = exposition([Family("a", "gauge", "b\\\nc", [Sample("", {}, 1.5)])])
    assert text == "# HELP a b\\\\\\nc\n# TYPE a gauge\na 1.5\n"


def test_what_raises_is_not_timed() -> None:
    watch = Stopwatch()
    with pytest.raises(OSError, match="x"), watch.running():
        raise OSError("x")
    assert watch.durations().count == 0
    with watch.running():
        pass
    assert watch.durations().counts[0] == 1
