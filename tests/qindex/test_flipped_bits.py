"""One flipped bit costs one message at the most, and it is named.

A store of 2,000 messages whose bytes are spread over journal and segments: as a crash leaves it
(the live directory, copied), and after a clean close. One bit is flipped at a time.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import qindex
from journal.files import RealFileSystem
from tests import effort
from tests.qindex.support import copy_live, open_quietly, queue_directory

FLIPS = effort.by_tier(quick=16, all=130, nightly=2000)
"""Places for each of the two stores."""


class Unsynced(RealFileSystem):
    """The real file system, but for the waiting."""

    fdatasync = staticmethod(lambda _fd: None)  # type: ignore[assignment]
    sync_dir = staticmethod(lambda _path: None)


@dataclass
class Truth:
    """seq_id to body of what is to be delivered, and of all that was published."""

    published: dict[int, bytes]
    held: list[int]
    redelivered: set[int]


def build(store: Path, count: int, entry_count: int) -> tuple[qindex.Engine, Truth]:
    """Publish, deliver, acknowledge, flush in turn; the last part stays in the journal."""
    chance = random.Random(count)
    engine = open_quietly(store, segment_entry_count=entry_count)
    queue = engine.queue("q")
    published: dict[int, bytes] = {}
    gone: set[int] = set()
    delivered: set[int] = set()
    while len(published) < count:
        number = len(published)
        for at in range(number, min(number + 50, count)):
            body = chance.randbytes(chance.choice((0, 1, 20, 100, 100, 100, 300, 2000)))
            extra = (
                {"headers": {"n": at, "t": "x" * (at % 9)}, "key": f"k{at}"} if at % 4 == 0 else {}
            )
            published[queue.publish(body, **extra)] = body  # type: ignore[arg-type]
        batch = queue.get_many(30)
        delivered.update(batch.seq_ids)
        acked = [one for one in batch if chance.random() < 0.7]
        queue.ack_many(acked)
        gone.update(one.seq_id for one in acked)
        if chance.random() < 0.35 and len(published) < count * 3 // 4:
            queue.flush()
    held = sorted(published.keys() - gone)
    return engine, Truth(published, held, delivered - gone)


@dataclass
class Outcome:
    missing: int
    back: int
    wrong_flags: int
    named: bool


def take_all(queue: qindex.Queue, place: Path) -> tuple[list[tuple[int, bytes, bool]], list[str]]:
    """Drain; the errors met on the way name file and offset."""
    found: list[tuple[int, bytes, bool]] = []
    errors: list[str] = []
    for _ in range(10_000):
        try:
            batch = queue.get_many(500)
        except qindex.DamageError as error:
            errors.append(error.path)
            continue
        if not batch:
            return found, errors
        found += [(one.seq_id, one.body, one.redelivered) for one in batch]
        queue.ack_many(batch)
    raise AssertionError(f"{place}: no end")


def outcome_of(store: Path, place: Path, truth: Truth) -> Outcome:
    """Open the flipped store, repairing if need be; nothing wrong may come out of it."""
    errors: list[str] = []
    fs = Unsynced()
    try:
        engine = open_quietly(store, fs=fs)
    except qindex.DamageError as error:
        errors.append(error.path)
        engine = open_quietly(store, fs=fs, repair=True)
    with engine:
        errors += [
            finding.path for finding in engine.findings if finding.cause is qindex.Cause.DAMAGE
        ]
        queue = engine.queue("q")
        found, met = take_all(queue, place)
        next_seq = queue.stats().next_seq_id
    errors += met
    seqs = [seq for seq, _, _ in found]
    assert seqs == sorted(set(seqs)), f"{place}: out of order"
    assert next_seq > max(truth.published)
    for seq, body, _ in found:
        assert truth.published.get(seq) == body, f"{place}: a body that was not published"
    held = set(truth.held)
    return Outcome(
        missing=len(held.difference(seqs)),
        back=len(set(seqs) - held),
        wrong_flags=sum(
            again != (seq in truth.redelivered) for seq, _, again in found if seq in held
        ),
        named=place.name in {Path(path).name for path in errors},
    )


def places(store: Path, number: int | None) -> Iterator[tuple[Path, int]]:
    """Bits to flip: spread evenly over all bytes of the index files that mean something."""
    chance = effort.chance("places")
    spans = []
    for path in sorted(queue_directory(store, "q").iterdir()):
        if path.suffix in (".idx", ".jif", ".sum"):
            used = len(path.read_bytes().rstrip(b"\0"))
            spans.append((path.relative_to(store), used))
    total = sum(used for _, used in spans)
    steps = (
        range(total * 8)
        if number is None
        else [int((at + chance.random()) * total * 8 / number) for at in range(number)]
    )
    for step in steps:
        at = step
        for path, used in spans:
            if at < used * 8:
                yield path, at
                break
            at -= used * 8


def run(store: Path, truth: Truth, number: int | None, work: Path, title: str) -> None:
    kinds: dict[str, Counter[str]] = {}
    for path, bit in places(store, number):
        shutil.copytree(store, work)
        content = bytearray((work / path).read_bytes())
        content[bit >> 3] ^= 0x80 >> (bit & 7)
        (work / path).write_bytes(content)
        outcome = outcome_of(work, work / path, truth)
        where = f"{path} at offset {bit >> 3}, bit {bit & 7}"
        assert outcome.missing <= 1, f"{where}: {outcome}"
        assert outcome.back <= 1, f"{where}: {outcome}"
        assert outcome.wrong_flags <= 1, f"{where}: {outcome}"
        harmed = outcome.missing or outcome.wrong_flags or outcome.back
        count = kinds.setdefault(path.suffix, Counter())
        if harmed and not outcome.named:
            # Delivers and acks have no checksum of their own, and the journal's last few KiB
            # none in its sum file yet.
            assert path.name == "journal.jif", f"{where}: {outcome}, and nothing says so"
            assert len(bytes(content).rstrip(b"\0")) - (bit >> 3) < 2 * 4096, where
            count["harm that nothing tells"] += 1
        count["flips"] += 1
        count[f"lose {outcome.missing}"] += 1
        count["named"] += outcome.named
        count["wrong flag"] += outcome.wrong_flags
        count["come back"] += outcome.back
        shutil.rmtree(work)
    for suffix, count in sorted(kinds.items()):
        print(f"{title} {suffix}: " + ", ".join(f"{name} {n}" for name, n in sorted(count.items())))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    directory = tmp_path_factory.mktemp("live")
    engine, truth = build(directory / "store", 2000, 512)
    copy_live(directory / "store", directory / "copy")
    engine.close()
    return directory, truth


def test_unharmed(live: tuple[Path, Truth], tmp_path: Path) -> None:
    directory, truth = live
    for name in ("copy", "store"):
        store = copy_live(directory / name, tmp_path / name)
        outcome = outcome_of(store, store, truth)
        assert outcome == Outcome(0, 0, 0, False)


@pytest.mark.timeout(3600)
def test_as_a_crash_leaves_it(live: tuple[Path, Truth], tmp_path: Path) -> None:
    directory, truth = live
    queue = queue_directory(directory / "copy", "q")
    assert len(list(queue.glob("*.idx"))) >= 3
    assert len((queue / "journal.jif").read_bytes().rstrip(b"\0")) > 50_000
    run(directory / "copy", truth, FLIPS, tmp_path / "work", "crash")


@pytest.mark.timeout(3600)
def test_after_a_clean_close(live: tuple[Path, Truth], tmp_path: Path) -> None:
    directory, truth = live
    run(directory / "store", truth, FLIPS, tmp_path / "work", "clean")


@pytest.mark.timeout(36000)
@pytest.mark.parametrize("clean", [False, True])
def test_every_bit_of_a_small_store(tmp_path: Path, clean: bool) -> None:
    """All bits nightly, else some."""
    store = tmp_path / "store"
    engine, truth = build(store, 60, 16)
    if clean:
        engine.close()
    copy = copy_live(store, tmp_path / "copy")
    engine.close()
    run(copy, truth, effort.by_tier(quick=12, all=100, nightly=None), tmp_path / "work", "small")


@pytest.mark.parametrize("name", ["qindex.store", "qindex.clean", ".queue_name", "qindex.seq"])
@pytest.mark.parametrize("clean", [False, True])
def test_the_small_files(tmp_path: Path, name: str, clean: bool) -> None:
    """Every seventh bit (all, nightly, fewer in the quick tier) of the files beside: no message is
    lost by one."""
    store = tmp_path / "store"
    engine = open_quietly(store)
    engine.queue("q").publish_many([b"%d" % at for at in range(20)])
    if clean:
        engine.close()
    copy = copy_live(store, tmp_path / "copy")
    engine.close()
    [*paths] = copy.rglob(name)
    if name == "qindex.clean" and not clean:
        assert paths == []
        return
    [path] = paths
    relative = path.relative_to(copy)
    every = effort.by_tier(quick=61, all=7, nightly=1)
    for bit in effort.part(range(len(path.read_bytes()) * 8), every, name):
        work = copy_live(copy, tmp_path / "work")
        content = bytearray((work / relative).read_bytes())
        content[bit >> 3] ^= 0x80 >> (bit & 7)
        (work / relative).write_bytes(content)
        with open_quietly(work, fs=Unsynced()) as again:
            queue = again.queue("q")
            found, errors = take_all(queue, work)
            assert [(seq, body) for seq, body, _ in found] == [(at, b"%d" % at) for at in range(20)]
            assert errors == []
            assert queue.publish(b"next") >= 20
            try:
                assert again.queue_names() == ["q"]
            except qindex.StoreError:
                assert name == ".queue_name"
        shutil.rmtree(work)


@pytest.mark.parametrize("repair", [False, True])
def test_the_settings(tmp_path: Path, repair: bool) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q", message_ttl=1000.0).publish(b"x")
    [path] = tmp_path.rglob("qindex.settings")
    content = path.read_bytes()
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit >> 3] ^= 0x80 >> (bit & 7)
        path.write_bytes(flipped)
        with open_quietly(tmp_path, fs=Unsynced(), repair=repair) as engine:
            if not repair:
                with pytest.raises(qindex.DamageError, match="settings"):
                    engine.queue("q")
            else:
                assert engine.queue("q").message_ttl is None
                assert len(engine.queue("q")) == 1
                assert not path.exists()
        if repair:
            assert len(list((path.parent / "quarantine").iterdir())) == bit + 1
