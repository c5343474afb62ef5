"""What somebody may have put in the place of a file or a directory of a store."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

__all__ = ["DIRECTORIES", "FILES", "Outside"]

_GIANT = 1 << 42
"""Bytes of a sparse file: 4 TiB."""


class Outside:
    """What is beside the store and none of its business; ``changed`` tells whether it was
    touched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "file"
        self.directory = path / "directory"

    def make(self, copy_of: Path) -> None:
        """Make it; ``copy_of``: what the directory holds, so that it fits where it is linked."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        if copy_of.is_dir():
            shutil.copytree(copy_of, self.directory)
        else:
            self.directory.mkdir()
        (self.directory / "precious").write_bytes(b"precious")
        self.file.write_bytes(copy_of.read_bytes() if copy_of.is_file() else b"precious")
        self._known = self._look()

    @property
    def changed(self) -> list[str]:
        """Paths that are not as they were."""
        now = self._look()
        return sorted(
            path for path in now.keys() | self._known if now.get(path) != self._known.get(path)
        )

    def _look(self) -> dict[str, tuple[int, int, bytes]]:
        found = {}
        for folder, inner, names in os.walk(self.path):
            for name in [*inner, *names]:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                data = Path(path).read_bytes() if os.path.isfile(path) else b""
                found[path] = (status.st_mtime_ns, status.st_mode, data)
        return found


Tampering = Callable[[Path, Outside], None]


def _link(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.file)


def _link_out(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.directory)


def _link_to_nothing(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.path / "nothing")


def _link_inside(path: Path, _outside: Outside) -> None:
    """To another file of the store: it is written twice then."""
    path.symlink_to("journal.jif" if path.name != "journal.jif" else "0.idx")


def _fifo(path: Path, _outside: Outside) -> None:
    os.mkfifo(path)


def _socket(path: Path, _outside: Outside) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path, _outside: Outside) -> None:
    os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero: reading it never ends


def _directory(path: Path, _outside: Outside) -> None:
    path.mkdir()
    (path / "inner").write_bytes(b"x")


def _sparse(path: Path, _outside: Outside) -> None:
    path.touch()
    os.truncate(path, _GIANT)


def _file(path: Path, _outside: Outside) -> None:
    path.write_bytes(b"a file")


def _grown(path: Path, _outside: Outside) -> None:
    """As it was, and behind that a hole, and something behind that."""
    with path.open("ab") as file:
        file.truncate(_GIANT)
        file.seek(_GIANT)
        file.write(b"\x01 behind")


FILES: dict[str, Tampering] = {
    "link to a file": _link,
    "link to a directory": _link_out,
    "link to nothing": _link_to_nothing,
    "link inside": _link_inside,
    "FIFO": _fifo,
    "socket": _socket,
    "directory": _directory,
    "sparse": _sparse,
    "grown": _grown,
}
DIRECTORIES: dict[str, Tampering] = {
    "link to a directory": _link_out,
    "link to nothing": _link_to_nothing,
    "FIFO": _fifo,
    "file": _file,
}
if hasattr(os, "geteuid") and os.geteuid() == 0:
    FILES["device"] = _device


def tamper(how: str, path: Path, outside: Outside, *, is_file: bool) -> None:
    """Put something else in the place of ``path``."""
    outside.make(path)
    if how != "grown":
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    (FILES if is_file else DIRECTORIES)[how](path, outside)
