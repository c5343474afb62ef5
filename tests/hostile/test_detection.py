"""The harness finds what it is there to find: defects, planted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.effort import not_quick
from tests.hostile.tampering import FILES, Outside, tamper
from tests.hostile.trial import all_confined, confined


def _hangs(store: Path) -> int:
    return len((store / "fifo").read_bytes())


def _reads_holes(store: Path) -> int:
    with (store / "sparse").open("rb") as file:
        return len(file.read(1 << 30))


def _spins(_store: Path) -> int:
    while True:
        pass


def _count(store: Path) -> int:
    return len(list(store.iterdir()))


def _raises(_store: Path) -> int:
    raise TypeError("of nobody's")


@pytest.mark.parametrize(
    ("action", "what"),
    [
        pytest.param(_spins, "over 5 s", marks=not_quick("five seconds")),
        (_reads_holes, "MemoryError"),
        (_raises, "TypeError: of nobody's"),
    ],
)
def test_what_is_broken(tmp_path: Path, action: object, what: str) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    assert what in (confined(action, tmp_path)[1] or "")  # type: ignore[arg-type]


def test_one_who_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hostile.trial._WAIT", 1)
    os.mkfifo(tmp_path / "fifo")
    assert confined(_hangs, tmp_path)[1] == "it hangs"


def test_one_who_dies_takes_nobody_along(tmp_path: Path) -> None:
    def dies(_store: Path) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    tasks = [(action, tmp_path) for action in (_count, dies, _raises, dies, _count)]
    found = all_confined(tasks)
    assert [broken for _, broken in found] == [
        None,
        "died of SIGKILL",
        found[2][0],
        "died of SIGKILL",
        None,
    ]
    assert found[0] == found[4] == ("ok, 0 findings", None)
    assert "TypeError: of nobody's" in found[2][0]


@pytest.mark.parametrize("change", ["write", "delete", "make", "touch"])
def test_a_change_outside(tmp_path: Path, change: str) -> None:
    outside = Outside(tmp_path / "outside")
    (tmp_path / "file").write_bytes(b"x")
    tamper("link to a file", tmp_path / "file", outside, is_file=True)
    assert not outside.changed
    if change == "write":
        (tmp_path / "file").write_bytes(b"x")
    elif change == "delete":
        (outside.directory / "precious").unlink()
    elif change == "make":
        (outside.directory / "new").touch()
    else:
        os.utime(outside.file)
    assert outside.changed


def test_a_device_is_among_them_where_root_allows() -> None:
    if os.geteuid():
        pytest.skip("only root makes devices")
    assert "device" in FILES
