"""``redrive``: put dead letters back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from journal.errors import UsageError
from qindex.cli.look import Directory, JsonOption, QueueName
from qindex.cli.opening import known_queue, open_here
from qindex.cli.output import print_json, print_line
from qindex.view.queue_view import Row
from qindex.worker.redriving import deaths_of

_FIELDS = ("queue", "reason", "cause")


def redrive_command(
    directory: Directory,
    queue: QueueName,
    to: Annotated[
        str | None,
        typer.Option(help="The queue to put them into.", show_default="the one each died in last"),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FIELD=PATTERN",
            help="Only messages whose queue, reason, cause, key or header.NAME matches, as file "
            "names match patterns. All filters must match.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="The most messages per second.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would move; change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Put the messages of a dead-letter queue back into the queues that they died in.

    Each message moves in one step. Run an interrupted redrive again to move the rest.
    """
    wanted = _filter_of(filters or [])
    name = known_queue(directory, queue)
    with open_here(directory) as engine:
        report = engine.queue(name).redrive(to=to, filter=wanted, rate=rate, dry_run=dry_run)
    if as_json:
        left = {"filtered": report.filtered, "without_origin": report.without_origin}
        left["not_ready"] = report.not_ready
        print_json({"moved": dict(report.moved), "dry_run": dry_run} | left)
        return 0
    what = "would move" if dry_run else "moved"
    for name, count in sorted(report.moved.items()):
        print_line(f"{what} {count:,} to {name}")
    if not report.moved:
        print_line("nothing to move")
    for count, why in (
        (report.filtered, "not matched by the filter"),
        (report.without_origin, "do not say where they died; name a queue with --to"),
        (report.not_ready, "delivered to a consumer, or deleted meanwhile"),
    ):
        if count:
            print_line(f"left {count:,}: {why}")
    return 0


def _filter_of(filters: Sequence[str]) -> Callable[[Row], bool] | None:
    """Return a function that matches messages against all of these."""
    pairs = []
    for one in filters:
        name, equals, pattern = one.partition("=")
        if not equals or not (name in (*_FIELDS, "key") or name.startswith("header.")):
            raise UsageError(
                f"--filter {one}: must be FIELD=PATTERN; fields are queue, reason, cause, key, "
                "header.NAME"
            )
        pairs.append((name, pattern))

    def is_wanted(row: Row) -> bool:
        deaths = deaths_of(row.headers)
        latest = deaths[0] if deaths else {}
        for name, pattern in pairs:
            if name == "key":
                found = row.key
            elif name in _FIELDS:
                found = latest.get(name)
            else:
                found = row.headers.get(name.removeprefix("header."))
            if not fnmatchcase("" if found is None else str(found), pattern):
                return False
        return True

    return is_wanted if pairs else None
