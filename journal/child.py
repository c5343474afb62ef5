"""Child processes that run a module of this project, and nothing else by accident."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_START = (
    "import sys, runpy; sys.path.append({root!r}); "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def command(module: str, *arguments: str, root: Path = _ROOT) -> list[str]:
    """Return the command that runs a module, found in the directory that this package is in.

    Start it with ``cwd="/"``. The working directory of the caller is not on its path: a file named
    ``json.py`` there would run with the caller's rights. `root` is searched last, so that a file
    beside the packages does not take the place of a module of the standard library either.
    """
    start = _START.format(root=str(root), module=module)
    return [sys.executable, "-P", "-c", start, *arguments]
