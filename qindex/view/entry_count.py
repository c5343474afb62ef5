"""The number of entries of a segment, where the virtual host's ``.config`` does not say it.

A node without the file assumes 16,384. A host that was copied without it (``cp -r VHOST/* COPY``
leaves out names with a dot) may have had another number, and 2,048 is what new hosts get. With the
wrong one the records of a journal meet other entries: acknowledged messages come back, and others
are lost.

The files bound the number. A relative seq_id in a segment is below it. The journal has whole
seq_ids, so its delivers and acks tell which entries there must be, and its publishes come after
all entries in segments. The notes of a node that stopped in order do the same. A number that
contradicts the files less than all others is taken. Where several fit equally, any will do that
gives the same messages; if they give different ones, only the caller can tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from journal.errors import UsageError
from journal.findings import Cause, Finding, Kind
from journal.format import ACTION_SIZE, DELIVER
from journal.fs.files import FileSystem, names_in, read_optional
from journal.memory.arrays import I64, Bools
from journal.replay import Walk
from qindex.format import layout
from qindex.format.message_record import gather_bytes
from qindex.format.rabbitmq.vhost_config import (
    LEGACY_SEGMENT_ENTRY_COUNT,
    MAX_SEGMENT_ENTRY_COUNT,
)
from qindex.format.resynchronise import Data
from qindex.format.segment import STEP_SIZE, file_number
from qindex.index.segment import ABSENT
from qindex.index.segment_scan import MSG_ID_SIZE
from qindex.recovery.delivery_rules import DirectoryRules
from qindex.recovery.queue_image import QueueImage
from qindex.view.queue_view import QueueView
from qindex.view.rabbitmq_vhost import QueueDirectory, Vhost
from qindex.view.stored_messages import StorePlace

_USUAL = (LEGACY_SEGMENT_ENTRY_COUNT, 2048)
_ID_IN_SEGMENT = STEP_SIZE
_ID_IN_JOURNAL = ACTION_SIZE


def settle_entry_count(
    fs: FileSystem, vhost: Vhost, place: StorePlace, given: int | None = None
) -> None:
    """Find the number of entries a segment of a virtual host whose ``.config`` does not say it.

    ``given``: by the caller; nothing is read then. A finding names the number assumed, and why, if
    the number matters or the file is damaged. O(size of the index files) if it matters. Raises
    :class:`UsageError` if the number can't be found, and :class:`OSError`.
    """
    path = os.path.join(vhost.path, layout.CONFIG)
    data = read_optional(fs, path)
    matters = given is not None
    count, why = LEGACY_SEGMENT_ENTRY_COUNT, "any number shows the same messages"
    if given is not None:
        if not 1 <= given <= MAX_SEGMENT_ENTRY_COUNT:
            allowed = f"1 to {MAX_SEGMENT_ENTRY_COUNT}"
            raise UsageError(f"segment_entry_count must be {allowed}, not {given}")
        count, why = given, "as given"
    elif _has_second_segment(fs, vhost):
        matters = True
        directories = vhost.directories(fs)
        fitting = fitting_counts(
            fs,
            {
                os.path.join(vhost.path, layout.QUEUES, one.directory): vhost.rules(
                    one.directory
                ).next_seq
                for one in directories
            },
        )
        count = fitting[0]
        if len(fitting) == 1:
            why = "the files contradict other numbers"
        elif len({_shown(fs, vhost, directories, place, one) for one in fitting}) > 1:
            listed = " and ".join(str(one) for one in fitting)
            raise UsageError(
                f"{vhost.path}: {vhost.assumed}, so nothing says how many entries a segment has. "
                f"The files fit {listed}, with different messages: set segment_entry_count "
                "(--segment-entry-count), or put the node's .config there"
            )
    vhost.entry_count = count
    if matters or data is not None:
        cause = Cause.CRASH if data is None else Cause.DAMAGE
        lost = f"{count} entries a segment assumed: {why}"
        what, size = vhost.assumed or "", len(data or b"")
        vhost.findings.append(Finding(path, 0, size, cause, what, lost, Kind.CONFIG))


def _has_second_segment(fs: FileSystem, vhost: Vhost) -> bool:
    """Return whether a queue has a segment beside the first one, whose entries have the same
    seq_ids whatever the number."""
    root = os.path.join(vhost.path, layout.QUEUES)
    return any(
        file_number(name)
        for directory in names_in(fs, root)
        for name in names_in(fs, os.path.join(root, directory))
    )


def fitting_counts(fs: FileSystem, queues: Mapping[str, int | None]) -> list[int]:
    """Return the numbers of entries a segment that contradict the files of version 1 least.

    ``queues``: their directories, and the seq_id of each one's next publish where it is known.
    O(size of the index files). Raises :class:`OSError`.
    """
    return _fitting([_Queue.read(fs, path, following) for path, following in queues.items()])


def _fitting(queues: Sequence[_Queue]) -> list[int]:
    contradictions = {count: _contradictions(queues, count) for count in _USUAL}
    if min(contradictions.values()):
        more = {count for queue in queues for count in queue.guesses()}
        contradictions |= {count: _contradictions(queues, count) for count in sorted(more)}
    least = min(contradictions.values())
    return [count for count, found in contradictions.items() if found == least]


def _contradictions(queues: Iterable[_Queue], count: int) -> int:
    return sum(queue.contradictions(count) for queue in queues)


def _shown(
    fs: FileSystem,
    vhost: Vhost,
    directories: Iterable[QueueDirectory],
    place: StorePlace,
    count: int,
) -> bytes:
    """Return bytes that are equal for two numbers that show the same messages in the same order."""
    parts: list[bytes] = []
    for one in directories:
        rules = replace(vhost.rules(one.directory), entry_count=count)
        path = os.path.join(vhost.path, layout.QUEUES, one.directory)
        view = QueueView(fs, path, rules, place=place)
        for number in view.numbers:
            columns = view.columns(number, counting=True)
            if columns is None:
                continue
            for which, at in zip(columns.source_of.tolist(), columns.row_of.tolist(), strict=True):
                source = columns.sources[which]
                offset = int(source.places_of(np.array([at]))[0])
                parts.append(b"%s %d" % (os.path.basename(source.path).encode(), offset))
            parts.append(columns.redelivered.tobytes())
    return b"\n".join(parts)


@dataclass(slots=True)
class _Segment:
    """The entries of one file: which relative seq_ids there are, and their message ids (where an
    entry is absent, zeros)."""

    there: Bools
    ids: list[bytes]

    @property
    def highest(self) -> int:
        """The highest relative seq_id, or -1."""
        return int(np.flatnonzero(self.there).max(initial=-1))


@dataclass(slots=True)
class _Queue:
    """The entries and actions in the version 1 files of one queue. ``next_seq``: as a clean stop
    wrote it."""

    segments: dict[int, _Segment] = field(default_factory=dict)
    published: dict[int, bytes] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    next_seq: int | None = None

    @classmethod
    def read(cls, fs: FileSystem, directory: str, next_seq: int | None) -> _Queue:
        queue = cls(next_seq=next_seq)
        # With the highest number there is, no two entries of a segment are taken for one.
        rules = DirectoryRules(MAX_SEGMENT_ENTRY_COUNT, vouched=False)
        image = QueueImage(fs, directory, rules, busy=lambda: False)
        for number in image.pinned.segments:
            part = image.segment(number)
            if part is None or part.scan is None:
                continue
            there = np.frombuffer(part.scan.filed, np.uint8) != ABSENT
            ids = [b""] * len(there)
            for seq, msg_id in _ids(part.scan.data, part.scan.entries, _ID_IN_SEGMENT):
                ids[seq - part.base] = msg_id
            queue.segments[number] = _Segment(there, ids)
        reading = image.pinned.reading
        walk = reading.walk
        queue.published = dict(_ids(reading.data, image.records.entries, _ID_IN_JOURNAL))
        queue.delivered = set(walk.seqs[walk.kinds == DELIVER].tolist())
        queue.acked = set(walk.seqs[walk.kinds > DELIVER].tolist())
        return queue

    def contradictions(self, count: int) -> int:
        """Count what can't be if a segment has ``count`` entries."""
        found = 0
        end = 0
        for number, segment in self.segments.items():
            found += int(np.count_nonzero(segment.there[count:]))
            if segment.highest >= 0:
                end = max(end, number * count + segment.highest + 1)
        if self.next_seq is not None and end > self.next_seq:
            found += end - self.next_seq
        for seq, msg_id in self.published.items():
            known = self._in_segments(seq, count)
            # Where it is also in a segment, a flush was cut short. Else it was published later.
            found += known != msg_id if known else seq < end
        for seq in (self.delivered | self.acked) - self.published.keys():
            if self._in_segments(seq, count):
                continue
            # A segment is deleted once all in it is acknowledged.
            found += seq // count in self.segments or seq not in self.acked
        return found

    def _in_segments(self, seq: int, count: int) -> bytes:
        """Return the id of an entry in the segments, empty where there is none."""
        segment = self.segments.get(seq // count)
        return b"" if segment is None else segment.ids[seq % count]

    def guesses(self) -> set[int]:
        """Return numbers that would make the files fit, beside the usual ones."""
        highest = {number: one.highest for number, one in self.segments.items()}
        last = max(highest, default=0)
        found = {highest[number] + 1 for number in highest if number < last}
        fresh = min(self.published, default=None)
        for following in (fresh, self.next_seq):
            if last and following is not None:
                count, rest = divmod(following - 1 - highest[last], last)
                found |= set() if rest else {count}
        return {one for one in found if 0 < one <= MAX_SEGMENT_ENTRY_COUNT}


def _ids(data: Data, entries: Walk, id_at: int) -> list[tuple[int, bytes]]:
    """Return seq_id and message id of publish records."""
    if not len(entries):
        return []
    starts: I64 = entries.offsets + id_at
    packed = np.ascontiguousarray(gather_bytes(data, starts, MSG_ID_SIZE))
    ids: list[bytes] = packed.view(f"V{MSG_ID_SIZE}").ravel().tolist()
    return list(zip(entries.seqs.tolist(), ids, strict=True))
