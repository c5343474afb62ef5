"""The store against a dict, with compaction, clean and dirty reopening at any time."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.msgstore.records import make_record, message_id, open_store

SIZES = st.sampled_from([0, 1, 30, 200, 900])


class StoreMachine(RuleBasedStateMachine):
    """``model``: message id -> record and references."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="msgstore-"))
        self.store = open_store(self.directory)
        self.model: dict[bytes, tuple[bytes, int]] = {}
        self.next = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    def _new(self, size: int) -> tuple[bytes, bytes]:
        self.next += 1
        msg_id = message_id(self.next)
        return msg_id, make_record(msg_id, b"%d" % self.next * size)

    @rule(size=SIZES, references=st.integers(1, 3))
    def write(self, size: int, references: int) -> None:
        msg_id, record = self._new(size)
        self.store.write(msg_id, record, references)
        self.model[msg_id] = (record, references)

    @rule(sizes=st.lists(SIZES, max_size=8), references=st.integers(1, 2))
    def write_many(self, sizes: list[int], references: int) -> None:
        items = [(*self._new(size), references) for size in sizes]
        self.store.write_many(items)
        self.model.update((msg_id, (record, references)) for msg_id, record, _ in items)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 2))
    def write_again(self, data: st.DataObject, count: int) -> None:
        msg_id = data.draw(st.sampled_from(sorted(self.model)))
        record, references = self.model[msg_id]
        if data.draw(st.booleans()):
            self.store.write(msg_id, record, count)
        else:
            self.store.add_references(msg_id, count)
        self.model[msg_id] = (record, references + count)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True))
        self.store.remove(chosen)
        for msg_id in chosen:
            record, references = self.model.pop(msg_id)
            if references > 1:
                self.model[msg_id] = (record, references - 1)

    @rule()
    def compact(self) -> None:
        self.store.compact()
        stats = self.store.stats()
        # All but the current file (and its last message) are at most half garbage.
        assert stats.size <= 2 * stats.live + 1000 + 2000

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule()
    def reopen_clean(self) -> None:
        self.store.sync()
        snapshot = self.store.snapshot()
        self.store.close()
        self.store = open_store(self.directory, snapshot=snapshot)

    @rule(torn=st.binary(max_size=30))
    def reopen_dirty(self, torn: bytes) -> None:
        """As after the death of the process: with a torn write at the end of the last file."""
        self.store.close()
        last = max(self.directory.glob("*.rdq"), key=lambda path: int(path.stem), default=None)
        if last is not None:
            header = (1000).to_bytes(8, "big") + bytes(16)
            with last.open("ab") as file:
                file.write((header + torn)[: len(torn)])
        references = {msg_id: count for msg_id, (_, count) in self.model.items()}
        self.store = open_store(self.directory, references)
        assert self.store.missing == set()

    @invariant()
    def agrees(self) -> None:
        assert len(self.store) == len(self.model)
        ids = list(self.model)
        assert self.store.read_many(ids) == [self.model[msg_id][0] for msg_id in ids]
        for msg_id in ids:
            assert self.store.references(msg_id) == self.model[msg_id][1]

    @invariant()
    def sums_are_right(self) -> None:
        stats = self.store.stats()
        on_disk = sum(path.stat().st_size for path in self.directory.glob("*.rdq"))
        assert stats.size == on_disk
        assert stats.live == sum(len(record) + 25 for record, _ in self.model.values())
        assert {path.suffix for path in self.directory.iterdir()} <= {".rdq"}


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(stateful_step_count=40)
