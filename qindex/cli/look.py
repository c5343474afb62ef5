"""``list``, ``cat`` and ``stats``: look into a store, ours or a RabbitMQ node's, and change
nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from journal.errors import StoreError, UsageError
from qindex.cli.opening import ask_server
from qindex.cli.output import (
    key_text,
    preview,
    print_findings,
    print_json,
    print_line,
    write_out,
)
from qindex.cli.tables import human_count, human_size, print_flowing, print_queues
from qindex.format.json_value import plain_value
from qindex.metrics import exposition, store_families
from qindex.view.reader import MessageStoreSummary, QueueReader, QueueSummary, Row, StoreReader
from qindex.view.row_json import row_json

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="The store's directory.", show_default=False)
]


_OFFERED = re.compile(r"[\w.@:-]+")


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of queues that begin so, for a shell's completion.

    Names with characters that a shell may act on are left out: some shells take what they are
    offered as words of a command, and run its content.
    """
    try:
        names = StoreReader(str(context.params.get("directory", ""))).queue_names()
    except (StoreError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete) and _OFFERED.fullmatch(name)]


QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="The queue's name.",
        show_default=False,
        autocompletion=complete_queue,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

EntryCountOption = Annotated[
    int | None,
    typer.Option(
        "--segment-entry-count",
        metavar="N",
        help="Entries per segment of a RabbitMQ virtual host that has lost its .config.",
        show_default=False,
    ),
]

_SIZES = ("size", "live", "garbage")
"""Figures of a message store that are bytes."""

WideOption = Annotated[
    bool, typer.Option("--wide", help="Print all figures, exactly, in lines of any length.")
]


def list_command(
    directory: Directory,
    wide: WideOption = False,
    entry_count: EntryCountOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the queues of a store, also of one in use or of a RabbitMQ node.

    DIR is a store's directory or that of a RabbitMQ virtual host. ready: messages that wait for a
    consumer. unacked: messages with a consumer ("-": known only to the process that has the store
    open; a server is asked). bytes: of the bodies. on disk: the files of the queue. version: of
    RabbitMQ's queue files (1+2: a conversion was interrupted). Settings follow their queue.
    """
    store = StoreReader(directory, segment_entry_count=entry_count)
    found = []
    code = 0
    for reader in store.readers():
        summary = reader.summary_if_there()
        if summary is None:
            continue
        found.append(summary)
        code |= print_findings(reader.findings)
    found = ask_server(directory, found)
    if as_json:
        for summary in found:
            print_json(_summary_json(summary) | {"kind": store.kind})
    else:
        print_queues(found, wide=wide)
    return code | print_findings(store.findings)


def _summary_json(summary: QueueSummary) -> dict[str, Any]:
    return dataclasses.asdict(summary) | {"name": plain_value(summary.name)}


def stats_command(
    directory: Directory,
    as_json: JsonOption = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the figures in Prometheus's text form.")
    ] = False,
    wide: WideOption = False,
    entry_count: EntryCountOption = None,
) -> int:
    """Print the figures of the queues, their sum, and those of the message store.

    DIR is a store's directory, in use or not, or that of a RabbitMQ virtual host; nothing is
    changed. Message store: live is bytes of messages that queues hold; garbage, the rest of its
    files; references, how often queues hold them; missing, messages that queues hold and the store
    lacks (then it exits 1).
    """
    store = StoreReader(directory, segment_entry_count=entry_count)
    found = []
    code = 0
    for reader in store.readers():
        summary = reader.summary_if_there()
        if summary is not None:
            found.append(summary)
            code |= print_findings(reader.findings)
    found = ask_server(directory, found)
    messages = store.message_store()
    if prometheus and as_json:
        raise UsageError("either --json or --prometheus")
    if prometheus:
        write_out(exposition(store_families(found, messages)).encode())
    elif as_json:
        shown = None if messages is None else dataclasses.asdict(messages)
        queues = [_summary_json(summary) for summary in found]
        print_json({"kind": store.kind, "queues": queues, "message_store": shown})
    else:
        print_queues(found, wide=wide)
        _print_sums(found, messages, wide=wide)
    if messages is not None and messages.missing:
        code = 1
    return code | print_findings(store.findings)


def _print_sums(
    found: list[QueueSummary], messages: MessageStoreSummary | None, *, wide: bool
) -> None:
    count: Callable[[int], str] = str if wide else human_count
    size: Callable[[int], str] = str if wide else human_size
    on_disk = "file_bytes" if wide else "on disk"
    say: Callable[[str], None] = print_line if wide else print_flowing
    print_line()
    say(
        f"queues: {count(len(found))}, messages: {count(sum(one.messages for one in found))}, "
        f"bytes: {size(sum(one.bytes for one in found))}, "
        f"{on_disk}: {size(sum(one.file_bytes for one in found))}"
    )
    if messages is not None:
        shown = (
            f"{name}: {(size if name in _SIZES else count)(value)}"
            for name, value in dataclasses.asdict(messages).items()
        )
        say("message store: " + ", ".join(shown))


def cat_command(
    directory: Directory,
    queue: QueueName,
    as_json: JsonOption = False,
    count: Annotated[
        int | None, typer.Option(min=0, help="Print at most this many messages.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Print only messages with this key.")] = None,
    entry_count: EntryCountOption = None,
) -> int:
    """Print the messages of a queue in order of delivery, and change nothing.

    Without --json a line has the seq_id; p(ersistent) or t(ransient), r(edelivered); the place; the
    size of the body in bytes; the key; the start of the body. Exits 1 on damage: the sound messages
    come first, then a line for each damaged place.
    """
    store = StoreReader(directory, segment_entry_count=entry_count)
    reader = store.queue(queue)
    _print_rows(reader, as_json=as_json, count=count, key=key)
    return print_findings([*reader.findings, *store.findings])


def _print_rows(reader: QueueReader, *, as_json: bool, count: int | None, key: str | None) -> None:
    printed = 0
    if count == 0:
        return
    for row in reader.entries():
        if key is not None and row.key != key:
            continue
        if as_json:
            print_json(row_json(row))
        else:
            print_line(_row_line(row))
        printed += 1
        if printed == count:
            return


def _row_line(row: Row) -> str:
    flags = ("p" if row.persistent else "t") + ("r" if row.redelivered else "-")
    text = f"{key_text(row.key)} {row.error or preview(row.body)}"
    return f"{row.seq_id:>10} {flags} {row.location:<7} {row.size:>9} {text}".rstrip()
