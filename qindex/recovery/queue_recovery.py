"""Open a queue that was not closed cleanly: make its files whole again.

Reads top to bottom: load (nothing written), judge, set aside, rewrite, drop entries whose message
is gone from the message store (which is recovered in between, from the references of all queues),
flush, empty the journal. A crash at any step leaves a directory that the next recovery reads the
same way: until the last step the journal still says all it said.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np

from journal import format as journal_format
from journal.block_sums import extent
from journal.errors import DamageError, StorageError
from journal.files import FileSystem, read_file, replace_file
from journal.findings import Cause, Finding, Kind
from qindex.format.segment import file_name
from qindex.index.flush import FlushPlan, append_sums, plan_segment, remove_sums, write_plan
from qindex.index.quarantine import quarantine_findings
from qindex.index.segment_scan import scan_segment
from qindex.index.seq_ids import SeqFile
from qindex.recovery.load import LoadedQueue, load_queue

__all__ = ["RestingQueue", "finish_recovery", "load_for_recovery"]

_log = logging.getLogger("qindex.recovery")


@dataclass(slots=True)
class RestingQueue:
    """A queue on disk whose journal is empty: all there is to know of it.

    ``segments``: for each number the entries not acknowledged and the bytes of its file.
    """

    directory: str
    next_seq: int
    segments: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def live(self) -> int:
        """Messages held."""
        return sum(unacked for unacked, _ in self.segments.values())


def load_for_recovery(
    fs: FileSystem, directory: str, entry_count: int, seq_file: SeqFile, *, repair: bool
) -> LoadedQueue:
    """Load the queue in ``directory`` and judge what was found; nothing is changed.

    Raises :class:`DamageError` for what no crash leaves, unless ``repair``, and
    :class:`StorageError`.
    """
    limit = seq_file.reserved - 1 if seq_file.reserved else journal_format.MAX_SEQ_ID
    try:
        lost = seq_file.power_lost
        given_out = seq_file.next_after_crash(0) if seq_file.same_run else None
        loaded = load_queue(
            fs, directory, entry_count, seq_limit=limit, given_out=given_out, power_lost=lost
        )
    except OSError as error:
        raise StorageError(directory, "the queue can't be read", error) from error
    _judge(loaded, repair)
    return loaded


def finish_recovery(
    fs: FileSystem, loaded: LoadedQueue, seq_file: SeqFile, missing: Container[bytes]
) -> RestingQueue:
    """Make the queue's files whole: damaged bytes are set aside in quarantine files, the rest is
    kept. Entries whose message is ``missing`` from the message store are dropped, and reported.

    Raises :class:`StorageError` when the system refuses; nothing is lost by that. All is durable
    on return.
    """
    directory = loaded.directory
    try:
        quarantine_findings(fs, [one for one in loaded.findings if one.cause is Cause.DAMAGE])
        _rewrite(fs, loaded)
        _drop_missing(fs, loaded, missing)
        next_seq = _next_seq(loaded, seq_file)
        power_lost = not seq_file.same_run
        if not power_lost:
            _give_out(seq_file, next_seq)
        resting = _flush(fs, loaded, next_seq)
        _empty_journal(fs, directory)
        if power_lost:
            # Not before: it says that what was written since the power was lost is all there,
            # and the journal was written before. Until here the old reservation holds.
            _give_out(seq_file, next_seq)
    except OSError as error:
        raise StorageError(directory, "the queue can't be recovered", error) from error
    return resting


def _drop_missing(fs: FileSystem, loaded: LoadedQueue, missing: Container[bytes]) -> None:
    for seq, msg_id in loaded.stored:
        if msg_id not in missing:
            continue
        segment = loaded.segments[seq // loaded.entry_count]
        if not segment.loaded:
            _reload(fs, loaded, segment.number)
        segment.acknowledge(seq)
        path = os.path.join(loaded.directory, file_name(segment.number))
        what = f"seq_id {seq}: its message {msg_id.hex()} is not in the message store"
        kind = Kind.ENTRY_WITHOUT_MESSAGE
        finding = Finding(path, 0, 0, Cause.CRASH, what, "the entry is dropped", kind)
        loaded.findings.append(finding)
        _report(finding)


def _report(finding: Finding) -> None:
    """Log a finding: damage as a warning; what each kill leaves is repaired, and an information."""
    crash = finding.cause is Cause.CRASH
    _log.log(logging.INFO if crash else logging.WARNING, "%s", finding)


def _judge(loaded: LoadedQueue, repair: bool) -> None:
    damage = [one for one in loaded.findings if one.is_loss]
    for finding in loaded.findings:
        _report(finding)
    if damage and not repair:
        first = damage[0]
        more = f" (and {len(damage) - 1} more places)" if len(damage) > 1 else ""
        raise DamageError(
            first.path,
            first.offset,
            f"{first.what}{more}; nothing was changed: open with repair=True to set the damaged "
            "bytes aside and go on with the rest",
        )


def _rewrite(fs: FileSystem, loaded: LoadedQueue) -> None:
    """Put sound files in place of damaged or torn ones."""
    for number, sound in loaded.sound_files.items():
        path = os.path.join(loaded.directory, file_name(number))
        remove_sums(fs, path)
        if not sound:
            fs.unlink(path)
        else:
            replace_file(fs, path, sound)
            append_sums(fs, path, [extent(sound, 0)])


def _next_seq(loaded: LoadedQueue, seq_file: SeqFile) -> int:
    next_seq = seq_file.next_after_crash(loaded.seen)
    if any(finding.is_loss for finding in loaded.findings):
        # The damaged places may have held the latest seq_ids.
        next_seq = max(next_seq, seq_file.reserved)
    return next_seq


def _give_out(seq_file: SeqFile, next_seq: int) -> None:
    """Note that all seq_ids below ``next_seq`` are given out."""
    if next_seq >= seq_file.reserved:
        seq_file.reserve(next_seq)
    seq_file.raise_floor(next_seq)


def _flush(fs: FileSystem, loaded: LoadedQueue, next_seq: int) -> RestingQueue:
    for seq in loaded.transient:
        segment = loaded.segments[seq // loaded.entry_count]
        if not segment.loaded:
            _reload(fs, loaded, segment.number)
        segment.acknowledge(seq)
    plans = []
    entries = loaded.journal
    for segment in loaded.segments.values():
        if segment.dirty:
            offsets = np.full(loaded.entry_count, -1, np.int64)
            low, high = np.searchsorted(
                entries.seqs, (segment.base, segment.base + loaded.entry_count)
            )
            offsets[entries.seqs[low:high] - segment.base] = entries.offsets[low:high]
            plans.append(plan_segment(segment, 0, offsets))
    write_plan(fs, FlushPlan(loaded.directory, entries.data, 0, 0, next_seq, plans))
    segments = {
        number: (segment.unacked, segment.file_size) for number, segment in loaded.segments.items()
    }
    segments.update({plan.number: (plan.unacked, plan.file_size) for plan in plans})
    kept = {number: counts for number, counts in segments.items() if counts[0]}
    return RestingQueue(loaded.directory, next_seq, kept)


def _reload(fs: FileSystem, loaded: LoadedQueue, number: int) -> None:
    """Bring the maps of a segment back that the load did not keep."""
    path = os.path.join(loaded.directory, file_name(number))
    scan = scan_segment(path, read_file(fs, path), number, loaded.entry_count)
    loaded.segments[number].load(scan.filed, *scan.located())


def _empty_journal(fs: FileSystem, directory: str) -> None:
    """The commit point: from here on the segments alone say what the queue holds."""
    path = os.path.join(directory, journal_format.FILE_NAME)
    for name in fs.listdir(directory):
        if name.endswith((".new", ".tmp")):
            fs.unlink(os.path.join(directory, name))
    remove_sums(fs, path)
    try:
        fd = fs.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if fs.fstat(fd).st_size:
            fs.truncate(fd, 0)
            fs.fdatasync(fd)
            # Its name, too: a flush may have put this file in place of another, which must not
            # come back after what is in the segments now has gone from there.
            fs.sync_dir(directory)
    finally:
        fs.close(fd)
