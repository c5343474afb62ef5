"""A store's directory as a border: nothing outside it is read, written or deleted.

A user who runs ``verify``, ``salvage`` or ``open`` on a directory that came from elsewhere should
not have to trust the names in it. Below the directory's own path, which may be a link, no symbolic
link is followed and no ``..`` leads out: every name is looked up relative to a handle of the
directory, by the kernel in one step where it can (``openat2`` with ``RESOLVE_BENEATH``, Linux 5.6),
else from one directory to the next (``O_NOFOLLOW``). Only regular files and directories are opened:
a FIFO would make the open wait for ever, a device may do anything.

Any other thing raises :class:`journal.errors.UnsafeFileError`, an :class:`OSError` that names it.
Descriptors are as :mod:`os` gives them, so reads and writes cost what they cost without this.

A file that has a second name (a hard link) is read, and not opened for writing: the other name may
be another program's file, or a backup. Another file system that is mounted in the directory can't
be told apart from the store's own files.

New files and directories follow the mode of the directory: in one of mode 0700 files have 0600, in
one of 0770 they have 0660, whatever the umask. :func:`make_store_directory` sets that mode.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from journal.errors import UnsafeFileError
from journal.findings import Cause, Finding, Kind
from journal.fs.files import (
    REAL,
    FileSystem,
    PathLike,
    RealFileSystem,
    is_there,
    make_dirs,
    move_up,
    special,
    sync_directory,
    unsafe,
)

_log = logging.getLogger("qindex.files")

_Result = TypeVar("_Result")

_OPENAT2: Final = 437
"""The number of the system call, on all architectures but Alpha."""
_HOW: Final = struct.Struct("QQQ")
"""``struct open_how``: flags, mode, resolve."""
_RESOLVE: Final = 0x08 | 0x04 | 0x02  # RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | _NO_MAGICLINKS
_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)
_FOLLOWED: Final = os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY: Final = _FOLLOWED | os.O_NOFOLLOW
_ALWAYS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITES: Final = os.O_WRONLY | os.O_RDWR
_ATTEMPTS: Final = 64
"""Attempts at a look-up that met a rename elsewhere in the system (``EAGAIN``)."""


def beneath(fs: FileSystem, *directories: PathLike, hold: bool = False) -> FileSystem:
    """Return ``fs`` confined to these directories, each with an absolute path.

    ``hold``: a directory is looked up once, at first use. Its handle stays on that directory until
    :func:`leave`, even when the path leads elsewhere. Without ``hold`` each call looks it up. A
    file system of another kind than the real one (in memory, say) is returned as it is.
    """
    if isinstance(fs, BeneathFileSystem) and all(map(fs.covers, directories)):
        return fs.sharing() if hold else fs
    if type(fs) is not RealFileSystem and not isinstance(fs, BeneathFileSystem):
        return fs
    return BeneathFileSystem([os.fspath(one) for one in directories], hold=hold)


def private_directory(path: PathLike, fs: FileSystem = REAL) -> FileSystem:
    """Make a working directory that only this user can use, or take up such a directory.

    Returns the file system confined to it, to its parent, and to the directories that ``fs`` is
    confined to. It holds a handle on each until :func:`leave`. A symbolic link, another user's
    directory, and a directory that others can write raise :class:`journal.errors.UnsafeFileError`:
    whoever made it could exchange its files. Raises :class:`OSError`.
    """
    text = os.path.abspath(os.fspath(path))
    if type(fs) is not RealFileSystem and not isinstance(fs, BeneathFileSystem):
        with suppress(FileExistsError):
            fs.mkdir(text)
        return fs
    roots = fs.roots if isinstance(fs, BeneathFileSystem) else []
    private = BeneathFileSystem([text, *roots, os.path.dirname(text)], hold=True)
    private.hold_private(text)
    return private


def make_store_directory(outside: FileSystem, fs: FileSystem, path: str, mode: int | None) -> None:
    """Make the directory of a new store, or take an empty one, with the mode that its files follow.

    ``mode``: of files; ``None``: 0600. A directory for a group keeps its group for all files made
    in it (the set-group-ID bit). Missing parents get the same mode. ``outside``: makes the missing
    directories; ``fs``: confined to the directory. A directory of another user keeps its mode.
    Raises :class:`OSError`.
    """
    missing = []
    above = path
    while not is_there(outside, above):
        missing.append(above)
        above = os.path.dirname(above) or "."
    make_dirs(outside, path)
    if isinstance(fs, BeneathFileSystem):
        wanted = _directory_mode(mode or 0o600)
        for parent in reversed(missing[1:]):
            made = _Handle(parent, _DIRECTORY)
            _set_mode(made.fd, parent, wanted)
        fs.set_mode(path, wanted)


def follow(fs: FileSystem, path: str) -> None:
    """Make nothing new more accessible than this file, or directory, of the store already is: a
    directory may be open to others whose files never were. Nothing there changes nothing."""
    if isinstance(fs, BeneathFileSystem):
        with suppress(FileNotFoundError):
            fs.follow(path)


def _directory_mode(mode: int) -> int:
    """Return the mode of the directories of a store with files of ``mode``."""
    mode |= (mode & 0o444) >> 2
    return mode | stat.S_ISGID if mode & stat.S_IRWXG else mode


def _set_mode(directory: int, path: str, mode: int) -> None:
    """Set the mode of an open directory, if it is this user's."""
    if stat.S_IMODE(os.fstat(directory).st_mode) == mode:
        return
    fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=directory)
    try:
        os.fchmod(fd, mode)
    except OSError as error:
        _log.warning("%s: keeps its mode: %s", path, error.strerror)
    finally:
        os.close(fd)


def open_to_others(fs: FileSystem, directory: str) -> Iterator[Finding]:
    """Note a store whose directory lets other users in, to read or to write. Raises
    :class:`OSError`."""
    mode = stat.S_IMODE(fs.stat(directory).st_mode)
    if mode & stat.S_IRWXO:
        able = "read and write" if mode & stat.S_IWOTH else "read"
        what = f"all users of this machine may {able} in this directory: its mode is {mode:04o}"
        advice = "chmod -R o-rwx keeps them out"
        yield Finding(directory, 0, 0, Cause.CRASH, what, advice, Kind.OPEN_TO_OTHERS)


def leave(fs: FileSystem) -> None:
    """Release what :func:`beneath` holds. A call that is under way still ends."""
    if isinstance(fs, BeneathFileSystem):
        fs.leave()


def check_root(fs: FileSystem, path: PathLike) -> None:
    """Raise :class:`FileNotFoundError` when the directory that ``fs`` holds, and ``path`` is in, is
    not any more where it was when it was opened."""
    if isinstance(fs, BeneathFileSystem):
        fs.check_root(path)


class _Handle:
    """An open directory; closed when its last user lets go of it."""

    __slots__ = ("_mode", "fd")

    def __init__(self, path: str, flags: int = _FOLLOWED, above: int | None = None) -> None:
        self.fd = -1
        self._mode: int | None = None
        self.fd = move_up(os.open(path, _PATH | flags, dir_fd=above))

    @property
    def mode(self) -> int:
        """The mode of new directories below; that of files, with the bits of 0666. Nothing new can
        be written by all users."""
        if self._mode is None:
            self._mode = os.fstat(self.fd).st_mode & 0o775 | 0o700
        return self._mode

    @mode.setter
    def mode(self, mode: int | None) -> None:
        """``None``: ask the system again."""
        self._mode = mode

    def __del__(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class BeneathFileSystem(RealFileSystem):
    """The operating system's file operations, within ``roots``. Made by :func:`beneath`.

    Every call with a path raises :class:`journal.errors.UnsafeFileError` if the path leads out of
    them, or to something that is neither a file nor a directory.
    """

    def __init__(self, roots: list[str], *, hold: bool) -> None:
        self._roots = [(root.rstrip("/") or "/", root.rstrip("/") + "/") for root in roots]
        self._hold = hold
        self._held: dict[str, _Handle] = {}

    @property
    def roots(self) -> list[str]:
        """The directories."""
        return [root for root, _ in self._roots]

    def sharing(self) -> BeneathFileSystem:
        """Return another of the same directories that holds them too, until its own leave."""
        other = BeneathFileSystem(self.roots, hold=True)
        other._held = dict(self._held)
        return other

    def set_mode(self, path: str, mode: int) -> None:
        """Set the mode of a directory that becomes a store's."""
        fd = self._open(path, _PATH | _DIRECTORY)
        try:
            _set_mode(fd, path, mode)
        finally:
            os.close(fd)
        root, _ = self._split(path)
        self._root(root).mode = None

    def follow(self, path: str) -> None:
        """Make no new file more accessible than the file at ``path``. For held directories."""
        status = self.stat(path)
        bits = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            bits = _directory_mode(bits)
        self._root(self._split(path)[0]).mode &= bits | 0o700

    def covers(self, path: PathLike) -> bool:
        """Return whether a path is in one of the directories, as it is written."""
        text = os.fspath(path).rstrip("/")
        return any(text == root or text.startswith(prefix) for root, prefix in self._roots)

    def leave(self) -> None:
        """Let go of the directories; they are looked up again if they are used again."""
        self._held = {}

    def hold_private(self, path: str) -> None:
        """Make and hold the directory of :func:`private_directory`, by a handle of its parent."""
        parent, name = self._parent(path)
        above = self._root(parent).fd
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
        handle = _Handle(name, _DIRECTORY, above)
        status = os.fstat(handle.fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            text = f"{path} belongs to another user, or others can write it: remove it"
            raise UnsafeFileError(errno.EPERM, text, path)
        _set_mode(handle.fd, path, 0o700)  # what an earlier version has left is 0755
        self._held[path] = handle

    def check_root(self, path: PathLike) -> None:
        """Raise :class:`FileNotFoundError` when the directory of ``path`` is not any more where
        it was when it was opened: it was moved, deleted or replaced. For a held one only."""
        root, _ = self._split(path)
        held = self._held.get(root)
        if held is None:
            return
        then = os.fstat(held.fd)
        try:
            now = os.stat(root)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "the directory is gone", root) from None
        if (then.st_dev, then.st_ino) != (now.st_dev, now.st_ino):
            raise FileNotFoundError(errno.ENOENT, "another directory is in its place", root)

    # -- paths ----------------------------------------------------------------------------------

    def _split(self, path: PathLike) -> tuple[str, str]:
        """Return the directory a path is in, and the rest of it, ``.`` for the directory itself."""
        text = os.fspath(path).rstrip("/")
        for root, prefix in self._roots:
            if text.startswith(prefix) or text == root:
                return root, text[len(prefix) :] or "."
        raise UnsafeFileError(errno.EXDEV, f"{text} is outside of the store", text)

    def _root(self, root: str) -> _Handle:
        handle = self._held.get(root)
        if handle is None:
            handle = _Handle(root)
            if self._hold:
                # Of two threads that come here at once, both go on with the first's.
                handle = self._held.setdefault(root, handle)
        return handle

    def _open(self, path: PathLike, flags: int, mode: int = 0) -> int:
        root, inner = self._split(path)
        handle = self._root(root)
        try:
            return move_up(_open_beneath(handle.fd, inner, flags, mode))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV, errno.ENXIO, errno.ENOTDIR):
                _explain(handle.fd, root, inner)
                if error.errno in (errno.ELOOP, errno.EXDEV):
                    text = f"{os.fspath(path)} leads out of the store"
                    raise UnsafeFileError(error.errno, text, os.fspath(path)) from None
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None

    def _in_parent(self, path: PathLike, call: Callable[[int, str], _Result]) -> _Result:
        """Call with the descriptor of the directory that ``path`` is in, and the name there."""
        parent, name = self._parent(path)
        fd = self._open(parent, _PATH | _DIRECTORY)
        try:
            return call(fd, name)
        except UnsafeFileError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{parent}/{name}") from None
        finally:
            os.close(fd)

    def _parent(self, path: PathLike) -> tuple[str, str]:
        """Return the directory that ``path`` is in, and the name there."""
        text = os.fspath(path).rstrip("/")
        parent, _, name = text.rpartition("/")
        if name in ("", ".", "..") or not self.covers(parent):
            raise UnsafeFileError(errno.EXDEV, f"{text} is outside of the store", text)
        return parent, name

    # -- operations -----------------------------------------------------------------------------

    def open(self, path: PathLike, flags: int, mode: int = 0o666, /) -> int:  # type: ignore[override]
        """Open a regular file, or a directory to read. A new file has those bits of ``mode`` that
        the store's directory has."""
        mode = mode & self._mode_of(path) if flags & os.O_CREAT else 0
        fd = self._open(path, flags & ~os.O_TRUNC | _ALWAYS, mode)
        try:
            status = os.fstat(fd)
            opened = status.st_mode
            if special(opened):
                raise unsafe(os.fspath(path), opened)
            if flags & _WRITES and status.st_nlink > 1 and stat.S_ISREG(opened):
                raise _linked(os.fspath(path), status.st_nlink)
            if mode & ~opened and not status.st_size:
                self._widen(fd, status, mode)
            if flags & os.O_TRUNC and status.st_size:
                os.ftruncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _mode_of(self, path: PathLike) -> int:
        """Return the mode of new directories where ``path`` is."""
        return self._root(self._split(path)[0]).mode

    @staticmethod
    def _widen(fd: int, status: os.stat_result, mode: int) -> None:
        """Set the mode bits that the umask has removed from a new file or directory."""
        if status.st_uid == os.geteuid():
            with suppress(OSError):  # a file system without modes
                os.fchmod(fd, stat.S_IMODE(status.st_mode) | mode)

    def rename(self, source: PathLike, target: PathLike, /) -> None:  # type: ignore[override]
        """Rename within the directories; a link is renamed itself."""

        def with_source(old_fd: int, old: str) -> None:
            def with_target(new_fd: int, new: str) -> None:
                os.rename(old, new, src_dir_fd=old_fd, dst_dir_fd=new_fd)

            parent, name = self._parent(target)
            if parent == self._parent(source)[0]:
                with_target(old_fd, name)
            else:
                self._in_parent(target, with_target)

        self._in_parent(source, with_source)

    def unlink(self, path: PathLike, /) -> None:  # type: ignore[override]
        """Remove a name that is not a directory's; of a link, the link."""
        self._in_parent(path, lambda fd, name: os.unlink(name, dir_fd=fd))

    def mkdir(self, path: PathLike, /) -> None:  # type: ignore[override]
        """Make a directory."""

        mode = self._mode_of(self._parent(path)[0])

        def make(above: int, name: str) -> None:
            os.mkdir(name, mode, dir_fd=above)
            if mode & 0o077:
                fd = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=above)
                try:
                    self._widen(fd, os.fstat(fd), mode)
                finally:
                    os.close(fd)

        self._in_parent(path, make)

    def rmdir(self, path: PathLike, /) -> None:  # type: ignore[override]
        """Remove an empty directory."""
        self._in_parent(path, lambda fd, name: os.rmdir(name, dir_fd=fd))

    def listdir(self, path: PathLike, /) -> list[str]:  # type: ignore[override]
        """List a directory."""
        fd = self._open(path, os.O_RDONLY | _DIRECTORY)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def stat(self, path: PathLike, /) -> os.stat_result:  # type: ignore[override]
        """Return the status of a name. A link is looked at itself, not followed."""
        root, inner = self._split(path)
        if inner == ".":
            held = self._held.get(root)
            return os.stat(root) if held is None else os.fstat(held.fd)
        return self._in_parent(
            path, lambda fd, name: os.stat(name, dir_fd=fd, follow_symlinks=False)
        )

    def statvfs(self, path: PathLike, /) -> os.statvfs_result:  # type: ignore[override]
        """Look at the file system that a directory is on."""
        fd = self._open(path, os.O_RDONLY | _DIRECTORY)
        try:
            return os.statvfs(fd)
        finally:
            os.close(fd)

    def sync_dir(self, path: PathLike, /) -> None:  # type: ignore[override]
        """Make the names in directory ``path`` durable.

        Raises :class:`journal.errors.UnopenedError` when the directory can't be opened.
        """
        sync_directory(path, lambda path, flags: self._open(path, flags | _DIRECTORY))


# -- the look-up --------------------------------------------------------------------------------


def _explain(root_fd: int, root: str, inner: str) -> None:
    """Raise the error that names the first part of a path which is not a file or directory."""
    done = ""
    for part in inner.split("/"):
        done = os.path.join(done, part)
        try:
            mode = os.stat(done, dir_fd=root_fd, follow_symlinks=False).st_mode
        except OSError:
            return
        if special(mode):
            raise unsafe(os.path.join(root, done), mode) from None


def _linked(path: str, names: int) -> UnsafeFileError:
    text = (
        f"{path} has {names} names (hard links), and a write would change them all: "
        "put a copy in its place (cp -p FILE FILE.copy; mv FILE.copy FILE)"
    )
    return UnsafeFileError(errno.EMLINK, text, path)


def _open_step_by_step(root_fd: int, inner: str, flags: int, mode: int) -> int:
    """Open a path below a directory, following no link, by one call for each part of it."""
    parts = [part for part in inner.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), inner)
    if not parts:
        return os.open(".", flags, mode, dir_fd=root_fd)
    at = root_fd
    try:
        for part in parts[:-1]:
            above, at = at, os.open(part, _PATH | _DIRECTORY, dir_fd=at)
            if above != root_fd:
                os.close(above)
        return os.open(parts[-1], flags | os.O_NOFOLLOW, mode, dir_fd=at)
    finally:
        if at != root_fd:
            os.close(at)


def _open_at_once(root_fd: int, inner: str, flags: int, mode: int) -> int:
    """Open a path below a directory by ``openat2``."""
    name, how = os.fsencode(inner), _HOW.pack(flags, mode, _RESOLVE)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    for _ in range(_ATTEMPTS):
        try:
            fd: int = _syscall(_OPENAT2, root_fd, name, how, len(how))
        except ctypes.ArgumentError as error:
            raise RecursionError(str(error)) from None  # the types are right
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), inner)


def _open_beneath(root_fd: int, inner: str, flags: int, mode: int) -> int:
    global _chosen
    if _chosen is None:
        _chosen = _choose(root_fd)
    return _chosen(root_fd, inner, flags, mode)


def _choose(root_fd: int) -> Callable[[int, str, int, int], int]:
    """Find out whether the system has ``openat2``: an old kernel lacks it, some containers refuse
    it."""
    if not sys.platform.startswith("linux"):
        return _open_step_by_step
    try:
        os.close(_open_at_once(root_fd, ".", os.O_RDONLY | _DIRECTORY, 0))
    except (OSError, TypeError):
        return _open_step_by_step
    return _open_at_once


_chosen: Callable[[int, str, int, int], int] | None = None
_syscall: Any = getattr(ctypes.CDLL(None, use_errno=True), "syscall", None)
if _syscall is not None:
    _syscall.restype = ctypes.c_long
    _syscall.argtypes = (
        ctypes.c_long,
        ctypes.c_long,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
