"""``inspect`` of each kind of file: what it holds, and where it stops making sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journal.errors import NotAStoreError, UsageError
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.repair.inspection import inspect_file
from tests.memory_fs import MemoryFileSystem
from tests.rocketstore.support import Clock, open_tiny

LOG = f"commitlog/{0:020d}"
QUEUE = f"consumequeue/T/0/{0:020d}"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    fs = MemoryFileSystem()
    with open_tiny(Path("/s"), fs=fs, clock=Clock(step=900), name_clock=Clock(1)) as store:
        for number in range(4):
            store.put("T", b"body %d" % number, keys=f"k{number}", tags="t")
        store.commit_offset("g", "T", 0, 3)
    return {name: inode.content() for name, inode in fs.tree("/s") if inode.entries is None}


def rows(path: str, data: bytes, **geometry: int) -> list[dict[str, Any]]:
    found = list(inspect_file(f"/{path}", fs=MemoryFileSystem({path: data}), **geometry))
    json.dumps(found)
    return found


def kinds(path: str, data: bytes, **geometry: int) -> list[str]:
    return [row["kind"] for row in rows(path, data, **geometry)]


def test_log(files: dict[str, bytes]) -> None:
    data = files[LOG]
    found = rows(LOG, data)
    assert [row["kind"] for row in found] == ["record"] * 4 + ["end"]
    assert [row["queue_offset"] for row in found[:4]] == [0, 1, 2, 3]
    assert found[1]["position"] == found[1]["offset"] == found[0]["size"]
    assert found[-1] == {"kind": "end", "position": 4 * found[0]["size"], "size": 4096}
    broken = bytearray(data)
    broken[found[2]["position"] + 90] ^= 1
    after = rows(LOG, bytes(broken))
    assert len(after) == 3
    assert after[-1] == {
        "kind": "end",
        "position": found[2]["position"],
        "size": 4096,
        "damage": "there is no sound record here",
    }
    assert rows(LOG, b"") == [{"kind": "commitlog", "damage": "the file is empty"}]
    blank = data[: 4 * found[0]["size"]] + bytes.fromhex("00000e00cbd43194")
    assert rows(LOG, blank.ljust(4096, b"\0"))[-1] == {
        "kind": "blank",
        "position": 4 * found[0]["size"],
        "size": 0xE00,
    }
    assert kinds(LOG, data[:-1]) == ["record"] * 4 + ["end"]


def test_log_with_a_filler(files: dict[str, bytes]) -> None:
    broken = bytearray(files[LOG])
    broken[5] ^= 1
    fs = MemoryFileSystem(
        {f"s/{name}": data for name, data in files.items()} | {f"s/{LOG}": bytes(broken)}
    )
    open_tiny(Path("/s"), fs=fs, repair=True).close()
    found = list(inspect_file(f"/s/{LOG}", fs=fs))
    assert [row["kind"] for row in found] == ["filler"] + ["record"] * 3 + ["end"]


def test_consume_queue(files: dict[str, bytes]) -> None:
    data = files[QUEUE]
    found = rows(QUEUE, data)
    assert [row["kind"] for row in found] == ["unit"] * 4 + ["end"]
    assert [row["queue_offset"] for row in found] == [0, 1, 2, 3, 4]
    assert found[-1]["capacity"] == 10
    second = f"consumequeue/T/0/{200:020d}"
    assert [row["queue_offset"] for row in rows(second, data)] == [10, 11, 12, 13, 14]
    assert rows(QUEUE, data[:-1] + b"!")[-1]["damage"] == "bytes that are not a unit follow"
    assert kinds(QUEUE, b"") == ["end"]


def test_index(files: dict[str, bytes]) -> None:
    (name,) = (name for name in files if name.startswith("index/"))
    data = files[name]
    found = rows(name, data)
    assert [row["kind"] for row in found] == ["header"] + ["entry"] * 4
    assert (found[0]["slots"], found[0]["entries"], found[0]["index_count"]) == (7, 12, 5)
    assert rows(name, data, slots=7, entries=12) == found
    assert rows(name, data, slots=7, entries=13) == [
        {"kind": "index", "damage": "not 328 bytes long"}
    ]
    broken = bytearray(data)
    broken[40 + 28 + 20 + 19] ^= 1
    last = rows(name, bytes(broken), slots=7, entries=12)[-1]
    assert last == {"kind": "end", "damage": "slots and links do not agree with the entries"}
    for unclear in (b"", data[:39], bytes(len(data))):
        with pytest.raises(UsageError, match="give its slots and entries"):
            rows(name, unclear)


def test_index_of_the_usual_size_needs_no_telling(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    with path.open("wb") as file:
        file.truncate(420_000_040)
    found = list(inspect_file(str(path)))
    assert [(row["kind"], row["slots"], row["entries"]) for row in found] == [
        ("header", 5_000_000, 20_000_000)
    ]


def test_small_files(files: dict[str, bytes]) -> None:
    (checkpoint,) = rows("checkpoint", Checkpoint(1, 2, 3).to_bytes())
    assert checkpoint == {"kind": "checkpoint", "physical": 1, "logical": 2, "index": 3}
    assert rows("checkpoint", b"")[0]["damage"] == "0 bytes long, not 4096"
    (derived,) = rows("rocketstore.json", files["config/rocketstore.json"])
    assert (derived["queues"], derived["index_files"]) == (1, 1)
    assert derived["sizes"] == [4096, 200, 7, 12]
    assert rows("rocketstore.json", b"{}")[0]["damage"] == "its checksum does not match"
    (offsets,) = rows("config/consumerOffset.json", files["config/consumerOffset.json"])
    assert offsets["content"] == {"offsetTable": {"T@g": {"0": 3}}}
    assert rows("x.json.bak", b'{"a":{0:1}}')[0]["content"] == {"a": {"0": 1}}
    for wrong in (b"{", b"\xff", b"[" * 100_000, b'{"a' * 20_000, b'"\\"' * 20_000 + b"\\"):
        assert "damage" in rows("x.json", wrong)[0]


@pytest.mark.parametrize("name", ["lock", "abort", "x", "123", "1" * 19, "1" * 21, "\u0661" * 20])
def test_other_files(name: str) -> None:
    with pytest.raises(UsageError, match="is not a file of a RocketMQ store"):
        rows(name, b"")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        inspect_file(str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="is a directory"):
        inspect_file(str(tmp_path))
