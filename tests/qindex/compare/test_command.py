"""``qindex compare`` as a user runs it: what it prints, its page in a browser, and wrong use."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from qindex.compare import run as run_module
from tests.cli.support import run
from tests.effort import not_quick
from tests.waiting import WAIT

_ROOT = str(Path(__file__).resolve().parents[3])
_COMMAND = [sys.executable, "-m", "qindex.cli", "compare"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("workload") / "small.json"
    load = {"messages": 2_000, "seconds": 0.2, "rate": 500, "lookups": 10, "batch": 10}
    file.write_text(json.dumps(load))
    return file


@pytest.fixture(scope="module")
def page(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a real run, whose figures have been looked at."""
    folder = tmp_path_factory.mktemp("run")
    html = folder / "page.html"
    stores = folder / "stores"
    stores.mkdir()
    given = ["--quick", "--json", "--dir", stores, "--html", html, "--rounds", 1]
    result = run("compare", "-w", small, *given)
    assert result.code == 0, result.err
    assert result.complaints == [f"qindex: the page is in {html}"]
    assert not list(stores.iterdir())
    figures = {(one["key"], one["contender"]): one
               for one in result.rows}  # fmt: skip
    keys = {key for key, _ in figures}
    assert {"rate", "publish_p999", "delivery_max", "cpu", "memory", "disk_after"} <= keys
    assert len([key for key in keys if key.startswith("recovery_")]) == 3
    for one in figures.values():
        assert one["low"] <= one["median"] <= one["high"]
        assert one["workload"] == "small"
    assert figures["rate", "qindex"]["median"] > 0
    # The queue index frees what is acknowledged; the log keeps it until its retention has passed.
    assert figures["disk_after", "qindex"]["median"] < 2_000 * 256
    assert figures["disk_after", "rocketstore"]["median"] > 200 * 256
    # An index of keys against a scan of the queue.
    assert figures["lookup", "rocketstore"]["median"] < figures["lookup", "qindex"]["median"]
    return html


def _open_in_browser(page: Path, folder: Path) -> tuple[str, Path]:
    """What Chromium's log says of the page, and the picture of it. Reaches no network."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    picture = folder / "page.png"
    ended = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-features=NetworkTimeServiceQuerying",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr", "--hide-scrollbars", "--window-size=1280,2400",
            f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert picture.is_file(), ended.stderr
    return ended.stderr, picture


@not_quick("a browser")
def test_the_page_opens_in_a_browser(page: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    log, picture = _open_in_browser(page, tmp_path)
    assert "CONSOLE" not in log
    pixels = (image.imread(picture)[:, :, :3] * 255).round().astype(int)
    colours = {tuple(one) for one in pixels.reshape(-1, 3)[::3].tolist()}
    # The lines and the keys of both designs.
    assert {(0x2A, 0x78, 0xD6), (0xD9, 0x58, 0x1F)} <= colours


@not_quick("a browser")
def test_the_page_can_ask_for_nothing(page: Path, tmp_path: Path) -> None:
    """A request put into it is refused by its own policy, and seen: so the test above would have
    seen one."""
    changed = tmp_path / "changed.html"
    image = "<img src='http://127.0.0.1:9/x.png'></body>"
    changed.write_text(page.read_text(encoding="utf-8").replace("</body>", image))
    log, _ = _open_in_browser(changed, tmp_path)
    assert "CONSOLE" in log
    assert "Content Security Policy" in log


@pytest.mark.rotates(2)
def test_the_table_says_which_figures_and_of_how_many_rounds(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module.Plan, "backlogs", lambda _plan: [50])
    result = run("compare", "-w", small, "--quick", "--messages", 200, "--dir", tmp_path)
    assert result.code == 0, result.err
    assert ": one round" in result.text
    assert "kill -9 to first delivery, 50 waiting" in result.text
    assert "Fewer than three rounds" in result.text
    assert not result.err


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["nope"], "no preset 'nope'"),
        (["--queues", "0"], "queues must be"),
        (["--durability", "x"], "durability must be"),
        (["-w", "/nowhere/at/all.json"], "No such file"),
        (["--dir", "/nowhere/at/all"], "no such directory"),
        (["--html", "/nowhere/at/all.html"], "can't be written"),
        (["fan-out", "-w", "x.json"], "either a preset"),
        (["--rounds", "0"], "rounds"),
    ],
)
def test_wrong_use_is_one_clear_line(given: list[str], complaint: str) -> None:
    result = run("compare", *given)
    assert result.code == 2
    (line,) = result.complaints
    assert complaint in line


def test_too_little_room_is_seen_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    result = run("compare", "--dir", tmp_path)
    assert result.code == 2
    (line,) = result.complaints
    assert "5 MiB are free" in line
    assert not list(tmp_path.iterdir())


def _limit_files() -> None:
    """Let files grow no further than 64 KiB: a write fails in the middle of the work."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))


def test_a_write_that_fails_in_the_middle_ends_it(small: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [*_COMMAND, "-w", str(small), "--quick", "--dir", str(tmp_path)],
        cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=_limit_files,
    )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("qindex: ")
    assert "File too large" in line
    assert not list(tmp_path.iterdir())


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(one) for one in listed.split()]


def _wait_for_child(pid: int) -> int:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        if found := _children(pid):
            return found[0]
        time.sleep(0.02)
    raise AssertionError("no child process was started")


@pytest.mark.rotates(3)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_it_is_ended(small: Path, tmp_path: Path, end: int) -> None:
    with subprocess.Popen(
        [*_COMMAND, "-w", str(small), "--seconds", "20", "--dir", str(tmp_path)],
        cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        child = _wait_for_child(process.pid)
        time.sleep(0.7)
        process.send_signal(end)
        out, complaint = process.communicate(timeout=WAIT)
    assert not out
    if end != signal.SIGKILL:
        assert (process.returncode, complaint) == (130, "qindex: interrupted\n")
        assert not list(tmp_path.iterdir())
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline and _is_alive(child):
        time.sleep(0.05)
    assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def test_nothing_else_loads_the_comparison() -> None:
    code = "import sys, qindex.cli.app; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "qindex.cli.app" in loaded
    assert not [one for one in loaded if one.startswith(("qindex.compare", "rocketstore"))]
