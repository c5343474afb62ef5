"""The parts of an open store that recovery, retention, verify and the store itself share."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from journal.errors import DamageError
from journal.findings import Finding
from journal.fs.files import FileSystem
from rocketstore.format.checkpoint_format import Checkpoint
from rocketstore.format.consumequeue_format import UNIT_SIZE
from rocketstore.format.index_format import IndexHeader
from rocketstore.index.index_service import IndexService
from rocketstore.layout import Layout, Paths
from rocketstore.log.commitlog import CommitLog
from rocketstore.log.dispatch import DispatchBatch, QueueKey
from rocketstore.log.dispatch_note import DispatchNote, load_note, save_note
from rocketstore.log.mapped_files import sync_files
from rocketstore.log.watch import Watch
from rocketstore.options import Options
from rocketstore.queues.consumequeue import ConsumeQueue, Descriptors

log: logging.Logger = logging.getLogger("qindex.rocketstore")


@dataclass(slots=True)
class Parts:
    """Files and tables of one store."""

    fs: FileSystem
    paths: Paths
    options: Options
    commitlog: CommitLog
    descriptors: Descriptors
    consumequeue_file_size: int
    queues: dict[QueueKey, ConsumeQueue]
    index: IndexService
    checkpoint: Checkpoint
    watch: Watch
    findings: list[Finding] = field(default_factory=list)
    verified: bool = False

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made (in memory) if there is none."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(
                self.descriptors,
                self.paths.consumequeue,
                topic,
                queue_id,
                self.consumequeue_file_size,
            )
            self.queues[topic, queue_id] = queue
        return queue

    def put_queues(self, batch: DispatchBatch) -> None:
        """Put the messages into their ConsumeQueues (not those of open or undone transactions)."""
        for key, chosen in batch.by_queue():
            self.queue(*key).put(*batch.units(chosen))

    def dispatch(self, batch: DispatchBatch) -> None:
        """ConsumeQueues first, then the index. Raises :class:`journal.errors.StorageError`."""
        self.put_queues(batch)
        if self.options.index:
            self.index.put(batch)
        if len(batch):
            self.checkpoint.logical = int(np.asarray(batch.store_times)[-1])

    def note(self, end: int, last: tuple[int, int]) -> DispatchNote:
        """Say that queues and index follow the log up to ``end``. ``last``: the log's last record,
        offset and size, 0 where there is none. Raises :class:`StorageError`."""
        offset, size = last
        data = self.commitlog.read(offset, size) if size else None
        return DispatchNote(
            offset=end,
            boot=self.fs.boot_id().decode(errors="replace"),
            last=(offset, size, crc32(data)) if data else (0, 0, 0),
            queues={
                key: (queue.min_logic, queue.max_offset)
                for key, queue in self.queues.items()
                if queue.max_offset
            },
            index=[(file.name, *file.header.fields()) for file in self.index.files],
            sizes=(
                self.commitlog.file_size,
                self.consumequeue_file_size,
                self.index.slots,
                self.index.entries,
            ),
            taken=self.taken(),
        )

    def max_physical(self) -> int:
        """The furthest end of a record that any queue knows; -1 if none."""
        return max((queue.max_physical for queue in self.queues.values()), default=-1)

    def finding(self, finding: Finding) -> None:
        """Keep a finding and log it."""
        self.findings.append(finding)
        log.warning("%s", finding)

    def look_at_log(self, *, dirty: bool = False) -> DamageError | None:
        """Look whether another program has taken away files of the log, all or the ones not
        synced; return an error for the last one. Raises :class:`StorageError`."""
        files = self.commitlog.files
        error = None
        for file in files.dirty() if dirty else files.files.values():
            try:
                file.check()
            except DamageError as found:
                error = found
        self._note_taken()
        return error

    def look_at_the_rest(self) -> None:
        """Look whether another program has taken away files of queues or index. Raises
        :class:`StorageError`."""
        for queue in self.queues.values():
            for start in queue.starts:
                with contextlib.suppress(DamageError):
                    self.descriptors.check(queue.path(start), queue.file_size)
        for file in self.index.files:
            with contextlib.suppress(DamageError):
                file.check()
        self._note_taken()

    def taken(self) -> list[str]:
        """Names of the files that another program has taken away, and that have not expired."""
        taken = self.watch.taken
        if not taken:
            return []
        paths = [file.path for file in self.commitlog.files.files.values()]
        paths += [queue.path(start) for queue in self.queues.values() for start in queue.starts]
        paths += [file.path for file in self.index.files]
        return sorted(os.path.relpath(path, self.paths.root) for path in taken.intersection(paths))

    def _note_taken(self) -> None:
        """Tell the next open of the files that were taken away, also if no checkpoint follows: it
        could take them for files that had expired, or had never been synced."""
        taken = self.taken()
        note = load_note(self.fs, self.paths.dispatch_note) if taken else None
        if note is not None and note.taken != taken:
            note.taken = taken
            save_note(self.fs, self.paths.dispatch_note, note)

    def sync_after_crash(self, note: DispatchNote | None) -> None:
        """Sync the log's records after the last checkpoint, and mark the entries of queues and
        index after it as not synced: they may be in the system's memory alone.

        Raises :class:`journal.errors.StorageError`.
        """
        durable = note.offset if note is not None else 0
        files = self.commitlog.files.files.values()
        sync_files(self.fs, [file.path for file in files if file.start + file.wrote > durable])
        known = note.queues if note is not None else {}
        for key, queue in self.queues.items():
            vouched = known.get(key, (0, 0))[1] * UNIT_SIZE
            for start in queue.starts:
                if vouched < queue.wrote and vouched < start + queue.file_size:
                    self.descriptors.mark_dirty(queue.path(start))
        headers = {row[0]: IndexHeader(*row[1:]) for row in note.index} if note else {}
        for file in self.index.files:
            if headers.get(file.name) != file.header:
                file.dirty = self.index.names_changed = True

    def close(self) -> None:
        """Close all files."""
        self.index.close()
        self.descriptors.close()
        self.commitlog.close()


def build_parts(options: Options, paths: Paths, layout: Layout, checkpoint: Checkpoint) -> Parts:
    """Open nothing yet: objects for all files that were found."""
    fs = options.fs
    writable = not options.read_only
    findings: list[Finding] = []
    watch = Watch(fs, findings)
    watching = watch if writable else None
    commitlog = CommitLog(
        fs,
        paths.commitlog,
        layout.commitlog_file_size,
        writable=writable,
        synced_each=options.durability == "fsync",
        watch=watching,
    )
    commitlog.files.load(layout.commitlog, layout.short)
    index = IndexService(
        fs,
        paths.index,
        layout.index_slots,
        layout.index_entries,
        writable=writable,
        clock=options.name_clock,
        watch=watching,
    )
    index.load(layout.index)
    parts = Parts(
        fs=fs,
        paths=paths,
        options=options,
        commitlog=commitlog,
        descriptors=Descriptors(fs, writable=writable, watch=watching),
        consumequeue_file_size=layout.consumequeue_file_size,
        queues={},
        index=index,
        checkpoint=checkpoint,
        watch=watch,
        findings=findings,
    )
    for (topic, queue_id), starts in layout.queues.items():
        parts.queue(topic, queue_id).load(starts)
    return parts
