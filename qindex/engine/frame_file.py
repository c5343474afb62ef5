"""A file of frames, of what an engine is about to do: :class:`qindex.engine.moves.Moves` has one,
and :class:`qindex.engine.transaction_log.TransactionLog` is one. Their lock is held."""

from __future__ import annotations

import logging
import os

from journal.errors import StorageError
from journal.fs.files import FileSystem, close_quietly, pwrite_all
from journal.poison import Poison

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class FrameFile:
    """The file, made by its first frame. ``what`` is in it, as errors say.

    ``fd``: its descriptor, None before the first frame; ``end``: bytes of it that count.
    """

    __slots__ = ("_durable", "_fs", "_poison", "_what", "end", "fd", "path")

    def __init__(
        self, fs: FileSystem, path: str, poison: Poison, what: str, *, durable: bool
    ) -> None:
        self._fs = fs
        self.path: str = path
        self._poison = poison
        self._what = what
        self._durable: bool = durable
        self.fd: int | None = None
        self.end: int = 0

    def opened(self) -> int:
        """Open the file, if it is not, and return its descriptor. Raises :class:`OSError`."""
        fs = self._fs
        if self.fd is None:
            if self._durable and not self.end:
                # First: with a handle of the file, nobody would sync its name again.
                fs.close(fs.open(self.path, _FLAGS))
                fs.sync_dir(os.path.dirname(self.path))
            self.fd = fs.open(self.path, _FLAGS)
        return self.fd

    def append(self, frame: bytes) -> None:
        """Append a frame; durably, where each call is durable. Raises :class:`StorageError`; then
        the frame counts only if writes are refused from now on."""
        try:
            pwrite_all(self._fs, self.opened(), frame, self.end)
        except OSError as error:
            raise self.not_noted(error) from error
        if self._durable:
            self.sync_frame()
        self.end += len(frame)

    def not_noted(self, error: OSError) -> StorageError:
        """Return the error of a frame that can't be appended."""
        return StorageError(self.path, f"{self._what} can't be noted", error)

    def sync_frame(self) -> None:
        """Make what was written durable, or refuse writes. Raises :class:`StorageError`."""
        assert self.fd is not None
        try:
            self._fs.fdatasync(self.fd)
        except OSError as error:
            failure = self.not_noted(error)
            self._poison.set(failure)
            raise failure from error

    def empty(self, logger: logging.Logger) -> bool:
        """Empty the file, and return whether that was done. If not, what stays is of things that
        are done: it says nothing wrong, and more follows it."""
        if self.fd is None:
            return False
        try:
            self._fs.truncate(self.fd, 0)
        except OSError as error:
            logger.warning("%s: can't be emptied: %s", self.path, error)
            return False
        self.end = 0
        return True

    def close_file(self) -> bool:
        """Close the file, and return whether it was open."""
        fd, self.fd = self.fd, None
        if fd is not None:
            close_quietly(self._fs, fd, self.path)
        return fd is not None
