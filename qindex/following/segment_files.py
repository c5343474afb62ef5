"""Publish records from segment files, for a follower that starts, or that a flush has overtaken."""

from __future__ import annotations

import os

from journal.errors import StorageError, storage_errors
from journal.findings import Finding
from journal.fs.files import FileSystem, read_optional
from qindex.following.piece import Piece
from qindex.format.segment import PUBLISH_HEAD_SIZE, STEP_SIZE, file_name, file_number
from qindex.index.segment_scan import read_healed, scan_segment


class SegmentFiles:
    """The segment files of a queue in ``directory``; ``entry_count``: entries in each.

    Raises :class:`StorageError` when the system refuses, :class:`FileNotFoundError` when the
    queue is not there any more.
    """

    def __init__(self, fs: FileSystem, directory: str, entry_count: int) -> None:
        self._fs = fs
        self._directory = directory
        self._count = entry_count

    def sizes(self) -> dict[int, tuple[int, int]]:
        """Return inode and size, in bytes, of each file, by its number, ascending."""
        found: dict[int, tuple[int, int]] = {}
        for number in self._numbers():
            path = self._path(number)
            try:
                stat = self._fs.stat(path)
            except FileNotFoundError:
                continue  # deleted just now: all in it was acknowledged
            except OSError as error:
                raise StorageError(path, "the segment can't be read", error) from error
            found[number] = stat.st_ino, stat.st_size
        return found

    def _numbers(self) -> list[int]:
        try:
            names = self._fs.listdir(self._directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(self._directory, "the queue can't be read", error) from error
        numbers = (file_number(name) for name in names)
        return sorted(number for number in numbers if number is not None)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, file_name(number))

    def publishes(self, number: int) -> Piece | None:
        """Return all publish records of a segment, acknowledged or not; ``None`` when it is gone.

        A file that a flush is writing is left out, and so are records damaged beyond correction.
        O(bytes of the file).
        """
        path = self._path(number)
        findings: list[Finding] = []
        with storage_errors(path, "the segment can't be read"):
            data = read_optional(self._fs, path)
            if data is None:
                return None
            healed = read_healed(self._fs, path, findings, data)
        scan = scan_segment(path, healed.data, number, self._count, healed.sound)
        entries = scan.entries
        return Piece(
            scan.data,
            entries.kinds,
            entries.seqs,
            entries.offsets + STEP_SIZE,
            entries.lengths - PUBLISH_HEAD_SIZE,
        )

    def end(self) -> int | None:
        """Return one above the highest seq_id in the files; ``None`` when they hold none."""
        for number in reversed(self._numbers()):
            piece = self.publishes(number)
            if piece is not None and len(piece):
                return int(piece.seqs[-1]) + 1
        return None

    def next_number(self, number: int) -> int | None:
        """Return the lowest segment that is there, from ``number`` on."""
        return min((one for one in self._numbers() if one >= number), default=None)
