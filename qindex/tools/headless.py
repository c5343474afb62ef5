"""Messages that are still in a message store file, under a header that is damaged.

The checksum of a message record covers its id, and not the frame around it (length, id and end
byte; see :mod:`msgstore.format`). Where a bit of the frame flips, no scan finds the record by
itself. But an index entry names the id, and the checksum shows whether the bytes between two sound
records are that very message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from journal.findings import Finding
from journal.fs.files import FileSystem, opened, pread_all
from msgstore.format import FRAME, HEADER, ID_SIZE, parse_header
from msgstore.scan import Record, read_record
from qindex.index.messages import check_record


def find_headless(
    fs: FileSystem, path: str, gaps: Iterable[Finding], missing: set[bytes]
) -> Iterator[Record]:
    """Yield the records of messages in ``missing`` that are in ``gaps``, the places of the file
    where a scan found no sound record.

    A gap is taken to begin with a header whose id is right but for one bit at most. O(bytes of the
    gaps). Raises :class:`OSError`.
    """
    with opened(fs, path) as fd:
        for gap in gaps:
            offset, end = gap.offset, gap.offset + gap.length
            while found := _at(fs, fd, offset, end, missing):
                yield found
                offset += found[2]


def _at(fs: FileSystem, fd: int, offset: int, end: int, missing: set[bytes]) -> Record | None:
    head = pread_all(fs, fd, HEADER, offset) if end - offset > FRAME else b""
    if len(head) < HEADER:
        return None
    length, claimed = parse_header(head)
    stated = length + FRAME - ID_SIZE
    for msg_id in _near(claimed):
        if msg_id not in missing:
            continue
        # As long as its header says, or, where that is damaged, up to the next sound record.
        for total in dict.fromkeys((stated, end - offset)):
            if not FRAME < total <= end - offset:
                continue
            record = read_record(fs, fd, offset, total)
            if record is not None and check_record(msg_id, record) is None:
                return msg_id, offset, total
    return None


def _near(claimed: bytes) -> Iterator[bytes]:
    yield claimed
    number = int.from_bytes(claimed, "big")
    for bit in range(8 * ID_SIZE):
        yield (number ^ 1 << bit).to_bytes(ID_SIZE, "big")
