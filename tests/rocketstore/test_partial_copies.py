"""An append whose process died while it was copied into the commit log: whatever part of it was
there by then, in whatever order it was copied, the log ends where it began.

Size and magic of its first record are stored last (``CommitLog.write``), so the parts are of what
follows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from journal.errors import DamageError
from journal.findings import Cause
from rocketstore import Store
from rocketstore.format.commitlog_format import NO_START
from rocketstore.verify import verify
from tests.effort import by_tier, part
from tests.rocketstore.support import TINY, open_tiny

LOG = Path("commitlog") / "00000000000000000000"
APPENDS = ["plain", "keys", "many", "batch"]


def append(store: Store, kind: str) -> None:
    if kind == "plain":
        store.put("T", b"plain" * 9)
    elif kind == "keys":
        store.put("T", b"body", tags="tag", keys="one two", properties={"a": "b"})
    elif kind == "many":
        store.put_many("T", [b"%d" % number * 20 for number in range(5)])
    else:
        store.put_batch("T", [(0, b"%d" % number * 20, {"KEYS": "k"}) for number in range(5)])


def killed(tmp_path: Path, kind: str, *, dispatched: bool) -> tuple[Path, int, int]:
    """What a process leaves that dies behind an append; gives its place in the log, and its end."""
    store = open_tiny(tmp_path / "live")
    store.put_many("T", [b"first", b"second"], keys=["k1", "k2"])
    store.get("T", 0, 0)
    start = store.max_offset
    append(store, kind)
    if dispatched:
        store.get("T", 0, 0)
    end = store.max_offset
    left = tmp_path / "left"
    shutil.copytree(tmp_path / "live", left)
    store.close()
    if not dispatched:
        queue = left / "consumequeue" / "T" / "0" / "00000000000000000000"
        units = queue.read_bytes()
        queue.write_bytes(units[:40] + bytes(len(units) - 40))
    return left, start, end


def lose_start(store: Path, at: int) -> None:
    with (store / LOG).open("r+b") as file:
        file.seek(at)
        file.write(NO_START)


def parts(data: bytes) -> Iterator[bytes]:
    """What may be there: all but one range of bytes, or one range alone, behind the start."""
    size = len(data)
    fields = {12, 20, 28, 36, 56, 84, 88, size - 2, size}
    places = sorted({*range(len(NO_START), size, size // 5), *fields})
    for first, last in combinations([at for at in places if at <= size], 2):
        yield NO_START + data[len(NO_START) : first] + bytes(last - first) + data[last:]
        yield bytes(first) + data[first:last] + bytes(size - last)


@pytest.mark.parametrize("kind", APPENDS)
def test_no_part_of_it_counts(tmp_path: Path, kind: str) -> None:
    left, start, end = killed(tmp_path, kind, dispatched=False)
    log = (left / LOG).read_bytes()
    seen = 0
    every = by_tier(quick=8, all=1, nightly=1)
    for number, content in enumerate(part(list(parts(log[start:end])), every, kind)):
        path = tmp_path / str(number)
        shutil.copytree(left, path)
        (path / LOG).write_bytes(log[:start] + content + log[end:])
        with open_tiny(path) as store:
            assert [one.body for one in store.messages("T", 0)] == [b"first", b"second"]
            assert {one.cause for one in store.findings} <= {Cause.CRASH}
            assert store.max_offset == start
            assert store.put("T", b"third").offset == start
        assert (path / LOG).read_bytes()[start + 200 :].count(0) == len(log) - start - 200
        with open_tiny(path) as store:
            assert [one.body for one in store.messages("T", 0)] == [b"first", b"second", b"third"]
            assert store.findings == []
        shutil.rmtree(path)
        seen += 1
    assert seen > 50 // every


@pytest.mark.parametrize("kind", ["many", "batch"])
def test_it_is_no_damage_to_those_who_only_read(tmp_path: Path, kind: str) -> None:
    left, start, _ = killed(tmp_path, kind, dispatched=False)
    lose_start(left, start)
    with open_tiny(left, read_only=True) as store:
        assert [one.body for one in store.messages("T", 0)] == [b"first", b"second"]
    assert {one.cause for one in verify(left, **TINY)} <= {Cause.CRASH}


@pytest.mark.parametrize("kind", ["many", "batch"])
def test_where_a_queue_names_its_messages_it_had_returned(tmp_path: Path, kind: str) -> None:
    """Then the zeros are damage: refused, and mended as such, at the price of one message."""
    left, start, _ = killed(tmp_path, kind, dispatched=True)
    lose_start(left, start)
    with pytest.raises(DamageError, match=f"offset {start}: there is no record here"):
        open_tiny(left)
    with open_tiny(left, repair=True) as store:
        bodies = [one.body for one in store.messages("T", 0)]
        assert bodies[:2] == [b"first", b"second"]
        assert bodies[-4:] == [b"%d" % number * 20 for number in range(1, 5)]
