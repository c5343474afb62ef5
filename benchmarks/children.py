"""Programs of this package as child processes."""

from __future__ import annotations

from pathlib import Path

from journal.child import command

_ROOT = Path(__file__).resolve().parents[1]


def module_command(name: str, *words: str) -> list[str]:
    """Return the command that runs the program ``benchmarks.NAME``, to be started in ``/``."""
    return command(f"benchmarks.{name}", *words, root=_ROOT)
