"""``qindex rocket``: look into a RocketMQ store, and rebuild its index and queues from its log.

The commands raise the project's errors; ``qindex`` makes one line on standard error and an exit
status of each. They end with 1 when they met damage.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from journal.errors import DamageError, UsageError
from journal.findings import Cause, Kind
from journal.shown import json_safe, printable
from rocketstore.format.message import StoredMessage
from rocketstore.reading import TIME_MAX
from rocketstore.repair.derived_files import rebuild_in_place
from rocketstore.repair.inspection import inspect_file
from rocketstore.store import Store, open_store
from rocketstore.verify import verify

rocket_app: typer.Typer = typer.Typer(
    name="rocket",
    help="RocketMQ 4.9.3 message stores: CommitLog, ConsumeQueues, IndexFiles.",
    add_completion=False,
)

Directory = Annotated[Path, typer.Argument(help="The store's directory.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Queue = Annotated[int, typer.Option("--queue", "-q", min=0, help="Queue id.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 for all.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Slots of an index file.")]
Entries = Annotated[int | None, typer.Option(min=2, help="Entries of an index file.")]


def _row(message: StoredMessage) -> dict[str, Any]:
    row = message.to_dict()
    try:
        body = message.body
    except DamageError as error:
        return {**row, "damage": str(error)}
    row["body_base64"] = base64.b64encode(body).decode()
    with contextlib.suppress(UnicodeDecodeError):
        row["body"] = body.decode()
    return row


def _print(rows: Iterator[dict[str, Any]], as_json: bool) -> int:
    """Print rows; return how many told of damage."""
    damaged = 0
    for row in rows:
        damaged += "damage" in row
        if as_json:
            _line(json_safe(json.dumps(row, ensure_ascii=False)))
        else:
            hidden = ("body_base64",) if "body" in row else ()
            shown = [f"{name}={_text(row[name])}" for name in row if name not in hidden]
            _line("  ".join(shown))
    return damaged


def _line(text: str) -> None:
    # In UTF-8 whatever the terminal is said to have: topics and bodies are.
    sys.stdout.buffer.write(printable(text).encode("utf-8", "backslashreplace") + b"\n")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value if value.isprintable() and " " not in value else json.dumps(value)
    if isinstance(value, dict):
        text = json.dumps(value, ensure_ascii=False)
        return text if text.isprintable() else json.dumps(value)
    return str(value)


def _finish(damaged: int) -> None:
    if damaged:
        raise typer.Exit(1)


def _read(directory: Path) -> Store:
    return open_store(directory, read_only=True)


@rocket_app.command("list")
def list_queues(directory: Directory, as_json: AsJson = False) -> None:
    """Topics and queues: first and next ordinal, messages."""
    with _read(directory) as store:
        rows = (
            {
                "topic": topic,
                "queue_id": queue_id,
                "min_offset": bounds[0],
                "max_offset": bounds[1],
                "messages": bounds[1] - bounds[0],
            }
            for (topic, queue_id), bounds in store.queues().items()
        )
        _print(rows, as_json)


@rocket_app.command("cat")
def cat(
    directory: Directory,
    topic: str,
    queue: Annotated[int | None, typer.Option("--queue", "-q", help="Only this queue.")] = None,
    first: Annotated[int, typer.Option("--from", min=0, help="First ordinal.")] = 0,
    limit: Limit = 0,
    as_json: AsJson = False,
) -> None:
    """Messages of a topic, queue by queue, in order; changes nothing."""
    with _read(directory) as store:
        found = [key for key in store.queues() if key[0] == topic and queue in (None, key[1])]
        if not found:
            where = "" if queue is None else f", queue {queue}"
            raise UsageError(f"{directory}: no messages in topic {topic!r}{where}")
        rows = (_row(message) for key in found for message in store.messages(*key, first))
        _finish(_print(_at_most(rows, limit), as_json))


def _at_most(rows: Iterator[dict[str, Any]], limit: int) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows):
        if limit and number >= limit:
            return
        yield row


@rocket_app.command("query")
def query(
    directory: Directory,
    topic: str,
    key: str,
    begin: Annotated[int, typer.Option(help="Stored at or after (ms since 1970).")] = 0,
    end: Annotated[int, typer.Option(help="Stored at or before (ms since 1970).")] = TIME_MAX,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest N.")] = 32,
    raw: Annotated[
        bool, typer.Option("--raw", help="As RocketMQ answers: hash twins too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Messages by key (one of KEYS, or UNIQ_KEY)."""
    with _read(directory) as store:
        found = store.query(topic, key, limit, begin, end, exact=not raw)
        _finish(_print(map(_row, found), as_json))


@rocket_app.command("offset")
def offset(
    directory: Directory,
    place: Annotated[str | None, typer.Argument(help="Physical offset, or message id.")] = None,
    topic: Annotated[str | None, typer.Option(help="With --time: the topic.")] = None,
    queue: Queue = 0,
    time: Annotated[int | None, typer.Option(help="Store time (ms since 1970).")] = None,
    as_json: AsJson = False,
) -> None:
    """The message at a physical offset or with a message id; or a queue's offset by store time."""
    with _read(directory) as store:
        if time is not None:
            if topic is None or place is not None:
                raise UsageError("--time goes with --topic, and without a physical offset")
            ordinal = store.offset_by_time(topic, queue, time)
            row = {"topic": topic, "queue_id": queue, "time": time, "queue_offset": ordinal}
            _print(iter([row]), as_json)
            return
        if place is None:
            raise UsageError("give a physical offset, a message id, or --topic and --time")
        by_number = place.isascii() and place.isdigit() and len(place) < 32
        message = store.lookup(int(place) if by_number else place)
        if message is None:
            raise UsageError(f"{directory}: there is no message at {place}")
        _finish(_print(iter([_row(message)]), as_json))


@rocket_app.command("consume")
def consume(
    directory: Directory,
    topic: str,
    group: str,
    queue: Queue = 0,
    tags: Annotated[str | None, typer.Option(help='Only these: "A || B".')] = None,
    limit: Limit = 0,
    broadcast: Annotated[bool, typer.Option(help="This consumer has its own offsets.")] = False,
    as_json: AsJson = False,
) -> None:
    """Messages from a group's committed offset on; committed as they are printed."""
    with open_store(directory, background=False, create=False) as store:
        if (topic, queue) not in store.queues():
            raise UsageError(f"{directory}: no messages in topic {topic!r}, queue {queue}")
        at = max(store.fetch_offset(group, topic, queue, broadcast=broadcast), 0)
        printed = damaged = 0
        while True:
            wanted = min(32, limit - printed) if limit else 32
            if wanted == 0:
                break
            answer = store.get(topic, queue, at, wanted, tags)
            if answer.next_offset <= at and not answer.messages:
                break
            damaged += _print(map(_row, answer.messages), as_json)
            sys.stdout.flush()
            printed += len(answer.messages)
            at = answer.next_offset
            store.commit_offset(group, topic, queue, at, broadcast=broadcast)
        _finish(damaged)


@rocket_app.command("verify")
def verify_command(directory: Directory, as_json: AsJson = False) -> None:
    """Check every record, unit and index entry; a line for each finding."""
    findings = verify(directory)
    _print((finding.to_dict() for finding in findings), as_json)
    _finish(sum(one.kind is not Kind.OPEN_TO_OTHERS for one in findings))
    if not as_json:
        _line(f"{directory}: sound")


@rocket_app.command("rebuild-index")
def rebuild_index_command(
    directory: Directory,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="First quarantine damaged bytes, so that the rest is read."),
    ] = False,
    slots: Slots = None,
    entries: Entries = None,
    as_json: AsJson = False,
) -> None:
    """Build all index files and consume queues anew from the log."""
    with open_store(
        directory,
        background=False,
        create=False,
        repair=repair,
        index_slots=slots,
        index_entries=entries,
    ) as store:
        repaired = store.recovered.queues_changed
        damage = [finding for finding in store.findings if finding.cause is Cause.DAMAGE]
    built = rebuild_in_place(directory).files
    index = [file for file in built if file.name.startswith("index/")]
    queues = [file for file in built if file not in index and file.was != "identical"]
    row = {
        "index_files": len(index),
        "entries": sum(file.entries for file in index),
        "queues_repaired": len(repaired) + len(queues),
    }
    _print(iter([row]), as_json)
    for finding in damage:
        sys.stderr.write(f"qindex: {printable(str(finding))}\n")
    _finish(len(damage))


@rocket_app.command("inspect")
def inspect_command(
    file: Annotated[Path, typer.Argument(help="A file of a store.", show_default=False)],
    slots: Slots = None,
    entries: Entries = None,
    as_json: AsJson = False,
) -> None:
    """One file: its records, units or entries, and where it stops making sense."""
    _finish(_print(inspect_file(str(file), slots=slots, entries=entries), as_json))
