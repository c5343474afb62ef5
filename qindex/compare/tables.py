"""Tables for a terminal and for a page in Markdown, and numbers as they are in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Rows = Iterable[Sequence[str]]


def print_table(
    console: Console,
    title: str,
    heads: Sequence[str],
    rows: Rows,
    left: Collection[str],
    grouped: bool = False,
) -> None:
    """Print a table; columns named in ``left`` hold words, the others numbers. ``grouped``: rows
    that start with the same word make a section, and show it once."""
    from rich.table import Table  # only a terminal needs the extra: pages have numbers, too

    table = Table(title=title, title_justify="left", header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right")
    rows = list(rows)
    sizes = Counter(first for first, *_ in rows)
    before = ""
    for first, *others in rows:
        if grouped and first != before and max(sizes[first], sizes[before]) > 1:
            table.add_section()
        table.add_row("" if grouped and first == before else first, *others)
        before = first
    console.print(table)


def markdown(heads: Sequence[str], rows: Rows) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def short(value: float | None) -> str:
    """Return a number to three digits: ``45.6k`` for 45,600; nothing for None."""
    if value is None:
        return ""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
