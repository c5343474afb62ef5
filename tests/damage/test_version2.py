"""Damage to the files of RabbitMQ's version 2: each byte flipped, each length.

Whatever is done to one byte or to the end of one file, no message has another's body or one that
was never published; at most one message is missing, and it is named: by ``cat`` and salvage (the
place), or by ``verify``. Where the format has no checksum, a flip may also hide a message without
a trace, or bring one back that was acknowledged: those places are listed here, and in
docs/rabbitmq.md.

A part of all harms runs always, every :data:`SHARE`-th, another one with each commit; in a nightly
run each byte and each length.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import qindex
from journal.findings import Cause
from qindex.view.reader import StoreReader
from tests.effort import SEED, by_tier
from tests.golden_v2 import RECORDED_AT, scenario

SHARE = by_tier(quick=997, all=199, nightly=1)
STORES = ("x40_m", "vb")
SUFFIXES = (".qi", ".qs", ".rdq")

Key = tuple[str, int]
Found = dict[Key, bytes]


@pytest.fixture(autouse=True)
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time at which the nodes delivered."""
    monkeypatch.setattr("qindex.view.queue_view.time_ns", lambda: RECORDED_AT * 10**9)


@dataclass
class Read:
    """What a reader gives. ``said``: whether it complains; ``damage``: as damage."""

    found: Found = field(default_factory=dict)
    said: bool = False
    damage: bool = False


def read(vhost: Path, directory: str | None = None) -> Read:
    """Read all queues, or the one in ``directory``."""
    seen = Read()
    store = StoreReader(vhost)
    for reader in store.readers():
        for at in reader.directories:
            if directory not in (None, at.directory):
                continue
            view = store.pin(at)
            for row in view.rows():
                if row.body is not None:
                    seen.found[at.directory, row.seq_id] = row.body
            seen.said |= bool(view.findings)
            seen.damage |= any(one.cause is Cause.DAMAGE for one in view.findings)
    return seen


def harms(path: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    for at in range(SEED % SHARE, len(data), SHARE):
        bit = 1 << (at * 7 + SEED) % 8
        yield f"flip {at}", data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :]
    for size in range(SEED % SHARE, len(data), SHARE):
        yield f"cut {size}", data[:size]


def unchecked(path: Path, harm: str, data: bytes) -> str:
    """Say which field without a checksum a flip hit; empty: none."""
    kind, at = harm.split()[0], int(harm.split()[1])
    if kind == "cut":
        return "a file that ends where a shorter one may end"
    if path.suffix == ".qi" and at >= 64:
        name = ("status", "flags", "zero", "kind")[at % 32] if at % 32 < 4 else ""
        name = name or ("place" if at % 32 < 20 else "size" if at % 32 < 24 else "expiry")
        return name if name in ("status", "flags", "place", "expiry", "size") else ""
    return ""


@pytest.mark.rotates(3)
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", STORES)
def test_each_byte_and_each_length(name: str, tmp_path: Path) -> None:
    store = scenario(name)
    whole = read(store.vhost_dir)
    assert not whole.said
    sound = whole.found
    bodies = Counter(sound.values())
    vhost = store.copy(tmp_path)
    done: Counter[str] = Counter()
    for path in sorted(one for one in vhost.rglob("*") if one.suffix in SUFFIXES):
        data = path.read_bytes()
        directory = None if path.suffix == ".rdq" else path.parent.name
        there = {key: body for key, body in sound.items() if directory in (None, key[0])}
        for harm, harmed in harms(path, data):
            path.write_bytes(harmed)
            where = f"{path.relative_to(vhost)}: {harm}"
            seen = read(vhost, directory)
            for key, body in seen.found.items():
                if key not in there:
                    # One that was acknowledged, or dropped: its bytes are sound.
                    assert unchecked(path, harm, data) in ("status", "flags"), where
                elif body != there[key]:
                    # The shared store has no checksum; a place may be that of another message.
                    assert path.suffix != ".qs", where
                    assert path.suffix == ".rdq" or body in bodies, where
                    done["another body"] += 1
            missing = there.keys() - seen.found.keys()
            cut = harm.startswith("cut")
            if missing and not (seen.damage or seen.said):
                report = qindex.verify(vhost)
                assert report.findings or unchecked(path, harm, data), where
                done["told by verify" if report.findings else "silent"] += 1
            if not cut:
                assert len(missing) <= 1, where
                if path.suffix == ".qs" and missing:
                    assert seen.damage, where
            done["flip" if not cut else "cut"] += 1
        path.write_bytes(data)
    print(name, dict(done))
    enough = by_tier(quick=20, all=100, nightly=20_000)
    assert min(done["flip"], done["cut"]) > enough


@pytest.mark.parametrize("name", STORES)
def test_salvage_saves_the_rest(name: str, tmp_path: Path) -> None:
    """Of a directory with a flipped bit in each body's file all other messages are saved."""
    vhost = scenario(name).copy(tmp_path)
    sound = read(vhost)
    harmed = 0
    for path in sorted(vhost.rglob("*.qs")):
        data = bytearray(path.read_bytes())
        if len(data) > 100:
            data[90] ^= 2
            path.write_bytes(data)
            harmed += 1
    saved = qindex.salvage(vhost, tmp_path / "new", format="rabbitmq-4")
    lost = [one for one in saved.lost if one.path.endswith(".qs")]
    assert 0 < len(lost) <= harmed
    assert saved.messages == len(sound.found) - len(lost)
    assert qindex.verify(tmp_path / "new").findings == []
    shutil.rmtree(tmp_path / "new")
