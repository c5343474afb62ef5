"""What is written in C (``qindex/c``, ``rocketstore/c``), where it was built with a compiler.

Everything works without it, single messages half as fast. ``QINDEX_PURE_PYTHON=1`` in the
environment does without.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from types import ModuleType

__all__ = ["described", "load"]


def load(package: str) -> ModuleType | None:
    """Give the part in C of a package; ``None`` where it was built without a compiler."""
    if os.environ.get("QINDEX_PURE_PYTHON"):
        return None
    try:
        return importlib.import_module(f"{package}._compiled")
    except ImportError:
        return None


def described(method: Callable[..., object]) -> str:
    """Give a method's docstring with the signature before it, as functions in C have it."""
    shown = inspect.signature(method)
    bare = [one.replace(annotation=one.empty) for one in shown.parameters.values()]
    text = str(shown.replace(parameters=bare, return_annotation=shown.empty))
    return f"{method.__name__}{text.replace('self', '$self', 1)}\n--\n\n{method.__doc__}"
