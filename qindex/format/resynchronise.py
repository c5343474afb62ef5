"""Read a journal or segment file and keep the sound records: one damaged place costs one record.

The walk of a file trusts its length fields; this module does not. Each publish record is held
against its checksum, and where one fails, or the walk meets bytes that are not a record, the next
sound record is looked for and the walk goes on there:

1. *The head is wrong, the rest is whole.* The record's own structure tells its length, the
   checksum whether a corrected type, seq_id or length is the right one: nothing is lost.
2. *One bit of the record flipped.* Trying each bit against the checksum finds it: nothing is lost.
3. *The record is lost, its frame holds*: after it are whole records (delivers, acks, entries
   whose message is in the message store) up to the next sound publish record. They are kept.
4. *A deliver or ack is damaged*: the same, one step further.
   So with an entry whose message is in the message store.
5. Otherwise all bytes up to the next sound publish record are lost.

Each place is reported (:class:`journal.findings.Finding`), with its cause: a tail that is torn or
zero, or whole zero pages, comes of a crash; anything else is damage. Bytes that the checksums of
the file say were there (:attr:`Layout.complete`) are damage in any case: no crash takes them back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from journal.findings import Cause, Finding, Kind
from journal.format import (
    DELIVER,
    NO_START,
    PAYLOAD,
    PUBLISH_PERSISTENT,
    PUBLISH_TRANSIENT,
    TYPE_SHIFT,
)
from journal.fs.files import FileBytes, is_zeros
from journal.memory.arrays import I64, Bools
from journal.replay import Ending, Walk, join_walks, walk_journal
from qindex.format.message_record import CHECK_OFFSET, CHECK_SIZE, MAGIC, embedded_length
from qindex.format.publish_check import correct_bit, correct_head, publish_starts, sound_publishes
from qindex.format.stored_id import sound_ids

_FIRST_CHUNK = 2048
_MAX_CHUNK = 1 << 16
_MAX_CORRECTED = 8 << 10
_PAGE = 4096
_SECTOR = 512
_MAX_COPIED = (64 << 10) + 8
"""Bytes of an append that is copied into the map, and a word."""
_MAX_UNSEALED = 1 << 20
"""Bytes without a checksum in their sum file, at the end of a journal that has one."""
_NO_CHECK = bytes(CHECK_SIZE)
_BARE = "damaged entry"
_NOT_SYNCED = "dropped: it was not synced"
_LAST_OF_SIZE = 27
"""Where the last byte of the size is, from the message id on."""
_ID_END_AND_SIZE = np.array([15, 24, 25, 26, 27])
"""Where the last byte of the message id, and the size, are from there on."""


NO_WALK = walk_journal(b"")

Data = FileBytes
Patch = tuple[int, bytes]
"""Offset, and the bytes that belong there."""


class Elsewhere(NamedTuple):
    """The entries that another file publishes, too: ``seqs``, and of these ``embedded``, with the
    message."""

    seqs: I64
    embedded: I64

    @classmethod
    def of(cls, walk: Walk, head_size: int) -> Elsewhere:
        """Return what a file publishes, whose heads have ``head_size`` bytes."""
        published = walk.take(walk.kinds < DELIVER)
        return cls(published.seqs, published.take(published.lengths > head_size).seqs)


@dataclass(slots=True)
class Layout:
    """The differences between journals and segments.

    ``head_size``: bytes of a publish record up to its embedded record; ``step_size``: of a
    deliver or ack. ``walk(data, start, stop, max_records)`` walks a part of the file;
    ``pack_head(kind, seq_id)`` gives the first bytes of a publish record, and
    ``read_head(data, offset)`` the kind and seq_id that are there, whatever they are.
    ``first_seq``: the lowest seq_id that may be in the file; ``end_seq`` is after the highest.
    ``ids_vouch``: entries without an embedded record may be ours, so that their ids
    (:mod:`qindex.format.stored_id`) tell sound ones. ``elsewhere``: seq_ids whose entries are to be
    had from another file, if they are not sound here. ``power_lost``: the system that wrote the
    file is gone, and with it what it had not synced: sectors of 512 bytes may never have been
    written.
    ``complete``: bytes from the start of the file that were all appended in whole. The file may be
    shorter now. 0 where a loss of power may have taken some of them.
    """

    head_size: int
    step_size: int
    walk: Callable[[Data, int, int, int], Walk]
    pack_head: Callable[[int, int], bytes]
    read_head: Callable[[Data, int], tuple[int, int]]
    first_seq: int
    end_seq: int
    ids_vouch: bool = False
    elsewhere: Elsewhere | None = None
    power_lost: bool = False
    complete: int = 0

    @property
    def payload_at(self) -> int:
        """Bytes of a publish record before its message id."""
        return self.head_size - PAYLOAD.size


@dataclass(slots=True)
class Reading:
    """The result of a reading: sound records as columns, and the file's bytes as corrected."""

    walk: Walk
    data: Data
    findings: list[Finding] = field(default_factory=list)


def read_soundly(path: str, data: Data, layout: Layout, verified: int = 0) -> Reading:
    """Read the whole of one file. Never raises on any bytes.

    ``verified``: bytes from the start whose checksums were found to hold; those of the records in
    them are not taken.
    O(size), and a bounded amount more for each damaged place.
    """
    if not data and not layout.complete:
        return Reading(NO_WALK, data)
    if len(data) and verified >= len(data) >= layout.complete:
        walk = layout.walk(data, 0, len(data), sys.maxsize)
        if walk.ending is Ending.END:
            return Reading(walk, data)
    return _Reader(path, data, layout, verified).read()


@dataclass(slots=True)
class _Resume:
    """Where to go on: bytes ``lost_from .. at`` are lost (none where a patch restored them)."""

    lost_from: int
    at: int
    what: str
    patch: Patch | None = None


class _Reader:
    def __init__(self, path: str, data: Data, layout: Layout, verified: int) -> None:
        self._path = path
        self._data = data
        self._layout = layout
        self._verified = verified
        self._pieces: list[Walk] = []
        self._findings: list[Finding] = []
        # All records that were kept, also those that were taken back since.
        self._seen: list[Walk] = []
        self._highest = -1
        # After the last publish record known to be sound; bytes before it are not doubted.
        self._floor = 0
        self._last_seq = -1
        self._unfinished = False

    def read(self) -> Reading:
        size = len(self._data)
        position = 0
        chunk = _FIRST_CHUNK
        while position < size:
            walk = self._layout.walk(self._data, position, size, chunk)
            bad = self._first_unsound(walk)
            if bad is None and walk.ending in (Ending.END, Ending.PAUSE):
                self._keep(walk)
                position = walk.end
                chunk = min(chunk * 2, _MAX_CHUNK)
                continue
            chunk = _FIRST_CHUNK
            self._keep(walk.take(slice(0, len(walk) if bad is None else bad)))
            if bad is None:
                anomaly, nominal_end = walk.end, None
            else:
                anomaly = int(walk.offsets[bad])
                nominal_end = anomaly + int(walk.lengths[bad])
            if self._is_zero_tail(anomaly) or self._is_cut_short(anomaly):
                break
            bare = nominal_end is not None and nominal_end - anomaly == self._layout.head_size
            resume = self._resume(anomaly, nominal_end, bare)
            position = self._report(resume, walk.ending if bad is None else None)
            if resume.patch is None:
                # The bytes before are judged: a later search must not go back into them.
                self._floor = max(self._floor, position)
        missing = self._layout.complete - size
        if missing > 0:
            what = f"the file ends at {size}; it had at least {self._layout.complete} bytes"
            self._find(size, 0, Cause.DAMAGE, what, self._most_lost(size), Kind.TORN)
        joined = join_walks(self._pieces or [NO_WALK])
        return Reading(joined, self._data, self._findings)

    def _first_unsound(self, walk: Walk) -> int | None:
        if walk.end <= self._verified:
            return None
        # Each record ends where the next one is.
        first = int(np.searchsorted(walk.offsets[1:], self._verified, side="right"))
        doubted = first + np.flatnonzero(walk.kinds[first:] < DELIVER)
        if not len(doubted):
            return None
        words = walk.kinds[doubted].astype(np.uint64) << np.uint64(TYPE_SHIFT)
        words |= walk.seqs[doubted].astype(np.uint64)
        payloads = walk.offsets[doubted] + self._layout.payload_at
        embedded = walk.lengths[doubted] - self._layout.head_size
        sound = sound_publishes(self._data, payloads, words, embedded)
        bare = np.flatnonzero(embedded == 0)
        if len(bare):
            publishes = np.flatnonzero(walk.kinds < DELIVER)
            verified = len(publishes) - len(doubted)
            sound[bare] = self._bare_sound(walk.seqs[publishes], verified + bare, payloads[bare])
        wrong = doubted[~sound]
        return int(wrong[0]) if len(wrong) else None

    def _bare_sound(self, seqs: I64, bare: I64, payloads: I64) -> Bools:
        """Return which of the publish records with these ``seqs`` that embed no record (``bare``:
        indexes) can be believed. A torn one has the seq_id of another, or no id."""
        holds = sound_ids(self._data, payloads)
        chosen = seqs[bare]
        if self._layout.ids_vouch:
            # A journal's seq_ids rise; a publish that failed may have left its seq_id to the next.
            before = np.maximum.accumulate(np.concatenate(([self._highest], seqs)))[bare]
            flat = np.frombuffer(self._data, np.uint8)
            no_end = (flat[payloads[:, None] + _ID_END_AND_SIZE] == 0).all(axis=1)
            no_start = (flat[payloads[:, None] + np.arange(8)] == 0).all(axis=1)
            # An append whose start is missing looks like seq_id 0, which nothing follows twice.
            holds &= (chosen > before) | ((chosen == before) & (chosen > 0))
            # An id that does not hold may be a node's, which had the queue for a while.
            vouched: Bools = holds | ((chosen > before) & ~no_end & ~no_start)
            return vouched
        first = np.unique(seqs, return_index=True)
        again = first[1][np.searchsorted(first[0], chosen)] < bare
        for earlier in self._seen:
            again |= np.isin(chosen, earlier.seqs[earlier.kinds < DELIVER])
        if self._layout.elsewhere is not None:
            again |= np.isin(chosen, self._layout.elsewhere.seqs)
            # The rest of an entry with its message, without the length of that.
            holds &= ~np.isin(chosen, self._layout.elsewhere.embedded)
        believed: Bools = holds | ~again
        return believed

    def _keep(self, walk: Walk) -> None:
        self._pieces.append(walk)
        publishes = walk.kinds < DELIVER
        if publishes.any():
            self._seen.append(walk)
            if self._layout.ids_vouch:
                self._highest = max(self._highest, int(walk.take(publishes).seqs.max()))
            last = len(walk) - 1
            if not publishes[last]:
                last -= int(publishes[::-1].argmax())
            self._floor = int(walk.offsets[last] + walk.lengths[last])
            self._last_seq = int(walk.seqs[last])

    def _drop_from(self, offset: int) -> None:
        """Take back the kept records that reach past ``offset``: they were misread."""
        first = offset
        for number, piece in enumerate(self._pieces):
            good = piece.offsets + piece.lengths <= offset
            if not good.all():
                first = min(first, int(piece.offsets[~good].min()))
                self._pieces[number] = piece.take(good)
        if first < offset:
            what, lost = "damaged deliver or ack record", "what stood there is lost"
            self._find(first, offset - first, Cause.DAMAGE, what, lost)

    def _is_zero_tail(self, offset: int) -> bool:
        if not self._nothing_from(offset):
            return False
        if offset == 0 or self._layout.step_size < 8 or offset < self._layout.complete:
            length = len(self._data) - offset
            what, consequence = "zero-filled tail", "nothing is lost"
            self._find(offset, length, Cause.CRASH, what, consequence, Kind.ZEROS)
        return True

    def _is_cut_short(self, offset: int) -> bool:
        """Return whether all bytes from here on are one append of a process that died meanwhile.
        Nothing of it counts, not even its whole records. If the system died as well, sectors may be
        missing instead."""
        layout = self._layout
        if not layout.ids_vouch or layout.power_lost or offset < layout.complete:
            return False
        if not self._has_no_start(offset):
            return False
        if offset - layout.complete > _MAX_UNSEALED and not self._is_unfinished(offset):
            return False
        self._find_unfinished(offset, len(self._data[offset:].rstrip(b"\0")))
        return True

    def _resume(self, anomaly: int, nominal_end: int | None, bare: bool) -> _Resume:
        layout, data = self._layout, self._data
        limit = len(data)
        inside = 0
        if nominal_end is not None and not bare:
            fixed = self._corrected(anomaly, nominal_end)
            if fixed is not None:
                return _Resume(anomaly, anomaly, "one flipped bit in a publish record", fixed)
            if nominal_end - anomaly - layout.head_size == embedded_length(
                data, anomaly + layout.head_size
            ):
                # Both witnesses of its length agree: bytes before its end that look like a record
                # are a part of its body (a user keeps journals in messages).
                inside = nominal_end
        for start in publish_starts(data, self._floor, layout.head_size):
            if anomaly < start < inside:
                continue
            patch = self._sound_at(start)
            if patch is None or (not patch and start == anomaly):
                continue
            if start <= anomaly:
                self._drop_from(start)
                return _Resume(start, start, "damaged head of a publish record", patch or None)
            limit = start
            break
        ends = [(anomaly + layout.step_size, "damaged deliver or ack record")]
        if bare and nominal_end is not None:
            ends.insert(0, (nominal_end, _BARE))
        elif nominal_end is not None:
            # Where there is no message record, a deliver or ack was made to look like a publish,
            # which would swallow those after it.
            is_publish = self._unlike_ours(anomaly) <= 1 or self._is_term(anomaly)
            ends.insert(0 if is_publish else 1, (nominal_end, "damaged publish record"))
        for end, what in ends:
            if self._frames_hold(end, limit):
                return _Resume(anomaly, end, what)
        return _Resume(anomaly, limit, "no record")

    def _unlike_ours(self, start: int) -> int:
        """Count the bits in which what a publish record here embeds differs from the start of a
        record of ours."""
        at = start + self._layout.head_size
        seen = int.from_bytes(self._data[at : at + len(MAGIC)], "big")
        return (seen ^ int.from_bytes(MAGIC, "big")).bit_count()

    def _is_term(self, start: int) -> bool:
        at = start + self._layout.head_size
        return self._data[at : at + 1] == b"\x83"

    def _sound_at(self, start: int) -> Patch | tuple[()] | None:
        """Return whether a publish record starts here: ``()`` a sound one, a patch one whose head
        had to be corrected, ``None`` none."""
        layout, data = self._layout, self._data
        payload = start + layout.payload_at
        kind, seq = layout.read_head(data, start)
        valid = range(layout.first_seq, layout.end_seq)
        embedded = PAYLOAD.unpack_from(data, payload)[3]
        whole = start + layout.head_size + embedded <= len(data)
        if kind < DELIVER and whole and embedded and seq in valid:
            word = np.array([kind << TYPE_SHIFT | seq], np.uint64)
            at = np.array([payload], np.int64)
            if sound_publishes(data, at, word, np.array([embedded], np.int64))[0]:
                return ()
        kinds = (kind, PUBLISH_PERSISTENT, PUBLISH_TRANSIENT) if kind < DELIVER else (0, 1)
        seqs = tuple(one for one in {seq, self._last_seq + 1} if one in valid)
        found = correct_head(data, payload, kinds, seqs)
        if found is None:
            return None
        kind, seq, length = found
        head = layout.pack_head(kind, seq)
        fields = PAYLOAD.unpack_from(data, payload)[:3]
        return start, head + PAYLOAD.pack(*fields, length)

    def _frames_hold(self, start: int, stop: int) -> bool:
        """Return whether only whole records follow, up to the end or a zero tail. None of them may
        embed a message record: a search for sound publish records would have found it."""
        if start > stop:
            return False
        while start < stop:
            walk = self._layout.walk(self._data, start, stop, _MAX_CHUNK)
            if (walk.lengths > self._layout.head_size).any():
                return False
            if walk.ending is not Ending.PAUSE:
                if walk.end == stop:
                    return True
                return stop == len(self._data) and is_zeros(self._data, walk.end)
            start = walk.end
        return True

    def _corrected(self, start: int, end: int) -> Patch | None:
        layout = self._layout
        if end - start > _MAX_CORRECTED or self._unlike_ours(start) > 1:
            return None
        kind, seq = layout.read_head(self._data, start)
        word = (kind << TYPE_SHIFT | seq).to_bytes(8, "big")
        record = bytearray(word + self._data[start + layout.payload_at : end])
        bit = correct_bit(bytes(record))
        if bit is None or bit < 64:
            return None
        record[bit >> 3] ^= 0x80 >> (bit & 7)
        at = start + layout.payload_at + (bit >> 3) - 8
        return at, bytes(record[bit >> 3 : (bit >> 3) + 1])

    def _report(self, resume: _Resume, ending: Ending | None) -> int:
        unfinished = self._is_unfinished(resume.lost_from)
        if resume.patch is not None:
            at, good = resume.patch
            if not isinstance(self._data, bytearray):
                self._data = bytearray(self._data)
            self._data[at : at + len(good)] = good
            crash = unfinished or self._never_written(resume.lost_from, at + len(good))
            cause = Cause.CRASH if crash else Cause.DAMAGE
            consequence = "corrected from the checksum: none lost"
            self._find(at, len(good), cause, resume.what, consequence, Kind.CORRECTED)
            return resume.at
        lost = self._data[resume.lost_from : resume.at]
        at_end = self._nothing_from(resume.at)
        if at_end and (
            ending is Ending.TORN or lost[-1:] == b"\0" or self._is_unsealed(resume.lost_from)
        ):
            what = "torn record at the end"
            self._find(resume.lost_from, len(lost), Cause.CRASH, what, "cut", Kind.TORN)
        elif unfinished:
            self._find_unfinished(resume.lost_from, len(lost))
        elif resume.what == _BARE and self._is_torn(lost):
            what, consequence = "an entry that did not reach the disk in whole", _NOT_SYNCED
            self._find(resume.lost_from, len(lost), Cause.CRASH, what, consequence, Kind.TORN)
        elif self._is_unsealed(resume.lost_from):
            what = "a publish that was interrupted before its checksum was written"
            self._find_unfinished(resume.lost_from, len(lost), what)
        elif _has_zero_page(lost, resume.lost_from):
            what = "pages that were never written"
            self._find(resume.lost_from, len(lost), Cause.CRASH, what, kind=Kind.ZEROS)
        elif self._never_written(resume.lost_from, resume.at):
            what = "sectors that were never written"
            self._find(resume.lost_from, len(lost), Cause.CRASH, what, _NOT_SYNCED, Kind.ZEROS)
        else:
            self._find(
                resume.lost_from,
                len(lost),
                Cause.DAMAGE,
                resume.what,
                "its message is lost" if resume.what != "no record" else "what stood there is lost",
            )
        return resume.at

    def _is_torn(self, lost: Data) -> bool:
        """Return whether an entry lacks its beginning or its end: zeros are there."""
        payload_at = self._layout.payload_at
        head, last = lost[:payload_at], lost[payload_at + _LAST_OF_SIZE]
        ids = sound_ids(lost, np.array([payload_at], np.int64))
        return not any(head) or not last or bool(ids[0])

    def _nothing_from(self, offset: int) -> bool:
        """Return whether the file ends here, or nothing but zeros follows."""
        return is_zeros(self._data, offset)

    def _is_unfinished(self, offset: int) -> bool:
        """Return whether the journal's last append starts here or before, and was cut short by the
        death of its process: its first sixteen bytes are stored last
        (:meth:`journal.journal.Journal.append`), and nothing is appended after it."""
        if not self._unfinished and self._layout.step_size == 8:
            last = self._data[offset : offset + _MAX_COPIED]
            no_start = self._has_no_start(offset)
            self._unfinished = no_start and self._nothing_from(offset + len(last))
        return self._unfinished

    def _has_no_start(self, offset: int) -> bool:
        """Return whether zeros are here in place of an append's start."""
        # Eight zeros may be the start of seq_id 0, with nothing before it.
        zeros = NO_START[: 8 if self._last_seq >= 0 else 16]
        return self._data[offset : offset + len(zeros)] == zeros

    def _never_written(self, start: int, stop: int) -> bool:
        """Return whether a loss of power explains that these bytes are not sound: of a sector in
        them nothing is there from where it was appended to, or the append's start is missing."""
        if not self._layout.power_lost:
            return False
        data = self._data
        if data[start : start + len(NO_START)] == NO_START:
            return True
        # The bytes that an append stores last, and the checksum of a record, may reach over the
        # border of two sectors, of which one was written before and one after.
        check = start + self._layout.head_size + CHECK_OFFSET
        if _is_half(data, start, len(NO_START)) or _is_half(data, check, CHECK_SIZE):
            return True
        for sector in range(start - start % _SECTOR, stop, _SECTOR):
            if is_zeros(data[max(sector, start) : sector + _SECTOR]):
                return True
        return False

    def _is_unsealed(self, offset: int) -> bool:
        """Return whether the record here has no checksum yet: earlier versions put it in last, so
        that is how one of their processes left its last record that was killed in between."""
        record = offset + self._layout.head_size
        check = record + CHECK_OFFSET
        return (
            self._data[record:check] == MAGIC
            and self._data[check : check + CHECK_SIZE] == _NO_CHECK
        )

    def _find_unfinished(
        self, offset: int, length: int, what: str = "an append that was cut short"
    ) -> None:
        self._find(offset, length, Cause.CRASH, what, "it never returned", Kind.UNFINISHED)

    def _find(
        self,
        offset: int,
        length: int,
        cause: Cause,
        what: str,
        consequence: str = "",
        kind: Kind = Kind.RECORD,
    ) -> None:
        # All bytes before `complete` were there, so a finding among them is damage. A corrected
        # record is the exception: it is still there.
        if cause is Cause.CRASH and kind is not Kind.CORRECTED and offset < self._layout.complete:
            cause, consequence = Cause.DAMAGE, self._most_lost(offset, offset + length)
        self._findings.append(Finding(self._path, offset, length, cause, what, consequence, kind))

    def _most_lost(self, start: int, stop: int = sys.maxsize) -> str:
        """Say how many messages can have been in the part of these bytes that was there."""
        layout = self._layout
        length = min(stop, layout.complete) - start
        most = -(-length // layout.head_size)
        if stop >= len(self._data):
            most = min(most, layout.end_seq - 1 - max(self._last_seq, layout.first_seq - 1))
        return f"{length} bytes that had been written are lost, with at most {most} messages"


def _is_half(data: Data, start: int, length: int) -> bool:
    """Return whether the border of two sectors is within these bytes, and there is nothing on one
    side of it."""
    border = start - start % -_SECTOR
    if not start < border < start + length:
        return False
    return not any(data[start:border]) or not any(data[border : start + length])


def _has_zero_page(lost: Data, offset: int) -> bool:
    """Return whether a whole page of the file within these bytes is zero: a page that had not
    reached the disk when the power went."""
    first = -offset % _PAGE
    zero = bytes(_PAGE)
    return any(lost[at : at + _PAGE] == zero for at in range(first, len(lost) - _PAGE + 1, _PAGE))
