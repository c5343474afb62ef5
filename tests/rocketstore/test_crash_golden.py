"""A store that a killed 4.9.3 left: recovered as the real one does, and then as it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rocketstore
from rocketstore import Store
from rocketstore.format.index_format import ENTRY, HEADER, entry_at
from rocketstore.format.properties import index_keys
from tests.golden import rocket_copy
from tests.rocketstore.answers import QUESTIONS, wrong_answers
from tests.rocketstore.support import Clock, read_lines, store_files, touch_queues


def acknowledged(golden: Path) -> list[dict[str, Any]]:
    import json

    text = (golden / "acks" / "puts.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_compatible_recovery_equals_the_real_one(tmp_path: Path) -> None:
    golden = rocket_copy("crash", tmp_path)
    touch_queues(golden / "before")
    options: dict[str, Any] = {"recovery": "compatible", "background": False}
    with rocketstore.open(golden / "before", **options) as store:
        for questions in QUESTIONS:
            assert wrong_answers(store, golden, questions) == [], questions
    ours, real = dict(store_files(golden / "before")), dict(store_files(golden / "after"))
    assert sorted(ours) == sorted(real)
    assert [name for name in real if ours[name] != real[name]] == []
    assert not (golden / "before" / "abort").exists()


def check_complete(store: Store, golden: Path) -> None:
    """Every acknowledged message by offset, by queue, and by each of its keys, once."""
    for put in acknowledged(golden):
        offset = put["wroteOffset"]
        for _ in range(put["msgNum"]):
            message = store.lookup(offset)
            assert message is not None
            message.check()
            if message.sys_flag & 12 in (0, 8):
                found = store.at(message.topic, message.queue_id, message.queue_offset)
                assert found is not None
                assert found.offset == offset
            keys = index_keys(message.properties) if message.sys_flag & 12 != 12 else []
            for key in keys:
                hits = store.query(message.topic, key, 100_000)
                assert [hit.offset for hit in hits].count(offset) == 1, key
            offset += message.size


def test_full_recovery_finds_everything(tmp_path: Path) -> None:
    golden = rocket_copy("crash", tmp_path)
    with rocketstore.open(golden / "before", background=False) as store:
        check_complete(store, golden)
        assert wrong_answers(store, golden, "queues") == []
        assert wrong_answers(store, golden, "gets") == []
        recovered = dict(store_files(golden / "before"))
    with rocketstore.open(golden / "before", background=False) as store:
        assert store.recovered.walked_from == store.max_offset
        check_complete(store, golden)
    assert dict(store_files(golden / "before")) == recovered


def test_full_recovery_equals_a_build_without_crash(tmp_path: Path) -> None:
    """Queues and index after the crash are what an undisturbed store would have."""
    golden = rocket_copy("crash", tmp_path)
    clock = Clock()
    with rocketstore.open(golden / "before", background=False) as store:
        messages = [row["phyOffset"] for row in read_lines(golden, "messages") if "topic" in row]
        options: dict[str, Any] = {
            "commitlog_file_size": 262_144,
            "consumequeue_file_size": 800,
            "index_slots": 100,
            "index_entries": 300,
        }
        with rocketstore.open(tmp_path / "again", clock=clock, background=False, **options) as new:
            for offset in messages:
                message = store.lookup(offset)
                assert message is not None
                clock.now = message.store_timestamp
                _put_again(new, message)
        ours = dict(store_files(golden / "before"))
        undisturbed = dict(store_files(tmp_path / "again"))
    names = [name for name in undisturbed if name.startswith(("consumequeue", "index"))]
    assert [name for name in names if ours.get(name) != undisturbed[name]] == []
    assert {name for name in ours if name.startswith("index")} == {
        name for name in names if name.startswith("index")
    }


def _put_again(store: Store, message: rocketstore.StoredMessage) -> None:
    size = store._parts.commitlog.file_size
    # The golden log has blanks where a batch did not fit; move on to the same place.
    if message.offset % size == 0 and store.max_offset % size:
        store._dispatcher.dispatch()
        store._parts.commitlog._roll(size - store.max_offset % size)
    result = store.put(
        message.topic,
        message.body,
        queue_id=message.queue_id,
        properties=message.properties_bytes,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.fields[9],
        store_host=message.fields[11],
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
    assert result.offset == message.offset


def test_each_intended_difference_from_the_real_recovery(tmp_path: Path) -> None:
    """Full recovery against ``after/``. Every answer is the real one's, and every byte but those
    of one file: the real one put the message at the seam of two index files into both."""
    golden = rocket_copy("crash", tmp_path)
    touch_queues(golden / "before")
    with rocketstore.open(golden / "before", background=False) as store:
        for questions in QUESTIONS:
            assert wrong_answers(store, golden, questions) == [], questions
        assert store.findings == []
    ours, real = dict(store_files(golden / "before")), dict(store_files(golden / "after"))
    assert sorted(ours) == sorted(real)
    assert [name for name in real if ours[name] != real[name]] == ["index/4"]

    def entries(data: bytes) -> list[tuple[int, ...]]:
        count = HEADER.unpack_from(data)[5]
        return [ENTRY.unpack_from(data, entry_at(100, at))[:2] for at in range(1, count)]

    seam = entries(real["index/3"])[-1]
    assert entries(real["index/4"]) == [seam, *entries(ours["index/4"])]
    # Beside them: our note of how far queues and index are, and RocketMQ's own small files.
    names = {
        str(path.relative_to(golden / "before"))
        for path in (golden / "before").rglob("*")
        if path.is_file() and path.parts[-2] not in ("commitlog", "index")
    }
    names = {name for name in names if not name.startswith("consumequeue")}
    assert names == {"lock", "checkpoint", "config/delayOffset.json", "config/rocketstore.json"}
