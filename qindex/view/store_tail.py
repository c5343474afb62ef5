"""Messages of a message store whose files are written, compacted and deleted meanwhile.

The headers in the files tell where records are, and each is read once: a look for an unknown
message reads the records added since. Compaction puts a copy under a name before it takes the
original away, so a message that is nowhere in two listings that are alike is not there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from journal.errors import StorageError, storage_errors
from journal.fs.files import FileSystem, names_in, opened, pread_all
from msgstore.format import (
    END,
    FRAME,
    HEADER,
    ID_SIZE,
    MAX_RECORD,
    Kind,
    classify_name,
    parse_header,
)
from msgstore.scan import read_record, scan_file
from qindex.index.messages import check_record

_ATTEMPTS = 64


@dataclass(slots=True)
class _File:
    """One file as far as it was read: ``end``, bytes; ``places``: offset of each message's
    header, and its size with the frame."""

    inode: int
    end: int = 0
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)


class StoreTail:
    """The message store in ``directory``. Memory: about 200 bytes for each message in it, once
    one was asked for."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._files: dict[str, _File] = {}

    def read(self, msg_id: bytes) -> bytes | None:
        """Return the record of a message, verified; ``None`` when it is not there, or damaged.

        Raises :class:`StorageError`.
        """
        for attempt in range(_ATTEMPTS):
            record = self._read_known(msg_id)
            if record is not None:
                return record
            if not self._look() and attempt:
                break
        return None

    def _read_known(self, msg_id: bytes) -> bytes | None:
        for name in reversed(self._files):
            place = self._files[name].places.get(msg_id)
            if place is None:
                continue
            record = self._pread(name, *place)
            if record is not None and check_record(msg_id, record) is None:
                return record
        return None

    def _pread(self, name: str, offset: int, total: int) -> bytes | None:
        path = os.path.join(self._directory, name)
        try:
            with opened(self._fs, path) as fd:
                return read_record(self._fs, fd, offset, total)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(path, "the message can't be read", error) from error

    def _look(self) -> bool:
        """Read the new records; return whether there were any."""
        with storage_errors(self._directory, "the message store can't be read"):
            names = names_in(self._fs, self._directory)
        kinds = ((name, classify_name(name)) for name in names)
        wanted = [name for name, kind in kinds if kind is not None and kind[0] is not Kind.TMP]
        changed = False
        for name in set(self._files) - set(wanted):
            del self._files[name]
            changed = True
        for name in sorted(wanted, key=lambda one: (len(one), one)):
            changed |= self._look_at(name)
        return changed

    def _look_at(self, name: str) -> bool:
        path = os.path.join(self._directory, name)
        try:
            stat = self._fs.stat(path)
            known = self._files.get(name)
            if known is not None and (known.inode, known.end) == (stat.st_ino, stat.st_size):
                return False
            if known is None or known.inode != stat.st_ino or known.end > stat.st_size:
                # A new file, or compaction has put another one in its place.
                known = self._files[name] = _File(stat.st_ino)
            before = known.end
            with opened(self._fs, path) as fd:
                self._hop(fd, known)
        except FileNotFoundError:
            return self._files.pop(name, None) is not None
        except OSError as error:
            raise StorageError(path, "can't be read", error) from error
        return known.end > before or self._search(path, known)

    def _hop(self, fd: int, known: _File) -> None:
        """Go from header to header, up to a record that is not whole."""
        head = pread_all(self._fs, fd, HEADER, known.end)
        while len(head) == HEADER:
            length, msg_id = parse_header(head)
            total = length - ID_SIZE + FRAME
            if not ID_SIZE <= length <= MAX_RECORD:
                return
            # The end byte of this record and the header of the next are read together.
            following = pread_all(self._fs, fd, 1 + HEADER, known.end + total - 1)
            if following[:1] != END:
                return
            known.places[msg_id] = known.end, total
            known.end += total
            head = following[1:]

    def _search(self, path: str, known: _File) -> bool:
        """Look for sound records after bytes that are not a sound record, or not yet."""
        scan = scan_file(self._fs, path, check=check_record)
        if scan.end <= known.end:
            return False
        known.places.update({msg_id: (at, total) for msg_id, at, total in scan.records})
        known.end = scan.end
        return True
