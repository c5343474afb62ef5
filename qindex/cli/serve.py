"""``serve``: have a store open for other processes, in the foreground."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from journal.errors import UsageError, storage_errors
from qindex.cli.look import Directory
from qindex.cli.output import flush, print_line


def serve_command(
    directory: Directory,
    durability: Annotated[
        str, typer.Option(help="What is safe when a call returns: os or fsync.")
    ] = "os",
    group: Annotated[
        str | None,
        typer.Option(
            help="A group, by name or number, whose members may also use the store.",
            show_default=False,
        ),
    ] = None,
    lock_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for another process to close the store.")
    ] = 0.0,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log to standard error.")] = False,
) -> int:
    """Serve a store to processes that open it with shared=True, until SIGTERM or SIGINT.

    Use it under systemd and in containers. Elsewhere the first process starts a server. A store
    that was served stays marked: its clients wait for this command. See qindex unserve.
    """
    from qindex.server.__main__ import notify, serve

    if verbose:
        logging.basicConfig(level=logging.INFO)

    def ready() -> None:
        notify("READY=1")
        print_line(f"serving {directory}")
        flush()

    options = {"durability": durability, "lock_timeout": lock_timeout}
    serve(directory, options, linger=None, group=_group(group), ready=ready)
    notify("STOPPING=1")
    return 0


def unserve_command(directory: Directory) -> int:
    """Let clients start a server again, in a store that qindex serve has marked."""
    from qindex.server import place

    with storage_errors(directory, "the store can't be opened"):
        fd = place.open_directory(directory)
    try:
        was_marked = place.unmark(directory, fd)
    finally:
        os.close(fd)
    print_line(f"{directory}: {'clients start servers again' if was_marked else 'was not marked'}")
    return 0


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    if name.isdecimal() and int(name) < 1 << 32:
        return int(name)
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise UsageError(f"there is no group {name!r}") from error
