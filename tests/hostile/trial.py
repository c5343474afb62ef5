"""Actions on directories, in a process that may take so much for each and no more."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from journal.errors import StoreError
from qindex.format import layout
from tests.hostile.actions import actions_of
from tests.hostile.stores import OURS, build, names_of
from tests.hostile.tampering import DIRECTORIES, FILES, Outside, tamper

__all__ = ["Case", "Trial", "cases", "run_cases"]

SECONDS = 5
"""Of processor time."""
_WAIT = 60
"""Seconds in all: the machine may be busy; who waits for a FIFO waits for ever."""
MEMORY = 200 << 20
"""Bytes beyond those of the interpreter and what it has loaded."""
_LARGEST_FILE = 1 << 30
_LONGEST = 4000
"""Bytes of an answer: a pipe takes them, and what is behind them, at once."""


@dataclass(frozen=True, slots=True)
class Case:
    """``how`` something stands in the place of ``name``, and what is done then."""

    kind: str
    action: str
    name: str
    how: str
    is_file: bool

    def __str__(self) -> str:
        return f"{self.kind}: {self.name} as {self.how}: {self.action}"


@dataclass(frozen=True, slots=True)
class Trial:
    """``broken``: what must not be, or ``None``; ``answer``: what the user was told."""

    case: Case
    answer: str
    broken: str | None


def cases(kind: str, store: Path) -> Iterator[Case]:
    """Give all cases of a store of that kind."""
    files, directories = names_of(kind, store)
    for names, hows, is_file in ((files, FILES, True), (directories, DIRECTORIES, False)):
        for name in names:
            for how in hows:
                for action in actions_of(kind):
                    yield Case(kind, action, name, how, is_file)


def run_cases(chosen: Iterable[Case], scratch: Path) -> Iterator[Trial]:
    """Try each of the cases, which are of one kind; ``scratch`` is an empty directory."""
    pattern: Path | None = None
    for _, alike in groupby(chosen, lambda case: (case.name, case.how)):
        group = list(alike)
        if pattern is None:
            pattern = build(group[0].kind, scratch / "pattern")
        tasks, outsides = [], []
        for number, case in enumerate(group):
            store = scratch / f"place {number}" / "store"
            shutil.copytree(pattern, store)
            outside = Outside(scratch / f"outside {number}")
            tamper(case.how, store / case.name, outside, is_file=case.is_file)
            tasks.append((actions_of(case.kind)[case.action], store))
            outsides.append(outside)
        answers = all_confined(tasks)
        for case, (_, store), outside, answered in zip(
            group, tasks, outsides, answers, strict=True
        ):
            answer, broken = answered
            if case.action == "verify" and answer.startswith("ok, 0") and _is_to_be_found(case):
                broken = "verify found nothing"
            changed = outside.changed
            if changed:
                broken = f"outside of the store {changed[0]} was changed"
            yield Trial(case, answer, broken)
            shutil.rmtree(store.parent)
            shutil.rmtree(outside.path)


_AS_SERVERS_LEAVE = {(layout.SERVER_SOCKET, "socket"), (layout.SERVER_MAKING, "directory")}


def _is_to_be_found(case: Case) -> bool:
    """Tell whether verify has to say something: not of the bytes of files that nobody reads."""
    if (case.name, case.how) in _AS_SERVERS_LEAVE:
        return False
    if case.name in (layout.SERVER_LOCK, layout.SERVER_LOG, layout.SERVED) and case.how in (
        "sparse",
        "grown",
    ):
        return False
    return case.kind in OURS or case.how not in ("sparse", "grown", "directory", "file")


Task = tuple[Callable[[Path], int], Path]
"""An action, and the store it is done to."""


def confined(action: Callable[[Path], int], store: Path) -> tuple[str, str | None]:
    """Do it in a child process; give what it answered, and what was wrong with that."""
    return all_confined([(action, store)])[0]


def all_confined(tasks: Sequence[Task]) -> list[tuple[str, str | None]]:
    """:func:`confined` for each of the tasks. One child does them, one after the other; what is
    left when it dies, another one."""
    done: list[tuple[str, str | None]] = []
    while len(done) < len(tasks):
        answers, status = _in_a_child(tasks[len(done) :])
        done += [(one, one if one.startswith("BROKEN") else None) for one in answers]
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            names: dict[int, str] = {
                signal.SIGPROF: f"over {SECONDS} s",
                signal.SIGALRM: "it hangs",
            }
            done.append(("", names.get(number, f"died of {signal.Signals(number).name}")))
        elif len(done) < len(tasks):
            done.append(("", f"the process ended, {status}"))
    return done


def _in_a_child(tasks: Sequence[Task]) -> tuple[list[str], int]:
    """Give the answers to the tasks, or to the first of them, and how the child ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        for action, store in tasks:
            answer = _answer(action, store).encode(errors="replace")[:_LONGEST]
            os.write(writing, answer.replace(b"\0", b"?") + b"\0")
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answers = pipe.read().decode(errors="replace").split("\0")[:-1]
    return answers, os.waitpid(child, 0)[1]


def _answer(action: Callable[[Path], int], store: Path) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.alarm(_WAIT)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + MEMORY
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        found = action(store)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-6:]
        trace = " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(where))
        return f"BROKEN {type(error).__name__}: {error} ({trace})"
    return f"ok, {found} findings"


def settle(kinds: Iterable[str]) -> None:
    """Load all that actions load, so that it is there before the first child."""
    scratch = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        for kind in kinds:
            pattern = build(kind, scratch / kind)
            for name, action in actions_of(kind).items():
                store = scratch / f"{kind} {name}" / "store"
                shutil.copytree(pattern, store)
                action(store)
    finally:
        shutil.rmtree(scratch)
