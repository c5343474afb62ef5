"""A follower that looks at any moment between any operations: given and gaps are all there was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import qindex
from tests import effort
from tests.qindex.support import open_quietly


class Book:
    """What a follower said, checked as it says it: in order, each seq_id once."""

    def __init__(self) -> None:
        self.next = 0
        self.gaps: set[int] = set()

    def note_gap(self, gap: qindex.Gap) -> None:
        assert gap.first == self.next
        self.gaps |= set(range(gap.first, gap.stop))
        self.next = gap.stop

    def note(self, delivery: qindex.Delivery) -> None:
        assert delivery.seq_id == self.next
        assert delivery.body.rstrip(b".") == b"%d" % delivery.seq_id
        self.next += 1


@pytest.mark.parametrize("seed", range(effort.by_tier(quick=5, all=20, nightly=200)))
def test_any_order_of_operations(tmp_path: Path, seed: int) -> None:
    chance = effort.chance(seed)
    store = tmp_path / "s"
    options = {"store_file_bytes": 65_536, "embed_below": 300}
    engine = open_quietly(store, **options)
    queue = engine.queue("q")
    book = Book()
    acked: set[int] = set()
    published = 0
    with qindex.follow(store, "q", 0, on_gap=book.note_gap) as follower:
        for _ in range(60):
            what = chance.choice("pppppaafffrrcku")
            if what == "p":
                size = chance.choice([1, 1, 1, 500])
                count = chance.choice([1, 3, 40])
                bodies = [(b"%d" % (published + at)).ljust(size, b".") for at in range(count)]
                queue.publish_many(bodies)
                published += count
            elif what == "a":
                batch = queue.get_many(chance.choice([1, 5, 60]))
                acked |= set(batch.seq_ids)
                queue.ack_many(batch)
            elif what == "f":
                queue.flush()
            elif what == "r":
                for _ in range(chance.choice([1, 20, 1000])):
                    delivery = follower.get(timeout=0)
                    if delivery is None:
                        break
                    book.note(delivery)
            elif what == "c":
                engine.compact()
            elif what == "u" and chance.random() < 0.3:
                acked |= {one.seq_id for one in queue.peek(published)}
                queue.purge()
            elif what == "k":
                engine.close()
                engine = open_quietly(store, **options)
                queue = engine.queue("q")
        queue.publish(b"%d" % published)
        while (delivery := follower.get(timeout=0)) is not None:
            book.note(delivery)
    assert book.next == published + 1
    assert book.gaps <= acked
    engine.close()
    shutil.rmtree(store)
