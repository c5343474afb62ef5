"""Run a function as another user of the machine, in a process of its own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

OTHER = 54321
"""A user, and a group, that no file here belongs to."""

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user to try what that one can do"
)


def run_as(
    task: Callable[[], object], *, user: int = OTHER, groups: list[int] | None = None
) -> str:
    """Return what ``task`` returns, as text, or its error, as another user runs it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups(groups or [])
            os.setgid(user)
            os.setuid(user)
            text = str(task())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        os.write(writing, text.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text


def shared(tmp_path: Path) -> Path:
    """Return a directory that every user can reach, and write, as ``/tmp`` is."""
    for one in (tmp_path, *tmp_path.parents):
        if one.stat().st_uid == os.geteuid() and one != Path("/") and not one.stat().st_mode & 1:
            one.chmod(0o755)
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    return place
