"""Every error this project raises on purpose.

Few and typed: a caller that catches :class:`StoreError` catches them all. An error names the
file and, where there is one, the offset. Users know these classes as ``qindex.X``, and so a
traceback names them (``__module__``).
"""

from __future__ import annotations

import os


class StoreError(Exception):
    """Base of every error raised by this project."""


class UsageError(StoreError, ValueError):
    """A call that can't be right (wrong type, name, range, an ack twice); nothing has changed."""


class ClosedError(StoreError):
    """Use of an engine, queue or file after it was closed."""


class ForkedError(ClosedError):
    """Use, in a forked child, of an engine that the parent opened."""


class LeaseExpiredError(StoreError):
    """The lease of a delivery ran out before it was settled: the message is ready again, or with
    another consumer. Nothing has changed."""


class DisconnectedError(StoreError):
    """The server of a shared store has gone, or the connection to it, while a call was under way.

    ``maybe_done``: whether the call may have been done all the same. The next call finds or starts
    a server, and goes on.
    """

    def __init__(self, text: str, *, maybe_done: bool = False) -> None:
        self.maybe_done = maybe_done
        super().__init__(text)


class NotAStoreError(StoreError):
    """The path is not a store directory: a file, or a directory of something else."""


class QueueFullError(StoreError):
    """A queue has as much as its ``max_length`` or ``max_bytes`` allows: nothing was published, and
    nothing moved into it."""


class DuplicateError(StoreError):
    """A message of the queue holds the unique key: nothing was published.

    ``seq_id`` is that message.
    """

    def __init__(self, seq_id: int, what: str) -> None:
        super().__init__(f"{what}: seq_id {seq_id}; nothing was published")
        self.seq_id = seq_id
        self._what = what

    def __reduce__(self) -> tuple[type[DuplicateError], tuple[int, str]]:
        return type(self), (self.seq_id, self._what)


class LockedError(StoreError):
    """Another process has the directory open for writing.

    ``pid`` is that process, or ``None`` when the lock file does not tell, when the process that it
    names no longer runs, or when it is another host's or container's: that is ``host`` then, and
    ``None`` else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pid: int | None,
        host: str | None = None,
        *,
        runs: bool = True,
        remedy: str = "",
    ) -> None:
        """``runs``: whether process ``pid`` does. ``remedy``: what a caller can do about another
        process's lock."""
        self.path: str = os.fspath(path)
        self.pid = pid if host is None and runs else None
        self.host = host
        who = f"process {pid}" if pid is not None else "another process"
        if host is not None:
            who += f" of another host or container, {host!a}"
        elif pid == os.getpid():
            who, remedy = "this process already: use that one, or close it first", ""
        elif not runs:
            who = (
                f"another process: the lock file names process {pid}, which no longer runs, but "
                "the lock is held"
            )
        remedy = f"; {remedy}" if remedy else ""
        super().__init__(f"{self.path}: is open for writing by {who}{remedy}")


class StorageError(StoreError):
    """The operating system refused a file operation (full disk, I/O error, permission).

    ``errno`` is the system's error number, ``path`` the file.
    """

    def __init__(self, path: str | os.PathLike[str], doing: str, cause: OSError) -> None:
        self.path: str = os.fspath(path)
        self.errno: int | None = cause.errno
        super().__init__(f"{self.path}: {doing}: {cause.strerror or cause}")


class storage_errors:
    """Raise an error of the system in the block of a ``with`` statement as a
    :class:`StorageError`."""

    __slots__ = ("_doing", "_path")

    def __init__(self, path: str | os.PathLike[str], doing: str) -> None:
        self._path = path
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise StorageError(self._path, self._doing, error) from error


class UnopenedError(OSError):
    """A directory or file was to be synced and could not even be opened: nothing was tried of which
    the outcome would be unknown."""


class UnsafeFileError(OSError):
    """A name in a store's directory that is a symbolic link, a FIFO, a device or a socket, or that
    leads out of the directory. It is not opened.

    An error of the system to all that handles those; users get it as a :class:`StorageError`, or
    as a finding, which names it.
    """


class WritesRefusedError(StoreError):
    """A write or sync failed earlier; the store takes no further writes until it is reopened.

    After a failed fsync nobody knows what reached the disk, and asking again only hides that
    (the kernel reports such an error once). Reading goes on.
    """


class DamageError(StoreError):
    """Bytes on disk that no crash of ours explains.

    ``path`` and ``offset`` (bytes from the start of the file) say where, ``what`` describes the
    damage.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int, what: str) -> None:
        self.path: str = os.fspath(path)
        self.offset = offset
        self.what = what
        super().__init__(f"{self.path}: at offset {offset}: {what}")


for _error in list(vars().values()):
    if isinstance(_error, type) and issubclass(_error, StoreError):
        _error.__module__ = "qindex"
