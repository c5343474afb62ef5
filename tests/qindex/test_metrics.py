"""Figures of an engine and of a store's files, and Prometheus' text form of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import qindex
from journal.durations import BOUNDS, Stopwatch
from qindex.metrics import Family, Sample, collector, engine_families, exposition, store_families
from qindex.reader import QueueSummary, StoreReader
from tests.cli.support import run
from tests.qindex.support import open_quietly

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
        queue.nack(batch[3], requeue=False)
        queue.sync()
        queue.flush()
        queue.publish(b"x" * 10_000)
        engine.queue("purged").publish_many([b"1"] * 5)
        engine.queue("purged").purge()
        yield engine


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Value by name and queue, as prometheus_client's own parser reads them."""
    return {
        (sample.name, sample.labels.get("queue", "") + sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_of_a_queue(engine: qindex.Engine) -> None:
    stats = {one.name: one for one in engine.stats().queues}
    one = stats[ODD]
    assert (one.published, one.delivered, one.requeued) == (11, 4, 1)
    assert (one.dead_lettered, one.dropped, one.acked) == (1, 0, 3)
    assert (one.ready, one.unacked) == (8, 0)
    assert one.flush_durations.count == one.flushes == 1
    assert one.sync_durations.count == one.journal_syncs > 0
    assert 0 < one.flush_durations.seconds < 60
    assert (stats["purged"].dropped, stats["purged"].acked) == (5, 5)


def test_the_text_form_of_an_engine(engine: qindex.Engine) -> None:
    found = parsed(exposition(engine_families(engine.stats())))
    assert found["qindex_queue_published_total", ODD] == 11
    assert found["qindex_queue_ready", ODD] == 8
    assert found["qindex_queue_dead_lettered_total", ODD] == 1
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


def test_figures_of_the_files(engine: qindex.Engine) -> None:
    store = StoreReader(engine.directory)
    found = parsed(exposition(store_families(store.queues(), store.message_store())))
    assert found["qindex_queue_ready", ODD] + found["qindex_queue_unacked", ODD] == 8
    assert found["qindex_queue_body_bytes", ODD] == 10_070
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
    found = parsed(exposition(store_families([QueueSummary(name, 3, 0, 1, 1, 1, 1, 1, 1)], None)))
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
