"""``inspect``: one file, record by record, and where it stops making sense."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from journal.errors import DamageError, NotAStoreError, UsageError, storage_errors
from journal.findings import Finding, Kind
from journal.format import ACK, ACTION_SIZE, DELIVER, PAYLOAD, PUBLISH_PERSISTENT
from journal.fs.files import REAL, FileBytes, opened, read_file, read_optional
from msgstore.scan import Record, read_record, scan_file
from qindex.cli.inspection.small_files import SMALL, inspect_small
from qindex.cli.inspection.version2 import inspect_pair
from qindex.cli.look import JsonOption
from qindex.cli.output import print_findings, print_json, print_line, print_note
from qindex.format import layout
from qindex.format import message_record as record_format
from qindex.format.entries import decode_any
from qindex.format.json_value import plain_value
from qindex.format.rabbitmq.term_format import TermError
from qindex.format.rabbitmq.vhost_config import parse_vhost_config
from qindex.format.record_layouts import journal_layout, segment_layout
from qindex.format.resynchronise import Layout, read_soundly
from qindex.format.segment import DEFAULT_ENTRY_COUNT, STEP_SIZE, file_number
from qindex.index.messages import check_record
from qindex.recovery import store_directory

_ROCKET_FILE = re.compile(r"[0-9]{17}|[0-9]{20}|checkpoint|.*\.json|.*\.json\.bak")
_FORMATS = {0x83: "rabbitmq", record_format.MAGIC[0]: "qindex"}
_RECORDS = (".rdq", ".rdt", ".rdq.tmp")
_KNOWN = f".jif, .idx, .qi, .qs, .rdq, .rdt, {SMALL}; or of a RocketMQ store"


def inspect_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help=f"One of {_KNOWN}.")],
    entries: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 14, help="Entries a segment; default: what the file's store says."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Print the records of one file with their offsets.

    Places that make no sense follow on standard error, a line each; then it exits 1.
    """
    suffix = os.path.splitext(file)[1]
    if os.path.isdir(file):
        raise UsageError(f"{file}: is a directory, not a file (see list and cat)")
    if os.path.exists(file) and not os.path.isfile(file):
        raise UsageError(f"{file}: is not a regular file")
    known = inspect_small(file) or inspect_pair(file)
    if known is not None:
        records, findings = known
    elif file.endswith(_RECORDS):
        records, findings = _stored(file)
    elif suffix in (".jif", ".idx"):
        records, findings = _index(file, suffix, entries)
    elif _ROCKET_FILE.fullmatch(os.path.basename(file)):
        return _rocket(file, as_json)
    else:
        raise UsageError(f"{file}: not a file that can be inspected ({_KNOWN})")
    empty = True
    for record in records:
        empty = False
        if as_json:
            print_json(record)
        else:
            print_line(_line(record))
    if empty and not as_json:
        print_line(f"{file}: no records")
    return print_findings(findings)


def _line(record: dict[str, Any]) -> str:
    rest = " ".join(
        f"{name}={value if str(value).isprintable() else ascii(value)}"
        for name, value in record.items()
        if name not in ("offset", "length", "record") and value is not None
    )
    return f"{record['offset']:>10} {record['length']:>8} {record['record']:<8} {rest}"


def _rocket(file: str, as_json: bool) -> int:
    """Print a file of a RocketMQ store; see ``qindex rocket inspect`` for its options."""
    damaged = 0
    # Loaded here alone: qindex and rocketstore do not know each other.
    for row in importlib.import_module("rocketstore.repair.inspection").inspect_file(file):
        if as_json:
            print_json(plain_value(row))
        else:
            fields = (f"{name}={value!a}" for name, value in row.items() if name != "kind")
            print_line(" ".join((row["kind"], *fields)))
        if "damage" in row:
            print_note(f"{file}: {row['damage']}")
            damaged = 1
    return damaged


def _index(
    path: str, suffix: str, entries: int | None
) -> tuple[Iterator[dict[str, Any]], list[Finding]]:
    with storage_errors(path, "can't be read"):
        data = read_file(REAL, path)
    if suffix == ".jif":
        how, step = journal_layout((1 << 62) - 1), ACTION_SIZE
    else:
        number = file_number(os.path.basename(path))
        if number is None:
            raise UsageError(f"{path}: a segment file is named for its number, like 0.idx")
        how, step = segment_layout(number, entries or _entry_count(path)), STEP_SIZE
    reading = read_soundly(path, data, how)
    walk = reading.walk
    findings = reading.findings
    if suffix == ".jif" and not len(walk):
        # After a flush a journal in use is nothing but the zeros that are written ahead.
        findings = [finding for finding in findings if finding.kind is not Kind.ZEROS]
    rows = zip(
        walk.kinds.tolist(),
        walk.seqs.tolist(),
        walk.offsets.tolist(),
        walk.lengths.tolist(),
        strict=True,
    )
    return _records(reading.data, rows, how, step), findings


def _records(
    data: FileBytes, rows: Iterator[tuple[int, int, int, int]], how: Layout, step: int
) -> Iterator[dict[str, Any]]:
    delivered: set[int] = set()
    for kind, seq, offset, length in rows:
        record: dict[str, Any] = {"offset": offset, "length": length}
        if kind >= DELIVER:
            # A segment has one kind of step: the second one of an entry is its ack.
            is_ack = kind == ACK if step == ACTION_SIZE else seq in delivered
            delivered.add(seq)
            yield record | {"record": "ack" if is_ack else "deliver", "seq_id": seq}
            continue
        msg_id, expiry, size, embedded = PAYLOAD.unpack_from(data, offset + how.payload_at)
        first = data[offset + how.head_size] if embedded else None
        yield record | {
            "record": "publish",
            "seq_id": seq,
            "persistent": kind == PUBLISH_PERSISTENT,
            "msg_id": msg_id.hex(),
            "expiry": expiry or None,
            "size": size,
            "embedded": embedded,
            "format": None if first is None else _FORMATS.get(first),
        }


def _entry_count(path: str) -> int:
    """Find out how many entries a segment of the store has that the file is in."""
    store = os.path.join(os.path.dirname(os.path.abspath(path)), "..", "..")
    try:
        marker = store_directory.read_marker(REAL, store)
        if marker is not None:
            return marker.entry_count
        config = read_optional(REAL, os.path.join(store, layout.CONFIG))
        if config is not None:
            return parse_vhost_config(config).segment_entry_count
    except (OSError, TermError, NotAStoreError) as error:
        print_note(f"the store of {path} does not tell its segments' size: {error}")
    print_note(f"{path}: {DEFAULT_ENTRY_COUNT} entries a segment assumed (see --entries)")
    return DEFAULT_ENTRY_COUNT


def _stored(path: str) -> tuple[Iterator[dict[str, Any]], list[Finding]]:
    scan = scan_file(REAL, path, check=check_record, verify=True)
    return _messages(path, scan.records), scan.gaps


def _messages(path: str, records: list[Record]) -> Iterator[dict[str, Any]]:
    with storage_errors(path, "can't be read"), opened(REAL, path) as fd:
        for msg_id, offset, length in records:
            record = read_record(REAL, fd, offset, length)
            if record is None:
                raise DamageError(path, offset, "the file was cut while it was read")
            message = decode_any(record, msg_id)
            yield {
                "offset": offset,
                "length": length,
                "record": "message",
                "msg_id": msg_id.hex(),
                "format": _FORMATS.get(record[0]),
                "key": plain_value(message.key),
                "size": len(message.body),
            }
