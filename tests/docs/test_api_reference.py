"""docs/api.md names what the public modules have; the examples in their docstrings run."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interpreted  # it asks for the signatures in the sources

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
PROGRAM = ROOT / "scripts" / "api_reference.py"
_TITLE = re.compile(r"^##+ (.+)$|^(?:\*\*`)?(?:await )?(\w+\.\w+)[(:]", re.MULTILINE)
"""A heading, or the signature of a method or property."""
_WITH_EXAMPLES = [
    "qindex",
    "qindex.aio",
    "qindex.compat.queue",
    "qindex.compat.queuelib",
    "qindex.view.reader",
    "qindex.tools.verify",
]


def _names(page: Path) -> list[str]:
    return [heading or member for heading, member in _TITLE.findall(page.read_text())]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("reference") / "api.md"
    done = _run("--out", str(page))
    assert done.returncode == 0, done.stderr
    return page


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="classes of other Pythons' libraries have other members"
)
def test_the_page_names_what_there_is(made: Path) -> None:
    assert _names(PAGE) == _names(made), "run python scripts/api_reference.py"


def test_all_that_can_be_imported_is_described(made: Path) -> None:
    described = set(_names(made))
    module = importlib.import_module("qindex")
    assert {f"qindex.{name}" for name in module.__all__} <= described


def test_the_links_lead_somewhere(made: Path) -> None:
    text = made.read_text()
    headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = re.findall(r"\]\(#([^)]+)\)", text)
    assert len(linked) > 60
    assert set(linked) <= anchors


def test_check_tells_a_page_that_is_up_to_date(made: Path) -> None:
    assert _run("--check", "--out", str(made)).returncode == 0


def test_check_tells_a_page_that_is_not(made: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.md"
    old.write_text(made.read_text().replace("**`Queue.purge", "**`Queue.empty"))
    done = _run("--check", "--out", str(old))
    assert done.returncode == 1
    assert "api_reference.py" in done.stderr


@pytest.mark.parametrize("name", _WITH_EXAMPLES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
