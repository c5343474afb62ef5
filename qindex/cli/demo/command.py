"""``demo``: publish, consume, kill, recover, and balance the books, in front of your eyes."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import qindex
from qindex.cli.demo.books import Balance, Books, Drained
from qindex.cli.demo.child import CONSUMERS, PUBLISHERS, QUEUE
from qindex.cli.demo.run import run_and_kill
from qindex.cli.look import JsonOption
from qindex.cli.output import print_json

_DRAIN_BATCH = 1000
_UNEVEN = 0.4
"""A child's life is so much shorter or longer than asked for: kills should fall anywhere."""


def demo_command(
    kills: Annotated[int, typer.Option(min=1, max=100, help="Processes to kill.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=60, help="About how long each process lives.")
    ] = 1.5,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the store, and print its place.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Publish, consume, kill the process in the middle, and show that nothing was lost.

    A child process with publishing and consuming threads works in a temporary directory, and is
    killed with SIGKILL several times. Its notes of each call that returned are compared with the
    store. Exits 0 only if the books balance.
    """
    console = Console(stderr=as_json, highlight=False)
    directory = tempfile.mkdtemp(prefix="qindex-demo-")
    started = perf_counter()
    try:
        _explain(console, directory, kills)
        books = Books()
        _kill_again_and_again(console, directory, books, kills, seconds)
        found = _find_by_key(console, directory)
        balance, opened_in = _close_books(console, directory, books)
    finally:
        if keep:
            console.print(f"The store is in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    took = perf_counter() - started
    if as_json:
        print_json(
            asdict(balance)
            | {"holds": balance.holds, "kills": kills, "seconds": round(took, 3)}
            | {"recovered_in_seconds": round(opened_in, 3), "found_by_key": found}
        )
    else:
        _show(console, balance, kills, took)
    return 0 if balance.holds else 1


def _explain(console: Console, directory: str, kills: int) -> None:
    console.rule("[bold]qindex demo[/bold]")
    console.print(
        f"A child process opens a queue in [cyan]{directory}[/cyan]; {PUBLISHERS} of its threads "
        f"publish and {CONSUMERS} consume.\n"
        f"{kills} times it is killed in the middle of that with [red]SIGKILL[/red]: no handler "
        "runs, nothing is closed.\n"
        "Of each call that returned, this process was told through a pipe. "
        "In the end the books must balance.\n"
    )


def _kill_again_and_again(
    console: Console, directory: str, books: Books, kills: int, seconds: float
) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("[green]{task.fields[published]:,}[/green] in"),
        TextColumn("[green]{task.fields[acked]:,}[/green] out"),
        TimeElapsedColumn(),
    )
    chance = random.Random()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=kills, published=0, acked=0)
        for run in range(1, kills + 1):
            progress.update(task, description=f"process {run} of {kills} at work")
            show = partial(_show_counts, progress, task, len(books.published), len(books.acked))
            life = seconds * (1 + chance.uniform(-_UNEVEN, _UNEVEN))
            books.add_run(run_and_kill(directory, len(books.seqs) + run, life, show))
            progress.advance(task)
            progress.console.print(
                f"  [red]SIGKILL[/red] for process {run} after {life:.2f} s: "
                f"{len(books.published):,} published, {len(books.acked):,} acknowledged"
            )


def _show_counts(
    progress: Progress, task: TaskID, published: int, acked: int, more: int, done: int
) -> None:
    progress.update(task, published=published + more, acked=acked + done)


def _find_by_key(console: Console, directory: str) -> bool:
    """Look for one message by its key in the store as the last kill left it."""
    with qindex.open(directory, read_only=True) as engine:
        queue = engine.queue(QUEUE)
        keys = [delivery.key for delivery in queue]
        wanted = keys[len(keys) // 2] if keys else None
        if wanted is None:
            console.print("\nNo message is left to look for by its key.")
            return False
        started = perf_counter()
        delivery = next(one for one in queue if one.key == wanted)
        took = perf_counter() - started
    console.print(
        f"\nThe store as the last kill left it, opened read-only: {len(keys):,} messages.\n"
        f"The one with key [cyan]{wanted}[/cyan] has seq_id {delivery.seq_id} and says "
        f"[cyan]{delivery.body[:40].decode()!r}[/cyan] (found in {took * 1000:.1f} ms)."
    )
    return True


def _close_books(console: Console, directory: str, books: Books) -> tuple[Balance, float]:
    started = perf_counter()
    with qindex.open(directory) as engine:
        queue = engine.queue(QUEUE)
        opened_in = perf_counter() - started
        console.print(
            f"Opened for writing, recovered: {opened_in * 1000:.0f} ms. Draining it now.\n"
        )
        return books.balance(_drain(queue)), opened_in


def _drain(queue: qindex.Queue) -> Iterator[Drained]:
    while batch := queue.get_many(_DRAIN_BATCH):
        for delivery in batch:
            _, thread, number = (delivery.key or "").split("-")
            yield int(thread), int(number), delivery.seq_id, delivery.redelivered, delivery.body
        queue.ack_many(batch)


def _show(console: Console, balance: Balance, kills: int, took: float) -> None:
    table = Table(title="The books", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, count, meaning in _facts(balance):
        table.add_row(name, f"{count:,}", meaning)
    table.add_section()
    for name, count, meaning in _faults(balance):
        style = "bold green" if count == 0 else "bold red"
        table.add_row(name, f"[{style}]{count:,}[/{style}]", meaning)
    console.print(table)
    if balance.holds:
        console.print(
            f"[bold green]The books balance[/bold green]: {kills} kills, "
            f"{balance.published:,} messages, nothing lost. ({took:.1f} s)"
        )
    else:
        console.print("[bold red]The books do not balance.[/bold red]")


def _facts(balance: Balance) -> list[tuple[str, int, str]]:
    return [
        ("published", balance.published, "publish returned before the kill"),
        ("acknowledged", balance.acknowledged, "ack returned before the kill"),
        ("drained at the end", balance.drained, "were still there"),
        ("redelivered", balance.redelivered, "delivered before a kill, again after it"),
        ("acks cut off", balance.in_doubt, "under way at a kill: may be done or not"),
        (
            "publishes cut off",
            balance.unnoted,
            "there, but killed before it was noted",
        ),
    ]


def _faults(balance: Balance) -> list[tuple[str, int, str]]:
    return [
        ("lost", balance.lost, "published, never acknowledged, not there"),
        ("acknowledged but back", balance.back, "delivered after their ack had returned"),
        ("order violations", balance.disorder, "too early, too late, or twice in one run"),
        ("altered", balance.altered, "bodies that differ from the published ones"),
        ("seq_ids repeated", balance.repeated, "one number for two messages"),
    ]
