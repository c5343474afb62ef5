"""Stores that real RabbitMQ nodes left, clean, killed and half-compacted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from journal.findings import Cause
from journal.poison import Poison
from msgstore import MessageStore
from qindex.format.rabbitmq.record import decode_message
from tests.golden import SYNTHETIC_CASES, golden, synthetic
from tests.msgstore.walker import check, queue_entries, store_references

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
    "12_rdq_zero_hole": ["b0", "b1", "b2", "b3"],
    "14_combine_B_truncated_extended": ["b0", "b2", "b3", "b4"],
    "18_rdt_without_rdq": ["b0", "b2"],
}


def open_store(vhost: Path, *, read_only: bool = False) -> MessageStore:
    return MessageStore.open(
        vhost / "msg_store_persistent",
        references=store_references(vhost),
        snapshot=None,
        check=check,
        poison=Poison(),
        background=False,
        read_only=read_only,
    )


def delivered_bodies(vhost: Path, queue: str, store: MessageStore) -> list[bytes]:
    """The persistent bodies of a queue in order, embedded ones and those in the store."""
    bodies = []
    for entry in queue_entries(vhost / "queues" / queue):
        if not entry.persistent or (not entry.embedded and entry.msg_id not in store):
            continue
        record = entry.embedded or store.read(entry.msg_id)
        bodies.append(decode_message(record).body)
    return bodies


def sha16(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("read_only", [False, True])
def test_every_stored_body_of_a_real_node(scenario: str, read_only: bool, tmp_path: Path) -> None:
    source = golden(scenario)
    vhost = source.copy(tmp_path)
    with open_store(vhost, read_only=read_only) as store:
        assert store.missing == set()
        assert [found for found in store.findings if found.cause is Cause.DAMAGE] == []
        stored = 0
        for queue in source.truth.queues.values():
            wanted = [message.sha16 for message in queue.delivered]
            directories = list(queue.priority_directories.values()) or [queue.directory]
            found = [
                sha16(body)
                for directory in directories
                for body in delivered_bodies(vhost, directory, store)
            ]
            if not queue.priority_directories and scenario != "g1_props_ttl_clean":
                assert found == wanted, queue.name
            # g1 has priorities (another order) and messages that had expired by the restart.
            assert not set(wanted) - set(found), queue.name
            stored += len(found)
        assert len(store) > 0
        assert stored > 0


@pytest.mark.parametrize("case", STORE_CASES)
@pytest.mark.parametrize("read_only", [False, True])
def test_what_the_node_delivers_and_what_it_loses(
    case: str, read_only: bool, tmp_path: Path
) -> None:
    source = synthetic(case)
    vhost = source.copy(tmp_path)
    with open_store(vhost, read_only=read_only) as store:
        bodies = delivered_bodies(vhost, source.queue_directories["qr"], store)
        assert [body[:2].decode() for body in bodies] == BETTER_THAN_THE_NODE.get(
            case, [message.prefix[:2] for message in source.delivered.get("qr", [])]
        )
        for message in source.delivered.get("qr", []):
            assert any(message.matches(body) for body in bodies)
        assert [found for found in store.findings if found.cause is Cause.DAMAGE] == []


@pytest.mark.parametrize("case", STORE_CASES)
def test_a_recovered_store_is_plain_again(case: str, tmp_path: Path) -> None:
    """After recovery and compaction a second recovery finds nothing amiss, and no ``.rdt``."""
    source = synthetic(case)
    vhost = source.copy(tmp_path)
    with open_store(vhost) as store:
        store.compact()
        before = delivered_bodies(vhost, source.queue_directories["qr"], store)
    directory = vhost / "msg_store_persistent"
    assert [path.name for path in directory.iterdir() if path.suffix != ".rdq"] == []
    with open_store(vhost) as store:
        after = delivered_bodies(vhost, source.queue_directories["qr"], store)
        assert store.findings == []
    assert after == before


def test_reading_only_changes_nothing(tmp_path: Path) -> None:
    vhost = synthetic("14").copy(tmp_path)
    directory = vhost / "msg_store_persistent"
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with open_store(vhost, read_only=True) as store:
        assert len(store) == 4
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_the_nodes_clean_stop_files_are_removed_before_a_change(tmp_path: Path) -> None:
    vhost = golden("d1").copy(tmp_path)
    directory = vhost / "msg_store_persistent"
    assert (directory / "clean.dot").exists()
    open_store(vhost).close()
    assert {path.suffix for path in directory.iterdir()} == {".rdq"}
