"""The parts of an open store that recovery, retention, verify and the store itself share."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from journal.files import FileSystem
from journal.findings import Finding
from rocketstore.checkpoint_format import Checkpoint
from rocketstore.commitlog import CommitLog
from rocketstore.consumequeue import ConsumeQueue, Descriptors
from rocketstore.consumequeue_format import UNIT_SIZE
from rocketstore.dispatch import DispatchBatch, QueueKey
from rocketstore.dispatch_note import DispatchNote
from rocketstore.index_format import IndexHeader
from rocketstore.index_service import IndexService
from rocketstore.layout import Layout, Paths
from rocketstore.mapped_files import sync_files
from rocketstore.options import Options

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
    findings: list[Finding] = field(default_factory=list)

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
        """Give the messages to their ConsumeQueues (not those of open or undone transactions)."""
        for key, chosen in batch.by_queue():
            self.queue(*key).put(*batch.units(chosen))

    def dispatch(self, batch: DispatchBatch) -> None:
        """ConsumeQueues first, then the index. Raises :class:`journal.errors.StorageError`."""
        self.put_queues(batch)
        if self.options.index:
            self.index.put(batch)
        if len(batch):
            self.checkpoint.logical = int(np.asarray(batch.store_times)[-1])

    def max_physical(self) -> int:
        """The furthest end of a record that any queue knows; -1 if none."""
        return max((queue.max_physical for queue in self.queues.values()), default=-1)

    def finding(self, finding: Finding) -> None:
        """Keep a finding and log it."""
        self.findings.append(finding)
        log.warning("%s", finding)

    def sync_after_crash(self, note: DispatchNote | None) -> None:
        """Sync what the log holds behind the last checkpoint, and mark what queues and index hold
        behind it as not synced: it may be in the system's memory alone.

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
    commitlog = CommitLog(
        fs,
        paths.commitlog,
        layout.commitlog_file_size,
        writable=writable,
        synced_each=options.durability == "fsync",
    )
    commitlog.files.load(layout.commitlog, layout.short)
    index = IndexService(
        fs,
        paths.index,
        layout.index_slots,
        layout.index_entries,
        writable=writable,
        clock=options.name_clock,
    )
    index.load(layout.index)
    parts = Parts(
        fs=fs,
        paths=paths,
        options=options,
        commitlog=commitlog,
        descriptors=Descriptors(fs, writable=writable),
        consumequeue_file_size=layout.consumequeue_file_size,
        queues={},
        index=index,
        checkpoint=checkpoint,
    )
    for (topic, queue_id), starts in layout.queues.items():
        parts.queue(topic, queue_id).load(starts)
    return parts
