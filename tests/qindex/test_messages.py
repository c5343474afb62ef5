"""Messages that are too big for the index: published, delivered, settled through the engine."""

from __future__ import annotations

import errno
import itertools
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qindex
from journal.errors import DamageError, StorageError, UsageError, WritesRefusedError
from journal.findings import Kind
from qindex.format.message import Message
from qindex.format.message_record import encode_record
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.messages_support import (
    PERSISTENT,
    SyncLog,
    assert_counts,
    big,
    rdq_files,
    ready,
    store_of,
    stored,
)
from tests.qindex.reader_support import rows_of
from tests.qindex.support import WAIT, copy_live, drain, queue_directory

# -- what goes where ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [100, 300, 4096, 70_000])
@pytest.mark.parametrize(("key", "many"), [(None, False), ("a key", False), (None, True)])
def test_the_boundary_is_exact(tmp_path: Path, limit: int, key: str | None, many: bool) -> None:
    """A record of embed_below - 1 bytes is embedded, one of embed_below bytes is stored."""

    def body_of(record_size: int) -> bytes:
        for guess in range(record_size - 60, record_size):
            if len(encode_record(Message(bytes(guess), key, timestamp=1 << 60))) == record_size:
                return bytes(guess)
        raise AssertionError(f"no body makes a record of {record_size} bytes")

    sizes = [limit - 2, limit - 1, limit, limit + 1]
    with stored(tmp_path, embed_below=limit) as engine:
        queue = engine.queue("q")
        bodies = [body_of(size) for size in sizes]
        if many:
            queue.publish_many(bodies)
        else:
            for body in bodies:
                queue.publish(body, key=key)
        rows = rows_of(tmp_path)
        assert [row.location for row in rows] == ["journal", "journal", "store", "store"]
        assert [row.body for row in rows] == bodies
        assert [len(store_of(engine).read(row.msg_id)) for row in rows[2:]] == sizes[2:]
        assert [body for _, body, _ in drain(queue)] == bodies


def test_everything_is_stored_below_nothing(tmp_path: Path) -> None:
    with stored(tmp_path, embed_below=0) as engine:
        queue = engine.queue("q")
        queue.publish(b"")
        queue.publish_many([b"", b"x"])
        assert {row.location for row in rows_of(tmp_path)} == {"store"}
        assert [body for _, body, _ in drain(queue)] == [b"", b"", b"x"]


def test_nothing_is_made_without_need(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish(b"small")
        engine.queue("q").purge()
        engine.delete_queue("q")
        assert engine.compact() is None
        assert engine.stats().message_store is None
    assert not (tmp_path / PERSISTENT).exists()


@pytest.mark.parametrize("record_format", ["qindex", "rabbitmq"])
def test_all_there_is_to_a_message_comes_back(tmp_path: Path, record_format: str) -> None:
    store = tmp_path / "store"
    with stored(store, record_format=record_format) as engine:
        queue = engine.queue("q")
        queue.publish(big(1), key="k", headers={"a": [1, b"x"]}, properties={"type": "t"})
        queue.publish(big(2, 300_000), ttl=1000)
        copy = copy_live(store, tmp_path / "copy")
        with queue.get(0) or pytest.fail("nothing there") as delivery:
            assert (delivery.body, delivery.key) == (big(1), "k")
            assert delivery.headers == {"a": [1, b"x"]}
            assert delivery.properties["type"] == "t"
    for again in (store, copy):
        with stored(again, record_format=record_format) as engine:
            left = engine.queue("q").get_many(9)
            assert left[-1].body == big(2, 300_000)
            assert left[-1].expiry is not None
            assert left[-1].expiry > (time.time() + 900) * 1e6


def test_a_message_over_the_maximum_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with stored(tmp_path, max_message_bytes=10_000) as engine:
        queue = engine.queue("q")
        queue.publish(big(0))
        size = sum(path.stat().st_size for path in rdq_files(tmp_path))
        too_big = bytes(10_001)
        refused: list[Callable[[], object]] = [
            lambda: queue.publish(too_big),
            lambda: queue.publish(too_big, key="k"),
            lambda: queue.publish_many([b"x", too_big]),
            lambda: engine.publish_to(["q", "other"], too_big),
            lambda: queue.publish(big(1), headers={"h": bytes(1 << 20)}),
        ]
        for publish in refused:
            with pytest.raises(UsageError, match=r"may (have at most|take) "):
                publish()
        assert sum(path.stat().st_size for path in rdq_files(tmp_path)) == size
        queue.publish(bytes(10_000))
        assert assert_counts(engine) == 2
        assert [body for _, body, _ in drain(queue)] == [big(0), bytes(10_000)]


# -- settling -------------------------------------------------------------------------------------


def test_the_last_ack_makes_a_message_garbage(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(20)])
        assert assert_counts(engine) == 20
        first = queue.get(0)
        assert first is not None
        assert assert_counts(engine) == 20
        first.ack()
        assert assert_counts(engine) == 19
        batch = queue.get_many(9)
        queue.ack_many(batch[:4])
        assert assert_counts(engine) == 15
        queue.ack_up_to(batch[6].seq_id)
        assert assert_counts(engine) == 12
        batch[7].nack()
        assert assert_counts(engine) == 12
        assert ready(engine) == [big(8), *(big(n) for n in range(10, 20))]
        again = queue.get(0)
        assert again is not None
        assert (again.body, again.redelivered) == (big(8), True)
        again.reject()
        assert assert_counts(engine) == 11
        queue.flush()
        assert assert_counts(engine) == 11
        assert len(drain(queue)) == 10
        batch[8].ack()
        assert assert_counts(engine) == 0
        engine.compact()
        assert rdq_files(tmp_path) == []


def test_expired_messages_are_given_back(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(big(0), ttl=0)
        queue.publish(big(1), ttl=0.05)
        queue.publish(big(2))
        given = queue.get(0)
        if given is not None and given.body == big(1):
            given.nack()  # expires in the hands of the queue
            time.sleep(0.06)
            given = queue.get(0)
        assert given is not None
        assert given.body == big(2)
        assert assert_counts(engine) == 1
        given.ack()
        assert assert_counts(engine) == 0
        assert not queue._parts.state.noted


def test_purge_gives_back_what_it_drops(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(30)])
        queue.publish(b"small")
        engine.flush()
        queue.publish_many([big(n) for n in range(30, 40)])
        held = queue.get_many(5)
        held[0].nack()
        assert queue.purge() == 37
        assert assert_counts(engine) == 4
        assert [one.body for one in held[1:]] == [big(n) for n in range(1, 5)]
        queue.ack_many(held[1:])
        assert assert_counts(engine) == 0
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(30)])
    with stored(tmp_path) as engine:  # nothing of it is in memory now
        assert engine.queue("q").purge() == 30
        assert assert_counts(engine) == 0


def test_a_purge_that_fails_half_way_keeps_count(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("q").publish_many([big(n) for n in range(30)])
        engine.flush()
    fs = FaultyFileSystem()
    with stored(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        fs.fail("unlink", errno.EPERM, path="2.idx")
        with pytest.raises(StorageError, match="can't be deleted"):
            queue.purge()
        left = assert_counts(engine)
        assert 0 < left < 30
        assert queue.purge() == left
        assert assert_counts(engine) == 0


@pytest.mark.parametrize("awake", [True, False])
def test_deleting_a_queue_gives_its_messages_back(tmp_path: Path, awake: bool) -> None:
    with stored(tmp_path) as engine:
        engine.publish_to(["q", "other"], big(0))
        engine.queue("q").publish_many([big(n) for n in range(1, 30)])
        engine.flush()
        engine.queue("q").publish(big(30))
        engine.queue("q").get(0)
    with stored(tmp_path) as engine:
        if awake:
            engine.queue("q").get_many(3)
        engine.delete_queue("q")
        assert assert_counts(engine) == 1
        engine.compact()
        assert ready(engine, "other") == [big(0)]


def test_a_damaged_queue_can_be_deleted_and_its_messages_are_counted_anew(tmp_path: Path) -> None:
    for awake in (True, False):
        store = tmp_path / f"awake {awake}"
        with stored(store) as engine:
            engine.publish_to(["q", "other"], big(0))
            engine.queue("q").publish_many([big(n) for n in range(1, 20)])
            engine.flush()
        path = queue_directory(store, "q") / "0.idx"
        data = path.read_bytes()
        (path.parent / "0.idx.sum").unlink()
        path.write_bytes(data[:100] + bytes(40) + data[140:])
        with stored(store) as engine:
            if awake:
                engine.queue("q")
            engine.delete_queue("q")
            assert ready(engine, "other") == [big(0)]
        assert not (store / "qindex.clean").exists()
        with stored(store) as engine:
            assert assert_counts(engine) == 1
            assert ready(engine, "other") == [big(0)]


def test_acks_while_their_queue_is_deleted_take_nothing_from_others(tmp_path: Path) -> None:
    """An ack and the deletion must not both take the one reference that the queue has."""
    with stored(tmp_path) as engine:
        for turn in range(15):
            name = f"gone {turn}"
            for number in range(20):
                engine.publish_to([name, "other"], big(100 * turn + number))
            held = list(engine.queue(name).get_many(20))
            started = threading.Event()

            def ack(held: list[qindex.Delivery], started: threading.Event) -> None:
                started.set()
                for delivery in held:
                    try:
                        delivery.ack()
                    except qindex.ClosedError:
                        return

            worker = threading.Thread(target=ack, args=(held, started))
            worker.start()
            started.wait(WAIT)
            engine.delete_queue(name)
            worker.join(WAIT)
            engine.compact()
        assert assert_counts(engine) == 300
        assert ready(engine, "other") == [big(100 * t + n) for t in range(15) for n in range(20)]


# -- one message in several queues ----------------------------------------------------------------


def test_publish_to_writes_once(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        engine.queue("b").publish(b"before")
        assert engine.publish_to(["a", "b", "c"], big(1), key="k") == [0, 1, 0]
        (row,) = rows_of(tmp_path, "a")
        assert store_of(engine).references(row.msg_id) == 3
        assert sum(path.stat().st_size for path in rdq_files(tmp_path)) < 2 * len(big(1))
        assert engine.publish_to(["a", "b"], b"small") == [1, 2]
        assert assert_counts(engine) == 1
        for name in ("a", "b", "c"):
            assert big(1) in ready(engine, name)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
def test_acks_in_any_order_and_a_crash_at_any_point(tmp_path: Path, order: tuple[str]) -> None:
    store = tmp_path / "store"
    moments: list[dict[str, list[bytes]]] = []

    def look(engine: qindex.Engine, held: dict[str, list[bytes]]) -> None:
        assert_counts(engine)
        copy_live(store, tmp_path / f"crash {len(moments)}")
        moments.append({name: list(bodies) for name, bodies in held.items()})

    with stored(store) as engine:
        held: dict[str, list[bytes]] = {name: [] for name in "abc"}
        for number in range(3):
            names = "abc"[: 3 - number]
            engine.publish_to(list(names), big(number))
            for name in names:
                held[name].append(big(number))
            look(engine, held)
        engine.flush()
        for name in order:
            for _ in range(len(held[name])):
                with engine.queue(name).get(0) or pytest.fail("empty") as delivery:
                    assert delivery.body == held[name][0]
                held[name].pop(0)
                engine.compact()
                look(engine, held)
        assert assert_counts(engine) == 0
    for number, wanted in enumerate(moments):
        with stored(tmp_path / f"crash {number}") as engine:
            assert not [one for one in engine.findings if "zero-filled tail" not in one.what]
            assert_counts(engine)
            assert {name: ready(engine, name) for name in "abc"} == wanted
        with stored(tmp_path / f"crash {number}") as engine:  # closed in order this time
            assert_counts(engine)
            assert {name: ready(engine, name) for name in "abc"} == wanted


def test_a_queue_that_refuses_gives_all_references_back(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    with stored(tmp_path, fs=fs) as engine:
        for name in "abc":
            engine.queue(name).publish(b"")
        # Fill the journal of b to its brim, and let it not grow.
        journal = engine.queue("b")._parts.state.index.journal
        while len(journal.map) - journal.tell() > 30:
            engine.queue("b").publish(b"")
        fs.fail("fallocate", errno.ENOSPC, path="")
        with pytest.raises(StorageError):
            engine.publish_to(["a", "b", "c"], big(1))
        assert assert_counts(engine) == 0
        assert ready(engine, "a") == ready(engine, "c") == [b""]
        fs.heal()
        engine.publish_to(["b", "c"], big(2))
        assert ready(engine, "b")[-1] == big(2)
        assert assert_counts(engine) == 1


# -- durability -----------------------------------------------------------------------------------


def test_confirm_syncs_the_message_before_its_entry(tmp_path: Path) -> None:
    fs = SyncLog()
    with stored(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish(big(0))
        assert "0.rdq" not in fs.synced
        fs.synced.clear()
        queue.publish(big(1), confirm=True)
        assert fs.synced == ["0.rdq", f"{PERSISTENT}/", "journal.jif", f"{_hash(tmp_path)}/"]
        fs.synced.clear()
        queue.publish(big(2), confirm=True)
        assert fs.synced == ["0.rdq", "journal.jif"]
        fs.synced.clear()
        queue.publish(b"small", confirm=True)
        assert fs.synced == ["journal.jif"]
        queue.publish_many([big(n) for n in range(3, 12)])  # several files
        fs.synced.clear()
        queue.sync()
        assert [name for name in fs.synced if name.endswith(".rdq")] == ["0.rdq", "1.rdq"]
        assert fs.synced[-1] == "journal.jif"
        fs.synced.clear()
        engine.publish_to(["q", "other"], big(20), confirm=True)
        assert [name for name in fs.synced if name.endswith(".rdq")] == ["2.rdq"]
        assert fs.synced.count("journal.jif") == 2


def _hash(directory: Path) -> str:
    return queue_directory(directory, "q").name


def test_fsync_mode_syncs_both(tmp_path: Path) -> None:
    fs = SyncLog()
    with stored(tmp_path, fs=fs, durability="fsync") as engine:
        queue = engine.queue("q")
        queue.publish(big(0))
        fs.synced.clear()
        queue.publish(big(1))
        queue.publish_many([big(2), big(3)])
        queue.publish(big(4), persistent=False)
        assert fs.synced == ["0.rdq", "journal.jif"] * 3
        fs.synced.clear()
        delivery = queue.get(0)
        assert delivery is not None
        assert fs.synced == []
        delivery.ack()
        assert fs.synced == ["journal.jif"]


def test_acks_are_durable_before_their_messages_are_deleted(tmp_path: Path) -> None:
    fs = SyncLog()
    with stored(tmp_path, fs=fs) as engine:
        queue, other = engine.queue("q"), engine.queue("other")
        queue.publish_many([big(n) for n in range(12)])
        other.publish(b"theirs")
        queue.ack_many(queue.get_many(12))
        fs.synced.clear()
        report = engine.compact()
        assert report is not None
        assert report.files_deleted >= 2
        assert fs.synced.count("journal.jif") == 2
        assert rdq_files(tmp_path) == []


def test_a_failed_sync_of_the_message_store_refuses_writes(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    store = tmp_path / "store"
    engine = stored(store, fs=fs)
    queue = engine.queue("q")
    queue.publish(big(0))
    fs.fail("fdatasync", errno.EIO, path=".rdq")
    with pytest.raises(StorageError, match="can't be synced"):
        queue.publish(big(1), confirm=True)
    writes: list[Callable[[], object]] = [
        lambda: queue.publish(big(2)),
        lambda: queue.publish(b"small"),
        lambda: engine.publish_to(["q"], big(2)),
        lambda: queue.get(0),
        queue.sync,
        engine.sync,
    ]
    for write in writes:
        with pytest.raises(WritesRefusedError):
            write()
    assert ready(engine) == [big(0), big(1)]
    engine.close()
    with stored(store) as again:
        assert ready(again) == [big(0), big(1)]


@pytest.mark.parametrize("short", [0, 10, 600])
def test_a_full_disk_publishes_nothing_and_passes(tmp_path: Path, short: int) -> None:
    fs = FaultyFileSystem()
    with stored(tmp_path, fs=fs) as engine:
        queue = engine.queue("q")
        queue.publish(big(0))
        publishes: list[Callable[[], object]] = [
            lambda: queue.publish(big(1)),
            lambda: queue.publish_many([b"small", big(1), big(2)]),
            lambda: engine.publish_to(["q", "other"], big(1)),
        ]
        for publish in publishes:
            fs.fail("pwrite", errno.ENOSPC, path=".rdq", short=short)
            with pytest.raises(StorageError) as caught:
                publish()
            assert caught.value.errno == errno.ENOSPC
            assert assert_counts(engine) == 1
            assert ready(engine) == [big(0)]
        queue.publish(big(3))
        assert ready(engine) == [big(0), big(3)]


@pytest.mark.parametrize("operation", ["pwrite", "open", "rename", "fdatasync", "sync_dir"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_in_compaction_loses_nothing(
    tmp_path: Path, operation: str, error: int
) -> None:
    fs = FaultyFileSystem()
    store = tmp_path / "store"
    left = [big(n) for n in range(0, 40, 4)]
    engine = stored(store, fs=fs)
    queue = engine.queue("q")
    queue.publish_many([big(n) for n in range(40)])
    batch = queue.get_many(40)
    queue.ack_many([one for number, one in enumerate(batch) if number % 4])
    for one in batch[::4]:
        one.nack()
    where = {"open": ".tmp", "rename": ".tmp", "pwrite": ".tmp", "fdatasync": ".tmp"}
    fs.fail(operation, error, path=where.get(operation, PERSISTENT))
    with pytest.raises(StorageError):
        engine.compact()
    assert [one.body for one in queue.get_many(5)] == left[:5] if _takes_writes(engine) else True
    for _, body, _ in _read_all(engine):
        assert body in left
    crashed = copy_live(store, tmp_path / "crashed")
    if error == errno.ENOSPC and operation not in ("fdatasync", "sync_dir"):
        report = engine.compact()
        assert report is not None
        assert report.files_written > 0
    engine.close()
    for directory in (store, crashed):
        with stored(directory) as again:
            assert ready(again) == left
            again.compact()
            assert_counts(again)
            assert ready(again) == left


def _takes_writes(engine: qindex.Engine) -> bool:
    return engine.stats().writes_refused is None


def _read_all(engine: qindex.Engine) -> list[tuple[int, bytes, bool]]:
    return [(one.seq_id, one.body, one.redelivered) for one in engine.queue("q").peek(1000)]


# -- transient ------------------------------------------------------------------------------------


def test_transient_messages_end_with_the_run(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with stored(store) as engine:
        queue = engine.queue("q")
        queue.publish(big(0), persistent=False)
        queue.publish(big(1))
        engine.publish_to(["q", "other"], big(2), persistent=False)
        assert ready(engine) == [big(0), big(1), big(2)]
        assert [row.body for row in rows_of(store)] == [big(0), big(1), big(2)]
        assert [row.persistent for row in rows_of(store)] == [False, True, False]
        assert assert_counts(engine) == 3
        with queue.get(0) or pytest.fail("empty") as delivery:
            assert delivery.body == big(0)
        assert assert_counts(engine) == 2
        unflushed = copy_live(store, tmp_path / "unflushed")
        engine.flush()
        crashed = copy_live(store, tmp_path / "crashed")
    for directory in (store, crashed, unflushed):
        with stored(directory) as engine:
            assert ready(engine) == [big(1)]
            assert ready(engine, "other") == []
            assert assert_counts(engine) == 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("record_format", ["qindex", "rabbitmq"])
def test_batches_of_all_kinds_come_whole_and_in_order(
    tmp_path: Path, seed: int, record_format: str
) -> None:
    """Messages of the message store are read many together; others stand between them."""
    chance = random.Random(seed)
    kinds: list[dict[str, Any]] = [{}, {}, {}, {"key": "k", "headers": {"h": 1}}, {"ttl": 600.0}]
    if seed % 2:
        kinds.append({"persistent": False})
    with stored(tmp_path, record_format=record_format) as engine:
        queue = engine.queue("q")
        bodies: list[bytes] = []
        for number in range(300):
            bodies.append(big(number) if chance.random() < 0.9 else b"%d small" % number)
            queue.publish(bodies[-1], **chance.choice(kinds))
        taken: list[bytes] = []
        while batch := queue.get_many(chance.choice([1, 2, 3, 70, 200])):
            assert [one.body for one in batch] == batch.bodies
            back = chance.choice([0, 0, 1, len(batch) - 1])
            for delivery in list(batch)[len(batch) - back :]:
                delivery.nack()
            taken += batch.bodies[: len(batch) - back]
            queue.ack_many(list(batch)[: len(batch) - back])
        assert taken == bodies
        assert assert_counts(engine) == 0
        assert len(store_of(engine)) == 0
        if seed % 2:
            assert assert_counts(engine) == 0


# -- damage met while it is open ------------------------------------------------------------------


def test_a_damaged_message_is_named_set_aside_and_passed(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        for number in range(4):
            engine.publish_to(["q", "other"], big(number))
        path = rdq_files(tmp_path)[0]
        data = bytearray(path.read_bytes())
        at = data.index(big(1)) + 300
        data[at] ^= 1
        path.write_bytes(data)
        offset = data.index(b"\0\0\0\0\0\0", len(big(0)))
        for name in ("q", "other"):
            queue = engine.queue(name)
            assert [one.body for one in queue.peek(9)] == [big(n) for n in (0, 2, 3)]
            first = queue.get_many(9)
            assert [one.body for one in first] == [big(0)]
            with pytest.raises(DamageError, match="seq_id 1 is damaged") as caught:
                queue.get(0)
            assert (caught.value.path, caught.value.offset) == (str(path), offset)
            assert engine.findings[-1].kind is Kind.CHECKSUM
            rest = queue.get_many(9)
            assert [one.body for one in rest] == [big(2), big(3)]
            queue.ack_many([*first, *rest])
        assert assert_counts(engine) == 0
        (aside,) = (tmp_path / PERSISTENT / "quarantine").iterdir()
        assert aside.name == f"0.rdq.{offset}"
        assert aside.read_bytes() == data[offset : offset + len(aside.read_bytes())]
        assert len(aside.read_bytes()) > len(big(1))
        engine.compact()
        assert rdq_files(tmp_path) == []


def test_a_message_that_is_gone_while_it_is_open_stops_nothing_else(tmp_path: Path) -> None:
    with stored(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([big(n) for n in range(3)])
        (msg_id,) = (row.msg_id for row in rows_of(tmp_path) if row.seq_id == 1)
        store_of(engine).remove([msg_id])  # as a count that is wrong would
        assert queue.get(0) is not None
        with pytest.raises(DamageError, match=f"no message {msg_id.hex()}"):
            queue.get(0)
        assert engine.findings[-1].kind is Kind.ENTRY_WITHOUT_MESSAGE
        last = queue.get(0)
        assert last is not None
        assert last.body == big(2)


# -- many threads ---------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_threads_and_compaction_deliver_every_message_once(tmp_path: Path) -> None:
    each, publishers = 300, 3
    names = ["a", "b"]
    found: dict[str, list[bytes]] = {name: [] for name in names}
    failures: list[BaseException] = []
    with stored(
        tmp_path, background=True, store_file_bytes=16_384, segment_entry_count=64
    ) as engine:
        wanted = [big(10_000 * t + n) for t in range(publishers) for n in range(each)]

        def publish(thread: int) -> None:
            for number in range(each):
                body = big(10_000 * thread + number)
                if number % 3:
                    engine.publish_to(names, body)
                else:
                    for name in names:
                        engine.queue(name).publish(body, key="k")

        def consume(name: str) -> None:
            queue = engine.queue(name)
            for at, delivery in enumerate(queue.consume(prefetch=50, timeout=3)):
                if at % 11 == 0 and not delivery.redelivered:
                    delivery.nack()
                    continue
                found[name].append(delivery.body)
                delivery.ack()
                if len(found[name]) == len(wanted):
                    return

        def guarded(call: Callable[..., None], *arguments: object) -> None:
            try:
                call(*arguments)
            except BaseException as error:
                failures.append(error)

        work: list[tuple[Callable[..., None], object]] = [
            *((publish, thread) for thread in range(publishers)),
            *((consume, name) for name in names),
        ]
        threads = [
            threading.Thread(target=guarded, args=(call, argument)) for call, argument in work
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert failures == []
        for name in names:
            assert sorted(found[name]) == sorted(wanted)
        assert assert_counts(engine) == 0
        engine.compact()
        assert rdq_files(tmp_path) == []
