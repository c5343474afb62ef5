"""``export``, ``import``, ``push``, ``pull``: messages into files and brokers, and out of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from journal.errors import NotAStoreError, UsageError
from qindex.cli.look import Directory, JsonOption, QueueName, complete_queue
from qindex.cli.opening import open_here, served
from qindex.cli.output import (
    flush,
    print_findings,
    print_note,
    print_result,
    progress_bar,
    write_out,
)
from qindex.view.reader import StoreReader

FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="jsonl or parquet. Default: by the end of the file's name."),
]
AmqpOption = Annotated[
    str,
    typer.Option(
        "--amqp",
        metavar="URL",
        help="The broker: amqp://user:password@host:port/vhost.",
        show_default=False,
    ),
]
CountOption = Annotated[int | None, typer.Option(min=0, help="Move at most this many messages.")]


def export_command(
    directory: Directory,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUEUE]",
            help="Queues. Default: all.",
            show_default=False,
            autocompletion=complete_queue,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The new file: .jsonl or .parquet; - for standard output."
        ),
    ] = None,
    format: FormatOption = None,
    as_json: JsonOption = False,
) -> int:
    """Write messages into a file, in order and without loss; changes nothing in the store.

    DIR is a store's directory, in use or not, or that of a RabbitMQ virtual host. Run an
    interrupted export again to resume it; with --out - it writes JSON Lines to standard output, and
    starts anew. Exits 1 if it left out damaged messages.
    """
    from qindex.transfer import export_messages, stream_messages

    if out is None:
        raise UsageError("export needs --out FILE, or --out - for standard output")
    to_output = str(out) == "-"
    with progress_bar("exporting") as told:
        if to_output:
            report = stream_messages(
                directory, write_out, queues or None, format=format, progress=told
            )
        else:
            report = export_messages(directory, out, queues or None, format=format, progress=told)
    if to_output:
        flush()  # standard output is for the messages
    else:
        figures = {"messages": report.messages, "resumed": report.resumed}
        shown = f"exported {report.messages} to {report.path}{_resumed(report.resumed)}"
        print_result(as_json, {"file": report.path, **figures, "damaged": report.damaged}, shown)
    if report.damaged:
        print_note(f"{report.damaged} damaged messages are left out")
    return print_findings(report.findings) or int(report.damaged > 0)


def import_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE... DIR", help="Files, and the store's directory.")
    ],
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", help="The queue for all messages. Default: the queues that the file names."
        ),
    ] = None,
    format: FormatOption = None,
    as_json: JsonOption = False,
) -> int:
    """Publish the messages of files that export wrote; makes both store and queues.

    All files are checked before anything is published. Run an interrupted import again to resume
    it. A finished import publishes its messages again.
    """
    from qindex.transfer import import_messages

    *files, directory = paths
    if not files:
        raise UsageError("import needs FILE... and DIR")
    with progress_bar("importing") as told:
        report = import_messages(
            files, directory, queue, format=format, progress=told, **served(str(directory))
        )
    figures = {"messages": report.messages, "resumed": report.resumed, "queues": report.queues}
    shown = f"imported {report.messages} to {directory}{_resumed(report.resumed)}"
    print_result(as_json, figures, shown)
    return 0


def push_command(
    directory: Directory,
    queue: QueueName,
    amqp: AmqpOption,
    to: Annotated[
        str | None,
        typer.Option("--to", help="The broker's queue. Default: the one with the same name."),
    ] = None,
    exchange: Annotated[
        str, typer.Option(help="Publish to this exchange, each message with its own key.")
    ] = "",
    count: CountOption = None,
    as_json: JsonOption = False,
) -> int:
    """Move a queue's messages into a RabbitMQ broker.

    A message is acknowledged here when the broker has confirmed it. Exits 1 if the broker refuses
    some; they stay here.
    """
    brokers = _brokers()
    store = StoreReader(directory)
    known = store.queue(queue)
    if store.kind != "qindex":
        raise NotAStoreError(f"{directory}: a RabbitMQ directory: salvage it into a store first")
    with (
        open_here(directory) as engine,
        progress_bar("pushing", known.summary().messages) as told,
    ):
        report = brokers.push(
            engine.queue(known.name),
            amqp,
            to=to,
            exchange=exchange,
            count=count,
            told=None if told is None else lambda done: told(done, 0),
        )
    figures = {"queue": queue, "pushed": report.messages, "refused": report.refused}
    print_result(as_json, figures, f"pushed {report.messages} of {queue}")
    if report.refused:
        print_note(f"the broker refused {report.refused} messages: they are still in {queue}")
    return int(report.refused > 0)


def pull_command(
    source: Annotated[str, typer.Argument(metavar="QUEUE", help="The broker's queue.")],
    directory: Directory,
    amqp: AmqpOption,
    to: Annotated[
        str | None,
        typer.Option("--to", help="The queue here. Default: the one with the same name."),
    ] = None,
    count: CountOption = None,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds to wait for another message.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> int:
    """Move messages out of a queue of a RabbitMQ broker; makes both store and queue.

    A message is acknowledged to the broker when it is on disk here.
    """
    brokers = _brokers()
    waiting = brokers.ready(amqp, source)  # before anything is made here
    with open_here(directory) as engine, progress_bar("pulling", waiting) as told:
        moved = brokers.pull(
            amqp,
            source,
            engine.queue(to or source),
            count=count,
            timeout=timeout,
            told=None if told is None else lambda done: told(done, 0),
        )
    target = to or source
    print_result(as_json, {"queue": target, "pulled": moved}, f"pulled {moved} to {target}")
    return 0


def _brokers() -> ModuleType:
    """Import what needs pika."""
    try:
        return importlib.import_module("qindex.transfer.brokers")
    except ModuleNotFoundError as error:
        raise UsageError(f"this needs {error.name}: pip install qindex[rabbitmq]") from error


def _resumed(count: int) -> str:
    return f" ({count} of them before)" if count else ""
