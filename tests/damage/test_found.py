"""What the damage of small stores has shown to go unnoticed, each in its shortest form."""

from __future__ import annotations

from pathlib import Path

import pytest

import qindex
from journal.format import PUBLISH_HEAD_SIZE
from tests.qindex.support import copy_live, drain, open_quietly, queue_directory


def damage_of(engine: qindex.Engine) -> list[tuple[str, str]]:
    return [
        (Path(one.path).name, one.what)
        for one in engine.findings
        if one.cause is qindex.Cause.DAMAGE
    ]


@pytest.mark.parametrize("left", [None, 0, 60, 100, "zeros"])
def test_what_a_killed_process_had_synced_and_is_gone(
    tmp_path: Path, left: int | str | None
) -> None:
    """The checksums of a segment are written after it was synced. So a file that is cut, also
    between two records, or that ends in zeros, has lost what no crash takes."""
    with open_quietly(tmp_path / "s") as engine:
        engine.queue("q").publish_many([b"message %03d" % at for at in range(20)])
        engine.flush()
        store = copy_live(tmp_path / "s", tmp_path / "killed")
    file = queue_directory(store, "q") / "1.idx"
    data = file.read_bytes()
    record = len(data) // 8
    if left is None:
        file.unlink()
    elif left == "zeros":
        file.write_bytes(data[: 4 * record].ljust(len(data), b"\0"))
    else:
        file.write_bytes(data[: 2 * record if left == 60 else int(left)])
    damage = qindex.verify(store).damage
    assert {one.path for one in damage} == {str(file)}
    saved = qindex.repair(store, tmp_path / "new")
    assert not saved.complete
    assert saved.messages < 20
    with pytest.raises(qindex.DamageError, match=r"1\.idx"):
        open_quietly(store)
    with open_quietly(store, repair=True) as engine:
        assert len(engine.queue("q")) == saved.messages
        assert damage_of(engine)
    with open_quietly(store) as engine:
        assert not damage_of(engine)
    if left == "zeros":
        assert any("at most 4 messages" in one.consequence for one in saved.lost)


@pytest.mark.parametrize("left", [None, 0, 100])
def test_a_segment_that_is_gone_since_the_clean_close(tmp_path: Path, left: int | None) -> None:
    """Recovery took a missing file for a segment whose messages are all acknowledged."""
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % at for at in range(20)])
        engine.flush()
    file = queue_directory(tmp_path, "q") / "1.idx"
    size = file.stat().st_size
    if left is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:left])
    with open_quietly(tmp_path, repair=True) as engine:
        what = f"the file has {left or 0} bytes of {size} at the clean close"
        assert ("1.idx", what) in damage_of(engine)
        seqs = [seq for seq, _, _ in drain(engine.queue("q"))]
        assert [seq for seq in seqs if not 8 <= seq < 16] == [*range(8), *range(16, 20)]


def test_a_queue_whose_name_is_missing(tmp_path: Path) -> None:
    with open_quietly(tmp_path) as engine:
        engine.queue("q").publish(b"x")
    directory = queue_directory(tmp_path, "q")
    (directory / ".queue_name").unlink()
    with open_quietly(tmp_path) as engine:
        for _ in range(2):
            assert engine.queue_names() == [directory.name]
            assert damage_of(engine) == [(".queue_name", "the file is missing")]
        assert [body for _, body, _ in drain(engine.queue("q"))] == [b"x"]
    # Who used it by its name gave the name back.
    with open_quietly(tmp_path) as engine:
        assert engine.queue_names() == ["q"]
        assert damage_of(engine) == []


def test_a_flipped_bit_in_an_expiry(tmp_path: Path) -> None:
    """Of an entry whose message is in the message store nothing vouches for the expiry: one bit
    of "never" made it a time long ago, and the message was dropped without a word."""
    engine = open_quietly(tmp_path / "store", embed_below=100)
    queue = engine.queue("q")
    queue.publish(b"large" * 50)
    queue.publish(b"expired" * 50, ttl=0)
    copy = copy_live(tmp_path / "store", tmp_path / "copy")
    engine.close()
    journal = queue_directory(copy, "q") / "journal.jif"
    intact = journal.read_bytes()
    for bit in (*range(0, 64, 7), 12, 13):
        data = bytearray(intact)
        data[24 + bit // 8] ^= 0x80 >> bit % 8
        journal.write_bytes(data)
        work = copy_live(copy, tmp_path / str(bit))
        with open_quietly(work) as again:
            assert [body[:5] for _, body, _ in drain(again.queue("q"))] == [b"large"]
            told = damage_of(again)
            # A bit of a thousand years and more leads into the future, and costs nothing.
            assert told in ([], [("0.idx", "an expiry before 2006")])
            assert bool(told) == (bit >= 64 - 51), bit
    assert len(intact) > 2 * PUBLISH_HEAD_SIZE


def test_a_flipped_bit_in_the_only_trace_of_seq_ids(tmp_path: Path) -> None:
    """A queue that is empty knows from ``qindex.seq`` alone which seq_ids it has given out."""
    with open_quietly(tmp_path / "store") as engine:
        queue = engine.queue("q")
        assert queue.publish(b"x") == 0
        queue.ack_many(queue.get_many(1))
        queue.flush()
        copy = copy_live(tmp_path / "store", tmp_path / "copy")
    file = queue_directory(copy, "q") / "qindex.seq"
    intact = file.read_bytes()
    for bit in range(0, len(intact) * 8, 31):
        data = bytearray(intact)
        data[bit // 8] ^= 0x80 >> bit % 8
        work = copy_live(copy, tmp_path / str(bit))
        (queue_directory(work, "q") / "qindex.seq").write_bytes(data)
        with open_quietly(work) as again:
            assert again.queue("q").publish(b"y") >= 1, bit
