"""``list``, ``cat`` and ``stats``: look into a store, ours or a RabbitMQ node's, and change
nothing."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from journal.errors import UsageError
from qindex.cli.output import (
    key_text,
    preview,
    print_findings,
    print_json,
    print_line,
    settings_text,
    write_out,
)
from qindex.format.json_value import plain_value
from qindex.metrics import exposition, store_families
from qindex.view.reader import MessageStoreSummary, QueueReader, QueueSummary, Row, StoreReader
from qindex.view.row_json import row_json

__all__ = [
    "Directory",
    "JsonOption",
    "QueueName",
    "cat_command",
    "list_command",
    "stats_command",
]

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="The store's directory.", show_default=False)
]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

_COLUMNS = (
    "name",
    "ready",
    "unacked",
    "bytes",
    "file_bytes",
    "segments",
    "journal_entries",
    "next_seq_id",
)


def list_command(directory: Directory, as_json: JsonOption = False) -> int:
    """List the queues of a store: also of one that is in use, or that a RabbitMQ node wrote.

    DIR is a store's directory or that of a RabbitMQ virtual host. unacked: delivered and not
    acknowledged ("-": the node was killed and nobody knows). bytes: of the bodies. version: of
    RabbitMQ's queue files (1+2: a node was stopped while it converted them). settings: of queues
    that have some.
    """
    store = StoreReader(directory)
    found = []
    code = 0
    for reader in store.readers():
        summary = reader.summary_if_there()
        if summary is None:
            continue
        found.append(summary)
        if as_json:
            print_json(_summary_json(summary) | {"kind": store.kind})
        code |= print_findings(reader.findings)
    if not as_json:
        _print_table(found)
    return code | print_findings(store.findings)


def _summary_json(summary: QueueSummary) -> dict[str, Any]:
    return dataclasses.asdict(summary) | {"name": plain_value(summary.name)}


def stats_command(
    directory: Directory,
    as_json: JsonOption = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus' text form.")
    ] = False,
) -> int:
    """Print figures of the queues, their sum, and those of the message store.

    DIR is a store's directory (in use or not) or that of a RabbitMQ virtual host; nothing is
    changed. Of the message store: live, bytes of messages that queues hold; garbage, the rest of
    its files; references, how often queues hold them; missing, messages that queues hold and
    that are not there (then it exits 1).
    """
    store = StoreReader(directory)
    found = []
    code = 0
    for reader in store.readers():
        summary = reader.summary_if_there()
        if summary is not None:
            found.append(summary)
            code |= print_findings(reader.findings)
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
        _print_table(found)
        _print_sums(found, messages)
    if messages is not None and messages.missing:
        code = 1
    return code | print_findings(store.findings)


def _print_sums(found: list[QueueSummary], messages: MessageStoreSummary | None) -> None:
    print_line()
    print_line(
        f"queues: {len(found)}, messages: {sum(one.messages for one in found)}, "
        f"bytes: {sum(one.bytes for one in found)}, "
        f"file_bytes: {sum(one.file_bytes for one in found)}"
    )
    if messages is not None:
        fields = dataclasses.asdict(messages).items()
        print_line("message store: " + ", ".join(f"{name}: {value}" for name, value in fields))


def _print_table(found: list[QueueSummary]) -> None:
    columns = (*_COLUMNS, "versions") if any(one.versions for one in found) else _COLUMNS
    heads = tuple("version" if name == "versions" else name for name in columns)
    rows = [heads, *(tuple(_cell(getattr(one, name)) for name in columns) for one in found)]
    settings = [settings_text(one.settings) for one in found]
    last = ["settings" if any(settings) else "", *settings]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    for row, said in zip(rows, last, strict=True):
        name, *figures = row
        shown = name if name.isprintable() else ascii(name)
        cells = [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        print_line("  ".join([shown.ljust(widths[0]), *cells, said]).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def cat_command(
    directory: Directory,
    queue: QueueName,
    as_json: JsonOption = False,
    count: Annotated[
        int | None, typer.Option(min=0, help="Print this many messages at most.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Print messages with this key only.")] = None,
) -> int:
    """Print the messages of a queue in order of delivery, and change nothing.

    Without --json a line has seq_id; p(ersistent) or t(ransient), r(edelivered); where the
    message is; the size of its body in bytes; key; the start of the body. Exits 1 when something
    is damaged: the sound messages come first, then a line for each damaged place.
    """
    store = StoreReader(directory)
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
