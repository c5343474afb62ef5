"""Progress on a terminal while Spark works: tasks that are done, of the stages under way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

_PERIOD: Final = 0.2


@contextmanager
def show_progress(spark: SparkSession, job: str) -> Iterator[None]:
    """Show a bar on standard error while the block runs, if that is a terminal (Spark Connect has
    a bar of its own)."""
    if not sys.stderr.isatty() or getattr(spark, "sparkContext", None) is None:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    stop = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(job, total=None)

        def follow() -> None:
            while not stop.wait(_PERIOD):
                done, total, stage = tasks_under_way(spark)
                if total:
                    description = f"{job}: stage {stage}"
                    progress.update(bar, completed=done, total=total, description=description)

        thread = threading.Thread(target=follow, name="qindex-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def tasks_under_way(spark: SparkSession) -> tuple[int, int, int]:
    """Return tasks done and tasks in all of the active stages, and the number of the newest."""
    tracker = spark.sparkContext.statusTracker()
    done = total = 0
    newest = 0
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None:
            done += info.numCompletedTasks
            total += info.numTasks
            newest = max(newest, stage)
    return done, total, newest
