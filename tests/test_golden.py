"""The golden fixtures are whole, and say what they are believed to say."""

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from tests.golden import (
    DATA_DIR,
    ROCKET_STORES,
    SCENARIOS,
    SYNTHETIC_CASES,
    golden,
    rocket_copy,
    rocket_golden,
    sha16,
    synthetic,
)

# (published, delivered after a restart, queues, clean shutdown) of each scenario
COUNTS = {
    "a_clean_embedded": (978, 728, 7, True),
    "b_dirty_journal": (597, 457, 4, False),
    "c1_segments_dirty": (40_500, 16_963, 1, False),
    "d1_store_gc_clean_1mb": (456, 176, 2, True),
    "d3_store_gc_16mb": (410, 110, 1, False),
    "e1_fanout_clean": (300, 177, 3, True),
    "f1_lazy_transient_dirty": (8_550, 3_760, 4, False),
    "g1_props_ttl_clean": (80, 74, 6, True),
    "h1_heavy_dirty": (22_597, 1_961, 4, False),
}


def sizes(directory: Path) -> dict[str, int]:
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_fixtures_stay_small() -> None:
    total = sum(path.stat().st_size for path in DATA_DIR.rglob("*") if path.is_file())
    assert 4_000_000 < total <= 8 * 2**20


@pytest.mark.parametrize("name", SCENARIOS)
def test_files_are_those_the_manifest_lists(name: str) -> None:
    store = golden(name)
    assert sizes(store.vhost_dir) == store.truth.files


@pytest.mark.parametrize("name", SCENARIOS)
def test_counts(name: str) -> None:
    store = golden(name)
    queues = store.truth.queues.values()
    published = sum(len(queue.manifest_messages) for queue in queues)
    delivered = sum(len(queue.delivered) for queue in queues)
    assert (published, delivered, len(queues), store.clean_shutdown) == COUNTS[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_clean_stop_leaves_its_mark(name: str) -> None:
    store = golden(name)
    saved_state = "msg_store_persistent/clean.dot" in store.truth.files
    assert saved_state == store.clean_shutdown


@pytest.mark.parametrize("name", SCENARIOS)
def test_queue_directories(name: str) -> None:
    store = golden(name)
    for queue in store.truth.queues.values():
        path = store.vhost_dir / "queues" / queue.directory
        assert path.is_dir() == queue.directory_exists
        for directory in queue.priority_directories.values():
            assert (store.vhost_dir / "queues" / directory / ".queue_name").is_file()


@pytest.mark.parametrize("name", SCENARIOS)
def test_delivered_is_what_the_states_promise(name: str) -> None:
    """Oracle and manifest were recorded by different programs: they must agree."""
    store = golden(name)
    for queue in store.truth.queues.values():
        messages = queue.manifest_messages
        delivered = [message.publish_index for message in queue.delivered]
        assert len(set(delivered)) == len(delivered)
        assert all(
            messages[golden_message.publish_index].body_len == golden_message.body_len
            for golden_message in queue.delivered
        )
        expected = {
            message.index
            for message in messages
            if message.state in ("ready", "unacked")
            and message.confirmed
            and (store.clean_shutdown or (message.persistent and queue.durable))
        }
        unsure = {
            message.index
            for message in messages
            if message.state == "ack_sent" or not message.confirmed
        }
        assert expected <= set(delivered) <= expected | unsure
        if not queue.priority_directories:
            assert delivered == sorted(delivered)
        if not store.clean_shutdown:
            assert all(message.redelivered for message in queue.delivered)


def test_priority_order() -> None:
    queue = golden("g1").truth.queues["qg.prio"]
    assert set(queue.priority_directories) == {0, 1, 2, 3, 4, 5}
    priorities = [
        queue.manifest_messages[message.publish_index].prio_queue for message in queue.delivered
    ]
    assert Counter(priorities) == {0: 9, 1: 3, 2: 3, 3: 4, 4: 3, 5: 8}
    assert priorities == sorted(priorities, key=lambda priority: -(priority or 0))


def test_typed_headers_and_expiration_are_kept() -> None:
    queues = golden("g1").truth.queues
    sent = queues["qg.props"].manifest_messages[0]
    assert sent.props is not None
    headers = sent.props["headers"]
    assert isinstance(headers, dict)
    assert headers["i64"] == ["l", -(2**63)]
    assert headers["f32"] == ["f", 1.5]
    assert headers["str"] == ["S", "héllo"]
    assert sent.properties_hex is not None
    assert "68c3a96c6c6f" in sent.properties_hex  # "héllo"
    received = queues["qg.props"].delivered[0].props["headers"]
    assert isinstance(received, dict)
    assert received["i64"] == -(2**63)
    assert set(received) == set(headers)
    assert queues["qg.exp"].manifest_messages[0].expiration_ms == 314_000_000_000
    assert queues["qg.ttl"].arguments == {"x-message-ttl": 315_000_000_000}


def test_fanout_shares_global_numbers() -> None:
    queues = golden("e1").truth.queues.values()
    holders = Counter(
        message.global_number for queue in queues for message in queue.manifest_messages
    )
    assert max(holders.values()) == len(queues) == 3


def test_empty_body_digest() -> None:
    delivered = golden("a").truth.queues["qa.empty-bodies"].delivered
    assert {message.sha16 for message in delivered} == {sha16(b"")}


def test_a_copy_is_fresh_and_leaves_the_pristine_alone(tmp_path: Path) -> None:
    store = golden("b")
    first, second = store.copy(tmp_path), store.copy(tmp_path)
    assert first != second
    assert sizes(first) == sizes(second) == store.truth.files
    (first / ".config").unlink()
    assert sizes(second) == sizes(store.vhost_dir) == store.truth.files


def test_unknown_names_are_refused() -> None:
    for load in (golden, synthetic, rocket_golden):
        with pytest.raises(KeyError):
            load("nothing")


@pytest.mark.parametrize("case", SYNTHETIC_CASES)
def test_synthetic_files(case: str) -> None:
    store = synthetic(case)
    assert store.files
    assert sizes(store.vhost_dir) == store.files
    assert (store.boot == "OK") == bool(store.delivered)


def test_synthetic_truths() -> None:
    boots = Counter(synthetic(case).boot for case in SYNTHETIC_CASES)
    assert boots == {"OK": 22, "HANG": 9, "VHOST_DOWN": 1}
    duplicate = synthetic("05")
    assert [message.prefix[:2] for message in duplicate.delivered["qs"]] == ["m0", "m3", "m4", "m5"]
    assert duplicate.delivered["qs"][0].matches(b"m0-" + b"x" * 20)
    assert not duplicate.delivered["qs"][0].matches(b"m0-")
    assert synthetic("27").dead_queues == ["qr"]


@pytest.mark.parametrize(
    ("name", "store"),
    [("gen", "store"), ("crash", "after"), ("delay", "store"), ("expire", "after")],
)
def test_rocket_files_are_byte_exact(name: str, store: str) -> None:
    root = rocket_golden(name)
    lines = (root / "expected" / "files.jsonl").read_text().splitlines()
    assert lines
    for entry in map(json.loads, lines):
        data = (root / store / entry["path"]).read_bytes()
        assert len(data) == entry["size"]
        assert sha256(data).hexdigest() == entry["sha256"]


def test_rocket_counts() -> None:
    # (commit log records, blank records that end a file)
    expected = {"gen": (941, 7), "crash": (837, 7), "delay": (15, 0), "expire": (513, 3)}
    assert set(ROCKET_STORES) == {*expected, "json"}
    for name, counts in expected.items():
        directory = rocket_golden(name) / "expected"
        records = [
            json.loads(line) for line in (directory / "messages.jsonl").read_text().splitlines()
        ]
        blanks = sum(1 for record in records if "blank" in record)
        assert (len(records) - blanks, blanks) == counts
        assert json.loads((directory / "meta.json").read_text())["messages"] == counts[0]
    assert (rocket_golden("crash") / "before" / "abort").is_file()
    assert (rocket_golden("crash") / "acks" / "puts.jsonl").stat().st_size == 150_471
    assert len(list(rocket_golden("json").iterdir())) == 3


def test_rocket_copy_is_fresh(tmp_path: Path) -> None:
    copy = rocket_copy("delay", tmp_path)
    assert sizes(copy) == sizes(rocket_golden("delay"))
    assert copy.parent.parent == tmp_path
