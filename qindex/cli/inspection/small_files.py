"""``inspect`` of the files beside the records: checksums, snapshot, seq_ids, settings, names, and
what a RabbitMQ node writes when it stops."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from journal import format as journal_format
from journal.block_sums import SUFFIX as SUMS_SUFFIX
from journal.block_sums import check_room, check_sums, extents, without_room
from journal.errors import StoreError, storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.files import REAL, read_file, read_optional
from msgstore.format import file_name as store_file_name
from msgstore.snapshot import load_snapshot
from qindex.format import layout
from qindex.format.headers import BEGAN_AT, DUE_FILE, KEYS_FILE, WINDOW_AT
from qindex.format.json_value import plain_value
from qindex.format.notes import CLOSED, MAX_VALUE, NOTED, pack_note, unpack_note
from qindex.format.notes import RECORD_SIZE as NOTE_SIZE
from qindex.format.rabbitmq.clean_dot import parse_clean_dot
from qindex.format.rabbitmq.names import directory_name, parse_queue_name
from qindex.format.rabbitmq.recovery_terms import read_recovery_terms
from qindex.format.rabbitmq.vhost_config import parse_vhost_config
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.format.seq_ids import (
    INCARNATION_SLOT,
    RESERVE_SLOTS,
    SLOT_SIZE,
    incarnation_of,
    sound_slots,
)
from qindex.format.settings import unpack_settings
from qindex.format.transactions import damage_in, read_transactions
from qindex.index.segment_scan import read_healed
from qindex.queue.notes.delivery_counts import FILE_NAME as DELIVERIES
from qindex.queue.notes.delivery_counts import RECORD_SIZE, unpack_count
from qindex.recovery.snapshot import FILE_NAME as SNAPSHOT
from qindex.recovery.snapshot import unpack_snapshot
from qindex.tools.marker_check import check_halves
from qindex.tools.queue_check import check_slots
from qindex.view.rabbitmq_vhost import RECOVERY_TERMS, VHOST_FILE

Row = dict[str, Any]
_CLEAN_DOT = "clean.dot"
SMALL = (
    ".sum, qindex.clean, qindex.deliveries, qindex.due, qindex.keys, qindex.seq, "
    "qindex.settings, qindex.store, .queue_name, .vhost, .config, recovery.dets, clean.dot"
)


def inspect_small(path: str) -> tuple[Iterator[Row], list[Finding]] | None:
    """Return the rows and the findings of a file; ``None`` for a file of another kind.

    Raises :class:`StorageError` when it can't be read.
    """
    name = os.path.basename(path)
    reader = _sums if name.endswith(SUMS_SUFFIX) else _READERS.get(name)
    if reader is None:
        return None
    with storage_errors(path, "can't be read"):
        data = read_file(REAL, path)
        rows: list[Row] = []
        findings: list[Finding] = []
        try:
            rows.extend(reader(path, data, findings))
        except (ValueError, StoreError) as error:
            findings.append(_wrong(path, data, error))
    return iter(rows), findings


def _row(data: bytes, record: str, offset: int = 0, /, **fields: Any) -> Row:
    """Return the row of a record: the bytes ``data``, at ``offset``."""
    return {"offset": offset, "length": len(data), "record": record, **fields}


def _wrong(path: str, data: bytes, what: object) -> Finding:
    return Finding(path, 0, len(data), Cause.DAMAGE, str(what), kind=Kind.CHECKSUM)


def _sums(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    of = path.removesuffix(SUMS_SUFFIX)
    covered = read_optional(REAL, of)
    if os.path.basename(of) == journal_format.FILE_NAME:
        findings += check_room(of, data)
        data = without_room(data)
    for position, length, start, count in extents(data):
        yield _row(data[position : position + length], "extent", position, of=start, bytes=count)
    if covered is not None:
        read_healed(REAL, of, findings, covered)
        findings += check_sums(of, covered, data)


def _snapshot(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    queues, store = unpack_snapshot(data, "")
    yield _row(data, "snapshot", queues=len(queues))
    for name, queue in queues.items():
        segments = {str(number): list(counts) for number, counts in queue.segments.items()}
        fields = {"next_seq_id": queue.next_seq, "segments": segments}
        yield _row(b"", "queue", directory=name, **fields)
    if store is not None:
        locations, summary, _ = load_snapshot(store)
        for key, entry in summary:
            name = store_file_name(key)
            yield _row(b"", "file", name=name, size=entry.size, live=entry.live)
        yield _row(b"", "messages", count=len(locations))


def _seq(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    for at in range(0, len(data), SLOT_SIZE):
        slot = data[at : at + SLOT_SIZE]
        kind = "reserved" if at // SLOT_SIZE in RESERVE_SLOTS else "floor"
        for one in sound_slots(slot):
            if at == INCARNATION_SLOT * SLOT_SIZE:
                yield _row(slot, "incarnation", at, incarnation=f"{incarnation_of(one):016x}")
                continue
            said = {"floor": one.floor, "reserved_below": one.reserved, "boot": one.boot.hex()}
            yield _row(slot, kind, at, **said)
    findings += check_slots(path, data, True)
    if len(data) % SLOT_SIZE:
        findings.append(_wrong(path, data, f"{len(data)} bytes are not slots of {SLOT_SIZE}"))


def _settings(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    yield _row(data, "settings", **dataclasses.asdict(unpack_settings(data)))


def _deliveries(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    for at in range(0, len(data), RECORD_SIZE):
        raw = data[at : at + RECORD_SIZE]
        record = unpack_count(raw)
        if record is None:
            what, lost = "a record that is not whole", "a message is delivered once more"
            kind = Kind.CHECKSUM
            findings.append(Finding(path, at, RECORD_SIZE, Cause.CRASH, what, lost, kind))
            continue
        seq_id, count = record
        yield _row(raw, "deliveries", at, seq_id=seq_id, count=count)


def _due_times(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    for row, seq_id, value in _notes(path, data, findings):
        yield {**row, "record": "due", "seq_id": seq_id, "due": value} if value >= 0 else row


def _unique_keys(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    for row, seq_id, value in _notes(path, data, findings):
        if value >= 0 and seq_id >= WINDOW_AT:
            yield {**row, "record": "window", "seq_id": seq_id - WINDOW_AT, "until": value}
        elif value >= 0 and seq_id >= BEGAN_AT:
            yield {**row, "record": "window", "seq_id": seq_id - BEGAN_AT, "began": value}
        elif value >= 0:
            yield {**row, "record": "key", "seq_id": seq_id, "hash": value}
        else:
            yield row


def _notes(path: str, data: bytes, findings: list[Finding]) -> Iterator[tuple[Row, int, int]]:
    """Yield each record, its seq_id, and its value, which is -1 for a mark."""
    for at in range(0, len(data) - len(data) % NOTE_SIZE, NOTE_SIZE):
        raw = data[at : at + NOTE_SIZE]
        seq_id, due = unpack_note(raw)
        if pack_note(seq_id, due) != raw:
            if any(raw):
                what, lost = "a record that is not whole", "what it says is lost"
                kind = Kind.CHECKSUM
                findings.append(Finding(path, at, NOTE_SIZE, Cause.CRASH, what, lost, kind))
        elif due < MAX_VALUE:
            yield _row(raw, "note", at), seq_id, due
        elif due == NOTED:
            yield _row(raw, "noted", at, next_seq_id=seq_id), seq_id, -1
        else:
            yield _row(raw, "closed", at, next_seq_id=seq_id, messages=due - CLOSED), seq_id, -1


def _transactions(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    findings += damage_in(path, data)
    for number, noted in read_transactions(data)[0].items():
        yield _row(
            data,
            "transaction",
            number=number,
            published=[
                {"queue": one.queue, "first": one.first, "msg_ids": [id.hex() for id in one.ids]}
                for one in noted.published
            ],
            acked=[{"queue": queue, "seq_ids": seqs} for queue, seqs in noted.acks],
            committed=noted.boot is not None,
        )


def _marker(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    half = len(data) // 2
    findings += check_halves(path, data)
    bad = {one.offset for one in findings}
    for at in (0, half):
        if at not in bad:
            part = data[at : at + half]
            yield _row(part, "marker", at) | plain_value(layout.unpack_checked(part))


def _queue_name(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    directory = os.path.basename(os.path.dirname(os.path.abspath(path)))
    if not _HASHED.fullmatch(directory):
        # A copy of the file, somewhere else: nothing vouches for the border, the first one it is.
        vhost_part, _, queue_part = data.partition(b"\nQUEUE: ")
        directory = directory_name(vhost_part.removeprefix(b"VHOST: "), queue_part[:-1])
    name = parse_queue_name(data, directory)
    vhost, queue = (one.decode("utf-8", "surrogateescape") for one in name[:2])
    fields = {"vhost": plain_value(vhost), "queue": plain_value(queue)}
    yield _row(data, "queue_name", **fields, priority=name.priority)


def _vhost(_path: str, data: bytes, _findings: list[Finding]) -> Iterator[Row]:
    name = data.decode("utf-8", "surrogateescape")
    yield _row(data, "vhost", name=plain_value(name))


def _config(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    config = parse_vhost_config(data)
    yield _row(data, "config", segment_entry_count=config.segment_entry_count)
    if config.fallback is not None:
        findings.append(_wrong(path, data, config.fallback))


def _terms(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    terms = read_recovery_terms(data)
    for name, queue in sorted(terms.queues.items()):
        fields = dataclasses.asdict(queue)
        ref = queue.persistent_ref
        fields["persistent_ref"] = None if ref is None else ref.hex()
        fields["segments"] = {str(number): count for number, count in queue.segments.items()}
        if queue.segments_v2 is not None:
            fields["segments_v2"] = {str(one): count for one, count in queue.segments_v2.items()}
        fields["delivered"] = sorted(queue.delivered)
        yield _row(b"", "queue", directory=name, **fields)
    findings += [_wrong(path, data, problem) for problem in terms.problems]


def _clean(path: str, data: bytes, findings: list[Finding]) -> Iterator[Row]:
    clean = parse_clean_dot(data)
    refs = [ref.hex() for ref in clean.client_refs]
    yield _row(data, "clean", index_module=clean.index_module, client_refs=refs)


_HASHED = re.compile("[0-9A-Z]{20,25}")
"""Names of queues' directories."""

_READERS: dict[str, Callable[[str, bytes, list[Finding]], Iterator[Row]]] = {
    SNAPSHOT: _snapshot,
    SEQ_FILE_NAME: _seq,
    layout.SETTINGS: _settings,
    layout.TRANSACTIONS: _transactions,
    DELIVERIES: _deliveries,
    DUE_FILE: _due_times,
    KEYS_FILE: _unique_keys,
    layout.MARKER: _marker,
    layout.QUEUE_NAME: _queue_name,
    VHOST_FILE: _vhost,
    layout.CONFIG: _config,
    RECOVERY_TERMS: _terms,
    _CLEAN_DOT: _clean,
}
