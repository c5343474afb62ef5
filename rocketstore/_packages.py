"""Check, at import, that no file of a user, such as a ``journal.py`` beside the program, hides the
package that this one is built on."""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder

_spec = importlib.util.find_spec("journal")
_places = list((_spec and _spec.submodule_search_locations) or ())
# Found as Python would, in an archive (a wheel on the path) too, and not imported.
if not _places or PathFinder.find_spec("journal.errors", _places) is None:
    raise ImportError(
        f"{_spec and _spec.origin} is in the way of rocketstore's own package 'journal': "
        "rename it, or start Python from another directory"
    )
