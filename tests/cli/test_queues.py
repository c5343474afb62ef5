"""Tables and help that fit a terminal; purge, delete, completion, and a stream of messages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import qindex
import rocketstore
from qindex.cli.tables import human_count, human_size
from qindex.cli.top import _SORTS
from tests.cli.support import run
from tests.rocketstore.support import SIZES

ROOT = Path(__file__).parents[2]
LONG = "a-queue-of-which-nobody-knows-why-it-has-such-a-long-name-but-it-has"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with qindex.open(tmp_path / "store") as engine:
        engine.queue(LONG).publish_many([b"x" * 1000] * 1500)
        orders = engine.queue(
            "orders", max_length=100_000, message_ttl=86_400, dead_letter="failed-orders"
        )
        orders.publish_many([b"x"] * 3)
    return tmp_path / "store"


# -- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "stats"])
@pytest.mark.parametrize("columns", [50, 80, 120])
def test_tables_fit_the_terminal(
    store: Path, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run(command, store)
    lines = result.text.splitlines()
    assert max(map(len, lines)) <= columns
    titles = ["name", "messages", "ready", "unacked", "bytes"]
    assert lines[0].split() == titles + (["on", "disk"] if columns > 50 else [])
    assert ("…" in lines[1]) == (columns < 120)
    assert lines[1].split()[1:6] == ["1,500", "1,500", "0", "1.4", "MiB"]
    assert lines[2].split()[:6] == ["orders", "3", "3", "0", "3", "B"]
    # Settings stand below, broken between words.
    said = " ".join(lines[3:6]).split()[:3]
    assert said == ["message_ttl=86400", "max_length=100000", "dead_letter=failed-orders"]


def test_without_a_terminal_names_are_whole(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert LONG in run("list", store).text


def test_wide_has_all_figures(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("list", store, "--wide").text.splitlines()
    assert lines[0].split()[-3:] == ["journal_entries", "next_seq_id", "settings"]
    assert lines[1].split()[:7] == [LONG, "1500", "1500", "0", "0", "0", "1500000"]
    assert lines[2].endswith("message_ttl=86400 max_length=100000 dead_letter=failed-orders")
    sums = run("stats", store, "--wide").text.splitlines()[-1]
    assert sums.startswith("queues: 2, messages: 1503, bytes: 1500003, file_bytes: ")


def test_sizes_for_people() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10_239: "10 KiB", 1 << 20: "1.0 MiB"}
    sizes |= {(1 << 20) - 1: "1.0 MiB", 1_500_000: "1.4 MiB", 1 << 40: "1.0 TiB"}
    assert {size: human_size(size) for size in sizes} == sizes
    assert human_size(1 << 80) == "1,048,576 EiB"
    assert [human_count(one) for one in (None, 999, 1000)] == ["-", "999", "1,000"]


# -- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "export"])
def test_help_has_no_line_breaks_of_its_own(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Where the source broke a line, the terminal's help broke it again, in the middle."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    done = subprocess.run(
        [sys.executable, "-m", "qindex.cli", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    text = done.stdout[: done.stdout.index("╭")]
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in part.splitlines()]
        for line, after in pairwise(lines):
            assert len(line) + 1 + len(after.split()[0]) > 77, (line, after)


# -- purge and delete ---------------------------------------------------------------------------


def test_purge(store: Path) -> None:
    assert run("purge", store, LONG).text == f"purged 1500 of {LONG}\n"
    assert run("purge", store, "orders", "--json").rows == [{"queue": "orders", "purged": 3}]
    with qindex.open(store) as engine:
        assert len(engine.queue("orders")) == 0
        assert engine.queue("orders").settings.max_length == 100_000


def test_delete(store: Path) -> None:
    refused = run("delete", store, "orders")
    assert refused.code == 2
    assert "has 3 messages: --force deletes them as well" in refused.err
    assert run("delete", store, "orders", "--force").text == "deleted orders with 3 messages\n"
    run("purge", store, LONG)
    assert run("delete", store, LONG, "--json").rows == [{"queue": LONG, "deleted": 0}]
    assert run("list", store, "--json").rows == []


@pytest.mark.parametrize("command", ["purge", "delete"])
def test_nothing_is_made_by_purge_and_delete(store: Path, tmp_path: Path, command: str) -> None:
    assert run(command, tmp_path / "missing", "q").code == 2
    assert not (tmp_path / "missing").exists()
    result = run(command, store, "missing")
    assert result.code == 2
    assert "no queue 'missing'" in result.err
    assert len(run("list", store, "--json").rows) == 2
    with qindex.open(store):
        assert "is open for writing by this process" in run(command, store, "orders").err


# -- a stream of messages -----------------------------------------------------------------------


def test_export_to_standard_output(store: Path, tmp_path: Path) -> None:
    with qindex.open(store) as engine:
        engine.queue("orders").publish(b"\xff", key="k", headers={"n": 1})
    result = run("export", store, "orders", "--out", "-")
    assert (result.code, result.err) == (0, "")
    assert [row["seq_id"] for row in result.rows] == [0, 1, 2, 3]
    assert {row["queue"] for row in result.rows} == {"orders"}
    (tmp_path / "x.jsonl").write_bytes(result.out)
    assert run("import", tmp_path / "x.jsonl", tmp_path / "again").code == 0
    with qindex.open(tmp_path / "again") as engine:
        last = engine.queue("orders").get_many(9)[-1]
        assert (last.body, last.key, last.headers) == (b"\xff", "k", {"n": 1})
    assert len(run("export", store, "--out", "-").rows) == 1504
    assert run("export", store, "--out", "-", "--format", "parquet").code == 2
    assert run("export", store).code == 2


def test_export_to_standard_output_of_a_damaged_store(tmp_path: Path) -> None:
    with qindex.open(tmp_path) as engine:
        engine.queue("q").publish_many([b"%d" % n * 30 for n in range(5)])
        engine.flush()
    (path,) = tmp_path.glob("queues/*/0.idx")
    data = bytearray(path.read_bytes())
    at = data.index(b"2" * 30)
    data[at : at + 3] = b"abc"
    path.write_bytes(data)
    result = run("export", tmp_path, "--out", "-")
    assert result.code == 1
    assert [row["body"][0] for row in result.rows] == ["0", "1", "3", "4"]


# -- completion ---------------------------------------------------------------------------------


def completed(tmp_path: Path, words: str) -> list[str]:
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    asked = {"_QINDEX_COMPLETE": "complete_bash", "COMP_WORDS": words}
    done = subprocess.run(
        [sys.executable, "-m", "qindex.cli"],
        env=environment | asked | {"COMP_CWORD": str(len(words.split(" ")) - 1)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_completion(store: Path, tmp_path: Path) -> None:
    assert completed(tmp_path, "qindex pu") == ["publish", "purge", "push", "pull"]
    assert completed(tmp_path, f"qindex purge {store} o") == ["orders"]
    assert completed(tmp_path, f"qindex cat {tmp_path}/missing o") == []


def test_completion_is_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qindex.cli", "--show-completion", "bash"],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        | {"SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "_QINDEX_COMPLETE=complete_bash" in done.stdout


# -- one file, from anywhere --------------------------------------------------------------------


def test_inspect_a_file_that_stands_somewhere_else(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rocketstore.open(tmp_path / "rocket", **SIZES) as rocket:
        rocket.put("T", b"x", keys="k")
    files = [path for top in (store, tmp_path / "rocket") for path in top.rglob("*")]
    looked = 0
    for path in files:
        if not path.is_file() or path.name.endswith("lock"):
            continue
        monkeypatch.chdir(path.parent)
        here = run("inspect", path.name, "--json")
        assert here.code == 0, here.err
        elsewhere = tmp_path / f"elsewhere-{looked}"
        elsewhere.mkdir()
        copy = Path(shutil.copy(path, elsewhere))
        monkeypatch.chdir(elsewhere)
        there = run("inspect", copy.name, "--json")
        assert (there.code, there.rows) == (0, here.rows), path
        looked += 1
    assert looked > 8


# -- what may be missing, or in the way ---------------------------------------------------------


def test_without_typer_the_command_line_says_what_it_needs() -> None:
    program = (
        "import sys\n"
        "sys.modules['typer'] = None\n"
        "from qindex.cli.start import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    assert done.stderr == 'qindex: the command line needs typer: pip install "qindex[cli]"\n'


@pytest.mark.parametrize(
    ("way", "importing"),
    [
        ("journal.py", "qindex"),
        ("journal/__init__.py", "qindex.aio"),
        ("msgstore.py", "qindex"),
        ("journal.py", "rocketstore"),
    ],
)
def test_a_users_own_module_in_the_way_is_named(tmp_path: Path, way: str, importing: str) -> None:
    """It said that 'journal' is not a package."""
    (tmp_path / way).parent.mkdir(exist_ok=True)
    (tmp_path / way).write_text("mine = 1\n")
    (tmp_path / "program.py").write_text(f"import {importing}\n")
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / way} is in the way of")
    assert "rename it" in last


def test_a_command_whose_package_is_hidden_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there: "No such command"."""
    mine = tmp_path / "rocketstore.py"
    mine.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rocketstore")
    result = run("rocket", "list", tmp_path)
    assert result.code == 2
    assert result.complaints[0].startswith(f"qindex: {mine} is in the way of")
    assert run("list", tmp_path / "none").code == 2


def test_the_help_of_top_names_its_keys() -> None:
    """In a terminal without Unicode, too."""
    result = run("top", "--help")
    assert result.code == 0, result.err
    assert f"Keys: {' '.join(_SORTS)} sort" in " ".join(result.out.decode().split())


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    "name", ["zz$(touch x)", "orders;touch${IFS}x", "a b", "`x`", "a\\tb", "x'y"]
)
def test_names_that_a_shell_may_run_are_not_offered(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    with qindex.open(store) as engine:
        for one in (name, "été.2@x:y-z_"):
            engine.queue(one)
    assert completed(tmp_path, f"qindex cat {store} ") == ["été.2@x:y-z_"]
