"""From what a caller gives to what a record holds."""

from __future__ import annotations

from typing import Any

import pytest

from journal.errors import UsageError
from rocketstore.format.compose import Delivered, compose, join_properties, raw_properties
from rocketstore.format.delay import DELAY_SECONDS, SCHEDULE_TOPIC, deliver_time, level_of
from rocketstore.format.properties import decode_properties


def composed(properties: Any = None, **more: Any) -> tuple[str, int, dict[str, str], int]:
    """Topic, queue, properties as they are read back, and level."""
    given: dict[str, Any] = {"tags": None, "keys": None, "unique_key": None, "delay": None}
    topic = more.pop("topic", "T")
    sys_flag = more.pop("sys_flag", 0)
    found = compose(topic, 3, properties, **{**given, **more}, sys_flag=sys_flag)
    assert decode_properties(found[2]) == found[3]
    return found[0], found[1], dict(found[3]), found[4]


def test_named_properties() -> None:
    assert composed({"a": "b"}, tags="t", keys=["k", "l"], unique_key="u") == (
        "T",
        3,
        {"a": "b", "TAGS": "t", "KEYS": "k l", "UNIQ_KEY": "u"},
        0,
    )
    assert composed({"TAGS": "old"}, tags="new")[2] == {"TAGS": "new"}
    assert composed() == ("T", 3, {}, 0)


def test_properties_as_bytes_are_taken_as_they_are() -> None:
    data = b"b\x01first\x02a\x01second\x02"
    found = compose("T", 0, data, None, None, None, None, 0)
    assert found[2] == data
    assert found[3] == {"a": "second", "b": "first"}
    for more in ({"tags": "t"}, {"keys": "k"}, {"unique_key": "u"}, {"delay": 1}):
        with pytest.raises(UsageError, match="can't be joined"):
            composed(data, **more)
    for wrong, says in ((b"a\x01b\0", "NUL"), (b"a\x01" + b"x" * 32_766, "limit is 32767")):
        with pytest.raises(UsageError, match=says):
            composed(wrong)
        with pytest.raises(UsageError, match=says):
            raw_properties(wrong)


def test_where_a_delayed_message_waits() -> None:
    topic, queue_id, properties, level = composed({"a": "b"}, delay=4)
    assert (topic, queue_id, level) == (SCHEDULE_TOPIC, 3, 4)
    assert properties == {"a": "b", "DELAY": "4", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert composed(b"DELAY\x0118")[1:] == (
        17,
        {"DELAY": "18", "REAL_TOPIC": "T", "REAL_QID": "3"},
        18,
    )
    assert composed({"DELAY": "99"})[2]["DELAY"] == "18"
    assert composed({"DELAY": "0"})[:2] == ("T", 3)
    assert composed({"DELAY": "-5"})[:2] == ("T", 3)
    # One that is put straight into the schedule topic stays there.
    assert composed({"DELAY": "2"}, topic=SCHEDULE_TOPIC)[:2] == (SCHEDULE_TOPIC, 3)


@pytest.mark.parametrize(("sys_flag", "waits"), [(0, True), (8, True), (4, False), (12, False)])
def test_only_visible_messages_wait(sys_flag: int, waits: bool) -> None:
    assert (composed({"DELAY": "1"}, sys_flag=sys_flag)[0] == SCHEDULE_TOPIC) is waits


def test_one_that_has_waited_does_not_wait_again() -> None:
    data = Delivered(b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x013")
    assert composed(data)[:2] == ("T", 3)
    assert composed(data)[3] == 0


def test_a_batch_adds_its_properties_to_each_message() -> None:
    assert join_properties(b"", b"x\x01y") == b"x\x01y"
    assert join_properties(b"a\x01b", b"x\x01y") == b"a\x01b\x02x\x01y"
    assert join_properties(b"a\x01b\x02", b"x\x01y") == b"a\x01b\x02x\x01y"
    assert raw_properties({"a": "b"}) == raw_properties(b"a\x01b") == b"a\x01b"


def test_levels() -> None:
    names = [
        "1s",
        "5s",
        "10s",
        "30s",
        "1m",
        "2m",
        "3m",
        "4m",
        "5m",
        "6m",
        "7m",
        "8m",
        "9m",
        "10m",
        "20m",
        "30m",
        "1h",
        "2h",
    ]
    units = {"s": 1, "m": 60, "h": 3600}
    assert [int(name[:-1]) * units[name[-1]] for name in names] == list(DELAY_SECONDS)
    for level, seconds in enumerate(DELAY_SECONDS, 1):
        assert deliver_time(level, 7) == 7 + 1000 * seconds
        assert level_of(str(level)) == level
    assert deliver_time(19, 0) == deliver_time(18, 0)
    assert [level_of(text) for text in ("", "x", "-1", "0", "\N{SUPERSCRIPT TWO}", "9" * 11)] == (
        [0] * 6
    )
    assert deliver_time(1, (1 << 63) - 1) == -(1 << 63) + 999
