"""Find the records of one file, whatever has happened to it.

The walk from record to record reads only the bytes between two records (end byte and next
header), so that its speed does not depend on the size of the bodies. Where RabbitMQ's scanner
stops or loses its place (a zero word, a length that can't be, a wrong end byte), this one looks
for the next place where a sound record begins, and says what lies between.

Who made a gap? Our crashes and RabbitMQ's leave a record cut short, zeros, or a cut record
followed by zeros: in the middle of a file such a gap ends with a zero byte, at the end of a file
it is a record that wants more bytes than there are. A sector that the disk never got is zero from
its beginning to its end. Everything else is damage.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from journal.errors import UnsafeFileError, storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem, PathLike, data_ranges, opened, pread_all
from msgstore.format import (
    END_BYTE,
    FRAME,
    HEADER,
    ID_SIZE,
    MAX_RECORD,
    Check,
    parse_header,
    starts_like_a_record,
)

_WINDOW = 1 << 20
_SMALL = 4096
"""Below this record size (bytes) it is quicker to read everything than to hop over the bodies."""
_SMALL_READ = 1 << 17
_SECTOR = 512
_CHECKED_BYTES_PER_BYTE = 64
"""A search gives up after it has checked this many times the file's size: a hostile body can hold
any number of headers that promise long records."""


Record = tuple[bytes, int, int]
"""Where one record is: its id, the offset of its header, and its size with the frame."""


@dataclass(slots=True)
class FileScan:
    """The content of a file. ``end`` is the end of the last record, ``size`` that of the file,
    ``gaps`` are the bytes that are not a sound record.

    Records from index ``searched`` on were found after a gap: another copy of the same message
    that was found in the ordinary way is to be preferred (the gap may have hidden the frame of a
    body that holds records itself). ``orderly`` is false when RabbitMQ's scanner would not find
    all the records: there is a gap in front of one, or a length field that lies.
    """

    path: str
    size: int
    records: list[Record] = field(default_factory=list)
    gaps: list[Finding] = field(default_factory=list)
    end: int = 0
    searched: int = 0
    orderly: bool = True


def read_record(fs: FileSystem, fd: int, offset: int, total: int) -> bytes | None:
    """Return the bare record at ``offset`` with framed size ``total``; ``None`` if the file ends
    there, or if the record is a hole."""
    wanted = total - FRAME
    try:
        record = pread_all(fs, fd, wanted, offset + HEADER)
    except UnsafeFileError:
        return None
    return record if len(record) == wanted else None


def scan_file(
    fs: FileSystem,
    path: PathLike,
    *,
    check: Check,
    max_record: int = MAX_RECORD,
    verify: bool = False,
) -> FileScan:
    """Scan one file, at the speed of its headers; with ``verify`` also check every record.

    ``max_record`` is the longest record, in bytes, that a search believes in. Raises
    :class:`StorageError` when the file can't be read.
    """
    path = os.fspath(path)
    with storage_errors(path, "can't be scanned"), opened(fs, path) as fd:
        scanner = _Scanner(fs, fd, path, check, max_record, verify)
        return scanner.run()


class _Scanner:
    """The scan of one open file."""

    def __init__(
        self, fs: FileSystem, fd: int, path: str, check: Check, max_record: int, verify: bool
    ) -> None:
        self._fs = fs
        self._fd = fd
        self._check = check
        self._max_record = min(max_record, MAX_RECORD)
        self._verify = verify
        size = fs.fstat(fd).st_size
        self._budget = size * _CHECKED_BYTES_PER_BYTE
        self.result = FileScan(path, size)

    def run(self) -> FileScan:
        result = self.result
        position = 0
        searched = None
        while True:
            position, reason = self._walk(position)
            if position >= result.size:
                break
            following = self._next_sound(position, bool(reason))
            gap_end = result.size if following is None else following
            if searched is None:
                searched = len(result.records)
            if following is not None:
                result.orderly = False
            self._judge(position, gap_end, following is None, reason)
            if following is None:
                break
            position = following
        result.searched = len(result.records) if searched is None else searched
        if result.records:
            _, offset, total = result.records[-1]
            result.end = offset + total
        return result

    def _walk(self, position: int) -> tuple[int, str]:
        """Go from record to record; give where that ends and, with ``verify``, why."""
        fs, fd = self._fs, self._fd
        pread = fs.pread
        size = self.result.size
        append = self.result.records.append
        data, at = pread_all(fs, fd, HEADER, position), 0  # at: of this record's header in data
        while at + HEADER <= len(data):
            length, msg_id = parse_header(data, at)
            end = position + length + 9
            if length < ID_SIZE or end > size or length > MAX_RECORD:
                break
            # The end byte of this record and the header of the next are read together.
            at += length + 8
            if at + HEADER >= len(data):
                wanted = 1 + HEADER if length > _SMALL else _SMALL_READ
                data, at = pread(fd, wanted, end - 1), 0
                if len(data) <= HEADER:
                    data = pread_all(fs, fd, 1 + HEADER, end - 1)
            if at >= len(data) or data[at] != END_BYTE:
                break
            if self._verify:
                reason = self._reason(msg_id, position, length + 9)
                if reason is not None:
                    return position, reason
            append((msg_id, position, length + 9))
            position = end
            at += 1
        return position, ""

    def _reason(self, msg_id: bytes, offset: int, total: int) -> str | None:
        record = read_record(self._fs, self._fd, offset, total)
        if record is None:
            return "the file ends inside the record"
        return self._check(msg_id, record)

    def _next_sound(self, position: int, damaged: bool) -> int | None:
        """The offset of the next sound record after the anomaly at ``position``.

        ``damaged``: the record there has a good frame and fails its check, so that its length
        may have swallowed others.
        """
        size = self.result.size
        head = pread_all(self._fs, self._fd, HEADER, position)
        if len(head) == HEADER and not damaged:
            length, _ = parse_header(head)
            end = position + length + 9
            # A length that leads to a sound record did not lie; then nothing inside counts.
            if length >= ID_SIZE and end < size and self._is_sound(end):
                return end
        return self._search(position + 1, size)

    def _is_sound(self, offset: int) -> bool:
        head = pread_all(self._fs, self._fd, HEADER, offset)
        if len(head) < HEADER:
            return False
        length, msg_id = parse_header(head)
        end = offset + length + 9
        record_size = length - ID_SIZE
        if record_size < 0 or record_size > self._max_record or end > self.result.size:
            return False
        if self._fs.pread(self._fd, 1, end - 1) != b"\xff":
            return False
        self._budget -= record_size
        return self._reason(msg_id, offset, length + 9) is None

    def _search(self, start: int, stop: int) -> int | None:
        """The first offset in ``start..stop`` at which a sound record begins.

        A candidate has a length below 4 GiB (four zero bytes) and a first record byte that a
        codec writes; numpy finds those at memory speed, and only they are looked at closely.
        """
        import numpy as np  # loaded for damaged files only: it takes longer than an open

        begins = np.array([starts_like_a_record(byte) for byte in range(256)])
        position = known = start
        while position + FRAME <= stop and self._budget >= 0:
            if position >= known:
                # No record begins in a hole but with the zeros in front of its length.
                known, end = next(data_ranges(self._fs, self._fd, position, stop), (stop, stop))
                position, known = max(position, known - HEADER), end
                continue
            data = pread_all(self._fs, self._fd, _WINDOW + HEADER, position)
            window = np.frombuffer(data, np.uint8)
            count = len(window) - HEADER
            if count <= 0:
                break
            zero = window == 0
            hits = begins[window[HEADER:]]
            for byte in range(4):
                hits &= zero[byte : byte + count]
            for hit in np.flatnonzero(hits):
                if self._is_sound(position + int(hit)):
                    return position + int(hit)
                if self._budget < 0:
                    break
            position += count
        return None

    def _judge(self, start: int, stop: int, at_end: bool, reason: str) -> None:
        """Say what the gap ``start..stop`` is; rescue the record in it if only its frame lies."""
        length = stop - start
        head = pread_all(self._fs, self._fd, HEADER, start)
        msg_id = head[8:] if len(head) == HEADER else None
        last = self._fs.pread(self._fd, 1, stop - 1)
        claimed = parse_header(head)[0] if len(head) == HEADER else -1
        fits = claimed >= ID_SIZE and start + claimed + 9 <= stop
        if msg_id is not None and last != b"\x00" and self._rescued(msg_id, start, length):
            if start + claimed + 9 == stop:
                what = f"wrong end byte 0x{last.hex()} of a record that is sound otherwise"
            else:
                what = f"length field {claimed} lies, the record is {length - 9} long"
            crash = self._lost_sector(start, stop) or _lost_front(start, claimed, length - 9)
            cause = Cause.CRASH if crash else Cause.DAMAGE
            self._add_gap(start, length, cause, what)
            self.result.records.append((msg_id, start, length))
            self.result.orderly = False
            return
        if reason:
            crash = self._lost_sector(start, start + claimed + 9)
            cause = Cause.CRASH if crash else Cause.DAMAGE
            what = f"the record is damaged: {reason}"
            self._add_gap(start, length, cause, what, Kind.CHECKSUM)
            return
        what = self._describe(start, stop, claimed, fits)
        # A write that was cut short leaves zeros up to where the next one began, or the end of
        # the file.
        ends = self._fs.pread(self._fd, 1, start + claimed + 8) if fits else b"\x00"
        crash = last == b"\x00" or (at_end and ends == b"\x00") or self._lost_sector(start, stop)
        cause = Cause.CRASH if crash else Cause.DAMAGE
        kind = Kind.ZEROS if claimed == 0 else Kind.TORN if at_end and not fits else Kind.RECORD
        self._add_gap(start, length, cause, what, kind)

    def _rescued(self, msg_id: bytes, start: int, length: int) -> bool:
        if length < FRAME or length - FRAME > self._max_record:
            return False
        return self._reason(msg_id, start, length) is None

    def _describe(self, start: int, stop: int, claimed: int, fits: bool) -> str:
        if claimed == 0:
            return "zeros where a record should begin"
        if fits:
            end = self._fs.pread(self._fd, 1, start + claimed + 8)
            return f"the record's end byte is 0x{end.hex()}, not 0xff"
        if claimed < 0:
            return f"{stop - start} bytes of a record's header"
        if claimed < ID_SIZE:
            return f"length field {claimed} is too small for a record"
        return f"a record of {claimed + 9} bytes has only {stop - start}"

    def _add_gap(
        self, start: int, length: int, cause: Cause, what: str, kind: Kind = Kind.RECORD
    ) -> None:
        result = self.result
        result.gaps.append(Finding(result.path, start, length, cause, what, kind=kind))

    def _lost_sector(self, start: int, stop: int) -> bool:
        """Return whether a disk sector, or its part after ``start``, is zero: it never reached the
        disk. Eight zeros at least, since every length begins with some."""
        for offset in range(start // _SECTOR * _SECTOR, stop, _WINDOW):
            data = pread_all(self._fs, self._fd, min(_WINDOW, stop - offset), offset)
            first = max(start - offset, 0)
            edge = min(-(-first // _SECTOR) * _SECTOR, len(data))
            if edge - first >= 8 and not data[first:edge].strip(b"\0"):
                return True
            zeros = bytes(_SECTOR)
            if any(
                data.startswith(zeros, at) for at in range(edge, len(data) - _SECTOR + 1, _SECTOR)
            ):
                return True
        return False


def _lost_front(start: int, claimed: int, length: int) -> bool:
    """Return whether the first bytes of the length, up to a sector's end, have become zero."""
    front = -start % _SECTOR
    if not 0 < front < 8 or claimed == length:
        return False
    return claimed == length & ((1 << 8 * (8 - front)) - 1)
