"""Hooks of mkdocs: the pages and programs outside docs/ are parts of the site, too.

README.md is its first page. Links between docs/ and the rest are those that the repository has;
they lead to the same file in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")
_TO_DOCS = re.compile(r"(\]\(|: )docs/(?=[\w-]+\.md)")
_TO_ROOT = re.compile(r"\]\(\.\./(?!docs/)")
_TO_FOLDER = re.compile(r"\]\((examples)(?:/django_shop)?/?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root and the examples."""
    examples = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
    for path in [*(ROOT / name for name in PAGES), *examples]:
        if "__pycache__" not in path.parts:
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that leave docs/, or lead there, into those of the site."""
    if page.file.src_uri.startswith("examples/"):
        return markdown.replace("](../docs/", "](../")
    text = _TO_ROOT.sub("](", _TO_DOCS.sub(r"\1", markdown))
    return _TO_FOLDER.sub("](examples/README.md)", text)
