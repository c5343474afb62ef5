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
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

import qindex
from journal.errors import DamageError, StoreError
from qindex.cli.inspect_file import inspect_command
from qindex.cli.look import JsonOption, cat_command, list_command, stats_command
from qindex.cli.output import flush, print_line, print_note
from qindex.cli.reclaim import compact_command
from qindex.cli.traffic import consume_command, publish_command

__all__ = ["main", "make_app"]

FOUND = 1
WRONG_USE = 2
DEFECT = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

_ROCKET = "rocketstore.cli"

# Newer typers carry click inside, older ones depend on it: this is the base of its errors in both.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]


def make_app(*, with_rocket: bool = False) -> typer.Typer:
    """Put the commands together; ``with_rocket`` loads those of the RocketMQ store, too."""
    app = typer.Typer(
        name="qindex",
        help="An embedded, persistent message queue, and a reader of RabbitMQ's.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    app.command("demo")(_demo)
    app.command("list")(list_command)
    app.command("cat")(cat_command)
    app.command("publish")(publish_command)
    app.command("consume")(consume_command)
    app.command("inspect")(inspect_command)
    app.command("compact")(compact_command)
    app.command("stats")(stats_command)
    if with_rocket:
        app.add_typer(importlib.import_module(_ROCKET).rocket_app, name="rocket")
    elif _rocket_is_there():
        app.command("rocket", help=_ROCKET_HELP, add_help_option=False)(_rocket_placeholder)
    return app


_ROCKET_HELP = "The same for a RocketMQ store (qindex rocket --help)."


def _rocket_placeholder() -> int:
    """Stand in the list of commands; :func:`main` loads the real ones when they are asked for."""
    raise AssertionError("the commands of the RocketMQ store were not loaded")


def _rocket_is_there() -> bool:
    """Tell whether the package is there, without importing any of it."""
    spec = importlib.util.find_spec(_ROCKET.partition(".")[0])
    places = (spec.submodule_search_locations if spec is not None else None) or []
    return any(
        Path(place, "cli.py").is_file() or Path(place, "cli", "__init__.py").is_file()
        for place in places
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"qindex {qindex.__version__}")
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


def _demo(
    kills: Annotated[int, typer.Option(min=1, max=100, help="Processes to kill.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=60, help="How long each lives, about.")
    ] = 1.5,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store, and say where.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Publish, consume, kill the process in the middle, and show that nothing was lost.

    In a temporary directory: a child process with publishing and consuming threads is killed
    with SIGKILL, several times; what it had noted of each call that returned is held against what
    is in the store. Exits 0 only if the books balance.
    """
    from qindex.cli.demo import run_demo

    return run_demo(kills=kills, seconds=seconds, keep=keep, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code. Never raises, and never prints a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given)
        flush()
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print_note("interrupted")
        return INTERRUPTED
    return code


def _run(arguments: list[str]) -> int:
    try:
        rocket = arguments[:1] == ["rocket"] and _rocket_is_there()
        command = get_command(make_app(with_rocket=rocket))
        # Not command.main(): that one catches what is to be told apart here.
        with command.make_context("qindex", list(arguments) or ["--help"]) as context:
            result: Any = command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code if arguments else WRONG_USE
    except (typer.Abort, KeyboardInterrupt):
        raise KeyboardInterrupt from None
    except DamageError as error:
        return _fail(FOUND, error)
    except StoreError as error:
        return _fail(WRONG_USE, error)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(WRONG_USE, f"{error.filename or 'input'}: {error.strerror or error}")
    except _CommandLineError as error:
        return _fail(WRONG_USE, f"{_message_of(error)} (see qindex --help)")
    except Exception as error:
        if os.environ.get("QINDEX_DEBUG"):
            raise
        return _fail(DEFECT, f"a defect of this program: {type(error).__name__}: {error}")
    return int(result or 0)


def _message_of(error: Any) -> str:
    return str(error.format_message()).rstrip(".")


def _fail(code: int, error: object) -> int:
    # What was printed before it belongs before it on a terminal, too.
    with contextlib.suppress(BrokenPipeError):
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
