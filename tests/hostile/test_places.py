"""Links, special files and giants in the place of every file and directory of a store."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.effort import by_tier, turn

SHARE = by_tier(quick=131, all=2, nightly=1)


@pytest.mark.timeout(3000)
@pytest.mark.rotates(2)
def test_whatever_stands_in_the_place_of_a_file() -> None:
    """Nothing outside is touched, and it ends in time, in little memory, with an answer or an error
    of ours. A part of the cases, another one with each rotation; ``python -m tests.hostile`` tries
    them all."""
    seed = turn(SHARE, "places")
    command = [sys.executable, "-m", "tests.hostile", "--share", str(SHARE), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    assert " cases, 0 broken" in done.stdout
