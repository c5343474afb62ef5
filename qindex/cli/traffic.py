"""``publish`` and ``consume``: bring messages into a queue, and take them out."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import qindex
from journal.errors import (
    DamageError,
    LeaseExpiredError,
    NotAStoreError,
    QueueFullError,
    StoreError,
    UsageError,
)
from journal.fs.files import REAL
from qindex.cli.look import Directory, JsonOption, QueueName
from qindex.cli.opening import open_here
from qindex.cli.output import (
    delivery_json,
    flush,
    print_findings,
    print_note,
    print_result,
    write_out,
)
from qindex.format.message import Message
from qindex.queue.notes.leases import check_lease
from qindex.view.reader import QueueReader, StoreReader
from qindex.view.row_json import json_line, row_json

_CHUNK = 1 << 16
_BATCH = 500


def publish_command(
    directory: Directory,
    queue: QueueName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Files. Default: standard input.", show_default=False
        ),
    ] = None,
    lines: Annotated[
        bool | None,
        typer.Option(
            "--lines/--whole",
            help="Each line is a message, or each file. Default: lines of standard input, "
            "whole files.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The messages' key.")] = None,
    ttl: Annotated[
        float | None,
        typer.Option(help="Seconds after which a message is dropped once it is at the head."),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(help="Seconds before which a message is not delivered.")
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(help="A key that one message of the queue holds at a time: for one message."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="Higher numbers are delivered first (see queue).")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Wait until the messages are on disk.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Publish lines of standard input, or files, to a queue; makes both store and queue.

    A line is published as soon as it is read, without its newline.
    """
    headers = dict(split_header(one) for one in header or ())
    with open_here(directory) as engine:
        opened = engine.queue(queue)
        publish = _publisher(opened, key, headers, ttl, delay, unique, priority, confirm)
        first: int | None = None
        count = 0
        try:
            for bodies in _batches(files or [], lines):
                for seqs in _as_many_as_fit(publish, bodies):
                    first = seqs[0] if first is None else first
                    count += len(seqs)
        except StoreError:
            if count:  # a second try has to know where to go on
                _print_published(queue, first, count, as_json)
            raise
    _print_published(queue, first, count, as_json)
    return 0


def _print_published(queue: str, first: int | None, count: int, as_json: bool) -> None:
    last = None if first is None else first + count - 1
    fields = {"queue": queue, "published": count, "first_seq_id": first, "last_seq_id": last}
    where = f", seq_id {first} to {last}" if count else ""
    print_result(as_json, fields, f"published {count} to {queue}{where}")


def split_header(text: str) -> tuple[str, str]:
    """Return name and value of a header as it is given. Raises :class:`UsageError`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"a header is NAME=VALUE, not {text!r}")
    return name, value


def _publisher(
    queue: qindex.AnyQueue,
    key: str | None,
    headers: dict[str, str],
    ttl: float | None,
    delay: float | None,
    unique: str | None,
    priority: int | None,
    confirm: bool,
) -> Callable[[list[bytes]], range]:
    """Return the function that publishes a batch, all of it or nothing: one append for all. It does
    not wait for room: unless a server has the store open, no other process makes any."""

    def publish(bodies: list[bytes]) -> range:
        if unique is not None:
            if len(bodies) > 1:
                raise UsageError("--unique is for one message, not for several lines or files")
            seq = queue.publish(
                bodies[0],
                key=key,
                headers=headers,
                ttl=ttl,
                delay=delay,
                unique=unique,
                priority=priority,
                confirm=confirm,
                timeout=0,
            )
            return range(seq, seq + 1)
        batch: list[bytes] | list[Message] = bodies
        if key is not None or headers:
            batch = [Message(body, key, headers) for body in bodies]
        return queue.publish_many(
            batch, ttl=ttl, delay=delay, priority=priority, confirm=confirm, timeout=0
        )

    return publish


def _as_many_as_fit(
    publish: Callable[[list[bytes]], range], bodies: list[bytes]
) -> Iterator[range]:
    """Publish a batch, in parts where it does not fit as a whole, up to the first message that
    does not fit. Raises :class:`QueueFullError` there."""
    try:
        seqs = publish(bodies)
    except QueueFullError:
        if len(bodies) == 1:
            raise
        half = len(bodies) // 2
        yield from _as_many_as_fit(publish, bodies[:half])
        yield from _as_many_as_fit(publish, bodies[half:])
    else:
        yield seqs


def _batches(files: list[Path], lines: bool | None) -> Iterator[list[bytes]]:
    """Yield the bodies, as many at a time as there are to be had without waiting."""
    if not files:
        stream: Any = sys.stdin.buffer
        if lines is False:
            yield [stream.read()]
        else:
            # Bytes that are there come at once, so that a pipeline is fast and a terminal prompt.
            yield from _lines(partial(stream.read1, _CHUNK))
        return
    for path in files:
        with os.fdopen(REAL.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            if lines:
                yield from _lines(partial(file.read, _CHUNK))
            else:
                yield [file.read()]


def _lines(read: Callable[[], bytes]) -> Iterator[list[bytes]]:
    rest = b""
    while chunk := read():
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield whole
    if rest:
        yield [rest]


def consume_command(
    directory: Directory,
    queue: QueueName,
    count: Annotated[
        int | None, typer.Option(min=0, help="Take at most this many messages.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(help='Seconds to wait for another message; "inf": forever.', min=0),
    ] = 0.0,
    lease: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Take one at a time. A message that is not written in time goes back.",
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--peek", help="Only look: take nothing, change nothing."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Take messages out of a queue: each body is written to standard output, and a newline.

    A message is acknowledged when it has left this process. It is delivered again if standard
    output is closed before, if this process is killed, or if the reader takes longer than the
    lease. Damaged messages are reported and skipped.
    """
    if math.isnan(timeout):
        raise UsageError("timeout must be seconds from 0 on, not nan")
    if lease is not None:
        check_lease(lease)
        if keep:
            raise UsageError("either --lease or --peek")
    store = StoreReader(directory)
    known = store.queue(queue)
    if keep:
        _look(known, count, as_json)
        return print_findings([*known.findings, *store.findings])
    if store.kind != "qindex":
        raise NotAStoreError(f"{directory}: a RabbitMQ directory: only --peek works there")
    with open_here(directory) as engine:
        return _drain(engine.queue(known.name), count, timeout, lease, as_json)


def _look(queue: QueueReader, count: int | None, as_json: bool) -> None:
    # Expired messages are shown, as Queue.peek does: they are ready until they leave the queue.
    for row in islice(queue.entries(), count):
        if row.body is None:
            print_note(f"seq_id {row.seq_id}: {row.error}")
        else:
            write_out(json_line(row_json(row)) if as_json else row.body + b"\n")


def _drain(
    queue: qindex.AnyQueue, count: int | None, timeout: float, lease: float | None, as_json: bool
) -> int:
    left = math.inf if count is None else count
    most = _BATCH if lease is None else 1
    wait = None if math.isinf(timeout) else timeout
    code = 0
    while left > 0:
        try:
            batch = queue.get_many(int(min(left, most)), timeout=wait, lease=lease)
        except DamageError as error:
            print_note(str(error))
            code = 1
            continue
        if not batch:
            break
        write_out(b"".join(_shown(delivery, as_json) for delivery in batch))
        flush()
        left -= len(batch)
        try:
            queue.ack_many(batch)
        except LeaseExpiredError:
            if lease is None:
                raise
            print_note(f"seq_id {batch[0].seq_id} took longer than its lease: it comes again")
            code = 1
    # In a shared store they may be with other consumers.
    waiting = queue.stats().unacked if isinstance(queue, qindex.Queue) else 0
    if waiting:
        letters = queue.settings.dead_letter
        print_note(f"{waiting} messages wait to be moved to {letters!r}, which does not take them")
    return code


def _shown(delivery: qindex.Delivery, as_json: bool) -> bytes:
    if as_json:
        return json_line(delivery_json(delivery))
    return delivery.body + b"\n"
