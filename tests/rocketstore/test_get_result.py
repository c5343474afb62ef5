"""The bodies of an answer, read all at once, both ways: the same as those of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketstore
from journal.errors import DamageError
from rocketstore import GetStatus, bodies
from rocketstore.compiled import COMPILED
from tests.rocketstore.support import open_tiny
from tests.ways import WAYS, in_python, needs_compiled

compiled: Any = COMPILED


@pytest.fixture(autouse=True, params=WAYS)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    with in_python(request.param):
        yield


def test_bodies_are_those_of_the_messages(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        for number in range(40):
            # One topic alone, then two in turn: records without and with gaps between them.
            store.put("A", b"a%d" % number, keys=f"k{number}")
            if number > 20:
                store.put("B", b"" if number == 30 else b"b%d" % number)
        store.put("A", b"from far", born_host=("::1", 9), store_host=("::1", 9))
        for topic in "AB":
            seen = at = 0
            while True:
                answer = store.get(topic, 0, at, 7)
                if answer.status is not GetStatus.FOUND:
                    break
                assert answer.bodies == [message.body for message in answer.messages]
                assert answer.bodies == answer.bodies
                seen, at = seen + len(answer.bodies), answer.next_offset
            assert seen == (41 if topic == "A" else 19)
        assert store.get("A", 0, 99).bodies == []


def test_bodies_of_records_of_one_size(tmp_path: Path) -> None:
    """Alike in all but what they hold; then with bodies of two lengths, with none, and from far."""
    far = ("::1", 9)
    with rocketstore.open(tmp_path / "s") as store:
        for number in range(9):
            store.put("A", b"body %d" % number)
            length = 3 + number % 2
            store.put("B", b"x" * length, keys="k" * (9 - length))
            store.put("C", b"")
            store.put("D", b"%d" % number, born_host=far, store_host=far)
            store.put("E", b"%d" % number, sys_flag=1 + number % 2)
        for topic in "ABCDE":
            store.put_many(topic, [b"in a row %d" % number for number in range(9)])
            for first, number in ((0, 9), (9, 9), (5, 9)):
                answer = store.get(topic, 0, first, number)
                assert len(answer.bodies) == number
                assert answer.bodies == [message.body for message in answer.messages]


@pytest.mark.parametrize("at", [4, 8, 28, 39, 84, 90])
def test_damaged_record_among_bodies(at: int, tmp_path: Path) -> None:
    """Magic, CRC, physical offset, flags, length and body: each is noticed, in one record only."""
    with rocketstore.open(tmp_path / "s") as store:
        places = [store.put("A", b"some body") for _ in range(5)]
        assert len(store.get("A", 0, 0).messages) == 5  # they are in their queue now
        log = next((tmp_path / "s" / "commitlog").iterdir())
        with log.open("r+b") as file:
            file.seek(places[2].offset + at)
            byte = file.read(1)
            file.seek(places[2].offset + at)
            file.write(bytes((byte[0] ^ 16,)))
        answer = store.get("A", 0, 0)
        with pytest.raises(DamageError) as error:
            answer.bodies  # noqa: B018
        assert error.value.offset == places[2].offset
        sound = [message for number, message in enumerate(answer.messages) if number != 2]
        assert [message.body for message in sound] == [b"some body"] * 4


def run_of(store: rocketstore.Store, count: int) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """The records of messages with bodies of 1, 2, 3, ... bytes, their places and sizes."""
    puts = [store.put("A", bytes((65 + number,)) * (number + 1)) for number in range(count)]
    data = b"".join(one.raw for one in store.messages("A", 0))
    return data, tuple(put.offset for put in puts), tuple(put.size for put in puts)


@needs_compiled
def test_a_run_of_any_sizes_at_once(tmp_path: Path) -> None:
    with open_tiny(tmp_path / "s") as store:
        data, places, sizes = run_of(store, 5)
    whole = [b"A", b"BB", b"CCC", b"DDDD", b"EEEEE"]
    usual = compiled.usual_bodies
    assert usual(data, places, sizes) == whole
    assert usual(data, places[:2], sizes[:2]) == whole[:2]
    assert usual(data, (), ()) == []
    # Of one size, in Python as well.
    first = data[: sizes[0]], places[:1], sizes[:1]
    assert usual(*first) == bodies.usual_bodies(*first) == [b"A"]
    # Sizes and places that are others'.
    last = len(data) - sizes[-1]
    assert usual(data[:last], places, sizes) is None
    assert usual(data[:-1], places, sizes) is None
    assert usual(data, places, (*sizes[:-1], sizes[-1] + 1)) is None
    for wrong in (1, -1, 1 << 64, None, 90):
        assert usual(data, places, (wrong, *sizes[1:])) is None
        assert usual(data, (wrong, *places[1:]), sizes) is None


@needs_compiled
def test_what_is_no_run_is_refused() -> None:
    wrong: list[tuple[object, ...]] = [
        (b"", ()), (bytearray(), (), ()), (b"", [], ()), (b"", (), (1,)), (b"", (), 1),
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(TypeError, match="bytes, and two tuples of one length"):
            compiled.usual_bodies(*given)
