from __future__ import annotations

import os
import time
import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from journal.errors import UsageError
from msgstore.locations import Location, Locations
from tests.effort import examples
from tests.msgstore.records import message_id

MILLION = 1_000_000
BYTES_PER_MESSAGE = 200


def test_a_location() -> None:
    locations = Locations()
    locations.add(b"a" * 16, (1 << 36) - 1, (1 << 40) - 1, (1 << 32) - 1, 3)
    assert locations.get(b"a" * 16) == Location((1 << 36) - 1, (1 << 40) - 1, (1 << 32) - 1, 3)
    assert locations.get(b"b" * 16) is None
    assert not locations.refer(b"b" * 16, 1)
    assert locations.release(b"b" * 16) is None


def test_ids_with_zeros_at_their_ends() -> None:
    """The sorted part compares ids as strings; numpy's drop trailing zeros."""
    ids = [bytes(16), b"a" + bytes(15), b"a" + bytes(14) + b"\1", b"\xff" * 16, bytes(15) + b"\1"]
    locations = Locations()
    for index, msg_id in enumerate(ids):
        locations.add(msg_id, index, index, 30, 1)
    locations.settle()
    for index, msg_id in enumerate(ids):
        assert locations.get(msg_id) == Location(index, index, 30, 1)
    assert locations.get(b"b" + bytes(15)) is None


def test_references_have_a_limit() -> None:
    locations = Locations()
    locations.add(bytes(16), 0, 0, 30, (1 << 32) - 1)
    with pytest.raises(UsageError):
        locations.refer(bytes(16), 1)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Locations.load((bytes(16), bytes(8), bytes(8), bytes(4), b""))


@pytest.mark.rotates(2)
def test_memory_of_a_message() -> None:
    """All of it, as the allocator sees it, at the dict's emptiest: just after it has grown."""
    count = 180_000
    tracemalloc.start()
    locations = Locations()
    for number in range(count):
        locations.add(os.urandom(16), number // 100, number * 70_000, 70_000, 1)
    in_overlay, _ = tracemalloc.get_traced_memory()
    assert in_overlay / count < BYTES_PER_MESSAGE
    # memory() counts in steps of the allocator, tracemalloc what was asked for.
    assert 0.9 < locations.memory() / in_overlay < 1.2
    locations.settle()
    in_base, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert in_base / count < 48


def test_a_million_messages_load_in_a_moment() -> None:
    locations = Locations()
    began = time.process_time()
    for number in range(MILLION):
        locations.add(number.to_bytes(16, "big"), 1, number, 70_000, 1)
    added = time.process_time() - began
    columns = locations.columns()
    started = time.process_time()
    loaded = Locations.load(columns)
    assert loaded.get((77).to_bytes(16, "big")) == Location(1, 77, 70_000, 1)
    assert time.process_time() - started < added / 3
    assert len(loaded) == MILLION


class LocationsMachine(RuleBasedStateMachine):
    """The index against a dict, with merges and reloads at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.locations = Locations()
        self.model: dict[bytes, Location] = {}

    @rule(number=st.integers(0, 30), file=st.integers(0, 5), references=st.integers(1, 3))
    def add(self, number: int, file: int, references: int) -> None:
        msg_id = message_id(number)
        if msg_id in self.model:
            assert self.locations.refer(msg_id, references)
            old = self.model[msg_id]
            self.model[msg_id] = old._replace(references=old.references + references)
        else:
            self.locations.add(msg_id, file, number, 30 + number, references)
            self.model[msg_id] = Location(file, number, 30 + number, references)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        msg_id = data.draw(st.sampled_from(sorted(self.model)))
        left = self.model[msg_id]._replace(references=self.model[msg_id].references - 1)
        assert self.locations.release(msg_id) == left
        if left.references:
            self.model[msg_id] = left
        else:
            del self.model[msg_id]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), file=st.integers(6, 9), offset=st.integers(0, 1 << 39))
    def move(self, data: st.DataObject, file: int, offset: int) -> None:
        msg_id = data.draw(st.sampled_from(sorted(self.model)))
        old = self.model[msg_id]
        assert self.locations.is_at(msg_id, old.file, old.offset)
        assert not self.locations.is_at(msg_id, old.file + 1, old.offset)
        self.locations.move(msg_id, file, offset)
        self.model[msg_id] = old._replace(file=file, offset=offset)

    @rule()
    def settle(self) -> None:
        self.locations.settle()

    @rule()
    def reload(self) -> None:
        self.locations = Locations.load(self.locations.columns())

    @invariant()
    def agrees(self) -> None:
        assert len(self.locations) == len(self.model)
        assert dict(self.locations.items()) == self.model
        for number in range(31):
            msg_id = message_id(number)
            assert self.locations.get(msg_id) == self.model.get(msg_id)
            assert (msg_id in self.locations) == (msg_id in self.model)


TestLocationsMachine = LocationsMachine.TestCase
TestLocationsMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
