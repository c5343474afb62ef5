"""``purge``, ``delete`` and ``compact``: drop what a queue holds, or the queue with it; give the
space of dead messages back."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from journal.errors import UsageError
from msgstore import CompactionReport
from qindex.cli.look import Directory, JsonOption, QueueName
from qindex.cli.opening import known_queue, open_here, refuse_node
from qindex.cli.output import print_result
from qindex.view.reader import StoreReader


def purge_command(directory: Directory, queue: QueueName, as_json: JsonOption = False) -> int:
    """Drop all messages of a queue; the queue and its settings stay.

    The store must be closed, or open in a server. No dead-letter queue gets the messages.
    """
    name = known_queue(directory, queue)
    with open_here(directory) as engine:
        dropped = engine.queue(name).purge()
    print_result(as_json, {"queue": name, "purged": dropped}, f"purged {dropped} of {name}")
    return 0


def delete_command(
    directory: Directory,
    queue: QueueName,
    force: Annotated[
        bool, typer.Option("--force", help="Also when the queue still has messages.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Delete a queue and its settings; with --force also its messages.

    The store must be closed, or open in a server. Without --force a queue with messages is refused.
    """
    name = known_queue(directory, queue)
    with open_here(directory) as engine:
        stats = engine.queue(name).stats()
        held = stats.ready + stats.unacked
        if held and not force:
            raise UsageError(f"queue {name!r} has {held} messages: --force deletes them as well")
        engine.delete_queue(name)
    shown = f"deleted {name} with {held} messages"
    print_result(as_json, {"queue": name, "deleted": held}, shown)
    return 0


def compact_command(directory: Directory, as_json: JsonOption = False) -> int:
    """Reclaim the space of dead messages in the message store.

    An engine does this in the background. The store must be closed, or open in a server. Files
    without a live message are deleted, and the live messages of files that are mostly garbage are
    combined into new files. Killing it loses nothing.
    """
    refuse_node(StoreReader(directory), directory, "its node compacts it")
    with open_here(directory, background=False) as engine:
        report = engine.compact() or CompactionReport()
        stats = engine.stats().message_store
    size, live = (0, 0) if stats is None else (stats.size, stats.live)
    print_result(
        as_json,
        dataclasses.asdict(report) | {"reclaimed": report.reclaimed, "size": size, "live": live},
        f"reclaimed {report.reclaimed} bytes: {report.files_deleted} files deleted, "
        f"{report.files_written} written; the message store has {size} bytes, {live} live",
    )
    return 0
