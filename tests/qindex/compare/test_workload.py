"""Workloads: presets, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journal.errors import UsageError
from qindex.compare.workload import PRESETS, Workload, find_preset, make_workload, read_workload


def test_presets_are_those_that_are_documented() -> None:
    expected = {"task-queue", "event-log", "fan-out", "large-bodies", "slow-consumer"}
    assert set(PRESETS) == expected
    assert find_preset("fan-out").groups > 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queues", 0),
        ("queues", 1.5),
        ("publishers", True),
        ("batch", "many"),
        ("seconds", float("nan")),
        ("rate", 0),
        ("durability", "sometimes"),
        ("sizes", "fixed"),
        ("sizes", "fixed:15"),
        ("sizes", "uniform:200:100"),
        ("sizes", "uniform:16"),
        ("sizes", "lognormal:100:9"),
        ("sizes", "fixed:nan"),
        ("sizes", "poisson:3"),
        ("name", 3),
        ("colour", "red"),
    ],
)
def test_what_cannot_be_run_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        make_workload({name: value})


@pytest.mark.parametrize("sizes", ["fixed:77", "uniform:20:900", "lognormal:300:0.8"])
def test_sizes_are_drawn_as_asked_and_the_same_each_time(sizes: str) -> None:
    load = Workload(sizes=sizes)
    drawn = load.draw_sizes(5_000, 4)
    assert drawn == load.draw_sizes(5_000, 4)
    middle = sorted(drawn)[2_500]
    low, high = {"f": (77, 77), "u": (430, 490), "l": (280, 320)}[sizes[0]]
    assert low <= middle <= high
    assert min(drawn) >= 16


def test_a_file_may_start_from_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"preset": "fan-out", "groups": 2}))
    assert read_workload(file) == make_workload({"groups": 2}, PRESETS["fan-out"])
    file.write_text('{"queues": 3}')
    assert read_workload(file) == Workload(name="mine", queues=3)


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"preset": "nope"}', '{"queues": -1}', '{"x": 1}', "\x00"]
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(UsageError):
        read_workload(file)


def test_quick_is_the_same_load_but_less_of_it() -> None:
    for load in PRESETS.values():
        quick = load.quick()
        assert quick.messages < load.messages
        assert (quick.sizes, quick.queues, quick.groups) == (load.sizes, load.queues, load.groups)
