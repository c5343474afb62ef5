"""Wrong use gets a typed, clear error and changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import inspect
import math
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import msgstore
import qindex
import qindex.aio
import qindex.compat
import rocketstore
from journal.fs.files import RealFileSystem
from qindex.engine.opening import open_store
from qindex.queue import producing
from qindex.transfer import export_messages, import_messages
from rocketstore.verify import verify as rocketstore_verify
from tests.cli.support import run
from tests.faulty_fs import FaultyFileSystem
from tests.qindex.support import drain, open_quietly, queue_directory

BAD_BODIES: list[Any] = ["text", 5, None, [b"x"]]


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: type(body).__name__)
def test_a_body_that_is_not_bytes(tmp_path: Path, body: Any) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"good")
        before = files(tmp_path)
        for wrong in (
            lambda: queue.publish(body),
            lambda: queue.publish(body, key="k"),
            lambda: queue.publish_many([b"good", body]),
            lambda: queue.publish_many([body], ttl=5),
        ):
            with pytest.raises(qindex.UsageError, match="body must be bytes"):
                wrong()
        assert files(tmp_path) == before
        assert queue.publish(b"next") == 1
        assert len(queue) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"key": 5},
        {"key": b"bytes"},
        {"key": "\ud800"},
        {"headers": 5},
        {"headers": {5: "x"}},
        {"headers": {"x": {1, 2}}},
        {"headers": {"x": 1 << 64}},
        {"headers": {"x": {(1, 2): 3}}},
        {"headers": {"x": "\udfff"}},
        {"properties": [("x", 1)]},
        {"properties": {"x": Ellipsis}},
        {"ttl": -1},
        {"ttl": "5"},
        {"ttl": float("nan")},
        {"ttl": float("inf")},
        {"ttl": 1e11},
    ],
    ids=repr,
)
@pytest.mark.parametrize("queue_ttl", [None, 100.0])
def test_what_can_not_be_published(
    tmp_path: Path, arguments: dict[str, Any], queue_ttl: float | None
) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", message_ttl=queue_ttl)
        queue.publish(b"good")
        before = files(tmp_path)
        with pytest.raises(qindex.UsageError):
            queue.publish(b"x", **arguments)
        assert files(tmp_path) == before
        assert queue.publish(b"next") == 1
        assert [body for _, body, _ in drain(queue)] == [b"good", b"next"]


@pytest.mark.parametrize("limit", [10, 100, 254, 300, 100_000])
def test_a_body_above_the_limit(tmp_path: Path, limit: int) -> None:
    with open_quietly(tmp_path, max_message_bytes=limit) as engine:
        queue = engine.queue("q")
        queue.publish(bytes(limit))
        for wrong in (
            lambda: queue.publish(bytes(limit + 1)),
            lambda: queue.publish(bytes(limit + 1), key="k"),
            lambda: queue.publish_many([b"", bytes(limit + 1)]),
        ):
            with pytest.raises(qindex.UsageError, match="max_message_bytes"):
                wrong()
        assert (len(queue), queue.publish(b"")) == (1, 1)


BAD_NAMES: list[Any] = ["", "\0", "a\0b", "x" * 256, "é" * 128, "\ud800", b"bytes", 5, None]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_names_that_are_refused(tmp_path: Path, name: Any) -> None:
    with open_quietly(tmp_path) as engine:
        for call in (engine.queue, engine.delete_queue):
            with pytest.raises(qindex.UsageError, match="queue's name"):
                call(name)
        assert list((tmp_path / "queues").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["x" * 255, "é" * 127, "new\nline", "\nQUEUE: x", "../up", "a/b", " ", "q.deleted"],
)
def test_names_that_are_taken(tmp_path: Path, name: str) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue(name).publish(name.encode())
        engine.queue("other")
    with open_quietly(tmp_path) as engine:
        assert engine.queue_names() == sorted([name, "other"])
        assert [body for _, body, _ in drain(engine.queue(name))] == [name.encode()]
        engine.delete_queue(name)
        assert engine.queue_names() == ["other"]
    assert len(list((tmp_path / "queues").iterdir())) == 1
    assert {path.name for path in tmp_path.parent.iterdir()} >= {tmp_path.name}


def test_acknowledging_twice(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"0", b"1", b"2"])
        first, second = queue.get(0), queue.get(0)
        assert first is not None
        assert second is not None
        first.ack()
        dirty = queue.stats().journal_entries
        for wrong in (
            first.ack,
            first.nack,
            lambda: queue.ack(first),
            lambda: queue.nack(first),
            lambda: queue.ack_many([second, first]),
            lambda: queue.ack_many([second, second]),
            lambda: queue.ack_many(iter([first])),
        ):
            with pytest.raises(qindex.UsageError, match=r"settled already|twice"):
                wrong()
        assert queue.stats().journal_entries == dirty
        assert queue.stats().unacked == 1
        second.ack()
        assert len(queue) == 1


def test_acknowledging_after_the_segment_is_gone(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"x"] * 9)
        batch = queue.get_many(8)
        first = batch[0]
        queue.ack_many(batch)
        queue.flush()
        for wrong in (first.ack, lambda: queue.ack(batch[3]), lambda: queue.ack_many(batch)):
            with pytest.raises(qindex.UsageError, match="settled already"):
                wrong()
        assert len(queue) == 1


def test_a_stale_delivery_after_requeue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        stale = queue.get(0)
        assert stale is not None
        stale.nack()
        fresh = queue.get(0)
        assert fresh is not None
        for wrong in (stale.ack, stale.nack, lambda: queue.ack(stale)):
            with pytest.raises(qindex.UsageError, match="settled already"):
                wrong()
        fresh.ack()
        assert (len(queue), queue.stats().unacked) == (0, 0)


def test_a_delivery_of_another_queue(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        mine, other = engine.queue("mine"), engine.queue("other")
        for queue in (mine, other):
            queue.publish_many([b"0", b"1"])
        foreign, own = other.get(0), mine.get(0)
        assert foreign is not None
        assert own is not None
        calls: list[Callable[[], object]] = [
            lambda: mine.ack(foreign),
            lambda: mine.nack(foreign),
            lambda: mine.ack_many([own, foreign]),
            lambda: mine.ack_many(other.get_many(1)),
        ]
        for wrong in calls:
            with pytest.raises(qindex.UsageError, match="belongs to queue 'other'"):
                wrong()
        assert mine.stats().unacked == 1
        foreign.ack()
        own.ack()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda queue: queue.get_many(0),
        lambda queue: queue.get_many(1.5),
        lambda queue: queue.peek(-1),
        lambda queue: next(queue.consume(prefetch=0)),
        lambda queue: queue.ack_up_to("5"),
        lambda queue: queue.ack_up_to(True),
    ],
)
def test_numbers_that_make_no_sense(
    tmp_path: Path, wrong: Callable[[qindex.Queue], object]
) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        with pytest.raises(qindex.UsageError):
            wrong(queue)
        assert (len(queue), queue.stats().unacked) == (1, 0)


BAD_OPTIONS: list[dict[str, Any]] = [
    {"durability": "sometimes"},
    {"record_format": "xml"},
    {"max_journal_entries": 0},
    {"max_journal_entries": "many"},
    {"flush_idle": 0},
    {"flush_idle": float("nan")},
    {"memory_budget": 1},
    {"max_open_files": 63},
    {"embed_below": -1},
    {"max_message_bytes": 1 << 32},
    {"segment_entry_count": 0},
    {"segment_entry_count": 16_385},
    {"segment_entry_count": 2.5},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=repr)
def test_options_that_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(qindex.UsageError, match=next(iter(options))):
        qindex.open(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("ttl", [-1, "5", float("nan"), 1e11])
def test_a_ttl_that_makes_no_sense_for_a_queue(tmp_path: Path, ttl: Any) -> None:
    with open_quietly(tmp_path) as engine:
        with pytest.raises(qindex.UsageError, match="message_ttl"):
            engine.queue("q", message_ttl=ttl)
        assert engine.queue_names() == []


def test_after_close_everything_says_so(tmp_path: Path) -> None:
    engine = open_quietly(tmp_path)
    queue = engine.queue("q")
    queue.publish_many([b"0", b"1"])
    batch = queue.get_many(1)
    delivery = queue.get(0)
    assert delivery is not None
    engine.close()
    engine.close()
    for call in (
        lambda: queue.publish(b"x"),
        lambda: queue.publish(b"x", key="k"),
        lambda: queue.publish_many([b"x"]),
        lambda: queue.publish_many([]),
        lambda: queue.get(0),
        lambda: queue.get_many(5),
        lambda: next(queue.consume()),
        lambda: queue.ack_many(batch),
        lambda: queue.ack_up_to(5),
        delivery.ack,
        delivery.nack,
        queue.peek,
        queue.purge,
        queue.stats,
        queue.sync,
        queue.flush,
        lambda: engine.queue("q"),
        lambda: engine.delete_queue("q"),
        engine.stats,
        engine.sync,
        engine.flush,
        engine.queue_names,
    ):
        with pytest.raises(qindex.ClosedError, match="closed"):
            call()
    with open_quietly(tmp_path) as again:
        assert len(again.queue("q")) == 2


def test_after_the_queue_was_deleted(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        engine.delete_queue("q")
        for call in (lambda: queue.publish(b"x"), lambda: queue.get(0), queue.flush, queue.sync):
            with pytest.raises(qindex.ClosedError, match="was deleted"):
                call()
        with pytest.raises(qindex.UsageError, match="there is no queue 'q'"):
            engine.delete_queue("q")
        assert not queue_directory(tmp_path, "q").exists()
        assert engine.queue("q").publish(b"new") == 0


def test_opening_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises((qindex.NotAStoreError, qindex.StorageError), match="file"):
            qindex.open(path)
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["readme.txt"], "neither"),
        (["queues/"], "RabbitMQ directory"),
        ([".vhost"], "RabbitMQ directory"),
        (["msg_stores/"], "RabbitMQ node"),
        (["mnesia/"], "RabbitMQ node"),
        (["qindex.lock", "photo.jpg"], "neither"),
    ],
)
def test_opening_a_directory_of_something_else(
    tmp_path: Path, names: list[str], match: str
) -> None:
    for name in names:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_bytes(b"mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(qindex.NotAStoreError, match=match):
        qindex.open(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_second_writer_gets_the_pid_of_the_first(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        with pytest.raises(qindex.LockedError) as caught:
            qindex.open(tmp_path)
        assert caught.value.pid == os.getpid()
        code = "import qindex, sys\ntry:\n qindex.open(sys.argv[1])\n"
        code += "except qindex.LockedError as error:\n print(error.pid)"
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, text=True
        )
        assert other.stdout.strip() == str(os.getpid())
        engine.queue("q").publish(b"still mine")
    qindex.open(tmp_path).close()


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_directory_that_can_not_be_written(tmp_path: Path, error: int) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish(b"x")
    before = files(tmp_path)

    class ReadOnly(RealFileSystem):
        def __init__(self) -> None:
            real = RealFileSystem.open

            def refuse(path: str, flags: int, mode: int = 0o666) -> int:
                if flags & (os.O_WRONLY | os.O_RDWR):
                    raise OSError(error, os.strerror(error), path)
                return real(path, flags, mode)

            self.open = refuse  # type: ignore[assignment]

    with pytest.raises(qindex.StorageError, match=os.strerror(error)) as caught:
        open_store(tmp_path, fs=ReadOnly())
    assert caught.value.errno == error
    assert files(tmp_path) == before
    with open_quietly(tmp_path) as engine:
        assert len(engine.queue("q")) == 1


def test_the_system_refuses_while_opening(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish(b"x")
    for operation in ("listdir", "open", "unlink", "fstat", "pread", "sync_dir"):
        fs = FaultyFileSystem()
        fs.fail(operation, errno.EIO)
        with pytest.raises(qindex.StorageError):
            open_store(tmp_path, fs=fs)
        # The lock is free again, and nothing is lost.
        with open_quietly(tmp_path) as engine:
            assert len(engine.queue("q")) == 1


@pytest.mark.parametrize("content", [b"", b"\x81", b"not msgpack at all", b"\x80", bytes(60)])
def test_a_marker_of_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "qindex.store").write_bytes(content)
    with pytest.raises(qindex.NotAStoreError, match="not the marker"):
        qindex.open(tmp_path)


def test_deliveries_that_are_none(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        nonsense: Any
        for nonsense in (None, 5, b"x"):
            with pytest.raises(qindex.UsageError, match="not a delivery"):
                queue.ack(nonsense)
            with pytest.raises(qindex.UsageError, match="not a delivery"):
                queue.nack(nonsense)
            with pytest.raises(qindex.UsageError, match="not a delivery"):
                queue.ack_many([nonsense])
        assert len(queue) == 1


NO_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, -1, "x", b"1", [], 1 << 2000, True]
NUMBERS = sorted(
    name
    for name, one in qindex.Options.__dataclass_fields__.items()
    if one.type in ("int", "float", "int | None", "float | None")
)


def test_open_names_all_options_and_their_defaults() -> None:
    taken = inspect.signature(qindex.open).parameters
    options = dataclasses.fields(qindex.Options)
    assert {one.name: taken[one.name].default for one in options} == {
        one.name: one.default for one in options
    }
    assert taken.keys() == {"directory", "shared", "linger", *(one.name for one in options)}
    for name in taken:
        assert f"    {name}: " in (qindex.open.__doc__ or ""), name


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: repr(value)[:10])
def test_options_that_are_no_numbers(value: Any) -> None:
    assert len(NUMBERS) >= 9
    for name in NUMBERS:
        with pytest.raises(qindex.UsageError, match=name):
            qindex.Options(**{name: value})


@pytest.mark.parametrize("value", ["no", 0, None, math.nan], ids=repr)
@pytest.mark.parametrize("name", ["background", "read_only", "repair"])
def test_options_that_are_no_switches(name: str, value: Any) -> None:
    """``repair="no"`` repaired."""
    with pytest.raises(qindex.UsageError, match=f"{name} must be one of True, False"):
        qindex.Options(**{name: value})


@pytest.mark.parametrize("value", [0, 0.5, -5.0])
def test_a_compaction_that_would_never_end(value: float) -> None:
    with pytest.raises(qindex.UsageError, match="compaction_bytes_per_second"):
        qindex.Options(compaction_bytes_per_second=value)


@pytest.mark.parametrize("timeout", [math.nan, "x", b"1", [], 1 << 2000], ids=repr)
def test_timeouts_that_are_no_numbers(tmp_path: Path, timeout: Any) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", max_length=1, overflow="block")
        for call in (
            lambda: queue.get(timeout),
            lambda: queue.get_many(5, timeout),
            lambda: list(queue.consume(timeout=timeout)),
        ):
            with pytest.raises(qindex.UsageError, match="timeout"):
                call()
        queue.publish(b"fills it")
        with pytest.raises(qindex.UsageError, match="timeout"):
            queue.publish(b"x", timeout=timeout)
        with pytest.raises(qindex.QueueFullError):
            queue.publish(b"x", timeout=-math.inf)
        assert len(queue) == 1
    with pytest.raises(qindex.UsageError, match="timeout"):
        qindex.follow(tmp_path, "q", timeout=timeout)

    async def waits() -> None:
        async with qindex.aio.open(tmp_path) as engine:
            queue = await engine.queue("other")
            for call in (queue.get(timeout), queue.get_many(5, timeout)):
                with pytest.raises(qindex.UsageError, match="timeout"):
                    await call

    asyncio.run(waits())


@pytest.mark.parametrize("path", [b"x", "a\0b", None, 5, "", "\ud800"], ids=ascii)
def test_what_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    """Bytes gave a TypeError of nobody's, NUL a ValueError."""
    monkeypatch.chdir(tmp_path)

    async def opened(path: Any) -> object:
        return await qindex.aio.open(path)

    calls: list[Callable[[], object]] = [
        lambda: qindex.open(path),
        lambda: qindex.open(path, read_only=True),
        lambda: asyncio.run(opened(path)),
        lambda: qindex.verify(path),
        lambda: qindex.repair(path, "out"),
        lambda: qindex.repair("store", path),
        lambda: qindex.salvage(path, "out"),
        lambda: qindex.follow(path, "q"),
        lambda: export_messages(path, "out.jsonl"),
        lambda: export_messages("store", path),
        lambda: import_messages([path], "new"),
        lambda: import_messages(["in.jsonl"], path),
        lambda: rocketstore.open(path),
        lambda: rocketstore_verify(path),
    ]
    open_quietly(tmp_path / "store").close()
    (tmp_path / "in.jsonl").touch()
    for call in calls:
        with pytest.raises(qindex.UsageError, match="path must be a str"):
            call()
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "store"]


@pytest.mark.parametrize("package", [qindex, qindex.compat, msgstore, rocketstore])
def test_a_traceback_names_an_error_as_users_import_it(package: ModuleType) -> None:
    for name in package.__all__:
        error = getattr(package, name)
        if isinstance(error, type) and issubclass(error, qindex.StoreError):
            assert f"{error.__module__}.{error.__qualname__}" == f"{package.__name__}.{name}"


def test_errors_of_the_rocketmq_store_are_qindex_errors(tmp_path: Path) -> None:
    with rocketstore.open(tmp_path / "store") as store:
        pass
    with pytest.raises(qindex.ClosedError) as closed:
        store.put("orders", b"late")
    assert traceback.format_exception_only(closed.value)[0].startswith("qindex.ClosedError: ")


def test_asyncio_is_needed(tmp_path: Path) -> None:
    """In trio, say, which runs coroutines without an asyncio loop."""

    async def main() -> None:
        async with qindex.aio.open(tmp_path / "a"):
            pass

    with pytest.raises(qindex.UsageError, match="asyncio"):
        main().send(None)
    assert not (tmp_path / "a").exists()


def test_one_name_where_names_are_listed(tmp_path: Path) -> None:
    with open_quietly(tmp_path / "a") as engine:
        with pytest.raises(qindex.UsageError, match=r"write \['mails'\]"):
            engine.publish_to("mails", b"x")
        assert engine.queue_names() == []
    for call in (
        lambda: export_messages(tmp_path / "a", tmp_path / "x.jsonl", "mails"),  # type: ignore[arg-type]
        lambda: import_messages("x.jsonl", tmp_path / "a"),
        lambda: import_messages(tmp_path / "x.jsonl", tmp_path / "a"),  # type: ignore[arg-type]
    ):
        with pytest.raises(qindex.UsageError, match="must be a list"):
            call()
    with (
        rocketstore.open(tmp_path / "r") as store,
        pytest.raises(qindex.UsageError, match="unique_keys must be a list"),
    ):
        store.put_many("t", [b"a", b"b"], unique_keys="ab")


def test_a_whole_message_is_published_as_it_is(tmp_path: Path) -> None:
    message = qindex.Message(b"body", "key", {"a": 1}, timestamp=5)
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        assert queue.publish(message) == 0
        assert engine.publish_to(["q", "r"], message, ttl=60) == [1, 0]
        large = qindex.Message(bytearray(b"x" * 20_000))  # type: ignore[arg-type]
        assert queue.publish(large) == 2
        for call in (
            lambda: queue.publish(message, key="k"),
            lambda: engine.publish_to(["q"], message, headers={}),
        ):
            with pytest.raises(qindex.UsageError, match="its own key"):
                call()
        first, second, third = queue.peek(9)
        assert first.message == second.message == message
        assert len(third.body) == 20_000

    async def main() -> None:
        async with qindex.aio.open(tmp_path / "b") as engine:
            queue = await engine.queue("q")
            await queue.publish(message, confirm=True)
            assert (await queue.peek(1))[0].message == message
            with pytest.raises(qindex.UsageError, match="its own key"):
                await queue.publish(message, key="k")

    asyncio.run(main())


def test_what_was_looked_at_says_so_when_it_is_settled(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        (seen,) = queue.peek()
        assert seen.settled
        for call in (
            seen.ack,
            seen.nack,
            seen.reject,
            lambda: seen.extend_lease(1),
            lambda: queue.ack(seen),
        ):
            with pytest.raises(qindex.UsageError, match="only looked at: take it with get"):
                call()
        taken = queue.get(0)
        assert taken is not None
        taken.ack()
        with pytest.raises(qindex.UsageError, match="settled already"):
            taken.ack()


def test_settings_that_can_do_nothing(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        for settings, what in (
            ({"message_ttl": 0}, "message_ttl must be above 0"),
            ({"message_ttl": "x"}, "must be None or a number"),
            ({"overflow": "drop-head"}, "needs a limit"),
        ):
            with pytest.raises(qindex.UsageError, match=what):
                engine.queue("q", **settings)
            assert not list(tmp_path.glob("queues/*")), "a call that was refused made the queue"
        queue = engine.queue("q", max_length=5)
        engine.queue("q", overflow="drop-head")
        assert queue.settings.overflow == "drop-head"


def test_a_second_open_in_this_process_says_so(tmp_path: Path) -> None:
    with open_quietly(tmp_path), pytest.raises(qindex.LockedError, match="this process already"):
        qindex.open(tmp_path)


def test_a_deletion_tells_what_it_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "qindex")
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q", dead_letter="misspelt")
        queue.publish_many([b"x"] * 5)
        assert queue.get(0) is not None
        queue.get_many(1)[0].reject()
        assert "queue 'misspelt' made" in caplog.text
        assert engine.delete_queue("q") == 4
    assert "queue 'q' deleted, with 4 messages" in caplog.text
    with open_quietly(tmp_path) as engine:
        assert engine.delete_queue("misspelt") == 1  # never in use


def test_what_is_bound_to_a_process_is_not_pickled(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x")
        for one in (engine, queue, queue.get(0)):
            said = f"^{type(one).__name__} objects can't be pickled: "
            with pytest.raises(qindex.UsageError, match=said):
                pickle.dumps(one)


def nested(levels: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else [value]
    return value


@pytest.mark.parametrize(("kind", "levels"), [(dict, 65), (list, 65), (list, 5000)])
def test_headers_have_a_limit_of_depth(tmp_path: Path, kind: type, levels: int) -> None:
    with open_quietly(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"x", headers={"h": nested(64, kind)})
        deep = nested(levels, kind)
        for call in (
            lambda: queue.publish(b"x", headers={"h": deep}),
            lambda: queue.publish(b"x", properties={"h": deep}),
            lambda: queue.publish_many([qindex.Message(b"x", headers={"h": deep})]),
            lambda: engine.publish_to(["q"], b"x", headers={"h": deep}),
            lambda: queue.publish(b"x" * 20_000, headers={"h": deep}),
        ):
            with pytest.raises(qindex.UsageError, match="nested 64 deep"):
                call()
        assert len(queue) == 1


@pytest.mark.interpreted
@pytest.mark.parametrize(("kind", "levels"), [(dict, 250), (list, 490)])
def test_older_messages_that_are_nested_deeper_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, levels: int
) -> None:
    headers = {"h": nested(levels, kind), "k": [1]}
    with monkeypatch.context() as before, open_quietly(tmp_path / "a") as engine:
        before.setattr(producing, "MAX_DEPTH", 1000)
        engine.queue("q").publish(b"x", headers=headers)
    for suffix in ("jsonl", "parquet"):
        export_messages(tmp_path / "a", tmp_path / f"x.{suffix}")
        import_messages([tmp_path / f"x.{suffix}"], tmp_path / suffix)
        with open_quietly(tmp_path / suffix) as engine:
            (message,) = engine.queue("q").peek()
            assert message.headers == headers
    for command in (["cat", "--json"], ["consume", "--json"]):
        (row,) = run(command[0], tmp_path / "a", "q", command[1]).rows
        assert row["headers"]["k"] == [1]
