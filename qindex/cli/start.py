"""The entry point ``qindex``, where what the command line needs may not be installed."""

from __future__ import annotations

import os
import sys

_NEEDED = ("typer", "rich")
_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def _open_missing_streams() -> None:
    """Open the standard streams that the process was started without (`>&-`).

    Otherwise the next opened file would get the descriptor of a standard stream, and printed text
    would go there. Reads from standard input and writes to standard output fail, as they do for
    programs in C; text for standard error is dropped.
    """
    for name, flags, mode in _STREAMS:
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, flags)  # the lowest that is free
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115


def main() -> int:
    """Run the command line; return the exit code."""
    _open_missing_streams()
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
