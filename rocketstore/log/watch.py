"""Notice files that another program deletes, cuts or replaces under the open store.

No call for a single message asks for it. Files are looked at when they are opened, when the log
rolls over, at each sync and checkpoint, and at close.
"""

from __future__ import annotations

import logging
import os

from journal.errors import DamageError, storage_errors
from journal.findings import Cause, Finding, Kind
from journal.fs.files import FileSystem

_log = logging.getLogger("qindex.rocketstore")
GONE = "the file is gone: another program has deleted or moved it"


class Watch:
    """The files of one store that is open for writing. ``findings`` is the store's list; ``taken``
    are the paths of the files that were found to be taken away."""

    def __init__(self, fs: FileSystem, findings: list[Finding]) -> None:
        self._fs = fs
        self._findings = findings
        self.taken: set[str] = set()

    def open(self, path: str, flags: int, size: int) -> int:
        """Open a file that has ``size`` bytes. Raises :class:`DamageError` when it has fewer, or is
        gone, and :class:`OSError`."""
        try:
            fd = self._fs.open(path, flags)
        except FileNotFoundError:
            # All of the directory may be away, perhaps for a while: nothing is lost yet.
            self._fs.listdir(os.path.dirname(path))
            raise self._tell(path, 0, GONE) from None
        try:
            self._check_size(path, self._fs.fstat(fd), size)
        except BaseException:
            self._fs.close(fd)
            raise
        return fd

    def check(self, path: str, size: int, fd: int = -1) -> None:
        """Check that a file exists in full and, if ``fd`` is given, is the file open as ``fd``.
        Raises :class:`DamageError` and :class:`StorageError`."""
        with storage_errors(path, "can't be looked at"):
            try:
                found = self._fs.stat(path)
            except FileNotFoundError:
                raise self._tell(path, 0, GONE) from None
            self._check_size(path, found, size)
            if fd >= 0 and not os.path.samestat(found, self._fs.fstat(fd)):
                raise self._tell(path, 0, "another program has put another file in its place")

    def _check_size(self, path: str, found: os.stat_result, size: int) -> None:
        if found.st_size < size:
            what = f"another program has cut the file to {found.st_size} of its {size} bytes"
            raise self._tell(path, found.st_size, what)

    def _tell(self, path: str, offset: int, what: str) -> DamageError:
        if path not in self.taken:
            self.taken.add(path)
            consequence = "its content is lost, unless the file is put back"
            finding = Finding(path, offset, 0, Cause.DAMAGE, what, consequence, Kind.MISSING_FILE)
            self._findings.append(finding)
            _log.warning("%s", finding)
        return DamageError(path, offset, what)
