"""Check, at import, that no file of a user hides our own packages.

Others use their names as well: a ``journal.py`` beside a program comes first for Python.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder

_OURS = {"journal": "errors", "msgstore": "store"}
"""The packages that this one is built on, and a module that each of them has."""


def check() -> None:
    """Raise :class:`ImportError` where something else has the name of one of our packages."""
    for name, known in _OURS.items():
        see(name, known)


def see(name: str, known: str) -> None:
    """See that the package of this name is ours: it has a module ``known``. Raises as
    :func:`check`."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ImportError(f"qindex is not installed whole: its package {name!r} is missing")
    places = list(spec.submodule_search_locations or ())
    # Found as Python would, in an archive (a wheel on the path) too, and not imported.
    if places and PathFinder.find_spec(f"{name}.{known}", places) is not None:
        return
    there = spec.origin or ", ".join(places)
    raise ImportError(
        f"{there} is in the way of qindex's own package {name!r}: "
        f"rename it, or start Python from another directory"
    )


check()
