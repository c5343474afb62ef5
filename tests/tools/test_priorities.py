"""Tools over stores with priority queues: verify, list, cat, export, import, repair, convert."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import qindex
from qindex.format.priorities import SHIFT
from qindex.format.rabbitmq.names import directory_name
from qindex.tools.convert import convert
from qindex.tools.repair import repair
from qindex.tools.verify import verify
from qindex.transfer import export_messages, import_messages
from qindex.view.reader import StoreReader
from tests.cli.support import run


def filled(directory: Path) -> list[tuple[int, bytes]]:
    """Make a store with a priority queue; gives seq_ids and bodies, in order of delivery."""
    with qindex.open(directory) as engine:
        jobs = engine.queue("jobs", max_priority=9, dead_letter="dead")
        found = []
        for number in range(30):
            body = b"%d " % number + b"x" * (10 if number % 3 else 5000)
            found.append((jobs.publish(body, priority=number % 4, key=f"k{number}"), body))
        for number in range(2):
            delivery = jobs.get()
            found.remove((delivery.seq_id, delivery.body))
            delivery.ack() if number else delivery.reject()
        engine.queue("plain").publish(b"plain")
    return sorted(found, key=lambda one: (-(one[0] >> SHIFT), one[0]))


def delivered(directory: Path, name: str = "jobs") -> list[tuple[int, bytes]]:
    with qindex.open(directory) as engine:
        found = []
        queue = engine.queue(name)
        while (delivery := queue.get(0)) is not None:
            found.append((delivery.seq_id, delivery.body))
        return found


def queue_path(store: Path, priority: int) -> Path:
    return store / "queues" / directory_name("/", "jobs", priority)


def test_a_read_only_engine_shows_the_order_of_delivery(tmp_path: Path) -> None:
    wanted = filled(tmp_path)
    with qindex.open(tmp_path, read_only=True) as engine:
        assert engine.queue_names() == ["dead", "jobs", "plain"]
        queue = engine.queue("jobs")
        assert [(one.seq_id, one.body) for one in queue] == wanted
        assert {one.priority for one in queue} == {0, 1, 2, 3}
        assert len(queue) == len(wanted)
        assert queue.settings.max_priority == 9
        stats = queue.stats()
        assert (stats.messages, stats.next_seq_id) == (28, 8)
    assert verify(tmp_path).findings == []


def test_the_command_line_shows_one_queue(tmp_path: Path) -> None:
    wanted = filled(tmp_path)
    listed = json.loads(run("list", tmp_path, "--json").text.splitlines()[1])
    assert (listed["name"], listed["messages"]) == ("jobs", 28)
    assert listed["settings"]["max_priority"] == 9
    rows = [json.loads(line) for line in run("cat", tmp_path, "jobs", "--json").text.splitlines()]
    assert [row["seq_id"] for row in rows] == [seq for seq, _ in wanted]
    assert [row["priority"] for row in rows] == [seq >> SHIFT for seq, _ in wanted]
    assert run("verify", str(tmp_path)).code == 0


def test_the_command_line_publishes_with_a_priority(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    assert run("queue", store, "jobs", "--max-priority", "5").code == 0
    assert run("publish", store, "jobs", stdin=b"low\n").code == 0
    done = run("publish", store, "jobs", "--priority", "4", "--json", stdin=b"a\nb\n")
    assert json.loads(done.text)["first_seq_id"] == 4 << SHIFT
    assert run("publish", store, "jobs", "--priority", "2", "--unique", "u", stdin=b"u\n").code == 0
    refused = run("publish", store, "jobs", "--priority", "6", stdin=b"x\n")
    assert refused.code == 2
    assert "priority must be 0 to 5" in refused.err
    assert "max_priority    5" in run("queue", store, "jobs").text
    assert run("consume", store, "jobs").text == "a\nb\nu\nlow\n"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_store_comes_back_from_an_export(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    wanted = filled(tmp_path / "a")
    file = tmp_path / f"x.{suffix}"
    export_messages(tmp_path / "a", file)
    report = import_messages([file], tmp_path / "b")
    assert report.queues == {"dead": 1, "jobs": 28, "plain": 1}
    found = delivered(tmp_path / "b")
    assert [body for _, body in found] == [body for _, body in wanted]
    assert [seq >> SHIFT for seq, _ in found] == [seq >> SHIFT for seq, _ in wanted]
    with qindex.open(tmp_path / "b") as engine:
        assert engine.queue("jobs").settings.max_priority == 9
        assert engine.queue("jobs").settings.dead_letter == "dead"


def test_an_import_goes_to_the_priorities_of_an_existing_queue(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    export_messages(tmp_path / "a", tmp_path / "x.jsonl", queues=["jobs"])
    with qindex.open(tmp_path / "b") as engine:
        engine.queue("other", max_priority=2)
    import_messages([tmp_path / "x.jsonl"], tmp_path / "b", "other")
    found = [seq >> SHIFT for seq, _ in delivered(tmp_path / "b", "other")]
    assert found == sorted(found, reverse=True)
    assert set(found) == {0, 1, 2}


def test_repair_keeps_the_levels(tmp_path: Path) -> None:
    wanted = filled(tmp_path / "a")
    report = repair(tmp_path / "a", tmp_path / "b")
    assert report.complete
    jobs = next(one for one in report.queues if one.name == "jobs")
    assert (jobs.messages, jobs.max_priority, jobs.next_seq_id) == (28, 9, 8)
    assert delivered(tmp_path / "b") == wanted
    assert verify(tmp_path / "b").findings == []


def test_repair_after_the_directory_of_priority_0_is_lost(tmp_path: Path) -> None:
    wanted = [one for one in filled(tmp_path / "a") if one[0] >> SHIFT]
    shutil.rmtree(queue_path(tmp_path / "a", 0))
    (tmp_path / "a" / "qindex.clean").unlink()
    lost = verify(tmp_path / "a").damage
    assert any("directory of priority 0" in one.what for one in lost)
    report = repair(tmp_path / "a", tmp_path / "b")
    assert not report.complete
    assert delivered(tmp_path / "b") == wanted
    with qindex.open(tmp_path / "b") as engine:
        queue = engine.queue("jobs")
        assert queue.settings.max_priority == 3
        assert queue.publish(b"new") > 8  # no seq_id is given out twice


def test_an_engine_that_is_told_max_priority_finds_the_levels_without_that_of_0(
    tmp_path: Path,
) -> None:
    wanted = [one for one in filled(tmp_path) if one[0] >> SHIFT]
    shutil.rmtree(queue_path(tmp_path, 0))
    (tmp_path / "qindex.clean").unlink()
    with qindex.open(tmp_path) as engine:
        queue = engine.queue("jobs", max_priority=9)
        assert len(queue) == len(wanted)
    assert delivered(tmp_path) == wanted


def test_repair_names_a_level_that_has_lost_its_name(tmp_path: Path) -> None:
    wanted = filled(tmp_path / "a")
    (queue_path(tmp_path / "a", 2) / ".queue_name").unlink()
    (queue_path(tmp_path / "a", 3) / ".queue_name").write_bytes(b"nonsense")
    report = repair(tmp_path / "a", tmp_path / "b")
    assert delivered(tmp_path / "b") == wanted
    assert [one.name for one in report.queues] == ["dead", "jobs", "plain"]


@pytest.mark.parametrize("to", [1, 2])
def test_convert_hands_priority_queues_over(tmp_path: Path, to: int) -> None:
    wanted = filled(tmp_path / "a")
    report = convert(tmp_path / "a", 1 if to == 1 else 2, out=tmp_path / "vhost")
    assert [one["arguments"] for one in report.declarations] == [{}, {"x-max-priority": 9}, {}]
    names = {one.name for one in (tmp_path / "vhost" / "queues").iterdir()}
    assert {directory_name("/", "jobs", priority) for priority in range(4)} <= names
    rows = list(StoreReader(tmp_path / "vhost").queue("jobs"))
    assert [row.body for row in rows] == [body for _, body in wanted]
    assert [(row.priority, row.seq_id) for row in rows] == [
        (seq >> SHIFT, seq & ((1 << SHIFT) - 1)) for seq, _ in wanted
    ]
    assert {row.properties.get("priority", 0) for row in rows} == {0, 1, 2, 3}
    back = qindex.salvage(tmp_path / "vhost", tmp_path / "back")
    assert back.complete
    assert delivered(tmp_path / "back") == wanted
    with qindex.open(tmp_path / "back") as engine:
        assert engine.queue("jobs").settings.max_priority == 3


def test_convert_prints_the_declarations(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    done = run("convert", str(tmp_path / "a"), "--to", "1", "--out", str(tmp_path / "v"))
    assert done.code == 0
    declared = [line for line in done.text.splitlines() if line.startswith("rabbitmqadmin")]
    assert declared == [
        "rabbitmqadmin --vhost=/ declare queue name=dead durable=true",
        "rabbitmqadmin --vhost=/ declare queue name=jobs durable=true "
        "'arguments={\"x-max-priority\": 9}'",
        "rabbitmqadmin --vhost=/ declare queue name=plain durable=true",
    ]
    assert "deletes the directories of queues that it has not declared" in done.err
