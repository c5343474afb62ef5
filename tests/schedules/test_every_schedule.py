"""Every schedule of the workloads here with at most two delays (a few: three).

Whole in ``--all``; in the quick tier a part that rotates with the commit; nightly a part of those
with a delay more, and of all with few preemptions. A workload that was not exhausted fails. A
failure names its schedule, and the command that runs it again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import effort

pytestmark = pytest.mark.interpreted
ROOT = Path(__file__).parents[2]
PARTS = effort.by_tier(quick=120, all=8, nightly=8)
_NIGHTLY_SLICES = 40
_SECONDS = effort.by_tier(quick=60, all=120, nightly=3600)
"""CPU seconds that one workload may take."""
_SMALL = ["publish_small_close", "ack_small_close", "get_waits_close", "room_waits_ack"]


def names() -> list[str]:
    """Give the workloads, from their files: importing them would take this process's locks."""
    found: list[tuple[str, str]] = []
    for file in sorted(Path(__file__).parent.glob("*_workloads.py")):
        found += re.findall(r"@workload\(([^)]*)\)\ndef (\w+)", file.read_text())
    return [name for given, name in found if effort.NIGHTLY or "nightly=True" not in given]


NAMES = names()

_LONG = {
    "dead_letters_in_order": 6,
    "transact_flush_fsync": 5,
    "transact_close": 3,
    "reject_reject": 4,
    "follow_publish_flush": 4,
    "close_close": 4,
    "handler_stored_compact": 4,
    "drop_head_close": 3,
    "reject_flush": 3,
    "publish_stored_flush": 3,
    "aio_close_plain_close": 3,
    "rocket_handler_in_checkpoint": 3,
    "dead_letter_close": 3,
    "rocket_fsync_put_put": 3,
    "compact_publish_ack": 2,
}
"""Workloads with many schedules, and in how many slices the quick tier's parts have them: no part
takes much longer than another."""


def dealt(part: int) -> tuple[list[str], list[tuple[str, int, int]]]:
    """Give what a part explores: workloads as a whole, and slices (name, of how many, which)."""
    cuts = _LONG if effort.QUICK else {}
    slices = [(name, cuts[name], turn) for name in cuts for turn in range(cuts[name])]
    whole = [name for name in NAMES if name not in cuts]
    # Dealt on where the slices end: a part has as many of both as another.
    return whole[(part - len(slices)) % PARTS :: PARTS], slices[part::PARTS]


def explored(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run the explorer in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.schedules", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, [json.loads(line) for line in lines], done.stdout + done.stderr


def check(*arguments: str, expected: list[str]) -> None:
    code, told, said = explored(*arguments, "--seconds", str(_SECONDS))
    wrong = []
    for one in told:
        for what, (schedule, count) in one["found"].items():
            again = f"python -m tests.schedules {one['name']} --schedule {schedule}"
            wrong.append(f"{one['name']}: {what} ({count} schedules)\n    {again}")
        if not one["whole"]:
            wrong.append(f"{one['name']}: not exhausted in {_SECONDS} s: {one['runs']}")
    assert not wrong, "\n".join(wrong)
    assert [one["name"] for one in told] == expected, said
    assert code == 0, said


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_schedule(part: int) -> None:
    if effort.QUICK and part != effort.turn(PARTS, "schedules"):
        effort.skip_in_quick(f"part {part} of the schedules is another commit's")
    some, slices = dealt(part)
    if some:
        check(*some, expected=some)
    for name, count, turn in slices:
        check(name, "--slices", str(count), "--turn", str(turn), expected=[name])


def test_the_parts_are_all_of_the_schedules() -> None:
    parts = [dealt(part) for part in range(PARTS)]
    cuts = {name: count for _, slices in parts for name, count, _ in slices}
    turns = [(name, turn) for _, slices in parts for name, _, turn in slices]
    assert sorted([*(name for some, _ in parts for name in some), *cuts]) == sorted(NAMES)
    assert sorted(turns) == sorted((name, at) for name in cuts for at in range(cuts[name]))


@pytest.mark.skipif(not effort.NIGHTLY, reason="nightly")
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES if effort.NIGHTLY else ["each of them"])
def test_one_delay_more(name: str) -> None:
    delays = "4" if "close_close" in name else "3"
    turn = str(effort.turn(_NIGHTLY_SLICES, name))
    slices = str(_NIGHTLY_SLICES)
    check(name, "--delays", delays, "--slices", slices, "--turn", turn, expected=[name])


@pytest.mark.skipif(not effort.NIGHTLY, reason="nightly")
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", _SMALL if effort.NIGHTLY else ["small ones"])
def test_two_preemptions(name: str) -> None:
    check(name, "--preemptive", "--delays", "2", expected=[name])


_PLANTED = [
    ("lock_taken_too_late", "publish_fsync_flush", "after a loss of power: LOST"),
    ("close_waits_for_nobody", "publish_stored_close", ""),
    ("not_asked_behind_the_take", "queue_close", ""),
    ("running_sync_forgotten", "publish_fsync_flush", "after a loss of power: LOST"),
    ("locks_in_the_other_order", "publish_ack_stored", ""),
    ("notify_lost", "get_waits_close", "nobody can run"),
    ("sleeper_not_woken", "lock_of_three", "nobody can run"),
    ("handler_waits_behind_its_thread", "lock_with_a_handler_that_waits", "nobody can run"),
    ("letters_moved_by_several", "dead_letters_in_order", "moved in another order"),
]
"""Defects, where they are found, and how that is said."""


@pytest.mark.parametrize(("defect", "name", "what"), _PLANTED)
def test_a_planted_defect_is_found(defect: str, name: str, what: str) -> None:
    if effort.QUICK and (defect, name, what) not in effort.part(_PLANTED[1:], 5, "planted"):
        effort.skip_in_quick(f"{defect} is another commit's")
    delays = "3" if defect == "lock_taken_too_late" else "2"
    code, told, said = explored(name, "--plant", defect, "--delays", delays)
    assert code == 1, said
    found = told[0]["found"]
    assert len(found) == 1, said
    ((wrong, (schedule, _)),) = found.items()
    assert what in wrong
    # Its schedule alone runs again, and says the same.
    code, _, said = explored(name, "--plant", defect, "--schedule", schedule)
    assert code == 1
    assert f"wrong: {wrong}" in said
    # Without the defect it is sound.
    code, _, said = explored(name, "--schedule", schedule)
    assert code == 0 or "not deterministic" in said, said
