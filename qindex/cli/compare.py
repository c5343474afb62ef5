"""``qindex compare``: run a workload on both designs, and show what came out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from journal.errors import UsageError
from journal.fs.files import open_private
from qindex.cli.output import print_json, print_line, print_note, print_styled
from qindex.compare.contender import Contender
from qindex.compare.figures import Figure, figures_of, show_range, show_value, side_by_side, verdict
from qindex.compare.page import make_page
from qindex.compare.peers import DESIGNS, PEERS
from qindex.compare.run import Plan, Results, compare
from qindex.compare.tables import print_table
from qindex.compare.workload import PRESETS, Workload, find_preset, make_workload, read_workload

_WIDE = 160
"""Columns of a table that is not for a terminal."""
_ROUNDS = 3


def compare_command(
    preset: Annotated[
        str, typer.Argument(help=f"One of {', '.join(PRESETS)}.", show_default=False)
    ] = "",
    workload: Annotated[
        Path | None, typer.Option("--workload", "-w", help="A workload as a JSON file.")
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="Bodies: fixed:N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA."),
    ] = None,
    queues: Annotated[int | None, typer.Option(help="Queues (topics).")] = None,
    groups: Annotated[
        int | None, typer.Option(help="Consumer groups that each get every message.")
    ] = None,
    publishers: Annotated[int | None, typer.Option(help="Publishing threads.")] = None,
    consumers: Annotated[int | None, typer.Option(help="Consuming threads.")] = None,
    batch: Annotated[int | None, typer.Option(help="Messages per call.")] = None,
    ack_lag: Annotated[
        int | None, typer.Option(help="Messages a consumer holds before it acknowledges.")
    ] = None,
    think_us: Annotated[
        float | None, typer.Option(help="Microseconds a consumer takes for a message.")
    ] = None,
    lookups: Annotated[int | None, typer.Option(help="Lookups of a message by key.")] = None,
    durability: Annotated[str | None, typer.Option(help="os or fsync.")] = None,
    messages: Annotated[
        int | None, typer.Option(help="Messages per round at full speed; 0: use --seconds.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds of a paced round.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Messages per second of a paced round.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=99, help="Rounds of each contender (3).")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the load, in one round: to see the tables.")
    ] = False,
    peers: Annotated[bool, typer.Option("--peers", help="Also run the installed peers.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory on the disk to measure on.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots to this file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per figure.")
    ] = False,
) -> int:
    """Run one workload on the queue-index design and on the RocketMQ-style store.

    Each round of each contender runs in its own process, in a fresh directory. Rounds take turns.
    The tables show the median, the lowest and the highest round.
    """
    given = {
        "sizes": sizes, "queues": queues, "groups": groups, "publishers": publishers,
        "consumers": consumers, "batch": batch, "ack_lag": ack_lag, "think_us": think_us,
        "lookups": lookups, "durability": durability, "messages": messages, "seconds": seconds,
        "rate": rate,
    }  # fmt: skip
    load = _workload(preset, workload, given)
    if html is not None:
        _check_target(html)
    plan = Plan(
        load.quick() if quick else load,
        _contenders(load, peers),
        directory,
        rounds or (1 if quick else _ROUNDS),
        quick,
    )
    results = _run(plan)
    for text in results.failed.values():
        print_note(f"left out: {text}")
    plan = replace(plan, kinds=[kind for kind in plan.kinds if kind.name not in results.failed])
    figures = figures_of(plan, results)
    if html is not None:
        with open_private(html) as file:
            file.write(make_page(plan, results, figures))
        print_note(f"the page is in {html}")
    if as_json:
        for figure in figures:
            print_json(figure.to_dict() | {"workload": plan.workload.name})
    else:
        _show(plan, figures)
    return 0


def _workload(preset: str, file: Path | None, given: dict[str, Any]) -> Workload:
    if preset and file is not None:
        raise UsageError("either a preset or --workload, not both")
    base = read_workload(file) if file is not None else find_preset(preset or "task-queue")
    changed = {name: one for name, one in given.items() if one is not None}
    if changed:
        changed["name"] = f"{base.name}, changed"
    return make_workload(changed, base)


def _contenders(load: Workload, peers: bool) -> Sequence[type[Contender]]:
    kinds = list(DESIGNS)
    for kind in PEERS if peers else ():
        if not kind.is_installed():
            print_note(f"{kind.name} is not installed: left out")
        elif load.durability == "fsync" and not kind.fsync:
            print_note(f"{kind.name} has no durability=fsync: left out")
        else:
            kinds.append(kind)
    return kinds


def _check_target(html: Path) -> None:
    """Raise :class:`UsageError` now and not after minutes, if the page can't be written."""
    folder = html.absolute().parent
    if html.is_dir() or not os.access(html if html.exists() else folder, os.W_OK):
        raise UsageError(f"{html}: can't be written")


@contextmanager
def _ended_like_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does: gigabytes of files may be there to remove."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        # None: it was not Python that set it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _run(plan: Plan) -> Results:
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    quiet = not console.is_terminal
    shown = Progress(*columns, console=console, transient=True, disable=quiet)
    with _ended_like_by_ctrl_c(), shown as progress:
        bar = progress.add_task("", total=1.0)

        def tell(what: str, done: float) -> None:
            progress.update(bar, description=what, completed=done)

        return compare(plan, tell)


def _show(plan: Plan, figures: Sequence[Figure]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    rounds = f"medians of {plan.rounds} rounds, \\[lowest to highest]"
    if plan.rounds == 1:
        rounds = "one round"
    heads = ["figure", *(kind.name for kind in plan.kinds)]
    rows = []
    for some, of_kinds in side_by_side(plan, figures):
        arrow = "more is better" if some.better == "high" else "less is better"
        rows.append([f"{some.title} [dim]({arrow})[/dim]", *map(_cell, of_kinds)])
    with console.capture() as captured:
        print_table(console, f"{plan.workload.name}: {rounds}", heads, rows, ("figure",))
    print_styled(captured.get().rstrip("\n"))
    for line in _words(plan, figures):
        print_line(line)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "[dim]none[/dim]"
    if figure.rounds == 1:
        return show_value(figure)
    return f"{show_value(figure)}\n[dim]\\[{show_range(figure)}][/dim]"


def _words(plan: Plan, figures: Sequence[Figure]) -> list[str]:
    said = verdict(plan, figures)
    lines: list[str] = []
    for kind in plan.kinds:
        if said.better.get(kind.name):
            lines += [f"Better with {kind.title}:"]
            lines += [f"  - {one}" for one in said.better[kind.name]]
    if said.rounds < 3:
        lines.append("Fewer than three rounds: nothing is said about which is better.")
    elif said.too_close:
        lines.append(f"Too close to tell on this load: {'; '.join(said.too_close)}.")
    lines += [f"{kind.title}: {kind.note}." for kind in plan.kinds if kind.note]
    return lines
