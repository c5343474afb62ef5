"""Sees, at import, that no file of a user, such as a ``journal.py`` beside the program, stands in
the way of the package that this one is built on."""

from __future__ import annotations

import importlib.util
import os

_spec = importlib.util.find_spec("journal")
_places = list((_spec and _spec.submodule_search_locations) or ())
if not any(os.path.exists(os.path.join(place, "errors.py")) for place in _places):
    raise ImportError(
        f"{_spec and _spec.origin} is in the way of rocketstore's own package 'journal': "
        "rename it, or start Python from another directory"
    )
