"""Any msgpack value in any field of our own small files, sealed with the checksum that fits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from xxhash import xxh3_64_digest

from journal.errors import DamageError, StoreError
from journal.packed import unpack
from qindex.engine.opening import open_store
from qindex.format import layout
from qindex.format.seq_ids import SLOT_SIZE, SeqSlot, pack_slot
from qindex.format.transactions import _END, _HEAD
from qindex.queue.notes.delivery_counts import pack_count
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.tools.repair import repair_store
from qindex.tools.verify import verify_store
from tests.damage.samples import STORE, Sample, _Builder
from tests.effort import by_tier, part
from tests.memory_fs import MemoryFileSystem

SHARE = by_tier(quick=23, all=1, nightly=1)

VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    3,
    1 << 14,
    (1 << 14) + 1,
    1 << 31,
    1 << 40,
    (1 << 62) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
    0.0,
    -0.5,
    float("nan"),
    float("inf"),
    1e308,
    "",
    "/",
    "..",
    "../../etc",
    "a\0b",
    "x" * 300,
    b"",
    b"\xff" * 16,
    b"x" * 1000,
    [],
    [1, 2, 3],
    [[[]]],
    {},
    {"a": 1},
    {1: 2},
    msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(0, 0),
]


def _fill(builder: _Builder) -> None:
    builder.engine.queue("a", dead_letter="b", delivery_limit=4, message_ttl=1e8, max_length=1000)
    for number in range(12):
        builder.publish(["a", "b"], b"large %d " % number * (3 + number * 4))
    builder.take("a", 5)
    builder.ack("a", 0, 2)


@pytest.fixture(scope="module")
def closed() -> Sample:
    builder = _Builder()
    _fill(builder)
    return builder.finish("closed", clean=True)


@pytest.fixture(scope="module")
def killed() -> Sample:
    builder = _Builder()
    _fill(builder)
    return builder.finish("killed", clean=False)


def _sealed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed + xxh3_64_digest(packed)


def _framed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return _HEAD.pack(len(packed), xxh3_64_digest(packed)) + packed + _END


def _places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the way to each part of a value; of a list's elements, to the first and the last."""
    yield where
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*where, key))
    elif isinstance(value, list):
        for at in sorted({0, len(value) - 1}) if value else ():
            yield from _places(value[at], (*where, at))


def _with(value: Any, where: tuple[Any, ...], new: Any) -> Any:
    """Give a copy with another part."""
    if not where:
        return new
    changed = copy.deepcopy(value)
    inner = changed
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = new
    return changed


def _changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Give the value with each part as each of :data:`VALUES`, taken away, and with one more; and
    what was done."""
    for where in _places(value):
        for new in VALUES:
            yield f"{where} is {new!r:.40}", _with(value, where, new)
        if where:
            container = inner = copy.deepcopy(value)
            for key in where[:-1]:
                inner = inner[key]
            del inner[where[-1]]
            yield f"{where} is missing", container
    if isinstance(value, dict):
        yield "one more", {**value, "more": 1}


def _use(fs: MemoryFileSystem, *, repair: bool = False) -> None:
    with open_store(STORE, fs=fs, background=False, repair=repair) as engine:
        for name in engine.queue_names():
            queue = engine.queue(name)
            for _ in range(2):
                for one in queue.get_many(4):
                    one.nack()
            queue.publish(b"more")
            queue.flush()
        engine.compact()


def _look(fs: MemoryFileSystem) -> None:
    with open_store(STORE, fs=fs, read_only=True) as engine:
        for name in engine.queue_names():
            list(engine.queue(name))
            engine.queue(name).stats()


def _try(sample: Sample, path: str, data: bytes, case: str) -> list[str]:
    """Do everything with the store; gives what is wrong with the answers."""
    files = {**sample.files, path: data}
    wrong = []
    actions: dict[str, Callable[[MemoryFileSystem], object]] = {
        "open": _use,
        "open to repair": lambda fs: _use(fs, repair=True),
        "look": _look,
        "verify": lambda fs: verify_store(STORE, fs=fs),
        "repair": lambda fs: repair_store(STORE, "/out", fs=fs),
    }
    for action, call in actions.items():
        try:
            call(sample.file_system(files))
        except DamageError as error:
            if not error.path:
                wrong.append(f"{case}: {action}: names no file: {error}")
        except StoreError:
            continue
        except Exception as error:
            wrong.append(f"{case}: {action}: {type(error).__name__}: {error}")
    return wrong


def _try_all(sample: Sample, path: str, cases: list[tuple[str, bytes]]) -> None:
    assert cases
    wrong = []
    for case, data in part(cases, SHARE, path):
        wrong += _try(sample, path, data, case)
    assert not wrong, "\n".join(wrong[:20])


def _path_of(sample: Sample, name: str) -> str:
    return next(path for path in sorted(sample.files) if path.endswith("/" + name))


def test_the_marker(killed: Sample) -> None:
    path = _path_of(killed, layout.MARKER)
    data = killed.files[path]
    value = layout.unpack_checked(data[: len(data) // 2])
    _try_all(killed, path, [(case, 2 * _sealed(new)) for case, new in _changed(value)])


def test_a_damaged_field_is_named(killed: Sample) -> None:
    path = _path_of(killed, layout.MARKER)
    value = layout.unpack_checked(killed.files[path][: len(killed.files[path]) // 2])
    for field, new in (("segment_entry_count", 0), ("vhost", b"/")):
        files = {**killed.files, path: 2 * _sealed({**value, field: new})}
        with pytest.raises(DamageError, match=f"{layout.MARKER}.*{field}"):
            _use(killed.file_system(files))


def test_the_settings(killed: Sample) -> None:
    path = _path_of(killed, layout.SETTINGS)
    value = layout.unpack_checked(killed.files[path])
    assert value["dead_letter"] == "b"
    _try_all(killed, path, [(case, _sealed(new)) for case, new in _changed(value)])


def test_the_transactions(killed: Sample) -> None:
    boot = killed.file_system().boot_id()
    path = f"{STORE}/{layout.TRANSACTIONS}".removeprefix("/")
    move = [[7, "b", 3, [bytes(16), bytes(16)]], [7, boot, [["a", [1, 3]]]]]
    for at, value in enumerate(move):
        frames = [_framed(one) for one in move]
        cases = []
        for case, new in _changed(value):
            frames[at] = _framed(new)
            cases.append((case, b"".join(frames)))
        _try_all(killed, path, cases)


def test_the_snapshot(closed: Sample) -> None:
    path = _path_of(closed, SNAPSHOT)
    value = layout.unpack_checked(closed.files[path])
    assert value["message store"]
    _try_all(closed, path, [(case, _sealed(new)) for case, new in _changed(value)])


def test_the_snapshot_of_the_message_store(closed: Sample) -> None:
    path = _path_of(closed, SNAPSHOT)
    value = layout.unpack_checked(closed.files[path])
    inner = unpack(value["message store"])
    cases = [
        (case, _sealed({**value, "message store": msgpack.packb(new)}))
        for case, new in _changed(inner)
    ]
    _try_all(closed, path, cases)


def test_the_seq_ids(killed: Sample) -> None:
    path = _path_of(killed, "qindex.seq")
    boot = killed.files[path][16:32]
    numbers = [0, 1, 5, 1 << 32, (1 << 62) - 1, 1 << 62, 1 << 63, (1 << 64) - 1]
    cases = [
        (f"slot {slot}: {floor}, {reserved}", bytes(SLOT_SIZE * slot) + packed)
        for floor in numbers
        for reserved in numbers
        for slot in (0, 2)
        for packed in [pack_slot(SeqSlot(floor, reserved, boot))]
    ]
    cases.append(("long", killed.files[path] * 1000))
    _try_all(killed, path, cases)


def test_the_deliveries(killed: Sample) -> None:
    path = _path_of(killed, layout.SETTINGS).replace(layout.SETTINGS, "qindex.deliveries")
    cases = [
        (f"{seq_id}: {count}", pack_count(seq_id, count) * times)
        for seq_id in (0, 1, 3, 1 << 40, (1 << 64) - 1)
        for count in (0, 1, 4, 1 << 31, (1 << 32) - 1)
        for times in (1, 3)
    ]
    _try_all(killed, path, cases)
