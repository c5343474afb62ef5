"""Messages of any kind at once, seq_ids reserved for them, and all index entries as columns."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest

import qindex
from qindex.format.message import Message
from qindex.index.segment import ACKED, DELIVERED, PUBLISHED
from qindex.queue.producing import MAX_RESERVED
from qindex.view.queue_view import QueueView
from qindex.view.reader import StoreReader
from tests.qindex.reader_support import open_small


@pytest.mark.parametrize("last", [100, 20_000], ids=["all embedded", "one in the store"])
def test_messages_keep_what_they_have(tmp_path: Path, last: int) -> None:
    messages = [
        Message(b"a", "k", {"n": 1}, {"content_type": "x"}, 1_600_000_000_123_456_789),
        Message(b"b"),
        Message(b"c" * last, "large"),
    ]
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish(b"before")
        assert queue.publish_many(messages, ttl=60.0) == range(1, 4)
        assert queue.publish_many([]) == range(4, 4)
        with pytest.raises(qindex.UsageError, match="a key must be a str"):
            queue.publish_many([Message(b"d"), Message(b"e", key=5)])  # type: ignore[arg-type]
        for stamp in (-1, 1 << 64, 1.5):
            with pytest.raises(qindex.UsageError, match="a timestamp is nanoseconds"):
                queue.publish_many([Message(b"d"), Message(b"e", timestamp=stamp)])  # type: ignore[arg-type]
    rows = list(StoreReader(tmp_path).queue("q").entries())
    assert [(row.body, row.key) for row in rows[1:]] == [(one.body, one.key) for one in messages]
    assert (rows[1].headers, rows[1].properties) == ({"n": 1}, {"content_type": "x"})
    assert rows[1].timestamp == 1_600_000_000_123_456_789
    assert rows[2].timestamp > rows[1].timestamp
    assert [row.expiry > 0 for row in rows] == [False, True, True, True]


@pytest.mark.parametrize("published", [0, 1, 700])
def test_no_reserved_seq_id_is_skipped_by_a_crash(tmp_path: Path, published: int) -> None:
    with open_small(tmp_path) as engine:
        engine.queue("q").publish(b"first")
    child = os.fork()
    if not child:
        queue = open_small(tmp_path).queue("q")
        assert queue.reserve(MAX_RESERVED) == 1
        queue.publish_many([Message(b"%d" % at) for at in range(published)])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with open_small(tmp_path) as engine:
        assert engine.queue("q").reserve(0) == 1 + published
        for wrong in (-1, MAX_RESERVED + 1):
            with pytest.raises(qindex.UsageError):
                engine.queue("q").reserve(wrong)


def test_all_entries_of_a_moment(tmp_path: Path) -> None:
    """Those that are done with too; the moment can be shown again after the queue went on."""
    with open_small(tmp_path) as engine:
        queue = engine.queue("q")
        queue.publish_many([b"%d" % at for at in range(100)])
        engine.flush()
        queue.ack_many(queue.get_many(10))
        queue.get_many(5)
        queue.publish_many([b"%d" % at for at in range(100, 120)])
        reader = StoreReader(tmp_path)
        (directory,) = reader.queue("q").directories
        view = reader.pin(directory)
        before = states_of(view)
        assert [seq for seq, state in before.items() if state == ACKED] == list(range(10))
        assert [seq for seq, state in before.items() if state == DELIVERED] == list(range(10, 15))
        assert [seq for seq, state in before.items() if state == PUBLISHED] == list(range(15, 120))
        moment = pickle.loads(pickle.dumps(view.pinned))
        queue.publish(b"later")
        queue.ack_many(queue.get_many(20))
        engine.flush()
        again = QueueView(
            reader._fs,
            moment.directory,
            reader.rules(directory),
            place=reader.place,
            pinned=moment,
        )
        assert states_of(again) == before
        assert states_of(reader.pin(directory)) != before


def states_of(view: QueueView) -> dict[int, int]:
    found: dict[int, int] = {}
    for number in view.numbers:
        for entries in view.entries(number):
            found |= dict(zip(entries.seqs.tolist(), entries.states.tolist(), strict=True))
    return dict(sorted(found.items()))
