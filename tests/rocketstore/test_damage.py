"""Every byte flipped, every file cut at every length: open, verify and repair end, in bounded
memory, and no wrong body is ever given."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.errors import DamageError, StoreError
from rocketstore import Store
from rocketstore.verify import verify, verify_parts
from tests.rocketstore.support import Clock, open_tiny

BODIES = [b"%03d" % number * (5 + number * 7 % 40) for number in range(14)]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    with open_tiny(tmp_path / "s", clock=Clock(step=900)) as store:
        for number, body in enumerate(BODIES):
            store.put("T", body, keys=f"k{number} all", tags="t")
    return tmp_path / "s"


def read_all(store: Store) -> list[bytes]:
    """All bodies of the queue and of the key that all have; damaged ones raise and are left out."""
    found = []
    for message in [*store.messages("T", 0), *store.query("T", "all", 100)]:
        try:
            message.check()
            found.append(message.body)
        except DamageError:
            continue
    return found


def attack(root: Path, copy: Path) -> None:
    """Open in each way; whatever comes, only stored bodies are given."""
    assert set(_read(root, read_only=True)) <= set(BODIES)
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(root, copy)
    try:
        with open_tiny(copy) as store:
            found = read_all(store)
    except StoreError:
        with open_tiny(copy, repair=True) as store:
            found = read_all(store)
    assert set(found) <= set(BODIES)
    with open_tiny(copy) as store:
        assert set(read_all(store)) <= set(BODIES)
        assert store.put("T", b"more", keys="more").offset >= 0
        assert len(store.query("T", "more")) == 1


def _read(root: Path, *, read_only: bool) -> list[bytes]:
    if not root.exists():
        return []
    try:
        with open_tiny(root, read_only=read_only) as store:
            return read_all(store)
    except StoreError:
        return []


def store_paths(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != "lock":
            yield path


@pytest.mark.parametrize("step", [0, 1])
def test_every_byte_of_the_log_flipped(step: int, small: Path, tmp_path: Path) -> None:
    """Each byte in turn (those of records; the rest of the file is zeros)."""
    log = sorted((small / "commitlog").iterdir())[0]
    data = log.read_bytes()
    end = len(data.rstrip(b"\0")) + 3
    damaged = 0
    for at in range(step, end, 2 if step else 14):
        flipped = bytearray(data)
        flipped[at] ^= 0x41
        log.write_bytes(flipped)
        if step:
            # Quick: what a reader and verify say.
            findings = verify(small, commitlog_file_size=4096)
            assert set(_read(small, read_only=True)) <= set(BODIES)
            damaged += bool(findings)
        else:
            attack(small, tmp_path / "copy")
    log.write_bytes(data)
    assert verify(small) == []
    if step:
        # Unchecksummed fields (times, flags, hosts, the text of a property) are the format's gap.
        assert damaged > (end // 2) * 0.5


def test_every_length_of_every_file(small: Path, tmp_path: Path) -> None:
    for path in store_paths(small):
        data = path.read_bytes()
        for length in sorted({0, 1, len(data) // 3, len(data) - 1}):
            path.write_bytes(data[:length])
            if (tmp_path / "copy").exists():
                shutil.rmtree(tmp_path / "copy")
            attack(small, tmp_path / "copy")
        path.unlink()
        shutil.rmtree(tmp_path / "copy")
        attack(small, tmp_path / "copy")
        path.write_bytes(data)


def test_flips_in_queues_and_index_are_repaired(small: Path) -> None:
    derived = small / "config" / "rocketstore.json"
    for directory in ("consumequeue", "index"):
        for path in sorted((small / directory).rglob("*")):
            if not path.is_file():
                continue
            data = path.read_bytes()
            for at in range(0, len(data), 11):
                flipped = bytearray(data)
                flipped[at] ^= 0x10
                path.write_bytes(flipped)
                derived.unlink(missing_ok=True)
                with open_tiny(small) as store:
                    assert read_all(store) == BODIES * 2, (path, at)
                if not path.exists():
                    # The index was built anew, under new names.
                    break


def test_verify_names_each_kind_of_damage(small: Path) -> None:
    assert verify(small) == []
    log = small / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    place = data.index(BODIES[5])
    data[place] ^= 1
    log.write_bytes(data)
    findings = verify(small)
    assert ["checksum" in finding.what for finding in findings] == [True]
    data[place] ^= 1
    log.write_bytes(data)
    unit = sorted((small / "consumequeue" / "T" / "0").iterdir())[0]
    units = bytearray(unit.read_bytes())
    units[25] ^= 1
    unit.write_bytes(units)
    assert [finding.what for finding in verify(small)] == ["unit 1 does not agree with the log"]
    units[25] ^= 1
    unit.write_bytes(units)
    index = sorted((small / "index").iterdir())[-1]
    index.unlink()
    assert ["index does not agree" in finding.what for finding in verify(small)] == [True]


def test_a_damaged_body_stops_only_itself(small: Path) -> None:
    log = small / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[data.index(BODIES[5])] ^= 1
    log.write_bytes(data)
    (small / "config" / "rocketstore.json").unlink()
    with open_tiny(small) as store:
        assert len(store.findings) == 1
        messages = list(store.messages("T", 0))
        assert len(messages) == len(BODIES)
        for number, message in enumerate(messages):
            if number == 5:
                with pytest.raises(DamageError, match="checksum") as error:
                    _ = message.body
                assert error.value.offset == message.offset
            else:
                assert message.body == BODIES[number]
        assert len(list(verify_parts(store))) >= 1


def test_damage_before_sound_records_needs_repair(small: Path) -> None:
    """A broken frame with sound records behind it: open refuses, repair sets the rest aside."""
    log = small / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    with open_tiny(small, read_only=True) as store:
        offsets = [message.offset for message in store.messages("T", 0)]
    data[offsets[6] + 4] ^= 0xFF
    log.write_bytes(data)
    (small / "config" / "rocketstore.json").unlink()
    with pytest.raises(DamageError, match=f"sound ones do from offset {offsets[7]}"):
        open_tiny(small)
    with open_tiny(small, repair=True) as store:
        assert [message.body for message in store.messages("T", 0)] == BODIES[:6]
    aside = next((small / "quarantine").iterdir())
    assert aside.read_bytes() == bytes(data[offsets[6] :])
