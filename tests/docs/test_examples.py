"""Every example of the documentation runs: the ``python`` and ``console`` blocks of README.md and
docs/*.md, in order, as their readers would run them, in an empty directory that a page's blocks
share.

A ``python`` block that begins with ``# name.py`` is saved under that name, for the console to run.
A ``console`` block is commands behind ``$`` and what they print, standard error too; ``...`` there
stands for anything, and white space counts as one space.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.effort import by_tier, part
from tests.golden import VHOST_DIR_NAME, synthetic

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_FILE_NAME = re.compile(r"# (\w+\.py)\n")
_NO_PROGRAMS = {
    "pipeline": "they need a JVM: tests/spark/test_docs.py runs them in its session",
    "spark": "they need a JVM: tests/spark/test_docs.py runs them in its session",
}
"""Pages whose blocks are not meant to be run as they stand, and why."""
_GIVEN = {
    "rabbitmq": "import qindex\n"
    "vhost_directory = 'vhost'\n"
    "with qindex.open(vhost_directory, record_format='rabbitmq') as engine:\n"
    "    engine.queue('orders').publish(b'x')\n",
}
"""What the text of a page says that there is, before its examples."""
_SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if path.stem not in _NO_PROGRAMS and _BLOCK.search(path.read_text())
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables under which ``python`` and ``qindex`` are those of this tree."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("qindex", " -m qindex.cli")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "COLUMNS": "100",
    }


def _give_a_broken_node(directory: Path) -> None:
    """Put a RabbitMQ node's directory there, over which the node hangs at its start."""
    vhosts = directory / "mnesia" / "rabbit@host" / "msg_stores" / "vhosts"
    shutil.copytree(synthetic("07_seg_cut").vhost_dir, vhosts / VHOST_DIR_NAME)


def _run(arguments: list[str], directory: Path, environment: dict[str, str]) -> tuple[int, str]:
    # Into a file: a pipe would stay open as long as a process that the command left running.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            arguments,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=60,
        )
        output.seek(0)
        return done.returncode, output.read()


def _run_python(block: str, page: Path, directory: Path, environment: dict[str, str]) -> None:
    file_name = _FILE_NAME.match(block)
    if file_name:
        (directory / file_name[1]).write_text(block)
        return
    arguments = [sys.executable, "-c", _GIVEN.get(page.stem, "") + block]
    code, output = _run(arguments, directory, environment)
    assert code == 0, f"{page.name}:\n{block}\n{output}"


def _run_console(block: str, page: Path, directory: Path, environment: dict[str, str]) -> None:
    commands = _COMMAND.findall(block)
    assert "".join(f"$ {command}\n{output}" for command, output in commands) == block, block
    for command, expected in commands:
        shown = command.replace("\n> ", "\n")
        _, output = _run(["sh", "-c", shown], directory, environment)
        same = doctest.OutputChecker().check_output(expected, output, _SAME)
        assert same, f"{page.name}:\n$ {command}\n{output}\nand not\n{expected}"


@pytest.mark.rotates(1)
@pytest.mark.parametrize(
    "page",
    [*PAGES[:1], *part(PAGES[1:], by_tier(quick=4, all=1, nightly=1), "pages")],
    ids=lambda path: path.stem,
)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    if page.stem in ("operations", "tutorial"):
        _give_a_broken_node(directory)
    if page.stem == "celery":
        environment["PYTHONWARNINGS"] = "default"  # it warns a root user
    for language, block in _BLOCK.findall(page.read_text()):
        run = _run_python if language == "python" else _run_console
        run(block, page, directory, environment)


def test_there_are_examples() -> None:
    assert {"aio", "moving", "compat", "tutorial", "operations"} <= {path.stem for path in PAGES}


def test_a_console_block_that_prints_something_else_is_told(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    page = tmp_path / "page.md"
    _run_console("$ echo one\none\n$ printf 'a\\nb\\n'\na\n...\n", page, tmp_path, environment)
    with pytest.raises(AssertionError, match="and not"):
        _run_console("$ echo one\ntwo\n", page, tmp_path, environment)
