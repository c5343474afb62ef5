"""``manage.py qindex_worker``: run the tasks of a backend until SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

import qindex
from qindex.compat.django import QindexBackend, running
from qindex.compat.django.names import task_backends
from qindex.worker import Worker


class Command(BaseCommand):  # type: ignore[misc]
    """Run tasks."""

    help = "Runs the tasks of a backend, until SIGTERM or SIGINT."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--backend", default="default", help="the alias of the backend in TASKS")
        add("--queue", action="append", help="a queue; may be repeated. Default: all of them")
        add("--concurrency", type=int, default=1, help="threads for each queue")
        add("--processes", type=int, default=0, help="processes for each queue, not threads")
        add("--timeout", type=float, help="seconds a task may take; needs --processes")
        add("--max-tasks", type=int, help="tasks after which a process is replaced")
        add("--grace", type=float, default=30.0, help="seconds for running tasks at the end")
        add("--health", help="a file to write every five seconds")
        add("--until-empty", action="store_true", help="end when no task is ready")

    def handle(self, **options: Any) -> None:
        """Run the command."""
        alias: str = options["backend"]
        backend = task_backends[alias]
        if not isinstance(backend, QindexBackend):
            raise CommandError(f"TASKS[{alias!r}] is not a backend of qindex")
        try:
            workers = list(self._workers(backend, options))
        except qindex.UsageError as error:
            raise CommandError(str(error)) from error
        errors: list[BaseException] = []

        def run(worker: Worker) -> None:
            try:
                worker.run()
            except BaseException as error:
                errors.append(error)
                stop()

        def stop(*_: object) -> None:
            for worker in workers:
                worker.stop()

        threads = [threading.Thread(target=run, args=(one,)) for one in workers]
        with _signals(stop):
            for thread in threads:
                thread.start()
            if options["verbosity"]:
                self.stdout.write(f"runs {', '.join(one.queue.name for one in workers[:-1])}")
                self.stdout.flush()
            for thread in threads:
                thread.join()
        if errors:
            raise CommandError(str(errors[0])) from errors[0]

    def _workers(self, backend: QindexBackend, options: dict[str, Any]) -> list[Worker]:
        """Make a worker for each queue, and one for what none of them could run."""
        store = backend.store
        names = options["queue"] or sorted(backend.queues) or store.queue_names()
        if not names:
            raise CommandError("QUEUES is empty and there is no queue yet; name one with --queue")
        for name in names:
            if backend.queues and name not in backend.queues:
                raise CommandError(f"{name!r} is none of the queues of the backend")
        same = ("concurrency", "processes", "timeout", "max_tasks", "grace", "until_empty")
        chosen = {name: options[name] for name in same}
        handler = partial(running.run, backend.alias)
        on_error = partial(running.give_up, backend.alias)
        workers = [
            Worker(store.queue(name), handler, on_error=on_error, health=health, **chosen)
            for name, health in zip(names, _files(options["health"], names), strict=True)
        ]
        bury = partial(running.bury, backend.alias)
        return [*workers, Worker(store.failed, bury, until_empty=options["until_empty"])]


@contextmanager
def _signals(stop: Callable[..., None]) -> Iterator[None]:
    """Stop at SIGTERM and SIGINT. Threads other than the main one can't have signals."""
    numbers: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _files(path: str | None, names: list[str]) -> list[str | None]:
    """Return the health file of each queue: with several, each has the queue's name at its end."""
    if path is None or len(names) == 1:
        return [path] * len(names)
    return [f"{path}.{name}" for name in names]
