"""What a job is asked for, and its outcome: a summary, tables, and plots of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of a command.

    ``install``: for build-index, put the built files into the stores. ``mode``: of the sources.
    ``top``: for stats, how many keys. For ingest, ``format``: of the tables; ``schema``: of the
    bodies, empty for the kept or inferred one; ``batch``: messages of a batch. ``html``: the page
    of a report.
    """

    paths: list[str]
    out: str
    install: bool = True
    mode: str = "permissive"
    top: int = 20
    format: str = "parquet"
    schema: str = ""
    batch: int = 1_000_000
    html: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of one table: ``x`` and ``y`` name its columns (``x`` several: they are joined).
    ``most``: rows that are drawn."""

    title: str
    table: str
    kind: Literal["bars", "line"]
    x: tuple[str, ...]
    y: str
    most: int = 30


@dataclass(slots=True)
class Table:
    """A result. ``large``: as many rows as there are messages: it is written as Parquet alone, by
    the executors; others also as JSON, and shown. ``written``: its Parquet exists already."""

    rows: DataFrame
    large: bool = False
    title: str = ""
    written: bool = False


@dataclass(slots=True)
class Outcome:
    """``summary``: figures by name. ``shown``: the table that a terminal shows. ``found``: whether
    damage or differences were found (exit status 1). ``notes``: lines for people. ``finish``:
    called when all is written. ``targets``: the stores that were made, by the one they are from."""

    summary: dict[str, Any]
    tables: dict[str, Table]
    shown: str = ""
    plots: Sequence[Plot] = ()
    found: bool = False
    notes: list[str] = field(default_factory=list)
    finish: Callable[[], None] = lambda: None
    targets: dict[str, str] = field(default_factory=dict)
