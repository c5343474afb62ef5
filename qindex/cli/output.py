"""Print: data to standard output, everything else to standard error."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from journal.findings import Finding
from journal.shown import printable
from qindex.format.settings import NO_SETTINGS, QueueSettings
from qindex.queue.delivery import Delivery
from qindex.view.row_json import body_fields, json_line, message_fields

_PREVIEW = 60


def write_out(data: bytes) -> None:
    """Write bytes to standard output, whatever encoding the terminal has."""
    sys.stdout.buffer.write(data)


def flush() -> None:
    """Flush the printed text out of the process. Raises :class:`BrokenPipeError`."""
    sys.stdout.flush()
    sys.stdout.buffer.flush()


def print_line(text: str = "") -> None:
    """Print lines to standard output, with escapes for what a terminal might act on."""
    print_styled("\n".join(map(printable, text.split("\n"))))


def print_styled(text: str) -> None:
    """Print lines with the codes for a terminal that are in them."""
    write_out(text.encode("utf-8", "backslashreplace") + b"\n")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object as one line."""
    write_out(json_line(value))


def print_result(as_json: bool, value: Mapping[str, Any], text: str) -> None:
    """Print what a command did: one object, or in words."""
    if as_json:
        print_json(value)
    else:
        print_line(text)


def print_note(text: str) -> None:
    """Print one line to standard error, with escapes for what a terminal might act on."""
    sys.stderr.write("qindex: " + printable(text.replace("\n", " ")) + "\n")


class NoteHandler(logging.Handler):
    """Prints log records as notes, where the program has set up no logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        print_note(record.getMessage())


def print_findings(findings: Iterable[Finding]) -> int:
    """Print one line for each to standard error; return the exit code, 1 when there was one."""
    code = 0
    for finding in findings:
        print_note(str(finding))
        code = 1
    return code


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """Return a message as ``consume --json`` prints it."""
    message = delivery.message
    return {
        "seq_id": delivery.seq_id,
        "redelivered": delivery.redelivered,
        "timestamp": message.timestamp or None,
        **message_fields(message.key, message.headers, message.properties),
        "size": len(delivery.body),
        **body_fields(delivery.body),
    }


def settings_text(settings: QueueSettings) -> str:
    """Show the settings that are set in one line, as ``max_length=100 overflow=drop-head``."""
    said = []
    for one in dataclasses.fields(QueueSettings):
        value = getattr(settings, one.name)
        if value != getattr(NO_SETTINGS, one.name):
            shown = key_text(value) if isinstance(value, str) else f"{value}"
            said.append(f"{one.name}={shown}")
    return " ".join(said)


def key_text(key: str | None) -> str:
    """Show a key in one line; ``-`` for none."""
    shown = "-" if key is None else key
    return shown if shown.isprintable() else ascii(shown)


def preview(body: bytes | None) -> str:
    """Show the start of a body in one line that can't disturb a terminal."""
    if body is None:
        return ""
    cut = body[:_PREVIEW]
    try:
        text = cut.decode("utf-8", "ignore" if len(body) > _PREVIEW else "strict")
        shown = text if text.isprintable() else ascii(text)[1:-1]
    except UnicodeDecodeError:
        shown = cut.hex(" ", 4)
    return shown + ("..." if len(body) > _PREVIEW else "")


@contextmanager
def progress_bar(doing: str, total: int = 0) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far it has come, on a terminal; ``None`` where there is none."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(doing, total=total or None)

        def told(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of or total or None)

        yield told
