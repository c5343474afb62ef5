"""``top``: a summary of a store, again and again, whether or not a process has it open."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from journal.fs.files import PathLike
from qindex.cli.look import Directory, JsonOption
from qindex.cli.opening import ask_server
from qindex.cli.output import key_text, print_json, print_line
from qindex.format.json_value import plain_value
from qindex.recovery.point_in_time import BusyError
from qindex.view.reader import MessageStoreSummary, QueueSummary, StoreReader

_IDLE_SHARE = 4


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second since the look before; ``delivered`` counts each message once."""

    published: float = 0.0
    delivered: float = 0.0
    acked: float = 0.0

    @classmethod
    def between(cls, before: QueueSummary, now: QueueSummary, seconds: float) -> Rates:
        """Return the rates between two looks at a queue."""
        counts = zip(_totals(before), _totals(now), strict=True)
        return cls(*(max(after - then, 0) / seconds for then, after in counts))


def _totals(one: QueueSummary) -> tuple[int, int, int]:
    """Return the messages of all time: published, delivered, acknowledged."""
    acked = one.next_seq_id - one.messages
    return one.next_seq_id, acked + (one.delivered_before or 0), acked


@dataclass(frozen=True, slots=True)
class Look:
    """A store at one moment; ``rates``: by queue, none in a first look."""

    reader: StoreReader
    at: float
    queues: list[QueueSummary]
    store: MessageStoreSummary | None
    rates: dict[str, Rates]

    @classmethod
    def take(cls, directory: PathLike, before: Look | None = None) -> Look:
        """Look at a store. Raises as :class:`StoreReader`, which has to find it each time."""
        at, reader = monotonic(), StoreReader(directory)
        known = {} if before is None else {one.name: one for one in before.queues}
        since = 0.0 if before is None else before.at
        queues: list[QueueSummary] = []
        rates: dict[str, Rates] = {}
        for queue in reader.readers():
            then = known.get(queue.name)
            try:
                now = queue.summary_if_there()
            except BusyError:
                now = then
            if now is not None:
                queues.append(now)
            if now is not None and then is not None:
                rates[queue.name] = Rates.between(then, now, at - since)
        queues = ask_server(reader.directory, queues)
        return cls(reader, at, queues, reader.message_store(), rates)


_SORTS: dict[str, tuple[str, Callable[[QueueSummary, Look], Any]]] = {
    "n": ("name", lambda one, look: one.name),
    "m": ("messages", lambda one, look: -one.messages),
    "b": ("bytes", lambda one, look: -one.bytes),
    "p": ("published/s", lambda one, look: -look.rates.get(one.name, Rates()).published),
}
_KEYS = "  ".join(f"{key} {name}" for key, (name, _) in _SORTS.items()) + "  q quit"


def top_command(
    directory: Directory,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Show the queues, their rates and the message store's garbage, live.

    Reads files, asks a running server, takes no lock and changes nothing. Rates are the changes
    between two looks. A large store is looked at less often, to use at most a fifth of a processor.
    Keys: n m b p sort, q quits. With --once or --json, or if standard output is not a terminal, it
    prints one look.
    """
    look = Look.take(directory)
    if as_json:
        print_json(_json(look))
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        for one in _ordered(look, "m"):
            print_line(
                f"{key_text(one.name)}: messages {one.messages}, ready {_count(one.ready)}, "
                f"unacked {_count(one.unacked)}, bytes {one.bytes}, "
                f"journal {one.journal_entries}, segments {one.segments}"
            )
        print_line(_store_line(look))
    else:
        _live(look, interval)
    return 0


def _json(look: Look) -> dict[str, Any]:
    queues = [
        {
            field.name: getattr(one, field.name)
            for field in dataclasses.fields(one)
            if field.name not in ("settings", "versions")
        }
        | {"name": plain_value(one.name)}
        for one in look.queues
    ]
    store = None if look.store is None else dataclasses.asdict(look.store)
    return {"kind": look.reader.kind, "queues": queues, "message_store": store}


def _live(look: Look, interval: float) -> None:
    console = Console()
    sort = "m"
    pause = interval
    with _keys() as next_key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(look, sort, console.size.width, console.size.height), refresh=True)
            size = console.size
            until = monotonic() + pause
            while (left := until - monotonic()) > 0 and console.size == size:
                key = next_key(min(left, 0.1))
                if key == "q":
                    return
                if key in _SORTS:
                    sort = key
                    break
            if monotonic() >= until:
                look = Look.take(look.reader.directory, look)
                # A look at thousands of queues takes a while. Use at most a fifth of a processor.
                pause = max(interval, _IDLE_SHARE * (monotonic() - until))


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Take single keys from the terminal. Yields a function that waits for one, ``""`` for none."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def next_key(timeout: float) -> str:
        if not select.select([fd], [], [], timeout)[0]:
            return ""
        # An end of input is a terminal that went away.
        return os.read(fd, 1).decode("ascii", "replace").lower() or "q"

    try:
        tty.setcbreak(fd)
        yield next_key
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _ordered(look: Look, sort: str) -> list[QueueSummary]:
    return sorted(look.queues, key=lambda one: _SORTS[sort][1](one, look))


def _screen(look: Look, sort: str, width: int, height: int) -> Group:
    ordered = _ordered(look, sort)
    room = max(height - 6, 1)
    head = (
        f"{look.reader.directory}  {len(ordered)} queues, "
        f"{sum(one.messages for one in ordered)} messages, sorted by {_SORTS[sort][0]}"
    )
    more = f"... and {len(ordered) - room} more"
    return Group(
        _line(head),
        _table(ordered[:room], look, width),
        *([_line(more, "dim")] if len(ordered) > room else []),
        _line(_store_line(look)),
        _line(_KEYS, "dim"),
    )


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _table(queues: Sequence[QueueSummary], look: Look, width: int) -> Table:
    """Return the queues as a table. A narrow terminal has the first columns only."""
    table = Table(box=None, pad_edge=False, expand=False)
    columns: list[tuple[str, int, Callable[[QueueSummary], str | Text]]] = [
        ("queue", 0, lambda one: _line(key_text(one.name))),
        ("messages", 0, lambda one: str(one.messages)),
        ("ready", 30, lambda one: _count(one.ready)),
        ("unacked", 38, lambda one: _count(one.unacked)),
        ("pub/s", 45, lambda one: _rate(look, one, "published")),
        ("dlv/s", 55, lambda one: _rate(look, one, "delivered")),
        ("ack/s", 55, lambda one: _rate(look, one, "acked")),
        ("bytes", 65, lambda one: _size(one.bytes)),
        ("journal", 75, lambda one: str(one.journal_entries)),
        ("segments", 85, lambda one: str(one.segments)),
    ]
    shown = [column for column in columns if width >= column[1]]
    for title, _, _ in shown:
        table.add_column(title, justify="left" if title == "queue" else "right", no_wrap=True)
    for one in queues:
        table.add_row(*(cell(one) for _, _, cell in shown))
    return table


def _count(count: int | None) -> str:
    return "-" if count is None else str(count)


def _rate(look: Look, one: QueueSummary, which: str) -> str:
    rates = look.rates.get(one.name)
    return "-" if rates is None else f"{getattr(rates, which):,.0f}"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("", "K", "M", "G"):
        if value < 1024:
            return f"{value:.0f}{unit}" if not unit or value >= 10 else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}T"


def _store_line(look: Look) -> str:
    store = look.store
    if store is None or not store.files:
        return "message store: none"
    share = 100 * store.garbage // max(store.size, 1)
    return (
        f"message store: {store.files} files, {_size(store.size)}, "
        f"garbage {_size(store.garbage)} ({share}%)"
    )
