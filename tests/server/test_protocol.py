"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

import qindex
from journal import errors
from journal.errors import UsageError
from qindex.queue.delivery import DELIVERED
from qindex.queue.stats import EngineStats
from qindex.server import protocol as wire
from tests.effort import by_tier

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
EXAMPLES = {
    '[1, HELLO 0, "qindex", version 1, nil]': wire.frame(
        1, wire.HELLO, "qindex", wire.VERSION, None
    ),
    '[2, PUBLISH 3, queue 1, b"hi"]': wire.frame(2, wire.PUBLISH, 1, b"hi"),
    "[2, 0, seq_id 7]": wire.frame(2, wire.DONE, 7),
}


def test_the_examples_in_bytes() -> None:
    found = re.findall(r"^((?:[0-9a-f]{2} )+) +(\[.*\])$", PAGE, re.MULTILINE)
    assert {text: bytes.fromhex(raw) for raw, text in found} == EXAMPLES
    for data in EXAMPLES.values():
        assert wire.Framer()(*wire.decode(data[4:])) == data


def test_the_page_has_each_verb() -> None:
    verbs = {
        int(number): name
        for line in PAGE.splitlines()
        if line.startswith("| ")
        for number, name in re.findall(r"(\d+) ([A-Z_]+)", line.split("|")[1])
    }
    assert verbs == {number: name for name, number in vars(wire).items() if name in verbs.values()}
    assert set(verbs) == set(range(wire.RETIRE + 1))


@pytest.mark.parametrize(
    "error",
    [
        qindex.UsageError("wrong"),
        qindex.LockedError("/x/lock", 5, "host"),
        qindex.DamageError("/x/f", 9, "torn"),
        qindex.StorageError("/x", "is full", OSError(28, "no space")),
        qindex.DisconnectedError("gone", maybe_done=True),
        errors.ForkedError("forked"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_errors_arrive_as_they_were(error: qindex.StoreError) -> None:
    kind, text, attributes = wire.decode(wire.frame(1, *wire.error_values(error))[4:])[1:]
    again = wire.error_of(kind, text, attributes)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_figures_arrive_as_they_were(tmp_path: Path) -> None:
    with qindex.open(tmp_path, embed_below=100) as engine:
        queue = engine.queue("q", max_length=5)
        queue.publish(bytes(1000))
        queue.get().reject()
        engine.flush()
        for value in (engine.stats(), engine.compact(), queue.settings, engine.findings, 5, None):
            packed = wire.frame(1, 0, wire.as_plain(value))
            assert wire.from_plain(wire.decode(packed[4:])[2]) == value
        assert isinstance(engine.stats(), EngineStats)


def test_the_state_that_a_delivery_knows_is_the_segments() -> None:
    from qindex.index import segment

    assert DELIVERED == segment.DELIVERED


def test_the_quick_frames_are_those_of_msgpack() -> None:
    kinds: tuple[Any, ...] = (
        *(None, True, False, 0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1),
        *(2**63, 2**64 - 1, -1, -(2**40), 1.5, "text", [1, b""], {"a": 1}),
        *(b"", b"x" * 255, b"x" * 256, b"x" * 65535, b"x" * 65536),
    )
    random = Random(5)
    framer = wire.Framer()
    for size in range(2, 20):
        for _ in range(by_tier(quick=20, all=200, nightly=5000)):
            values = (
                random.randrange(1 << random.choice((7, 31, 40))),
                *random.choices(kinds, k=size),
            )
            data = framer.of(values)
            assert data == wire.frame(*values)
            assert wire.decode(data[4:]) == list(values)
            broken = bytearray(data[4 : random.randrange(5, min(len(data), 200) + 1)])
            broken[random.randrange(len(broken))] = random.randrange(256)
            # A view of bytes is always left to msgpack.
            assert outcome(bytes(broken)) == outcome(memoryview(broken))
    with pytest.raises(UsageError, match="can't be stored"):
        framer.of((1, object()))


def outcome(data: bytes | memoryview) -> Any:
    try:
        return wire.decode(data)
    except ValueError:
        return "refused"
