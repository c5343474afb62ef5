"""The site of the documentation builds, without a link that leads nowhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docstring_examples import MODULES
from tests.effort import not_quick

ROOT = Path(__file__).parents[2]


def _build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@not_quick("it builds all pages")
def test_the_site_builds(tmp_path: Path) -> None:
    done = _build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "site" / "index.html").read_text()
    assert "A durable message queue inside your Python process" in first
    assert 'href="tutorial/"' in first  # README.md leads there as docs/tutorial.md
    ways = (tmp_path / "site" / "architecture" / "index.html").read_text()
    assert ways.count('class="mermaid"') == 2
    reference = (tmp_path / "site" / "api" / "index.html").read_text()
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            assert f'id="{module}.{name}"' in reference
    assert not re.findall(":(?:class|func|meth|mod):", reference)


@not_quick("it builds all pages")
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text("[nowhere](nowhere.md)\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = settings[: settings.index("nav:\n  -")].replace("hooks: [scripts/site_hooks.py]", "")
    (tmp_path / "mkdocs.yml").write_text(settings.replace("site_dir: build/site", ""))
    done = _build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert "'nowhere.md'" in done.stderr
