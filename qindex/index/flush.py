"""A flush: bring what the journal holds into the segment files, so that the journal can be emptied.

A flush has three parts, so that publishers wait for none of the disk's work:

1. *Plan*, under the queue's lock: copy the state maps of the dirty segments (16 KiB each) and note
   how far the journal goes. Publishers go on appending after that point.
2. *Write*, without the lock (:func:`write_plan`): delete the files of segments in which nothing is
   unacknowledged (first, for the disk may be full); append to the others, in ascending order, what
   their files do not have, and sync them.
   Then sync the directory if a file was created or deleted. Nothing of this changes what the queue
   is: until part 3, the journal says the same.
3. *Finish*, under the lock: drop the front of the journal (the commit point) and take over the new
   file states.

A crash in part 2 leaves entries in both journal and segments, or a segment file cut in its last
record: recovery merges the former and cuts the latter, the journal still has them.

A message that was published and acknowledged within one journal is never written to a segment.
Within one append the publish records come first, in order of seq_id, then the next-step records:
RabbitMQ reads that as well, and a run of equal publish records is read at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from journal.errors import storage_errors
from journal.fs.files import FileSystem, ReadBuffer
from qindex.index import segment_file
from qindex.index.segment_file import SegmentPlan, segment_path


@dataclass(slots=True)
class FlushPlan:
    """All that one flush does to the segments. ``front``: bytes of ``journal`` that it makes
    superfluous.

    ``actions``: the queue's actions up to there; ``next_seq``: first seq_id not covered.
    """

    directory: str
    journal: ReadBuffer
    front: int
    actions: int
    next_seq: int
    segments: list[SegmentPlan]


def write_plan(fs: FileSystem, plan: FlushPlan) -> int:
    """Do part 2 of a flush; return the bytes written.

    All of it is durable on return. Raises :class:`StorageError`: then the
    journal must stay, and the segment's file may end in a part of a record.
    """
    written = 0
    names_changed = False
    unacked = {segment.number: segment.unacked for segment in plan.segments}
    for segment in sorted(plan.segments, key=lambda one: unacked[one.number] > 0):
        path = segment_path(plan.directory, segment.number)
        with storage_errors(path, "the segment can't be written"):
            if not unacked[segment.number]:
                # An earlier try of this flush, which failed later on, may have removed the file,
                # or have made a file that the index does not know.
                gone = segment_file.delete(fs, plan.directory, segment.number)
                names_changed |= gone or segment.file_size > 0
                segment.deleted = True
                segment.file_size = 0
                continue
            names_changed |= segment.file_size == 0
            written += segment_file.append(fs, plan.directory, plan.journal, segment)
    if names_changed:
        # The removal of a file is also synced. If the file came back after a loss of power, with
        # the journal of its acks emptied, acknowledged messages would come back.
        with storage_errors(plan.directory, "the directory can't be synced"):
            fs.sync_dir(plan.directory)
    return written
