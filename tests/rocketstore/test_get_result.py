"""The bodies of an answer, read all at once: the same as those of its messages."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketstore
from journal.errors import DamageError
from rocketstore import GetStatus
from tests.rocketstore.support import open_tiny


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
        log = min((tmp_path / "s" / "commitlog").iterdir())
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
