"""``verify``, ``repair`` and ``salvage``: what to do with a broken directory."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from journal.findings import Cause, Finding, Kind
from qindex.cli.look import Directory, EntryCountOption, JsonOption
from qindex.cli.output import key_text, print_json, print_line, print_note, progress_bar
from qindex.index.pair_scan import ACKED_OR_LOST
from qindex.tools.saved import SaveReport
from qindex.tools.verify import Verification

_FEW = 3
_ROCKET_DIRECTORIES = ("commitlog", os.path.join("store", "commitlog"))

Out = Annotated[
    str,
    typer.Option(
        "--out",
        metavar="NEW",
        help="The new directory, empty or missing.",
        show_default=False,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", help="A queue's name, for a directory that has lost its own; may be repeated."
    ),
]


def verify_command(
    directory: Directory, entry_count: EntryCountOption = None, as_json: JsonOption = False
) -> int:
    """Check everything: formats, checksums, references both ways, counts, names.

    DIR is a store, also one in use; a RabbitMQ virtual host's or node's directory; or a RocketMQ
    store. Prints a line for each finding, and exits 1 on damage. Leftovers of a crash, which the
    next open repairs, are notes on standard error (with --json their cause is "crash") and not
    damage.
    """
    rocket = _rocket_directory(directory)
    check = Verification(directory, segment_entry_count=entry_count)
    findings = check.findings() if rocket is None else _rocket_findings(rocket)
    counts = dict.fromkeys(Cause, 0)
    for finding in findings:
        counts[finding.cause] += 1
        if as_json:
            print_json(finding.to_dict())
        elif finding.cause is Cause.DAMAGE:
            print_line(_line(finding))
        else:
            print_note(f"note: {_line(finding)}")
    damage, notes = counts[Cause.DAMAGE], counts[Cause.CRASH]
    figures = {} if rocket is not None else dataclasses.asdict(check.figures)
    if as_json:
        print_json({"summary": {"sound": not damage, "damage": damage, "notes": notes} | figures})
    else:
        shown = ", ".join(f"{name}: {value}" for name, value in figures.items())
        verdict = "sound" if not damage else f"damaged in {damage} places"
        print_line(f"{directory}: {verdict}" + (f" ({shown})" if shown else ""))
    return 1 if damage else 0


def _line(finding: Finding) -> str:
    text = f"[{finding.kind.value}] {finding}"
    return text if text.isprintable() else ascii(text)[1:-1]


def _rocket_directory(directory: str) -> str | None:
    """Return where a RocketMQ store is in the directory, if it is one."""
    for inner in _ROCKET_DIRECTORIES:
        if os.path.isdir(os.path.join(directory, inner)):
            return os.path.join(directory, os.path.dirname(inner))
    return None


def _rocket_findings(directory: str) -> Iterator[Finding]:
    # Loaded here alone: qindex and rocketstore do not know each other.
    return iter(importlib.import_module("rocketstore.verify").verify(directory))


def repair_command(
    directory: Directory, out: Out, names: Names = None, as_json: JsonOption = False
) -> int:
    """Make a sound copy of a damaged store, with everything that can be saved.

    DIR is not changed. Order, seq_ids, redelivered flags, keys, headers, expiry and settings are
    kept. Damaged bytes are copied to NEW/quarantine. Prints what it saved and lost, and exits 1 if
    it lost anything.
    """
    from qindex.tools.repair import repair

    return _print_report(repair(directory, out, names=names or ()), as_json)


def salvage_command(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="RABBITMQ_DIR",
            help="A virtual host's directory, a node's, or a msg_stores tree.",
            show_default=False,
        ),
    ],
    out: Out,
    format: Annotated[
        Literal["qindex", "rabbitmq", "rabbitmq-4"],
        typer.Option(
            "--format",
            "--as",
            help="Make a store of qindex, or a virtual host's directory for a node of 3.10 "
            "to 3.12, or of 4.0 and later.",
        ),
    ] = "qindex",
    names: Names = None,
    entry_count: EntryCountOption = None,
    as_json: JsonOption = False,
) -> int:
    """Save the messages of a RabbitMQ node (3.10 to 4.3) that does not start.

    RABBITMQ_DIR is not changed. Prints what it saved and lost, and exits 1 if it lost anything.
    docs/rabbitmq.md says how a node takes over the result of --as rabbitmq or rabbitmq-4.
    """
    from qindex.tools.salvage import salvage

    with progress_bar("saving") as told:
        report = salvage(
            directory,
            out,
            format=format,
            names=names or (),
            segment_entry_count=entry_count,
            progress=told,
        )
    return _print_report(report, as_json)


def convert_command(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A virtual host's directory, or a node's, that is not running; or a store.",
            show_default=False,
        ),
    ],
    to: Annotated[int, typer.Option("--to", min=1, max=2, help="The version.")],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="NEW", help="For a store of qindex: the new directory."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Convert the queues of a RabbitMQ node's directory to version 2 of their files, or to 1.

    Nodes of 4.3 read only version 2; nodes of 3.10 to 3.12 read version 1. The directory is
    converted in place, while the node is stopped. Run an interrupted conversion again before you
    start the node. A damaged directory is refused unchanged (see salvage). With --out, a store of
    qindex becomes the directory of a virtual host.
    """
    from qindex.tools.convert import convert

    with progress_bar("converting") as told:
        report = convert(directory, 1 if to == 1 else 2, out=out, progress=told)
    return _print_report(report, as_json)


def _print_report(report: SaveReport, as_json: bool) -> int:
    code = 0 if report.complete else 1
    if as_json:
        print_json(report.to_dict())
        return code
    for is_lost, text in _counted(report):
        if is_lost:
            print_line(f"lost: {text}")
        else:
            print_note(f"note: {text}")
    for queue in report.queues:
        fields: dict[str, Any] = dataclasses.asdict(queue)
        name = fields.pop("name")
        fields.pop("vhost")
        shown = ", ".join(f"{key}: {value}" for key, value in fields.items() if value)
        print_line(f"queue {key_text(name)}: {shown or 'empty'}")
    if report.for_node:
        print_note("note: a node deletes the directories of queues that it has not declared:")
    for declared in report.declarations:
        print_line(_declaration(declared))
    for path in report.quarantined:
        print_note(f"quarantined: {os.path.join(report.target, path)}")
    print_line(
        f"{report.target}: {report.messages} messages in {len(report.queues)} queues, "
        f"{report.stored_messages} in the message store; {_verdict(report)}"
    )
    return code


def _declaration(declared: dict[str, Any]) -> str:
    """Return the command by which a node's tool declares a queue."""
    words = ["rabbitmqadmin", f"--vhost={declared['vhost']}", "declare", "queue"]
    words += [f"name={declared['name']}", "durable=true"]
    if declared["arguments"]:
        words.append(f"arguments={json.dumps(declared['arguments'])}")
    return shlex.join(words)


def _verdict(report: SaveReport) -> str:
    if report.complete:
        return "nothing was lost"
    bare = [one for one in report.lost if one.kind is Kind.ENTRY_WITHOUT_MESSAGE]
    entries = max(len(bare), sum(queue.lost for queue in report.queues))
    places = max(len(report.lost) - entries, 0)
    parts = [f"{places} places could not be saved"] if places else []
    if entries:
        excused = bare and all(one.cause is Cause.CRASH for one in bare)
        why = f": {ACKED_OR_LOST}" if excused else ""
        parts.append(f"{entries} entries without a message{why}")
    return "; ".join(parts)


def _counted(report: SaveReport) -> Iterator[tuple[bool, str]]:
    """Describe the findings, and whether each is a loss. Of many of one kind in one file the first
    is shown, and their number."""
    lost = set(report.lost)
    groups: dict[tuple[bool, str, Kind, Cause], list[Finding]] = {}
    for one in report.findings:
        groups.setdefault((one in lost, one.path, one.kind, one.cause), []).append(one)
    for (is_lost, *_), group in groups.items():
        shown = [_line(one) for one in group]
        if len(group) > _FEW:
            shown = [f"{shown[0]} (and {len(group) - 1} more of this kind in this file)"]
        yield from ((is_lost, text) for text in shown)
