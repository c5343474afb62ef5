"""Make a sound copy of a damaged store, with everything in it that can be saved."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from journal.errors import DamageError, StorageError, UsageError, storage_errors
from journal.findings import Cause
from journal.fs.beneath import beneath
from journal.fs.files import (
    REAL,
    FileSystem,
    PathLike,
    checked_path,
    is_there,
    make_dirs,
    read_optional,
    replace_file,
)
from journal.locks.directory_lock import LockFile, hold_if_there
from journal.poison import Poison
from qindex.engine.engine import Engine
from qindex.format import layout
from qindex.format.headers import DUE_FILE, KEYS_FILE
from qindex.format.notes import pack_noted, pack_notes, read_notes
from qindex.format.rabbitmq.names import directory_name, format_queue_name, parse_queue_name
from qindex.format.seq_ids import FILE_NAME as SEQ_FILE_NAME
from qindex.format.settings import pack_settings, unpack_settings
from qindex.index.seq_ids import RESERVE, SeqFile
from qindex.options import Options
from qindex.queue.notes.delivery_counts import FILE_NAME as COUNTS
from qindex.queue.notes.delivery_counts import pack_counts, unpack_counts
from qindex.recovery.settings_file import read_settings
from qindex.tools.copying import StoreCopy
from qindex.tools.marker_check import check_marker
from qindex.tools.moved_away import left_out, names_in, noted_in
from qindex.tools.queue_check import CheckedQueue
from qindex.tools.saved import SavedQueue, SaveReport
from qindex.tools.staging import Staging
from qindex.view.reader import StoreReader

NAMELESS = "recovered-"
"""How the name of a queue begins that has lost its own; its directory's follows."""


def repair(directory: PathLike, out: PathLike, *, names: Iterable[str] = ()) -> SaveReport:
    """Make ``out`` a sound copy of the store in ``directory``, which is not changed.

    The copy keeps order, seq_ids (none is given out twice), message ids, redelivered flags, keys,
    headers, timestamps, expiry, delivery counts and the queues' settings. Acknowledged messages do
    not come back. An interrupted move to a dead-letter queue leaves its message in one of the two.
    Damaged bytes are in ``out/quarantine/`` and in the report. ``out`` appears when it is complete.

    Args:
        directory: The store.
        out: The copy's directory, empty or missing.
        names: Queue names to try for directories that have lost theirs.

    Returns:
        A report of the saved and lost messages.

    Raises:
        LockedError: A process has the store open.
        UsageError: ``out`` is not empty or within ``directory``, or ``directory`` is a node's.
        NotAStoreError: ``directory`` is not a store.
        StorageError: The system refused an operation (a full disk); there is no ``out``.

    O(size of the store); memory as :func:`qindex.tools.verify.verify`.
    """
    return repair_store(directory, out, names=names, fs=REAL)


def repair_store(
    directory: PathLike, out: PathLike, *, names: Iterable[str] = (), fs: FileSystem
) -> SaveReport:
    """Repair a store as :func:`repair` does, on any file system."""
    source = os.path.abspath(checked_path(directory))
    fs = beneath(fs, source, os.path.dirname(os.path.abspath(checked_path(out))))
    marker, findings = check_marker(fs, source)
    if marker is None:
        StoreReader(source, fs)  # raises the error of a directory of something else
        raise UsageError(f"{source}: is a RabbitMQ directory; use qindex salvage")
    held = hold_store(fs, source)
    try:
        with Staging(fs, out, source) as staging:
            fs = staging.fs
            report = SaveReport(source, staging.target, findings=findings)
            _copy(fs, StoreReader(source, fs, marker=marker), staging.path, report, names)
            staging.commit()
            return report
    except OSError as error:
        where = error.filename or os.fspath(out)
        raise StorageError(where, "the store can't be copied", error) from error
    finally:
        if held is not None:
            held.release()


def hold_store(fs: FileSystem, directory: str) -> LockFile | None:
    """Take the lock of a store, if it has a lock file. Raises
    :class:`journal.errors.LockedError`, :class:`StorageError`."""
    path = os.path.join(directory, layout.LOCK)
    remedy = "end it first"
    with storage_errors(path, "can't be locked"):
        if is_there(fs, os.path.join(directory, layout.SERVER_SOCKET)):
            remedy += " (a server ends by itself soon after its last client)"
        return hold_if_there(fs, path, remedy=remedy)


def _copy(
    fs: FileSystem, reader: StoreReader, target: str, report: SaveReport, names: Iterable[str]
) -> None:
    marker = reader.marker
    assert marker is not None
    copy = StoreCopy(fs, reader, target, report, names)
    check_source(copy, marker)
    begin_store(fs, target, replace(marker, version=1))
    copy.copy_messages()
    with_priorities: dict[str, SavedQueue] = {}
    for checked in copy.checked:
        queue = checked.queue
        name, raw = copy.name_of(queue, marker.vhost)
        directory = queue.directory
        if raw is None:
            name = NAMELESS + queue.directory
            raw = format_queue_name(marker.vhost, name)
            directory = directory_name(marker.vhost, name)
        saved = SavedQueue(name, marker.vhost)
        priority = parse_queue_name(raw, directory).priority
        if priority is not None:
            saved = with_priorities.setdefault(name, saved)
            saved.max_priority = max(saved.max_priority or 1, priority)
        copy.copy_queue(checked, directory, raw, saved)
        path = os.path.join(target, layout.QUEUES, directory)
        _copy_settings(fs, reader.path_of(queue), path)
        _copy_counts(fs, reader.path_of(queue), path)
        for name in (DUE_FILE, KEYS_FILE):
            _copy_notes(fs, os.path.join(reader.path_of(queue), name), os.path.join(path, name))
        following = _next_seq(fs, reader, checked, report)
        incarnation = _seq_file(fs, reader.path_of(queue)).incarnation
        reserve_seq_ids(fs, path, following, incarnation)
        if not priority:
            saved.next_seq_id = following
        if priority is None:
            report.queues.append(saved)
    for saved in with_priorities.values():
        begin_priorities(fs, target, saved)
        report.queues.append(saved)
    report.queues.sort(key=lambda one: one.name)
    copy.set_aside()
    settle(fs, target)


def check_source(copy: StoreCopy, marker: layout.StoreMarker) -> None:
    """Verify a store of qindex that is to be copied. If a crash cut a move short, the messages that
    reached the dead-letter queue are left out of its source. Raises as :meth:`StoreCopy.check`."""
    directory = copy.reader.directory
    noted = noted_in(copy.fs, directory)
    copy.names = [*copy.names, *names_in(noted)]
    copy.check()
    found = (copy.report.findings, copy.kept_entries)
    copy.moved, copy.undone = left_out(copy.fs, directory, marker.vhost, noted, *found)


def begin_store(fs: FileSystem, target: str, marker: layout.StoreMarker) -> None:
    """Make an empty store. Raises :class:`StorageError`, :class:`OSError`."""
    replace_file(fs, os.path.join(target, layout.MARKER), layout.pack_marker(marker))
    make_dirs(fs, os.path.join(target, layout.QUEUES))


def _copy_settings(fs: FileSystem, source: str, target: str) -> None:
    data = read_optional(fs, os.path.join(source, layout.SETTINGS))
    if data is None:
        return
    try:
        unpack_settings(data)
    except ValueError:
        return  # is among the findings, and set aside
    replace_file(fs, os.path.join(target, layout.SETTINGS), data)


def _copy_counts(fs: FileSystem, source: str, target: str) -> None:
    """Copy how often messages were delivered: a message that kills its consumers must not begin
    anew."""
    counts = unpack_counts(read_optional(fs, os.path.join(source, COUNTS)) or b"")
    if counts:
        replace_file(fs, os.path.join(target, COUNTS), pack_counts(counts))


def _copy_notes(fs: FileSystem, source: str, target: str) -> None:
    """Copy notes of messages. The next open finds out which of these were saved."""
    data = read_optional(fs, source)
    if data is not None:
        found = read_notes(data)
        kept = pack_notes(found.seq_ids, found.values) + pack_noted(found.noted)
        replace_file(fs, target, kept)


def _next_seq(
    fs: FileSystem, reader: StoreReader, checked: CheckedQueue, report: SaveReport
) -> int:
    """Find a seq_id that was certainly never given out."""
    queue = checked.queue
    path = reader.path_of(queue)
    following = reader.next_seq(queue, reader.rules(queue), checked.next_seen)
    seq_file = _seq_file(fs, path)
    inside = os.path.join(path, "")
    if any(one.path.startswith(inside) and one.cause is Cause.DAMAGE for one in report.findings):
        # The damaged places may have held the latest seq_ids.
        following = max(following, seq_file.reserved)
        if not seq_file.reserved:
            following += RESERVE
    return following


def begin_priorities(fs: FileSystem, target: str, saved: SavedQueue) -> None:
    """See that a priority queue has a directory of priority 0, with its settings in it. Raises
    :class:`OSError`, :class:`StorageError`."""
    directory = directory_name(saved.vhost, saved.name, 0)
    path = os.path.join(target, layout.QUEUES, directory)
    if directory not in fs.listdir(os.path.join(target, layout.QUEUES)):
        make_dirs(fs, path)
        raw = format_queue_name(saved.vhost, saved.name, 0)
        replace_file(fs, os.path.join(path, layout.QUEUE_NAME), raw)
        saved.next_seq_id = RESERVE  # nothing tells which ones were given out
        reserve_seq_ids(fs, path, saved.next_seq_id)
    settings = read_settings(fs, path)
    if settings.max_priority is None:
        settings = settings.changed(max_priority=saved.max_priority)
        replace_file(fs, os.path.join(path, layout.SETTINGS), pack_settings(settings))
    saved.max_priority = settings.max_priority


def _seq_file(fs: FileSystem, directory: str) -> SeqFile:
    return SeqFile(fs, os.path.join(directory, SEQ_FILE_NAME), Poison())


def reserve_seq_ids(
    fs: FileSystem, directory: str, following: int, incarnation: int | None = None
) -> None:
    """Write the seq file of a queue whose next seq_id is ``following``. ``incarnation``: that of
    the queue whose place it takes; by default it is a new queue. Raises :class:`StorageError`."""
    if following:
        _seq_file(fs, directory).reserve(following, incarnation)


def settle(fs: FileSystem, target: str) -> None:
    """Open the new store and close it: the engine looks at all of it, and leaves a snapshot.

    Raises :class:`DamageError` if it finds anything amiss, and :class:`StorageError`.
    """
    engine = Engine(target, Options(background=False), fs)
    try:
        if engine.findings:
            first = engine.findings[0]
            raise DamageError(first.path, first.offset, f"the copy is not sound: {first.what}")
    finally:
        engine.close()
