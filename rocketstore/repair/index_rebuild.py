"""Compare index files with the keys of the log, and build those anew that do not agree.

Two cases. When :mod:`rocketstore.log.dispatch_note` vouches for the index up to some offset, the
last file is cut back to that and the log's later keys are put again. When nothing does, the entries
of all files are compared with the keys of the whole log as it is read. At the first difference, the
file it is in and all after it are dropped and built again from the log.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from journal.findings import Cause, Finding, Kind
from rocketstore.format.commitlog_format import ROLLBACK
from rocketstore.format.index_format import IndexHeader
from rocketstore.index.index_file import IndexFile
from rocketstore.log.dispatch import DispatchBatch, from_records
from rocketstore.log.dispatch_note import DispatchNote
from rocketstore.log.walk import LogWalk, SkipDamage
from rocketstore.parts import Parts

_INT_MAX = 0x7FFFFFFF


class IndexCheck:
    """Takes the log's messages in order, compares while there are entries, and puts after that
    (``dry``: only compares; ``busy``: a process may be writing, and the index may lag the log).

    ``_number`` is the file being compared and ``_place`` the number of its next entry; ``_begin``
    is where that file begins: the offset of a message and how many of its keys are in the file
    before.
    """

    def __init__(
        self,
        parts: Parts,
        known: DispatchNote | None,
        *,
        crashed: bool,
        dry: bool = False,
        busy: bool = False,
    ) -> None:
        self._parts = parts
        self._index = parts.index
        self._enabled = parts.options.index
        self._minimum = max(parts.commitlog.min_offset, 0)
        self._begin = (self._minimum, 0)
        self._number = 0
        self._place = 1
        self._file: IndexFile | None = None
        self._differs = False
        self._dry = dry
        self._busy = busy
        self._checking = known is None
        if not self._enabled:
            return
        if known is not None:
            self._cut_back(known, crashed=crashed)
        else:
            self._next_file(0)

    def _cut_back(self, known: DispatchNote, *, crashed: bool) -> None:
        names = {row[0]: row for row in known.index}
        for number, file in enumerate(self._index.files):
            row = names.get(file.name)
            if row is None:
                self._index.drop_from(number)
                return
            vouched = IndexHeader(*row[1:])
            # After a crash slots may be newer than the header, whatever the header says.
            newest = row[0] == known.index[-1][0]
            if file.header != vouched or (crashed and newest):
                file.cut_back(vouched)

    def _next_file(self, number: int) -> None:
        """Go on to a file; entries of messages that the log has lost are passed over."""
        files = self._index.files
        while number < len(files):
            file = files[number]
            self._number, self._file, self._place = number, file, 1
            if not _is_whole(files, number, busy=self._busy and number == len(files) - 1):
                self._differs = True
                return
            if number == 0 or files[number - 1].header.begin_offset < self._minimum:
                self._place = 1 + _expired(file, self._minimum)
            if self._place < file.header.count:
                return
            number += 1
        self._file = None
        self._checking = False

    def put(self, batch: DispatchBatch) -> None:
        """The log's next messages."""
        if not self._enabled or self._differs:
            return
        if not self._checking and not self._dry:
            self._index.put(batch)
            return
        wanted = batch.transactions[batch.key_messages] != ROLLBACK
        messages = batch.key_messages[wanted]
        hashes, offsets = batch.key_hashes[wanted], batch.offsets[messages]
        times = batch.store_times[messages]
        done = 0
        while done < len(hashes):
            if self._file is None and self._dry:
                self._differs = not self._busy
                return
            if self._file is None:
                before = int(np.count_nonzero(messages[:done] == messages[done]))
                put_from(self._parts, batch, int(messages[done]), before)
                return
            have = self._file.entries_from(self._place, len(hashes) - done)
            part = slice(done, done + len(have))
            same = (have["hash"] == hashes[part]) & (have["offset"] == offsets[part])
            same &= _seconds_agree(self._file, self._place, have["seconds"], times[part])
            if not same.all():
                self._differs = True
                return
            done += len(have)
            self._place += len(have)
            if self._place >= self._file.header.count:
                if int(times[done - 1]) != self._file.header.end_timestamp:
                    self._differs = True
                    return
                message = int(offsets[done - 1])
                self._begin = (message, int(np.count_nonzero(offsets[:done] == message)))
                self._next_file(self._number + 1)
                if self._differs:
                    return

    def problem(self) -> Finding | None:
        """The log ended, in a dry check: the first thing that does not agree, if any."""
        if self._enabled and self._checking and self._file is not None:
            self._differs = True
        if not self._differs:
            return None
        path = self._index.directory if self._file is None else self._file.path
        return Finding(
            path,
            0,
            0,
            Cause.CRASH,
            f"the index does not agree with the log from offset {self._begin[0]} on",
            "queries may miss messages; open for writing, or rebuild-index, repairs it",
            Kind.MISMATCH,
        )

    def finish(self, end: int) -> str:
        """The log ended. Returns the name of the first file that was built anew, or nothing."""
        if not self._enabled:
            return ""
        if self._checking and self._file is not None:
            # Entries are left that no message of the log has.
            self._differs = True
        if not self._differs:
            return ""
        assert self._file is not None
        name = self._file.name
        rebuild_index(self._parts, self._number, *self._begin, end)
        self._parts.finding(
            Finding(
                self._file.path,
                0,
                0,
                Cause.CRASH,
                "the index did not agree with the commit log from this file on",
                "rebuilt",
                Kind.MISMATCH,
            )
        )
        return name


def _is_whole(files: list[IndexFile], number: int, *, busy: bool) -> bool:
    """Whether header, entries, slots and links of a file belong together. ``busy``: it is being
    written, and slots and links may be newer than the header."""
    file = files[number]
    header = file.header
    if header.count > file.entries:
        return False
    if header.count == 1:
        # Only the newest file can be empty; it begins where the one before ends.
        end = files[number - 1].header if number else IndexHeader()
        seeded = IndexHeader(end.end_timestamp, end.end_timestamp, end.end_offset, end.end_offset)
        return number == len(files) - 1 and header in (seeded, IndexHeader())
    ends = file.entries_from(1, 1), file.entries_from(header.count - 1, 1)
    return (
        int(ends[0]["offset"][0]) == header.begin_offset
        and int(ends[1]["offset"][0]) == header.end_offset
        and (busy or (_slots_in_use(file) == header.used_slots and file.chains_are_sound()))
    )


def _slots_in_use(file: IndexFile) -> int:
    return int(np.count_nonzero(file.slot_table()))


def _expired(file: IndexFile, minimum: int) -> int:
    offsets = file.entries_from(1, file.header.count)["offset"]
    return int(np.searchsorted(offsets, minimum))


def _seconds_agree(
    file: IndexFile,
    place: int,
    seconds: npt.NDArray[np.int32],
    times: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    begin = file.header.begin_timestamp
    wanted = np.clip((times - begin) // 1000, 0, _INT_MAX) if begin > 0 else 0 * times
    agree: npt.NDArray[np.bool_] = seconds == wanted
    if place == 1 and len(agree):
        # A file's first entry counts from the end of the file before.
        agree[0] = times[0] == begin
    return agree


def put_from(parts: Parts, batch: DispatchBatch, message: int, skip: int) -> None:
    """Index a batch from a message on, without the first ``skip`` of that message's keys."""
    rest = batch.tail(message)
    if skip:
        visible = rest.transactions[rest.key_messages] != ROLLBACK
        own = np.flatnonzero(visible & (rest.key_messages == 0))[:skip]
        rest.key_hashes = np.delete(rest.key_hashes, own)
        rest.key_messages = np.delete(rest.key_messages, own)
        if not (rest.key_messages == 0).any():
            # All its keys are there already: it must not begin a new file.
            rest = rest.tail(1)
    parts.index.put(rest)


def rebuild_index(parts: Parts, number: int, offset: int, skip: int, end: int) -> None:
    """Drop index files from ``number`` on and build them again from the log at ``offset``,
    leaving out the first ``skip`` keys of the message there. Bytes in between that are not a record
    are passed over, and are a finding. Raises :class:`StorageError`."""
    parts.index.drop_from(number)
    if not parts.commitlog.files.files or offset >= end:
        return
    damage = SkipDamage(parts.commitlog)
    walk = LogWalk(
        parts.commitlog, offset, check_crc=False, placed=True, limit=end, on_damage=damage
    )
    for base, records in walk:
        batch = from_records(records, base)
        put_from(parts, batch, 0, skip)
        skip = 0
    for place in damage.skipped:
        if place < end:
            parts.finding(
                Finding(
                    parts.paths.commitlog,
                    place,
                    0,
                    Cause.DAMAGE,
                    "there is no record here",
                    "what stood here is not in the index (open with repair=True sets it aside)",
                )
            )
