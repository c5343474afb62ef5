"""``compact``: give the space of dead messages back."""

from __future__ import annotations

import dataclasses

import qindex
from journal.errors import NotAStoreError
from msgstore import CompactionReport
from qindex.cli.look import Directory, JsonOption
from qindex.cli.output import print_json, print_line
from qindex.view.reader import StoreReader

__all__ = ["compact_command"]


def compact_command(directory: Directory, as_json: JsonOption = False) -> int:
    """Give the space of dead messages in the message store back now.

    An engine at work does it by itself, in the background; this is for a store that is not open.
    Files without a live message are deleted; the live messages of files that are mostly garbage
    are combined into new ones. Nothing is lost if this is killed.
    """
    if StoreReader(directory).kind != "qindex":
        raise NotAStoreError(f"{directory}: a RabbitMQ directory: its node compacts it")
    with qindex.open(directory, background=False) as engine:
        report = engine.compact() or CompactionReport()
        stats = engine.stats().message_store
    size, live = (0, 0) if stats is None else (stats.size, stats.live)
    if as_json:
        fields = dataclasses.asdict(report) | {"reclaimed": report.reclaimed}
        print_json(fields | {"size": size, "live": live})
    else:
        print_line(
            f"reclaimed {report.reclaimed} bytes: {report.files_deleted} files deleted, "
            f"{report.files_written} written; the message store has {size} bytes, {live} live"
        )
    return 0
