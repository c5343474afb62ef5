"""Room that a node of RabbitMQ 3.13 and later freed inside its message store's files.

Such a node moves records to the holes that others left, inside one file. Zeros, rests of records,
or old copies lie between records then: no damage. They are reported only where they hold the rest
of a message that an index names and that is nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from journal.findings import Finding, Kind
from journal.fs.files import FileSystem, names_in, opened, pread_all
from msgstore.format import HEADER
from qindex.format.rabbitmq.queue_index_v2 import SUFFIX
from qindex.format.rabbitmq.record import MSG_ID_BYTES

_PIECE = 1 << 20
_ID_HEAD = b"m\0\0\0\x10"
_CONTAINERS = tuple(
    b"\x83h\x04" + atom for atom in (b"w\x02mc", b"d\0\x02mc", b"v\0\x02mc", b"s\x02mc")
)


def frees_room_inside(fs: FileSystem, vhost: str, store: str, queues: str) -> bool:
    """Return whether files of the message store ``store`` may have holes: a queue of ``vhost`` has
    files of version 2, or a file begins with a message container. Raises :class:`OSError`."""
    for name in names_in(fs, os.path.join(vhost, queues)):
        if any(one.endswith(SUFFIX) for one in names_in(fs, os.path.join(vhost, queues, name))):
            return True
    for name in names_in(fs, store):
        if name.endswith(".rdq"):
            with opened(fs, os.path.join(store, name)) as fd:
                if pread_all(fs, fd, 8, HEADER).startswith(_CONTAINERS):
                    return True
    return False


def concerning(fs: FileSystem, findings: Iterable[Finding], missing: set[bytes]) -> list[Finding]:
    """Return those findings in files with holes that concern a message that is missing. Raises
    :class:`OSError`."""
    return [
        one
        for one in findings
        if one.kind in (Kind.UNREADABLE, Kind.FOREIGN_FILE, Kind.DUPLICATE_FILE)
        or not one.length
        or (missing and _holds(fs, one, missing))
    ]


def _holds(fs: FileSystem, finding: Finding, missing: set[bytes]) -> bool:
    try:
        fd = fs.open(finding.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if pread_all(fs, fd, MSG_ID_BYTES, finding.offset + 8) in missing:
            return True
        at, end = finding.offset, finding.offset + finding.length
        overlap = len(_ID_HEAD) + MSG_ID_BYTES
        while at < end:
            data = pread_all(fs, fd, min(_PIECE + overlap, end - at), at)
            found = data.find(_ID_HEAD)
            while found >= 0:
                start = found + len(_ID_HEAD)
                if data[start : start + MSG_ID_BYTES] in missing:
                    return True
                found = data.find(_ID_HEAD, found + 1)
            at += _PIECE
    finally:
        fs.close(fd)
    return False
