"""``follow``: print the messages of a queue as another process publishes them."""

from __future__ import annotations

from typing import Annotated

import typer

from journal.errors import UsageError
from qindex.cli.look import Directory, JsonOption, QueueName
from qindex.cli.output import (
    delivery_json,
    flush,
    key_text,
    preview,
    print_json,
    print_line,
    print_note,
)
from qindex.following import Gap, follow
from qindex.following.follower import Start
from qindex.queue.delivery import Delivery

_GAP_FOUND = 1


def follow_command(
    directory: Directory,
    queue: QueueName,
    start: Annotated[
        str,
        typer.Option("--from", help="earliest (the oldest there is), latest, or a seq_id."),
    ] = "latest",
    count: Annotated[
        int | None, typer.Option(min=0, help="Print at most this many messages.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="End after this many seconds without a message.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a store or a queue that is not there yet.")
    ] = False,
    poll: Annotated[float, typer.Option(help="The most seconds between two looks.")] = 0.05,
    as_json: JsonOption = False,
) -> int:
    """Print messages as they are published, acknowledged or not, and change nothing.

    It ends when the queue is deleted, with --timeout or --count, or with Ctrl-C. Messages that were
    acknowledged and flushed before it saw them are named on standard error (with --json: a line
    {"gap": [first, last]} on standard output); then it exits 1.
    """
    if count == 0:
        return 0
    code = 0

    def on_gap(gap: Gap) -> None:
        nonlocal code
        code = _GAP_FOUND
        if as_json:
            print_json({"gap": [gap.first, gap.stop - 1], "reason": gap.reason})
        else:
            print_note(f"gap: {gap}")

    printed = 0
    with follow(directory, queue, _start(start), wait=wait, poll=poll, on_gap=on_gap) as follower:
        while printed != count:
            delivery = follower.get(timeout=0)
            if delivery is None:
                # The reader at the other end sees them now, and not by one system call each.
                flush()
                delivery = follower.get(timeout=timeout)
                if delivery is None:
                    break
            if as_json:
                print_json(delivery_json(delivery))
            else:
                print_line(_line(delivery))
            printed += 1
    return code


def _start(text: str) -> Start:
    if text.isascii() and text.isdigit():
        return int(text)
    if text == "earliest" or text == "latest":
        return "earliest" if text == "earliest" else "latest"
    raise UsageError(f"--from must be earliest, latest or a seq_id, not {text!r}")


def _line(delivery: Delivery) -> str:
    size = len(delivery.body)
    line = f"{delivery.seq_id:>10} {size:>9} {key_text(delivery.key)} {preview(delivery.body)}"
    return line.rstrip()
