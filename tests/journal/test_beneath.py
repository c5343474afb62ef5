"""The border of a store's directory, by both ways of looking a name up."""

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.errors import UnsafeFileError
from journal.fs import beneath as module
from journal.fs.beneath import BeneathFileSystem, beneath, leave
from journal.fs.files import REAL, RealFileSystem, make_dirs, read_file, replace_file
from tests.memory_fs import MemoryFileSystem

WAYS = [module._open_step_by_step]
if module._syscall is not None and os.uname().sysname == "Linux":
    WAYS.append(module._open_at_once)


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory ``store`` beside a file and a directory that are none of its business."""
    before, module._chosen = module._chosen, request.param
    (tmp_path / "store" / "queues" / "A").mkdir(parents=True)
    (tmp_path / "store" / "queues" / "A" / "file").write_bytes(b"ours")
    (tmp_path / "secret").write_bytes(b"theirs")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"theirs")
    yield tmp_path / "store"
    module._chosen = before
    assert (tmp_path / "secret").read_bytes() == b"theirs"
    assert (tmp_path / "outside" / "file").read_bytes() == b"theirs"
    assert sorted(os.listdir(tmp_path)) == ["outside", "secret", "store"]
    assert os.listdir(tmp_path / "outside") == ["file"]


READ, WRITE = os.O_RDONLY, os.O_RDWR | os.O_CREAT


def test_what_is_in_the_directory_is_served(root: Path) -> None:
    fs = beneath(REAL, str(root), hold=True)
    inner = str(root / "queues" / "B")
    make_dirs(fs, inner)
    replace_file(fs, inner + "/x", b"new")
    assert read_file(fs, inner + "/x") == b"new"
    assert fs.stat(inner + "/x").st_size == 3
    fs.rename(inner + "/x", str(root / "queues" / "A" / "y"))
    assert sorted(fs.listdir(str(root / "queues" / "A"))) == ["file", "y"]
    fs.unlink(str(root / "queues" / "A" / "y"))
    fs.sync_dir(str(root / "queues"))
    fs.rmdir(inner)
    assert fs.listdir(str(root)) == ["queues"]
    assert fs.statvfs(str(root)).f_bsize
    with pytest.raises(FileNotFoundError) as caught:
        fs.open(inner + "/x", READ)
    assert caught.value.filename == inner + "/x"


@pytest.mark.parametrize("flags", [READ, WRITE, WRITE | os.O_TRUNC, os.O_WRONLY])
@pytest.mark.parametrize("target", ["../secret", "queues/A/file", "nowhere", "/etc/passwd"])
def test_a_link_is_not_opened(root: Path, flags: int, target: str) -> None:
    link = root / "link"
    link.symlink_to(target)
    fs = beneath(REAL, str(root))
    with pytest.raises(UnsafeFileError, match=r"store/link is a symbolic link"):
        fs.open(str(link), flags)
    assert fs.stat(str(link)).st_size == len(target)  # of the link itself
    fs.unlink(str(link))
    assert not os.path.lexists(link)


def test_a_directory_that_is_a_link_is_not_entered(root: Path) -> None:
    link = root / "queues" / "B"
    link.symlink_to("../../outside")
    fs = beneath(REAL, str(root))
    inner = str(link / "file")
    for call in (
        lambda: fs.open(inner, READ),
        lambda: fs.open(str(link / "new"), WRITE),
        lambda: fs.listdir(str(link)),
        lambda: fs.stat(inner),
        lambda: fs.unlink(inner),
        lambda: fs.mkdir(str(link / "new")),
        lambda: fs.rmdir(str(link / "new")),
        lambda: fs.rename(inner, str(root / "x")),
        lambda: fs.rename(str(root / "queues" / "A" / "file"), inner),
        lambda: fs.sync_dir(str(link)),
    ):
        with pytest.raises(UnsafeFileError, match="queues/B is a symbolic link"):
            call()
    with pytest.raises(NotADirectoryError):
        fs.rmdir(str(link))


@pytest.mark.parametrize("path", ["queues/../../secret", "../secret", "..", "queues/A/../../.."])
def test_no_path_leads_out(root: Path, path: str) -> None:
    fs = beneath(REAL, str(root))
    full = f"{root}/{path}"
    with pytest.raises(UnsafeFileError):
        fs.open(full, READ)
    with pytest.raises(UnsafeFileError):
        fs.unlink(full)
    for other in ("/etc/passwd", str(root) + "-other/file", str(root.parent)):
        with pytest.raises(UnsafeFileError, match="outside"):
            fs.open(other, READ)


def test_only_files_and_directories_are_opened(root: Path) -> None:
    os.mkfifo(root / "fifo")
    there = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(root)  # a socket's path is short
    try:
        there.bind("socket")
    finally:
        os.chdir(here)
        there.close()
    names = ["fifo", "socket"]
    if os.geteuid() == 0:
        os.mknod(root / "device", 0o20600, os.makedev(1, 5))
        names.append("device")
    fs = beneath(REAL, str(root))
    for name in names:
        for flags in (READ, os.O_WRONLY, os.O_RDWR, WRITE):
            with pytest.raises(UnsafeFileError, match="not a file"):
                fs.open(str(root / name), flags)


def test_a_held_directory_stays_the_one_that_was_opened(root: Path) -> None:
    held = beneath(REAL, str(root), hold=True)
    loose = beneath(REAL, str(root))
    assert isinstance(held, BeneathFileSystem)
    held.listdir(str(root))
    held.check_root(str(root))
    moved = root.rename(root.with_name("moved"))
    root.symlink_to("outside")
    with pytest.raises(FileNotFoundError, match="another directory"):
        held.check_root(str(root / "queues"))
    assert held.listdir(str(root)) == ["queues"]
    assert loose.listdir(str(root)) == ["file"]  # the path of the store itself may be a link
    root.unlink()
    with pytest.raises(FileNotFoundError, match="is gone"):
        held.check_root(str(root))
    with pytest.raises(FileNotFoundError):
        loose.listdir(str(root))
    moved.rename(root)


def test_what_is_held_is_given_back(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    fs = beneath(REAL, str(root), hold=True)
    for _ in range(3):
        fs.listdir(str(root))
        fs.stat(str(root / "queues" / "A" / "file"))
        with pytest.raises(FileNotFoundError):
            fs.open(str(root / "none"), READ)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    leave(fs)
    assert len(os.listdir("/proc/self/fd")) == before


def test_other_file_systems_are_left_as_they_are(tmp_path: Path) -> None:
    class Own(RealFileSystem):
        pass

    for fs in (MemoryFileSystem(), Own()):
        assert beneath(fs, str(tmp_path)) is fs
    border = beneath(REAL, str(tmp_path))
    assert beneath(border, str(tmp_path / "inner")) is border
    assert border.pread is REAL.pread
    assert border.write is REAL.write


def test_a_system_without_openat2_is_found_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> int:
        ctypes.set_errno(errno.EPERM)  # as some containers do
        return -1

    monkeypatch.setattr(module, "_syscall", refused)
    monkeypatch.setattr(module, "_chosen", None)
    assert beneath(REAL, str(root)).listdir(str(root)) == ["queues"]
    assert module._chosen is module._open_step_by_step
