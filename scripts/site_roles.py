"""Make links of the roles in docstrings, where the reference of the site has what they name."""

from __future__ import annotations

import html
import re
from typing import Any

from griffe import AliasResolutionError, Extension, NameResolutionError, Object

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(~?)([\w.]+)(\(\))?`")

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class Roles(Extension):
    """Turns ``:class:`Name``` into a link that mkdocs-autorefs looks up."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of what griffe has read."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda found: _link(obj, found), obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", text)


def _link(place: Object, found: re.Match[str]) -> str:
    short, name, _ = found.groups()
    first, dot, rest = name.partition(".")
    try:
        target = place.resolve(first) + dot + rest
    except (AliasResolutionError, NameResolutionError):
        target = name
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{html.escape(target)}" optional><code>{shown}</code></autoref>'
