"""A virtual host whose ``.config``, which says how many entries a segment has, is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex
from journal.findings import Cause, Kind
from qindex.view.reader import StoreReader
from tests.cli.support import run
from tests.golden import golden

QUEUE = "Q" * 25


def _segment(rels: range) -> bytes:
    """Entries whose messages are in the message store."""
    heads = ((0xC000 | rel).to_bytes(2, "big") + bytes([rel + 1] * 16) for rel in rels)
    return b"".join(head + bytes(16) for head in heads)


def _steps(*seqs: int) -> bytes:
    """A deliver and an ack of each."""
    return b"".join((kind << 62 | seq).to_bytes(8, "big") for seq in seqs for kind in (2, 3))


def _host(path: Path, journal: bytes, segments: tuple[range, ...]) -> Path:
    queue = path / "queues" / QUEUE
    queue.mkdir(parents=True)
    (path / ".vhost").write_bytes(b"/")
    (queue / "journal.jif").write_bytes(journal)
    for number, rels in enumerate(segments):
        (queue / f"{number}.idx").write_bytes(_segment(rels))
    return path


def _count(path: Path, given: int | None = None) -> tuple[int, list[str]]:
    """Give the number of messages, and what is said about the number of entries."""
    reader = StoreReader(path, segment_entry_count=given)
    said = [one.consequence for one in reader.findings if one.kind is Kind.CONFIG]
    return reader.queue(QUEUE).summary().messages, said


@pytest.mark.parametrize("config", [None, b"", b"{segment_entry_c"])
def test_the_files_tell(config: bytes | None, tmp_path: Path) -> None:
    """Acks in the journal of a real node meet other entries with the wrong number."""
    whole = golden("c1")
    vhost = whole.copy(tmp_path)
    (vhost / ".config").unlink()
    if config is not None:
        (vhost / ".config").write_bytes(config)
    reader = StoreReader(vhost)
    (queue,) = reader.readers()
    assert queue.summary().messages == len(whole.truth.queues[queue.name].delivered)
    (finding,) = reader.findings
    assert finding.consequence.startswith("2048 entries a segment assumed")
    assert finding.cause is (Cause.CRASH if config is None else Cause.DAMAGE)


def test_where_the_files_do_not_tell_the_caller_is_asked(tmp_path: Path) -> None:
    """The acknowledged entry is in the second segment, or was in one that is deleted."""
    vhost = _host(tmp_path / "host", _steps(16384), (range(5), range(5)))
    with pytest.raises(qindex.UsageError, match=r"16384 and 2048.*segment_entry_count"):
        StoreReader(vhost)
    assert _count(vhost, given=16384) == (
        9,
        ["16384 entries a segment assumed: as given"],
    )
    assert _count(vhost, given=2048)[0] == 10
    with qindex.open(vhost, read_only=True, segment_entry_count=2048) as engine:
        assert len(engine.queue_names()) == 1
    with pytest.raises(qindex.UsageError, match="1 to 16384"):
        StoreReader(vhost, segment_entry_count=0)
    for command in (["list"], ["verify"], ["salvage", "--out", tmp_path / "new"]):
        words = [command[0], vhost, *command[1:]]
        refused = run(*words)
        assert refused.code == 2
        assert "--segment-entry-count" in refused.err
        assert run(*words, "--segment-entry-count", "2048").code == 1


def test_a_choice_that_changes_nothing_is_no_reason_to_refuse(tmp_path: Path) -> None:
    first = _host(tmp_path / "first", _steps(3), (range(5),))
    assert _count(first) == (4, [])
    same = _host(tmp_path / "same", b"", (range(5), range(5)))
    assert _count(same) == (
        10,
        ["16384 entries a segment assumed: any number shows the same messages"],
    )
    (first / ".config").write_bytes(b"")
    saved = qindex.salvage(first, tmp_path / "new")
    assert any(one.kind is Kind.CONFIG for one in saved.lost)


def test_a_high_relative_seq_id_excludes_low_numbers(tmp_path: Path) -> None:
    vhost = _host(tmp_path, _steps(16384), (range(5, 6), range(5)))
    segment = vhost / "queues" / QUEUE / "0.idx"
    segment.write_bytes((0xC000 | 9000).to_bytes(2, "big") + segment.read_bytes()[2:])
    assert _count(vhost) == (
        5,
        ["16384 entries a segment assumed: the files contradict other numbers"],
    )
