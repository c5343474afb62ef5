"""A virtual host's directory: which path a node would take, names, and what is wrong."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from journal.errors import NotAStoreError, UsageError
from journal.findings import Cause
from journal.fs.files import REAL
from qindex.view.rabbitmq_vhost import find_vhosts
from qindex.view.reader import Row, StoreReader
from tests.golden import VHOST_DIR_NAME, golden, sha16
from tests.qindex.reader_support import LookingFileSystem, rows_of


def redelivered(store: Path, queue: str = "qa.part") -> int:
    return sum(row.redelivered for row in rows_of(store, queue))


def without_size_and_flag(rows: list[Row]) -> list[tuple[int, bytes, bytes | None]]:
    return [(row.seq_id, row.msg_id, row.body) for row in rows]


def test_the_clean_path_knows_what_was_delivered() -> None:
    assert redelivered(golden("a").vhost_dir) == 50


def test_without_terms_all_are_redelivered(tmp_path: Path) -> None:
    store = golden("a").copy(tmp_path)
    before = rows_of(store, "qa.part")
    (store / "recovery.dets").unlink()
    after = rows_of(store, "qa.part")
    assert all(row.redelivered for row in after)
    assert without_size_and_flag(after) == without_size_and_flag(before)
    found = StoreReader(store).queue("qa.part").summary()
    assert (found.messages, found.delivered_before, found.next_seq_id) == (320, None, 2048)


@pytest.mark.parametrize("lost", ["clean.dot", "file_summary.ets", "msg_store_index.ets"])
def test_a_doubted_store_leaves_the_positions(tmp_path: Path, lost: str) -> None:
    """The node believes next_deliver_seq_id of the terms all the same."""
    store = golden("a").copy(tmp_path)
    (store / "msg_store_persistent" / lost).unlink()
    rows = rows_of(store, "qa.part")
    assert (len(rows), sum(row.redelivered for row in rows)) == (320, 50)


def test_transient_messages_after_a_kill_and_after_a_stop() -> None:
    lazy = golden("f1").vhost_dir
    assert rows_of(lazy, "qf.lazytrans") == []
    assert all(row.persistent for row in rows_of(lazy, "qf.lazy"))


def test_damaged_terms_are_a_finding(tmp_path: Path) -> None:
    store = golden("a").copy(tmp_path)
    path = store / "recovery.dets"
    path.write_bytes(b"\0" * 6000)
    reader = StoreReader(store)
    (finding,) = reader.findings
    assert (finding.path, finding.cause) == (str(path), Cause.DAMAGE)
    assert redelivered(store) == 320


def test_a_config_that_states_no_possible_count_is_a_finding(tmp_path: Path) -> None:
    store = golden("b").copy(tmp_path)
    (store / ".config").write_bytes(b"{segment_entry_count, 0}.")
    reader = StoreReader(store)
    (finding,) = reader.findings
    assert finding.path.endswith("/.config")
    assert "16384 entries a segment assumed" in finding.consequence
    assert len(list(reader.queue("qb.j"))) == 300


def test_without_config_the_files_tell_how_many_entries_a_segment_has(tmp_path: Path) -> None:
    store = golden("c1").copy(tmp_path)
    (store / ".config").unlink()
    reader = StoreReader(store)
    with_config = StoreReader(golden("c1").vhost_dir).queue("qc")
    seqs = [row.seq_id for row in with_config.entries()]
    assert [row.seq_id for row in reader.queue("qc").entries()] == seqs
    assert ["2048 entries a segment assumed" in str(one) for one in reader.findings] == [True]


def test_queues_without_their_name_files(tmp_path: Path) -> None:
    store = golden("a").copy(tmp_path)
    known = golden("a").truth.queues["qa.part"].directory
    for path in store.glob("queues/*/.queue_name"):
        path.unlink()
    reader = StoreReader(store)
    assert known in reader.queue_names()
    assert len(list(reader.queue("qa.part"))) == len(list(reader.queue(known))) == 320
    with pytest.raises(UsageError, match=r"there is no queue 'qa\.par'"):
        reader.queue("qa.par")


def test_a_sub_queue_is_named_by_its_siblings(tmp_path: Path) -> None:
    store = golden("g1").copy(tmp_path)
    queue = golden("g1").truth.queues["qg.prio"]
    (store / "queues" / queue.priority_directories[3] / ".queue_name").unlink()
    reader = StoreReader(store)
    assert reader.queue_names().count("qg.prio") == 1
    assert queue.priority_directories[3] not in reader.queue_names()
    priorities = [row.priority for row in reader.queue("qg.prio")]
    assert priorities == sorted(priorities, key=lambda one: -(one or 0))
    assert len(priorities) == 30
    assert [one.messages for one in reader.queues() if one.name == "qg.prio"] == [30]


def test_a_priority_queue_without_any_name_file(tmp_path: Path) -> None:
    store = golden("g1").copy(tmp_path)
    for path in store.glob("queues/*/.queue_name"):
        path.unlink()
    assert len(list(StoreReader(store).queue("qg.prio"))) == 30


def test_a_name_file_of_another_directory_is_a_finding(tmp_path: Path) -> None:
    store = golden("a").copy(tmp_path)
    directory = golden("a").truth.queues["qa.part"].directory
    path = store / "queues" / directory / ".queue_name"
    path.write_bytes(b"VHOST: /\nQUEUE: qa.other\n")
    (store / "queues" / "a file").write_bytes(b"")
    reader = StoreReader(store)
    assert directory in reader.queue_names()
    assert reader.queue_names() == reader.queue_names()
    assert [finding.path for finding in reader.findings] == [str(path)]
    assert len(list(reader.queue("qa.part"))) == 320


def test_another_virtual_host_s_names(tmp_path: Path) -> None:
    """The queue's directory is a hash of the virtual host's name, too."""
    store = golden("a").copy(tmp_path)
    (store / ".vhost").write_bytes(b"other")
    for path in store.glob("queues/*/.queue_name"):
        path.unlink()
    with pytest.raises(UsageError):
        StoreReader(store).queue("qa.part")


def test_nothing_is_written_to_a_node_s_directory() -> None:
    for scenario in ("a", "b", "g1"):
        reader = StoreReader(golden(scenario).vhost_dir, LookingFileSystem())
        assert reader.queues()


# -- messages in the message store --------------------------------------------------------------


def test_messages_of_the_message_store_have_their_bodies() -> None:
    store = golden("g1")
    queue = StoreReader(store.vhost_dir).queue("qg.exp")
    rows = list(queue)
    assert [sha16(row.body or b"") for row in rows] == [
        message.sha16 for message in store.truth.queues["qg.exp"].delivered
    ]
    assert {row.location for row in rows} == {"store", "segment"}
    assert queue.findings == []


def test_a_message_store_that_is_gone_is_told_message_by_message(tmp_path: Path) -> None:
    copy = golden("g1").copy(tmp_path)
    shutil.rmtree(copy / "msg_store_persistent")
    queue = StoreReader(copy).queue("qg.exp")
    rows = list(queue)
    assert len(rows) == 20
    gone = [row for row in rows if row.location == "store"]
    assert len(gone) == len(queue.findings) == 10
    for row, finding in zip(gone, queue.findings, strict=True):
        assert row.body is None
        assert row.error is not None
        assert "is not in the message store" in row.error
        assert row.error in finding.what
        assert row.msg_id.hex() in finding.what


def test_a_damaged_record_in_the_message_store_is_told(tmp_path: Path) -> None:
    copy = golden("g1").copy(tmp_path)
    whole = list(StoreReader(copy).queue("qg.exp"))
    stored = [row for row in whole if row.location == "store"]
    path = copy / "msg_store_persistent" / "0.rdq"
    data = bytearray(path.read_bytes())
    at = data.index(stored[3].msg_id) + 16
    data[at + 1] ^= 0xFF
    path.write_bytes(data)
    queue = StoreReader(copy).queue("qg.exp")
    rows = list(queue)
    assert [row.seq_id for row in rows if row.body is None] == [stored[3].seq_id]
    assert [row.body for row in rows if row.body is not None] == [
        row.body for row in whole if row.seq_id != stored[3].seq_id
    ]
    assert any(f"seq_id {stored[3].seq_id} can't be read" in one.what for one in queue.findings)


# -- a node's directory -------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """mnesia/<node>/msg_stores/vhosts with two virtual hosts."""
    vhosts = tmp_path / "lib" / "mnesia" / "rabbit@host" / "msg_stores" / "vhosts"
    shutil.copytree(golden("b").vhost_dir, vhosts / VHOST_DIR_NAME)
    other = vhosts / "OTHER"
    other.mkdir()
    (other / ".vhost").write_bytes(b"other")
    return tmp_path / "lib"


@pytest.mark.parametrize(
    "below",
    ["", "mnesia", "mnesia/rabbit@host", "mnesia/rabbit@host/msg_stores"]
    + ["mnesia/rabbit@host/msg_stores/vhosts"],
)
def test_a_node_s_directory_is_refused_with_the_names(node: Path, below: str) -> None:
    directory = node / below
    with pytest.raises(NotAStoreError) as caught:
        StoreReader(directory)
    text = str(caught.value)
    vhosts = node / "mnesia" / "rabbit@host" / "msg_stores" / "vhosts"
    assert "is a RabbitMQ node's directory" in text
    assert f"{vhosts / VHOST_DIR_NAME} (virtual host '/')" in text
    assert f"{vhosts / 'OTHER'} (virtual host 'other')" in text
    assert len(find_vhosts(REAL, str(directory))) == 2


def test_of_many_virtual_hosts_some_are_named(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"v{number:02}").mkdir()
        (tmp_path / f"v{number:02}" / ".vhost").write_bytes(b"n%d" % number)
    with pytest.raises(NotAStoreError, match="'n7'\\) and 4 more"):
        StoreReader(tmp_path)


def test_the_search_does_not_wander(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / ".vhost").write_bytes(b"/")
    assert find_vhosts(REAL, str(tmp_path)) == []
    os.symlink(tmp_path, tmp_path / "loop")
    assert find_vhosts(REAL, str(tmp_path)) == []
