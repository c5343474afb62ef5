"""``schedule DIR ...``: the schedules of a store, and a ticker that publishes their messages."""

from __future__ import annotations

import logging
import os
import signal
from typing import Annotated, Any

import typer

import qindex
from journal.errors import UsageError
from qindex.cli.look import Directory, JsonOption
from qindex.cli.opening import open_here, refuse_node
from qindex.cli.output import flush, key_text, print_json, print_line, print_result
from qindex.cli.tables import aligned
from qindex.cli.traffic import split_header
from qindex.view.reader import StoreReader
from qindex.view.row_json import body_fields

schedule_app: typer.Typer = typer.Typer(
    name="schedule",
    help="Schedules of a store: messages that it publishes at set times.",
    add_completion=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@schedule_app.callback()
def _directory(context: typer.Context, directory: Directory) -> None:
    context.obj = directory


@schedule_app.command("list")
def list_command(context: typer.Context, as_json: JsonOption = False) -> int:
    """List the schedules of a store, also of one in use, with their next and last runs."""
    rows = [("name", "when", "queue", "next", "last", "missed")]
    for one in _listed(context.obj).values():
        if as_json:
            print_json(_json(one))
            continue
        when = f"every {one.every:g} s" if one.every is not None else f"{one.cron} {one.timezone}"
        last = one.last_run.isoformat(" ", "seconds") if one.last_run else "-"
        due = one.next_run.isoformat(" ", "seconds") if one.next_run else "paused"
        rows.append((key_text(one.name), when, key_text(one.queue), due, last, one.missed))
    if not as_json:
        for line in aligned(rows):
            print_line(line)
    return 0


def _json(one: qindex.Schedule) -> dict[str, Any]:
    return {
        "name": one.name,
        "cron": one.cron,
        "timezone": one.timezone,
        "every": one.every,
        "queue": one.queue,
        "key": one.key,
        "headers": one.headers,
        "missed": one.missed,
        "paused": one.paused,
        "next": one.next_run.isoformat() if one.next_run else None,
        "last": one.last_run.isoformat() if one.last_run else None,
        **body_fields(one.body),
    }


def _listed(directory: str) -> dict[str, qindex.Schedule]:
    """Read the schedules from the files of the store, which may be in use."""
    with qindex.open(directory, read_only=True) as reading:
        return reading.schedules()


@schedule_app.command("add")
def add_command(
    context: typer.Context,
    name: Name,
    cron: Annotated[
        str | None,
        typer.Argument(metavar="[CRON]", help='As "30 2 * * *"; or --every.', show_default=False),
    ] = None,
    queue: Annotated[str, typer.Option(help="The queue that gets the messages.")] = "",
    every: Annotated[float | None, typer.Option(help="Seconds between two messages.")] = None,
    body: Annotated[str, typer.Option(help="The messages' body.")] = "",
    key: Annotated[str | None, typer.Option(help="The messages' key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Such as Europe/Amsterdam. Default: UTC.", show_default=False)
    ] = None,
    missed: Annotated[
        str, typer.Option(help="What to do about missed runs: skip, once or all.")
    ] = "once",
    as_json: JsonOption = False,
) -> int:
    """Add a schedule, or change it; makes both store and queue."""
    if not queue:
        raise UsageError("--queue says which queue gets the messages")
    headers: Any = dict(split_header(one) for one in header or ())
    how: Any = missed
    with open_here(context.obj) as engine:
        made = engine.schedule(
            name,
            cron,
            every=every,
            queue=queue,
            body=body.encode("utf-8", "surrogateescape"),
            key=key,
            headers=headers,
            timezone=timezone,
            missed=how,
        )
    due = f"next at {made.next_run}" if made.next_run else "paused"
    print_result(as_json, _json(made), f"scheduled {name}, {due}")
    return 0


@schedule_app.command("pause")
def pause_command(context: typer.Context, name: Name, as_json: JsonOption = False) -> int:
    """Pause a schedule: it publishes nothing until it is resumed."""
    return _change(context.obj, name, "pause", "paused", as_json)


@schedule_app.command("resume")
def resume_command(context: typer.Context, name: Name, as_json: JsonOption = False) -> int:
    """Resume a schedule, with the next instant after now."""
    return _change(context.obj, name, "resume", "resumed", as_json)


@schedule_app.command("remove")
def remove_command(context: typer.Context, name: Name, as_json: JsonOption = False) -> int:
    """Remove a schedule; the messages that it published stay."""
    return _change(context.obj, name, "remove", "removed", as_json)


@schedule_app.command("run-now")
def run_now_command(context: typer.Context, name: Name, as_json: JsonOption = False) -> int:
    """Publish a schedule's message now, paused or not; the next instant stays."""
    return _change(context.obj, name, "run_now", "published", as_json)


def _change(directory: str, name: str, method: str, done: str, as_json: bool) -> int:
    refuse_node(StoreReader(directory), directory, "it has no schedules")
    with open_here(directory) as engine:
        found = engine.schedules().get(name)
        if found is None:
            raise UsageError(f"there is no schedule {name!r}")
        getattr(found, method)()
    print_result(as_json, {"name": name, "done": done}, f"{done} {name}")
    return 0


@schedule_app.command("run")
def run_command(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log to standard error.")] = False,
) -> int:
    """Publish due messages, in the foreground, until SIGTERM or SIGINT.

    It shares the store with other processes. Any number may run on one store.
    """
    from qindex.server.__main__ import notify

    if verbose:
        logging.basicConfig(level=logging.INFO)
    if not os.path.isdir(context.obj):
        raise UsageError(f"{context.obj}: no such directory")
    with qindex.open(context.obj, shared=True) as engine:
        ticker = qindex.Ticker(engine)
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: ticker.ask_to_stop())
        notify("READY=1")
        print_line(f"publishing the schedules of {context.obj}")
        flush()
        ticker.run()
    return 0
