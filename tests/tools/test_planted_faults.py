"""Each planted fault is found, by file, kind and offset; a repair saves all that is sound."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

import qindex
from tests.effort import by_tier, part
from tests.tools.faults import FAULTS, Fault, State
from tests.tools.stores import Content, Message, content_of, every, flip, rich_files

CASES = [(fault, state) for fault in FAULTS for state in fault.states]


def messages(content: Content) -> set[Message]:
    """Without the redelivered flag: a deliver record may be among what is lost."""
    return {(*message[:5], False) for message in chain(*content.values())}


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


CHOSEN = part(CASES, by_tier(quick=2, all=1, nightly=1), "faults")


@pytest.mark.parametrize(
    ("fault", "state"), CHOSEN, ids=[f"{fault.name}-{state}" for fault, state in CHOSEN]
)
def test_fault(
    fault: Fault,
    state: State,
    copy_of: Callable[[State], Path],
    contents: dict[State, Content],
    tmp_path: Path,
) -> None:
    store = copy_of(state)
    path = fault.plant(store)
    before = tree(store)

    report = qindex.verify(store)
    named = [one for one in report.findings if (one.path, one.kind) == (str(path), fault.kind)]
    assert named, report.findings
    assert fault.offset is None or fault.offset in [one.offset for one in named]
    assert report.sound == fault.is_note

    new = tmp_path / "new"
    saved = qindex.repair(store, new)
    assert tree(store) == before
    # After a kill the file of transactions has the names of queues that they published to.
    is_named = fault.name == "missing-name" and state == "killed"
    assert saved.complete == (fault.complete or is_named), saved.lost
    again = qindex.verify(new)
    assert again.findings == []
    was, now = contents[state], content_of(new)
    assert messages(now) <= messages(was)
    assert sum(map(len, was.values())) - sum(map(len, now.values())) == fault.lost
    assert saved.messages == sum(map(len, now.values()))
    assert {one.name: one.messages for one in saved.queues} == {
        name: len(found) for name, found in now.items()
    }
    for name, found in now.items():
        seqs = [message[0] for message in found]
        assert seqs == sorted(seqs)
        assert not found or next(one.next_seq_id for one in saved.queues if one.name == name) > max(
            seqs
        )
    for aside in saved.quarantined:
        inner, _, offset = aside.removeprefix("quarantine/").rpartition(".")
        piece = (new / aside).read_bytes()
        assert before[inner][int(offset) :].startswith(piece)


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_a_repair_of_a_sound_store_is_its_equal(
    state: State, copy_of: Callable[[State], Path], contents: dict[State, Content], tmp_path: Path
) -> None:
    store, new = copy_of(state), tmp_path / "new"
    saved = qindex.repair(store, new)
    assert saved.complete
    assert content_of(new) == contents[state]
    with qindex.open(store, background=False) as old, qindex.open(new, background=False) as made:
        for name in old.queue_names():
            assert made.queue(name).settings.message_ttl == old.queue(name).settings.message_ttl
            assert made.queue(name).publish(b"next") == old.queue(name).publish(b"next")


KINDS = ["segment", "journal", "sums", "seq", "settings", "name", "records", "marker", "snapshot"]


@pytest.mark.rotates(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_found(kind: str, copy_of: Callable[[State], Path]) -> None:
    """In each kind of file, over its whole length: named by file, and by its place in it."""
    store = copy_of("killed" if kind == "journal" else "clean")
    path: Path = getattr(rich_files(store), kind)
    size = path.stat().st_size
    used = len(path.read_bytes().rstrip(b"\0")) if kind == "journal" else size
    for at, mask in every(path, max(1, size // 25)):
        flip(path, at, mask)
        report = qindex.verify(store)
        flip(path, at, mask)
        named = [
            one
            for one in report.findings
            if one.path == str(path) and one.offset <= at < one.offset + max(one.length, 1)
        ]
        assert named, (at, report.findings)
        # Behind the end of a journal nothing is lost: a crash may have left it.
        assert report.sound == (at >= used)
    assert qindex.verify(store).findings == []


def test_a_truncation_at_every_length_is_found(copy_of: Callable[[State], Path]) -> None:
    store = copy_of("clean")
    for path in (rich_files(store).segment, rich_files(store).records):
        data = path.read_bytes()
        for length in range(0, len(data), max(1, len(data) // 30)):
            path.write_bytes(data[:length])
            report = qindex.verify(store)
            assert not report.sound
            assert str(path) in {one.path for one in report.damage}
        path.write_bytes(data)


def test_a_name_that_was_lost_can_be_given(
    copy_of: Callable[[State], Path], contents: dict[State, Content], tmp_path: Path
) -> None:
    store = copy_of("clean")
    rich_files(store).name.unlink()
    nameless = qindex.repair(store, tmp_path / "nameless")
    hashed = rich_files(store).name.parent.name
    assert {one.name for one in nameless.queues} == {f"recovered-{hashed}", "audit"}
    named = qindex.repair(store, tmp_path / "named", names=["other", "orders"])
    assert named.complete
    assert content_of(tmp_path / "named") == contents["clean"]


def test_seq_ids_are_not_given_out_twice(copy_of: Callable[[State], Path], tmp_path: Path) -> None:
    """Where damage may have hidden the latest ones, numbering goes on behind the reservation."""
    store = copy_of("killed")
    journal = rich_files(store).journal
    journal.write_bytes(journal.read_bytes()[:100])
    saved = {one.name: one for one in qindex.repair(store, tmp_path / "new").queues}
    with qindex.open(tmp_path / "new", background=False) as engine:
        seq_id = engine.queue("orders").publish(b"next")
    assert seq_id == saved["orders"].next_seq_id >= 1 << 20


def test_the_number_of_entries_a_segment_is_told_from_the_records(tmp_path: Path) -> None:
    """Without the marker no segment but the first can be read; their checksums tell."""
    with qindex.open(tmp_path / "s", background=False, segment_entry_count=37) as engine:
        engine.queue("q").publish_many([b"%d" % number for number in range(100)])
    (tmp_path / "s" / "qindex.store").write_bytes(b"gone")
    report = qindex.repair(tmp_path / "s", tmp_path / "new")
    assert report.messages == 100
    assert report.complete
    assert len(content_of(tmp_path / "new")["q"]) == 100


@pytest.mark.parametrize("tells", [True, False])
def test_the_number_of_entries_a_segment_where_no_record_tells(tmp_path: Path, tells: bool) -> None:
    """Entries whose messages are in the message store have no checksum over their seq_ids. The
    journal may tell; else what is assumed may be wrong, and the copy is not complete."""
    with qindex.open(tmp_path / "s", background=False, segment_entry_count=16) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % number * 20_000 for number in range(40)])
        queue.ack_many(queue.get_many(3))
        queue.flush()
        if tells:
            queue.publish_many([b"%d" % number * 20_000 for number in range(40, 43)])
            queue.ack_many(queue.get_many(20))
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
        left = len(queue)
    (tmp_path / "killed" / "qindex.store").unlink()
    report = qindex.repair(tmp_path / "killed", tmp_path / "new")
    assert report.messages == left
    assert report.complete is tells
