"""Directories that real nodes left, taken over by an engine: index and message store together.

A node's directory becomes one of ours by our marker file. What the node delivered from it, the
engine delivers, bodies and order; from the half-done compactions of the node it delivers what the
node loses, too. (What the commands show of the same directories: ``tests/cli/test_cat_*.py``.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex
from qindex.format import layout
from qindex.format.rabbitmq.vhost_config import parse_vhost_config
from tests.golden import SYNTHETIC_CASES, golden, sha16, synthetic
from tests.qindex.messages_support import PERSISTENT, assert_counts, rdq_files, ready, stored
from tests.qindex.support import drain

SCENARIOS = (
    "d1_store_gc_clean_1mb",
    "d3_store_gc_16mb",
    "e1_fanout_clean",
    "f1_lazy_transient_dirty",
    "g1_props_ttl_clean",
    "h1_heavy_dirty",
)
STORE_CASES = [case for case in SYNTHETIC_CASES if "10" <= case[:2] <= "20"]
BETTER_THAN_THE_NODE = {
    "12_rdq_zero_hole": "b0 b1 b2 b3",
    "14_combine_B_truncated_extended": "b0 b2 b3 b4",
    "18_rdt_without_rdq": "b0 b2",
}


def adopt(directory: Path) -> qindex.Engine:
    config = parse_vhost_config((directory / ".config").read_bytes())
    marker = layout.StoreMarker(config.segment_entry_count, "/")
    (directory / layout.MARKER).write_bytes(layout.pack_marker(marker))
    return reopen(directory)


def reopen(directory: Path) -> qindex.Engine:
    return stored(directory, record_format="rabbitmq", embed_below=4096, store_file_bytes=1 << 20)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_in_full(scenario: str, tmp_path: Path) -> None:
    source = golden(scenario)
    directory = source.copy(tmp_path)
    wanted = {
        name: [one.sha16 for one in queue.delivered]
        for name, queue in source.truth.queues.items()
        if queue.durable and queue.directory_exists and not queue.priority_directories
    }

    def delivered(engine: qindex.Engine) -> dict[str, list[str]]:
        return {name: [sha16(body) for body in ready(engine, name)] for name in wanted}

    with adopt(directory) as engine:
        assert not [one for one in engine.findings if one.cause is qindex.Cause.DAMAGE]
        assert delivered(engine) == wanted
        in_the_store = assert_counts(engine)
        assert in_the_store > 5
        engine.compact()
        assert delivered(engine) == wanted
        engine.queue("new").publish(b"n" * 20_000)
    with reopen(directory) as engine:  # by our snapshot
        assert engine.findings == []
        assert assert_counts(engine) == in_the_store + 1
        for name, bodies in wanted.items():
            assert [sha16(body) for _, body, _ in drain(engine.queue(name))] == bodies
        assert ready(engine, "new") == [b"n" * 20_000]


@pytest.mark.parametrize("case", STORE_CASES)
def test_a_damaged_or_half_done_message_store(case: str, tmp_path: Path) -> None:
    source = synthetic(case)
    directory = source.copy(tmp_path)
    node = " ".join(one.prefix[:2] for one in source.delivered.get("qr", []))
    wanted = BETTER_THAN_THE_NODE.get(case, node).split()
    with adopt(directory) as engine:
        bodies = ready(engine, "qr")
        assert [body[:2].decode() for body in bodies] == wanted
        for message in source.delivered.get("qr", []):
            assert any(message.matches(body) for body in bodies)
        dropped = [one for one in engine.findings if "is not in the message store" in one.what]
        # Each message that no file has is named.
        assert len(dropped) == {"10": 2, "11": 1, "19": 2}.get(case[:2], 0)
        assert_counts(engine)
        engine.compact()
        assert ready(engine, "qr") == bodies
        assert {path.suffix for path in (directory / PERSISTENT).iterdir()} <= {".rdq"}
        engine.queue("qr").publish(b"z" * 20_000)
    with reopen(directory) as engine:
        assert engine.findings == []
        assert [body for _, body, _ in drain(engine.queue("qr"))] == [*bodies, b"z" * 20_000]
        engine.compact()
        assert rdq_files(directory) == []
