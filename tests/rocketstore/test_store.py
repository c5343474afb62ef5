"""What the store promises besides bytes: limits, errors, locks, threads, housekeeping."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.errors import (
    ClosedError,
    DamageError,
    ForkedError,
    LockedError,
    NotAStoreError,
    UsageError,
)
from journal.fs.files import FileSystem
from rocketstore import GetStatus, Retention
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.index.index_file import IndexFile
from rocketstore.log import mapped_files
from rocketstore.queues.offsets import parse_fastjson
from rocketstore.verify import verify
from tests.golden import rocket_copy, rocket_golden
from tests.rocketstore.support import (
    ANY_DISK,
    SIZES,
    TINY,
    Clock,
    open_tiny,
    pairs,
    read_lines,
)
from tests.waiting import WAIT

BAD_PUTS: list[tuple[str, dict[str, Any]]] = [
    ("limit is 127", {"topic": "t" * 128}),
    ("limit is 127", {"topic": "标" * 43}),
    ("empty", {"topic": ""}),
    ("directory name", {"topic": "a/b"}),
    ("limit is 32767", {"keys": "k" * 32768}),
    ("limit is 32767", {"properties": {"p": "标" * 11000}}),
    ("limit is 32767", {"properties": b"p\x01" + b"x" * 32768}),
    ("0x02", {"keys": "a\x02b"}),
    ("0x02", {"properties": {"p": "a\x02b"}}),
    ("0x01", {"properties": {"p\x01q": "a"}}),
    ("NUL", {"properties": b"p\x01a\0"}),
    ("limit is 4000", {"body": b"x" * 4000}),
    ("space", {"keys": ["a b", "c"]}),
    ("1 to 18", {"delay": 19}),
    ("1 to 18", {"properties": {"DELAY": "soon"}}),
    ("negative", {"queue_id": -1}),
    ("does not fit", {"queue_id": 1 << 31}),
    ("does not fit", {"flag": 1 << 31}),
    ("bytes are right", {"body": "text"}),
    ("address", {"born_host": "nowhere:1"}),
    ("address:port", {"born_host": "127.0.0.1"}),
]


@pytest.mark.parametrize(("says", "wrong"), BAD_PUTS)
def test_bad_put_names_the_limit_and_changes_nothing(
    says: str, wrong: dict[str, Any], tmp_path: Path
) -> None:
    with open_tiny(tmp_path / "s", max_message_size=4000) as store:
        store.put("T", b"before", keys="k")
        end = store.max_offset
        with pytest.raises(UsageError, match=says):
            store.put(**{"topic": "T", "body": b"", **wrong})
        assert store.max_offset == end
        assert store.put("T", b"after").queue_offset == 1


def test_bad_batches_change_nothing(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s", max_message_size=2000) as store:
        calls: list[tuple[str, Any]] = [
            ("message 1: record of", lambda: store.put_many("T", [b"", b"x" * 2000])),
            ("2 values for 1", lambda: store.put_many("T", [b""], keys=["a", "b"])),
            ("bytes are right", lambda: store.put_many("T", [b"", "x"])),  # type: ignore[list-item]
            ("not a text", lambda: store.put_many("T", [b""], keys=[1])),  # type: ignore[list-item]
            ("0x02", lambda: store.put_many("T", [b"", b""], keys=["a", "b\x02"])),
            ("DELAY", lambda: store.put_many("T", [b""], properties={"DELAY": "1"})),
            ("queue id", lambda: store.put_many("T", [b""], queue_id=-1)),
            ("queue id", lambda: store.put_many("T", [b""], queue_id=1 << 31)),
            ("32 bits", lambda: store.put_many("T", [b""], flag=1 << 31)),
            ("32 bits", lambda: store.put_batch("T", [(1 << 31, b"", {})])),
            ("does not fit", lambda: store.put_many("T", [b""], born_timestamp=1 << 63)),
            ("batch of", lambda: store.put_batch("T", [(0, b"x" * 900, {})] * 3)),
            ("transaction", lambda: store.put_batch("T", [(0, b"", {})], sys_flag=4)),
        ]
        for says, call in calls:
            with pytest.raises(UsageError, match=says):
                call()
        assert store.max_offset == 0
        assert len(store.put_many("T", [])) == 0
        assert [put.queue_offset for put in store.put_many("T", [b"", b"a"], keys=["", "k"])] == [
            0,
            1,
        ]
        assert [hit.queue_offset for hit in store.query("T", "k")] == [1]


def test_record_larger_than_a_file(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        with pytest.raises(UsageError, match="holds 4096"):
            store.put("T", b"x" * 4096)
        with pytest.raises(UsageError, match="holds 4088"):
            store.put_many("T", [b"x" * 4096])
        room = 4096 - 8 - 92
        assert store.put("T", b"x" * room).size == 4088
        with pytest.raises(UsageError):
            store.put("T", b"x" * (room + 1))


def test_bad_questions(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        store.put("T", b"x", keys="k")
        assert store.get("unknown", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert store.get("T", 0, -5).status is GetStatus.OFFSET_TOO_SMALL
        assert store.get("T", 0, 5).next_offset == 0
        assert store.lookup(1) is None
        assert store.lookup(10**12) is None
        assert store.query("T", "k", 0) == []
        assert store.query("T", "k", begin=5, end=4) == []
        for call in (
            lambda: store.lookup(-1),
            lambda: store.lookup("xyz"),
            lambda: store.lookup("Z" * 32),
            lambda: store.query("T", ""),
            lambda: store.query("T", "k", -1),
            lambda: store.query("T", "k", begin=1 << 70),
            lambda: store.commit_offset("g", "T", 0, -1),
            lambda: store.commit_offset("g@", "T", 0, 1),
        ):
            with pytest.raises(UsageError):
                call()
        put = store.put("T", b"y")
        found = store.lookup(put.message_id)
        assert found is not None
        assert found.body == b"y"


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "maybe"},
        {"recovery": "hope"},
        {"commitlog_file_size": 1},
        {"index_slots": 0},
        {"flush_interval": 0},
        {"colour": "red"},
    ],
)
def test_bad_options(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        rocketstore.open(tmp_path / "s", **options)


def test_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("x")
    for name in ("file", "other"):
        with pytest.raises(NotAStoreError):
            rocketstore.open(tmp_path / name)
    for name in ("missing", "other"):
        with pytest.raises(NotAStoreError):
            rocketstore.open(tmp_path / name, read_only=True)
    assert sorted(os.listdir(tmp_path / "other")) == ["letter.txt"]


def test_one_writer_and_any_readers(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        store.put("T", b"x", keys="k")
        store.checkpoint()
        with pytest.raises(LockedError) as error:
            open_tiny(tmp_path / "s")
        assert error.value.pid == os.getpid()
        with open_tiny(tmp_path / "s", read_only=True) as reader:
            assert [message.body for message in reader.messages("T", 0)] == [b"x"]
            assert len(reader.query("T", "k")) == 1
            with pytest.raises(UsageError, match="reading only"):
                reader.put("T", b"y")
        assert (tmp_path / "s" / "lock").read_bytes() == b"lock"
    open_tiny(tmp_path / "s").close()


def test_closed_and_forked(tmp_path: Path) -> None:
    store = open_tiny(tmp_path / "s")
    store.put("T", b"x")
    pid = os.fork()
    if pid == 0:
        try:
            store.put("T", b"child")
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    store.close()
    store.close()
    for call in (lambda: store.put("T", b""), lambda: store.get("T", 0, 0), store.sync):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_threads(durability: str, tmp_path: Path) -> None:
    """Writers and readers at once: every queue is gapless, every reader sees what was put."""
    options: dict[str, Any] = {"background": True, "flush_interval": 0.01}
    store = open_tiny(tmp_path / "s", durability=durability, **options)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for at in range(150):
                body = b"%d-%d" % (number, at)
                put = store.put("T", body, queue_id=number % 3, keys=f"w{number}-{at}")
                found = store.at("T", put.queue_id, put.queue_offset)
                assert found is not None
                assert found.body == body
                assert [hit.offset for hit in store.query("T", f"w{number}-{at}")] == [put.offset]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    if durability == "fsync":
        assert store._log_sync.rounds < 900
    store.close()
    with open_tiny(tmp_path / "s") as store:
        assert [bounds[1] for bounds in store.queues().values()] == [300, 300, 300]
        assert store.findings == []


def test_consumer_offsets_of_the_real_broker() -> None:
    expected = {
        "Empty@g": {},
        "TopicA@group-1": {"0": 0, "1": 250, "2": 500, "3": 750},
        "%RETRY%group-1@group-1": {"0": 0, "1": 250, "2": 500, "3": 750},
        "TopicB@g_2": {"0": 0, "1": 250, "2": 500, "3": 750},
    }
    directory = rocket_golden("json")
    for name in ("consumerOffset.json", "consumerOffset.compact.json"):
        assert parse_fastjson((directory / name).read_text())["offsetTable"] == expected
    assert parse_fastjson((directory / "consumerOffset.empty.json").read_text()) == {
        "offsetTable": {}
    }
    # A text that looks like a bare key stays as it is.
    assert parse_fastjson('{"a":"{1:2,3:4}",5:"x,6:"}') == {"a": "{1:2,3:4}", "5": "x,6:"}


def test_consumer_offsets(tmp_path: Path) -> None:
    golden = rocket_golden("json") / "consumerOffset.json"
    config = tmp_path / "s" / "config"
    with open_tiny(tmp_path / "s") as store:
        store.put("T", b"x")
    (config / "consumerOffset.json").write_bytes(golden.read_bytes())
    with open_tiny(tmp_path / "s") as store:
        assert store.fetch_offset("group-1", "TopicA", 2) == 500
        assert store.fetch_offset("nobody", "TopicA", 2) == -1
        store.commit_offset("group-1", "TopicA", 2, 501)
        store.commit_offset("mine", "TopicA", 0, 7, broadcast=True)
    content = json.loads((config / "consumerOffset.json").read_text())
    assert content["offsetTable"]["TopicA@group-1"]["2"] == 501
    assert (config / "consumerOffset.json.bak").read_bytes() == golden.read_bytes()
    with open_tiny(tmp_path / "s") as store:
        assert store.fetch_offset("mine", "TopicA", 0, broadcast=True) == 7
        assert store.fetch_offset("mine", "TopicA", 0) == -1
    (config / "consumerOffset.json").write_bytes(b"{half")
    with open_tiny(tmp_path / "s") as store:
        assert store.fetch_offset("group-1", "TopicA", 2) == 500


def test_delayed_messages(tmp_path: Path) -> None:
    clock = Clock(1_000_000)
    with open_tiny(tmp_path / "s", clock=clock) as store:
        store.put("T", b"one", queue_id=3, delay=1, tags="x", keys="k")
        store.put("T", b"five", queue_id=3, properties={"DELAY": "2"})
        store.put("T", b"most", queue_id=3, properties={"DELAY": "99"})
        store.put("T", b"never", queue_id=3, properties={"DELAY": "1"}, sys_flag=4)
        assert ("T", 3) not in store.queues()
        assert store.deliver_due(1_000_999) == 0
        assert store.deliver_due(1_001_000) == 1
        assert store.deliver_due(1_001_000) == 0
        first = store.at("T", 3, 0)
        assert first is not None
        assert (first.body, first.tags, first.keys) == (b"one", "x", ["k"])
        assert len(store.query("T", "k")) == 1
        waiting = store.at("SCHEDULE_TOPIC_XXXX", 17, 0)
        assert waiting is not None
        assert pairs(waiting.properties_bytes) == {
            "DELAY": "18",
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
        }
    with open_tiny(tmp_path / "s", clock=clock) as store:
        assert store.deliver_due(1_005_000) == 1
        assert store.deliver_due(10**10) == 1
        assert [message.body for message in store.messages("T", 3)] == [b"one", b"five", b"most"]


def test_the_first_delayed_message_of_a_level_is_delivered_at_once(tmp_path: Path) -> None:
    """Nobody has read since the put, so the queue of its level is not made yet."""
    with open_tiny(tmp_path / "s", clock=Clock(1_000_000)) as store:
        store.put("T", b"one", delay=1)
        assert store.deliver_due(1_001_500) == 1
        assert [message.body for message in store.messages("T", 0)] == [b"one"]


def test_delayed_messages_of_the_real_store(tmp_path: Path) -> None:
    """Two levels had been delivered up to offset 1; what follows is delivered from there."""
    root = rocket_copy("delay", tmp_path) / "store"
    with rocketstore.open(root, background=False) as store:
        before = {key: bounds[1] for key, bounds in store.queues().items()}
        waiting = sum(
            before[key] - (1 if key[1] in (0, 1) else 0)
            for key in before
            if key[0] == "SCHEDULE_TOPIC_XXXX"
        )
        assert store.deliver_due(1 << 50) == waiting
    content = parse_fastjson((root / "config" / "delayOffset.json").read_text())
    assert content == {"offsetTable": {"1": 5, "2": 2, "18": 1}}


def test_background_delivers_and_checkpoints(tmp_path: Path) -> None:
    delivered = threading.Event()
    options: dict[str, Any] = {
        "background": True,
        "flush_interval": 0.02,
        "checkpoint_interval": 0.05,
    }
    with open_tiny(tmp_path / "s", **options) as store:
        store.put("T", b"x", delay=1)
        for _ in range(500):
            if ("T", 0) in store.queues():
                break
            delivered.wait(0.02)
        assert ("T", 0) in store.queues()
        derived = tmp_path / "s" / "config" / "rocketstore.json"
        for _ in range(500):
            if b'offset\\":%d' % store.max_offset in derived.read_bytes():
                break
            delivered.wait(0.02)
        assert b'offset\\":%d' % store.max_offset in derived.read_bytes()


def test_checkpoint_and_abort(tmp_path: Path) -> None:
    root = tmp_path / "s"
    clock = Clock(1_700_000_000_000)
    with open_tiny(root, clock=clock) as store:
        store.put("T", b"x", keys="k")
        assert (root / "abort").read_bytes() == b""
    assert not (root / "abort").exists()
    data = (root / "checkpoint").read_bytes()
    assert len(data) == 4096
    now = 1_700_000_000_000
    assert Checkpoint.parse(data) == Checkpoint(now, now, now)
    assert Checkpoint.parse(data).safe_time(with_index=True) == now - 3000


def test_expired_files_as_the_real_store_deletes_them(tmp_path: Path) -> None:
    """The golden "gen" store, its first four log files expired, is the golden "expire" store."""
    root = rocket_copy("gen", tmp_path) / "store"
    real = rocket_copy("expire", tmp_path) / "after"
    for number, path in enumerate(sorted((root / "commitlog").iterdir())):
        age = 100 if number < 4 else 200 * 3600
        os.utime(path, (10**9 + age, 10**9 + age))
    with rocketstore.open(root, background=False, retention=ANY_DISK) as store:
        assert store.clean(now=10**9 + 100 + 72 * 3600) == 4
        assert store.clean(now=10**9 + 100 + 72 * 3600) == 0
        assert store.min_offset == 1_048_576
    for directory in ("commitlog", "consumequeue", "index"):
        ours = {
            str(path.relative_to(root)): path.read_bytes()
            for path in (root / directory).rglob("*")
            if path.is_file()
        }
        theirs = {
            str(path.relative_to(real)): path.read_bytes()
            for path in (real / directory).rglob("*")
            if path.is_file()
        }
        assert ours == theirs


def test_retention_rules() -> None:
    rules = Retention(hours=1, delete_when=(), disk_ratio=0.5, force_ratio=0.6, full_ratio=0.7)
    assert not rules.is_due(0, 0.4, manual=False)
    assert rules.is_due(0, 0.4, manual=True)
    assert rules.is_due(0, 0.55, manual=False)
    assert rules.is_expired(3600, 0, 0.4)
    assert not rules.is_expired(3599, 0, 0.4)
    assert rules.is_expired(0, 0, 0.65)
    for wrong in ({"hours": -1}, {"delete_when": (24,)}, {"disk_ratio": 0.9, "force_ratio": 0.8}):
        with pytest.raises(UsageError):
            Retention(**wrong)


def test_last_file_is_never_deleted(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        for _ in range(10):
            store.put("T", b"x" * 1000, keys="k")
        while store.clean(now=1e11):
            continue
        assert store.max_offset - store.min_offset < 4096
        assert store.get("T", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
        assert len(store.query("T", "k")) == store.queues()["T", 0][1] - store.queues()["T", 0][0]


def test_wrong_length_files_are_named_and_set_aside(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with open_tiny(root) as store:
        for number in range(40):
            store.put("T", b"x" * 200, keys=f"k{number}")
    long = sorted((root / "consumequeue" / "T" / "0").iterdir())[1]
    long.write_bytes(long.read_bytes() + b"!")
    (root / "commitlog" / "notes.txt").write_text("hello")
    with pytest.raises(DamageError, match=r"notes\.txt|is 201 bytes long, not 200"):
        open_tiny(root)
    with open_tiny(root, repair=True) as store:
        assert len(store.findings) >= 2
        assert [message.queue_offset for message in store.messages("T", 0)] == list(range(40))
    aside = sorted(path.name for path in (root / "quarantine").iterdir())
    assert aside == ["commitlog~notes.txt", f"consumequeue~T~0~{long.name}"]
    with open_tiny(root) as store:
        assert store.findings == []


def test_a_clock_that_was_ahead_is_followed_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in 4.9.3: store times are the clock's, and no message is due later than its level says."""
    clock = Clock(1_700_000_000_000)
    store = open_tiny(tmp_path / "s", clock=clock)
    store.put("T", b"0", keys="k")
    clock.now += 75 * 365 * 86_400_000
    store.put("T", b"late", delay=2, keys="k")
    store.put_many("T", [b"1", b"1"], keys="k")
    clock.now = 1_700_000_100_000
    assert store.put("T", b"2", keys="k k2").store_timestamp == clock.now
    assert "the clock went back by 2365199900.000 s" in caplog.text
    assert store.deliver_due() == 1
    store.put_many("T", [b"3"], keys="k")
    store.close()
    clock.now += 1000
    with open_tiny(tmp_path / "s", clock=clock) as store:
        assert store.put("T", b"4", keys="k").store_timestamp == clock.now
        assert store.findings == []
        day = 1_700_000_050_000, 1_700_000_200_000
        for _ in range(2):
            found = store.query("T", "k", 32, *day)
            assert [one.body for one in found] == [b"2", b"late", b"3", b"4"]
            assert [one.body for one in store.query("T", "k2", 32, *day)] == [b"2"]
            later = store.query("T", "k", 32, day[1])
            assert [one.body for one in later] == [b"1", b"1"]
            store.rebuild_index()
        assert [one.body for one in store.query("T", "k", 1, 0, day[0])] == [b"0"]
        assert store.offset_by_time("T", 0, clock.now - 500) == 6
    assert verify(tmp_path / "s") == []


def test_exact_query_drops_twins_and_duplicates(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        store.put("T", b"1", keys="Aa")
        store.put("T", b"2", keys="BB")
        store.put("T", b"3", keys="Aa Aa", unique_key="Aa")
        assert [hit.body for hit in store.query("T", "Aa")] == [b"1", b"3"]
        assert [hit.body for hit in store.query("T", "Aa", 1)] == [b"3"]
        raw = store.query("T", "Aa", exact=False)
        assert [hit.body for hit in raw] == [b"1", b"2", b"3", b"3", b"3"]


@pytest.mark.interpreted  # a method of IndexFile is replaced
def test_a_time_range_skips_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    real = IndexFile.candidates

    def counting(file: IndexFile, key_hash: int, begin: int, end: int) -> list[int]:
        looked_at.append(file.name)
        return real(file, key_hash, begin, end)

    clock = Clock(1_700_000_000_000, step=10_000)
    with open_tiny(tmp_path / "s", clock=clock) as store:
        puts = [store.put("T", b"", keys="k") for _ in range(200)]
        assert len(store.query("T", "k", 1000)) == 200
        monkeypatch.setattr(IndexFile, "candidates", counting)
        moment = puts[100].store_timestamp
        found = store.query("T", "k", 1000, moment - 20_000, moment)
        assert [message.queue_offset for message in found] == [98, 99, 100]
        assert len(store._parts.index.files) > 15
        assert len(looked_at) <= 2


def test_reading_goes_on_while_files_roll_and_go(tmp_path: Path) -> None:
    options: dict[str, Any] = {"background": True, "flush_interval": 0.002}
    with open_tiny(tmp_path / "s", **options) as store:
        failures: list[BaseException] = []
        done = threading.Event()

        def read() -> None:
            try:
                while not done.is_set():
                    for message in store.messages("T", 0):
                        assert message.body == b"%d" % message.queue_offset * 50
                        break
                    for message in store.query("T", "k", 5):
                        assert message.body == b"%d" % message.queue_offset * 50
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(600):
            store.put("T", b"%d" % number * 50, keys="k")
            if number % 100 == 99:
                store.clean(now=4e9)
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.min_offset > 0


def test_sizes_are_found_from_the_golden_files() -> None:
    with rocketstore.open(rocket_golden("gen") / "store", read_only=True) as store:
        assert store._parts.commitlog.file_size == SIZES["commitlog_file_size"]
        assert store._parts.consumequeue_file_size == SIZES["consumequeue_file_size"]
        assert (store._parts.index.slots, store._parts.index.entries) == (100, 300)
        assert len(read_lines(rocket_golden("gen"), "queues")) >= len(store.queues())


def test_checkpoints_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them has taken note of as synced, another one must not vouch for before."""
    with open_tiny(tmp_path / "s") as store:
        inside: list[int] = []
        real = mapped_files.sync_files

        def sync_files(fs: FileSystem, paths: list[str]) -> None:
            inside.append(1)
            assert len(inside) == 1
            real(fs, paths)
            time.sleep(0.001)
            inside.pop()

        monkeypatch.setattr("rocketstore.checkpointer.sync_files", sync_files)

        def work() -> None:
            for number in range(20):
                store.put("T", b"", keys=f"k{number}")
                store.checkpoint()

        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(work) for _ in range(3)]:
                future.result(WAIT)
    assert not verify(tmp_path / "s", **TINY)


def test_a_close_while_others_sync(tmp_path: Path) -> None:
    for number in range(20):
        store = open_tiny(tmp_path / f"{number}")

        def work(store: rocketstore.Store = store) -> None:
            with contextlib.suppress(ClosedError):
                while True:
                    store.put("T", b"")
                    store.sync()
                    store.checkpoint()

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(work) for _ in range(2)]
            time.sleep(0.005)
            store.close()
            for future in futures:
                future.result(WAIT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 0, "x", True], ids=repr)
def test_options_that_are_no_numbers(tmp_path: Path, value: Any) -> None:
    for name in (
        "commitlog_file_size",
        "consumequeue_file_size",
        "index_entries",
        "max_message_size",
        "flush_interval",
        "checkpoint_interval",
    ):
        with pytest.raises(UsageError, match=name):
            rocketstore.open(tmp_path / "store", **{name: value})
    if value != 0:
        with pytest.raises(UsageError, match="retention: hours"):
            rocketstore.Retention(hours=value)


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    bad = "\udcff"
    with rocketstore.open(tmp_path) as store:
        for call in (
            lambda: store.put(bad, b"x"),
            lambda: store.put("t", b"x", keys=bad),
            lambda: store.put("t", b"x", tags=bad),
            lambda: store.put("t", b"x", unique_key=bad),
            lambda: store.put("t", b"x", properties={"a": bad}),
            lambda: store.put_many(bad, [b"x"]),
            lambda: store.put_many("t", [b"x"], keys=[bad]),
            lambda: store.put_batch(bad, [(0, b"x", {})]),
            lambda: store.commit_offset(bad, "t", 0, 0),
            lambda: store.commit_offset("g", bad, 0, 0),
        ):
            with pytest.raises(UsageError):
                call()
        store.put("t", b"x")
    with rocketstore.open(tmp_path) as store:
        assert [one.body for one in store.get("t", 0, 0).messages] == [b"x"]
