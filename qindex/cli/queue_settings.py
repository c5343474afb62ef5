"""``queue``: the settings of a queue, shown and changed."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any

import typer

import qindex
from journal.errors import UsageError
from qindex.cli.look import Directory, JsonOption, QueueName
from qindex.cli.opening import open_here
from qindex.cli.output import print_json, print_line
from qindex.format.settings import UNSET, QueueSettings


def queue_command(
    directory: Directory,
    queue: QueueName,
    message_ttl: Annotated[
        float | None, typer.Option(help="Seconds after which a message expires.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Messages that may be ready at a time.")
    ] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Bytes of their bodies.")] = None,
    overflow: Annotated[
        str | None,
        typer.Option(help="What a publish to a full queue does: reject, drop-head, block."),
    ] = None,
    delivery_limit: Annotated[
        int | None, typer.Option(help="The most deliveries of a message.")
    ] = None,
    dead_letter: Annotated[
        str | None, typer.Option(help="The queue that gets rejected, expired and dropped messages.")
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            metavar="exponential:BASE:CAP",
            help="Pause in seconds after a failed delivery, doubled each time up to CAP.",
        ),
    ] = None,
    max_priority: Annotated[
        int | None,
        typer.Option(help="The highest priority of a message, for a queue with priorities."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING", help="Remove a setting; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Show the settings of a queue; with options, change them first (and make the queue).

    Without options nothing is changed, and the store may be in use.
    """
    given: dict[str, Any] = {
        "message_ttl": message_ttl,
        "max_length": max_length,
        "max_bytes": max_bytes,
        "overflow": overflow,
        "delivery_limit": delivery_limit,
        "dead_letter": dead_letter,
        "backoff": backoff,
        "max_priority": max_priority,
    }
    for name in unset or ():
        name = name.replace("-", "_")
        if name not in given:
            raise UsageError(f"no such setting: {name} (there are {', '.join(given)})")
        given[name] = UNSET
    if all(value is None for value in given.values()):
        with qindex.open(directory, read_only=True) as reading:
            settings = reading.queue(queue).settings
    else:
        with open_here(directory) as engine:
            settings = engine.queue(queue, **given).settings
    if as_json:
        print_json({"name": queue, **asdict(settings)})
    else:
        for one in fields(QueueSettings):
            value = getattr(settings, one.name)
            print_line(f"{one.name:<15} {'-' if value is None else value}")
    return 0
