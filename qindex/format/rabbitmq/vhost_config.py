"""``.config`` of a vhost: how many entries a queue index segment holds.

Written once, when the vhost is made::

    %% This file is auto-generated! Edit at your own risk!
    {segment_entry_count, 2048}.

New vhosts get 2048. A vhost older than the file has 16384, and that is what a node assumes where
the file is missing or unreadable. The relative sequence id in a segment has 14 bits, so 16384 is
also the most that is possible. Reading a store with the wrong count gives every message of
segment 1 and up a wrong sequence id.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from qindex.format.rabbitmq.term_format import TermError
from qindex.format.rabbitmq.text_terms import parse_terms

LEGACY_SEGMENT_ENTRY_COUNT: Final = 16384
MAX_SEGMENT_ENTRY_COUNT: Final = 1 << 14

_KEY: Final = "segment_entry_count"


class VhostConfig(NamedTuple):
    """``fallback`` tells why the count is an assumption; ``None`` when the file states it."""

    segment_entry_count: int
    fallback: str | None = None


def parse_vhost_config(raw: bytes | None) -> VhostConfig:
    """Read the bytes of ``.config`` (``None``: there is no such file), as a node does.

    Missing or unreadable gives 16384 with the reason in ``fallback``. Raises :class:`TermError`
    where the text is sound and states no possible count: a node does not start on it either, and
    a guess would misplace messages.
    """
    if raw is None:
        return VhostConfig(LEGACY_SEGMENT_ENTRY_COUNT, ".config is missing")
    try:
        terms = parse_terms(raw)
    except TermError as error:
        return VhostConfig(LEGACY_SEGMENT_ENTRY_COUNT, f".config is unreadable: {error}")
    counts = [term[1] for term in terms if _is_count_pair(term)]
    if not counts:
        raise TermError(f".config has no {_KEY}")
    count = counts[-1]  # where a key is there twice, the last one counts
    if type(count) is not int or not 1 <= count <= MAX_SEGMENT_ENTRY_COUNT:
        raise TermError(f".config has a {_KEY} that is not 1 to {MAX_SEGMENT_ENTRY_COUNT}")
    return VhostConfig(count)


def format_vhost_config(segment_entry_count: int) -> bytes:
    """Content of a ``.config`` file, byte for byte as a node writes it."""
    return (
        b"%% This file is auto-generated! Edit at your own risk!\n"
        b"{segment_entry_count, " + str(segment_entry_count).encode("ascii") + b"}."
    )


def _is_count_pair(term: object) -> bool:
    return type(term) is tuple and len(term) == 2 and term[0] == _KEY
