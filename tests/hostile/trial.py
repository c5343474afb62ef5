"""One action on one directory, in a process of its own that may take so much and no more."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from journal.errors import StoreError
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
    for case in chosen:
        if pattern is None:
            pattern = build(case.kind, scratch / "pattern")
        place = scratch / "place"
        place.mkdir()
        store = place / "store"
        shutil.copytree(pattern, store)
        outside = Outside(scratch / "outside")
        tamper(case.how, store / case.name, outside, is_file=case.is_file)
        answer, broken = confined(actions_of(case.kind)[case.action], store)
        if case.action == "verify" and answer.startswith("ok, 0") and _is_to_be_found(case):
            broken = "verify found nothing"
        changed = outside.changed
        if changed:
            broken = f"outside of the store {changed[0]} was changed"
        yield Trial(case, answer, broken)
        shutil.rmtree(place)
        shutil.rmtree(outside.path)


def _is_to_be_found(case: Case) -> bool:
    """Tell whether verify has to say something: not of the bytes of files that nobody reads."""
    return case.kind in OURS or case.how not in ("sparse", "grown", "directory", "file")


def confined(action: Callable[[Path], int], store: Path) -> tuple[str, str | None]:
    """Do it in a child process; give what it answered, and what was wrong with that."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.write(writing, _answer(action, store).encode(errors="replace")[:4096])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names: dict[int, str] = {signal.SIGXCPU: f"over {SECONDS} s", signal.SIGALRM: "it hangs"}
        return answer, names.get(number, f"died of {signal.Signals(number).name}")
    return answer, answer if answer.startswith("BROKEN") else None


def _answer(action: Callable[[Path], int], store: Path) -> str:
    signal.alarm(_WAIT)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
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
