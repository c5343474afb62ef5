r"""Foreign text, as it is shown to people.

Names, keys, paths and errors may hold anything that another program has written. A terminal acts on
control characters, and shows bidirectional ones by reordering the text around them. So each
character that is not printable is shown as its escape.

>>> printable("orders\x1b[2J")
'orders\\x1b[2J'
>>> json_safe('{"key": "a\u202eb"}')
'{"key": "a\\u202eb"}'
"""

from __future__ import annotations

import re

_ACTED_ON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is, and a terminal acts on."""


def printable(text: str) -> str:
    """Return one line of text with escapes for the characters that are not printable."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escape(one) for one in text])


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def json_safe(text: str) -> str:
    """Return JSON text, of the same value, that a terminal shows as it is."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _ACTED_ON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
