"""``worker``: run a handler for each message of a queue."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import qindex
from qindex.cli.look import Directory, QueueName
from qindex.cli.output import NoteHandler, print_note
from qindex.worker import Worker
from qindex.worker.child import load_handlers

_CUT = 1


def worker_command(
    handler: Annotated[
        str,
        typer.Argument(
            help="module:name of a callable, a coroutine function, or a mapping from message types "
            "to these. Modules of the working directory are found.",
            show_default=False,
        ),
    ],
    directory: Directory,
    queue: QueueName,
    processes: Annotated[
        int, typer.Option(min=0, help="Run handlers in this many processes; 0: in threads.")
    ] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Handlers that run at a time, in threads or coroutines.")
    ] = 1,
    retries: Annotated[
        int | None,
        typer.Option(min=0, help="Attempts after the first.", show_default="the queue's, or 5"),
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            help="exponential:BASE:CAP, in seconds.", show_default="the queue's, or 1 to 300"
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Seconds after which a handler is ended: with --processes, or coroutines.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds for running handlers after SIGTERM or SIGINT.")
    ] = 30.0,
    max_tasks: Annotated[
        int | None,
        typer.Option(min=1, help="Replace a process after this many messages.", show_default=False),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(min=1, help="Replace a process that holds more bytes.", show_default=False),
    ] = None,
    health: Annotated[
        Path | None,
        typer.Option(help="A file to write every five seconds, for probes.", show_default=False),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Messages to take and acknowledge at a time.")
    ] = 1,
    durability: Annotated[
        str | None,
        typer.Option(
            help="os or fsync, if no server has the store yet.", show_default="the server's"
        ),
    ] = None,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Also publish the messages of schedules.")
    ] = False,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when no message is ready.")
    ] = False,
) -> int:
    """Run a handler for each message of a queue, until SIGTERM or SIGINT.

    It makes both store and queue, and other processes can use the store meanwhile. If a handler
    raises, its message is delivered again after a pause, and goes to the dead-letter queue after
    its last attempt. A second signal ends at once. Exits 1 if handlers were still running at the
    end.
    """
    sys.path.append(os.getcwd())  # last: nothing there takes the place of another module
    load_handlers(handler)  # or an error before anything is opened
    options: Any = {} if durability is None else {"durability": durability}
    with qindex.open(directory, shared=True, **options) as engine:
        worker = Worker(
            engine.queue(queue),
            handler,
            processes=processes,
            concurrency=concurrency,
            retries=retries,
            backoff=backoff,
            timeout=timeout,
            grace=grace,
            max_tasks=max_tasks,
            max_memory=max_memory,
            health=None if health is None else str(health),
            batch=batch,
            until_empty=until_empty,
        )
        if not logging.getLogger().handlers:  # the handler's module has set up none
            logging.getLogger("qindex").addHandler(NoteHandler(logging.WARNING))
        with _progress(worker), qindex.Ticker(engine) if schedules else nullcontext():
            done = worker.run()
    if done.cut:
        print_note(f"{done.cut} messages were given back: their handlers were still running")
        return _CUT
    return 0


@contextmanager
def _progress(worker: Worker) -> Iterator[None]:
    """Show a line on a terminal, once a second."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        before = 0
        while not ended.wait(1):
            found = worker.figures
            try:
                waiting = f"{len(worker.queue):,}"
            except qindex.StoreError:
                waiting = "?"
            rate, before = found.done - before, found.done
            parts = f"{found.done:,} done, {found.failed:,} failed, {found.running} running"
            sys.stderr.write(f"\r{parts}, {rate:,} a second, {waiting} ready\x1b[K")
            sys.stderr.flush()
        sys.stderr.write("\n")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
