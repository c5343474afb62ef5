"""``purge`` and ``delete``: drop what a queue holds, or the queue with it."""

from __future__ import annotations

from typing import Annotated

import typer

import qindex
from journal.errors import NotAStoreError, UsageError
from qindex.cli.look import Directory, JsonOption, QueueName
from qindex.cli.output import print_json, print_line
from qindex.view.reader import StoreReader

__all__ = ["delete_command", "purge_command"]


def purge_command(directory: Directory, queue: QueueName, as_json: JsonOption = False) -> int:
    """Drop all messages of a queue; the queue and its settings stay.

    For a store that is not open. They are gone: no dead-letter queue gets them.
    """
    name = _known(directory, queue)
    with qindex.open(directory) as engine:
        dropped = engine.queue(name).purge()
    if as_json:
        print_json({"queue": name, "purged": dropped})
    else:
        print_line(f"purged {dropped} of {name}")
    return 0


def delete_command(
    directory: Directory,
    queue: QueueName,
    force: Annotated[
        bool, typer.Option("--force", help="Also when the queue still has messages.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Delete a queue, its settings, and with --force its messages.

    For a store that is not open. Without --force a queue that has messages is left as it is.
    """
    name = _known(directory, queue)
    with qindex.open(directory) as engine:
        stats = engine.queue(name).stats()
        held = stats.ready + stats.unacked
        if held and not force:
            raise UsageError(f"queue {name!r} has {held} messages: --force deletes them, too")
        engine.delete_queue(name)
    if as_json:
        print_json({"queue": name, "deleted": held})
    else:
        print_line(f"deleted {name} with {held} messages")
    return 0


def _known(directory: str, queue: str) -> str:
    """Give the name of a queue that is there, in a store of ours. Raises :class:`UsageError`."""
    store = StoreReader(directory)
    name = store.queue(queue).name
    if store.kind != "qindex":
        raise NotAStoreError(f"{directory}: a RabbitMQ directory: its node alone may change it")
    return name
