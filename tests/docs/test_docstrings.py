"""Docstrings that every supported Python can compile."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("journal", "msgstore", "qindex", "rocketstore", "pyspark_qindex")
_HAVE_ONE = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("package", _PACKAGES)
def test_docstrings_are_valid_unicode(package: str) -> None:
    """From CPython 3.13 on the compiler encodes them: a module that has another can't be imported.

    A raw docstring may show a lone surrogate as an escape; one that is not raw contains it.
    """
    for path in sorted((_ROOT / package).rglob("*.py")):
        source = path.read_text()
        if "\\ud" not in source.lower():
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, _HAVE_ONE):
                (ast.get_docstring(node, clean=False) or "").encode()
