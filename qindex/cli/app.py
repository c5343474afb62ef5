"""``qindex COMMAND``: the commands, and how every one of them ends.

=====  ============================================================================================
exit   means
=====  ============================================================================================
0      done, nothing wrong
1      damage or differences were found; each has a line on standard error
2      wrong use, or the system refused (no such directory, in use by another, full disk)
70     a defect of this program (``QINDEX_DEBUG=1`` shows where)
130    interrupted from the keyboard
141    whoever read standard output has closed it
=====  ============================================================================================
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

import qindex
from journal.errors import DamageError, StoreError, UsageError
from qindex._packages import see
from qindex.cli.output import NoteHandler, flush, print_line, print_note

FOUND = 1
WRONG_USE = 2
DEFECT = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

_COMPLETE = "_QINDEX_COMPLETE"
"""The variable by which a shell's completion script asks."""

_LATER = {
    "rocket": ("rocketstore.cli", "Look into a RocketMQ store, check and repair it."),
    "pipeline": ("pyspark_qindex.cli", "Audit, report on, ingest or move many stores with Spark."),
    "compare": ("qindex.cli.compare", "Run one workload on both designs and print figures."),
}
"""Commands of packages above this one, which are not imported before they are asked for."""

COMMAND_GROUPS = {
    "Queues": ("list", "cat", "publish", "consume", "follow", "queue", "purge", "delete"),
    "Workers": ("worker", "redrive", "schedule", "serve", "unserve"),
    "Store care": (
        *("verify", "repair", "compact", "inspect", "stats", "top", "export", "import"),
    ),
    "RabbitMQ": ("salvage", "convert", "push", "pull"),
    "RocketMQ": ("rocket",),
    "Spark": ("pipeline",),
    "Try it": ("demo", "compare"),
}
"""The commands as help lists them."""

EXAMPLES = {
    "list": "qindex list data --wide",
    "cat": "qindex cat data orders --json",
    "publish": "qindex publish data orders < lines.txt",
    "consume": "qindex consume data orders --count 10",
    "follow": "qindex follow data orders --from earliest",
    "queue": "qindex queue data orders --max-length 1000",
    "purge": "qindex purge data orders",
    "delete": "qindex delete data orders --force",
    "worker": "qindex worker shop:handle data orders --processes 4",
    "redrive": "qindex redrive data orders.failed --dry-run",
    "schedule": 'qindex schedule data add nightly "30 2 * * *" --queue jobs --body report',
    "serve": "qindex serve data",
    "unserve": "qindex unserve data",
    "verify": "qindex verify data",
    "repair": "qindex repair data --out new",
    "compact": "qindex compact data",
    "inspect": "qindex inspect data/qindex.store",
    "stats": "qindex stats data --prometheus",
    "top": "qindex top data",
    "export": "qindex export data --out all.jsonl",
    "import": "qindex import all.jsonl restored",
    "salvage": "qindex salvage mnesia/rabbit@host --out new",
    "convert": "qindex convert mnesia/rabbit@host --to 2",
    "push": "qindex push data orders --amqp amqp://guest:guest@localhost/%2F",
    "pull": "qindex pull orders data --amqp amqp://guest:guest@localhost/%2F",
    "rocket": "qindex rocket list store",
    "pipeline": "qindex pipeline audit /srv/fleet --out audit",
    "demo": "qindex demo",
    "compare": "qindex compare task-queue --html page.html",
}
"""One call of each command. Help shows that of the first one beside the name of a group."""

_MODULES = {
    "demo": "demo.command",
    "list": "look",
    "cat": "look",
    "publish": "traffic",
    "consume": "traffic",
    "serve": "serve",
    "unserve": "serve",
    "worker": "worker",
    "redrive": "redrive",
    "follow": "follow",
    "queue": "queue_settings",
    "schedule": "schedule",
    "purge": "drop",
    "delete": "drop",
    "inspect": "inspection.command",
    "compact": "drop",
    "stats": "look",
    "top": "top",
    "export": "move",
    "import": "move",
    "push": "move",
    "pull": "move",
    "verify": "tools",
    "repair": "tools",
    "salvage": "tools",
    "convert": "tools",
}
"""The modules of this package that have the commands."""

# Newer typers carry click inside, older ones depend on it: this is the base of its errors in both.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]


def make_app(*, asked: str = "") -> typer.Typer:
    """Put the commands together: all of them, or only the command named ``asked``.

    Each takes time to be loaded and made, so a call of one makes no other, and one for the version
    makes none. The list of all has commands of packages above this one unloaded."""
    app = typer.Typer(
        name="qindex",
        help="An embedded, persistent message queue, and a reader of RabbitMQ's.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for group, names in COMMAND_GROUPS.items():
        panel = f"{group}: {EXAMPLES[names[0]]}"
        for name in names:
            if asked in ("", name):
                _add(app, name, panel, loaded=asked == name)
    _let_help_flow(app)
    return app


def _let_help_flow(app: typer.Typer) -> None:
    """Join the lines of every command's docstring: the terminal's width breaks them."""
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _let_help_flow(group.typer_instance)


def _complete(command: Any) -> None:
    """Answer the shell that asks for completions, and end; see ``--install-completion``."""
    if _COMPLETE in os.environ:
        command.main(prog_name="qindex", complete_var=_COMPLETE)


def _add(app: typer.Typer, name: str, panel: str, *, loaded: bool) -> None:
    """Add a command to its panel of the help. A later one is a placeholder unless ``loaded``."""
    kept: dict[str, Any] = {"rich_help_panel": panel, "epilog": f"Example: {EXAMPLES[name]}"}
    place, text = _LATER.get(name, (f"qindex.cli.{_MODULES.get(name)}", ""))
    if name in _LATER and not loaded:
        if _is_there(place):
            app.command(name, help=text, add_help_option=False, **kept)(_placeholder)
        return
    module = importlib.import_module(place)
    group = getattr(module, f"{name}_app", None)
    if group is not None:
        app.add_typer(group, name=name, **kept)
    else:
        app.command(name, **kept)(getattr(module, f"{name}_command"))


def _placeholder() -> int:
    """Take the place of a command in help; :func:`main` loads the real one when asked."""
    raise AssertionError("the command was not loaded")


def _is_there(module: str) -> bool:
    """Return whether a package is there, without importing any of it."""
    try:
        _see(module)
    except ImportError:
        return False
    return True


def _see(module: str) -> None:
    """Raise :class:`ImportError`, which says why, where a command's package is not there."""
    see(module.partition(".")[0], "cli")


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"qindex {qindex.__version__} ({qindex.__build__})")
        raise typer.Exit


def _top(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """An embedded, persistent message queue, and a reader of RabbitMQ's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Never raises, and never prints a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.lastResort = NoteHandler(logging.WARNING)
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal without Unicode shows help all the same.
            sys.stdout.reconfigure(errors="backslashreplace")
        code = _run(given)
        flush()
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except OSError as error:
        _drop_output()
        print_note(f"standard output: {error.strerror or error}")
        return WRONG_USE
    except KeyboardInterrupt:
        print_note("interrupted")
        return INTERRUPTED
    return code


def _run(arguments: list[str]) -> int:
    try:
        asked = arguments[0] if arguments else ""
        if asked in _LATER:
            try:
                _see(_LATER[asked][0])
            except ImportError as error:
                return _fail(WRONG_USE, error)
        elif asked not in _MODULES and asked != "--version":
            asked = ""  # help, or a word that is like one of them
        command = get_command(make_app(asked=asked))
        _complete(command)
        # Not command.main(): it catches the exceptions that are told apart here.
        with command.make_context("qindex", list(arguments) or ["--help"]) as context:
            result: Any = command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code if arguments else WRONG_USE
    except (typer.Abort, KeyboardInterrupt):
        raise KeyboardInterrupt from None
    except DamageError as error:
        return _fail(FOUND, f"{error} ({_remedy_of_damage(asked)})")
    except StoreError as error:
        return _fail(WRONG_USE, f"{error}{_remedy(error)}")
    except BrokenPipeError:
        raise
    except OSError as error:
        try:
            flush()
        except OSError:
            # Otherwise the flush of main() would report the same failure a second time.
            _drop_output()
        return _fail(WRONG_USE, f"{error.filename or 'input or output'}: {error.strerror or error}")
    except _CommandLineError as error:
        words = f"qindex {asked}" if asked in EXAMPLES else "qindex"
        return _fail(WRONG_USE, f"{_message_of(error)} (see {words} --help)")
    except Exception as error:
        if os.environ.get("QINDEX_DEBUG"):
            raise
        return _fail(DEFECT, f"a defect of this program: {type(error).__name__}: {error}")
    return int(result or 0)


def _remedy(error: StoreError) -> str:
    """Return what to do about an error that does not say so itself, with a space before it."""
    text = str(error) if isinstance(error, UsageError) else ""
    if "there is no queue" in text:
        return " (qindex list shows the queues)"
    if "there is no schedule" in text:
        return " (qindex schedule DIR list shows them)"
    if "has no priorities" in text:
        return " (qindex queue DIR QUEUE --max-priority N)"
    return ""


def _remedy_of_damage(asked: str) -> str:
    if asked == "rocket":
        return "qindex rocket verify names all damage"
    return "qindex verify names all damage, qindex repair makes a sound copy"


def _message_of(error: Any) -> str:
    return str(error.format_message()).rstrip(".")


def _fail(code: int, error: object) -> int:
    # Earlier output also comes before it on a terminal.
    with contextlib.suppress(OSError):
        flush()
    print_note(str(error))
    return code


def _drop_output() -> None:
    """Point standard output nowhere, so that the interpreter's own flush at exit is quiet."""
    try:
        target = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)
