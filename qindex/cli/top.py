"""``top``: a live view of a store, whether or not another process has it open."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from qindex.cli.look import Directory, JsonOption
from qindex.cli.output import key_text, print_json, print_line
from qindex.format.json_value import plain_value
from qindex.view.live_figures import Look, Looker, QueueLook, Rates, SegmentLook

_MAP_CELLS = 24
_IDLE_SHARE = 4
_FEW_FILES = 5
_SHADES = ((0.0, "_", "dim"), (0.25, "░", "green"), (0.5, "▒", "yellow"), (0.75, "▓", "magenta"))
_FULL = ("█", "red")
_NO_RATES = Rates(0.0, 0.0, 0.0)

_SORTS: dict[str, tuple[str, Callable[[QueueLook], Any]]] = {
    "n": ("name", lambda one: one.name),
    "m": ("messages", lambda one: -one.messages),
    "b": ("bytes", lambda one: -one.body_bytes),
    "a": ("age", lambda one: -(one.age or 0.0)),
    "p": ("published/s", lambda one: -(one.rates or _NO_RATES).published),
}
_KEYS = "  ".join(f"{key} {name}" for key, (name, _) in _SORTS.items()) + "  q quit"


def top_command(
    directory: Directory,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    journal_entries: Annotated[
        int, typer.Option(min=1, help="The max_journal_entries of whoever writes the store.")
    ] = 65_536,
    as_json: JsonOption = False,
) -> int:
    """Show queues, rates, segments, journals and the message store's garbage, live.

    Reads the files alone, takes no lock, changes nothing. Rates are of what changed between two
    looks. A cell of the map is a segment: the darker, the more of it is not acknowledged; "·" is
    in the journal only. Keys: n m b a p sort, q quits. Where standard output is no terminal, or
    with --once or --json, one look is printed.
    """
    looker = Looker(directory)
    look = looker.look()
    if as_json:
        print_json(_json(look))
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _print_plain(look)
    else:
        _live(looker, look, interval, journal_entries)
    return 0


def _json(look: Look) -> dict[str, Any]:
    queues = []
    for one in look.queues:
        fields = {
            field.name: getattr(one, field.name)
            for field in dataclasses.fields(one)
            if field.name not in ("segments", "rates")
        }
        segments = [
            {"number": part.number, "held": part.held, "share": round(part.share, 4)}
            for part in one.segments
        ]
        queues.append(fields | {"name": plain_value(one.name), "segments": segments})
    files = [dataclasses.asdict(one) for one in look.files]
    return {"kind": look.kind, "queues": queues, "files": files, "compacting": look.compacting}


def _print_plain(look: Look) -> None:
    for one in sorted(look.queues, key=_SORTS["m"][1]):
        print_line(
            f"{key_text(one.name)}: messages {one.messages}, ready {_count(one.ready)}, "
            f"unacked {_count(one.unacked)}, bytes {one.body_bytes}, "
            f"oldest {_age(one)}, journal {one.journal_entries}, "
            f"segments {len(one.segments)} {''.join(_cells(one)[0])}".rstrip()
        )
    print_line(_store_line(look))


def _live(looker: Looker, look: Look, interval: float, journal_entries: int) -> None:
    console = Console()
    sort = "m"
    pause = interval
    with _keys() as next_key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = _screen(look, sort, console.size.width, console.size.height, journal_entries)
            live.update(shown, refresh=True)
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
                look = looker.look()
                # Of a store with thousands of queues it takes a while: no more than a fifth of a
                # processor for it.
                pause = max(interval, _IDLE_SHARE * (monotonic() - until))


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Take single keys from the terminal; gives a function that waits for one, ``""`` for none."""
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


def _screen(look: Look, sort: str, width: int, height: int, journal_entries: int) -> Group:
    ordered = sorted(look.queues, key=_SORTS[sort][1])
    files = _garbage_lines(look)
    room = max(height - 6 - len(files), 1)
    head = Text(
        f"{look.directory}  {len(ordered)} queues, "
        f"{sum(one.messages for one in ordered)} messages, sorted by {_SORTS[sort][0]}",
        no_wrap=True,
        overflow="ellipsis",
    )
    parts: list[Any] = [head, _table(ordered[:room], width, journal_entries)]
    if len(ordered) > room:
        parts.append(Text(f"... and {len(ordered) - room} more", style="dim"))
    for line in [_store_line(look), *files]:
        parts.append(Text(line, no_wrap=True, overflow="ellipsis"))
    parts.append(Text(_KEYS, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _table(queues: Sequence[QueueLook], width: int, journal_entries: int) -> Table:
    """Give the queues as a table; a narrow terminal has the first columns only."""
    table = Table(box=None, pad_edge=False, expand=False)
    columns: list[tuple[str, int, Callable[[QueueLook], str | Text]]] = [
        ("queue", 0, lambda one: Text(key_text(one.name), no_wrap=True, overflow="ellipsis")),
        ("messages", 0, lambda one: str(one.messages)),
        ("ready", 30, lambda one: _count(one.ready)),
        ("unacked", 38, lambda one: _count(one.unacked)),
        ("pub/s", 45, lambda one: _rate(one, "published")),
        ("dlv/s", 55, lambda one: _rate(one, "delivered")),
        ("ack/s", 55, lambda one: _rate(one, "acked")),
        ("oldest", 65, _age),
        ("bytes", 72, lambda one: _size(one.body_bytes)),
        ("journal", 80, lambda one: f"{100 * one.journal_entries // journal_entries}%"),
        ("segments", 100, _map),
    ]
    shown = [column for column in columns if width >= column[1]]
    for title, _, _ in shown:
        is_text = title in ("queue", "segments")
        table.add_column(title, justify="left" if is_text else "right", no_wrap=True)
    for one in queues:
        table.add_row(*(cell(one) for _, _, cell in shown))
    return table


def _count(count: int | None) -> str:
    return "-" if count is None else str(count)


def _rate(one: QueueLook, which: str) -> str:
    return "-" if one.rates is None else f"{getattr(one.rates, which):,.0f}"


def _age(one: QueueLook) -> str:
    if one.age is None:
        return "-"
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if one.age >= seconds:
            return f"{one.age / seconds:.1f}{unit}"
    return f"{one.age:.1f}s"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("", "K", "M", "G"):
        if value < 1024:
            return f"{value:.0f}{unit}" if not unit or value >= 10 else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}T"


def _cells(one: QueueLook) -> tuple[list[str], list[str]]:
    """Give a character and a style for each of the last segments."""
    shown = [_cell(part) for part in one.segments[-_MAP_CELLS:]]
    return [cell for cell, _ in shown], [style for _, style in shown]


def _cell(part: SegmentLook) -> tuple[str, str]:
    if not part.has_file:
        return "·", "cyan"
    for most, cell, style in _SHADES:
        if part.share <= most:
            return cell, style
    return _FULL


def _map(one: QueueLook) -> Text:
    text = Text(no_wrap=True)
    for cell, style in zip(*_cells(one), strict=True):
        text.append(cell, style)
    return text


def _store_line(look: Look) -> str:
    if not look.files:
        return "message store: none"
    size = sum(one.size for one in look.files)
    garbage = sum(one.garbage for one in look.files)
    busy = f"writing {', '.join(look.compacting)}" if look.compacting else "idle"
    moved = f", {look.came} files came, {look.went} went" if look.came or look.went else ""
    return (
        f"message store: {len(look.files)} files, {_size(size)}, garbage {_size(garbage)} "
        f"({100 * garbage // max(size, 1)}%), compaction {busy}{moved}"
    )


def _garbage_lines(look: Look) -> list[str]:
    """Name the files with most garbage."""
    worst = sorted(look.files, key=lambda one: -one.garbage)[:_FEW_FILES]
    return [
        f"  {one.name:<12} {_size(one.size):>6}, garbage {100 * one.garbage // max(one.size, 1)}%"
        for one in worst
        if one.garbage
    ]
