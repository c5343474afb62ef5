"""``repair=True``: only what is damaged in the log is set aside, and what follows stays."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal.errors import DamageError, StorageError
from journal.findings import Cause
from journal.fs.files import REAL
from rocketstore import Store
from rocketstore.format.commitlog_format import FIXED_SIZE, encode_record
from rocketstore.layout import Paths
from rocketstore.log.filler_format import FILLER_TOPIC, fill_records
from rocketstore.repair.quarantine import copy_excess
from rocketstore.verify import verify
from tests.effort import by_tier
from tests.faulty_fs import FaultyFileSystem
from tests.memory_fs import MemoryFileSystem
from tests.recording_fs import RecordingFileSystem, crash_states
from tests.rocketstore.support import Clock, open_tiny

COUNT = 60
SIZE = 4096


def body(number: int) -> bytes:
    return b"%d " % number * (20 + number * 13 % 60)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """60 messages in two queues, over several log files."""
    with open_tiny(tmp_path / "s", clock=Clock(step=700)) as store:
        for number in range(COUNT):
            store.put("T", body(number), queue_id=number % 2, keys=f"k{number} all")
    return tmp_path / "s"


class Log:
    """The log's files as one piece of bytes, to be damaged."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = sorted((root / "commitlog").iterdir())
        self.data = bytearray(b"".join(path.read_bytes() for path in self.paths))
        with open_tiny(root, read_only=True) as store:
            rows = [message for queue in (0, 1) for message in store.messages("T", queue)]
        self.rows = sorted((message.offset, message.size) for message in rows)

    def save(self) -> None:
        for number, path in enumerate(self.paths):
            path.write_bytes(self.data[number * SIZE : (number + 1) * SIZE])
        # Without the note of the clean exit, open reads all of the log.
        (self.root / "config" / "rocketstore.json").unlink(missing_ok=True)

    def break_frame(self, number: int) -> bytes:
        """Break a record; gives what its bytes are then."""
        offset, size = self.rows[number]
        self.data[offset + 5] ^= 0x10
        return bytes(self.data[offset : offset + size])


def numbers_of(store: Store) -> list[int]:
    """The numbers of the messages in both queues, each once, every body sound."""
    found = set()
    for queue in (0, 1):
        for message in store.messages("T", queue):
            message.check()
            number = int(message.body.split()[0])
            assert message.body == body(number)
            assert number % 2 == queue
            found.add(number)
    return sorted(found)


def check_repaired(root: Path, lost: set[int], **options: Any) -> None:
    """Repaired, then opened as usual, with and without the note: all others are there, at their
    ordinals and under their keys, and nothing is wrong any more."""
    left = [number for number in range(COUNT) if number not in lost]
    with pytest.raises(DamageError):
        open_tiny(root, **options)
    with open_tiny(root, repair=True, **options) as store:
        assert numbers_of(store) == left
        assert any(finding.cause is Cause.DAMAGE for finding in store.findings)
    assert verify(root, **options) == []
    for noted in (True, False):
        if not noted:
            (root / "config" / "rocketstore.json").unlink()
        with open_tiny(root, **options) as store:
            assert store.findings == []
            assert numbers_of(store) == left
            for number in left:
                hits = store.query("T", f"k{number}")
                assert [hit.body for hit in hits] == [body(number)]
                at = store.at("T", number % 2, number // 2)
                assert at is not None
                assert at.body == body(number), "an ordinal has moved"
            assert len(store.query("T", "all", 1000)) == len(left)
            assert ("SET_ASIDE", 0) not in store.queues()
    with open_tiny(root, **options) as store:
        put = store.put("T", body(COUNT), queue_id=0, keys=f"k{COUNT}")
        assert put.queue_offset == COUNT // 2
        assert [hit.offset for hit in store.query("T", f"k{COUNT}")] == [put.offset]
    assert verify(root, **options) == []


def test_one_broken_frame(root: Path) -> None:
    log = Log(root)
    broken = log.break_frame(20)
    log.save()
    with pytest.raises(DamageError, match=f"sound ones follow from offset {log.rows[21][0]} on"):
        open_tiny(root)
    check_repaired(root, {20})
    (aside,) = (root / "quarantine").iterdir()
    assert aside.name == f"commitlog~{log.rows[20][0]:020d}"
    assert aside.read_bytes() == broken


@pytest.mark.parametrize("swapped", [False, True])
def test_records_that_say_that_they_stand_elsewhere(root: Path, swapped: bool) -> None:
    """A bit that flipped in a record's own offset; two files that somebody has exchanged."""
    log = Log(root)
    offset = log.rows[4][0]
    log.data[offset + 34] ^= 1
    moved = {4}
    if swapped:
        log.data[:SIZE], log.data[SIZE : 2 * SIZE] = log.data[SIZE : 2 * SIZE], log.data[:SIZE]
        moved = {number for number, (at, _) in enumerate(log.rows) if at < 2 * SIZE}
        offset = log.rows[0][0]
    note = (root / "config" / "rocketstore.json").read_bytes()
    log.save()
    (root / "config" / "rocketstore.json").write_bytes(note)
    assert verify(root)[0].cause is Cause.DAMAGE
    with open_tiny(root) as store:  # closed in order: the log is not read
        number = min(moved)
        asks: list[Callable[[], object]] = [
            lambda: store.lookup(offset).body,  # type: ignore[union-attr]
            lambda: store.at("T", 0, number // 2).body,  # type: ignore[union-attr]
            lambda: store.get("T", 0, number // 2).bodies,
            lambda: [message.body for message in store.messages("T", 0)],
        ]
        for ask in asks:
            with pytest.raises(DamageError):
                ask()
        good = max(range(0, COUNT, 2))
        assert store.get("T", 0, good // 2).bodies == [body(good)]
    log.save()
    check_repaired(root, moved)


def test_the_lost_messages_place_is_taken_by_the_next_of_its_queue(root: Path) -> None:
    """Committed offsets keep their meaning: no ordinal behind the hole moves."""
    log = Log(root)
    for number in (20, 21, 22, 23):
        log.break_frame(number)
    log.save()
    with open_tiny(root, repair=True) as store:
        ordinals = [message.queue_offset for message in store.messages("T", 0)]
        assert ordinals[8:14] == [8, 9, 12, 12, 12, 13]
        assert store.get("T", 0, 12).messages[0].body == body(24)


def test_many_holes(root: Path) -> None:
    log = Log(root)
    for number in range(1, COUNT - 2, 3):
        log.break_frame(number)
    log.save()
    check_repaired(root, set(range(1, COUNT - 2, 3)))


def test_body_only(root: Path) -> None:
    log = Log(root)
    offset, size = log.rows[20]
    log.data[offset + 100] ^= 1
    log.save()
    with open_tiny(root) as store:
        assert ["checksum" in finding.what for finding in store.findings] == [True]
    # It can stay where it is, but a RocketMQ node would end the log there.
    with open_tiny(root, repair=True) as store:
        assert numbers_of(store) == [number for number in range(COUNT) if number != 20]
    (aside,) = (root / "quarantine").iterdir()
    assert aside.read_bytes() == bytes(log.data[offset : offset + size])
    assert verify(root) == []


def last_of_file(log: Log) -> int:
    """Number of the last record of the second file."""
    return max(number for number, (offset, _) in enumerate(log.rows) if offset < 2 * SIZE)


def damage_first_record(log: Log) -> set[int]:
    log.break_frame(0)
    return {0}


def damage_last_record_of_a_file(log: Log) -> set[int]:
    log.break_frame(last_of_file(log))
    return {last_of_file(log)}


def damage_blank(log: Log) -> set[int]:
    offset, size = log.rows[last_of_file(log)]
    log.data[offset + size + 4] ^= 1
    return set()


def damage_last_record_and_blank(log: Log) -> set[int]:
    return damage_last_record_of_a_file(log) | damage_blank(log)


def damage_first_record_of_a_file(log: Log) -> set[int]:
    log.break_frame(last_of_file(log) + 1)
    return {last_of_file(log) + 1}


def damage_across_files(log: Log) -> set[int]:
    middle = last_of_file(log)
    start, stop = log.rows[middle - 1][0] + 7, log.rows[middle + 2][0] + 30
    log.data[start:stop] = b"\xa5" * (stop - start)
    return set(range(middle - 1, middle + 3))


def damage_whole_file(log: Log) -> set[int]:
    log.data[SIZE : 2 * SIZE] = bytes(SIZE)
    return {number for number, (at, _) in enumerate(log.rows) if SIZE <= at < 2 * SIZE}


def damage_size_field(log: Log) -> set[int]:
    log.data[log.rows[30][0] + 2] ^= 0x80
    return {30}


DAMAGES = [
    damage_first_record,
    damage_last_record_of_a_file,
    damage_blank,
    damage_last_record_and_blank,
    damage_first_record_of_a_file,
    damage_across_files,
    damage_whole_file,
    damage_size_field,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[7:])
def test_hole(damage: Callable[[Log], set[int]], root: Path) -> None:
    log = Log(root)
    lost = damage(log)
    log.save()
    check_repaired(root, lost)


def in_file(log: Log, number: int) -> set[int]:
    low, high = number * SIZE, (number + 1) * SIZE
    return {at for at, (offset, _) in enumerate(log.rows) if low <= offset < high}


@pytest.mark.parametrize("note", [True, False], ids=["noted", "without note"])
@pytest.mark.parametrize("gone", [[1], [2], [1, 2]])
def test_missing_log_files(gone: list[int], note: bool, root: Path) -> None:
    log = Log(root)
    for number in gone:
        log.paths[number].unlink()
    if not note:
        (root / "config" / "rocketstore.json").unlink()
    check_repaired(root, {at for number in gone for at in in_file(log, number)})


def test_a_name_far_away_is_no_reason_to_make_a_million_files(root: Path) -> None:
    shutil.copy(root / "commitlog" / f"{0:020d}", root / "commitlog" / f"{SIZE << 40:020d}")
    for repair in (False, True):
        with pytest.raises(DamageError, match="files of the commit log from this one on"):
            open_tiny(root, repair=repair)


def test_log_file_of_a_wrong_length(root: Path) -> None:
    """Its records are sound: it is brought to its length, not taken away."""
    log = Log(root)
    log.paths[1].write_bytes(log.paths[1].read_bytes() + b"more")
    check_repaired(root, set())
    (aside,) = (root / "quarantine").iterdir()
    assert (aside.name, aside.read_bytes()) == (f"commitlog~{log.paths[1].name}+4096", b"more")


def test_log_file_cut_short(root: Path) -> None:
    log = Log(root)
    cut_in = max(number for number, (at, _) in enumerate(log.rows) if at < SIZE + 3000)
    log.paths[1].write_bytes(log.paths[1].read_bytes()[: log.rows[cut_in][0] - SIZE + 5])
    check_repaired(root, {at for at in in_file(log, 1) if at >= cut_in})


def test_rebuild_index_passes_over_damage_and_says_so(root: Path) -> None:
    with open_tiny(root) as store:
        log = Log(root)
        log.break_frame(20)
        for number, path in enumerate(log.paths):
            path.write_bytes(log.data[number * SIZE : (number + 1) * SIZE])
        store.rebuild_index()
        assert [finding.offset for finding in store.findings] == [log.rows[20][0]]
        for number in range(COUNT):
            assert len(store.query("T", f"k{number}")) == (number != 20)


def test_fillers_of_a_large_hole() -> None:
    """Several records, each small enough to be read whole, that add up."""
    for length in (FIXED_SIZE, FIXED_SIZE + 3, (1 << 20) + 1, (3 << 20) + FIXED_SIZE, 5 << 20):
        pieces = list(fill_records(1000, 1000 + length, 1 << 30, 7))
        at = 1000
        for offset, data in pieces:
            assert offset == at
            assert int.from_bytes(data[:4], "big") == len(data) <= 1 << 20
            at += len(data)
        assert at == 1000 + length
    assert FILLER_TOPIC in pieces[0][1]


@pytest.mark.rotates(3)
def test_crash_while_mending(root: Path) -> None:
    """Repairing again after a crash at any moment of it: nothing more is lost, none invented."""
    log = Log(root)
    log.break_frame(20)
    damage_across_files(log)
    log.save()
    files = {str(path.relative_to(root)): path.read_bytes() for path in store_paths(root)}
    directories = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    memory = MemoryFileSystem(files, directories, root="/s")
    fs = RecordingFileSystem("/s", memory)
    open_tiny(Path("/s"), fs=fs, repair=True, durability="fsync").close()
    middle = last_of_file(log)
    left = [at for at in range(COUNT) if at != 20 and not middle - 1 <= at < middle + 3]
    states = 0
    for state in crash_states(
        fs, window=1, random_per_point=0, power=by_tier(quick=24, all=1, nightly=1)
    ):
        again = MemoryFileSystem(state.files, state.directories, root="/s", boot=b"next")
        with open_tiny(Path("/s"), fs=again, repair=True) as store:
            found = numbers_of(store)
            # A part of a filler can put right the very bit that was wrong.
            assert set(left) <= set(found), (state.point, state.how)
        with open_tiny(Path("/s"), fs=again) as store:
            assert numbers_of(store) == found, (state.point, state.how)
        states += 1
    assert states > 100


def store_paths(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file()]


def test_what_is_set_aside_twice_gets_two_names(root: Path) -> None:
    """A second damage at the same place does not overwrite what the first one left."""
    log = Log(root)
    first = log.break_frame(20)
    log.save()
    open_tiny(root, repair=True).close()
    again = Log(root)
    place, size = log.rows[20]
    again.data[place + 4] ^= 1
    second = bytes(again.data[place : place + size])
    again.save()
    open_tiny(root, repair=True).close()
    name = f"commitlog~{place:020d}"
    found = {path.name: path.read_bytes() for path in (root / "quarantine").iterdir()}
    assert found == {name: first, f"{name}.2": second}
    assert verify(root) == []


def test_the_holes_of_an_excess_stay_holes(root: Path) -> None:
    path = root / "commitlog" / "sparse"
    with path.open("wb") as file:
        file.write(b"a" * 1000)
        file.seek(1 << 30)
        file.write(b"the end")
        file.truncate(2 << 30)
    copy = Path(copy_excess(REAL, Paths(str(root)), str(path), 500))
    assert copy.stat().st_size == (2 << 30) - 500
    assert copy.stat().st_blocks * 512 < 1 << 20
    with copy.open("rb") as file:
        assert file.read(501) == b"a" * 500 + b"\0"
        file.seek((1 << 30) - 500)
        assert file.read(8) == b"the end\0"


@pytest.mark.parametrize("operation", ["open", "write", "fdatasync", "sync_dir", "rename"])
def test_nothing_is_changed_when_nothing_can_be_set_aside(operation: str, root: Path) -> None:
    log = Log(root)
    log.break_frame(20)
    log.save()
    (root / "commitlog" / "notes.txt").write_text("hello")
    before = {path: path.read_bytes() for path in log.paths}
    fs = FaultyFileSystem()
    fs.fail(operation, errno.ENOSPC, path="notes" if operation == "rename" else "quarantine")
    with pytest.raises(StorageError):
        open_tiny(root, repair=True, fs=fs)
    assert {path: path.read_bytes() for path in log.paths} == before
    with open_tiny(root, repair=True) as store:
        assert numbers_of(store) == [number for number in range(COUNT) if number != 20]


def crafted(gaps: list[int], fields: dict[str, Any]) -> tuple[bytes, list[int]]:
    """A log file of records with so many bytes of noise before each; their offsets."""
    log = b""
    places = []
    for number, gap in enumerate(gaps):
        log += b"\xa5" * gap
        places.append(len(log))
        log += encode_record(**fields, body=b"%d" % number, queue_offset=number, offset=len(log))
    return log.ljust(SIZE, b"\0"), places


@pytest.mark.parametrize(
    ("gaps", "left"),
    [
        ([0, 40, 0, 0], [0, 2, 3]),
        ([0, 0, 40], [0, 1]),
        ([0, 91, 0], [0, 1, 2]),
        ([90, 0, 0], [1, 2]),
        ([0, 92, 12, 0], [0, 1, 3]),
    ],
)
def test_hole_that_is_too_small_for_a_filler(gaps: list[int], left: list[int]) -> None:
    """What no crash and no flipped bit leaves: then one more record goes, with a copy."""
    fields: dict[str, Any] = {
        "topic": b"T",
        "properties": b"",
        "queue_id": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 1,
        "born_host": bytes(8),
        "store_timestamp": 1_700_000_000_000,
        "store_host": bytes(8),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    log, places = crafted(gaps, fields)
    fs = MemoryFileSystem({f"commitlog/{0:020d}": log}, root="/s")
    with pytest.raises(DamageError):
        open_tiny(Path("/s"), fs=fs)
    with open_tiny(Path("/s"), fs=fs, repair=True) as store:
        found = {message.offset: message.body for message in store.messages("T", 0)}
        assert found == {places[number]: b"%d" % number for number in left}
        aside = [inode.content() for _, inode in fs.tree("/s/quarantine")]
        for number in set(range(len(gaps))) - set(left):
            assert any(b"\0\0\0\1%d\1T" % number in content for content in aside)
    with open_tiny(Path("/s"), fs=fs) as store:
        assert {message.offset for message in store.messages("T", 0)} == set(found)
        assert store.put("T", b"more").offset >= max(found)
