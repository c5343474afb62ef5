"""The entry point ``qindex``, where what the command line needs may not be installed."""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich")


def main() -> int:
    """Run the command line; gives the exit code."""
    try:
        from qindex.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        sys.stderr.write(
            f'qindex: the command line needs {error.name}: pip install "qindex[cli]"\n'
        )
        return 2
    return run()
