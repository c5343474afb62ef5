"""Both directions: the real 4.9.3 store opens ours and goes on writing, then ours opens that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.errors import LockedError
from rocketstore import Store
from tests.rocketstore.real_store import RealStore, require

NUMBERS = (65_536, 2_000, 100, 300)
SIZES: dict[str, Any] = {
    "commitlog_file_size": NUMBERS[0],
    "consumequeue_file_size": NUMBERS[1],
    "index_slots": NUMBERS[2],
    "index_entries": NUMBERS[3],
}
COUNT = 600
CHILD = """
import os, sys, signal
sys.path.insert(0, {root!r})
from tests.rocketstore.test_real_store import fill, SIZES
import rocketstore
store = rocketstore.open(sys.argv[1], background=False, checkpoint_interval=1, **SIZES)
fill(store)
os.kill(os.getpid(), signal.SIGKILL)
"""


def fill(store: Store) -> None:
    for number in range(0, COUNT, 2):
        body = f"body {number}".encode() * 9
        store.put("T", body, keys=f"k{number} g{number % 5}", unique_key=f"{number:032X}")
        store.put_many("T", [f"body {number + 1}".encode()], keys=[f"k{number + 1}"])


def ask_all(real: RealStore, total: int) -> dict[int, int]:
    """Get the queue and query every key; gives the offset of each ordinal."""
    assert [int(bound) for bound in real.ask("bounds", "T", 0)] == [0, total]
    offsets: list[int] = []
    while len(offsets) < total:
        answer = real.ask("get", "T", 0, len(offsets))
        assert answer[0] == "FOUND"
        offsets += [int(field) for field in answer[2:]]
        assert int(answer[1]) == len(offsets)
    for number in range(0, total, 7):
        topic, queue_id, ordinal, keys, body = real.ask("lookup", offsets[number])
        assert (topic, queue_id, int(ordinal)) == ("T", "0", number)
        assert f"k{number}" in keys.split(" ")
        assert body.startswith(f"body {number}")
    for number in range(total):
        found = real.offsets("query", "T", f"k{number}", 32, skip=1)
        assert offsets[number] in found
    return dict(enumerate(offsets))


@pytest.mark.parametrize("death", ["clean", "kill -9"])
def test_the_real_store_opens_ours_and_we_open_what_it_left(death: str, tmp_path: Path) -> None:
    path = require()
    root = tmp_path / "store"
    if death == "clean":
        with rocketstore.open(root, background=False, **SIZES) as store:
            fill(store)
    else:
        here = str(Path(__file__).parents[2])
        child = [sys.executable, "-c", CHILD.format(root=here), str(root)]
        assert subprocess.run(child, check=False).returncode == -9
        assert (root / "abort").exists()
    with RealStore(path, root, NUMBERS) as real:
        with pytest.raises(LockedError) as locked:
            rocketstore.open(root, **SIZES)
        assert locked.value.pid == real._process.pid
        before = ask_all(real, COUNT)
        for number in range(COUNT, COUNT + 200):
            status, offset = real.ask("put", "T", 0, f"k{number}", "", f"body {number}")
            assert status == "PUT_OK"
            before[number] = int(offset)
        assert ask_all(real, COUNT + 200) == before
        real.close()
    with rocketstore.open(root, background=False, **SIZES) as store:
        for number, place in before.items():
            message = store.at("T", 0, number)
            assert message is not None
            assert message.offset == place
            hits = store.query("T", f"k{number}")
            assert [hit.offset for hit in hits] == [place]
        assert store.put("T", b"ours again", keys="last").queue_offset == COUNT + 200
    with RealStore(path, root, NUMBERS) as real:
        assert real.ask("bounds", "T", 0) == ["0", str(COUNT + 201)]
        assert len(real.ask("query", "T", "last", 32)) >= 2
        real.kill()
    with rocketstore.open(root, background=False, **SIZES) as store:
        assert store.queues()["T", 0] == (0, COUNT + 201)
        assert len(store.query("T", "last")) == 1


def test_the_real_store_reads_on_behind_what_was_set_aside(tmp_path: Path) -> None:
    """Holes in the log, mended: after a clean exit and after a crash the real store walks over
    them, and its queue and index have all that was left."""
    path = require()
    root = tmp_path / "store"
    with rocketstore.open(root, background=False, **SIZES) as store:
        fill(store)
        offsets = [message.offset for message in store.messages("T", 0)]
        sizes = [message.size for message in store.messages("T", 0)]
    last = max(number for number, offset in enumerate(offsets) if offset < NUMBERS[0])
    lost = {5, 6, 100, last, COUNT - 2}
    for number in lost:
        file = root / "commitlog" / f"{offsets[number] // NUMBERS[0] * NUMBERS[0]:020d}"
        data = bytearray(file.read_bytes())
        data[offsets[number] % NUMBERS[0] + 4] ^= 1
        if number == last:
            data[offsets[number] % NUMBERS[0] + sizes[number] + 4] ^= 1
        file.write_bytes(data)
    rocketstore.open(root, background=False, repair=True, **SIZES).close()
    for death in ("clean", "kill"):
        with RealStore(path, root, NUMBERS) as real:
            assert int(real.ask("end")[0]) == offsets[-1] + sizes[-1]
            read: list[int] = []
            while len(read) < COUNT:
                read += [int(field) for field in real.ask("get", "T", 0, len(read))[2:]]
            assert read == [
                offsets[min(at for at in range(number, COUNT) if at not in lost)]
                for number in range(COUNT)
            ]
            for number in sorted(set(range(COUNT)) - lost):
                assert offsets[number] in real.offsets("query", "T", f"k{number}", 32, skip=1)
            if death == "clean":
                real.close()
            else:
                real.kill()
    with rocketstore.open(root, background=False, **SIZES) as store:
        found = {message.offset for message in store.messages("T", 0)}
        assert found == {offsets[number] for number in range(COUNT) if number not in lost}


def test_our_lock_keeps_the_real_store_out(tmp_path: Path) -> None:
    path = require()
    root = tmp_path / "store"
    with rocketstore.open(root, background=False, **SIZES) as store:
        store.put("T", b"x")
        with pytest.raises(AssertionError, match="Lock failed"):
            RealStore(path, root, NUMBERS)
        assert os.path.exists(root / "abort")
