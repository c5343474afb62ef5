"""Run all benchmarks, and write their figures into docs/benchmarks-tables.md.

Each program runs by itself, one after the other, with sizes that let all of them end in less than
ten minutes on two processors with nothing else to do; ``--quick`` shows in two that all works.
Each of their JSON lines has a ``"benchmark": NAME``. With ``--page`` the machine, the versions, the
bars and the figures are put anew between the two marks of docs/benchmarks-tables.md (or FILE).

The exit status is 0 when all programs ran, 1 when one failed or took too long, and its name is
said. A program that finds nothing to compare with (no RabbitMQ, no Maven) is left out, with the
reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import Result, split_page, write_page
from benchmarks.program import common_parser, parse_common
from journal.child import command

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "benchmarks-tables.md"
_CUT_OFF = -1
_MAX_SECONDS = 900
"""A program that takes longer is cut off: three times the slowest, on a machine that others use."""
_PAUSE = 3.0


@dataclass(frozen=True, slots=True)
class Program:
    """``python -m benchmarks.NAME`` with these arguments; ``title`` stands above its tables."""

    name: str
    title: str
    sized: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


PROGRAMS = (
    Program(
        "engine",
        "The engine beside the libraries that users would pick instead",
        ("--rounds", "2"),
        ("--quick", "--rounds", "1"),
    ),
    Program(
        "rabbitmq",
        "Beside RabbitMQ's own modules in the Erlang VM",
        ("--rounds", "2"),
        ("--messages", "20000", "--entries", "50000", "--rounds", "1"),
    ),
    Program(
        "rocketstore",
        "The RocketMQ store beside the real one in a warm JVM",
        ("--only", "rates", "--rounds", "4"),
        ("--messages", "8000", "--only", "rates", "--rounds", "1"),
    ),
    Program(
        "msgstore",
        "The message store beside plain file operations",
        ("--steady-seconds", "5", "--space-megabytes", "512"),
        ("--megabytes", "16", "--seconds", "0.3", "--steady-seconds", "1", "--rounds", "1")
        + ("--space-megabytes", "64"),
    ),
    Program("contention", "Threads, and slow calls", (), ("--messages", "64000", "--rounds", "1")),
    Program("priorities", "Priorities", (), ("--messages", "20000", "--rounds", "2")),
    Program("aio", "asyncio", (), ("--count", "10000", "--confirmed", "1000", "--rounds", "1")),
    Program("follow", "A follower in another process", (), ("--count", "100000")),
    Program("spark", "Spark", ("--rounds", "2"), ("--messages", "40000", "--rounds", "1")),
)


def run_program(program: Program, *, quick: bool, directory: Path | None) -> Result:
    """Run one; what it says goes to standard error."""
    # A program that was cut off may leave workers that write there for another moment.
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as place:
        output = Path(place).absolute() / "lines.json"
        sized = program.quick if quick else program.sized
        words = [*sized, "--dir", str(output.parent), "--json", str(output)]
        run = command(f"benchmarks.{program.name}", *words, root=_ROOT)
        started = time.monotonic()
        try:
            status = subprocess.run(
                run, cwd="/", stdout=sys.stderr, timeout=_MAX_SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = _CUT_OFF
        seconds = time.monotonic() - started
        found = output.read_text("utf-8").splitlines() if output.exists() else []
    lines = [json.loads(line) for line in found]
    return Result(program.name, program.title, lines, seconds, status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit status."""
    names = [program.name for program in PROGRAMS]
    parser = common_parser("run", __doc__)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="small counts: shows that all works")
    parser.add_argument(
        "--page",
        type=Path,
        nargs="?",
        const=_PAGE,
        metavar="FILE",
        help="the page that gets the tables (docs/benchmarks-tables.md)",
    )
    options = parse_common(parser, arguments)
    if options.page is not None:
        try:
            split_page(options.page)
        except (OSError, ValueError) as error:
            parser.error(f"--page: {error}")
    results: list[Result] = []
    for program in PROGRAMS:
        if options.only and program.name not in options.only:
            continue
        print(f"-- {program.name}: {program.title}", file=sys.stderr, flush=True)
        # What the program before has written and removed is no load of the next one.
        os.sync()
        time.sleep(_PAUSE)
        result = run_program(program, quick=options.quick, directory=options.dir)
        results.append(result)
        end = f"failed, status {result.status}" if result.failed else "done"
        print(f"-- {program.name}: {end}, {result.seconds:.0f} s", file=sys.stderr, flush=True)
    lines = "".join(
        json.dumps({"benchmark": result.name, **line}) + "\n"
        for result in results
        for line in result.lines
    )
    if options.json is None:
        sys.stdout.write(lines)
    else:
        options.json.write_text(lines, "utf-8")
    if options.page is not None:
        write_page(options.page, results)
    failed = [result.name for result in results if result.failed]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
