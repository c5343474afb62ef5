"""Instants of cron expressions and periods, above all on the days when clocks change."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

import qindex
from qindex.worker.cron import SECOND, Cron, Every, Rule, checked_cron, latest, zone

DAY = 86400 * SECOND


def us(text: str) -> int:
    """Give the instant of an ISO time."""
    return round(datetime.fromisoformat(text).timestamp()) * SECOND


def between(rule: Rule, begin: int, end: int) -> list[int]:
    found = []
    while (begin := rule.after(begin)) <= end:
        found.append(begin)
    return found


def shown(expression: str, timezone: str, day: str) -> list[str]:
    """Give the instants of a day as local times with their offsets."""
    zone = ZoneInfo(timezone)
    begin = datetime.fromisoformat(day).replace(tzinfo=zone)
    first = round(begin.timestamp()) * SECOND
    end = round(begin.replace(day=begin.day + 1).timestamp()) * SECOND
    found = between(Cron(expression, timezone), first - 1, end - 1)
    return [f"{datetime.fromtimestamp(one // SECOND, zone):%H:%M%z}" for one in found]


@pytest.mark.parametrize(
    ("timezone", "day", "due"),
    [
        ("Europe/Amsterdam", "2026-03-29", "03:00+0200"),  # 02:00 to 03:00 is left out
        ("Europe/Amsterdam", "2026-10-25", "02:30+0200"),  # 02:00 to 03:00 comes twice
        ("America/New_York", "2026-03-08", "03:00-0400"),
    ],
)
def test_a_daily_run_in_the_hour_of_change_comes_once(timezone: str, day: str, due: str) -> None:
    assert shown("30 2 * * *", timezone, day) == [due]


def test_in_new_york_the_hour_from_one_to_two_comes_twice() -> None:
    assert shown("30 1 * * *", "America/New_York", "2026-11-01") == ["01:30-0400"]
    assert shown("30 1 * * *", "Australia/Lord_Howe", "2026-04-05") == ["01:30+1100"]


@pytest.mark.parametrize(
    ("timezone", "day", "hours"),
    [
        ("Europe/Amsterdam", "2026-03-29", 23),
        ("Europe/Amsterdam", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("UTC", "2026-03-29", 24),
    ],
)
@pytest.mark.parametrize("minute", [0, 30])
def test_an_hourly_run_follows_the_time_that_passes(
    timezone: str, day: str, hours: int, minute: int
) -> None:
    zone = ZoneInfo(timezone)
    begin = datetime.fromisoformat(day).replace(tzinfo=zone)
    first = round(begin.timestamp()) * SECOND
    end = round(begin.replace(day=begin.day + 1).timestamp()) * SECOND
    found = between(Cron(f"{minute} * * * *", timezone), first - 1, end - 1)
    assert found == [first + (3600 * hour + 60 * minute) * SECOND for hour in range(hours)]


@pytest.mark.parametrize("timezone", ["Europe/Amsterdam", "America/New_York"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "30 1 * * *", "0 * * * *", "*/20 1-3 * * *"])
def test_where_the_search_begins_does_not_matter(timezone: str, expression: str) -> None:
    """Each restart begins anew: on the days of change as well it finds the same instants."""
    rule = Cron(expression, timezone)
    for day in ("2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01"):
        begin, end = us(f"{day} 00:00+00:00") - DAY // 2, us(f"{day} 00:00+00:00") + DAY
        all_found = between(rule, begin, end)
        for start in range(begin, end, 607 * SECOND):
            assert between(rule, start, end) == [one for one in all_found if one > start]


def test_cron_against_every_minute() -> None:
    """An expression in UTC against a look at each minute of two months."""
    rule = Cron("*/7 3,17 1-7 * mon,fri", "UTC")
    begin = us("2027-01-31 00:00+00:00")
    wanted = []
    for minute in range(60 * 24 * 60):
        at = begin + minute * 60 * SECOND
        time = datetime.fromtimestamp(at // SECOND, UTC)
        # Debian's cron: without a star either field of the day will do.
        is_day = time.day <= 7 or time.weekday() in (0, 4)
        if time.minute % 7 == 0 and time.hour in (3, 17) and is_day:
            wanted.append(at)
    assert between(rule, begin - 1, begin + 60 * DAY - 1) == wanted


def test_every_keeps_its_instants() -> None:
    rule = Every(60 * SECOND, 1000)
    assert rule.after(1000) == 1000 + 60 * SECOND
    assert rule.after(1000 + 60 * SECOND - 1) == 1000 + 60 * SECOND
    assert rule.after(1000 + 10**9 * SECOND) - 1000 - 10**9 * SECOND <= 60 * SECOND


@pytest.mark.parametrize(
    "rule", [Every(60 * SECOND, 7), Cron("*/15 * * * *", "UTC"), Cron("30 2 29 2 *", "UTC")]
)
def test_the_latest_instants(rule: Rule) -> None:
    begin = us("2020-01-01 00:00+00:00")
    now = us("2020-03-02 00:00+00:00") + 1
    found = between(rule, begin, now)
    assert latest(rule, begin, now, 1) == found[-1:]
    assert latest(rule, begin, now, 100) == found[-100:]
    assert latest(rule, now - 1, now, 100) == between(rule, now - 1, now)


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("", "5 fields"),
        ("30 2 * *", "5 fields"),
        ("0 30 2 * * *", "5 fields"),
        ("@daily", "5 fields"),
        ("60 2 * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        (5, "must be a str"),
    ],
)
def test_bad_expressions(expression: str, what: str) -> None:
    with pytest.raises(qindex.UsageError, match=what) as raised:
        Cron(checked_cron(expression), "UTC").after(0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["Mars/Base", "", "../etc/passwd", "Europe", 5])
def test_bad_time_zones(name: str) -> None:
    with pytest.raises(qindex.UsageError, match="no time zone"):
        zone(name)


def test_without_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(qindex.UsageError, match="pip install cronsim"):
        Cron("30 2 * * *", "UTC").after(0)
    assert Every(5, 0).after(7) == 10
