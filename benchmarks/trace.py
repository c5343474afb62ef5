"""Reads a system call trace: what was synced and written between the marks of a worker.

strace sees every library alike, and does not depend on what a library says of itself. It does
not see stores into memory-mapped files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.footprint import MARK

_WRITES = frozenset({"write", "pwrite64", "writev", "pwritev", "pwritev2"})
_SYNCS = frozenset({"fsync", "fdatasync", "sync_file_range", "msync"})
_MARKS = frozenset({"access", "faccessat", "faccessat2"})

_CALL = re.compile(r"^(?P<pid>\d+)\s+(?P<name>\w+)\((?P<rest>.*)$")
_RESUMED = re.compile(r"^(?P<pid>\d+)\s+<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)$")
_RESULT = re.compile(r"=\s+(?P<value>-?\d+)[^=]*$")


@dataclass(slots=True)
class Phase:
    """The events between one mark and the next. ``written`` is in bytes."""

    syncs: int = 0
    writes: int = 0
    written: int = 0


def command(output: Path) -> list[str] | None:
    """Give the command to run a worker under, or ``None`` where there is no tracer."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    calls = ",".join(f"?{name}" for name in sorted(_WRITES | _SYNCS | _MARKS))
    return [strace, "-f", "-qq", "--seccomp-bpf", "-s", "0", "-e", f"trace={calls}"] + [
        "-e",
        "signal=none",
        "-o",
        str(output),
    ]


def read(lines: Iterable[str]) -> dict[str, Phase]:
    """Sum the calls of each phase; a call belongs to the phase that it ended in."""
    phases: dict[str, Phase] = {}
    current: Phase | None = None
    arguments: dict[str, str] = {}
    for line in lines:
        call = _CALL.match(line)
        if call is not None and line.rstrip().endswith("<unfinished ...>"):
            arguments[call["pid"]] = call["rest"]
            continue
        match = call or _RESUMED.match(line)
        if match is None:
            continue
        rest = (
            match["rest"] if call is not None else arguments.pop(match["pid"], "") + match["rest"]
        )
        if match["name"] in _MARKS:
            if MARK in rest:
                current = phases.setdefault(rest.partition(MARK)[2].partition('"')[0], Phase())
            continue
        result = _RESULT.search(rest)
        if current is None or result is None or int(result["value"]) < 0:
            continue
        if match["name"] in _WRITES:
            current.writes += 1
            current.written += int(result["value"])
        elif match["name"] != "msync" or "MS_SYNC" in rest:
            current.syncs += 1
    return phases
